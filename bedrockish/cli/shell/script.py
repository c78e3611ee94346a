"""SQL scripts: a text becomes statements and dot-commands, and statements become transactions. Pure.

SQLite itself says where a statement ends (a semicolon in a string or in a trigger's body ends nothing). What stands
between BEGIN and COMMIT becomes one transaction, sent as a whole, unless it needs an open one: it has savepoints or
dot-commands in it, or ends with ROLLBACK. Every other statement is a transaction of its own.
"""

import io
import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bedrockish.errors import UsageError
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, parse_control

BLANK = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement and where it was written, such as ``load.sql:12``."""

    sql: str
    where: str


@dataclass(frozen=True, slots=True)
class Dot:
    """One dot-command and where it was written."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Statements that run as one transaction."""

    pieces: tuple[Piece, ...]


def strip_blank(sql: str) -> str:
    """Return a text without the white space and comments before it."""
    blank = BLANK.match(sql)
    return sql[blank.end() :] if blank else sql


def split(text: str, source: str, line: int = 1) -> Iterator[Piece]:
    """Yield the statements of a text; the last one needs no semicolon.

    Args:
        text: the script.
        source: its name, for error texts.
        line: number of its first line.
    """
    start = at = 0
    while start < len(text):
        at = text.find(";", at) + 1
        chunk = text[start:at] if at else text[start:]
        if at and not sqlite3.complete_statement(chunk):
            continue
        sql = strip_blank(chunk)
        if sql.strip("; \t\r\n"):
            first = line + text.count("\n", 0, start + len(chunk) - len(sql))
            yield Piece(sql.strip(), f"{source}:{first}")
        if not at:
            return
        start = at


def items(text: str, source: str) -> Iterator[Piece | Dot]:
    """Yield the statements and the dot-commands of a text.

    Args:
        text: the script.
        source: its name, for error texts.
    """
    held: list[str] = []
    first = 1
    for number, line in enumerate(io.StringIO(text), 1):
        if line.startswith(".") and not strip_blank("".join(held)):
            held.clear()
            yield Dot(line.strip(), f"{source}:{number}")
            continue
        if not held:
            first = number
        held.append(line)
        if ";" in line and sqlite3.complete_statement("".join(held)):
            yield from split("".join(held), source, first)
            held.clear()
    yield from split("".join(held), source, first)


def group(pieces: Iterable[Piece | Dot]) -> Iterator[Unit | Piece | Dot]:
    """Yield transactions as they become complete; as single pieces those that need an open transaction.

    Raises:
        UsageError: BEGIN and COMMIT do not match.
    """
    begin: Piece | None = None
    block: list[Piece | Dot] = []
    for piece in pieces:
        control = parse_control(piece.sql) if isinstance(piece, Piece) else None
        kind = control.kind if control is not None else ""
        if kind == BEGIN:
            if begin is not None:
                raise UsageError(f"{piece.where}: BEGIN within the transaction that began at {begin.where}")
            assert isinstance(piece, Piece)
            begin, block = piece, []
        elif begin is None:
            if kind:
                raise UsageError(f"{piece.where}: {kind} without BEGIN; remove it")
            yield Unit((piece,)) if isinstance(piece, Piece) else piece
        elif kind in (COMMIT, ROLLBACK):
            whole = tuple(one for one in block if isinstance(one, Piece) and parse_control(one.sql) is None)
            if kind == ROLLBACK or len(whole) < len(block):
                yield from (begin, *block, piece)
            elif whole:
                yield Unit(whole)
            begin = None
        else:
            block.append(piece)
    if begin is not None:
        raise UsageError(f"{begin.where}: BEGIN without COMMIT; nothing of this transaction was sent")

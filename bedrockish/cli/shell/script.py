"""SQL scripts: a text becomes statements and dot-commands, and statements become transactions. Pure.

SQLite itself says where a statement ends (a semicolon in a string or in a trigger's body ends nothing). What stands
between BEGIN and COMMIT becomes one transaction, sent as a whole, unless it needs an open one: it has savepoints or
dot-commands in it, or ends with ROLLBACK. Every other statement is a transaction of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bedrockish.errors import UsageError
from bedrockish.sqltext.statement_ends import after_nothing, statement_end
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, parse_control


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


def items(text: str, source: str) -> Iterator[Piece | Dot]:
    """Yield the statements and the dot-commands of a text. A dot-command is a line that begins with a dot.

    Args:
        text: the script.
        source: its name, for error texts.
    """
    at, counted, line = 0, 0, 1
    while (begin := after_nothing(text, at)) < len(text):
        line += text.count("\n", counted, begin)
        counted = begin
        if text[begin] == "." and (begin == 0 or text[begin - 1] == "\n"):
            at = text.find("\n", begin) + 1 or len(text)
            yield Dot(text[begin:at].strip(), f"{source}:{line}")
            continue
        at = statement_end(text, begin) or len(text)
        yield Piece(text[begin:at].rstrip(), f"{source}:{line}")


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

"""SQL scripts: a text becomes statements and dot-commands, and statements become transactions. Pure.

SQLite itself decides where a statement ends (a semicolon in a string or in a trigger's body ends nothing). The
statements from BEGIN to COMMIT become one transaction, sent as a whole. If they include savepoints or dot-commands, or
end with ROLLBACK, they run in an open transaction. Any other statement is a transaction by itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from bedrockish.errors import UsageError
from bedrockish.sqltext.keys_off_sections import OFF, ON, section_end
from bedrockish.sqltext.statement_ends import statement_end, statement_start
from bedrockish.sqltext.statement_kinds import SCHEMA, kind_of, switch_of
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, Control, parse_control


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """A statement with the place where it was written, such as ``load.sql:12``."""

    sql: str
    where: str


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """A dot-command with the place where it was written."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Statements that run as one transaction."""

    pieces: tuple[ScriptStatement, ...]


def items(text: str, source: str) -> Iterator[ScriptStatement | ScriptCommand]:
    """Yield the statements and the dot-commands of a text. A dot-command is a line that begins with a dot."""
    at, counted, line = 0, 0, 1
    while (begin := statement_start(text, at)) < len(text):
        line += text.count("\n", counted, begin)
        counted = begin
        if text[begin] == "." and (begin == 0 or text[begin - 1] == "\n"):
            at = text.find("\n", begin) + 1 or len(text)
            yield ScriptCommand(text[begin:at].strip(), f"{source}:{line}")
            continue
        at = statement_end(text, begin) or len(text)
        yield ScriptStatement(text[begin:at].rstrip(), f"{source}:{line}")


def _with_keys_off(pieces: list[ScriptStatement | ScriptCommand]) -> Iterator[Unit | ScriptStatement | ScriptCommand]:
    """Yield the pieces; a section with foreign keys off, which runs as one transaction, becomes one unit.

    If a script's own transaction follows PRAGMA foreign_keys = OFF, the PRAGMA is moved into that transaction.
    """
    at = 0
    waiting: ScriptStatement | None = None  # the PRAGMA, for the next transaction that changes the schema
    is_open = False
    while at < len(pieces):
        piece = pieces[at]
        at += 1
        if isinstance(piece, ScriptCommand):
            yield piece
            continue
        control = parse_control(piece.sql)
        if control is not None:
            is_open = control.kind == BEGIN or (is_open and control.kind not in (COMMIT, ROLLBACK))
            yield piece
            if control.kind == BEGIN and waiting is not None and _changes_schema(pieces, at):
                yield waiting
        elif is_open or switch_of(piece.sql) not in (OFF, ON):
            yield piece
        elif switch_of(piece.sql) == ON:
            waiting = None
            yield piece
        else:
            following = takewhile(lambda one: isinstance(one, ScriptStatement), pieces[at - 1 :])
            texts = [one.sql for one in following if isinstance(one, ScriptStatement)]
            end = at - 1 + section_end(texts, 0)
            if end > at:
                yield Unit(tuple(one for one in pieces[at - 1 : end] if isinstance(one, ScriptStatement)))
                at = end
            elif any(parse_control(text) == Control(BEGIN) for text in texts):
                waiting = piece
            else:
                yield piece


def _changes_schema(pieces: list[ScriptStatement | ScriptCommand], at: int) -> bool:
    """Return whether the transaction whose statements begin at a place changes the schema."""
    for piece in pieces[at:]:
        if isinstance(piece, ScriptStatement):
            control = parse_control(piece.sql)
            if control is not None and control.kind in (COMMIT, ROLLBACK):
                return False
            if kind_of(piece.sql) == SCHEMA:
                return True
    return False


def group(pieces: Iterable[ScriptStatement | ScriptCommand]) -> Iterator[Unit | ScriptStatement | ScriptCommand]:
    """Yield whole transactions as units; a transaction that cannot be sent as a whole is yielded piece by piece.

    Raises:
        UsageError: BEGIN and COMMIT do not match.
    """
    begin: ScriptStatement | None = None
    block: list[ScriptStatement | ScriptCommand] = []
    for piece in _with_keys_off(list(pieces)):
        if isinstance(piece, Unit):
            yield piece
            continue
        control = parse_control(piece.sql) if isinstance(piece, ScriptStatement) else None
        kind = control.kind if control is not None else ""
        if kind == BEGIN:
            if begin is not None:
                raise UsageError(f"{piece.where}: BEGIN within the transaction that began at {begin.where}")
            assert isinstance(piece, ScriptStatement)
            begin, block = piece, []
        elif begin is None:
            if kind:
                raise UsageError(f"{piece.where}: {kind} without BEGIN; remove it")
            yield Unit((piece,)) if isinstance(piece, ScriptStatement) else piece
        elif kind in (COMMIT, ROLLBACK):
            whole = tuple(one for one in block if isinstance(one, ScriptStatement) and parse_control(one.sql) is None)
            if kind == ROLLBACK or len(whole) < len(block):
                yield from (begin, *block, piece)
            elif whole:
                yield Unit(whole)
            begin = None
        else:
            block.append(piece)
    if begin is not None:
        raise UsageError(f"{begin.where}: BEGIN without COMMIT; nothing of this transaction was sent")

"""The values that SQLite keeps for each connection and a few SQL functions return, here kept for each session.

``last_insert_rowid()``, ``changes()`` and ``total_changes()`` depend on the session. A session takes their values from
the results of its statements, and writes them into the text of later statements, which any node may run. Pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bedrockish.errors import BedrockishError, ConstraintError
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import LIKE, NONE, Settings, first_setting, with_settings
from bedrockish.sqltext.statement_kinds import READ, SCHEMA, WRITE, inserts, kind_of, verb_of
from bedrockish.sqltext.tokenizer import Cut, NotTokensError, spliced, tokens

_MENTIONED = re.compile(r"(?:last_insert_rowid|changes)[\"'`\]]?\s*(?:\(|/\*|--)", re.IGNORECASE)
TEXT_MAX = 1 << 16  # characters; values are not written into longer texts, which mostly contain data
_WRITTEN = re.compile(r"(ifnull\(nullif\(last_insert_rowid\(\), 0\), )?\(/\*(.*?)\*/-?[0-9]+\)(?(1)\))", re.DOTALL)
_ROWID = "last_insert_rowid"
_NAMES = {_ROWID, "changes", "total_changes"}
_TABLE, _QUERY = (re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for words in ("TABLE", "SELECT|VALUES|WITH"))
_NO_COLUMN = "(/*nothing*/)"
NOTHING = f'SELECT 1 AS "{_NO_COLUMN}" WHERE 0'  # takes the place of a statement that returns no columns in SQLite
SQLITE_ERROR = 1  # SQLite's code for SQL that does not compile, and for some errors of statements that run
WROTE = "wrote"
"""A key in the details of a step's error, for the statements before the failed one: the number of rows that they
changed, the number that the last writing one changed (-1 if none writes), and the rowid inserted last, or 0."""


class _Counted(Protocol):
    """A statement's result with its row count, and the rowid of the row that it inserted last."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed; -1 for a statement that cannot change rows."""

    @property
    def lastrowid(self) -> int | None:
        """The rowid of the row inserted last, or None."""


@dataclass(slots=True)
class SessionValues:
    """The values of one session that SQLite would keep for a connection."""

    last_insert_rowid: int = 0  # rowid of the row that the session inserted last; 0 before its first INSERT
    changes: int = 0  # number of rows that the last INSERT, UPDATE or DELETE changed
    total_changes: int = 0  # number of rows changed since the session began
    settings: Settings = NONE  # the PRAGMAs of ``session_settings`` that are on

    def see(self, results: Sequence[_Counted]) -> None:
        """Update the values from the results of statements, in order."""
        for one in results:
            if one.rowcount >= 0:
                self.changes = one.rowcount
                self.total_changes += one.rowcount
            if one.lastrowid:
                self.last_insert_rowid = one.lastrowid

    def note_error(self, error: BaseException) -> None:
        """Update the values after a failed step: SQLite counts no changed row if a statement failed while it ran."""
        if isinstance(error, BedrockishError):
            self.see_before(error)
        if has_run(error):
            self.changes = 0

    def see_before(self, error: BedrockishError) -> None:
        """Update the values from the statements that a failed step has run before the failed statement."""
        total, changes, rowid = _wrote(error)
        self.total_changes += total
        self.changes = changes if changes >= 0 else self.changes
        self.last_insert_rowid = rowid or self.last_insert_rowid

    def reset(self) -> None:
        """Set all values to those of a new session."""
        self.last_insert_rowid = self.changes = self.total_changes = 0
        self.settings = NONE

    def restore(self, other: "SessionValues") -> None:
        """Copy all values of another object into this one."""
        self.last_insert_rowid, self.changes = other.last_insert_rowid, other.changes
        self.total_changes, self.settings = other.total_changes, other.settings

    def write(self, sql: str) -> str:
        """Return a statement with the session's values in place of the function calls, after the session's settings.

        >>> SessionValues(last_insert_rowid=7).write("SELECT last_insert_rowid()")
        'SELECT (/*last_insert_rowid()*/7)'
        """
        return self.set_before(self.fill(self.take_settings(sql)))

    def take_settings(self, sql: str) -> str:
        """Apply the settings with which a text begins, and return the remaining text.

        If nothing remains, return a SELECT of the last queried setting, or a SELECT without a row.
        """
        found = first_setting(sql)
        if found is None:
            return sql
        answer = NOTHING
        while found is not None:
            name, on, end = found
            if on is not None:
                self.settings = self.settings | {name} if on else self.settings - {name}
            elif name != LIKE:  # a query of this PRAGMA returns no row in SQLite
                answer = f"SELECT {int(name in self.settings)} AS {name}"
            sql = sql[end:]
            found = first_setting(sql)
        return sql if sql.strip() else answer

    def set_before(self, sql: str) -> str:
        """Return a statement after PRAGMAs for the settings that are on and may change its meaning."""
        if not self.settings:
            return sql
        kind = kind_of(sql)
        if kind == WRITE or verb_of(sql) == "EXPLAIN":
            return with_settings(sql, self.settings)
        compares = kind == READ or (kind == SCHEMA and _may_fill(sql))
        return with_settings(sql, self.settings & {LIKE}) if compares else sql

    def set_before_all(self, texts: Sequence[str]) -> list[str]:
        """Return the statements of a request, each after PRAGMAs for settings of the session and of the request."""
        found: list[str] = []
        last = None
        for sql in texts:
            # A repeated text applies the same settings again, so its result is the same.
            found.append(found[-1] if sql is last else self.set_before(self.take_settings(sql)))
            last = sql
        return found

    def fill(self, sql: str) -> str:
        """Return a statement with the session's values in place of the function calls."""
        if len(sql) > TEXT_MAX or not asks_values(sql) or verb_of(sql) in ("CREATE", "ALTER"):
            return sql  # in a trigger or a view, the functions must be evaluated at each use
        try:
            found = tokens(sql)
        except NotTokensError:
            return sql
        cuts: list[Cut] = []
        is_returned = False  # whether the RETURNING of an INSERT has begun, which returns the id of the new row, if any
        for name, opening, closing in zip(found, found[1:], found[2:], strict=False):
            is_returned = is_returned or (name.is_word("RETURNING") and inserts(sql))
            called = (name.name or "").lower() if name.kind in ("word", "quoted") else ""
            if called not in _NAMES or opening.text != "(" or closing.text != ")":
                continue
            end = closing.start + 1
            shown = sql[name.start : end]
            shown = shown if "*/" not in shown else f"{called}()"
            written = f"(/*{shown}*/{getattr(self, called)})"
            if is_returned and called == _ROWID:  # a node begins each request, and each transaction, with an id of 0
                written = f"ifnull(nullif({_ROWID}(), 0), {written})"
            cuts.append((name.start, end, written))
        return spliced(sql, cuts)

    def write_all(self, texts: Sequence[str]) -> list[str]:
        """Return the statements of one request; those up to the first that may write contain the session's values.

        After that statement, only the node knows the values.
        """
        found = list(texts)
        for place, sql in enumerate(texts):
            found[place] = self.write(sql)
            if place + 1 < len(found) and kind_of(sql) != READ:
                found[place + 1 :] = self.set_before_all(texts[place + 1 :])
                break
        return found


def failed_at(results: Sequence[_Counted], error: BaseException | None = None) -> dict[str, Any]:
    """Return details of the error of a step whose first statements have these results.

    Args:
        error: the error of the remaining statements, if they ran as a step of their own; else None.
    """
    values, place = SessionValues(changes=-1), len(results)
    values.see(results)
    if isinstance(error, BedrockishError):
        values.see_before(error)
        place += error.details["statement"]
    wrote = [values.total_changes, values.changes, values.last_insert_rowid]
    return {"statement": place, **({WROTE: wrote} if wrote != [0, -1, 0] else {})}


def has_run(error: BaseException) -> bool:
    """Return whether a statement that writes failed while it ran, which its code shows, except for SQLITE_ERROR."""
    if not isinstance(error, BedrockishError) or isinstance(error, ConstraintError):
        return isinstance(error, ConstraintError)
    code = int(error.details.get("sqlite", SQLITE_ERROR)) & 0xFF  # also SQLITE_ERROR_MISSING_COLLSEQ: not compiled
    return code != SQLITE_ERROR and kind_of(error.details.get("sql", "")) == WRITE


def rows_before(error: BedrockishError) -> int:
    """Return the number of rows that the statements before the failed one have changed."""
    return _wrote(error)[0]


def _wrote(error: BedrockishError) -> tuple[int, int, int]:
    match error.details.get(WROTE):
        case [int(total), int(changes), int(rowid)]:
            return total, changes, rowid
    return 0, -1, 0


def _may_fill(sql: str) -> bool:
    """Return whether a schema statement may be CREATE TABLE AS SELECT, which also compares values."""
    table = _TABLE.search(sql)
    return table is not None and _QUERY.search(sql, table.end()) is not None


@remembered
def asks_values(sql: str) -> bool:
    """Return whether a text may call a function that returns a value of the session."""
    return _MENTIONED.search(sql) is not None


def shown_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a result's columns without the values that the session has written into the text.

    The result of ``NOTHING`` has no columns.

    >>> shown_names(("(/*last_insert_rowid()*/7)", "n"))
    ('last_insert_rowid()', 'n')
    >>> shown_names(("ifnull(nullif(last_insert_rowid(), 0), (/*LAST_INSERT_ROWID()*/7)) + 1",))
    ('LAST_INSERT_ROWID() + 1',)
    """
    for name in columns:
        if "(/*" in name:
            break
    else:
        return columns
    if columns == (_NO_COLUMN,):
        return ()
    return tuple(_WRITTEN.sub(r"\2", name) for name in columns)

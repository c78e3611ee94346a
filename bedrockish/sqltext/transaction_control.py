"""Recognises BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE and ROLLBACK TO in a text of SQL. Pure.

These statements must not reach SQLite, because a node always has a transaction of its own open. Clients turn the first
three into operations; nodes apply the others to an open transaction's list of changes.
"""

import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from itertools import islice

from bedrockish.errors import SqlError, UnsupportedError, UsageError
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.statement_ends import is_single, statement_start
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk

BEGIN, COMMIT, ROLLBACK = "BEGIN", "COMMIT", "ROLLBACK"
SAVEPOINT, RELEASE, ROLLBACK_TO = "SAVEPOINT", "RELEASE", "ROLLBACK TO"

_FIRST = re.compile(r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE)\b", re.IGNORECASE)
_BEGINNINGS = frozenset({"BE", "CO", "EN", "RO", "SA", "RE"})  # the first two letters of these words
_WORDS_MAX = 6
_TO = {("TO",), ("TO", "SAVEPOINT"), ("TRANSACTION", "TO"), ("TRANSACTION", "TO", "SAVEPOINT")}


@dataclass(frozen=True, slots=True)
class Control:
    """A statement of transaction control."""

    kind: str  # one of ``BEGIN``, ``COMMIT``, ``ROLLBACK``, ``SAVEPOINT``, ``RELEASE`` and ``ROLLBACK TO``
    name: str = ""  # name of the savepoint; empty for the first three kinds
    writes: bool = False  # whether BEGIN announces a write: IMMEDIATE or EXCLUSIVE


def parse_control(sql: str) -> Control | None:
    """Return the statement of transaction control that a text consists of; None for any other text.

    >>> parse_control("rollback transaction to savepoint a;")
    Control(kind='ROLLBACK TO', name='a', writes=False)
    >>> parse_control("SELECT 1") is None
    True
    """
    if not isinstance(sql, str):
        raise UsageError(f"a statement should be an SQL text, not {type(sql).__name__}")
    beginning = sql[:2]
    if beginning.isalpha() and beginning.upper() not in _BEGINNINGS:  # a fast path for most statements
        return None
    return _parsed(sql)


@remembered
def _parsed(sql: str) -> Control | None:
    if _FIRST.match(sql, statement_start(sql)) is None or not is_single(sql):
        return None
    try:
        found = list(islice((one for one in walk(sql) if one.text != ";"), _WORDS_MAX + 1))
    except NotTokensError:
        return None
    found = _without_name(found)
    name = found[-1].name
    match [one.text.upper() for one in found]:
        case ["BEGIN"] | ["BEGIN", "TRANSACTION" | "DEFERRED"] | ["BEGIN", "DEFERRED", "TRANSACTION"]:
            return Control(BEGIN)
        case ["BEGIN", "IMMEDIATE" | "EXCLUSIVE"] | ["BEGIN", "IMMEDIATE" | "EXCLUSIVE", "TRANSACTION"]:
            return Control(BEGIN, writes=True)
        case ["COMMIT" | "END"] | ["COMMIT" | "END", "TRANSACTION"]:
            return Control(COMMIT)
        case ["ROLLBACK"] | ["ROLLBACK", "TRANSACTION"]:
            return Control(ROLLBACK)
        case ["SAVEPOINT", _] if name is not None:
            return Control(SAVEPOINT, name)
        case ["RELEASE", _] | ["RELEASE", "SAVEPOINT", _] if name is not None:
            return Control(RELEASE, name)
        case ["ROLLBACK", *more, _] if name is not None and tuple(more) in _TO:
            return Control(ROLLBACK_TO, name)
        case _:
            return None


def _without_name(found: list[SqlToken]) -> list[SqlToken]:
    """Return the words of a statement without the name of the transaction, which has no meaning in SQLite either."""
    at = next((place for place, one in enumerate(found[:3]) if one.is_word("TRANSACTION")), 0) + 1
    is_named = at > 1 and not found[0].is_word("SAVEPOINT", "RELEASE") and len(found) > at
    if is_named and found[at].name is not None and not found[at].is_word("TO"):
        return [*found[:at], *found[at + 1 :]]
    return found


def control_of(sql: str, params: Sized | None) -> Control | None:
    """Return the result of ``parse_control``; refuse values that are given with a statement of transaction control.

    Raises:
        SqlError: the statement was given values.
    """
    found = parse_control(sql)
    if found is not None:
        refuse_values(params)
    return found


def savepoint_of(sql: str, params: Sized | None) -> Control | None:
    """Return the SAVEPOINT, RELEASE or ROLLBACK TO that a text consists of; None for any other text.

    Raises:
        UnsupportedError: the statement begins or ends a transaction, which is an operation of its own.
        SqlError: the statement was given values.
    """
    found = control_of(sql, params)
    if found is not None and found.kind in (BEGIN, COMMIT, ROLLBACK):
        raise UnsupportedError(f"{found.kind} is not a statement here; use the operation of that name")
    return found


def refuse_values(params: Sized | None) -> None:
    """Check that a statement without parameters was given no values; values by name are ignored, as in SQLite.

    Raises:
        SqlError: the statement was given values.
    """
    if params and not isinstance(params, Mapping):
        given = len(params)
        raise SqlError(f"the statement has 0 parameter(s), but {given} value(s) were given", wanted=0, given=given)

"""Recognises statements that make TEMP objects, by their texts. Pure."""

from collections.abc import Iterable
from itertools import islice

from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk

_HEAD = 12  # number of first tokens that are read: enough for the name in CREATE TEMP TABLE IF NOT EXISTS


@remembered
def makes_temporary(sql: str) -> bool:
    """Return whether a statement makes a TEMP table, view, trigger or index.

    >>> makes_temporary("CREATE TEMP TABLE t(a)"), makes_temporary("CREATE TABLE temp.t(a)")
    (True, True)
    """
    sql = without_settings(sql)
    if first_word(sql) != "CREATE" or "temp" not in sql.lower():
        return False
    words = _head(sql)
    if len(words) > 1 and words[1].is_word("TEMP", "TEMPORARY"):
        return True
    end = next((place for place, one in enumerate(words) if one.text == "(" or one.is_word("AS", "ON")), len(words))
    names = [(one.name or "").lower() for one in words[:end]]
    return any(name == "temp" and dot.text == "." for name, dot in zip(names, words[1:], strict=False))


def make_temporary(statements: Iterable[str]) -> bool:
    """Return whether any of the statements makes a TEMP object."""
    return any(map(makes_temporary, statements))


def first_temporary(statements: Iterable[str]) -> int | None:
    """Return the index of the first statement that makes a TEMP object; None if none does."""
    return next((place for place, sql in enumerate(statements) if makes_temporary(sql)), None)


def filling_select(sql: str) -> str:
    """Return the SELECT of a CREATE TEMP TABLE ... AS SELECT; empty for other statements.

    >>> filling_select("CREATE TEMP TABLE t AS SELECT 1"), filling_select("ALTER TABLE t ADD COLUMN b AS (a + 1)")
    ('SELECT 1', '')
    """
    words = _head(sql)
    if not any(one.is_word("TABLE") for one in words[:3]) or not words[0].is_word("CREATE"):
        return ""
    found = next((one for one in words if one.text == "(" or one.is_word("AS")), None)
    return sql[found.end :].strip() if found is not None and found.text != "(" else ""


def _head(sql: str) -> list[SqlToken]:
    try:
        return list(islice(walk(sql), _HEAD))
    except NotTokensError:
        return []

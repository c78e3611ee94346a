"""Recognises statements that make TEMP objects, by their texts. Pure."""

from collections.abc import Iterable
from itertools import islice

from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk

_MADE = ("TABLE", "VIEW", "INDEX", "TRIGGER")
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


@remembered
def target_of(sql: str) -> tuple[str, str]:
    """Return schema and name, in lower case, of the object that a statement makes, drops or writes; else empty texts.

    >>> target_of("WITH a AS (SELECT 1) INSERT INTO temp.t SELECT * FROM a"), target_of("UPDATE OR FAIL [T] SET x = 1")
    (('temp', 't'), ('', 't'))
    """
    depth, verb, found = 0, "", list[SqlToken]()
    try:
        for token in walk(without_settings(sql)):
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0 and not verb and token.is_word("CREATE", "DROP", "INSERT", "REPLACE", "UPDATE", "DELETE"):
                verb = token.text.upper()
            elif verb:
                found.append(token)
                if len(found) == _HEAD:
                    break
    except NotTokensError:
        pass
    before = {"UPDATE": (), "INSERT": ("INTO",), "REPLACE": ("INTO",), "DELETE": ("FROM",)}.get(verb, _MADE)
    at = next((place for place, one in enumerate(found) if one.is_word(*before)), -1) + 1
    for words in (("IF", "NOT", "EXISTS"), ("IF", "EXISTS"), ("OR",)):
        if [one.text.upper() for one in found[at : at + len(words)]] == list(words):
            at += max(len(words), 2)
    names = [(one.name or "").lower() for one in found[at : at + 3]]
    if not names or (before and not at):
        return "", ""
    return (names[0], names[-1]) if [one.text for one in found[at + 1 : at + 2]] == ["."] else ("", names[0])


def named_kind(sql: str) -> str:
    """Return the kind of the object that a CREATE or DROP names: TABLE, VIEW, INDEX or TRIGGER; else an empty text.

    >>> named_kind("CREATE TEMP TABLE trigger(a)"), named_kind("DROP TRIGGER t")
    ('TABLE', 'TRIGGER')
    """
    return next((one.text.upper() for one in _head(without_settings(sql)) if one.is_word(*_MADE)), "")


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

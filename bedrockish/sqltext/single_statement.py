"""The check of a client that the text of a call holds one statement, made before the text is sent."""

from functools import lru_cache

from bedrockish.errors import UsageError
from bedrockish.sqltext.statement_ends import after_first

KEPT_TEXT_MAX = 1_000  # characters of a text whose end is remembered
_second = lru_cache(500)(after_first)


def check_statement(sql: object) -> str:
    """Return an SQL text that holds one statement, possibly with blanks and comments after it.

    A node would run several statements and answer with one result for each, which the caller could not tell apart.

    Raises:
        UsageError: the argument is not a text, is empty, or holds several statements.
    """
    if not isinstance(sql, str) or not sql.strip():
        raise UsageError(f"a statement should be an SQL text, not {sql!r}")
    second = _second(sql) if len(sql) <= KEPT_TEXT_MAX else after_first(sql)
    if second is not None:
        raise UsageError(
            "a text should hold one statement, and this goes on after a semicolon; send several as a list of texts",
            sql=sql,
            offset=second,
        )
    return sql

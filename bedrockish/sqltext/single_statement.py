"""A client's check, before sending, that a text holds one statement."""

from bedrockish.errors import UsageError
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.statement_ends import second_statement

_second = remembered(second_statement)


def check_statement(sql: object) -> str:
    """Return the text if it holds one statement, possibly followed by blanks and comments.

    A node would run several statements and return a result for each, which the caller could not tell apart.

    Raises:
        UsageError: the argument is not a text, is empty, or holds several statements.
    """
    if not isinstance(sql, str) or not sql.strip():
        raise UsageError(f"a statement should be an SQL text, not {sql!r}")
    second = _second(sql)
    if second is not None:
        raise UsageError(
            "a text should hold one statement, and this one has more; send several as a list of texts",
            sql=sql,
            offset=second,
        )
    return sql

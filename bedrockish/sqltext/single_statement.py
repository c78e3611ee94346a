"""One text, one statement: whether an SQL text is what a call takes, told before it is sent."""

import re
import sqlite3

from bedrockish.errors import UsageError

# What may hold a semicolon that ends nothing, or the semicolon itself.
TOKEN = re.compile(r"'[^']*'?|\"[^\"]*\"?|`[^`]*`?|\[[^\]]*\]?|--[^\n]*|/\*.*?(?:\*/|\Z)|;", re.DOTALL)
NOTHING = re.compile(r"(?:[\s;]+|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
TRIGGER = re.compile(r"(?:EXPLAIN\s+(?:QUERY\s+PLAN\s+)?)?CREATE\s+(?:TEMP\s+|TEMPORARY\s+)?TRIGGER\b", re.IGNORECASE)


def check_statement(sql: object) -> str:
    """Return an SQL text that holds one statement, and maybe blanks and comments after it.

    A node would run several, and answer with a result for each: the caller would have nowhere to put them.

    Raises:
        UsageError: it is no text, is empty, or holds several statements.
    """
    if not isinstance(sql, str) or not sql.strip():
        raise UsageError(f"a statement should be an SQL text, not {sql!r}")
    semicolon = sql.find(";")
    if semicolon < 0 or semicolon == len(sql) - 1:
        return sql
    begin = NOTHING.match(sql)
    is_trigger = TRIGGER.match(sql, begin.end() if begin else 0) is not None
    for token in TOKEN.finditer(sql, begin.end() if begin else 0):
        if token[0] != ";" or (is_trigger and not sqlite3.complete_statement(sql[: token.end()])):
            continue
        after = NOTHING.match(sql, token.end())
        if after is None or after.end() == len(sql):
            return sql
        raise UsageError(
            "a text should hold one statement, and this goes on after a semicolon; send several as a list of texts",
            sql=sql,
            offset=after.end(),
        )
    return sql

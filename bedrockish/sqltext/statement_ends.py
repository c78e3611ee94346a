"""Finds where the statements of an SQL text begin and end, in one pass over the text. Pure.

A semicolon ends a statement unless it is in a string, a quoted name, a comment or the body of a trigger. The body
of a trigger ends with END between two semicolons, as in SQLite's shell. Each pattern here is possessive: a pattern that
could try a second way to cut a text into blanks and comments would take exponential time.
"""

import re
from collections.abc import Iterator

from bedrockish.errors import UsageError
from bedrockish.sqltext.known_texts import remembered

_BLANKS = r"[ \t\n\f\r\ufeff]++|--[^\n]*+|/\*(?>.*?(?:\*/|\Z))"
_BLANK = re.compile(rf"(?:{_BLANKS})*+", re.DOTALL)
_EMPTY = re.compile(rf"(?:{_BLANKS}|;)*+", re.DOTALL)
_WORD = re.compile(r"[^\x00-\x23%-/:-@\[-^`{-\x7f]*+")  # a name or keyword, as in ``tokenizer``
# The tokens that may contain semicolons and parentheses. An unclosed token reaches to the end of the text.
HIDING = r"'[^']*+'?|\"[^\"]*+\"?|`[^`]*+`?|\[[^\]]*+\]?|--[^\n]*+|/\*(?>.*?(?:\*/|\Z))"
_SEMICOLON = re.compile(rf"{HIDING}|;", re.DOTALL)
_PARENTHESIS = re.compile(rf"{HIDING}|\(", re.DOTALL)


def token_start(sql: str, at: int = 0) -> int:
    """Return the start of the first token at or after a position, past blanks and comments."""
    found = _BLANK.match(sql, at)
    assert found is not None  # the pattern matches an empty text
    return found.end()


def statement_start(sql: str, at: int = 0) -> int:
    """Return the start of the first statement at or after a position, past blanks, comments and semicolons."""
    found = _EMPTY.match(sql, at)
    assert found is not None  # the pattern matches an empty text
    return found.end()


def count_parentheses(sql: str) -> int:
    """Return the number of opening parentheses in a text outside of strings, quoted names and comments."""
    return sum(found[0] == "(" for found in _PARENTHESIS.finditer(sql))


@remembered
def first_word(sql: str) -> str:
    """Return the first word of the first statement of a text in upper case; empty if it begins with something else."""
    return _word(sql, statement_start(sql))[0]


def statement_end(sql: str, at: int = 0) -> int | None:
    """Return the position after the semicolon that ends the statement at ``at``; None if no semicolon does."""
    in_trigger = _makes_trigger(sql, at)
    while True:
        found = _SEMICOLON.search(sql, at)
        if found is None:
            return None
        at = found.end()
        if found[0] != ";":
            continue
        if not in_trigger:
            return at
        word, after = _word(sql, statement_start(sql, at))
        at = token_start(sql, after)
        if word == "END" and sql.startswith(";", at):
            return at + 1


def spans(script: str) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each statement of a script, without the blanks and comments before it."""
    begin = statement_start(script)
    while begin < len(script):
        end = statement_end(script, begin)
        yield begin, len(script) if end is None else end
        if end is None:
            return
        begin = statement_start(script, end)


def split(script: str) -> Iterator[str]:
    """Yield the statements of a script."""
    for begin, end in spans(script):
        yield script[begin:end].rstrip()


@remembered
def is_blank(sql: str) -> bool:
    """Return whether a text holds no statement, only blanks, comments and semicolons."""
    return statement_start(sql) == len(sql)


def is_single(sql: str) -> bool:
    """Return whether a text holds at most one statement."""
    return second_statement(sql) is None


def is_complete(sql: str) -> bool:
    """Return whether a semicolon ends the last statement of a text; True for a text without statements."""
    begin = statement_start(sql)
    while begin < len(sql):
        end = statement_end(sql, begin)
        if end is None:
            return False
        begin = statement_start(sql, end)
    return True


def second_statement(sql: str) -> int | None:
    """Return the start of the second statement of a text; None if the text has at most one."""
    semicolon = sql.find(";")
    if semicolon < 0 or semicolon == len(sql) - 1:
        return None
    end = statement_end(sql, statement_start(sql))
    if end is None:
        return None
    begin = statement_start(sql, end)
    return begin if begin < len(sql) else None


_second = remembered(second_statement)


def check_statement(sql: object) -> str:
    """Return the text of a client's call if it holds one statement, possibly followed by blanks and comments.

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


def _makes_trigger(sql: str, at: int) -> bool:
    word, at = _next_word(sql, at)
    if word == "EXPLAIN":
        word, at = _next_word(sql, at)
        if word == "QUERY":
            _, at = _next_word(sql, at)
            word, at = _next_word(sql, at)
    if word != "CREATE":
        return False
    word, at = _next_word(sql, at)
    if word in ("TEMP", "TEMPORARY"):
        word, at = _next_word(sql, at)
    return word == "TRIGGER"


def _next_word(sql: str, at: int) -> tuple[str, int]:
    return _word(sql, token_start(sql, at))


def _word(sql: str, at: int) -> tuple[str, int]:
    """Return the word at a position in upper case, which may be empty, and its end."""
    found = _WORD.match(sql, at)
    assert found is not None  # the pattern matches an empty text
    return found[0].upper(), found.end()

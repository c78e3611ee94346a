"""A check of the name that a CREATE gives, which SQLite itself does not make.

SQLite stores the text of a definition from the name on, after ``CREATE TABLE``, ``CREATE VIEW`` and so on. A schema or
``IF NOT EXISTS`` before the name is not stored. Then a name ``IF`` without quotes follows ``TABLE`` directly, where it
is a keyword, and SQLite reports its own schema as malformed, as it does for a damaged file.
"""

import re

from bedrockish.errors import SqlError
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk

_MAY_NAME_IF = re.compile(r"\bIF\b", re.IGNORECASE)
_KINDS = ("TABLE", "VIEW", "INDEX", "TRIGGER")
_HEAD = 11  # tokens: CREATE TEMP TABLE IF NOT EXISTS main.IF, and one more


def check_defined_name(sql: str) -> None:
    """Check that a CREATE names its object so that SQLite can read the stored text again.

    Raises:
        SqlError: the name is the keyword IF, without quotes.
    """
    if sql[:6].upper() != "CREATE" or _MAY_NAME_IF.search(sql) is None:
        return
    head: list[SqlToken] = []
    try:
        for token in walk(sql):
            head.append(token)
            if len(head) == _HEAD:
                break
    except NotTokensError:
        pass  # the token may stand behind the name; SQLite reports it
    kind = next((place for place, token in enumerate(head) if token.is_word(*_KINDS)), len(head))
    at = kind + 1
    if [token.text.upper() for token in head[at : at + 3]] == ["IF", "NOT", "EXISTS"]:
        at += 3
    if [token.text for token in head[at + 1 : at + 2]] == ["."]:
        at += 2
    if at == kind + 1 or not any(token.is_word("IF") for token in head[at : at + 1]):
        return
    if head[kind].is_word("TABLE") and any(token.is_word("AS") for token in head[at + 1 : at + 2]):
        return  # SQLite composes the stored text of CREATE TABLE AS SELECT itself, with quotes
    raise SqlError('IF: the name of the object is a keyword; write it in quotes: "IF"', sql=sql, offset=head[at].start)

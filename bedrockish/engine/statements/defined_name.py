"""The name in a CREATE or DROP: a check that SQLite does not make, and the object of IF NOT EXISTS or IF EXISTS.

SQLite stores the text of a definition from the name on, after ``CREATE TABLE``, ``CREATE VIEW`` and so on. A schema or
``IF NOT EXISTS`` before the name is not stored. So in the stored text a name ``IF`` without quotes follows ``TABLE``
directly, where it is a keyword, and SQLite reports its own schema as malformed, as it does for a damaged file.
"""

import re
from dataclasses import dataclass
from itertools import islice

from bedrockish.errors import SqlError
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word, is_single
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk

_MAY_NAME_IF = re.compile(r"\bIF\b", re.IGNORECASE)
_KINDS = ("TABLE", "VIEW", "INDEX", "TRIGGER")
_HEAD = 11  # tokens: CREATE TEMP TABLE IF NOT EXISTS main.IF, and two more
_TABLES = frozenset({"table", "view"})
_TYPES = {"TABLE": _TABLES, "VIEW": _TABLES, "INDEX": frozenset({"index"}), "TRIGGER": frozenset({"trigger"})}


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
        pass  # a malformed token after the name does not matter here; SQLite reports it
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


@dataclass(frozen=True, slots=True)
class ConditionalChange:
    """A schema statement with IF NOT EXISTS or IF EXISTS."""

    name: str  # the object
    satisfied_by: frozenset[str]  # the types in ``sqlite_schema`` with which a CREATE changes nothing; empty for a DROP

    def is_needless(self, types: set[str]) -> bool:
        """Return whether the statement changes nothing, if the objects of this name have these types."""
        return not self.satisfied_by.isdisjoint(types) if self.satisfied_by else not types


@remembered
def conditional_change(sql: str) -> ConditionalChange | None:
    """Return the object of a CREATE with IF NOT EXISTS, or of a DROP with IF EXISTS; None for any other text.

    >>> conditional_change("DROP VIEW IF EXISTS main.[v];")
    ConditionalChange(name='v', satisfied_by=frozenset())
    """
    sql = without_settings(sql)
    verb = first_word(sql)
    if verb not in ("CREATE", "DROP") or not is_single(sql):
        return None
    try:
        head: list[SqlToken] = list(islice(walk(sql), _HEAD))
    except NotTokensError:
        return None
    words = [one.text.upper() for one in head]
    at = 2 if words[1:2] in (["UNIQUE"], ["VIRTUAL"]) else 1
    condition = ["IF", "NOT", "EXISTS"] if verb == "CREATE" else ["IF", "EXISTS"]
    if words[at : at + 1] == [] or words[at] not in _TYPES or words[at + 1 : at + 1 + len(condition)] != condition:
        return None
    names = head[at + 1 + len(condition) :]
    if len(names) > 2 and names[1].text == "." and (names[0].name or "").lower() == "main":
        names = names[2:]
    elif len(names) > 1 and names[1].text == ".":
        return None
    name = names[0].name if names else None
    return None if name is None else ConditionalChange(name, _TYPES[words[at]] if verb == "CREATE" else frozenset())

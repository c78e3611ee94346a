"""Commands of FTS5: INSERTs into the column that has the name of the table.

A command that configures an index is replicated like a definition, so its text must hold its values. All others run
where they are sent and are rolled back: every node keeps its index whole and merges it by itself.
"""

from collections.abc import Collection
from typing import NamedTuple

from bedrockish.access_sets.definitions import folded
from bedrockish.sqltext.tokenizer import NotTokensError, Token, tokens

_CONFIGURES = frozenset(
    {
        *("automerge", "crisismerge", "deletemerge", "hashsize", "insttoken", "pgsz", "rank", "secure-delete"),
        "usermerge",
    }
)


class Command(NamedTuple):
    """A command in the text of a statement.

    Attributes:
        table: the FTS5 table.
        is_literal: its values are in the text.
    """

    table: str
    is_literal: bool


def configures(sql: str, tables: Collection[str]) -> Command | None:
    """Return the command if a statement is one that configures an index; None if it is another statement.

    Args:
        sql: one statement that SQLite accepts.
        tables: names of the virtual tables.
    """
    if not tables or "values" not in sql.lower():
        return None
    try:
        words = tokens(sql)
    except NotTokensError:
        return None
    into = next((place for place, token in enumerate(words) if token.is_word("INTO")), len(words))
    at = into + (3 if words[into + 2 : into + 3] and words[into + 2].text == "." else 1)
    name, given = _name(words, at), _name(words, at + 2)
    table = next((one for one in tables if folded(one) == name == given), None)
    values = next((place for place, token in enumerate(words) if token.is_word("VALUES")), len(words))
    if table is None or values > at + 6 or values + 2 >= len(words):
        return None
    command = words[values + 2]
    if command.kind == "param" and _name(words, at + 4) == "rank":
        return Command(table, False)  # which command it is, a value would say
    if (command.name or "").lower() not in _CONFIGURES:
        return None
    return Command(table, all(token.kind != "param" for token in words[values:]))


def _name(words: list[Token], at: int) -> str:
    return folded(words[at].name or "") if at < len(words) else ""

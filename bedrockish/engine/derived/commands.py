"""Commands of virtual tables, which look like INSERTs: into an FTS5 table's column of its own name, or vec1's ``cmd``.

A command that configures an index is replicated as its text, like a definition, so the text must contain its values.
The values of vec1's commands, such as models of a megabyte, are written into the text. All other commands maintain an
index. They run only at the node that receives them, and are rolled back: every node maintains its indexes by itself.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bedrockish.access_sets.definitions import folded
from bedrockish.sqltext.literals import Value, literal
from bedrockish.sqltext.tokenizer import Cut, NotTokensError, SqlToken, spliced, tokens
from bedrockish_journal.storage.vector_modules import VEC1
from bedrockish_journal.storage.virtual_tables import VirtualTable

_CONFIGURES = frozenset(
    {
        *("automerge", "crisismerge", "deletemerge", "hashsize", "insttoken", "pgsz", "rank", "secure-delete"),
        "usermerge",
    }
)


_UPKEEP = frozenset({"merge", "optimize", "rebuild"})


class TableCommand(NamedTuple):
    """A command of a virtual table, in the text of a statement."""

    table: str  # the name of the virtual table
    is_literal: bool  # whether the command's values are in the text, or can be written into the text
    # Whether it maintains an index: if the index matches its rows, no result changes. Other commands configure it.
    is_upkeep: bool = False


def command_of(sql: str, tables: Mapping[str, VirtualTable]) -> TableCommand | None:
    """Return the command in a statement that SQLite accepts; None if it neither configures nor maintains an index."""
    text = sql.lower()
    if not tables or ("values" not in text and "cmd" not in text):
        return None
    try:
        words = tokens(sql)
    except NotTokensError:
        return None
    into = next((place for place, token in enumerate(words) if token.is_word("INTO")), len(words))
    at = into + (3 if words[into + 2 : into + 3] and words[into + 2].text == "." else 1)
    name, given = _name(words, at), _name(words, at + 2)
    of_vec1 = next((one.name for one in tables.values() if one.module == VEC1 and folded(one.name) == name), None)
    if of_vec1 is not None:
        end = next((place for place in range(at, len(words)) if words[place].text == ")"), at)
        if "cmd" not in (_name(words, place) for place in range(at + 2, end)):
            return None
        rest = words[end + 1 :]
        # Literal only with one list of values. A query would run at each node, and could return different models.
        return TableCommand(of_vec1, rest[0].is_word("VALUES") and sum(token.text == "(" for token in rest) == 1)
    table = next((one for one in tables if folded(one) == name == given), None)
    values = next((place for place, token in enumerate(words) if token.is_word("VALUES")), len(words))
    if table is None or values > at + 6 or values + 2 >= len(words):
        return None
    command = words[values + 2]
    if command.kind == "param" and _name(words, at + 4) == "rank":
        return TableCommand(table, False)  # a parameter: only its value tells which command this is
    name = (command.name or "").lower()
    if name not in _CONFIGURES | _UPKEEP:
        return None
    return TableCommand(table, all(token.kind != "param" for token in words[values:]), name in _UPKEEP)


def with_values(sql: str, names: Sequence[str | None], values: Sequence[Value]) -> str:
    """Return a statement with the values of its parameters in its text; an unnamed parameter has the name None."""
    cuts, last = list[Cut](), 0
    for token in tokens(sql) if names else ():
        if token.kind == "param":
            name = token.text[1:]
            number = int(name) if name.isdecimal() else names.index(name) + 1 if name else last + 1
            last = max(last, number)
            cuts.append((token.start, token.end, literal(values[number - 1])))
    return spliced(sql, cuts)


def _name(words: list[SqlToken], at: int) -> str:
    return folded(words[at].name or "") if at < len(words) else ""

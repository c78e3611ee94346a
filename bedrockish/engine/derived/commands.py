"""Commands of virtual tables, which look like INSERTs: into an FTS5 table's column of its own name, or vec1's ``cmd``.

A command that configures an index is replicated as its text, like a definition, so the values of its parameters, such
as a model of a megabyte, are written into the text. All other commands maintain an index. They run only at the node
that receives them, and are rolled back: every node maintains its indexes by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bedrockish.access_sets.definitions import folded
from bedrockish.errors import UnsupportedError
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
PARAM = "?"
"""A command whose name is not in the text."""


class TableCommand(NamedTuple):
    """A command of a virtual table, in the text of a statement."""

    table: str  # the name of the virtual table
    is_literal: bool  # whether the command's values are in the text, or can be written into the text
    # Whether it maintains the index, and so changes no result if the index matches its rows; else it configures it.
    is_upkeep: bool = False


def command_of(sql: str, tables: Mapping[str, VirtualTable]) -> TableCommand | None:
    """Return the command in a statement that SQLite accepts; None if it neither configures nor maintains an index."""
    text = sql.lower()
    if not tables or not any(word in text for word in ("values", "cmd", "rank")):
        return None
    try:
        words = tokens(sql)
    except NotTokensError:
        return None
    into = next((place for place, token in enumerate(words) if token.is_word("INTO")), len(words))
    at = into + (3 if words[into + 2 : into + 3] and words[into + 2].text == "." else 1)
    name = _name(words, at)
    of_vec1 = next((one.name for one in tables.values() if one.module == VEC1 and folded(one.name) == name), None)
    if of_vec1 is not None:
        end = next((place for place in range(at, len(words)) if words[place].text == ")"), at)
        if "cmd" not in (_name(words, place) for place in range(at + 2, end)):
            return None
        rest = words[end + 1 :]
        # Literal only with one list of values. A query would run at each node, and could return different models.
        return TableCommand(of_vec1, rest[0].is_word("VALUES") and sum(token.text == "(" for token in rest) == 1)
    table = next((one for one in tables if folded(one) == name), None)
    columns, found = _insert(words, at)
    if table is None or name not in columns:
        return None
    has_value = "rank" in columns
    if not found:  # a query, whose commands are unknown
        return TableCommand(table, is_literal=False) if has_value else None
    if found <= _UPKEEP:
        return TableCommand(table, is_literal=True, is_upkeep=True)
    # A parameter may name any command, so it counts as one that configures, if the INSERT has the column ``rank``.
    return TableCommand(table, is_literal=True) if has_value and not found.isdisjoint({*_CONFIGURES, PARAM}) else None


def check_command(sql: str) -> None:
    """Raise UnsupportedError if a command of FTS5, with its values in the text, cannot run at every node."""
    words = tokens(sql)
    at = next(place for place, token in enumerate(words) if token.is_word("INTO")) + 1
    at += 2 if words[at + 1].text == "." else 0
    columns, found = _insert(words, at)
    if _name(words, at) in columns and "rank" in columns and not found <= _CONFIGURES | _UPKEEP:
        raise UnsupportedError(
            f"this command does not configure {words[at].name}; write the command's name into the text, and not as a "
            "parameter",
            sql=sql,
        )


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


def _insert(words: list[SqlToken], at: int) -> tuple[list[str], set[str]]:
    """Return the columns of an INSERT, whose table is at a place, and the commands in its values."""
    start = at + (3 if at + 1 < len(words) and words[at + 1].is_word("AS") else 1)
    if start >= len(words) or words[start].text != "(":
        return [], set()
    lists = list(_lists(words, start))
    (columns, end), table = lists[0], _name(words, at)
    names = [_name(column, 0) for column in columns]
    if table not in names or not words[end + 1].is_word("VALUES"):
        return names, set()
    given = [values[names.index(table)] for values, _ in lists[1:] if len(values) == len(names)]
    return names, {(one[0].name or "").lower() if len(one) == 1 and one[0].kind != "param" else PARAM for one in given}


def _lists(words: list[SqlToken], start: int) -> Iterator[tuple[list[list[SqlToken]], int]]:
    """Yield each list in parentheses as its items, with the place of its end; inner parentheses belong to an item."""
    depth, items = 0, list[list[SqlToken]]()
    for place in range(start, len(words)):
        text = words[place].text
        depth += (text == "(") - (text == ")")
        if depth == 1 and text in ("(", ","):
            items = [[]] if text == "(" else [*items, []]
        elif depth == 0 and text == ")":
            yield items, place
        elif depth:
            items[-1].append(words[place])

"""Virtual tables of a schema: the table that owns each one's rows, and whether a cluster can replicate it.

A virtual table either owns its rows (FTS5 with its own content, R*Tree, geopoly, vec0, vec1), which are replicated like
those of an ordinary table; or it is an index on the rows of an ordinary table (FTS5 with external content), which every
node maintains by itself; or it only shows another virtual table (fts5vocab). Shadow tables are storage, and are never
replicated.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apsw

from bedrockish_journal.model.plain_names import quote
from bedrockish_journal.storage.vector_modules import VEC0, VEC1, VECTORS

FTS5, RTREES, GEOPOLY, VOCABULARY = "fts5", ("rtree", "rtree_i32"), "geopoly", "fts5vocab"
REPLICATED = frozenset({FTS5, *RTREES, GEOPOLY, VOCABULARY, *VECTORS})
"""Modules whose tables are replicated."""

ROWID_NAMES = ("rowid", "_rowid_", "oid")
_OPTIONS = (
    *("prefix", "tokenize", "content", "contentless_delete", "contentless_unindexed", "content_rowid"),
    *("columnsize", "locale", "detail", "tokendata"),
)
"""Options of FTS5, in the order in which FTS5 compares an abbreviated name with them."""
_SUFFIXES = {
    FTS5: ("data", "idx", "content", "docsize", "config"),
    VOCABULARY: (),
    VEC1: ("config", "base", "idx", "model", "meta"),
    VEC0: (
        *("info", "chunks", "rowids", "auxiliary"),
        *(f"{kind}{number:02}" for kind in ("vector_chunks", "metadatachunks", "metadatatext") for number in range(16)),
    ),
}
"""Module -> the suffixes of its shadow tables; other modules have the shadow tables of an R*Tree."""
_ROW_TABLES = {FTS5: "content", VEC0: "rowids", VEC1: "base"}
_MADE_BY = {"int8": "vec_int8(?)", "i8": "vec_int8(?)", "bit": "vec_bit(?)"}
"""Type of a vec0 column whose blobs would otherwise count as floats -> the expression for such a blob in an INSERT."""
_AUXILIARY = (
    *(("text", "text"), ("integer", "int"), ("integer", "integer"), ("real", "float"), ("real", "double")),
    ("blob", "blob"),
)
"""Type of a value -> its name in the definition of an auxiliary column of vec0, which may be abbreviated."""
_PARTS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[(),=.;]|\s+|[^\s(),=.;'"`\[]+""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class VirtualTable:
    """The definition of one virtual table."""

    name: str
    module: str  # its module, in lower case
    arguments: tuple[str, ...]  # the module's arguments, split at the commas
    options: dict[str, str]  # the options of FTS5 that are given, by their full names

    @property
    def content(self) -> str:
        """Name of the table on whose rows an FTS5 table is an index; empty for other virtual tables."""
        return self.options.get("content", "")

    @property
    def content_rowid(self) -> str:
        """Name of the content table's column that is the rowid of the virtual table."""
        return self.options.get("content_rowid", "") or "rowid"

    @property
    def is_contentless(self) -> bool:
        """Return whether the table stores an index, but not the text."""
        return "content" in self.options and not self.content

    @property
    def shows(self) -> str:
        """Name of the FTS5 table whose index an fts5vocab table shows; empty for other modules."""
        if self.module != VOCABULARY or not self.arguments:
            return ""
        return _unquoted(self.arguments[0 if len(self.arguments) < 3 else 1])

    @property
    def owns_rows(self) -> bool:
        """Return whether the rows are stored in the virtual table itself."""
        return self.module in (*RTREES, GEOPOLY, *VECTORS) or (self.module == FTS5 and "content" not in self.options)

    @property
    def row_table(self) -> str:
        """Name of the shadow table that has a row with the same rowid for each row of the virtual table."""
        return f"{self.name}_{_ROW_TABLES.get(self.module, 'rowid')}"

    @property
    def key(self) -> tuple[str, bool]:
        """Name of a vec0 table's primary key, and whether the key is a text; an empty name without a primary key."""
        for words in self._columns_of_vec0():
            if [word.lower() for word in words[2:]] == ["primary", "key"]:
                return words[0], words[1].lower() == "text"
        return "", False

    @property
    def marks(self) -> dict[str, str]:
        """Column -> the SQL expression around the parameter for its value, as ``vec_int8(?)``; only where needed."""
        return {words[0]: _MADE_BY[kind] for words in self._columns_of_vec0() if (kind := words[1].lower()) in _MADE_BY}

    @property
    def auxiliary(self) -> dict[str, str]:
        """Auxiliary column of a vec0 table -> its type: text, integer, real or blob."""
        found: dict[str, str] = {}
        for argument in map(str.strip, self.arguments) if self.module == VEC0 else ():
            words = argument[1:].split() if argument.startswith("+") else []
            if len(words) == 2:
                kinds = (kind for kind, spelled in _AUXILIARY if spelled.startswith(words[1].lower()))
                found[words[0]] = next(kinds, "")
        return found

    @property
    def names_rowid(self) -> bool:
        """Whether an INSERT names the rowid besides the columns; vec0 lists the rowid as a column, or has a key."""
        return self.module != VEC0

    def _columns_of_vec0(self) -> Iterator[list[str]]:
        for words in map(str.split, self.arguments) if self.module == VEC0 else ():
            if len(words) > 1 and words[1] != "=":
                yield words

    @property
    def shadow_names(self) -> frozenset[str]:
        """Names of the shadow tables, which are ordinary tables for SQLite without the module."""
        suffixes = _SUFFIXES.get(self.module, ("node", "rowid", "parent"))
        return frozenset(f"{self.name}_{suffix}" for suffix in suffixes)

    @property
    def unused_names(self) -> tuple[str, ...]:
        """Names that SQLite reserves for shadow tables of this table, though no such shadow tables exist."""
        if self.module != FTS5:
            return ()
        names = [f"{self.name}_content"] if self.content else []
        return (*names, f"{self.name}_docsize") if self.options.get("columnsize") == "0" else tuple(names)

    @property
    def why_not_replicated(self) -> str:
        """The reason why a cluster cannot replicate the table, and what to do; empty if the definition allows it."""
        if self.module not in REPLICATED:
            known = ", ".join(sorted(REPLICATED))
            return f"the module {self.module} is not replicated ({known} are); use one of these, or an ordinary table"
        if self.is_contentless:
            return (
                "an index without content cannot be replicated: no node could delete a row of it; leave out "
                "content='', or give the ordinary table that has the text as content"
            )
        if self.options.get("locale", "0") != "0":
            return "the locale of a value is not replicated; leave out the option locale"
        return ""


def parse_virtual(name: str, sql: str) -> VirtualTable:
    """Return the definition in a CREATE VIRTUAL TABLE statement."""
    parts = [part for part in _PARTS.findall(sql) if not part.isspace() and not part.startswith(("--", "/*"))]
    using = next((place for place, part in enumerate(parts) if part.upper() == "USING"), len(parts) - 2)
    module = _unquoted(parts[using + 1]).lower()
    arguments: list[list[str]] = []
    depth = 0
    for part in parts[using + 2 :]:
        depth -= part == ")"
        if (depth, part) in ((0, "("), (1, ",")):
            arguments.append([])
        elif depth > 0:
            arguments[-1].append(part)
        depth += part == "("
    options: dict[str, str] = {}
    for argument in arguments if module == FTS5 else ():
        if argument[1:2] == ["="]:
            given = argument[0].lower()
            key = next((option for option in _OPTIONS if option.startswith(given)), given)
            options[key] = _unquoted(argument[2]) if len(argument) > 2 else ""
    return VirtualTable(name, module, tuple(" ".join(one) for one in arguments), options)


def virtual_tables(db: apsw.Connection, only: str | None = None) -> Iterator[VirtualTable]:
    """Yield the virtual tables of a schema, ordered by name; with ``only``, just the table of that name."""
    query = "SELECT name, sql FROM main.sqlite_schema WHERE type = 'table' AND rootpage = 0"
    query += " ORDER BY name" if only is None else " AND name = ?"
    found: list[Any] = db.execute(query, () if only is None else (only,)).fetchall()
    for name, sql in found:
        yield parse_virtual(name, sql)


def shadow_tables(db: apsw.Connection) -> frozenset[str]:
    """Return the names of the shadow tables of all virtual tables."""
    made = [*virtual_tables(db)]
    if not made:
        return frozenset()
    found: list[Any] = db.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'").fetchall()
    ours = shadow_names(made)
    return frozenset(name for name, kind in found if kind == "shadow" or (kind == "table" and name.lower() in ours))


def shadow_names(made: Iterable[VirtualTable]) -> frozenset[str]:
    """Return the names, in lower case, of shadow tables that are ordinary tables for SQLite."""
    return frozenset(name.lower() for one in made if one.module in VECTORS for name in one.shadow_names)


def rebuild_indexes(db: apsw.Connection) -> None:
    """Rebuild every FTS5 table with external content from the rows of its content table."""
    for virtual in virtual_tables(db):
        if virtual.module == FTS5 and virtual.content:
            name = quote(virtual.name)
            db.execute(f"INSERT INTO main.{name}({name}) VALUES ('rebuild')")


def is_loaded_by_nodes(extension: str) -> bool:
    """Return whether nodes load an extension, given by the name of its file, by themselves."""
    return extension in VECTORS


def is_virtual(sql: str) -> bool:
    """Return whether a statement of the schema creates a virtual table."""
    return sql[:15].upper().startswith("CREATE VIRTUAL ")


def made_after_rows(name: str, sql: str) -> list[str]:
    """Return the statements that create a virtual table that owns no rows, and fill it from existing rows.

    The list is empty for every other table.
    """
    if not is_virtual(sql):
        return []
    virtual = parse_virtual(name, sql)
    if virtual.owns_rows:
        return []
    quoted = quote(name)
    return [sql, *([f"INSERT INTO {quoted}({quoted}) VALUES ('rebuild')"] if virtual.content else [])]


def _unquoted(word: str) -> str:
    first, last = word[:1], word[-1:]
    if first == "[":
        return word[1:-1]
    if first and first in "'\"`" and last == first:
        return word[1:-1].replace(first * 2, first)
    return word

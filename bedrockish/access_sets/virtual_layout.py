"""Layout of a schema's virtual tables: those that own their rows, those that index other tables, and shadow tables.

A virtual table that owns its rows is described like an ordinary table. The preupdate hook shows only changes of its
shadow tables; one of these has a row for each row of the virtual table, with the same rowid.

Each read of a virtual table in bytecode is a read of the whole table, because its module does not report rows read. A
read of a table that owns its rows counts as a read of that table, and a read of an index as a read of its content
table, because each change of a row there may change the result of a search. Bytecode does not name the table of a
VOpen. The authorizer names all tables that the statement reads, updates or deletes from, so all virtual tables among
them count as read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish.access_sets.definitions import Definitions, folded
from bedrockish.access_sets.opcodes import Op
from bedrockish.errors import UnsupportedError
from bedrockish_journal.storage.table_layout import ROWID_NAMES, quote
from bedrockish_journal.storage.vector_modules import VEC0, VECTORS
from bedrockish_journal.storage.virtual_tables import RTREES, VirtualTable, parse_virtual, shadow_names

VIRTUAL = "virtual table"  # the reason of an overestimated read
_FAIL, _IGNORE = 3, 4  # conflict clauses in P5 of VUpdate
_HIDDEN = 1  # PRAGMA table_xinfo: a column that SELECT * does not return
_VISIBLE = "SELECT name FROM pragma_table_xinfo(?, 'main') WHERE hidden <> 1 ORDER BY cid"


@dataclass(frozen=True, slots=True)
class ContentIndex:
    """An FTS5 table that indexes the rows of an ordinary table."""

    name: str
    columns: tuple[str, ...]  # the columns of the content table that it indexes
    definition: str  # its CREATE statement


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The facts with which the rows of a virtual table are captured and applied, if the table owns its rows."""

    name: str
    columns: tuple[str, ...]  # the columns that an INSERT may name
    rowid: str | None  # a quoted name for its rowid; None if its first column is a text key
    alias: int | None  # position of the column that is the rowid, or None
    row_table: str = ""  # the shadow table with a row for each of its rows, if the greatest rowid is found faster there
    # Column -> the expression for its value in a statement, if it is not a plain parameter.
    marks: Mapping[str, str] = field(default_factory=dict)
    # Whether rows are deleted and inserted in place of updates, because the module cannot update every column.
    is_replaced: bool = False
    # Position of an auxiliary column of vec0 -> the type that an INSERT requires of its value.
    auxiliary: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VirtualLayout:
    """The virtual tables of a schema."""

    tables: Mapping[str, VirtualTable] = field(default_factory=dict)  # the definitions, by name
    # Shadow table -> its virtual table, if each of its rows stands for a row of the virtual table with the same rowid;
    # else an empty text.
    shadows: Mapping[str, str] = field(default_factory=dict)
    # Shadow table of vec0 with chunks (each of its rows has the values of many rows) -> the virtual table.
    chunks: Mapping[str, str] = field(default_factory=dict)
    # Content table -> the indexes on its rows.
    indexes: Mapping[str, tuple[ContentIndex, ...]] = field(default_factory=dict)
    owners: tuple[OwnRows, ...] = ()  # the virtual tables that own their rows

    @classmethod
    def read(cls, db: apsw.Connection, definitions: Definitions, listed: Iterable[tuple[str, str]]) -> "VirtualLayout":
        """Return the layout of the schema that a connection sees now.

        Args:
            listed: name and kind of each table, as PRAGMA table_list has them.
        """
        kinds = dict(listed)
        names = sorted(name for name in definitions.virtual if kinds.get(name) == "virtual")
        tables = {name: parse_virtual(name, definitions.text_of(name)) for name in names}
        spelled = {folded(name): name for name, kind in kinds.items() if kind != "virtual"}
        rows = {folded(one.row_table): one.name for one in tables.values() if one.owns_rows}
        of_vec0 = {folded(name): one.name for one in tables.values() if one.module == VEC0 for name in one.shadow_names}
        rows.update({name: owner for name, owner in of_vec0.items() if name == f"{folded(owner)}_auxiliary"})
        held = (name for name in kinds if ("chunks0" in name or "chunks1" in name) and folded(name) in of_vec0)
        chunks = {name: of_vec0[folded(name)] for name in held}
        shadows = {name: rows.get(folded(name), "") for name, kind in kinds.items() if kind == "shadow"}
        indexes: dict[str, list[ContentIndex]] = {}
        for one in tables.values():
            if one.content and not one.why_not_replicated:
                columns = tuple(_columns(db, one.name))
                content = spelled.get(folded(one.content), one.content)
                found = ContentIndex(one.name, columns, definitions.text_of(one.name))
                indexes.setdefault(content, []).append(found)
        owners = tuple(_own_rows(db, one) for one in tables.values() if one.owns_rows)
        return cls(tables, shadows, chunks, {name: tuple(found) for name, found in indexes.items()}, owners)

    def objects_of(self, name: str) -> tuple[str, ...]:
        """Return the key spaces that count as read when a virtual table, or one of its shadow tables, is read."""
        one = self.tables.get(name)
        if one is None and name in self.shadows:
            one = next((self.tables[owner] for owner in self._owners_of(name)), None)
        if one is not None and one.shows:
            one = next((self.tables[other] for other in self.tables if folded(other) == folded(one.shows)), None)
        if one is None:
            return ()
        content = next((table for table, found in self.indexes.items() if one.name in {i.name for i in found}), "")
        return (f"t:{content or one.name}",)

    def _owners_of(self, shadow: str) -> list[str]:
        """Return the virtual tables to which a shadow table may belong, the longest name first."""
        found = [name for name in self.tables if folded(shadow).startswith(folded(name) + "_")]
        return sorted(found, key=len, reverse=True)

    def check_supported(self, db: apsw.Connection) -> None:
        """Check that each virtual table can be replicated, or maintained by every node itself.

        Raises:
            UnsupportedError: a table cannot; the text says what to change.
        """
        shadows = {folded(name): name for name in self.shadows}
        for one in self.tables.values():
            why = one.why_not_replicated
            if not why and one.content:
                why = self._why_not_kept(db, one)
            elif not why and one.module in VECTORS and one.row_table not in self.shadows:
                why = f"{one.module} cannot be renamed; make another one and copy the rows"
            elif not why and one.shows and folded(one.shows) not in map(folded, self.tables):
                why = f"it shows {one.shows}, which is no FTS5 table here; create that first, or drop both together"
            mistaken = [shadows[folded(name)] for name in one.unused_names if folded(name) in shadows]
            if not why and mistaken:
                why = f"SQLite takes the table {mistaken[0]} for one of its shadow tables; rename either of them"
            if why:
                raise UnsupportedError(f"virtual table {one.name}: {why}", table=one.name)

    def _why_not_kept(self, db: apsw.Connection, one: VirtualTable) -> str:
        """Return why a node cannot maintain an index for its content table's rows; empty if the node can."""
        query = "SELECT name, type, wr FROM pragma_table_list(?) WHERE schema = 'main'"
        found: Any = db.execute(query, (one.content,)).fetchone()
        remedy = f"drop {one.name} first, or in the same request"
        if found is None:
            return f"its content table {one.content} is not there; {remedy}"
        name, kind, without_rowid = found
        if kind != "table":
            said = {"view": "is a view", "virtual": "is a virtual table"}.get(
                kind, f"has the name of a table of {one.name}"
            )
            return f"its content {name} {said}, whose rows cannot be followed; give an ordinary table"
        if without_rowid:
            return f"its content table {name} is WITHOUT ROWID; leave that out, or give another table"
        columns = list(_columns(db, name))
        lacking = [column for column in _columns(db, one.name) if folded(column) not in map(folded, columns)]
        if lacking:
            return f"its content table {name} has no column {lacking[0]}; {remedy}"
        rowid = one.content_rowid
        query = "SELECT 1 FROM pragma_index_list(?, 'main') WHERE origin = 'pk'"
        keys: Any = db.execute(
            "SELECT name, upper(type) FROM pragma_table_xinfo(?, 'main') WHERE pk", (name,)
        ).fetchall()
        is_alias = len(keys) == 1 and keys[0][1] == "INTEGER" and not db.execute(query, (name,)).fetchall()
        if is_alias and folded(rowid) == folded(keys[0][0]):
            return ""
        if rowid.lower() not in ROWID_NAMES or folded(rowid) in map(folded, columns):
            return f"content_rowid names {rowid}, which is not the rowid of {name}; name its INTEGER PRIMARY KEY"
        return ""


def _columns(db: apsw.Connection, name: str) -> list[str]:
    """Return the names of the columns that SELECT * returns for a table."""
    found: list[Any] = db.execute(_VISIBLE, (name,)).fetchall()
    return [str(column) for (column,) in found]


def as_shadows(found: list[tuple[str, str, bool, bool]], definitions: Definitions) -> list[tuple[str, str, bool, bool]]:
    """Return the listed tables, with the kind ``shadow`` for shadow tables that SQLite reports as ordinary."""
    ours = shadow_names(parse_virtual(name, definitions.text_of(name)) for name in definitions.virtual)
    return [(one[0], "shadow" if one[1] == "table" and folded(one[0]) in ours else one[1], *one[2:]) for one in found]


def _own_rows(db: apsw.Connection, one: VirtualTable) -> OwnRows:
    columns = tuple(_columns(db, one.name))
    if one.module == VEC0:
        _, is_text = one.key
        rowid = None if is_text else quote(columns[0])
        at, place = None if is_text else 0, {folded(column): number for number, column in enumerate(columns)}
        auxiliary = {place[folded(name)]: kind for name, kind in one.auxiliary.items() if folded(name) in place}
        return OwnRows(one.name, columns, rowid, at, one.row_table, one.marks, is_replaced=True, auxiliary=auxiliary)
    if one.module in RTREES:
        return OwnRows(one.name, columns, quote(columns[0]), 0)
    free = [name for name in ROWID_NAMES if name not in {column.lower() for column in columns}]
    return OwnRows(one.name, columns, free[0] if free else "", None, one.row_table if one.module in VECTORS else "")


@dataclass(frozen=True, slots=True)
class VirtualReads:
    """The key spaces that a program reads through virtual tables."""

    objects: tuple[str, ...] = ()  # key spaces that the program reads as a whole
    probes: tuple[str, ...] = ()  # key spaces that constraints look up; they count if the statement fails


def virtual_reads(program: Sequence[Op], layout: VirtualLayout, named: Iterable[str]) -> VirtualReads:
    """Return the reads of virtual tables by a program.

    Args:
        named: tables that the statement reads, updates or deletes from; and, as ``-NAME``, tables it inserts into.
    """
    opens = any(op.name == "VOpen" for op in program)
    updates = [op.p5 for op in program if op.name == "VUpdate"]
    if not opens and not updates:
        return VirtualReads()
    read, written = set[str](), set[str]()
    for name in named:
        for found in layout.objects_of(name.removeprefix("-")):
            (written if name.startswith("-") else read).add(found)
    # Whether an INSERT OR IGNORE inserts depends on existing rows.
    skips = any(clause in (_FAIL, _IGNORE) for clause in updates)
    objects = (read if opens else set()) | (read | written if skips else set())
    return VirtualReads(tuple(sorted(objects)), tuple(sorted(read | written)) if updates else ())

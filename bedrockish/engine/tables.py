"""How each table's rows are stored: what the capture of changes and their application must know of a table.

Read from SQLite's own descriptions once per schema version. (What statements read and which keys a row has is told by
the analysis modules; this is only about rows.)
"""

from dataclasses import dataclass
from typing import Any

import apsw

from bedrockish.errors import UnsupportedError

_ROWID_NAMES = ("rowid", "_rowid_", "oid")


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        name: its name.
        columns: the stored columns, in the order in which the preupdate hook gives them.
        writable: places in ``columns`` of those that an INSERT may name: all but the STORED generated ones.
        rowid: a name for its rowid that no column hides, quoted; None for a table WITHOUT ROWID.
        alias: place of the column that is the rowid (INTEGER PRIMARY KEY), or None.
        key: places of the primary key's columns, for a table WITHOUT ROWID.
        virtual: it has VIRTUAL generated columns, of which the hook cannot speak.
        unique: it has a UNIQUE constraint besides its own key.
        triggers: it has triggers of its own.
        active: it has triggers or is in a foreign key, at either end.
        reals: places of the columns of REAL affinity, in which the hook may show a whole number as an int.
    """

    name: str
    columns: tuple[str, ...]
    writable: tuple[int, ...]
    rowid: str | None
    alias: int | None
    key: tuple[int, ...]
    virtual: bool
    unique: bool
    triggers: bool
    active: bool
    reals: tuple[int, ...]

    @property
    def id_column(self) -> str:
        """Name of the column that is the rowid; empty if there is none."""
        return "" if self.alias is None else self.columns[self.alias]


class Tables:
    """Every user table of the current schema, by name."""

    def __init__(self, db: apsw.Connection) -> None:
        listed: list[tuple[str, int]] = _rows(
            db,
            "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'bedrockish\\_%' ESCAPE '\\'",
        )
        parents = {
            parent.lower()
            for name, _ in listed
            for (parent,) in _rows(db, 'SELECT "table" FROM pragma_foreign_key_list(?)', name)
        }
        triggered = {
            table.lower() for (table,) in _rows(db, "SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger'")
        }
        self.by_name = {
            name: _describe(
                db, name, without_rowid=bool(wr), triggers=name.lower() in triggered, parent=name.lower() in parents
            )
            for name, wr in listed
        }
        self.foreign_keys = bool(parents)
        self.system = frozenset(
            name for (name,) in _rows(db, "SELECT name FROM sqlite_schema WHERE name LIKE 'bedrockish\\_%' ESCAPE '\\'")
        )
        self.virtual = [
            name
            for (name,) in _rows(db, "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'virtual'")
        ]

    def check_supported(self) -> None:
        """Check that every table's rows can be captured and applied.

        Raises:
            UnsupportedError: one cannot; the text says what to change in its definition.
        """
        if self.virtual:
            raise UnsupportedError(
                f"virtual tables are not replicated, and there is {self.virtual[0]}; drop it with the sqlite3 shell"
            )
        for table in self.by_name.values():
            if table.virtual and table.rowid is None:
                raise UnsupportedError(
                    f"table {table.name} is WITHOUT ROWID and has VIRTUAL generated columns, whose changes cannot be "
                    "captured; declare the columns STORED, or leave out WITHOUT ROWID",
                    table=table.name,
                )
            if table.rowid == "":
                raise UnsupportedError(
                    f"table {table.name} has columns named rowid, _rowid_ and oid, so its rows have no address; "
                    "rename one of them, or give the table an INTEGER PRIMARY KEY",
                    table=table.name,
                )


def _rows(db: apsw.Connection, sql: str, *params: str) -> list[Any]:
    return db.execute(sql, params).fetchall()


def _describe(db: apsw.Connection, name: str, *, without_rowid: bool, triggers: bool, parent: bool) -> Table:
    """Return the picture of one table. ``rowid`` is '' when every name of the rowid is hidden."""
    info = _rows(db, "SELECT name, type, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid", name)
    stored = [row for row in info if row[3] != 2]
    names = [row[0] for row in stored]
    key = tuple(place for _, place in sorted((row[2], place) for place, row in enumerate(stored) if row[2]))
    indexes = _rows(db, 'SELECT name, "unique", origin FROM pragma_index_list(?)', name)
    alias = rowid = None
    if not without_rowid:
        # A rowid table's primary key has an index of its own, unless it is the rowid itself.
        if len(key) == 1 and stored[key[0]][1].upper() == "INTEGER" and not any(row[2] == "pk" for row in indexes):
            alias = key[0]
        taken = {row[0].lower() for row in info}
        free = [known for known in _ROWID_NAMES if known not in taken]
        rowid = quote(names[alias]) if alias is not None else quote(free[0]) if free else ""
    is_child = bool(_rows(db, "SELECT 1 FROM pragma_foreign_key_list(?)", name))
    return Table(
        name=name,
        columns=tuple(names),
        writable=tuple(place for place, row in enumerate(stored) if row[3] != 3),
        rowid=rowid,
        alias=alias,
        key=key if without_rowid else (),
        virtual=len(stored) != len(info),
        unique=any(unique and not (without_rowid and origin == "pk") for _, unique, origin in indexes),
        triggers=triggers,
        active=triggers or parent or is_child,
        reals=tuple(place for place, row in enumerate(stored) if _is_real(row[1])),
    )


def _is_real(declared: str) -> bool:
    kind = declared.upper()
    if "INT" in kind or any(part in kind for part in ("CHAR", "CLOB", "TEXT", "BLOB")):
        return False
    return any(part in kind for part in ("REAL", "FLOA", "DOUB"))

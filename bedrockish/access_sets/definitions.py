"""The rows of ``sqlite_schema``, by table, so that only tables with changed definitions are described again.

Describing thousands of tables takes seconds; comparing the rows of ``sqlite_schema`` with the previous ones takes
milliseconds. SQLite's description of a table depends only on the rows with the table's name, with two exceptions:
foreign keys and triggers name other tables, and other tables may belong to a virtual table.
"""

from collections.abc import Callable, Set
from itertools import compress
from operator import itemgetter, ne
from typing import Any, NamedTuple
from weakref import ref

import apsw

from bedrockish_journal.model.plain_names import folded as folded

_ALL = "SELECT rowid, type, name, tbl_name, rootpage, sql FROM main.sqlite_schema ORDER BY rowid"
_LISTED = "SELECT name, type, wr, strict FROM"
_MANY, _FEW = 2_000, 20
CATALOGUE = "sqlite_schema"


class Definition(NamedTuple):
    """A row of ``sqlite_schema``; ``table`` is the name of the table to which the object belongs."""

    place: int
    kind: str
    name: str
    table: str
    page: int | None
    sql: str | None


class Definitions:
    """All definitions that a connection sees now; those that equal one in ``known`` are reused."""

    _rows: dict[int, Definition]
    latent: list[Definition]  # triggers and views; SQLite looks up the tables that they name only when they are used
    virtual: frozenset[str]  # the names of virtual tables
    system: frozenset[str]  # the names of the objects that belong to bedrockish itself

    def __init__(self, db: apsw.Connection, known: "Definitions | None" = None) -> None:
        found: list[Any] = db.execute(_ALL).fetchall()
        places = [row[0] for row in found]
        before = known._rows if known is not None else {}
        # With thousands of rows, this comparison must not run Python code for each row.
        fresh = [Definition(*row) for row in compress(found, map(ne, found, map(before.get, places)))]
        gone = [before[row.place] for row in fresh if row.place in before]
        gone += [before[place] for place in before.keys() - set(places)]
        self._rows = dict(before)
        for row in gone:
            del self._rows[row.place]
        self._rows.update((row.place, row) for row in fresh)
        # Folded name of a table, view or virtual table -> its definitions.
        self.by_table: dict[str, tuple[Definition, ...]] = dict(known.by_table) if known is not None else {}
        changed: dict[str, list[Definition]] = {folded(row.table): [] for row in (*gone, *fresh)}
        for row in fresh:
            changed[folded(row.table)].append(row)
        gone_places = {row.place for row in gone}
        for name, rows in changed.items():
            rows += [row for row in self.by_table.pop(name, ()) if row.place not in gone_places]
            if rows:
                self.by_table[name] = tuple(sorted(rows, key=itemgetter(0)))
        self.latent = [row for row in known.latent if row.place not in gone_places] if known is not None else []
        self.latent += [row for row in fresh if row.kind in ("trigger", "view")]
        self.virtual = _names(known.virtual if known is not None else frozenset(), gone, fresh, _is_virtual)
        self.system = _names(known.system if known is not None else frozenset(), gone, fresh, _is_system)
        self._since = (ref(known), changed.keys()) if known is not None else None

    @property
    def are_many(self) -> bool:
        """Whether SQLite takes long to read all definitions, as it has to after the rollback of a schema change."""
        return len(self._rows) > _MANY

    def changed_since(self, known: "Definitions | None") -> Set[str]:
        """Return the names, folded, of the tables and views whose definitions have changed."""
        if known is None:
            return self.by_table.keys()
        ours, theirs = self.by_table, known.by_table
        found: Set[str]
        if self._since is not None and self._since[0]() is known:
            found = self._since[1]
        else:
            found = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
        made = tuple(f"{name}_" for name in found & {folded(name) for name in self.virtual | known.virtual})
        if made:  # when a virtual table is made or dropped, other tables become shadow tables, or ordinary ones
            found |= {name for name in ours.keys() | theirs.keys() if name.startswith(made)}
        return found

    def listed_with(self, changed: Set[str]) -> Set[str]:
        """Return the folded names of the tables to list when ``changed`` are described again.

        If there are virtual tables, return all names: a virtual table's layout needs the kinds of its shadow tables.
        """
        return self.by_table.keys() | changed if self.virtual else changed

    def text_of(self, table: str) -> str:
        """Return the CREATE TABLE statement of a table, given its name as the schema spells it; empty if unknown."""
        rows = self.by_table.get(folded(table), ())
        return next((row.sql or "" for row in rows if row.kind == "table" and row.name == table), "")

    def has_triggers(self, name: str) -> bool:
        """Return whether a table or view, given its folded name, has triggers."""
        return any(row.kind == "trigger" for row in self.by_table.get(name, ()))


def _is_virtual(row: Definition) -> bool:
    return row.kind == "table" and not row.page


def _is_system(row: Definition) -> bool:
    return folded(row.name).startswith("bedrockish_")


def _names(
    known: frozenset[str], gone: list[Definition], fresh: list[Definition], wanted: Callable[[Definition], bool]
) -> frozenset[str]:
    """Return the names of the wanted definitions: the known ones without those in ``gone``, and those in ``fresh``."""
    left = known - {row.name for row in gone if wanted(row)}
    return left | {row.name for row in fresh if wanted(row)}


def listed(db: apsw.Connection, names: Set[str]) -> list[tuple[str, str, bool, bool]]:
    """List the tables and views with these folded names, as far as they exist.

    Return for each its name as the schema spells it, its type, and whether it is WITHOUT ROWID and STRICT.
    """
    found: list[Any] = []
    # SQLite searches all tables for each name, and does not find its own catalogue by name.
    if len(names) > _FEW or CATALOGUE in names:
        found = db.execute(f"{_LISTED} pragma_table_list WHERE schema = 'main'").fetchall()
    else:
        for name in sorted(names):
            found += db.execute(f"{_LISTED} pragma_table_list(?) WHERE schema = 'main'", (name,)).fetchall()
    return [(name, kind, bool(wr), bool(strict)) for name, kind, wr, strict in found if folded(name) in names]

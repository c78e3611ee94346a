"""FTS5 indexes on the rows of ordinary tables, which every node updates as it changes these rows.

Applications maintain such an index with triggers. These run when a request is executed, and are rolled back with it.
When rows are applied, triggers are off: instead, the applier removes the old values of a row from the index and adds
the new ones, in the transaction that changes the row. So the index of every node always matches its content table.

An index contains only values from its table, so an index that SQLite finds corrupt is rebuilt from the table.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish.access_sets.definitions import folded
from bedrockish.access_sets.table_layout import CapturedTable
from bedrockish.access_sets.virtual_layout import ContentIndex, VirtualLayout
from bedrockish.engine.sqlite.errors import is_of_module
from bedrockish.sqltext.tokenizer import NotTokensError, tokens
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, Row, Value, same_row
from bedrockish_journal.storage.table_layout import quote

logger = logging.getLogger(__name__)

Rows = dict[int, Row]
"""Rowid -> the values of the indexed columns."""


@dataclass(frozen=True, slots=True)
class _Index:
    """An FTS5 index on the rows of a table, with the statements that change it."""

    name: str  # name of the index
    # Positions of the indexed columns in a captured row; None if a column is VIRTUAL, and so not captured.
    places: tuple[int, ...] | None
    find: str  # the query for the indexed columns of a row
    remove: str  # the statement that removes the values of a row
    add: str  # the statement that adds the values of a row
    columns: tuple[str, ...]  # the indexed columns, quoted, each with a placeholder for the name of the table


@dataclass(slots=True)
class IndexEdit:
    """The effect of some row changes on one index."""

    kept: _Index
    removed: Rows = field(default_factory=dict)  # values to remove
    # Values to add; for an index on VIRTUAL columns, they are read after the change.
    added: Rows = field(default_factory=dict)
    # Rowids of the changed rows, for an index on VIRTUAL columns only.
    touched: dict[int, None] = field(default_factory=dict)


class IndexKeeper:
    """The FTS5 indexes on one connection, updated with the rows of their tables."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._of: dict[str, tuple[_Index, ...]] = {}
        self._corrupt: dict[str, None] = {}

    def use(self, layout: VirtualLayout, tables: Mapping[str, CapturedTable]) -> None:
        """Use the indexes of a new schema from now on."""
        known = ((name, found) for name, found in layout.indexes.items() if name in tables)
        self._of = {name: tuple(_kept(tables[name], one) for one in found) for name, found in known}

    def has(self, table: str) -> bool:
        """Return whether there are indexes on the rows of a table."""
        return table in self._of

    def before(self, changes: Iterable[Change]) -> list[IndexEdit]:
        """Return the edits of the indexes for changes that are about to be made in the tables."""
        edits: dict[str, list[IndexEdit]] = {}
        for change in changes if self._of else ():
            if change.table not in self._of:
                continue
            if change.table not in edits:
                edits[change.table] = [IndexEdit(kept) for kept in self._of[change.table]]
            for edit in edits[change.table]:
                self._collect(edit, change)
        return [edit for found in edits.values() for edit in found]

    def after(self, edits: Iterable[IndexEdit]) -> None:
        """Make edits in the indexes, after the changes have been made in the tables."""
        for edit in edits:
            kept = edit.kept
            for rowid in edit.touched:
                self._find(kept, rowid, edit.added)
            removed, added = _differing(edit.removed, edit.added), _differing(edit.added, edit.removed)
            self._guarded(kept.name, lambda kept=kept, rows=removed: self._execute_many(kept.remove, rows))  # type: ignore[misc]
            self._guarded(kept.name, lambda kept=kept, rows=added: self._execute_many(kept.add, rows))  # type: ignore[misc]
        self._rebuild_corrupt()

    def before_run(self, table: CapturedTable, op: str, written: Collection[int], source: str) -> None:
        """Remove from the indexes the rows that a ``ChangeRun`` will write; column k of ``source`` has the rowids."""
        if op != INSERT:
            self._run(table, op, written, source, is_gone=True)

    def after_run(self, table: CapturedTable, op: str, written: Collection[int], source: str) -> None:
        """Add to the indexes the rows that a ``ChangeRun`` has written."""
        if op != DELETE:
            self._run(table, op, written, source, is_gone=False)
        self._rebuild_corrupt()

    def _run(self, table: CapturedTable, op: str, written: Collection[int], source: str, *, is_gone: bool) -> None:
        for kept in self._of.get(table.name, ()):
            # Only an update of other columns leaves the index as it is.
            if op != UPDATE or kept.places is None or not written or any(place in written for place in kept.places):
                columns = ", ".join(column.format("row.") for column in kept.columns)
                rows = f"FROM {source} AS made CROSS JOIN {quote(table.name)} AS row ON row.{table.rowid} = made.k"
                head, told = (kept.remove, "'delete', ") if is_gone else (kept.add, "")
                sql = f"{head.partition(' VALUES ')[0]} SELECT {told}made.k, {columns} {rows}"
                self._guarded(kept.name, lambda sql=sql: self._db.execute(sql, can_cache=False))  # type: ignore[misc]

    def rebuild(self, names: Iterable[str]) -> None:
        """Rebuild indexes from the rows of their tables."""
        for name in names:
            self._db.execute(f"INSERT INTO main.{quote(name)}({quote(name)}) VALUES ('rebuild')", can_cache=False)

    # -- one index -------------------------------------------------------------------------------------------------

    def _collect(self, edit: IndexEdit, change: Change) -> None:
        places = edit.kept.places
        for rowid, row, is_new in ((change.rowid, change.before, False), (change.rowid_after, change.after, True)):
            assert rowid is not None
            if places is None and rowid not in edit.touched:
                edit.touched[rowid] = None
                self._find(edit.kept, rowid, edit.removed)
            elif places is None or row is None:
                continue
            elif is_new:
                edit.added[rowid] = tuple([row[place] for place in places])
            elif edit.added.pop(rowid, None) is None:
                edit.removed.setdefault(rowid, tuple([row[place] for place in places]))

    def _find(self, kept: _Index, rowid: int, rows: Rows) -> None:
        row: Any = self._db.execute(kept.find, (rowid,)).fetchone()
        if row is not None:
            rows[rowid] = row

    def _execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        if rows:
            self._db.executemany(sql, rows)

    def _guarded(self, name: str, action: Callable[[], object]) -> None:
        """Change an index unless it is corrupt; record the index if SQLite finds it corrupt."""
        if name in self._corrupt:
            return
        try:
            action()
        except apsw.CorruptError as error:
            if not is_of_module(error):
                raise
            self._corrupt[name] = None

    def _rebuild_corrupt(self) -> None:
        while self._corrupt:
            name = next(iter(self._corrupt))
            logger.error("the index %s is corrupt and is rebuilt from the rows of its table", name)
            self.rebuild([name])
            del self._corrupt[name]


def stale_indexes(
    before: VirtualLayout, now: VirtualLayout, changed: Collection[str], statements: Sequence[str]
) -> list[str]:
    """Return the indexes to rebuild after a schema change; ``changed`` are the tables whose rows it has changed."""
    if not statements:
        return []
    known = {one for found in before.indexes.values() for one in found}
    replaced = _replaced(statements)
    return [
        one.name
        for table, found in now.indexes.items()
        for one in found
        if one not in known
        or table in changed
        or replaced is None
        or not replaced.isdisjoint(map(folded, (table, one.name)))
    ]


def _replaced(statements: Iterable[str]) -> set[str] | None:
    """Return the folded names of tables that statements drop, or give to another table by a rename; None if unknown."""
    found: set[str] = set()
    for sql in statements:
        try:
            words = [token for token in tokens(sql) if token.text != ";"]
        except NotTokensError:
            return None
        names = [folded(token.name or "") for token in words]
        drops = len(words) > 2 and words[0].is_word("DROP") and words[1].is_word("TABLE")
        renames = len(words) > 4 and words[0].is_word("ALTER") and words[-2].is_word("TO")
        if drops or renames:
            found.add(names[-1])
    return found


def _kept(table: CapturedTable, index: ContentIndex) -> _Index:
    numbers = {folded(column): place for place, column in enumerate(table.columns)}
    places = [numbers.get(folded(column)) for column in index.columns]
    known = tuple(place for place in places if place is not None)
    name, columns = quote(index.name), [quote(column) for column in index.columns]
    marks = ", ?" * len(columns)
    named = ", ".join(columns)
    return _Index(
        index.name,
        known if len(known) == len(places) else None,
        f"SELECT {named} FROM {quote(table.name)} WHERE {table.rowid} = ?",
        f"INSERT INTO main.{name}({name}, rowid, {named}) VALUES ('delete', ?{marks})",
        f"INSERT INTO main.{name}(rowid, {named}) VALUES (?{marks})",
        tuple("{}" + column.replace("{", "{{").replace("}", "}}") for column in columns),
    )


def _differing(rows: Rows, others: Rows) -> list[tuple[Value, ...]]:
    """Return the rows that ``others`` lacks or has with other values, each as its rowid and then its values."""
    return [(rowid, *row) for rowid, row in rows.items() if rowid not in others or not same_row(row, others[rowid])]

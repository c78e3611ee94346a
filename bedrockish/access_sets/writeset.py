"""The keys that a changed row writes, and the keys that it reads because of constraints.

A changed row writes its key in the table, and its entry in every index, before and after the change. This includes
indexes whose columns did not change, because a reader that found the row through such an index must conflict.

Constraints have keys too. Each value of a UNIQUE index is a point, which a row writes when it takes or releases the
value; the key of a parent row is such a point as well (``i:TABLE`` for the table's own key). A child that starts to
refer to a parent reads the parent's point. So two rows with the same UNIQUE value conflict, and so do a new child and
the removal of its parent, in either order. A change of other columns of the parent does not conflict with a child.

Columns of a row have keys as well (``u:TABLE``, if ``Table.has_column_keys``). A statement that looks one row up by its
id and needs only some columns reads two kinds of points: the row's own point in ``u:TABLE``, which an insertion, a
deletion or a change of id writes, and a point for each of these columns, which an update writes if it changes the
value. A statement that reads the row in any other way reads its key in the table, or its entry in an index, which every
change writes.

The caller must pass every single change, in any order, before changes to one row are merged. An insertion that a later
deletion undoes has still found its UNIQUE values free, and a replaced parent was missing for a moment, which affected
its children. For a table whose single changes are not known, ``WriteKeys.whole`` is written.

For a UNIQUE index on an expression or a VIRTUAL column, SQLite computes the values in its points. If a collation of the
index is not SQLite's own, it is unknown which values are equal, so a row that takes or releases a value writes the
whole index.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from bedrockish.access_sets.catalog import ROWID, ForeignKey, Index, Prepare, Schema, Table
from bedrockish.access_sets.computed_columns import ComputedColumns, Scratch, comparable_columns, sources
from bedrockish.access_sets.key_encoding import (
    AFFINITY_NUMERIC,
    ROWID_SPEC,
    Encoder,
    Spec,
    apply_affinity,
    column_key,
    encoder,
    object_prefix,
)
from bedrockish_journal.model.access_set import HIGH, Range, object_of, object_range
from bedrockish_journal.model.changes import Change, Row, same_value

Keys = tuple[list[bytes], list[Range]]
Gathered = tuple[set[bytes], set[Range]]

_Join = Callable[[list[bytes]], bytes]


class WriteKeys:
    """The keys of row changes under one schema; ``prepare`` registers the functions of indexes on a connection."""

    def __init__(self, schema: Schema, prepare: Prepare = lambda _db: None) -> None:
        self._schema, self._scratch = schema, Scratch(schema.encoding, prepare)
        self._tables: dict[str, _TableKeys] = {}

    def keys(
        self, table: str, rowid_old: int | None, rowid_new: int | None, old_row: Row | None, new_row: Row | None
    ) -> Keys:
        """Return the points and ranges that a changed row writes.

        Rows are as captured, without generated columns that are not stored; None stands for the missing row of an
        insertion or deletion, and for the rowids of a table WITHOUT ROWID.
        """
        return self._keys_of(table).writes(rowid_old, rowid_new, old_row, new_row)

    def reads(
        self, table: str, rowid_old: int | None, rowid_new: int | None, old_row: Row | None, new_row: Row | None
    ) -> Keys:
        """Return the points and ranges that a changed row reads: the keys of the parents to which it newly refers."""
        return self._keys_of(table).reads(rowid_old, rowid_new, old_row, new_row)

    def gather(self, changes: Iterable[Change], bulk: Set[str], reads: Gathered, writes: Gathered) -> None:
        """Add the points and ranges of row changes: the read ones to ``reads``, the written ones to ``writes``.

        For tables in ``bulk``, no written keys are added; the caller adds the ranges of ``bulk_ranges``.
        """
        read_points, read_ranges = reads
        write_points, write_ranges = writes
        for change in changes:
            table = self._tables.get(change.table) or self._keys_of(change.table)
            before, after = change.before, change.after
            if change.table not in bulk:
                points, ranges = table.writes(change.rowid, change.rowid_after, before, after)
                write_points.update(points)
                if ranges:
                    write_ranges.update(ranges)
            if table.has_parents:
                points, ranges = table.reads(change.rowid, change.rowid_after, before, after)
                read_points.update(points)
                read_ranges.update(ranges)

    def whole(self, table: str) -> list[Range]:
        """Return ranges with all keys that a table's rows can write, for a table whose single changes are not known."""
        return self._keys_of(table).whole()

    def bulk_ranges(self, table: str, changes: Iterable[Change]) -> list[Range]:
        """Return ranges with all written keys of very many changes of a table's rows.

        They cover the rows from the smallest changed id to the largest, and all of the table's indexes.
        """
        rowids = {rowid for one in changes if one.table == table for rowid in (one.rowid, one.rowid_after)}
        return self._keys_of(table).between(rowids)

    def spans(self, ranges: Iterable[Range], changes: Sequence[Change]) -> tuple[Range, ...]:
        """Return the written ranges that need not be compared with the writes of other transactions.

        They are ranges of indexes. Each entry belongs to one row, whose own key is written as well, so the keys of rows
        show each conflict between two writers. In a UNIQUE index, two rows may take the same value. So its range is
        only returned if no changed row takes a value.
        """
        found: list[Range] = []
        indexes = {
            index.object: (index, table)
            for table in sorted({one.table for one in changes})
            for index in self._schema.tables[table].indexes
        }
        for one in ranges:
            name = object_of(one[0])
            index, table = indexes.get(name, (None, ""))
            if index is None or one[1] > object_range(name)[1]:
                continue
            own = (change for change in changes if change.table == table)
            if not index.unique or not self._keys_of(table).may_take_value(index, own):
                found.append(one)
        return tuple(found)

    def _keys_of(self, name: str) -> "_TableKeys":
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = _TableKeys(self._schema.tables[name], self._schema, self._scratch)
        return found


class _TableKeys:
    """Computes the keys of one table's rows. A column is encoded once for each way in which indexes compare it.

    A row consists of its captured values, its rowid, and the computed values of its indexes, in this order.
    """

    def __init__(self, table: Table, schema: Schema, scratch: Scratch) -> None:
        self._table = table
        self._rowid_place = sum(column.place is not None for column in table.columns)
        self._cells: list[tuple[int, Encoder]] = []
        self._cell_of: dict[tuple[int, Spec], int] = {}
        self._ranges: list[Range] = []  # the writes of every changed row in addition to its points
        self._sources: list[str] = []
        self._computed: ComputedColumns | None = None
        # For each UNIQUE index whose equal values are unknown: its range, the places of its stored columns, and whether
        # these decide on the entry's value.
        self._uncomparable: list[tuple[Range, tuple[int, ...], bool]] = []
        identity = self._identity()
        self._entries: list[_Join] = []
        self._uniques: list[tuple[_Join, tuple[int, ...], bool]] = []
        if identity:
            self._entries.append(_joiner(object_prefix(table.object), identity))
        else:
            self._ranges.append(object_range(table.object))
        for index in table.indexes:
            self._add_index(index, identity)
        if self._sources:
            self._computed = scratch.columns(table, self._sources)
        if identity and any(_by_own_key(foreign, table) for foreign in schema.children.get(table.name, ())):
            self._uniques.append((_joiner(object_prefix("i:" + table.name), identity), (), False))
        self._columns_of: _Join | None = None
        self._columns: list[tuple[int, bytes]] = []  # position of each column, and the suffix of its key
        if table.has_column_keys:
            self._columns_of = _joiner(object_prefix(table.columns_object), identity)
            self._uniques.append((self._columns_of, (), False))
            self._columns = [
                (one.place, column_key(b"", one.name))
                for number, one in enumerate(table.columns)
                if one.place is not None and number != table.rowid_column
            ]
        self._places = tuple({place for place, _ in self._cells})
        self._parents = [_Parent(foreign, table, schema) for foreign in table.foreign_keys]
        self.has_parents = bool(self._parents)  # whether ``reads`` can return any key

    def _cell(self, column: int, spec: Spec) -> int:
        return self._cell_at(self._place(column), spec)

    def _place(self, column: int) -> int:
        return self._rowid_place if column in (ROWID, self._table.rowid_column) else _place(self._table, column)

    def _cell_at(self, place: int, spec: Spec) -> int:
        key = (place, spec)
        if key not in self._cell_of:
            self._cell_of[key] = len(self._cells)
            self._cells.append((key[0], encoder(spec)))
        return self._cell_of[key]

    def _identity(self) -> tuple[int, ...]:
        """Return the positions of the values that identify a row; empty if its key has no comparable bytes."""
        key = self._table.key
        if key is None:
            return (self._cell(ROWID, ROWID_SPEC),)
        if key.opaque:
            return ()
        return tuple(self._cell(column, spec) for column, spec in zip(key.columns, key.specs, strict=True))

    def _add_index(self, index: Index, identity: tuple[int, ...]) -> None:
        prefix = object_prefix(index.object)
        if not identity:
            self._ranges.append(object_range(index.object))
            return
        count = comparable_columns(index, self._table)
        computed = sources(index, self._table) if index.opaque else None
        places = []
        for at, column in enumerate(index.columns[:count]):
            if computed and at in computed:
                self._sources.append(computed[at])
                places.append(self._rowid_place + len(self._sources))
            else:
                places.append(self._place(column))
        cells = tuple(self._cell_at(place, spec) for place, spec in zip(places, index.specs, strict=False))
        if count < len(index.columns):
            # The key of an entry has the values of the leading columns; for the other columns it has the row's own key.
            self._entries.append(_joiner(prefix, cells + identity))
            if index.unique:
                columns = [column for column in index.columns[: index.declared] if self._is_stored(column)]
                exact = len(columns) == index.declared and not index.partial
                self._uncomparable.append((object_range(index.object), tuple(map(self._place, columns)), exact))
            return
        self._entries.append(_joiner(prefix, cells))
        if index.unique:
            declared = tuple(places[: index.declared])
            self._uniques.append((_joiner(prefix, cells[: index.declared]), declared, index.partial))

    def may_take_value(self, index: Index, changes: Iterable[Change]) -> bool:
        """Return whether row changes may give a row a value in a UNIQUE index that it did not have there before."""
        columns = index.columns[: index.declared]
        # For a partial index or computed values, only a deletion is certain to take no value.
        is_comparable = not index.partial and not index.opaque and all(map(self._is_stored, columns))
        places = tuple(map(self._place, columns)) if is_comparable else ()
        is_comparable = is_comparable and self._rowid_place not in places
        for change in changes:
            before, after = change.before, change.after
            if after is None:
                continue
            if before is None or not is_comparable:
                return True
            for place in places:
                if before[place] != after[place]:
                    return True
        return False

    def _is_stored(self, column: int) -> bool:
        return column == ROWID or (column >= 0 and self._table.columns[column].place is not None)

    def writes(self, rowid_old: int | None, rowid_new: int | None, old_row: Row | None, new_row: Row | None) -> Keys:
        """Return the points and ranges that a changed row writes."""
        old = None if old_row is None else (*old_row, rowid_old)
        new = None if new_row is None else (*new_row, rowid_new)
        ranges = self._ranges
        if self._uncomparable:
            ranges = [*ranges, *self._uncomparable_ranges(old, new)]
        if self._sources:
            extended = self._extended(old, rowid_old), self._extended(new, rowid_new)
            if (old and not extended[0]) or (new and not extended[1]):
                return [], self.whole()
            old, new = extended
        return self._points(old, new), ranges

    def _uncomparable_ranges(self, old: Sequence[Any] | None, new: Sequence[Any] | None) -> Iterator[Range]:
        """Yield the range of each index in ``_uncomparable`` in which the row takes or releases a value."""
        for found, places, exact in self._uncomparable:
            had = old is not None and _no_null(old, places)
            has = new is not None and _no_null(new, places)
            if not (had or has):
                continue
            if exact and had and has and old and new and all(old[place] == new[place] for place in places):
                continue
            yield found

    def _extended(self, row: tuple[Any, ...] | None, rowid: int | None) -> tuple[Any, ...] | None:
        """Return a row with the computed values of its indexes; None if it is missing, or the computation fails."""
        if row is None or self._computed is None:
            return None
        values = self._computed.values(row[:-1], rowid)
        return None if values is None else (*row, *values)

    def between(self, rowids: Set[int | None]) -> list[Range]:
        """Return ranges with all keys of rows whose rowids are between the least and the greatest of the given ones.

        Of an index, and of a WITHOUT ROWID table, return the whole range: rowids do not bound its keys.
        """
        if self._table.key is not None or None in rowids:
            return self.whole()
        known = [rowid for rowid in rowids if rowid is not None]
        code = encoder(ROWID_SPEC)
        low, high = code(min(known)), code(max(known)) + HIGH
        own = [object_prefix(name) for name in self._own_objects]
        ranges = [(prefix + low, prefix + high) for prefix in own]
        return ranges + [object_range(index.object) for index in self._table.indexes]

    def whole(self) -> list[Range]:
        """Return ranges with all keys that rows of the table can write."""
        objects = [*self._own_objects, *(index.object for index in self._table.indexes)]
        return [object_range(name) for name in objects]

    @property
    def _own_objects(self) -> list[str]:
        table = self._table
        more = [table.columns_object] if table.has_column_keys else []
        return [table.object, "i:" + table.name, *more]

    def _points(self, old: Sequence[Any] | None, new: Sequence[Any] | None) -> list[bytes]:
        if new is None:
            assert old is not None
            return self._one_row(old)
        if old is None:
            return self._one_row(new)
        cells = [code(new[place]) for place, code in self._cells]
        points = [join(cells) for join in self._entries]
        # Values that are equal in Python have the same bytes, so most updates need not encode old values.
        for place in self._places:
            if old[place] != new[place]:
                break
        else:
            points += [join(cells) for join, places, partial in self._uniques if partial and _no_null(new, places)]
            if self._columns_of is not None:
                points += self._changed_columns(self._columns_of(cells), old, new)
            return points
        old_cells = [code(old[place]) for place, code in self._cells]
        points += [key for join in self._entries if (key := join(old_cells)) not in points]
        for join, places, partial in self._uniques:
            before = join(old_cells) if _no_null(old, places) else None
            after = join(cells) if _no_null(new, places) else None
            if before == after and not partial:
                continue  # the value is neither taken nor released (in a partial index, other columns may decide that)
            if before is not None:
                points.append(before)
            if after is not None and after != before:
                points.append(after)
        if self._columns_of is not None and (row := self._columns_of(cells)) == self._columns_of(old_cells):
            points += self._changed_columns(row, old, new)
        return points

    def _changed_columns(self, row: bytes, old: Sequence[Any], new: Sequence[Any]) -> list[bytes]:
        """Return the points of the columns whose values differ in bytes: 1 and 1.0 count as different."""
        return [
            row + column
            for place, column in self._columns
            if old[place] is not new[place] and not same_value(old[place], new[place])
        ]

    def _one_row(self, row: Sequence[Any]) -> list[bytes]:
        cells = [code(row[place]) for place, code in self._cells]
        points = [join(cells) for join in self._entries]
        for join, places, _ in self._uniques:
            if _no_null(row, places):
                points.append(join(cells))
        return points

    def reads(self, rowid_old: int | None, rowid_new: int | None, old_row: Row | None, new_row: Row | None) -> Keys:
        points: list[bytes] = []
        ranges: list[Range] = []
        if new_row is None or not self._parents:
            return points, ranges
        new = (*new_row, rowid_new)
        old = None if old_row is None else (*old_row, rowid_old)
        for parent in self._parents:
            parent.add(old, new, points, ranges)
        return points, ranges


def _place(table: Table, column: int) -> int:
    """Return the position of a column's value in a captured row with the rowid at its end."""
    if column in (ROWID, table.rowid_column):
        return -1
    place = table.columns[column].place
    assert place is not None, f"column {column} of {table.name} is not stored, so nothing may be keyed by it"
    return place


def _no_null(row: Sequence[Any], places: tuple[int, ...]) -> bool:
    """Return whether a UNIQUE value has no NULL. NULLs are never equal, so a value with NULL cannot conflict."""
    for place in places:  # noqa: SIM110 (all() with a generator takes three times as long)
        if row[place] is None:
            return False
    return True


def _joiner(prefix: bytes, cells: tuple[int, ...]) -> _Join:
    """Return the function that builds a key from a row's encoded cells."""
    if len(cells) == 1:
        (only,) = cells
        return lambda coded: prefix + coded[only]
    if len(cells) == 2:
        first, second = cells
        return lambda coded: prefix + coded[first] + coded[second]
    return lambda coded: prefix + b"".join([coded[cell] for cell in cells])


def _by_own_key(foreign: ForeignKey, parent: Table) -> bool:
    """Return whether a foreign key points to the rowid or the WITHOUT ROWID primary key of its parent."""
    if parent.key is not None:
        return bool(foreign.parent_columns) and set(foreign.parent_columns) == set(parent.key.columns)
    return parent.rowid_column is not None and foreign.parent_columns == (parent.rowid_column,)


class _Parent:
    """The reads of a child's row in one parent table."""

    def __init__(self, foreign: ForeignKey, child: Table, schema: Schema) -> None:
        self._whole: Range | None = None
        self._places: tuple[int, ...] = ()
        self._columns: list[tuple[int, str, Encoder]] = []
        self._prefix = b""
        parent = schema.tables.get(foreign.parent or "")
        stored = all(child.columns[column].place is not None for column in foreign.columns)
        if parent is None or not stored:
            self._whole = object_range(f"t:{foreign.parent or ''}")
            return
        self._places = tuple(_place(child, column) for column in foreign.columns)
        if not finds_same_pairs(foreign, child, parent):
            self._whole = object_range(parent.object)
            return
        self._resolve(foreign, parent)

    def _resolve(self, foreign: ForeignKey, parent: Table) -> None:
        place_of = dict(zip(foreign.parent_columns, self._places, strict=False))
        if _by_own_key(foreign, parent) and not (parent.key and parent.key.opaque):
            self._prefix = object_prefix("i:" + parent.name)
            columns = parent.key.columns if parent.key else foreign.parent_columns
            specs = parent.key.specs if parent.key else (ROWID_SPEC,)
            self._add_columns(parent, columns, specs, place_of)
            return
        for index in parent.indexes:
            named = index.columns[: index.declared]
            if index.unique and not index.partial and not index.opaque and set(named) == set(foreign.parent_columns):
                self._prefix = object_prefix(index.object)
                self._add_columns(parent, named, index.specs, place_of)
                return
        self._whole = object_range(parent.object)

    def _add_columns(
        self, parent: Table, columns: Sequence[int], specs: Sequence[Spec], place_of: dict[int, int]
    ) -> None:
        for column, spec in zip(columns, specs, strict=False):
            self._columns.append((place_of[column], parent.columns[column].affinity, encoder(spec)))

    def add(self, old: Sequence[Any] | None, new: Sequence[Any], points: list[bytes], ranges: list[Range]) -> None:
        places = self._places
        for place in places:
            if new[place] is None:
                return
        if self._whole is not None:
            ranges.append(self._whole)
            return
        if old is not None and all(old[place] == new[place] for place in places):
            return  # the row refers to the same parent as before, which cannot be removed without a write to this row
        key = [code(apply_affinity(new[place], affinity)) for place, affinity, code in self._columns]
        points.append(self._prefix + b"".join(key))


def finds_same_pairs(foreign: ForeignKey, child: Table, parent: Table) -> bool:
    """Return whether SQLite finds the same pairs when it looks up a child's parent and when it looks up children.

    To look up a parent, SQLite applies the affinity of the parent's column to the child's value. To look up children,
    it compares the two columns, with other conversions: for a numeric child column, the parents '2' and '2.0' are
    equal.
    """
    if len(foreign.parent_columns) != len(foreign.columns):
        return False
    for one, other in zip(foreign.columns, foreign.parent_columns, strict=True):
        mine, theirs = _kind(child.columns[one].affinity), _kind(parent.columns[other].affinity)
        if theirs not in (mine, AFFINITY_NUMERIC):
            return False
    return True


def _kind(affinity: str) -> str:
    return AFFINITY_NUMERIC if affinity in "CDEF" else affinity

"""Reads that depend on rows read before, such as the inner side of a join, resolved when the statement runs.

The bytecode shows from which column of which cursor the key of a seek comes. The rows of that cursor are a known range,
so an *auxiliary query* reads only that column in only that range, and its values are the keys of the seek. The query
leaves out the statement's other conditions, so it finds every row that the statement reads, and perhaps more. Joins of
several levels are resolved level by level; for a cursor that depends on itself, as in a recursive query, the query is
repeated until it finds no new rows.

Auxiliary queries must read the statement's snapshot: they run on the same connection, right before the statement. A
statement that writes may read rows that it has changed itself, or that a trigger has changed and changed back. So
``Resolution.add_changes`` adds each row before and after each change by the statement and its triggers: any row that
the statement reads is either one of these, or unchanged since the auxiliary query.

If there are more than ``KEYS_MAX`` keys, or more than ``ROWS_MAX`` rows to read, the whole object counts as read.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice, product
from operator import itemgetter
from typing import Any

import apsw

from bedrockish.access_sets.catalog import ROWID, Index, Schema, Table, stored_column
from bedrockish.access_sets.cursor_ranges import CursorId, Dependent, FieldValues, KeyInterval, ProgramReads, points_of
from bedrockish.access_sets.effort import EVERY, Check, unlimited
from bedrockish.access_sets.key_encoding import AFFINITY_INTEGER, ROWID_SPEC, encoder, object_prefix
from bedrockish.access_sets.key_values import UNENCODABLE, Params, closure, static_maker, untouched_types
from bedrockish.access_sets.loop_stops import Partner, Stop, asked_values, skeleton
from bedrockish.access_sets.opcodes import Op
from bedrockish.access_sets.query_names import Query, column_name, condition_of, key_names, rowid_name
from bedrockish.access_sets.register_values import Atom
from bedrockish_journal.model.access_set import HIGH, Range
from bedrockish_journal.model.changes import Change
from bedrockish_journal.storage.table_layout import quote

TEXTS_MAX = 100  # cached auxiliary queries of one loop, which differ by LIMIT
KEYS_MAX = 1_000
ROWS_MAX = 5_000

TOO_MANY = f"more than {KEYS_MAX} keys by values from other rows"
_OWN_TABLE = "rows that the statement itself changes, in a table with VIRTUAL columns"

_OUTER = "r"  # alias of a loop's table in a query; the tables of its subqueries are rp0, rp0p0 and so on

_Source = tuple[int, int]
_GIVEN = -1  # in place of a program's number, for sources of inserted rows
_Need = tuple[int, int]  # the position of a source, and of one of its columns


class _TooManyError(Exception):
    """Raised when there are too many keys or rows to resolve."""


class DependentReads:
    """The reads of one statement that depend on rows, for any parameters.

    Why so large: Seven of its lists are the plan, which each execution uses; the others are needed to build the plan.
    """

    def __init__(
        self,
        programs: Sequence[ProgramReads],  # the reads of the statement's programs
        schema: Schema,  # the schema for which the programs were compiled
        sql: str = "",
        ops: Sequence[Op] = (),  # the instructions of all the programs
        check: Check = unlimited,  # raises an error when the analysis has used up its time
    ) -> None:
        self._schema = schema
        self._check = check = check if len(ops) > EVERY else unlimited
        self._indexes = {one.object: one for one in schema.roots.values() if isinstance(one, Index)}
        self.sql = sql
        stops = [one.fine.stop for program in programs for one in program.dependents if one.fine.stop is not None]
        self.skeleton = skeleton(ops) if any(not stop.is_fixed for stop in stops) else []
        self._given: dict[_Source, str] = {}  # source of rows that the statement inserts -> their table
        self._rows: dict[CursorId, list[KeyInterval | CursorId]] = {}
        self._on: dict[CursorId, Table | Index] = {}
        for program in programs:
            self._rows.update(program.rows)
            self._on.update(program.on)
        whole = {access.object for program in programs for access in program.reads if _is_whole(access)}
        # Dependent reads whose rows cannot be queried; each counts as its coarse read.
        self.unresolved: list[Dependent] = []
        self.resolved: list[Dependent] = []  # dependent reads whose rows can be queried
        self._feeders: dict[_Source, list[KeyInterval]] = {}
        for read in dict.fromkeys(one for program in programs for one in program.dependents):
            check()
            good = self._can_ask(read.fine, set()) and read.coarse.object not in whole
            good = good and (read.fine.stop is None or self._can_fetch(replace(read.fine, equal=1)))
            (self.resolved if good else self.unresolved).append(read)
        self.sources: list[_Source] = []  # cursors on whose rows other accesses depend
        self.columns: list[list[int]] = []  # for each source, the numbers of the columns that other accesses need
        self.jobs: list[_Job] = []  # the accesses, in the order of execution
        self.is_cyclic = False  # whether some accesses depend on themselves
        # For each source, whether 1 and 1.0 are different values, because they differ as texts.
        self.typed: list[bool] = []
        self._plan()

    # -- rows that can be queried ------------------------------------------------------------------------------------

    def source(self, cursor: CursorId) -> _Source:
        """Return the cursor that determines a cursor's rows: itself, or the cursor that it only follows."""
        seen = {cursor}
        while True:
            feeders = self._rows.get(cursor, [])
            if len(feeders) != 1 or isinstance(feeders[0], KeyInterval) or feeders[0] in seen:
                return cursor
            cursor = feeders[0]
            seen.add(cursor)

    def feeders(self, source: _Source) -> list[KeyInterval]:
        """Return every access that positions a cursor, or a cursor that it follows."""
        found: dict[KeyInterval, None] = {}
        seen: set[CursorId] = set()
        ahead = [source]
        while ahead:
            cursor = ahead.pop()
            if cursor in seen:
                continue
            seen.add(cursor)
            for one in self._rows.get(cursor, ()):
                if isinstance(one, KeyInterval):
                    found[one] = None
                else:
                    ahead.append(one)
        return list(found)

    def table(self, cursor: CursorId) -> Table:
        """Return a cursor's table, or the table of its index."""
        if cursor in self._given:
            return self._schema.tables[self._given[cursor]]
        on = self._on[cursor]
        return on if isinstance(on, Table) else self._schema.tables[on.table]

    def column(self, cursor: CursorId, column: int) -> int | None:
        """Return the table's number of a column of a cursor's object; None if the column is an expression."""
        on = self._on.get(cursor)
        return None if on is None else stored_column(on, column)

    def _can_ask(self, access: KeyInterval, asked: set[_Source]) -> bool:
        if any(name.startswith("sqlite_") for name in access.given):
            return False
        for cell in access.cells:
            cursor = (cell.program, cell.cursor)
            number = self.column(cursor, cell.column)
            if number is None or self.table(cursor).name.startswith("sqlite_"):
                return False  # SQLite writes to its own tables without calling the preupdate hook
            if number == ROWID and rowid_name(self.table(cursor)) is None:
                return False
            source = self.source(cursor)
            if source in asked:
                continue
            asked.add(source)
            for feeder in self.feeders(source):
                if not self._can_fetch(feeder) or not self._can_ask(feeder, asked):
                    return False
        return True

    def _can_fetch(self, access: KeyInterval) -> bool:
        index = self.index(access.object)
        if index is None:
            table = self._schema.tables.get(access.object[2:])
            return table is not None and (_is_whole(access) or rowid_name(table) is not None)
        if _is_whole(access) and access.stop is None:
            return True
        # A query can use a partial index only if it repeats the condition of the index.
        return not index.partial or condition_of(index.sql) is not None

    # -- the order of the accesses -----------------------------------------------------------------------------------

    def _plan(self) -> None:
        order: dict[KeyInterval, None] = {}
        active: set[KeyInterval] = set()
        for read in self.resolved:
            self._visit(read.fine, order, active)
        recorded = {read.fine for read in self.resolved}
        for access in order:
            self._check()
            feeds = [place for place, source in enumerate(self.sources) if access in self._feeders[source]]
            kind = _Job if access.stop is None else _StoppingJob
            self.jobs.append(kind(self, access, feeds, records=access in recorded))

    def _visit(self, access: KeyInterval, order: dict[KeyInterval, None], active: set[KeyInterval]) -> None:
        self._check()
        if access in order:
            return
        if access in active:
            self.is_cyclic = True
            return
        active.add(access)
        for cell in sorted(access.cells):
            cursor = (cell.program, cell.cursor)
            place, _ = self.need(cursor, cell.column)
            for feeder in self._feeders[self.sources[place]]:
                self._visit(feeder, order, active)
        active.discard(access)
        order[access] = None

    def need(self, cursor: CursorId, column: int) -> _Need:
        """Add a column to those that a source collects; return the position of the source, and of the column in it."""
        source = self.source(cursor)
        if source not in self._feeders:
            self._feeders[source] = self.feeders(source)
            self.sources.append(source)
            self.columns.append([])
            self.typed.append(False)
        place = self.sources.index(source)
        number = self.column(cursor, column)
        assert number is not None, "no access that depends on an expression is resolved"
        columns = self.columns[place]
        if number not in columns:
            columns.append(number)
        return place, columns.index(number)

    def need_given(self, table: str) -> _Need:
        """Return the need for the automatic ids of a table's new rows, whose values ``Resolution.add_changes`` adds."""
        source = (_GIVEN, next((at for (_, at), name in self._given.items() if name == table), len(self._given)))
        if source not in self._given:
            self._given[source] = table
            self._feeders[source] = []
            self.sources.append(source)
            self.columns.append([ROWID])
            self.typed.append(False)
        return self.sources.index(source), 0

    def is_given(self, source: _Source) -> bool:
        """Return whether a source stands for the rows that the statement inserts."""
        return source in self._given

    def index(self, name: str) -> Index | None:
        """Return the index with an object's name; None for a rowid table."""
        return self._indexes.get(name)

    @property
    def schema(self) -> Schema:
        """The schema for which the plan was made."""
        return self._schema


def _is_whole(access: KeyInterval) -> bool:
    return not access.low and not access.high


class _Field:
    """One column of a key, and the sources of its values."""

    def __init__(self, plan: DependentReads, field: FieldValues) -> None:
        self.field = field
        self.encode = encoder(field.spec)
        self.cells: list[tuple[_Need, tuple[str, ...]]] = []
        self.is_fixed = any(atom.kind not in ("column", "new") for atom in field.atoms)
        self._static = static_maker(field)
        for atom in sorted(field.atoms, key=repr):
            if atom.kind in ("column", "new"):
                cell = atom.payload
                if atom.kind == "new":
                    need = plan.need_given(cell)
                else:
                    need = plan.need((cell.program, cell.cursor), cell.column)
                self.cells.append((need, tuple(sorted(atom.affinities))))
                plan.typed[need[0]] = plan.typed[need[0]] or "B" in atom.affinities

    def values(self, state: "Resolution") -> list[Any]:
        """Return all values that are known so far."""
        found = self._static(state.params) if self.is_fixed else []
        for (place, column), affinities in self.cells:
            for row in state.rows[place].values():
                found += closure(row[column], affinities)
        return found


class _Job:
    """One access of the plan. It records the keys that the access reads, and finds rows that other accesses need.

    Why so large: The parts that depend on the access alone are computed once, because a job runs for each row of its
    source.
    """

    def __init__(self, plan: DependentReads, access: KeyInterval, feeds: list[int], *, records: bool) -> None:
        self.access, self.feeds, self.records = access, feeds, records
        equal = access.equal
        self._equal = [_Field(plan, field) for field in access.low[:equal]]
        self._low = [_Field(plan, field) for field in access.low[equal:]]
        self._high = [_Field(plan, field) for field in access.high[equal:]]
        self._prefix = object_prefix(access.object)
        self._points_of = points_of(access)
        index = plan.index(access.object)
        table = plan.schema.tables[access.object[2:] if index is None else index.table]
        width = 0 if not access.object.startswith("t:") else 1 if table.key is None else len(table.key.columns)
        self._is_point = equal == width > 0 and not self._low and not self._high
        self._is_rowid = index is None
        self._paired = self._paired_source()
        self._plan, self._table, self._index = plan, table, index
        self._texts: dict[tuple[bool, bool], str] = {}
        self._only_column = self._single()

    def _paired_source(self) -> int | None:
        """Return the one source whose columns make the key, so that each of its rows has one key; else None."""
        places = {need[0] for field in self._equal for need, _ in field.cells}
        if len(self._equal) < 2 or len(places) != 1:
            return None
        if any(field.cells and (field.is_fixed or len(field.cells) > 1) for field in self._equal):
            return None
        return places.pop()

    def run(self, state: "Resolution", done: set[bytes]) -> bool:
        """Process all new values; return whether new rows were found."""
        if self._only_column is not None:
            return self._run_single(state, done, *self._only_column)
        ends = self._ends(state)
        if ends is None:
            return False
        (low, low_value), (high, high_value) = ends
        new: list[tuple[Any, ...]] = []
        for key, values in self._keys(state):
            whole = key + low + high
            if whole in done:
                continue
            done.add(whole)
            state.count_keys(len(done))
            if self.records:
                self._record(state, key, low, high)
            if self.feeds:
                new.append(values)
        return bool(new) and self._fetch(state, new, low_value, high_value)

    def _single(self) -> tuple[int, int, tuple[str, ...], frozenset[type]] | None:
        """Return the arguments of ``_run_single`` for an equality with one column of one source; else None."""
        access = self.access
        if len(self._equal) != 1 or self._low or self._high or access.low_after or not access.high_after:
            return None
        (field,) = self._equal
        if field.is_fixed or len(field.cells) != 1:
            return None
        ((place, column), affinities) = field.cells[0]
        return place, column, affinities, untouched_types(affinities)

    def _run_single(
        self,
        state: "Resolution",
        done: set[bytes],
        place: int,
        column: int,
        affinities: Sequence[str],
        as_is: Set[type],
    ) -> bool:
        """Run the most frequent kind of access, a join by one column, faster; return whether new rows were found."""
        (field,) = self._equal
        prefix, encode = self._prefix, field.encode
        no_nulls = self._is_rowid or field.field.not_null
        new: dict[bytes, Any] = {}
        for row in state.rows[place].values():
            value = row[column]
            if type(value) in as_is:
                new[prefix + encode(value)] = value
            elif value is not None or not no_nulls:
                for form in closure(value, affinities):
                    new[prefix + encode(form)] = form
        for key in done.intersection(new) if done else ():
            del new[key]
        done.update(new)
        state.count_keys(len(done))
        if self.records and self._is_point:
            state.points.update(new if self._points_of is None else self._points_of(new))
        elif self.records:
            state.ranges.update([(key, key + HIGH) for key in new])
        return bool(new and self.feeds) and self._fetch(state, [(value,) for value in new.values()], None, None)

    def _record(self, state: "Resolution", key: bytes, low: bytes, high: bytes) -> None:
        if self._is_point:
            state.points.update((key,) if self._points_of is None else self._points_of((key,)))
        else:
            state.ranges.update(self._range(key, low, high))

    def _range(self, key: bytes, low: bytes, high: bytes) -> list[Range]:
        """Return a list with the range of a key and its two ends; empty if the range is empty."""
        first = key + low + (HIGH if self.access.low_after else b"")
        last = key + high + (HIGH if self.access.high_after or not self.access.high else b"")
        return [(first, last)] if first < last else []

    def _keys(self, state: "Resolution") -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        prefix, fields = self._prefix, self._equal
        if len(fields) == 1:
            (field,) = fields
            encode = field.encode
            for value in field.values(state):
                if value is not None or not (self._is_rowid or field.field.not_null):  # such a NULL finds no row
                    yield prefix + encode(value), (value,)
            return
        if self._paired is None:
            for values in product(*(field.values(state) for field in fields)):
                if self._meets(values):
                    yield prefix + b"".join(map(_encoded, fields, values)), values
            return
        fixed = [None if field.cells else field.values(state) for field in fields]
        for row in state.rows[self._paired].values():
            columns = [
                closure(row[field.cells[0][0][1]], field.cells[0][1]) if given is None else given
                for field, given in zip(fields, fixed, strict=True)
            ]
            for values in product(*columns):
                if self._meets(values):
                    yield prefix + b"".join(map(_encoded, fields, values)), values

    def _meets(self, values: Sequence[Any]) -> bool:
        """Return whether the statement seeks these values: it skips the seek if a ``not_null`` column is NULL."""
        return not any(value is None and field.field.not_null for field, value in zip(self._equal, values, strict=True))

    def _ends(self, state: "Resolution") -> tuple[tuple[bytes, Any], tuple[bytes, Any]] | None:
        """Return, for each end, the suffix of its key and its first column's value; None while no value is known."""
        found = []
        for fields, pick in ((self._low, min), (self._high, max)):
            suffix, first = b"", None
            for number, field in enumerate(fields):
                values = field.values(state)
                if not values:
                    return None
                coded, value = pick(((field.encode(one), one) for one in values), key=itemgetter(0))
                suffix += coded
                first = first if number else value
            found.append((suffix, first))
        return found[0], found[1]

    # -- the auxiliary query -----------------------------------------------------------------------------------------

    def _fetch(self, state: "Resolution", many: list[tuple[Any, ...]], low: Any, high: Any) -> bool:
        has_low = has_high = False
        if self._low or self._high:
            # A comparison in the query excludes NULLs, which are at one end of the index. So the bounds are used only
            # if the range has a bound at that end, and so no NULLs.
            descending = (self._low or self._high)[0].field.spec.descending
            has_low = bool(self._low) and self._is_comparable(low) and (not descending or bool(self._high))
            has_high = bool(self._high) and self._is_comparable(high) and (descending or bool(self._low))
        sql = self._texts.get((has_low, has_high)) or self._text(has_low, has_high)
        if has_low:
            many = [(*values, low) for values in many]
        if has_high:
            many = [(*values, high) for values in many]
        found = list(islice(state.query(sql, many), ROWS_MAX + 1))
        state.count_rows(len(found))
        if len(self.feeds) == 1 and not self._plan.typed[self.feeds[0]]:
            rows = state.rows[self.feeds[0]]
            before = len(rows)
            rows.update(zip(found, found, strict=True))
            return len(rows) > before
        grown = False
        for row in found:
            grown = self._add_to_sources(state, row) or grown
        return grown

    def _add_to_sources(self, state: "Resolution", row: tuple[Any, ...]) -> bool:
        """Add a row to all sources that need its columns; return whether it is new for any of them."""
        found = False
        first = 0
        for place in self.feeds:
            last = first + len(self._plan.columns[place])
            part, rows = row[first:last], state.rows[place]
            key = _typed(part) if self._plan.typed[place] else part
            if key not in rows:
                rows[key] = part
                found = True
            first = last
        return found

    def _is_comparable(self, value: Any) -> bool:
        """Return whether a query can compare with this value: the column's affinity must leave the value unchanged."""
        affinity = self._affinity(len(self._equal))
        return value is not None and len(closure(value, affinity)) == 1

    def _affinity(self, place: int) -> str:
        """Return the affinities that SQLite may apply in a comparison with a column of the key."""
        number = ROWID if self._index is None else self._index.columns[place]
        if number in (ROWID, self._table.rowid_column):
            return AFFINITY_INTEGER
        return self._table.columns[number].affinity if number >= 0 else "BC"

    def _text(self, has_low: bool, has_high: bool) -> str:
        table, index = self._table, self._index
        columns = [column_name(table, number) for place in self.feeds for number in self._plan.columns[place]]
        names = [rowid_name(table) or ""] if index is None else key_names(table, index)
        conditions = [f"{self._compared(names, place)} IS ?" for place in range(len(self._equal))]
        equal = len(self._equal)
        if has_low or has_high:
            descending = (self._low or self._high)[0].field.spec.descending
            first, last = ("<=", ">=") if descending else (">=", "<=")
            name = self._compared(names, equal)
            conditions += ([f"{name} {first} ?"] if has_low else []) + ([f"{name} {last} ?"] if has_high else [])
        source = quote(table.name)
        if conditions:
            source += " NOT INDEXED" if index is None else f" INDEXED BY {quote(index.name)}"
        if self._index is not None and self._index.partial and conditions:
            conditions.append(f"({condition_of(self._index.sql)})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        text = f"SELECT {', '.join(columns)} FROM main.{source}{where} LIMIT {ROWS_MAX + 1}"
        self._texts[has_low, has_high] = text
        return text

    def _compared(self, names: list[str], place: int) -> str:
        if self._index is None:
            return names[place]
        return f"{names[place]} COLLATE {self._index.specs[place].collation}"


class _StoppingJob(_Job):
    """The access of a loop that may end before the end of its range (see ``loop_stops``)."""

    def __init__(self, plan: DependentReads, access: KeyInterval, feeds: list[int], *, records: bool) -> None:
        super().__init__(plan, access, feeds, records=records)
        assert access.stop is not None
        self._stop: Stop = access.stop
        self._counting: dict[tuple[Any, ...], str] = {}
        equal = len(self._equal)
        descending = bool(self._low or self._high) and (self._low or self._high)[0].field.spec.descending
        ends = [(field, place, "IS") for place, field in enumerate(self._equal)]
        for fields, after, less in (
            (self._low, access.low_after, descending),
            (self._high, not access.high_after, not descending),
        ):
            ends += [(field, equal, ("<" if less else ">") + ("" if after else "=")) for field in fields[:1]]
        names = self._key_names()
        self._conditions = [
            (field, self._compared(names, place), self._affinity(place), operator) for field, place, operator in ends
        ]
        specs = (ROWID_SPEC,) if self._index is None else self._index.specs
        self._encoders = [encoder(spec) for spec in specs]

    def run(self, state: "Resolution", done: set[bytes]) -> bool:
        """Record the range up to the row with which the loop ends; return whether new rows were found."""
        if done:
            return False
        stop = self._last_key(state)
        if stop is None:
            return super().run(state, done)
        done.add(stop)
        (low, _), (high, _) = self._ends(state) or ((b"", None), (b"", None))
        for key, _ in self._keys(state):
            for first, last in self._range(key, low, high):
                ends = (max(first, stop), last) if self._stop.backward else (first, min(last, stop + HIGH))
                if self.records and ends[0] < ends[1]:
                    state.ranges.add(ends)
                return bool(self.feeds) and self._take_rows(state, ends)
        return False

    def _last_key(self, state: "Resolution") -> bytes | None:
        """Return the key of the row with which the loop ends; None if it may reach the end of its range."""
        query = self._bounds(state)
        limit, offset = _value(self._stop.limit, state.params), _value(self._stop.offset, state.params)
        if query is None or type(limit) is not int or type(offset) is not int:
            return None
        limit += offset
        if not 0 <= offset < limit <= KEYS_MAX or not (self._stop.is_fixed or state.is_as_planned()):
            return None
        conditions, params = query
        params += [_value(atom, state.params) for atom in asked_values(self._stop)]
        kind = (*conditions, limit)
        sql = self._counting.get(kind)
        if sql is None:
            filters = self._wanted(self._stop, self._table, _OUTER)
            sql = self._ordered(self._key_names(), [*conditions, *filters], f" LIMIT {limit}")
            if len(self._counting) < TEXTS_MAX:
                self._counting[kind] = sql
        rows = list(state.query(sql, [tuple(params)]))
        return self._key(rows[-1]) if len(rows) == limit else None

    def _wanted(self, of: Stop | Partner, table: Table, name: str) -> list[str]:
        """Return the conditions on a row of the table with alias ``name``, with ``?`` for ``asked_values``."""
        found = [
            f"{'+' if one.as_stored else ''}{_qualified(name, table, one.column)} COLLATE {one.collation} "
            f"{one.operator} {'NULL' if one.value is None else '?'}"
            for one in of.filters
        ]
        for number, partner in enumerate(of.partners):
            other = self._plan.schema.tables[partner.table]
            its_name = f"{name}p{number}"
            same = f"{_qualified(its_name, other, ROWID)} = {_qualified(name, table, partner.column)}"
            more = self._wanted(partner, other, its_name)
            source = f"main.{quote(other.name)} AS {its_name} NOT INDEXED"
            found.append(f"EXISTS (SELECT 1 FROM {source} WHERE {' AND '.join([same, *more])})")
        return found

    def _bounds(self, state: "Resolution") -> tuple[list[str], list[Any]] | None:
        """Return the range as conditions with their parameters; None if they might not match exactly the same rows.

        An extra row at the beginning of the loop would be counted, and the query would stop too early.
        """
        conditions: list[str] = []
        params: list[Any] = []
        if len(self._low) > 1 or len(self._high) > 1:
            return None
        for field, name, affinity, operator in self._conditions:
            values = field.values(state)
            if len(values) != 1 or len(closure(values[0], affinity)) != 1:
                return None  # the column's affinity would convert the value in the query
            if values[0] is not None or operator == "IS":
                conditions.append(f"{name} {operator} ?")
                params.append(values[0])
            elif operator.endswith("="):
                return None
            else:
                conditions.append(f"{name} IS NOT NULL")
        return conditions, params

    def _key_names(self) -> list[str]:
        if self._index is None:
            return [rowid_name(self._table) or ""]
        return [column_name(self._table, number) for number in self._index.columns]

    def _key(self, row: Sequence[Any]) -> bytes:
        return self._prefix + b"".join([encode(value) for encode, value in zip(self._encoders, row, strict=False)])

    def _ordered(self, names: list[str], conditions: list[str], limit: str) -> str:
        specs = (ROWID_SPEC,) if self._index is None else self._index.specs
        order = [
            f"{name} COLLATE {spec.collation}{' DESC' if spec.descending != self._stop.backward else ''}"
            for name, spec in zip(self._key_names(), specs, strict=True)
        ]
        index = "NOT INDEXED" if self._index is None else f"INDEXED BY {quote(self._index.name)}"
        if self._index is not None and self._index.partial:
            conditions = [*conditions, f"({condition_of(self._index.sql)})"]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        source = f"main.{quote(self._table.name)} AS {_OUTER} {index}{where}"
        return f"SELECT {', '.join(names)} FROM {source} ORDER BY {', '.join(order)}{limit}"

    def _take_rows(self, state: "Resolution", ends: Range) -> bool:
        """Add the rows between two ends to the sources of the loop; return whether one was new."""
        conditions, params = self._bounds(state) or ([], [])
        names = self._key_names()
        columns = [column_name(self._table, number) for place in self.feeds for number in self._plan.columns[place]]
        width = len(names)
        found = False
        for row in state.query(
            self._ordered([*names, *columns], conditions, f" LIMIT {ROWS_MAX + 1}"), [tuple(params)]
        ):
            if not ends[0] <= self._key(row[:width]) < ends[1]:
                break
            state.count_rows(1)
            found = self._add_to_sources(state, row[width:]) or found
        return found


def _qualified(name: str, table: Table, column: int) -> str:
    return f"{name}.{column_name(table, column)}"


def _value(atom: Atom, params: Params) -> Any:
    return atom.payload[1] if atom.kind == "const" else params[atom.payload - 1]


def _typed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a dictionary key that distinguishes rows whose values differ as texts, such as 1 and 1.0."""
    return (row, *map(type, row))


def _encoded(field: _Field, value: Any) -> bytes:
    return field.encode(value)


class Resolution:
    """The dependent reads of one execution of a statement."""

    def __init__(self, plan: DependentReads, params: Params, query: Query) -> None:
        self._plan, self.params, self.query = plan, params, query
        self.points: set[bytes] = set()  # single keys
        self.ranges: set[Range] = set()  # ranges of keys
        # Why the reads could not be resolved and whole tables and indexes count as read; empty if they were.
        self.failure = ""
        # For each source, its distinct rows so far, with only the columns that other accesses need.
        self.rows: list[dict[tuple[Any, ...], tuple[Any, ...]]] = [{} for _ in plan.sources]
        self._done: list[set[bytes]] = [set() for _ in plan.jobs]
        self._rows_read = 0
        self._is_as_planned: bool | None = None
        self._resolve()

    def _resolve(self) -> None:
        try:
            while True:
                grown = False
                for job, done in zip(self._plan.jobs, self._done, strict=True):
                    grown = job.run(self, done) or grown
                if not grown or not self._plan.is_cyclic:
                    return
        except _TooManyError:
            self.failure = TOO_MANY
        except (apsw.Error, UnicodeDecodeError, *UNENCODABLE) as error:
            self.failure = f"values from other rows cannot be read: {error}"

    def is_as_planned(self) -> bool:
        """Return whether SQLite chooses the same plan with these parameters as without."""
        if self._is_as_planned is None:
            rows = self.query("EXPLAIN " + self._plan.sql, [self.params])
            self._is_as_planned = skeleton([Op(*row[:7]) for row in rows]) == self._plan.skeleton
        return self._is_as_planned

    def count_keys(self, keys: int) -> None:
        """Raise ``_TooManyError`` if there are too many keys."""
        if keys > KEYS_MAX:
            raise _TooManyError

    def count_rows(self, rows: int) -> None:
        """Count rows read by auxiliary queries; raise ``_TooManyError`` if there are too many."""
        self._rows_read += rows
        if self._rows_read > ROWS_MAX:
            raise _TooManyError

    def add_changes(self, changes: Sequence[Change], blind: Iterable[str] = ()) -> None:
        """Add the rows that the statement has changed, because it or a trigger may have read them afterwards.

        Args:
            changes: each change of the statement, in order, perhaps with changes that an error rolled back.
            blind: tables whose changes are not known.
        """
        plan = self._plan
        blind = set(blind)
        tables = [plan.table(source) for source in plan.sources]
        if self.failure or not (changes or blind):
            return
        if any(table.name in blind for table in tables):
            self.failure = _OWN_TABLE
            return
        written = {change.table for change in changes}
        grown = False
        for place, table in enumerate(tables):
            if table.name in written:
                grown = self._add_images(place, table, changes) or grown
        if grown:
            self._resolve()

    def _add_images(self, place: int, table: Table, changes: Sequence[Change]) -> bool:
        rows, typed = self.rows[place], self._plan.typed[place]
        is_given = self._plan.is_given(self._plan.sources[place])
        before = len(rows)
        columns: list[int] = []
        for number in self._plan.columns[place]:
            at = _ROWID_PLACE if number in (ROWID, table.rowid_column) else table.columns[number].place
            if at is None:
                self.failure = _OWN_TABLE
                return False
            columns.append(at)
        for change in changes:
            if change.table != table.name or (is_given and change.before is not None):
                continue
            for row, rowid in ((change.before, change.rowid), (change.after, change.rowid_after)):
                if row is not None:
                    part = tuple([rowid if at == _ROWID_PLACE else row[at] for at in columns])
                    rows.setdefault(_typed(part) if typed else part, part)
        return len(rows) > before


_ROWID_PLACE = -1

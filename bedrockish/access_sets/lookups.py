"""Looks up the keys of an access that depends on rows, and the rows on which further accesses depend.

A *lookup* takes the values of its key's columns from the rows found so far, records the keys as read, and runs an
*auxiliary query* for the rows with these keys. The query leaves out the statement's other conditions.
"""

from collections.abc import Iterator, Sequence, Set
from itertools import islice, product
from operator import itemgetter
from typing import Any

from bedrockish.access_sets.catalog import ROWID, Table
from bedrockish.access_sets.cursor_ranges import FieldValues, KeyInterval, points_of
from bedrockish.access_sets.key_encoding import AFFINITY_INTEGER, ROWID_SPEC, encoder, object_prefix
from bedrockish.access_sets.key_values import Params, closure, static_maker, untouched_types
from bedrockish.access_sets.loop_stops import Partner, Stop, condition_values, skeleton
from bedrockish.access_sets.opcodes import Op
from bedrockish.access_sets.query_names import column_name, condition_of, key_names, rowid_name
from bedrockish.access_sets.register_values import Atom
from bedrockish.access_sets.sources import KEYS_MAX, ROWS_MAX, FoundRows, Source, Sources
from bedrockish_journal.model.access_set import HIGH, Range
from bedrockish_journal.storage.table_layout import quote

TEXTS_MAX = 100  # cached auxiliary queries of one loop, which differ by LIMIT
_OUTER = "r"  # alias of a loop's table in a query; the tables of its subqueries are rp0, rp0p0 and so on


class KeyColumn:
    """One column of a key, and the sources of its values."""

    def __init__(self, sources: Sources, field: FieldValues) -> None:
        self.field = field
        self.encode = encoder(field.spec)
        self.cells: list[tuple[Source, int, tuple[str, ...]]] = []  # a source, the place of a column, its affinities
        self.is_fixed = any(atom.kind not in ("column", "new") for atom in field.atoms)
        self._static = static_maker(field)
        for atom in sorted(field.atoms, key=repr):
            if atom.kind in ("column", "new"):
                cell = atom.payload
                if atom.kind == "new":
                    source, place = sources.need_inserted(cell)
                else:
                    source, place = sources.need((cell.program, cell.cursor), cell.column)
                self.cells.append((source, place, tuple(sorted(atom.affinities))))
                source.is_typed = source.is_typed or "B" in atom.affinities

    def values(self, known: FoundRows) -> list[Any]:
        """Return all values that are known so far."""
        found = self._static(known.params) if self.is_fixed else []
        for source, place, affinities in self.cells:
            for row in known.rows[source.place].values():
                found += closure(row[place], affinities)
        return found


class KeyLookup:
    """One access of the plan: it records the keys that the access reads, and finds rows that other accesses need.

    Args:
        feeds: the sources whose rows the access finds.
        records: whether its keys count as read; False if it only finds rows for other accesses.
    """

    def __init__(self, sources: Sources, access: KeyInterval, feeds: list[Source], *, records: bool) -> None:
        self.access, self.feeds, self.records = access, feeds, records
        equal = access.equal
        self._equal = [KeyColumn(sources, field) for field in access.low[:equal]]
        self._low = [KeyColumn(sources, field) for field in access.low[equal:]]
        self._high = [KeyColumn(sources, field) for field in access.high[equal:]]
        self._prefix = object_prefix(access.object)
        self._points_of = points_of(access)
        index = sources.index(access.object)
        table = sources.schema.tables[access.object[2:] if index is None else index.table]
        width = 0 if not access.object.startswith("t:") else 1 if table.key is None else len(table.key.columns)
        self._is_point = equal == width > 0 and not self._low and not self._high
        self._is_rowid = index is None
        self._paired = self._paired_source()
        self._table, self._index = table, index
        self._query_texts: dict[tuple[bool, bool], str] = {}
        self._only_column = self._single_column()

    def _paired_source(self) -> Source | None:
        """Return the one source whose columns make the key, so that each of its rows has one key; else None."""
        used = {source for field in self._equal for source, _, _ in field.cells}
        if len(self._equal) < 2 or len(used) != 1:
            return None
        if any(field.cells and (field.is_fixed or len(field.cells) > 1) for field in self._equal):
            return None
        return used.pop()

    def run(self, known: FoundRows, done: set[bytes]) -> bool:
        """Look up all keys that are not yet in ``done``; return whether new rows were found."""
        if self._only_column is not None:
            return self._run_single(known, done, *self._only_column)
        ends = self._ends(known)
        if ends is None:
            return False
        (low, low_value), (high, high_value) = ends
        new: list[tuple[Any, ...]] = []
        for key, values in self._keys(known):
            whole = key + low + high
            if whole in done:
                continue
            done.add(whole)
            known.count_keys(len(done))
            if self.records:
                self._record(known, key, low, high)
            if self.feeds:
                new.append(values)
        return bool(new) and self._fetch(known, new, low_value, high_value)

    def _single_column(self) -> tuple[Source, int, tuple[str, ...], frozenset[type]] | None:
        """Return the arguments of ``_run_single`` for an equality with one column of one source; else None."""
        access = self.access
        if len(self._equal) != 1 or self._low or self._high or access.low_after or not access.high_after:
            return None
        (field,) = self._equal
        if field.is_fixed or len(field.cells) != 1:
            return None
        source, place, affinities = field.cells[0]
        return source, place, affinities, untouched_types(affinities)

    def _run_single(
        self,
        known: FoundRows,
        done: set[bytes],
        source: Source,
        place: int,
        affinities: Sequence[str],
        as_is: Set[type],
    ) -> bool:
        """Run the most frequent kind of access, a join by one column, faster; return whether new rows were found."""
        (field,) = self._equal
        prefix, encode = self._prefix, field.encode
        no_nulls = self._is_rowid or field.field.not_null
        new: dict[bytes, Any] = {}
        for row in known.rows[source.place].values():
            value = row[place]
            if type(value) in as_is:
                new[prefix + encode(value)] = value
            elif value is not None or not no_nulls:
                for form in closure(value, affinities):
                    new[prefix + encode(form)] = form
        for key in done.intersection(new) if done else ():
            del new[key]
        done.update(new)
        known.count_keys(len(done))
        if self.records and self._is_point:
            known.points.update(new if self._points_of is None else self._points_of(new))
        elif self.records:
            known.ranges.update([(key, key + HIGH) for key in new])
        return bool(new and self.feeds) and self._fetch(known, [(value,) for value in new.values()], None, None)

    def _record(self, known: FoundRows, key: bytes, low: bytes, high: bytes) -> None:
        if self._is_point:
            known.points.update((key,) if self._points_of is None else self._points_of((key,)))
        else:
            known.ranges.update(self._range(key, low, high))

    def _range(self, key: bytes, low: bytes, high: bytes) -> list[Range]:
        """Return a list with the range of a key and its two ends; empty if the range is empty."""
        first = key + low + (HIGH if self.access.low_after else b"")
        last = key + high + (HIGH if self.access.high_after or not self.access.high else b"")
        return [(first, last)] if first < last else []

    def _keys(self, known: FoundRows) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        prefix, fields = self._prefix, self._equal
        if len(fields) == 1:
            (field,) = fields
            encode = field.encode
            for value in field.values(known):
                if value is not None or not (self._is_rowid or field.field.not_null):  # such a NULL finds no row
                    yield prefix + encode(value), (value,)
            return
        if self._paired is None:
            for values in product(*(field.values(known) for field in fields)):
                if self._is_sought(values):
                    yield prefix + b"".join(map(_encoded, fields, values)), values
            return
        fixed = [None if field.cells else field.values(known) for field in fields]
        for row in known.rows[self._paired.place].values():
            columns = [
                closure(row[field.cells[0][1]], field.cells[0][2]) if given is None else given
                for field, given in zip(fields, fixed, strict=True)
            ]
            for values in product(*columns):
                if self._is_sought(values):
                    yield prefix + b"".join(map(_encoded, fields, values)), values

    def _is_sought(self, values: Sequence[Any]) -> bool:
        """Return whether the statement looks for these values; it does not if a ``not_null`` column is NULL."""
        return not any(value is None and field.field.not_null for field, value in zip(self._equal, values, strict=True))

    def _ends(self, known: FoundRows) -> tuple[tuple[bytes, Any], tuple[bytes, Any]] | None:
        """Return the last part of the key and the first value of each end; None if one of its values is unknown."""
        found = []
        for fields, pick in ((self._low, min), (self._high, max)):
            suffix, first = b"", None
            for number, field in enumerate(fields):
                values = field.values(known)
                if not values:
                    return None
                coded, value = pick(((field.encode(one), one) for one in values), key=itemgetter(0))
                suffix += coded
                first = first if number else value
            found.append((suffix, first))
        return found[0], found[1]

    # -- the auxiliary query -----------------------------------------------------------------------------------------

    def _fetch(self, known: FoundRows, many: list[tuple[Any, ...]], low: Any, high: Any) -> bool:
        has_low = has_high = False
        if self._low or self._high:
            # A comparison in the query excludes NULLs, which are at one end of the index. So the bounds are used only
            # if the range has a bound at that end, and so no NULLs.
            descending = (self._low or self._high)[0].field.spec.descending
            has_low = bool(self._low) and self._is_comparable(low) and (not descending or bool(self._high))
            has_high = bool(self._high) and self._is_comparable(high) and (descending or bool(self._low))
        sql = self._query_texts.get((has_low, has_high)) or self._query_text(has_low, has_high)
        if has_low:
            many = [(*values, low) for values in many]
        if has_high:
            many = [(*values, high) for values in many]
        found = list(islice(known.query(sql, many), ROWS_MAX + 1))
        known.count_rows(len(found))
        if len(self.feeds) == 1 and not self.feeds[0].is_typed:
            rows = known.rows[self.feeds[0].place]
            before = len(rows)
            rows.update(zip(found, found, strict=True))
            return len(rows) > before
        grown = False
        for row in found:
            grown = self._add_to_sources(known, row) or grown
        return grown

    def _add_to_sources(self, known: FoundRows, row: tuple[Any, ...]) -> bool:
        """Add a row to all sources that need its columns; return whether it is new for any of them."""
        found = False
        first = 0
        for source in self.feeds:
            last = first + len(source.columns)
            found = source.add(known.rows[source.place], row[first:last]) or found
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

    def _query_text(self, has_low: bool, has_high: bool) -> str:
        table, index = self._table, self._index
        columns = [column_name(table, number) for source in self.feeds for number in source.columns]
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
        self._query_texts[has_low, has_high] = text
        return text

    def _compared(self, names: list[str], place: int) -> str:
        if self._index is None:
            return names[place]
        return f"{names[place]} COLLATE {self._index.specs[place].collation}"


class PlannedLoops:
    """The loops of a statement as SQLite compiled it for the plan, without knowing its parameters."""

    def __init__(self, sql: str, ops: Sequence[Op]) -> None:
        self._sql, self._skeleton = sql, skeleton(ops)

    def match(self, known: FoundRows) -> bool:
        """Return whether SQLite compiles the same loops with the parameters of an execution."""
        if known.is_as_planned is None:
            rows = known.query("EXPLAIN " + self._sql, [known.params])
            known.is_as_planned = skeleton([Op(*row[:7]) for row in rows]) == self._skeleton
        return known.is_as_planned


class StoppingLookup(KeyLookup):
    """The access of a loop that may end before the end of its range (see ``loop_stops``)."""

    def __init__(
        self, sources: Sources, loops: PlannedLoops, access: KeyInterval, feeds: list[Source], *, records: bool
    ) -> None:
        super().__init__(sources, access, feeds, records=records)
        self._tables, self._loops = sources.schema.tables, loops
        assert access.stop is not None
        self._stop: Stop = access.stop
        self._counting_queries: dict[tuple[Any, ...], str] = {}
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

    def run(self, known: FoundRows, done: set[bytes]) -> bool:
        """Record the range up to the row with which the loop ends; return whether new rows were found."""
        if done:
            return False
        stop = self._last_key(known)
        if stop is None:
            return super().run(known, done)
        done.add(stop)
        (low, _), (high, _) = self._ends(known) or ((b"", None), (b"", None))
        for key, _ in self._keys(known):
            for first, last in self._range(key, low, high):
                ends = (max(first, stop), last) if self._stop.backward else (first, min(last, stop + HIGH))
                if self.records and ends[0] < ends[1]:
                    known.ranges.add(ends)
                return bool(self.feeds) and self._take_rows(known, ends)
        return False

    def _last_key(self, known: FoundRows) -> bytes | None:
        """Return the key of the row with which the loop ends; None if it may reach the end of its range."""
        query = self._bounds(known)
        limit, offset = _value(self._stop.limit, known.params), _value(self._stop.offset, known.params)
        if query is None or type(limit) is not int or type(offset) is not int:
            return None
        limit += offset
        if not 0 <= offset < limit <= KEYS_MAX or not (self._stop.is_fixed or self._loops.match(known)):
            return None
        conditions, params = query
        params += [_value(atom, known.params) for atom in condition_values(self._stop)]
        kind = (*conditions, limit)
        sql = self._counting_queries.get(kind)
        if sql is None:
            filters = self._row_conditions(self._stop, self._table, _OUTER)
            sql = self._ordered(self._key_names(), [*conditions, *filters], f" LIMIT {limit}")
            if len(self._counting_queries) < TEXTS_MAX:
                self._counting_queries[kind] = sql
        rows = list(known.query(sql, [tuple(params)]))
        return self._key(rows[-1]) if len(rows) == limit else None

    def _row_conditions(self, of: Stop | Partner, table: Table, name: str) -> list[str]:
        """Return the conditions on a row of the table with alias ``name``, with ``?`` for ``condition_values``."""
        found = [
            f"{'+' if one.as_stored else ''}{_qualified(name, table, one.column)} COLLATE {one.collation} "
            f"{one.operator} {'NULL' if one.value is None else '?'}"
            for one in of.filters
        ]
        for number, partner in enumerate(of.partners):
            other = self._tables[partner.table]
            its_name = f"{name}p{number}"
            same = f"{_qualified(its_name, other, ROWID)} = {_qualified(name, table, partner.column)}"
            more = self._row_conditions(partner, other, its_name)
            source = f"main.{quote(other.name)} AS {its_name} NOT INDEXED"
            found.append(f"EXISTS (SELECT 1 FROM {source} WHERE {' AND '.join([same, *more])})")
        return found

    def _bounds(self, known: FoundRows) -> tuple[list[str], list[Any]] | None:
        """Return the range as conditions with their parameters; None if they might not match exactly the same rows.

        An extra row at the beginning of the loop would be counted, and the query would stop too early.
        """
        conditions: list[str] = []
        params: list[Any] = []
        if len(self._low) > 1 or len(self._high) > 1:
            return None
        for field, name, affinity, operator in self._conditions:
            values = field.values(known)
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

    def _take_rows(self, known: FoundRows, ends: Range) -> bool:
        """Add the rows between two ends to the sources of the loop; return whether one was new."""
        conditions, params = self._bounds(known) or ([], [])
        names = self._key_names()
        columns = [column_name(self._table, number) for source in self.feeds for number in source.columns]
        width = len(names)
        found = False
        for row in known.query(
            self._ordered([*names, *columns], conditions, f" LIMIT {ROWS_MAX + 1}"), [tuple(params)]
        ):
            if not ends[0] <= self._key(row[:width]) < ends[1]:
                break
            known.count_rows(1)
            found = self._add_to_sources(known, row[width:]) or found
        return found


def _qualified(name: str, table: Table, column: int) -> str:
    return f"{name}.{column_name(table, column)}"


def _value(atom: Atom, params: Params) -> Any:
    return atom.payload[1] if atom.kind == "const" else params[atom.payload - 1]


def _encoded(field: KeyColumn, value: Any) -> bytes:
    return field.encode(value)

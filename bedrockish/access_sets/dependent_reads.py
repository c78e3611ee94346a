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

``sources`` holds the rows that accesses depend on, and ``lookups`` the accesses; this module orders and runs them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import apsw

from bedrockish.access_sets.catalog import ROWID, Schema
from bedrockish.access_sets.cursor_ranges import CursorId, Dependent, KeyInterval, ProgramReads
from bedrockish.access_sets.effort import EVERY, Check, unlimited
from bedrockish.access_sets.key_values import UNENCODABLE, Params
from bedrockish.access_sets.lookups import KeyLookup, PlannedLoops, StoppingLookup
from bedrockish.access_sets.opcodes import Op
from bedrockish.access_sets.query_names import Query, condition_of, rowid_name
from bedrockish.access_sets.sources import KEYS_MAX, FoundRows, Source, Sources, TooManyError
from bedrockish_journal.model.access_set import Range
from bedrockish_journal.model.changes import Change

TOO_MANY = f"more than {KEYS_MAX} keys by values from other rows"
_OWN_TABLE = "rows that the statement itself changes, in a table with VIRTUAL columns"


class DependentReads:
    """The reads of one statement that depend on rows, for any parameters."""

    def __init__(
        self,
        programs: Sequence[ProgramReads],  # the reads of the statement's programs
        schema: Schema,  # the schema for which the programs were compiled
        sql: str = "",
        ops: Sequence[Op] = (),  # the instructions of all the programs
        check: Check = unlimited,  # raises an error when the analysis has used up its time
    ) -> None:
        self._check = check = check if len(ops) > EVERY else unlimited
        self.sources = Sources(programs, schema)
        # Dependent reads whose rows cannot be queried; each counts as its coarse read.
        self.unresolved: list[Dependent] = []
        self.resolved: list[Dependent] = []  # dependent reads whose rows can be queried
        whole = {access.object for program in programs for access in program.reads if _is_whole(access)}
        for read in dict.fromkeys(one for program in programs for one in program.dependents):
            check()
            good = self._can_query(read.fine, set()) and read.coarse.object not in whole
            good = good and (read.fine.stop is None or self._can_fetch(replace(read.fine, equal=1)))
            (self.resolved if good else self.unresolved).append(read)
        self.is_cyclic = False  # whether some accesses depend on themselves
        self.lookups = self._plan(sql, ops)  # the accesses, in the order of execution

    # -- rows that can be queried ------------------------------------------------------------------------------------

    def _can_query(self, access: KeyInterval, asked: set[CursorId]) -> bool:
        """Return whether queries can find all rows on which an access depends."""
        if any(name.startswith("sqlite_") for name in access.id_tables):
            return False
        sources = self.sources
        for cell in access.cells:
            cursor = (cell.program, cell.cursor)
            number = sources.column(cursor, cell.column)
            if number is None or sources.table(cursor).name.startswith("sqlite_"):
                return False  # SQLite writes to its own tables without calling the preupdate hook
            if number == ROWID and rowid_name(sources.table(cursor)) is None:
                return False
            leader = sources.leader(cursor)
            if leader in asked:
                continue
            asked.add(leader)
            for feeder in sources.feeders(leader):
                if not self._can_fetch(feeder) or not self._can_query(feeder, asked):
                    return False
        return True

    def _can_fetch(self, access: KeyInterval) -> bool:
        """Return whether an auxiliary query can read the rows of an access by its key."""
        index = self.sources.index(access.object)
        if index is None:
            table = self.sources.schema.tables.get(access.object[2:])
            return table is not None and (_is_whole(access) or rowid_name(table) is not None)
        if _is_whole(access) and access.stop is None:
            return True
        # A query can use a partial index only if it repeats the condition of the index.
        return not index.partial or condition_of(index.sql) is not None

    # -- the order of the accesses -----------------------------------------------------------------------------------

    def _plan(self, sql: str, ops: Sequence[Op]) -> list[KeyLookup]:
        order: dict[KeyInterval, None] = {}
        active: set[KeyInterval] = set()
        for read in self.resolved:
            self._visit(read.fine, order, active)
        recorded = {read.fine for read in self.resolved}
        stops = [one.stop for one in order if one.stop is not None]
        loops = PlannedLoops(sql, ops if any(not stop.is_fixed for stop in stops) else ())
        found: list[KeyLookup] = []
        for access in order:
            self._check()
            feeds = [source for source in self.sources.all if access in source.feeders]
            records = access in recorded
            if access.stop is None:
                found.append(KeyLookup(self.sources, access, feeds, records=records))
            else:
                found.append(StoppingLookup(self.sources, loops, access, feeds, records=records))
        return found

    def _visit(self, access: KeyInterval, order: dict[KeyInterval, None], active: set[KeyInterval]) -> None:
        """Append an access to ``order``, after all accesses that find rows for it."""
        self._check()
        if access in order:
            return
        if access in active:
            self.is_cyclic = True
            return
        active.add(access)
        for cell in sorted(access.cells):
            source, _ = self.sources.need((cell.program, cell.cursor), cell.column)
            for feeder in source.feeders:
                self._visit(feeder, order, active)
        active.discard(access)
        order[access] = None


def _is_whole(access: KeyInterval) -> bool:
    return not access.low and not access.high


class Resolution:
    """The dependent reads of one execution of a statement."""

    def __init__(self, plan: DependentReads, params: Params, query: Query) -> None:
        self._plan, self._known = plan, FoundRows(plan.sources, params, query)
        # Why the reads could not be resolved and whole tables and indexes count as read; empty if they were.
        self.failure = ""
        self._done: list[set[bytes]] = [set() for _ in plan.lookups]
        self._resolve()

    @property
    def points(self) -> set[bytes]:
        """The single keys that the execution reads."""
        return self._known.points

    @property
    def ranges(self) -> set[Range]:
        """The ranges of keys that the execution reads."""
        return self._known.ranges

    def _resolve(self) -> None:
        try:
            while True:
                grown = False
                for lookup, done in zip(self._plan.lookups, self._done, strict=True):
                    grown = lookup.run(self._known, done) or grown
                if not grown or not self._plan.is_cyclic:
                    return
        except TooManyError:
            self.failure = TOO_MANY
        except (apsw.Error, UnicodeDecodeError, *UNENCODABLE) as error:
            self.failure = f"values from other rows cannot be read: {error}"

    def add_changes(self, changes: Sequence[Change], hidden: Iterable[str] = ()) -> None:
        """Add the rows that the statement has changed, because it or a trigger may have read them afterwards.

        Args:
            changes: each change of the statement, in order, perhaps with changes that an error rolled back.
            hidden: changed tables whose single changes are not known.
        """
        sources = self._plan.sources.all
        hidden = set(hidden)
        if self.failure or not (changes or hidden):
            return
        if any(source.table.name in hidden for source in sources):
            self.failure = _OWN_TABLE
            return
        written = {change.table for change in changes}
        grown = False
        for source in sources:
            if source.table.name in written:
                grown = self._add_images(source, changes) or grown
        if grown:
            self._resolve()

    def _add_images(self, source: Source, changes: Sequence[Change]) -> bool:
        """Add the rows of a source before and after each change; return whether one is new."""
        table, rows = source.table, self._known.rows[source.place]
        places: list[int] = []
        for number in source.columns:
            place = _ROWID_PLACE if number in (ROWID, table.rowid_column) else table.columns[number].place
            if place is None:
                self.failure = _OWN_TABLE
                return False
            places.append(place)
        grown = False
        for change in changes:
            if change.table != table.name or (source.is_inserted and change.before is not None):
                continue
            for row, rowid in ((change.before, change.rowid), (change.after, change.rowid_after)):
                if row is not None:
                    part = tuple([rowid if place == _ROWID_PLACE else row[place] for place in places])
                    grown = source.add(rows, part) or grown
        return grown


_ROWID_PLACE = -1

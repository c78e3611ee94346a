"""Collects the reads and writes of a request, statement by statement and row by row, and limits their size.

Every voter holds an access set until its transaction is decided, and for the conflict window after that. The access set
of a bulk load would be larger than its rows. So if a table or index has too many keys in the set, the range from the
first key to the last replaces them, like lock escalation in other databases.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from sys import getsizeof
from typing import NamedTuple, Protocol

import apsw

from bedrockish.access_sets.call_costs import Lengths
from bedrockish.access_sets.catalog import Prepare, Schema, read_schema
from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.definitions import Definitions
from bedrockish.access_sets.derived_documents import DerivedDocuments
from bedrockish.access_sets.effort import Check, TooDearError, unlimited
from bedrockish.access_sets.query_names import Query, connection_query
from bedrockish.access_sets.readset import ReadPlan, ResolvedReads, analyse, analyse_coarsely, lengths_of
from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.access_sets.table_layout import Tables
from bedrockish.access_sets.writeset import WriteKeys
from bedrockish.sqltext.session_settings import NONE, Settings, with_settings
from bedrockish_journal.model.access_set import HIGH, AccessSet, Range
from bedrockish_journal.model.changes import Change

# A request that changes more rows than this in one table counts as writing the whole range from the first changed row
# to the last, and all of the table's indexes.
ROWS_MAX = 100_000
POINTS_MAX = 100_000  # single keys of a transaction; with more, tables and indexes with many keys get one range each
GROUP_MAX = 10_000  # a table or index with more keys gets one range, if the transaction has more than ``POINTS_MAX``
_NO_TABLES = frozenset[str]()
RANGES_MAX = 5_000  # ranges of a transaction; with more, all ranges of a table or index become one
PLANS_BYTES = 64 << 20  # limit for the bytes of all cached plans together
PLAN_BYTES, ACCESS_BYTES = 2_000, 1_000  # approximate bytes of a plan, and of each point or range in it
BYTES_MAX = 40 << 20  # bytes of a transaction: it is sent in one frame, and the link needs room for other frames


def tables_in_bulk(changes: Sequence[Change]) -> frozenset[str]:
    """Return the tables with more than ``ROWS_MAX`` changes, whose keys are not computed one by one."""
    if len(changes) <= ROWS_MAX:
        return _NO_TABLES
    counts = Counter(change.table for change in changes)
    return frozenset(table for table, count in counts.items() if count > ROWS_MAX)


def access_set(reads: Set[bytes], read_ranges: Set[Range], writes: Set[bytes], write_ranges: Set[Range]) -> AccessSet:
    """Return the access set of a transaction, with many points merged into ranges and many ranges into few."""
    if len(reads) > POINTS_MAX:
        reads, read_ranges = _ranged(reads, read_ranges)
    if len(writes) > POINTS_MAX:
        writes, write_ranges = _ranged(writes, write_ranges)
    if len(read_ranges) > RANGES_MAX:
        read_ranges = _merged(read_ranges)
    if len(write_ranges) > RANGES_MAX:
        write_ranges = _merged(write_ranges)
    return AccessSet(
        frozenset(reads),
        tuple(sorted(read_ranges)) if read_ranges else (),
        frozenset(writes),
        tuple(sorted(write_ranges)) if write_ranges else (),
    )


def _merged(ranges: Iterable[Range]) -> set[Range]:
    """Return one range for each table or index, from the lowest end of its ranges to the highest."""
    ends: dict[bytes, Range] = {}
    for low, high in ranges:
        name = low.partition(b"\0")[0]
        lowest, highest = ends.get(name, (low, high))
        ends[name] = min(lowest, low), max(highest, high)
    return set(ends.values())


def _ranged(points: Set[bytes], ranges: Iterable[Range]) -> tuple[set[bytes], set[Range]]:
    groups: dict[bytes, list[bytes]] = {}
    for point in points:
        groups.setdefault(point.partition(b"\0")[0], []).append(point)
    single: set[bytes] = set()
    found = set(ranges)
    for group in groups.values():
        if len(group) > GROUP_MAX:
            found.add((min(group), max(group) + HIGH))
        else:
            single.update(group)
    return single, found


class CompiledFacts(Protocol):
    """The facts about a compiled statement that the analysis needs."""

    @property
    def sql(self) -> str:
        """The text of the statement."""

    @property
    def names(self) -> Sequence[str | None]:
        """The name of each parameter; None for a parameter without a name."""

    @property
    def auto(self) -> object:
        """The INSERT, rewritten to assign ids, that may run in place of the statement; None if it stays as it is."""

    @property
    def named(self) -> frozenset[str] | None:
        """The tables that the statement names, for ``virtual_reads``; None if they are not known."""

    @property
    def settings(self) -> Settings:
        """The settings of the session with which the statement runs."""


def plan_of(db: apsw.Connection, schema: Schema, piece: CompiledFacts, check: Check = unlimited) -> ReadPlan:
    """Return the plan of a statement's reads with its settings; a coarse plan if ``check`` ends the exact analysis.

    Raises:
        apsw.Error: SQLite cannot prepare the statement.
    """
    sql, count = piece.sql, len(piece.names)
    with in_force(db, piece.settings):
        try:
            found = analyse(db, schema, sql, count, check, is_what_runs=piece.auto is None, named=piece.named)
        except TooDearError:
            found = analyse_coarsely(db, schema, sql, count)
    # No auxiliary queries: they would run without the settings, and do not account for recursive triggers.
    return replace(found, resolves=False) if piece.settings else found


class Analysis:
    """The read plans of statements and the keys of rows under one schema; replaced when the schema changes."""

    patience: Callable[[str], Check]  # returns the check that limits the analysis of a text

    def __init__(
        self,
        db: apsw.Connection,  # the connection on which the statements run
        prepare: Prepare,  # registers on a connection the functions and collations that SQLite itself does not have
        # The previous schema, or another connection's schema, whose unchanged parts are reused.
        known: Schema | None = None,
        definitions: Definitions | None = None,  # the definitions that the connection sees now, if they are known
    ) -> None:
        self._db = db
        self._plans: dict[str, ReadPlan] = {}
        self._lengths: dict[str, Lengths] = {}  # the lengths of statements without a plan
        self._weight = 0  # approximate bytes of the cached plans and lengths
        self.patience = lambda _: unlimited
        self.schema = read_schema(db, known, definitions)
        self.keys = WriteKeys(self.schema, prepare)
        self.documents = DerivedDocuments(self.schema, prepare)

    def plan(self, piece: CompiledFacts) -> ReadPlan:
        """Return the plan of a statement's reads; a coarse plan if the exact analysis takes too long."""
        sql = with_settings(piece.sql, piece.settings)
        known = self._plans.get(sql)
        if known is None:
            known = plan_of(self._db, self.schema, piece, self.patience(piece.sql))
            self._make_room(getsizeof(sql) + PLAN_BYTES + ACCESS_BYTES * known.size)
            self._plans[sql] = known
        return known

    def lengths(self, piece: CompiledFacts) -> Lengths:
        """Return the allowed lengths of a statement's values, usually in a tenth of the time of ``plan``."""
        sql = with_settings(piece.sql, piece.settings)
        plan = self._plans.get(sql)
        found = self._lengths.get(sql) if plan is None else plan.lengths
        if found is None:
            try:
                with in_force(self._db, piece.settings):
                    found = lengths_of(self._db, piece.sql, len(piece.names), self.patience(piece.sql))
            except TooDearError:
                return self.plan(piece).lengths
            self._make_room(getsizeof(sql) + PLAN_BYTES)
            self._lengths[sql] = found
        return found

    def _make_room(self, weight: int) -> None:
        if self._weight + weight > PLANS_BYTES:
            self.forget()
        self._weight += weight

    def forget(self) -> None:
        """Drop all cached plans and lengths, because they take more than ``PLANS_BYTES``."""
        self._plans.clear()
        self._lengths.clear()
        self._weight = 0


class AccessSetBuilder:
    """Collects the access set of one request."""

    def __init__(self, analysis: Analysis, *, serializable: bool) -> None:
        self._analysis, self._serializable = analysis, serializable
        self._points: set[bytes] = set()
        self._ranges: set[Range] = set()

    def read(self, plan: ReadPlan, params: tuple[object, ...], query: Query | None = None) -> ResolvedReads | None:
        """Add the reads of a statement that is about to run with these parameters.

        Some reads may depend on the statement's own writes: return these, to pass them to ``complete`` after the
        statement has run. None: there are no such reads.

        Args:
            query: runs a query on the statement's snapshot. Without it, a dependent read counts as a read of the whole
                table or index.
        """
        if plan.dependents is None or query is None:
            if plan.reads_nothing:
                return None
            points, ranges = plan.bind(params)
            self._points.update(points)
            if ranges:
                self._ranges.update(ranges)
            return None
        resolved = plan.resolve(params, query)
        if not plan.readonly:
            return resolved
        self._add(*resolved.keys())
        return None

    def complete(self, resolved: ResolvedReads, changes: Sequence[Change], blind: Iterable[str]) -> None:
        """Add the reads of a statement that has made these changes; for ``blind``, see ``Resolution.add_changes``."""
        self._add(*resolved.complete(changes, blind))

    def lock(self, keys: Iterable[bytes]) -> None:
        """Add the keys of rows that a statement has locked."""
        self._points.update(keys)

    def _add(self, points: Collection[bytes], ranges: Collection[Range]) -> None:
        self._points.update(points)
        if ranges:
            self._ranges.update(ranges)

    def finish(self, changes: list[Change], blurred: list[str]) -> AccessSet:
        """Return the access set of the request, given its changes; ``blurred`` tables count as written whole."""
        keys = self._analysis.keys
        writes: set[bytes] = set()
        write_ranges: set[Range] = set()
        if changes and not self._serializable:
            # Snapshot isolation: plain reads are not certified, only the keys that constraints looked up.
            self._points, self._ranges = set(), set()
        bulk = tables_in_bulk(changes)
        keys.gather(changes, bulk, (self._points, self._ranges), (writes, write_ranges))
        for table in blurred:
            write_ranges.update(keys.whole(table))
        for table in sorted(bulk) if bulk else ():
            write_ranges.update(keys.in_bulk(table, changes))
        return access_set(self._points, self._ranges, writes, write_ranges)

    def spans(self, access_set: AccessSet, changes: Sequence[Change]) -> tuple[Range, ...]:
        """Return the written ranges that need no comparison with other writes: the request's ``Prepared.spans``."""
        return self._analysis.keys.spans(access_set.write_ranges, changes) if access_set.write_ranges else ()


class UnchangedStatement(NamedTuple):
    """A statement that runs unchanged, without settings of a session."""

    sql: str
    names: Sequence[str | None]
    auto: None = None
    named: frozenset[str] | None = None
    settings: Settings = NONE


def access_set_of(db: apsw.Connection, sql: str, params: Sequence[object] = ()) -> AccessSet:
    """Run one statement and return its reads and writes.

    The statement's changes belong to the transaction that is open on the connection; without a transaction, SQLite
    commits them. The connection's preupdate hook is replaced while the statement runs, and removed afterwards.

    Args:
        sql: one statement that does not change the schema.
        params: a value for each parameter, in SQLite's order.

    Raises:
        apsw.Error: SQLite refuses the statement, or the statement fails.
        TooLargeError: the changed rows are over the limit of a transaction.
        UnsupportedError: the statement changes rows of a virtual table.
    """
    analysis = Analysis(db, lambda _: None)
    capture = Capture(db, BYTES_MAX)
    try:
        capture.use(Tables(db))
        builder = AccessSetBuilder(analysis, serializable=True)
        plan = analysis.plan(UnchangedStatement(sql, [None] * len(params)))
        resolved = plan.resolve(tuple(params), connection_query(db))
        capture.start()
        # Not from the statement cache: a statement that was compiled before the hook was installed may truncate a table
        # without reporting its rows.
        for _ in db.execute(sql, params, can_cache=False):
            pass
        failure = capture.failure
        changes, touched = capture.stop()
    finally:
        capture.discard_changes()
        db.preupdate_hook(None)
    if failure is not None:
        raise failure
    builder.complete(resolved, changes, touched)
    return builder.finish(changes, list(touched))

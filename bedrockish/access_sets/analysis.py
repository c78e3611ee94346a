"""Collects the reads and writes of a request, statement by statement and row by row, and limits their size.

Every voter holds an access set until its transaction is decided, and for the conflict window after that. The access set
of a bulk load would be larger than its rows. So if a table or index has too many keys in the set, the range from the
first key to the last replaces them, like lock escalation in other databases.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from sys import getsizeof
from typing import NamedTuple, Protocol

import apsw

from bedrockish.access_sets.call_costs import Lengths
from bedrockish.access_sets.catalog import Prepare, Schema, read_schema
from bedrockish.access_sets.definitions import Definitions
from bedrockish.access_sets.derived_documents import DerivedDocuments
from bedrockish.access_sets.effort import Check, TooCostlyError, unlimited
from bedrockish.access_sets.readset import ReadPlan, analyse, analyse_coarsely, lengths_of
from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.access_sets.writeset import WriteKeys
from bedrockish.sqltext.session_settings import NONE, Settings, with_settings
from bedrockish.sqltext.text_forms import LongerLists, with_longer_lists
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
# Approximate bytes of a plan, of each point or range in it, and of each value of ``LongerLists``.
PLAN_BYTES, ACCESS_BYTES, VALUE_BYTES = 2_000, 1_000, 100
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
    def with_ids(self) -> object:
        """The INSERT, rewritten to assign ids, that may run in place of the statement; None if it stays as it is."""

    @property
    def accessed_tables(self) -> frozenset[str] | None:
        """The tables that the statement names, for ``virtual_reads``; None if they are not known."""

    @property
    def settings(self) -> Settings:
        """The settings of the session with which the statement runs."""


class LongerStatement(NamedTuple):
    """A statement that is analysed in place of one with shorter lists of values, which runs."""

    sql: str
    names: Sequence[str | None]
    accessed_tables: frozenset[str] | None
    with_ids: bool = True  # another text runs: see ``analyse``
    settings: Settings = NONE


def plan_of(db: apsw.Connection, schema: Schema, piece: CompiledFacts, check: Check = unlimited) -> ReadPlan:
    """Return the plan of a statement's reads with its settings; a coarse plan if ``check`` ends the exact analysis.

    Raises:
        apsw.Error: SQLite cannot prepare the statement.
    """
    sql, count = piece.sql, len(piece.names)
    with in_force(db, piece.settings):
        try:
            found = analyse(
                db,
                schema,
                sql,
                count,
                check,
                is_what_runs=piece.with_ids is None,
                accessed_tables=piece.accessed_tables,
            )
        except TooCostlyError:
            found = analyse_coarsely(db, schema, sql, count)
    # No auxiliary queries: they would run without the settings, and do not account for recursive triggers.
    return replace(found, resolves=False) if piece.settings else found


def _with_longer_lists(piece: CompiledFacts) -> LongerLists | None:
    if piece.settings or any(name is not None for name in piece.names):
        return None
    return with_longer_lists(piece.sql, len(piece.names))


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
        self._longer: dict[str, ReadPlan] = {}  # plans of texts with longer lists than those of the statements
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
            known = self._plan_with_longer_lists(piece)
            if known is None:
                known = plan_of(self._db, self.schema, piece, self.patience(piece.sql))
                self._make_room(ACCESS_BYTES * known.size)
            self._make_room(getsizeof(sql) + PLAN_BYTES)
            self._plans[sql] = known
        return known

    def _plan_with_longer_lists(self, piece: CompiledFacts) -> ReadPlan | None:
        """Return the plan of the statement with lists of one of few lengths; None if the statement needs its own plan.

        An analysis takes 40 microseconds for each value of a list, and programs send lists of all lengths.
        """
        longer = _with_longer_lists(piece)
        if longer is None:
            return None
        known = self._longer.get(longer.sql)
        if known is None:
            facts = LongerStatement(longer.sql, (None,) * longer.parameters, piece.accessed_tables)
            try:
                known = plan_of(self._db, self.schema, facts, self.patience(piece.sql))
            except apsw.Error:  # SQLite refuses it: an index needs the list, or the statement passes a limit
                return None
            self._make_room(getsizeof(longer.sql) + PLAN_BYTES + ACCESS_BYTES * known.size)
            self._longer[longer.sql] = known
        if known.lengths.depends_on_values:  # on those of this statement, whose parameters have other positions
            return None
        self._make_room(VALUE_BYTES * longer.parameters)
        return replace(known, convert=longer.convert)

    def lengths(self, piece: CompiledFacts) -> Lengths:
        """Return the allowed lengths of a statement's values, usually in a tenth of the time of ``plan``."""
        sql = with_settings(piece.sql, piece.settings)
        if (plan := self._plans.get(sql)) is not None:
            return plan.lengths
        if (found := self._lengths.get(sql)) is not None:
            return found
        longer = _with_longer_lists(piece)
        if longer is not None:
            with suppress(apsw.Error):  # SQLite refuses the longer statement
                found = self._lengths_of(piece, longer.sql, longer.sql, longer.parameters)
                if not found.depends_on_values:
                    return found
        return self._lengths_of(piece, sql, piece.sql, len(piece.names))

    def _lengths_of(self, piece: CompiledFacts, name: str, text: str, parameters: int) -> Lengths:
        """Return the lengths of a text that is analysed for a statement, cached under ``name``."""
        found = self._lengths.get(name)
        if found is None:
            try:
                with in_force(self._db, piece.settings):
                    found = lengths_of(self._db, text, parameters, self.patience(piece.sql))
            except TooCostlyError:
                return self.plan(piece).lengths
            self._make_room(getsizeof(name) + PLAN_BYTES)
            self._lengths[name] = found
        return found

    def _make_room(self, weight: int) -> None:
        if self._weight + weight > PLANS_BYTES:
            self.forget()
        self._weight += weight

    def forget(self) -> None:
        """Drop all cached plans and lengths, because they take more than ``PLANS_BYTES``."""
        self._plans.clear()
        self._longer.clear()
        self._lengths.clear()
        self._weight = 0

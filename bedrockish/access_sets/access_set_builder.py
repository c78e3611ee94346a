"""The access set of a request or an open transaction, which grows with each statement.

Only ROLLBACK TO removes written keys, because the rows that it rolls back are no longer written. But these rows have
shown to the transaction that their unique values were free and that their parents existed, so their written keys become
reads. A key that was also written before the savepoint stays written.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import apsw

from bedrockish.access_sets.analysis import BYTES_MAX, Analysis, CompiledFacts, access_set, tables_in_bulk
from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.query_names import Query, connection_query
from bedrockish.access_sets.readset import ReadPlan, ResolvedReads
from bedrockish.access_sets.table_layout import Tables
from bedrockish.sqltext.session_settings import NONE, Settings
from bedrockish_journal.model.access_set import WRITES, AccessSet, Range, written_in
from bedrockish_journal.model.changes import Change


class AccessSetBuilder:
    """The reads and writes of a transaction so far. *Probes* are the reads of constraints; all others are plain reads.

    Args:
        serializable: whether its reads are certified at COMMIT; otherwise only its writes and the keys that constraints
            looked up.
    """

    def __init__(self, analysis: Analysis, *, serializable: bool) -> None:
        self._analysis, self._serializable = analysis, serializable
        self._reads: set[bytes] = set()
        self._read_ranges: set[Range] = set()
        self._probes: set[bytes] = set()
        self._probe_ranges: set[Range] = set()
        self._writes: set[bytes] = set()
        self._write_ranges: set[Range] = set()
        # For each open savepoint, the keys and ranges that were first written between it and the next savepoint.
        self._savepoints: list[tuple[set[bytes], set[Range]]] = []

    def __len__(self) -> int:
        points = len(self._reads) + len(self._probes) + len(self._writes)
        return points + len(self._read_ranges) + len(self._probe_ranges) + len(self._write_ranges)

    def add_reads(self, piece: CompiledFacts, params: tuple[object, ...], *, failed: bool = False) -> None:
        """Add the reads of a statement with these parameters.

        With ``failed``, also add the keys that constraints may have looked up, on which the error depends. The keys of
        rows that the failed statement changed, until SQLite rolled it back, are not added.
        """
        plan = self._analysis.plan(piece)
        self.add_keys(*(plan.bind_failed(params) if failed else plan.bind(params)))

    def add_reads_before(self, plan: ReadPlan, params: tuple[object, ...], query: Query) -> ResolvedReads | None:
        """Add the reads of a statement that is about to run; ``query`` sees the same data.

        Some reads may depend on the statement's own writes. Return these; the caller passes them to ``complete`` after
        the statement has run. Return None if there are no such reads.
        """
        if plan.dependents is None:
            if not plan.reads_nothing:
                self.add_keys(*plan.bind(params))
            return None
        resolved = plan.resolve(params, query)
        if not plan.readonly:
            return resolved
        self.add_keys(*resolved.keys())
        return None

    def complete(self, resolved: ResolvedReads | None, changes: Sequence[Change], hidden: Iterable[str]) -> None:
        """Add the reads of a statement that has made these changes; for ``hidden``, see ``Resolution.add_changes``."""
        if resolved is not None:
            self.add_keys(*resolved.complete(changes, hidden))

    def add_reads_unchanged(self, piece: CompiledFacts, params: tuple[object, ...], query: Query) -> None:
        """Add the reads of a statement that has changed no row; ``query`` reads the same data."""
        plan = self._analysis.plan(piece)
        self.add_keys(*(plan.bind(params) if plan.dependents is None else plan.resolve(params, query).keys()))

    def add_keys(self, points: Collection[bytes], ranges: Collection[Range]) -> None:
        """Add keys and ranges that were read."""
        self._reads.update(points)
        if ranges:
            self._read_ranges.update(ranges)

    def add_locked(self, keys: Iterable[bytes]) -> None:
        """Add the keys of rows that a statement has locked."""
        self._reads.update(keys)

    def of_statement(self, piece: CompiledFacts, params: tuple[object, ...]) -> "AccessSetBuilder":
        """Return a new access set with the reads of one statement, without those of this transaction."""
        one = AccessSetBuilder(self._analysis, serializable=True)
        one.add_reads(piece, params)
        return one

    def add_changes(self, changes: Sequence[Change], net_only: Iterable[str] = ()) -> None:
        """Add changes of rows.

        Tables in ``net_only``, of which only the net effect is known, count as written whole.
        """
        keys = self._analysis.keys
        bulk = tables_in_bulk(changes)
        points, ranges = (set(), set()) if self._savepoints else (self._writes, self._write_ranges)
        keys.gather(changes, bulk, (self._probes, self._probe_ranges), (points, ranges))
        for name in net_only:
            ranges.update(keys.whole(name))
        for name in sorted(bulk) if bulk else ():
            ranges.update(keys.bulk_ranges(name, changes))
        if self._savepoints:
            self._write(points, ranges)

    def _write(self, points: set[bytes], ranges: set[Range]) -> None:
        if self._savepoints:
            since_points, since_ranges = self._savepoints[-1]
            since_points |= points - self._writes
            since_ranges |= ranges - self._write_ranges
        self._writes |= points
        self._write_ranges |= ranges

    def begin_savepoint(self) -> None:
        """Begin a savepoint."""
        self._savepoints.append((set(), set()))

    def end_savepoint(self, place: int) -> None:
        """End the savepoint with this index, and the savepoints after it; the writes since then stay."""
        for points, ranges in self._savepoints[place:] if place else ():
            self._savepoints[place - 1][0].update(points)
            self._savepoints[place - 1][1].update(ranges)
        del self._savepoints[place:]

    def roll_back(self, place: int) -> None:
        """Roll back to the savepoint with this index, which stays open; a key that is no longer written counts as read.

        The cost grows with the changes that are rolled back, not with all changes.
        """
        for points, ranges in self._savepoints[place:]:
            self._writes -= points
            self._write_ranges -= ranges
            self._reads |= points
            self._read_ranges |= ranges
        self._savepoints[place:] = [(set(), set())]

    def serializable(self) -> "AccessSetBuilder":
        """Return a copy as the access set of a serializable transaction, whose reads are certified."""
        one = AccessSetBuilder(self._analysis, serializable=True)
        one.merge(self)
        return one

    def with_analysis(self, analysis: Analysis) -> "AccessSetBuilder":
        """Return the same reads, writes and savepoints with another analysis; the caller drops this object."""
        if analysis is self._analysis:
            return self
        one = AccessSetBuilder(analysis, serializable=self._serializable)
        one.merge(self)
        one._savepoints = self._savepoints
        return one

    def merge(self, other: "AccessSetBuilder") -> None:
        """Add the reads and writes of another access set."""
        self._reads |= other._reads
        self._read_ranges |= other._read_ranges
        self._probes |= other._probes
        self._probe_ranges |= other._probe_ranges
        self._write(other._writes, other._write_ranges)

    def looked_at(self) -> AccessSet:
        """Return an access set whose reads are all keys that were read, looked up or written."""
        points, ranges = self._reads | self._probes | self._writes, {*self._read_ranges, *self._probe_ranges}
        return access_set(points, ranges | self._write_ranges, set(), set())

    def rests_on(self) -> AccessSet:
        """Return an access set whose reads are the keys on which the transaction depends.

        A later write of any of them by another transaction invalidates this one.

        The transaction's plain reads are among them only if it is serializable.
        """
        if self._serializable:
            return self.looked_at()
        return access_set(self._probes | self._writes, self._probe_ranges | self._write_ranges, set(), set())

    def conflicts_with(self, writer: AccessSet, *, reads: bool | None = None) -> bytes | None:
        """Return a key that another transaction writes and this transaction depends on; None if no key conflicts.

        Args:
            reads: whether the reads of this transaction count; by default, if it is serializable.
        """
        with_reads = self._serializable if reads is None else reads
        for points in (self._writes, self._probes, self._reads) if with_reads else (self._writes, self._probes):
            if not writer.write_points.isdisjoint(points):
                return min(writer.write_points & points)
        ranges = (self._write_ranges, self._probe_ranges, self._read_ranges)
        mine = [one for some in (ranges if with_reads else ranges[:2]) if some for one in some]
        for low, high in mine:
            found = writer.first(WRITES, low, high)
            if found is not None:
                return found
        if not writer.write_ranges:
            return None
        points = self._writes | self._probes | (self._reads if with_reads else set())
        return written_in(writer, AccessSet(frozenset(points), tuple(mine)))

    def overwrites(self, reader: AccessSet) -> bytes | None:
        """Return a key that another transaction has read or looked up and this one writes; else None."""
        if not self._writes.isdisjoint(reader.read_points):
            return min(self._writes & reader.read_points)
        if not (self._write_ranges or (self._writes and reader.read_ranges)):
            return None
        return written_in(access_set(set(), set(), self._writes, self._write_ranges), reader)

    def access_set(self, *, reads: bool | None = None) -> AccessSet:
        """Return the access set to certify; with the plain reads if ``reads``, by default if it is serializable."""
        points, ranges = self._probes, self._probe_ranges
        if self._serializable if reads is None else reads:
            points, ranges = points | self._reads, ranges | self._read_ranges
        return access_set(points, ranges, self._writes, self._write_ranges)

    def finish(self, changes: Sequence[Change], net_only: Iterable[str]) -> AccessSet:
        """Return the access set of a request that has made these changes; for ``net_only``, see ``add_changes``.

        With snapshot isolation, the plain reads of a request that writes are not certified.
        """
        self.add_changes(changes, net_only)
        return self.access_set(reads=self._serializable or not changes)


class UnchangedStatement(NamedTuple):
    """A statement that runs unchanged, without settings of a session."""

    sql: str
    names: Sequence[str | None]
    with_ids: None = None
    accessed_tables: frozenset[str] | None = None
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

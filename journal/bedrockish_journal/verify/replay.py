"""Rebuilds a database from journals alone, in any causally valid order, and computes the digest of a database.

By the protocol, every causally valid order results in the same database. Comparing the digests of replays in
random orders tests this.
"""

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import apsw
import cbor2

from bedrockish_journal.model.changes import SchemaStep, decode_changes, decode_steps
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.errors import (
    ChainBrokenError,
    ForkError,
    MomentError,
    ReplayMismatchError,
    TargetUnwritableError,
)
from bedrockish_journal.model.moment import FORMS, Moment
from bedrockish_journal.model.order import interleave, may_apply
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Txid, parse_txid
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.storage.file_claims import skipped
from bedrockish_journal.storage.own_objects import is_own
from bedrockish_journal.storage.schema_steps import run, switch
from bedrockish_journal.storage.store import applied, open_database, open_readonly, read_meta, scan, scan_timeline
from bedrockish_journal.storage.table_layout import (
    CLOCK_FUNCTIONS,
    SKIP_LOCKED,
    Applier,
    RowMismatchError,
    find_table,
    print_key,
    quote,
    user_tables,
)
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.storage.virtual_tables import rebuild_indexes, shadow_tables
from bedrockish_journal.storage.wide_rows import select
from bedrockish_journal.verify.beginning import (
    Beginning,
    Source,
    begin_with,
    check_reached,
    check_related,
    check_whole,
    is_in_force,
)
from bedrockish_journal.verify.new_file import NewFile

Prepare = Callable[[apsw.Connection], None]  # registers the functions and collations of plugins on a connection
PROGRESS_EVERY = 1_000  # number of entries between two calls of ``progress``


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The report of a replay."""

    target: str  # the file that was written
    digest: str  # the digest of the written database
    entries: int  # the number of applied entries, second labels included
    repeats: int  # the number of second labels, which changed nothing
    changes: int  # the number of rows inserted, updated and deleted
    statements: int  # the number of statements of schema changes
    applied: dict[str, int]  # the vector of the result
    later: int  # the number of entries that were left out, because they are later than the wanted moment
    clock: int  # the greatest clock in the result


class SourcedEntry(NamedTuple):
    """An entry and the path of the journal from which it was read."""

    entry: Entry
    path: str

    @property
    def place(self) -> tuple[str, int]:
        """Leader and tick."""
        return self.entry.place

    @property
    def after(self) -> Vector:
        """The vector that has to be applied before the entry."""
        return self.entry.after


def replay(
    # nodes' files; together they must have every entry on which any of their entries depends.
    paths: Sequence[str | os.PathLike[str]],
    # The file to write, which must not exist. It appears only when it is complete and durable.
    target: str | os.PathLike[str],
    *,
    # A node's older file; the replay begins with its tables instead of an empty database.
    base: str | os.PathLike[str] | None = None,
    until: Moment | None = None,  # the moment to stop at; the files must have all entries up to it
    # Returns numbers in [0, 1), by which any causally valid order is drawn. None: the order of the first file, and then
    # the entries that only other files have.
    draw: Callable[[], float] | None = None,
    progress: Callable[[int], None] | None = None,  # called with the number of applied entries, now and then
    # Registers the functions and collations that indexes, CHECKs and generated columns use on a connection.
    prepare: Prepare | None = None,
) -> ReplayReport:
    """Write a new database from the journals of one or several nodes.

    Raises:
        JournalFileError: a file has no journal, or the target exists or cannot be written.
        JournalPrunedError: all files have removed the beginning of a timeline that is needed.
        MomentError: the files lack entries of the moment, or the base is of another cluster.
        EntryMalformedError, ChainBrokenError, ForkError: a journal was altered or is damaged.
        ReplayBlockedError: entries are missing.
        ReplayMismatchError: an entry does not fit the database that the entries before it made.
    """
    assert paths or base is not None, "there must be a journal to replay"
    file = NewFile(target)
    sources: list[Source] = []
    try:
        for path in (*paths, *([base] if base is not None else [])):
            sources.append((os.fspath(path), open_readonly(path)))
            sources[-1][1].execute("BEGIN")
        beginning = begin_with(sources[-1]) if base is not None else Beginning()
        if draw is None and base is None:
            entries = _journal_order(sources)
        else:
            timelines = _timelines(sources, beginning.applied)
            entries = interleave(timelines, draw or (lambda: 0.0), beginning.applied)
        check_related(sources, beginning)
        check_whole(sources[: len(paths)], beginning)
        if base is None and draw is None:
            check_whole(sources[:1], beginning)
        if until is not None:
            check_reached(sources, until)
        rebuild = _rebuild(file, sources, beginning, until, entries, progress, prepare)
        file.put_in_place()
    except (apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError, OSError) as error:
        why = file.why_not(error)
        raise TargetUnwritableError(file.name, f"{file.name} cannot be written: {why}; check the disk") from error
    finally:
        for _, db in sources:
            db.close(True)
        file.drop()
    return rebuild.report(file.name)


def _owner(sources: Sequence[Source], path: str) -> str:
    """Return the name of the node that has written a file."""
    return str(next((read_meta(db, "node") for name, db in sources if name == path), None) or path)


def _journal_order(sources: list[Source]) -> Iterator[SourcedEntry]:
    path, db = sources[0]
    done: dict[str, int] = {}
    for entry in scan(db):
        if not may_apply(entry, done):
            node = _owner(sources, path)
            raise ReplayMismatchError(node, entry.place, None, None, "the entry is before an entry on which it depends")
        done[entry.leader] = entry.tick
        yield SourcedEntry(entry, path)
    yield from interleave(_timelines(sources, done), lambda: 0.0, done)


def _timelines(sources: list[Source], start: Vector) -> dict[str, Iterator[SourcedEntry]]:
    leaders = sorted({leader for _, db in sources for leader in applied(db)})
    return {leader: _timeline(sources, leader, start.get(leader, 0) + 1) for leader in leaders}


def _timeline(sources: list[Source], leader: str, first_tick: int) -> Iterator[SourcedEntry]:
    """Yield each entry of a timeline once, merged from all journals."""
    streams = [_read(path, db, leader, first_tick) for path, db in sources]
    last: SourcedEntry | None = None
    for tick, place, sourced in heapq.merge(*streams, key=lambda found: found[0]):
        assert place == leader
        if last is not None and last.entry.tick == tick:
            if last.entry.hash != sourced.entry.hash:
                raise ForkError(leader, tick, (last.path, sourced.path))
            continue
        last = sourced
        yield sourced


def _read(path: str, db: apsw.Connection, leader: str, first_tick: int) -> Iterator[tuple[int, str, SourcedEntry]]:
    for entry in scan_timeline(db, leader, first_tick):
        yield entry.tick, entry.leader, SourcedEntry(entry, path)


def _rebuild(
    file: NewFile,
    sources: list[Source],
    beginning: Beginning,
    until: Moment | None,
    entries: Iterator[SourcedEntry],
    progress: Callable[[int], None] | None,
    prepare: Prepare | None,
) -> "_Rebuild":
    db = ModuleConnection(file.path)
    try:
        db.execute(f"PRAGMA encoding = '{sources[0][1].pragma('encoding')}'")
        beginning.copy_tables(db)
        # An unfinished file is removed, so nothing need be durable. But a failed schema change has to be rolled back.
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute("PRAGMA synchronous = OFF")
        # The entries have the rows that triggers and foreign keys changed, so triggers and foreign keys must not run.
        switch(db, on=False)
        for function in (*CLOCK_FUNCTIONS, SKIP_LOCKED):  # views and triggers may name them; a replay never calls them
            db.create_scalar_function(function, _not_here)
        if prepare is not None:
            prepare(db)
        rebuild = _Rebuild(db, sources, beginning, until)
        db.execute("BEGIN")
        for sourced in entries:
            rebuild.apply(sourced)
            if progress is not None and rebuild.entries % PROGRESS_EVERY == 0:
                progress(rebuild.entries)
        rebuild.end()
        db.execute("COMMIT")
        if progress is not None:
            progress(rebuild.entries)
        rebuild.digest = digest(db)
        if beginning.source is not None:
            file.compact(db)
        return rebuild
    finally:
        db.close(True)


def _not_here(*_arguments: object) -> None:
    raise AssertionError("a replay applies rows, and calls no function of a node")


def _adopted(sources: Sequence[Source]) -> set[Txid]:
    """Return the transactions that a node other than their leader committed; they may have a second label."""
    query = "SELECT clock, origin FROM bedrockish_journal WHERE origin <> leader"
    return {Txid(clock, origin) for _, db in sources for clock, origin in db.execute(query)}


def voided(db: apsw.Connection) -> set[Txid]:
    """Return the transactions that this node skipped; none for a journal kept by another program than a node."""
    try:
        return set(map(parse_txid, skipped(db.execute)))
    except apsw.SQLError:  # no such table
        return set()


class _Rebuild:
    """The database that is being built, and the counts of its input.

    Why so large: Five attributes are counts for the report; the others are the state of the new database.
    """

    def __init__(
        self, db: apsw.Connection, sources: Sequence[Source], beginning: Beginning, until: Moment | None
    ) -> None:
        self.db, self.applier = db, Applier(db)
        self._sources, self._until = sources, until
        self.adopted = _adopted(sources)
        self.void = {txid for _, source in sources for txid in voided(source)}
        self.heads = dict(beginning.heads)
        self.applied, self.clock, self.digest = beginning.applied, beginning.latest, ""
        self.seen = {txid for txid in self.adopted if beginning.has_seen(txid)}
        # The schema change that was committed and is not yet in force, if any.
        self.waiting: SourcedEntry | None = None
        if beginning.waiting is not None and beginning.source is not None:
            self.waiting = SourcedEntry(beginning.waiting, beginning.source[0])
        self.entries = self.repeats = self.changes = self.statements = self.later = 0

    def apply(self, sourced: SourcedEntry) -> None:
        entry = sourced.entry
        _, head = self.heads.get(entry.leader, (0, GENESIS))
        if entry.prev != head:
            raise ChainBrokenError(entry.leader, entry.tick, head, entry.prev)
        self.heads[entry.leader] = entry.tick, entry.hash
        if self._until is not None and not self._until.has(entry):
            self.later += 1
            return
        self.applied[entry.leader] = entry.tick
        self.clock = max(self.clock, entry.txid.clock)
        self.entries += 1
        if entry.txid in self.adopted:
            if entry.txid in self.seen:
                self.repeats += 1
                return
            self.seen.add(entry.txid)
        waiting = self.waiting
        if waiting is not None and entry.transaction.schema > waiting.entry.transaction.schema:
            self._activate(waiting)  # an entry on the new schema has seen every entry on the old one
        if entry.txid in self.void:
            pass  # the entry fitted the tables of no node, and an operator had all members skip its changes
        elif entry.transaction.kind == ROWS:
            self._rows(sourced)
        elif entry.transaction.kind == SCHEMA:
            self._schema(sourced)

    def _rows(self, sourced: SourcedEntry) -> None:
        for change in decode_changes(sourced.entry.transaction.changes):
            try:
                self.applier.apply(change)
            except RowMismatchError as error:
                table = find_table(self.db, change.table)
                key = print_key(change, table.primary if table is not None else ())
                raise self._mismatch(sourced, change.table, key, str(error)) from error
            self.changes += 1

    def _schema(self, sourced: SourcedEntry) -> None:
        steps = decode_steps(sourced.entry.transaction.changes)
        self.statements += len(steps)
        if sourced.entry.transaction.activates:
            if self.waiting is not None:
                why = "it changes the schema before the last schema change is in force"
                raise self._mismatch(sourced, None, None, why)
            self.waiting = sourced
            return
        failure = self._run(sourced, steps)
        if failure:
            why = f"SQLite refuses the schema change {'; '.join(step.sql for step in steps)!r}: {failure}"
            raise self._mismatch(sourced, None, None, why)

    def _activate(self, sourced: SourcedEntry) -> None:
        """Activate a schema change; a change that the data forbids has no effect, as on the nodes."""
        self.waiting = None
        self._run(sourced, decode_steps(sourced.entry.transaction.changes))

    def _run(self, sourced: SourcedEntry, steps: Sequence[SchemaStep]) -> str:
        switch(self.db, on=True)
        try:
            if any(step.result_digest for step in steps):  # such a statement may query a full-text index
                rebuild_indexes(self.db)
            return run(self.db, steps)
        except apsw.Error as error:
            why = f"SQLite refuses the schema change {'; '.join(step.sql for step in steps)!r}: {error}"
            raise self._mismatch(sourced, None, None, why) from error
        finally:
            switch(self.db, on=False)
            self.applier.forget()

    def _mismatch(self, sourced: SourcedEntry, table: str | None, key: str | None, why: str) -> ReplayMismatchError:
        return ReplayMismatchError(_owner(self._sources, sourced.path), sourced.place, table, key, why)

    def report(self, target: str) -> ReplayReport:
        return ReplayReport(
            target,
            self.digest,
            self.entries,
            self.repeats,
            self.changes,
            self.statements,
            dict(sorted(self.applied.items())),
            self.later,
            self.clock,
        )

    def end(self) -> None:
        """Activate a schema change that is due after the last entry, and rebuild the indexes.

        Raises:
            MomentError: the moment is before the first commit.
        """
        if self.later and not self.applied:
            raise MomentError(f"{self._until.text if self._until else ''} is before the first commit; {FORMS}")
        if self.waiting is not None and is_in_force(self._sources, self._until, self.waiting.entry):
            self._activate(self.waiting)
        rebuild_indexes(self.db)


def digest(source: apsw.Connection | str | os.PathLike[str]) -> str:
    """Return a digest of the user's part of a database: the definitions and rows, independent of their pages.

    The digest of a node's file equals that of any replay of its journal. The tables and indexes of the node and of
    SQLite are left out; of any other object named ``bedrockish_…``, which no client can make, the definition counts.
    Integers, reals, texts and blobs differ even if they print alike.

    Args:
        source: a path, or a connection, which is read in one transaction.

    Raises:
        JournalFileError: the file cannot be read as a database.
    """
    if not isinstance(source, apsw.Connection):
        db = open_database(source)
        try:
            return digest(db)
        finally:
            db.close(True)
    begun = not source.in_transaction
    if begun:
        source.execute("BEGIN")
    try:
        return _digest(source)
    finally:
        if begun:
            source.execute("COMMIT")


def _digest(db: apsw.Connection) -> str:
    total = sha256()
    schema, shadows = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name", shadow_tables(db)
    for kind, name, table, sql in db.execute(schema):
        if not (is_own(kind, name, table) or table in shadows):
            total.update(cbor2.dumps([kind, name, table, sql]))
    for table in user_tables(db):
        total.update(cbor2.dumps(["rows of", table.name]))
        columns = [quote(column) for column in table.columns]
        order = ", ".join(table.key_columns) or ", ".join(columns)
        if table.rowid is not None:
            columns.insert(0, order)
        for row in select(db, columns, f"FROM {quote(table.name)} ORDER BY {order}"):
            total.update(cbor2.dumps(row))
    return total.hexdigest()

"""Durable snapshots of a node's file, in the program's own process.

One connection holds a durable snapshot. When the page reports a newer durable batch, a second connection takes the
newest snapshot, whose row ``moment`` names its batch. If that batch is durable, the connections exchange their roles;
otherwise the second snapshot is kept until it is durable. So no read waits for a disk, and no read returns a row that a
power failure could undo.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from sys import getsizeof
from typing import Any

import apsw

from bedrockish.api.requests import STALE, Token, check_cluster
from bedrockish.common.forks import call_after_fork
from bedrockish.common.pauses import monotonic
from bedrockish.engine.statements.compiled import EMPTY, READ, Compiled
from bedrockish.engine.statements.guard import Guard
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.errors import BedrockishError, ResultLostError, UnavailableError
from bedrockish.local import connections
from bedrockish.local.page import READING, SILENT_NS, Published, PublishedFacts, now_ns
from bedrockish.sqltext.session_settings import LIKE, NONE, split_settings
from bedrockish_journal.model.membership import ADMIN, read_membership
from bedrockish_journal.model.vector import covers

TEXTS_MAX, TEXTS_BYTES = 2_000, 4 << 20  # the most compiled texts in the cache, and their approximate bytes
AGAIN_S = 0.1  # seconds between two attempts to open the file
DURABLE_S, PAUSE_S = 0.1, 0.0002  # how long a read waits until its snapshot is durable; pause between two polls
PINNED_S = 60.0  # seconds without a read after which the snapshot of a ``snapshot`` block is released
MEASURE_EVERY, LONG_S = 16, 0.0003  # one of this many runs is timed; a text that takes more seconds is long
# The rows from which the size of a row is estimated, and the most rows and the approximate bytes of a part of a result.
FIRST, PART_ROWS, PART_BYTES = 16, 1_000, 1 << 20
STEPS = 4_000  # SQLite's virtual machine instructions between two checks of the deadline
_WITH_LIKE = "SELECT 1 FROM main.sqlite_schema WHERE type IN ('table', 'index') AND instr(lower(sql), 'like') LIMIT 1"
_MOMENT = f"SELECT value FROM main.bedrockish_meta WHERE key = '{moment_row.KEY}'"

Row = tuple[Any, ...]


def next_rows(cursor: Iterator[Row]) -> tuple[list[Row], bool]:
    """Return the next rows of a running statement, and whether there may be more."""
    rows = list(islice(cursor, FIRST))
    if len(rows) < FIRST:
        return rows, False
    size = sum(map(getsizeof, rows[0] + rows[-1])) // 2 + 1  # bytes of a row
    count = min(PART_ROWS, PART_BYTES // size) - FIRST
    if count <= 0:
        return rows, True
    more = list(islice(cursor, count))
    return rows + more, len(more) == count


class ReadConnection:
    """One read-only connection, and the statements that were compiled on it."""

    def __init__(self, db: apsw.Connection, facts: PublishedFacts, late: Callable[[], bool]) -> None:
        self.db, self.facts = db, facts
        self.cursor = db.cursor()
        self.execute = self.cursor.execute
        self.moment: FileMoment | None = None  # the moment of the held snapshot; None if no snapshot is held
        self._guard = Guard(db)
        self._texts: dict[str, Compiled | None] = {}
        self._limited: dict[str, Compiled | None] = {}  # statements compiled for users who may not see secrets
        self._weight = 0  # approximate bytes of both
        self.long_texts = set[str]()  # statements that took longer than ``LONG_S`` when their time was last measured
        self._fetched = 0
        self._schema = self._members = -1
        self._access = Access()
        self.interrupt_if(late)

    def interrupt_if(self, late: Callable[[], bool]) -> None:
        """Interrupt statements of the connection as soon as a function returns true."""
        self.db.set_progress_handler(late, STEPS)

    def take_snapshot(self) -> FileMoment | None:
        """Take a snapshot of the file as it is now; return its moment; None if the file has no row ``moment``."""
        if self.db.in_transaction:
            self.execute("ROLLBACK")
        self.moment = None
        self.execute("BEGIN")
        return self.read_moment()

    def read_moment(self) -> FileMoment | None:
        """Read and return the moment of the snapshot that was just taken."""
        # Fetchall ends the statement: SQLite cannot change a collation while one is open.
        rows = self.execute(_MOMENT).fetchall()
        self.moment = moment_row.read(str(rows[0][0])) if rows else None
        if self.moment is not None and self.moment.schema != self._schema:
            self._schema = self.moment.schema
            self.forget_texts()
        return self.moment

    def known(self, sql: str) -> Compiled | None:
        """Return a text's statement if it was compiled before and can run without further preparation; else None."""
        piece = self._texts.get(sql)
        return None if piece is None or piece.whole_schema or piece.settings else piece

    def fetch(self, sql: str, params: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], bool]:
        """Run a statement; return its first rows, and whether there may be more. Time one of ``MEASURE_EVERY`` runs."""
        self._fetched += 1
        if self._fetched % MEASURE_EVERY:
            return next_rows(self.execute(sql, params))
        began = monotonic()
        found = next_rows(self.execute(sql, params))
        (self.long_texts.add if monotonic() - began > LONG_S else self.long_texts.discard)(sql)
        return found

    def forget_texts(self) -> None:
        """Drop the compiled statements, because functions, attached files or the schema have changed."""
        self._texts.clear()
        self._limited.clear()
        self._weight = 0
        self.long_texts.clear()

    def end(self) -> None:
        """Release the snapshot."""
        self.moment = None
        if self.db.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self.moment = None
        connections.close(self.db)

    def piece(self, sql: str, *, is_limited: bool) -> Compiled | None:
        """Return a text's only statement, compiled; None if the text has several, or if it does not only read."""
        texts = self._limited if is_limited else self._texts
        if sql in texts:
            return texts[sql]
        settings, at = split_settings(sql)
        found = self._guard.compile(sql[at:] if at else sql, is_limited=is_limited)
        found.settings = settings & {LIKE} if found.compares else NONE
        is_more = found.kind != READ or found.setting or (found.rest and self._guard.compile(found.rest).kind != EMPTY)
        piece = None if is_more or (found.settings and self._has_like()) else found
        weight = getsizeof(sql) + (piece.memory_bytes if piece is not None else 0)
        if len(texts) >= TEXTS_MAX or self._weight + weight > TEXTS_BYTES:
            self.forget_texts()
        self._weight += weight
        texts[sql] = piece
        return piece

    def permitted(self, sql: str, user: str) -> Compiled | None:
        """Check the rights of a user as of the snapshot, and return the result of ``piece``.

        Raises:
            ForbiddenError: the user lacks the right.
        """
        assert self.moment is not None
        if self._members != self.moment.members:
            membership = read_membership(system.get_meta(self.db, "membership"))
            self._access.learn(membership.users, ())
            self._members = self.moment.members
        rights = self._access.of(user)
        piece = self.piece(sql, is_limited=rights is not None and rights.role < ADMIN)
        if piece is not None and rights is not None:
            rights.check(piece, self._views())
        return piece

    def _has_like(self) -> bool:
        """Return whether the schema may use LIKE; then only the node can tell whether a setting for LIKE matters."""
        return bool(self.db.execute(_WITH_LIKE).fetchall())

    def _views(self) -> list[str]:
        return [row[0].lower() for row in self.db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'view'")]


Origin = tuple[str, str]  # the path of a file and the id of its cluster; a restored file belongs to another cluster
_commits: dict[Origin, Token] = {}  # the last commits of this process's sessions
_NONE = Token()
_noting = threading.Lock()  # held while ``_commits`` changes


def note_commit(origin: Origin, place: tuple[str, int], clock: int) -> None:
    """Remember a commit of this process; ``clock`` is that of the token after the commit.

    A program with several connections to a SQLite file sees the commits of each one on all others. Without this record,
    a connection could still show an older snapshot while the newest one is not durable. Without the clock, no node
    could tell whether it has all commits of a leader that has lost its file.
    """
    leader, tick = place
    if tick > _commits.get(origin, _NONE).vector.get(leader, 0):
        with _noting:
            known = _commits.get(origin, _NONE)
            if tick > known.vector.get(leader, 0):
                _commits[origin] = Token({**known.vector, leader: tick}, max(known.clock, clock))


def _after_fork() -> None:
    global _noting
    _noting = threading.Lock()  # another thread of the parent may have held the old one


call_after_fork(_after_fork)


class FileConnections:
    """A node's page, and the two connections of a session to the node's file."""

    def __init__(self, published: Published, readers: list[ReadConnection]) -> None:
        self.published, self.readers = published, readers

    def is_served(self) -> bool:
        """Return whether the node serves the file of the connections now."""
        try:
            facts, of = self.published.facts(), self.readers[0].facts
        except BedrockishError:
            return False
        is_alive = facts.mode <= READING and now_ns() - facts.heartbeat <= SILENT_NS
        return is_alive and (facts.generation, facts.process_start) == (of.generation, of.process_start)

    def close(self) -> None:
        """Close the connections and the page; ignore errors of SQLite."""
        for reader in self.readers:
            with suppress(apsw.Error):
                reader.close()
        self.published.close()


class SnapshotBlock:
    """A ``snapshot`` block, which holds the snapshot as long as the block's frame refers to this object."""


class FileSnapshots:
    """The two connections of a session to a node's file, and the snapshots that they hold.

    The caller of each method holds the session's lock.

    Args:
        database: the absolute path of the node's file.
        prepare: registers the program's functions on a new connection, and attaches the session's files to it.
        is_late: returns whether to interrupt the running statement.

    Attributes:
        published: the node's page; None before the file was opened.
        readers: the first holds the snapshot for reads, the second the next snapshot; empty while the file is closed.
        cluster_id: returns the id of the session's cluster; empty while the session is bound to none.
        origin: the file and its cluster, from the first opening on.
        compared: the commits of this process with which ``newest`` last compared a snapshot (``commits``).
        pins: the ``snapshot`` blocks that the program is in. They are weak references: if the handler of a signal
            raises while a block begins or ends, its pin is dropped with the block.
        is_read: whether there was a read since the last ``release_idle``.
        is_log_ending: whether to release the snapshot after each read, because it keeps the log from a restart.
        is_closed: whether the session is closed.
    """

    def __init__(self, database: str, prepare: Callable[[apsw.Connection], None], is_late: Callable[[], bool]) -> None:
        self._database, self._prepare, self.is_late = database, prepare, is_late
        self.published: Published | None = None
        self.readers: list[ReadConnection] = []
        self.cluster_id: Callable[[], str] = str  # returns an empty text
        self.origin: Origin = database, ""
        self.compared = _NONE
        self.pins = set[weakref.ref[SnapshotBlock]]()  # a WeakSet takes three times as long to say whether it is empty
        self.is_read = self.is_log_ending = self.is_closed = False
        self._is_lost = False  # whether the snapshot of a ``snapshot`` block was released
        self._pinned_at = self._try_at = 0.0

    # -- the file --------------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Open the file if its node serves it; return whether it is open."""
        now = monotonic()
        if now < self._try_at:
            return False
        self._try_at = now + AGAIN_S
        made: list[ReadConnection] = []
        published: Published | None = None
        try:
            published = Published(self._database)
            facts = published.facts()
            for _ in range(2):
                made.append(self._connect(published, facts))
            made[0].read_moment()
            made[1].end()
            self._check_cluster(made[0].db)
        except (BedrockishError, apsw.Error) as error:
            for one in made:
                one.close()
            if published is not None:
                published.close()
            if self.published is not None:
                return False
            if isinstance(error, BedrockishError):  # the first attempt: the caller of ``open`` gets the reason
                raise
            raise UnavailableError(f"{self._database} cannot be read: {error}; connect to a URL") from error
        if self.published is not None:
            self.published.close()
        self.published, self.readers = published, made
        self._try_at = 0.0
        return True

    def take_over(self, released: FileConnections) -> bool:
        """Use the connections of a closed session; return False if the node does not serve their file now.

        This session must have no functions, no attached files and no cluster yet.
        """
        try:
            facts = released.published.facts()
            released.published.check(facts)
            if facts.has_ended or not released.is_served():
                return False
            for reader in released.readers:
                reader.interrupt_if(self.is_late)
            released.readers[0].take_snapshot()
            self._check_cluster(released.readers[0].db)
        except (BedrockishError, apsw.Error):
            return False
        self.published, self.readers = released.published, released.readers
        return True

    def release_connections(self) -> FileConnections | None:
        """Give up the connections, and return them, without snapshots, for another session; None if they are stale."""
        published, readers = self.published, self.readers
        if published is None or not readers:
            return None
        released = FileConnections(published, readers)
        try:
            self.end()
        except apsw.Error:
            return None
        if not released.is_served():
            return None
        self.published, self.readers = None, []
        return released

    def _connect(self, published: Published, facts: PublishedFacts) -> ReadConnection:
        made = ReadConnection(connections.connect(published, facts), facts, self.is_late)
        try:
            self._prepare(made.db)
        except BaseException:
            made.close()
            raise
        return made

    def _check_cluster(self, db: apsw.Connection) -> None:
        """Check that the file belongs to the session's cluster; a restored file belongs to a new cluster."""
        mine, found = self.cluster_id(), read_membership(system.get_meta(db, "membership")).cluster_id
        if mine and found:
            check_cluster(f"the file {self._database}", found, mine)
        self.origin = self._database, found

    def bind_to_cluster(self, cluster_id: Callable[[], str]) -> None:
        """Bind the session to a cluster, now and whenever the file is opened again.

        Raises:
            ForeignClusterError: the file belongs to another cluster.
        """
        self.cluster_id = cluster_id
        if self.readers:
            self._check_cluster(self.readers[0].db)

    def facts(self) -> PublishedFacts | None:
        """Return the facts that the node publishes; None while no node serves the file."""
        try:
            if self.readers and self.published is not None and not self.has_opened(self.published.facts()):
                self._close_readers()
            if self.is_closed or (not self.readers and not self._open()) or self.published is None:
                return None
            return self.published.facts()
        except BedrockishError:
            return None

    def has_opened(self, facts: PublishedFacts) -> bool:
        """Return whether the connections were opened under the generation of ``facts``."""
        of = self.readers[0].facts
        return (facts.generation, facts.process_start) == (of.generation, of.process_start)

    def _close_readers(self) -> None:
        """Close the connections, because the node is gone, or serves another file."""
        readers, self.readers = self.readers, []
        for reader in readers:
            reader.close()
        self._is_lost = bool(self.pins)
        self._try_at = 0.0

    def close(self) -> None:
        """Close the connections and the page."""
        self._close_readers()
        if self.published is not None:
            self.published.close()
        self.published = None

    def abandon(self) -> None:
        """Leave the connections to the parent of a fork without closing them; the next read opens the file again."""
        connections.abandon(self.readers)
        self.readers = []
        self._is_lost = bool(self.pins)
        self._try_at = 0.0

    # -- snapshots -------------------------------------------------------------------------------------------------

    def newest(self, token: Token, level: str, wait_s: float = DURABLE_S) -> ReadConnection | None:
        """Return a connection whose snapshot is durable and new enough for the session, else None.

        Args:
            wait_s: how long to wait until a snapshot is durable, if no older one is held.

        Raises:
            ResultLostError: the snapshot of a ``snapshot`` block was released.
            BedrockishError: see ``_open``.
        """
        if self._is_lost and self.pins:
            raise ResultLostError("the snapshot of this block was released; leave the block and begin another block")
        if self.is_closed or (not self.readers and not self._open()):
            return None
        published = self.published
        assert published is not None
        facts = published.facts()
        if facts.mode > READING or now_ns() - facts.heartbeat > SILENT_NS or not self.has_opened(facts):
            self._close_readers()  # the node has stopped, repairs its tables, or has exchanged its file
            if self.pins:
                raise ResultLostError("the node has stopped or exchanged its file, and the snapshot with it; try again")
            if facts.why_not or not self._open():
                return None
            return self.newest(token, level, wait_s)
        self.is_read = True
        if self.pins:
            return self._pinned()
        self.is_log_ending = bool(facts.is_log_ending)
        first = self.readers[0]
        if first.moment is None or first.moment.batch < facts.durable:
            first = self._move_on(facts)
        moment = first.moment
        if moment is None or (moment.batch > facts.durable and not _becomes_durable(published, moment.batch, wait_s)):
            return None
        self.compared = commits = self.commits
        if level != STALE and not (may_see(moment, token) and may_see(moment, commits)):
            return None
        return first

    @property
    def commits(self) -> Token:
        """The commits that sessions of this process have made by the file; a new object after each commit."""
        return _commits.get(self.origin, _NONE)

    def _pinned(self) -> ReadConnection:
        first = self.readers[0]
        self._pinned_at = monotonic()
        if first.moment is None:
            self._is_lost = True
            raise ResultLostError(f"the snapshot was not read for {PINNED_S:g} s and was released; begin another block")
        return first

    def _move_on(self, facts: PublishedFacts) -> ReadConnection:
        """Take the newest snapshot; return its connection if it is durable, or if no older snapshot is held.

        Otherwise return the connection of the older snapshot.
        """
        published = self.published
        assert published is not None
        first, second = self.readers
        if second.moment is None or second.moment.batch < facts.durable:
            second.take_snapshot()
        if second.moment is None:
            return first
        if second.moment.batch <= facts.durable or second.moment.batch <= published.facts().durable:
            first.end()
            self.readers.reverse()
            return second
        if first.moment is None:
            first, second = second, first
            self.readers.reverse()
        return first

    def another(self) -> ReadConnection | None:
        """Open a further connection to the file, without a snapshot, and return it; None if that fails."""
        published = self.published
        assert published is not None
        try:
            facts = published.facts()
            if not self.has_opened(facts):  # the node has exchanged its file
                return None
            made = self._connect(published, facts)
            made.end()
        except (BedrockishError, apsw.Error):
            return None
        return made

    def pin(self, pin: SnapshotBlock, token: Token, level: str) -> bool:
        """Hold the newest snapshot, or that of an open block, until ``unpin``; return False if none can be held.

        The errors are those of ``newest``.
        """
        if not self.pins and self.newest(token, level) is None:
            return False
        self.pins.add(weakref.ref(pin, self.pins.discard))
        self._pinned_at = monotonic()
        self._is_lost = False
        return True

    def unpin(self, pin: SnapshotBlock) -> None:
        """Let later reads use newer snapshots, after the last block has ended."""
        self.pins.discard(weakref.ref(pin))
        self._is_lost = self._is_lost and bool(self.pins)

    def end(self) -> None:
        """Release the snapshots."""
        for reader in self.readers:
            reader.end()

    def release_idle(self) -> None:
        """Release the snapshots, unless a program has read them since the last call."""
        if not self.readers:
            return
        if self.pins and monotonic() - self._pinned_at < PINNED_S and self._is_served():
            return
        if self.is_read and not self.pins and self._is_served():
            self.is_read = False
            return
        self.end()

    def _is_served(self) -> bool:
        assert self.published is not None
        facts = self.published.facts()
        return facts.mode <= READING and facts.generation == self.readers[0].facts.generation


def _becomes_durable(published: Published, batch: int, wait_s: float) -> bool:
    """Return whether a batch becomes durable in time. Only the first read after a pause may wait."""
    until = monotonic() + wait_s
    while published.facts().durable < batch:
        if monotonic() > until:
            return False
        time.sleep(PAUSE_S)
    return True


def may_see(moment: FileMoment, token: Token) -> bool:
    """Return whether a snapshot has each commit that a session has seen, and no older schema."""
    if not token.vector:
        return True
    if moment.following is not None and token.clock >= moment.following:
        return False
    return covers(moment.vector, token.vector)


def seen_by(moment: FileMoment, token: Token) -> Token:
    """Return the token of a session with ``token`` after a read of the snapshot at ``moment``."""
    clock = max(moment.clock, moment.in_force, token.clock)
    if clock == token.clock and covers(token.vector, moment.vector):
        return token
    vector = dict(moment.vector)
    for leader, tick in token.vector.items():
        if tick > vector.get(leader, 0):  # at the level ``stale``, a session may have seen more than the snapshot has
            vector[leader] = tick
    return Token(vector, clock)

"""Reads of a node's file in the program's own process, at a moment that is durable and that the session may see.

One connection holds a snapshot that is durable. When the page tells of a newer durable batch, a second one takes the
newest snapshot; its row ``moment`` tells which batch that is. If that batch is durable, the two change places, else the
second one is kept until it is. So no read waits for a disk, and none shows a row that a power failure could take back.

A read that fails here, for any reason, returns None: the session sends it to the node, whose answer or error counts.
An idle snapshot is released within a tenth of a second, because it holds up the node's checkpoints.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apsw

from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.api.requests import SESSION, STALE, STRICT, Params, Rows, Token, check_cluster
from bedrockish.engine.sqlite.bind import Binder
from bedrockish.engine.sqlite.errors import translate
from bedrockish.engine.statements.classify import EMPTY, READ, Guard, Piece
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.errors import (
    BedrockishError,
    DeadlineError,
    ForbiddenError,
    ResultLostError,
    SqlError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from bedrockish.local import connections
from bedrockish.local.attached import Attached
from bedrockish.local.page import READING, SILENT_NS, Facts, Published, now_ns
from bedrockish.local.program_functions import End, Give, ProgramError
from bedrockish.sqltext.attach import Order
from bedrockish.sqltext.session_settings import LIKE, NONE, split_settings
from bedrockish_journal.model.membership import ADMIN, read_membership
from bedrockish_journal.model.vector import covers

TEXTS_MAX = 2_000  # compiled texts that are remembered
AGAIN_S = 0.1  # between two attempts to open the file
IDLE_S = 0.1  # a snapshot that is not read for so long is let go
DURABLE_S, PAUSE_S = 0.1, 0.0002  # how long a read waits until its moment is durable, and between two looks
PINNED_S = 60.0  # one that a block holds, and that is not read for so long, is let go as well
_FOREVER = float("inf")
STEPS = 4_000  # SQLite's own steps between two looks at the clock
_WITH_LIKE = "SELECT 1 FROM main.sqlite_schema WHERE type IN ('table', 'index') AND instr(lower(sql), 'like') LIMIT 1"
_MOMENT = f"SELECT value FROM main.bedrockish_meta WHERE key = '{moment_row.KEY}'"


class _Reader:
    """One connection, and the statements that were compiled on it."""

    def __init__(self, db: apsw.Connection, facts: Facts, late: Callable[[], bool]) -> None:
        self.db, self.facts = db, facts
        self.place = facts.device, facts.inode
        self.execute = db.cursor().execute
        self.moment: FileMoment | None = None  # of the snapshot that is held
        self._guard = Guard(db)
        self._texts: dict[str, Piece | None] = {}
        self._limited: dict[str, Piece | None] = {}  # of users who may not see what is secret
        self._schema = -1
        db.set_progress_handler(late, STEPS)

    def begin(self) -> FileMoment | None:
        """Take a snapshot of the file as it is now; return its moment, None if the file does not tell it."""
        if self.db.in_transaction:
            self.execute("ROLLBACK")
        self.moment = None
        self.execute("BEGIN")
        return self.look()

    def look(self) -> FileMoment | None:
        """Return the moment of the snapshot that was just taken."""
        rows = self.execute(_MOMENT).fetchall()  # to the end: SQLite changes no collation while a statement runs
        self.moment = moment_row.read(str(rows[0][0])) if rows else None
        if self.moment is not None and self.moment.schema != self._schema:
            self._schema = self.moment.schema
            self._texts.clear()
            self._limited.clear()
        return self.moment

    def known(self, sql: str) -> Piece | None:
        """Return a text's statement if it was compiled before and may run at once."""
        piece = self._texts.get(sql)
        return None if piece is None or piece.whole_schema or piece.settings else piece

    def forget_texts(self) -> None:
        """Compile again, with other functions."""
        self._texts.clear()
        self._limited.clear()

    def end(self) -> None:
        """Let go of the snapshot."""
        self.moment = None
        if self.db.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        connections.close(self.db, self.place)

    def piece(self, sql: str, *, is_limited: bool) -> Piece | None:
        """Return a text's only statement, compiled; None if it is not one that only reads."""
        texts = self._limited if is_limited else self._texts
        if sql in texts:
            return texts[sql]
        settings, at = split_settings(sql)
        found = self._guard.compile(sql[at:] if at else sql, is_limited=is_limited)
        found.settings = settings & {LIKE} if found.compares else NONE
        is_more = found.kind != READ or found.setting or (found.rest and self._guard.compile(found.rest).kind != EMPTY)
        piece = None if is_more or (found.settings and self._has_like()) else found
        if len(texts) >= TEXTS_MAX:
            texts.clear()
        texts[sql] = piece
        return piece

    def _has_like(self) -> bool:
        """Return whether a definition may use LIKE; the node tells whether it matters."""
        return bool(self.db.execute(_WITH_LIKE).fetchall())

    @property
    def views(self) -> list[str]:
        """The folded names of the views."""
        return [row[0].lower() for row in self.db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'view'")]


_Read = tuple[tuple[str, ...], list[tuple[Any, ...]]]


class _Known(NamedTuple):
    """The last read: its snapshot, the page's bytes, how long these count as those of a node that runs, its session."""

    reader: _Reader
    moment: FileMoment
    said: bytes
    until: int
    level: str
    token: Token


class LocalReads:
    """Reads of one session. Threads may share it, and take turns.

    Why so large: Each thread's read and the thread that releases snapshots change the same pins under one lock.

    Args:
        database: the node's file, by its absolute path.
        user: see the attributes.

    Attributes:
        published: the node's page; None before the first ``open``.
        user: the user whose rights count; empty: the program may do everything.
        given: registrations of the program's functions.
        attached: the files that the session has attached.
        cluster_id: returns the id of the cluster that the session belongs to; empty while it belongs to none.
        ending: ends the statement that the program runs here, for its progress handler; None: it runs none.
        on_given: called with each further one.
        on_tick: called twice in ``IDLE_S``, by the thread that releases snapshots.
    """

    def __init__(self, database: str, user: str = "") -> None:
        self.database, self.user = database, user
        self.lock = threading.RLock()
        self.on_tick: Callable[[], None] = lambda: None
        self.given: list[Give] = []
        self.attached = Attached()
        self.cluster_id: Callable[[], str] = str  # the empty text
        self.on_given: Callable[[Give], None] = lambda _: None
        self.published: Published | None = None
        self._readers: list[_Reader] = []  # the first holds what is read; the second what will be read next
        self._try_at = 0.0
        self._process = os.getpid()
        self._used = False  # since the keeper has looked
        self._pins = 0
        self._pinned_at = 0.0
        self._is_log_ending = False  # held between two reads, a snapshot would keep the log from starting over
        self._is_lost = False  # a snapshot that a block holds was let go
        self._until = self._budget_s = _FOREVER
        self._told: tuple[FileMoment | None, Token, Token] = (None, Token(), Token())  # the last answer of ``seen_by``
        self._known: _Known | None = None
        self._access = Access()
        self._members = -1
        self._is_closed = self._is_running = False
        self.ending: End | None = None

    def open(self) -> None:
        """Open the file.

        Raises:
            UnavailableError: no node of this machine serves it.
            UsageError: another library of this process has it open.
        """
        with self.lock:
            self._reader(Token(), STALE)

    def give(self, given: Give) -> None:
        """Register something of the program on all connections, now and later.

        Raises:
            SqlError: SQLite does not take it.
        """
        with self.lock:
            self._known = None
            for reader in self._readers:
                try:
                    given(reader.db)
                except apsw.Error as error:
                    raise SqlError(f"Error creating function: SQLite does not take it ({error})") from error
                reader.forget_texts()
            self.given.append(given)
        self.on_given(given)

    def attach(self, order: Order) -> None:
        """Attach a file to read, or detach it, on all connections of the session.

        Raises:
            UsageError: a block holds a snapshot.
            SqlError: the name is taken or unknown, or the file cannot be read.
        """
        with self.lock:
            if self._pins:
                raise UsageError("files are attached and detached outside of a snapshot; leave its block first")
            self.attached.note(order)
            try:
                for reader in self._readers:
                    reader.end()
                    self.attached.bring(reader.db)
                    reader.forget_texts()
            except apsw.Error as error:
                self.attached.forget(order.name)
                raise SqlError(f"unable to open database: {order.path}: {error}") from error

    def read_again(self, sql: str, params: tuple[Any, ...], level: str, token: Token) -> _Read | None:
        """Run a statement with other parameters on the snapshot of the last read, if nothing has changed since then.

        Args:
            sql: its text.
            params: each is stored as it is.
            level: of the read.
            token: of the session.

        Returns:
            the names of the columns, and the rows; None: ``read`` finds out.

        Raises:
            DeadlineError: the program has interrupted it.
        """
        with self.lock:
            known = self._known
            if known is None or known.token is not token or known.level != level:
                return None
            reader, published = known.reader, self.published
            if (
                reader.moment is not known.moment
                or published is None
                or not published.says(known.said)
                or now_ns() > known.until
                or self._process != os.getpid()
            ):
                self._known = None
                return None
            piece = reader.known(sql)
            if piece is None or len(params) != len(piece.names):
                return None
            self._used = self._is_running = True
            try:
                return piece.columns, reader.execute(piece.sql, params).fetchall()
            except apsw.InterruptError:
                raise interrupted() from None
            except (apsw.Error, TypeError, ValueError, OverflowError, BedrockishError):
                return None  # it fails there as well, or the node answers
            finally:
                self._is_running = False

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(
        self, statements: Sequence[tuple[str, Params]], level: str, token: Token, budget_s: float = _FOREVER
    ) -> tuple[list[Rows], Token] | None:
        """Run statements that only read on one snapshot.

        Returns:
            their results, and the session's token after them; None: the session sends them to the node.

        Raises:
            TimeoutError: they have run for ``budget_s`` and are not done.
            ResultLostError: the snapshot that a block holds was let go.
            ForbiddenError: the user may not.
            DeadlineError: the program has interrupted it.
        """
        if not self._pins and level not in (SESSION, STALE):
            return None
        with self.lock:
            try:
                self._budget_s = budget_s
                reader = self._reader(token, level)
                if reader is None:
                    return None
                if budget_s != _FOREVER:
                    self._until = time.monotonic() + budget_s
                found: list[Rows] = []
                self._is_running, self.ending = True, _nothing
                for sql, params in statements:
                    rows = self._run(reader, sql, params)
                    if rows is None:
                        return None
                    found.append(rows)
            except (ResultLostError, ForbiddenError, ProgramError):
                raise
            except apsw.InterruptError as error:
                if self._is_late():
                    raise TimeoutError from error
                raise interrupted() from None  # by the program: another thread, or its progress handler
            except (BedrockishError, apsw.Error, TypeError, ValueError, OverflowError) as error:
                self._leave_to_node(statements, error)
                return None
            finally:
                self._until, self._is_running, self.ending = _FOREVER, False, None
            moment = reader.moment
            assert moment is not None
            if self._is_log_ending and not self._pins:
                for one in self._readers:
                    one.end()
            if moment is not self._told[0] or token is not self._told[1]:
                self._told = moment, token, seen_by(moment, token)
            if self._told[2] is token and not (self._pins or self.user or self._is_log_ending or self.given):
                published = self.published
                assert published is not None
                if published.says(published.said):
                    until = published.facts().heartbeat + SILENT_NS
                    self._known = _Known(reader, moment, published.said, until, level, token)
            return found, self._told[2]

    def _leave_to_node(self, statements: Sequence[tuple[str, Params]], error: Exception) -> None:
        """Let the node say of a failure what it says by URL; but in a block it would answer of another moment.

        Raises:
            BedrockishError: a block holds a snapshot.
        """
        if not self._pins:
            return
        if isinstance(error, apsw.Error):
            raise translate(error, "; ".join(sql for sql, _ in statements)) from error
        if isinstance(error, BedrockishError):
            raise error
        raise SqlError(f"the statement cannot be run: {error}") from error

    def _run(self, reader: _Reader, sql: str, params: Params) -> Rows | None:
        piece = self._permitted(reader, sql) if self.user else reader.piece(sql, is_limited=False)
        if piece is None:
            return None
        kind = type(params)
        values: Any
        if (kind is tuple or kind is list) and len(params) == len(piece.names):  # type: ignore[arg-type]
            values = params  # APSW stores what the node stores, and refuses all else
        else:
            binder = Binder(params)
            values = binder.take(piece.names)
            binder.finish()
        if piece.whole_schema or piece.settings:  # EXPLAIN does not look at the schema's version
            with in_force(reader.db, piece.settings):
                return Rows(piece.columns, reader.db.execute(piece.sql, values, can_cache=False).fetchall())
        return Rows(piece.columns, reader.execute(piece.sql, values).fetchall())

    def _permitted(self, reader: _Reader, sql: str) -> Piece | None:
        """Return a statement that the user may run, by the rights of the snapshot's members."""
        assert reader.moment is not None
        if self._members != reader.moment.members:
            membership = read_membership(system.get_meta(reader.db, "membership"))
            self._access.learn(membership.users, ())
            self._members = reader.moment.members
        rights = self._access.of(self.user)
        piece = reader.piece(sql, is_limited=rights is not None and rights.role < ADMIN)
        if piece is not None and rights is not None:
            rights.check(piece, reader.views)
        return piece

    def interrupt(self) -> None:
        """Have the read that another thread does end now; it raises ``DeadlineError``."""
        if self._is_running:
            for reader in self._readers:
                reader.db.interrupt()

    def _is_late(self) -> bool:
        return self._until != _FOREVER and time.monotonic() > self._until

    # -- snapshots -------------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self, level: str, token: Callable[[], Token], timeout_s: float) -> Iterator[None]:
        """Let all reads in the block see one moment.

        Raises:
            UnavailableError: no durable moment that the session may see came in time.
            UnsupportedError: the level is strict.
        """
        self.pin(level, token, timeout_s)
        try:
            yield
        finally:
            self.unpin()

    def facts(self) -> Facts | None:
        """Return the page's facts; None while no node serves the file. The caller has ``lock``."""
        if self._process != os.getpid():
            self._abandon()
        try:
            if self._readers and self.published is not None and not self._is_of(self.published.facts()):
                self._leave()
            if self._is_closed or (not self._readers and not self._open()) or self.published is None:
                return None
            return self.published.facts()
        except BedrockishError:
            return None

    def pin(self, level: str, token: Callable[[], Token], timeout_s: float) -> None:
        """Hold a snapshot until ``unpin``. Raises what ``snapshot`` says."""
        if level == STRICT:
            raise UnsupportedError(
                "a strict read is certified by what it has read, which a snapshot does not know when it is taken; "
                'pass snapshot(read="session"), or read in a transaction at the level strict'
            )
        until = time.monotonic() + timeout_s
        while True:
            with self.lock:
                if self._pins or self._reader(token(), level) is not None:
                    self._pins += 1
                    self._known = None
                    self._pinned_at = time.monotonic()
                    self._is_lost = False
                    return
            if time.monotonic() > until:
                raise UnavailableError(
                    f"{self.database} does not show within {timeout_s:g} s what the session has seen; try again"
                )
            time.sleep(0.001)

    def unpin(self) -> None:
        """Let reads move on."""
        with self.lock:
            self._pins -= 1
            self._is_lost = self._is_lost and self._pins > 0

    def _reader(self, token: Token, level: str) -> _Reader | None:
        """Return a connection whose snapshot is durable and that the session may see; None: no such one exists now."""
        if self._process != os.getpid():
            self._abandon()
        if self._is_lost:
            raise ResultLostError("the snapshot of this block was let go; leave the block and take another one")
        if self._is_closed or (not self._readers and not self._open()):
            return None
        published = self.published
        assert published is not None
        facts = published.facts()
        first = self._readers[0]
        if facts.mode > READING or now_ns() - facts.heartbeat > SILENT_NS or not self._is_of(facts):
            self._leave()  # the node has stopped, repairs its tables, or has another file
            if self._pins:
                raise ResultLostError("the node has stopped or exchanged its file, and the snapshot with it; try again")
            if facts.why_not or not self._open():
                return None
            return self._reader(token, level)
        self._used = True
        if self._pins:
            self._pinned_at = time.monotonic()
            if first.moment is None:
                self._is_lost = True
                raise ResultLostError(f"the snapshot was not read for {PINNED_S:g} s and was let go; take another one")
            return first
        self._is_log_ending = bool(facts.is_log_ending)
        moment = first.moment
        if moment is None or moment.batch < facts.durable:
            first = self._move_on(facts)
            moment = first.moment
        if moment is None or (moment.batch > facts.durable and not self._becomes_durable(published, moment.batch)):
            return None
        if level != STALE and not may_see(moment, token):
            return None
        return first

    def _is_of(self, facts: Facts) -> bool:
        """Whether the connections are to the file that a page names."""
        of = self._readers[0].facts
        return (facts.generation, facts.since) == (of.generation, of.since)

    def _becomes_durable(self, published: Published, batch: int) -> bool:
        """Whether a batch is durable within a moment: only a first read after a pause may have to wait for that."""
        until = time.monotonic() + min(DURABLE_S, self._budget_s)
        while published.facts().durable < batch:
            if time.monotonic() > until:
                return False
            time.sleep(PAUSE_S)
        return True

    def _move_on(self, facts: Facts) -> _Reader:
        """Take a newer snapshot, if one is durable; else go on with the old one, if there is one."""
        published = self.published
        assert published is not None
        first, second = self._readers
        if second.moment is None or second.moment.batch < facts.durable:
            second.begin()
        if second.moment is None:
            return first
        if second.moment.batch <= facts.durable or second.moment.batch <= published.facts().durable:
            first.end()
            self._readers.reverse()
            return second
        if first.moment is None:
            first, second = second, first
            self._readers.reverse()
        return first

    def _open(self) -> bool:
        """Open the file if its node serves it; whether it is open."""
        now = time.monotonic()
        if now < self._try_at:
            return False
        self._try_at = now + AGAIN_S
        made: list[_Reader] = []
        try:
            published = Published(self.database)
            facts = published.facts()
            for _ in range(2):
                made.append(_Reader(connections.connect(published, facts), facts, self._is_late))
            for one in made:
                for given in self.given:
                    given(one.db)
                self.attached.bring(one.db)
            made[0].look()
            made[1].end()
            self._check_cluster(made[0].db)
        except (BedrockishError, apsw.Error):
            for one in made:
                one.close()
            if self.published is None:  # the first attempt: whoever opens it is told why it cannot be
                raise
            return False
        if self.published is not None:
            self.published.close()
        self.published, self._readers = published, made
        self._try_at = 0.0
        _KEEPER.add(self)
        return True

    def _check_cluster(self, db: apsw.Connection) -> None:
        """Make sure that the file is of the session's cluster; one that was restored is of another.

        Raises:
            ForeignClusterError: it is not.
        """
        mine, found = self.cluster_id(), read_membership(system.get_meta(db, "membership")).cluster_id
        if mine and found:
            check_cluster(f"the file {self.database}", found, mine)

    def belong(self, cluster_id: Callable[[], str]) -> None:
        """Let the file be that of a session, whose cluster is known from now on.

        Raises:
            ForeignClusterError: it is another cluster's.
        """
        with self.lock:
            self.cluster_id = cluster_id
            if self._readers:
                self._check_cluster(self._readers[0].db)

    def _leave(self) -> None:
        """Close the connections: the file is not the node's any more, or the node is gone."""
        self._known = None
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()
        self._is_lost = self._pins > 0
        self._members = -1
        self._try_at = 0.0

    def _abandon(self) -> None:
        """Begin again after a fork: the connections are the parent's."""
        connections.abandon((self._readers, self.published))
        self._readers, self._process = [], os.getpid()
        self.lock = threading.RLock()
        self._is_lost = self._pins > 0
        self._try_at = 0.0

    def release(self) -> bool:
        """Let go of a snapshot that was not read lately; whether one is still held. The keeper calls it."""
        if not self.lock.acquire(blocking=False):
            return True  # it is being read
        try:
            if self._process != os.getpid() or not self._readers:
                return False
            if self._pins and time.monotonic() - self._pinned_at < PINNED_S and self._is_served():
                return True
            if self._used and not self._pins and self._is_served():
                self._used = False
                return True
            for reader in self._readers:
                reader.end()
            return False
        except (apsw.Error, BedrockishError):
            return True
        finally:
            self.lock.release()

    def _is_served(self) -> bool:
        assert self.published is not None
        facts = self.published.facts()
        return facts.mode <= READING and facts.generation == self._readers[0].facts.generation

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        with self.lock:
            self._is_closed = True
            if self._process == os.getpid():
                self._leave()
                if self.published is not None:
                    self.published.close()
            self.published = None


def _nothing() -> None:
    """Do nothing: SQLite ends a read by itself."""


def interrupted() -> DeadlineError:
    """Return the error of a statement that the program has interrupted."""
    return DeadlineError("the program interrupted the call; it did not happen", interrupted=True)


def may_see(moment: FileMoment, token: Token) -> bool:
    """Whether a snapshot has all that a session has seen, and no older schema."""
    if not token.vector:
        return True
    if moment.following is not None and token.clock >= moment.following:
        return False
    return covers(moment.vector, token.vector)


def seen_by(moment: FileMoment, token: Token) -> Token:
    """Return what a session has seen that has read this moment."""
    clock = max(moment.clock, moment.in_force, token.clock)
    if clock == token.clock and covers(token.vector, moment.vector):
        return token
    vector = dict(moment.vector)
    for leader, tick in token.vector.items():
        if tick > vector.get(leader, 0):  # at the level stale a session may have seen more
            vector[leader] = tick
    return Token(vector, clock)


class _Keeper:
    """The thread that releases idle snapshots of all sessions of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[LocalReads] = weakref.WeakSet()
        self._wanted = threading.Event()
        self._process = 0

    def add(self, reads: LocalReads) -> None:
        """Look after a session's snapshots until it is closed or forgotten."""
        with self._lock:
            self._held.add(reads)
            if self._process != os.getpid():  # a fork takes no threads along
                self._process = os.getpid()
                threading.Thread(target=self._run, name="bedrockish-snapshots", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(IDLE_S / 2)
            with self._lock:
                held = list(self._held)
            for one in held:
                one.release()
                one.on_tick()
            del held


_KEEPER = _Keeper()

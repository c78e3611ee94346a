"""Reads of a node's file in the program's own process, on a snapshot that is durable and new enough for the session.

One connection holds a durable snapshot. When the page reports a newer durable batch, a second connection takes the
newest snapshot, whose row ``moment`` names its batch. If that batch is durable, the connections change places;
otherwise the second snapshot is kept until it is durable. So no read waits for a disk, and no read returns a row that a
power failure could undo.

A read that fails here returns None, and the session sends it to the node, whose answer or error counts. An idle
snapshot is released within a tenth of a second, because it blocks the node's checkpoints.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import apsw

from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.api.requests import SESSION, STALE, STRICT, Params, Rows, Token, check_cluster
from bedrockish.common.forks import FORKING, stand_still, watch_forks
from bedrockish.common.keeper import Keeper
from bedrockish.engine.sqlite.bind import Binder
from bedrockish.engine.sqlite.errors import translate
from bedrockish.engine.statements.classify import EMPTY, READ, Guard, Piece
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.errors import (
    BedrockishError,
    ClientClosedError,
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
IDLE_S = 0.1  # a snapshot that is not read for so long is released
DURABLE_S, PAUSE_S = 0.1, 0.0002  # how long a read waits until its snapshot is durable; pause between two polls
PINNED_S = 60.0  # a snapshot of a ``snapshot`` block that is not read for so long is released as well
_FOREVER = float("inf")
STEPS = 4_000  # SQLite's virtual machine instructions between two checks of the deadline
_WITH_LIKE = "SELECT 1 FROM main.sqlite_schema WHERE type IN ('table', 'index') AND instr(lower(sql), 'like') LIMIT 1"
_MOMENT = f"SELECT value FROM main.bedrockish_meta WHERE key = '{moment_row.KEY}'"


class _Reader:
    """One read-only connection, and the statements that were compiled on it."""

    def __init__(self, db: apsw.Connection, facts: Facts, late: Callable[[], bool]) -> None:
        self.db, self.facts = db, facts
        self.place = facts.device, facts.inode
        self.execute = db.cursor().execute
        self.moment: FileMoment | None = None  # the moment of the held snapshot; None without a snapshot
        self._guard = Guard(db)
        self._texts: dict[str, Piece | None] = {}
        self._limited: dict[str, Piece | None] = {}  # statements compiled for users who may not see secrets
        self._schema = -1
        db.set_progress_handler(late, STEPS)

    def begin(self) -> FileMoment | None:
        """Take a snapshot of the file as it is now; return its moment, None if the file has no row for it."""
        if self.db.in_transaction:
            self.execute("ROLLBACK")
        self.moment = None
        self.execute("BEGIN")
        return self.look()

    def look(self) -> FileMoment | None:
        """Read and return the moment of the snapshot that was just taken."""
        rows = self.execute(_MOMENT).fetchall()  # all rows: SQLite cannot change a collation while a statement is open
        self.moment = moment_row.read(str(rows[0][0])) if rows else None
        if self.moment is not None and self.moment.schema != self._schema:
            self._schema = self.moment.schema
            self._texts.clear()
            self._limited.clear()
        return self.moment

    def known(self, sql: str) -> Piece | None:
        """Return a text's statement if it was compiled before and can run without further preparation; else None."""
        piece = self._texts.get(sql)
        return None if piece is None or piece.whole_schema or piece.settings else piece

    def forget_texts(self) -> None:
        """Drop the compiled statements, because functions or attached files have changed."""
        self._texts.clear()
        self._limited.clear()

    def end(self) -> None:
        """Release the snapshot."""
        self.moment = None
        if self.db.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        connections.close(self.db, self.place)

    def piece(self, sql: str, *, is_limited: bool) -> Piece | None:
        """Return a text's only statement, compiled; None if the text has several, or if it does not only read."""
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
        """Return whether a definition may use LIKE; the node then decides whether the setting matters."""
        return bool(self.db.execute(_WITH_LIKE).fetchall())

    @property
    def views(self) -> list[str]:
        """The folded names of the views."""
        return [row[0].lower() for row in self.db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'view'")]


_Read = tuple[tuple[str, ...], list[tuple[Any, ...]]]


class _Known(NamedTuple):
    """The last read: its snapshot, the page's bytes, until when these prove a running node, its level and token."""

    reader: _Reader
    moment: FileMoment
    said: bytes
    until: int
    level: str
    token: Token


class LocalReads:
    """The reads of one session. Threads may share it; a lock admits one read at a time.

    Why so large: Each thread's read and the thread that releases snapshots change the same pins under one lock.

    Args:
        database: the absolute path of the node's file.
        user: see the attributes.

    Attributes:
        published: the node's page; None before the first ``open``.
        user: the user whose rights are checked; empty: the program may read everything.
        given: registrations of the program's functions.
        attached: the files that the session has attached.
        cluster_id: returns the id of the session's cluster; empty while the session is bound to none.
        ending: ends the statement that the program runs here, for its progress handler; None if no statement runs.
        on_given: called with each new registration of a function.
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
        self._readers: list[_Reader] = []  # the first holds the snapshot for reads, the second the next snapshot
        self._try_at = 0.0
        self._used = False  # whether there was a read since the keeper's last ``release``
        self._pins = 0
        self._pinned_at = 0.0
        self._is_log_ending = False  # release the snapshot after each read: it would keep the log from starting over
        self._is_lost = False  # whether the snapshot of a ``snapshot`` block was released
        self._until = self._budget_s = _FOREVER
        self._is_left: Callable[[], bool] = _is_wanted
        self._told: tuple[FileMoment | None, Token, Token] = (None, Token(), Token())  # the last answer of ``seen_by``
        self._known: _Known | None = None
        self._access = Access()
        self._members = -1
        self._is_closed = self._is_running = False
        self.ending: End | None = None
        watch_forks(self)

    def open(self) -> None:
        """Open the file.

        Raises:
            UnavailableError: no node of this machine serves the file.
            UsageError: another SQLite library of this process has the file open.
        """
        with self.lock:
            self._reader(Token(), STALE)

    def give(self, given: Give) -> None:
        """Register a function or collation of the program on all present and future connections.

        Raises:
            SqlError: SQLite refuses the registration.
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
        """Attach a file read-only, or detach it, on all connections of the session.

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
        """Run a known statement on the snapshot of the last read, if page, level and token are unchanged since.

        Args:
            sql: the statement's text.
            params: values that SQLite stores without conversion.
            level: the read level.
            token: the session's token.

        Returns:
            the names of the columns, and the rows; None if the caller must use ``read``.

        Raises:
            DeadlineError: the program has interrupted the read.
        """
        with self.lock:
            if FORKING:
                stand_still()
            known = self._known
            if known is None or known.token is not token or known.level != level:
                return None
            reader, published = known.reader, self.published
            if (
                reader.moment is not known.moment
                or published is None
                or not published.says(known.said)
                or now_ns() > known.until
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
                raise self._interrupted() from None
            except (apsw.Error, TypeError, ValueError, OverflowError, BedrockishError):
                return None  # ``read`` raises the same error, or leaves the statement to the node
            finally:
                self._is_running = False
                if self._is_closed:
                    self._finish()

    def read_at_once(
        self, statements: Sequence[tuple[str, Params]], level: str, token: Token, budget_s: float
    ) -> tuple[list[Rows], Token] | None:
        """Run statements as ``read`` does; also wait at most ``budget_s`` for the read of another thread.

        Raises:
            TimeoutError: see ``read``, or another thread reads.
            BedrockishError: see ``read``.
        """
        lock = self.lock
        if not lock.acquire(timeout=budget_s):
            raise TimeoutError
        try:
            return self.read(statements, level, token, budget_s)
        finally:
            lock.release()

    def read_until(
        self, statements: Sequence[tuple[str, Params]], level: str, token: Token, is_left: Callable[[], bool]
    ) -> tuple[list[Rows], Token] | None:
        """Run statements as ``read`` does; end soon after ``is_left`` returns true, without a result.

        Raises:
            TimeoutError: ``is_left`` has returned true.
            BedrockishError: see ``read``.
        """
        lock = self.lock
        while not lock.acquire(timeout=connections.ASK_S):
            if is_left():
                raise TimeoutError
        self._is_left = is_left
        try:
            return self.read(statements, level, token)
        finally:
            self._is_left = _is_wanted
            lock.release()

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(
        self, statements: Sequence[tuple[str, Params]], level: str, token: Token, budget_s: float = _FOREVER
    ) -> tuple[list[Rows], Token] | None:
        """Run statements that only read on one snapshot.

        Returns:
            the results, and the session's token after them; None if the session must send the statements to the node.

        Raises:
            TimeoutError: the statements have run for ``budget_s`` without ending.
            ResultLostError: the snapshot of a ``snapshot`` block was released.
            ForbiddenError: the user lacks the right.
            DeadlineError: the program has interrupted the read.
        """
        if not self._pins and level not in (SESSION, STALE):
            return None
        with self.lock:
            if FORKING:
                stand_still()
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
                raise self._interrupted() from None  # the program did so, by another thread or its progress handler
            except (BedrockishError, apsw.Error, TypeError, ValueError, OverflowError) as error:
                self._leave_to_node(statements, error)
                return None
            finally:
                self._until, self._is_running, self.ending = _FOREVER, False, None
                if self._is_closed:
                    self._finish()
            if self._is_closed:
                raise closed()
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
        """Leave a failed read to the node; raise its error in a ``snapshot`` block, where the node cannot answer.

        The node would raise the same error as with a URL, but from another snapshot than the block's.

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
            values = params  # APSW binds the same types as the node, and refuses all others
        else:
            binder = Binder(params)
            values = binder.take(piece.names)
            binder.finish()
        if piece.whole_schema or piece.settings:  # not from the cache: EXPLAIN does not check the schema's version
            with in_force(reader.db, piece.settings):
                return Rows(piece.columns, reader.db.execute(piece.sql, values, can_cache=False).fetchall())
        return Rows(piece.columns, reader.execute(piece.sql, values).fetchall())

    def _permitted(self, reader: _Reader, sql: str) -> Piece | None:
        """Return a text's statement if it only reads, after checking the user's rights as of the snapshot."""
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
        """Interrupt the read of another thread, which raises ``DeadlineError``."""
        if self._is_running:
            for reader in self._readers:
                with suppress(apsw.ConnectionClosedError):  # that thread has just ended its read, and closed the file
                    reader.db.interrupt()

    def _interrupted(self) -> BedrockishError:
        return closed() if self._is_closed else interrupted()

    def _is_late(self) -> bool:
        return self._is_left() or (self._until != _FOREVER and time.monotonic() > self._until)

    # -- snapshots -------------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self, level: str, token: Callable[[], Token], timeout_s: float) -> Iterator[None]:
        """Let all reads in the block use one snapshot.

        Raises:
            UnavailableError: no durable snapshot that is new enough for the session was there in time.
            UnsupportedError: the level is strict.
        """
        self.pin(level, token, timeout_s)
        try:
            yield
        finally:
            self.unpin()

    def facts(self) -> Facts | None:
        """Return the facts that the node publishes; None while no node serves the file. The caller holds ``lock``."""
        try:
            if self._readers and self.published is not None and not self._is_of(self.published.facts()):
                self._leave()
            if self._is_closed or (not self._readers and not self._open()) or self.published is None:
                return None
            return self.published.facts()
        except BedrockishError:
            return None

    def pin(self, level: str, token: Callable[[], Token], timeout_s: float) -> None:
        """Hold a snapshot until ``unpin``. The errors are those of ``snapshot``."""
        if level == STRICT:
            raise UnsupportedError(
                "a strict read is certified by its read set, which is unknown when a snapshot is taken; "
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
                    f"{self.database} does not have the session's commits within {timeout_s:g} s; try again"
                )
            time.sleep(0.001)

    def unpin(self) -> None:
        """Let later reads use newer snapshots, after the last block has ended."""
        with self.lock:
            self._pins -= 1
            self._is_lost = self._is_lost and self._pins > 0

    def _reader(self, token: Token, level: str) -> _Reader | None:
        """Return a connection whose snapshot is durable and new enough for the session; None if none exists now."""
        if self._is_lost:
            raise ResultLostError("the snapshot of this block was released; leave the block and take another one")
        if self._is_closed or (not self._readers and not self._open()):
            return None
        published = self.published
        assert published is not None
        facts = published.facts()
        first = self._readers[0]
        if facts.mode > READING or now_ns() - facts.heartbeat > SILENT_NS or not self._is_of(facts):
            self._leave()  # the node has stopped, repairs its tables, or has exchanged its file
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
                raise ResultLostError(
                    f"the snapshot was not read for {PINNED_S:g} s and was released; take another one"
                )
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
        """Return whether the connections were opened under the generation of ``facts``."""
        of = self._readers[0].facts
        return (facts.generation, facts.since) == (of.generation, of.since)

    def _becomes_durable(self, published: Published, batch: int) -> bool:
        """Return whether a batch becomes durable within ``DURABLE_S``. Only the first read after a pause may wait."""
        until = time.monotonic() + min(DURABLE_S, self._budget_s)
        while published.facts().durable < batch:
            if time.monotonic() > until:
                return False
            time.sleep(PAUSE_S)
        return True

    def _move_on(self, facts: Facts) -> _Reader:
        """Take the newest snapshot; return the connection for reads: the newest if durable, else the old snapshot's.

        Without an old snapshot, return the newest even if it is not durable yet.
        """
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
        """Open the file if its node serves it; return whether it is open."""
        now = time.monotonic()
        if now < self._try_at:
            return False
        self._try_at = now + AGAIN_S
        made: list[_Reader] = []
        published: Published | None = None
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
        except (BedrockishError, apsw.Error) as error:
            for one in made:
                one.close()
            if published is not None:
                published.close()
            if self.published is not None:
                return False
            if isinstance(error, BedrockishError):  # the first attempt: the caller of ``open`` gets the reason
                raise
            raise UnavailableError(f"{self.database} cannot be read: {error}; connect to a URL") from error
        if self.published is not None:
            self.published.close()
        self.published, self._readers = published, made
        self._try_at = 0.0
        _KEEPER.add(self)
        return True

    def _check_cluster(self, db: apsw.Connection) -> None:
        """Check that the file belongs to the session's cluster; a restored file belongs to a new cluster.

        Raises:
            ForeignClusterError: the file belongs to another cluster.
        """
        mine, found = self.cluster_id(), read_membership(system.get_meta(db, "membership")).cluster_id
        if mine and found:
            check_cluster(f"the file {self.database}", found, mine)

    def belong(self, cluster_id: Callable[[], str]) -> None:
        """Bind the reads to a session's cluster, now and whenever the file is opened again.

        Raises:
            ForeignClusterError: the file belongs to another cluster.
        """
        with self.lock:
            self.cluster_id = cluster_id
            if self._readers:
                self._check_cluster(self._readers[0].db)

    def _leave(self) -> None:
        """Close the connections, because the node is gone, or serves another file."""
        self._known = None
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()
        self._is_lost = self._pins > 0
        self._members = -1
        self._try_at = 0.0

    def after_fork(self) -> None:
        """Leave the connections to the parent without closing them; the child's next read opens the file again."""
        connections.abandon(self._readers)
        self._readers = []
        self.lock = threading.RLock()
        self._until = self._budget_s = _FOREVER  # another thread of the parent may have been reading
        self._is_left, self._is_running, self.ending = _is_wanted, False, None
        self._known = None
        self._is_lost = self._pins > 0
        self._try_at = 0.0

    def release(self) -> None:
        """Release a snapshot without recent reads. Called by the keeper."""
        if not self.lock.acquire(blocking=False):
            return  # a read is under way
        try:
            if not self._readers:
                return
            if self._pins and time.monotonic() - self._pinned_at < PINNED_S and self._is_served():
                return
            if self._used and not self._pins and self._is_served():
                self._used = False
                return
            for reader in self._readers:
                reader.end()
        except (apsw.Error, BedrockishError):
            return
        finally:
            self.lock.release()

    def _is_served(self) -> bool:
        assert self.published is not None
        facts = self.published.facts()
        return facts.mode <= READING and facts.generation == self._readers[0].facts.generation

    def close(self) -> None:
        """Close the file, and end the read of another thread; a second close does nothing.

        A read of this thread that has called the program, such as its progress handler, ends and then closes the file.
        """
        self._is_closed = True
        with connections.taken(self.lock, self.interrupt):
            if self._is_running:
                self.interrupt()
            else:
                self._finish()

    def _finish(self) -> None:
        self._leave()
        if self.published is not None:
            self.published.close()
        self.published = None


def _is_wanted() -> bool:
    """Return False: the caller waits for the read until it is over."""
    return False


def _nothing() -> None:
    """Do nothing: SQLite itself ends a read when its progress handler returns true."""


def closed() -> ClientClosedError:
    """Return the error of a statement whose session another thread has closed."""
    return ClientClosedError("the client was closed during the call")


def interrupted() -> DeadlineError:
    """Return the error of a statement that the program has interrupted."""
    return DeadlineError("the program interrupted the call; it did not happen", interrupted=True)


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
        if tick > vector.get(leader, 0):  # at the level stale a session may have seen more
            vector[leader] = tick
    return Token(vector, clock)


def _look_after(reads: LocalReads, _elapsed_s: float) -> None:
    reads.release()
    reads.on_tick()


_KEEPER = Keeper("bedrockish-snapshots", IDLE_S / 2, _look_after)

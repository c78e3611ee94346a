"""Reads of a node's file in the program's own process, on a snapshot that is durable and new enough for the session.

A read that fails here returns None, and the session sends it to the node, whose answer or error counts. An idle
snapshot is released within a tenth of a second, because it blocks the node's checkpoints.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import apsw

from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.api.requests import SESSION, STALE, STRICT, Params, Rows, Token
from bedrockish.common.forks import FORKING, Lock, notice_fork, stand_still, wait_at_forks, watch_forks
from bedrockish.common.keeper import Keeper
from bedrockish.common.pauses import monotonic
from bedrockish.engine.sqlite.bind import Binder, in_order
from bedrockish.engine.sqlite.errors import translate
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
from bedrockish.local.open_results import OpenResult, OpenResults, RunningRead
from bedrockish.local.page import SILENT_NS, Published, PublishedFacts, now_ns
from bedrockish.local.program_functions import End, ProgramError, Registration, leave_to_plugins
from bedrockish.local.snapshots import (
    DURABLE_S,
    FileConnections,
    FileSnapshots,
    ReadConnection,
    Row,
    SnapshotBlock,
    next_rows,
    note_commit,
    seen_by,
)
from bedrockish.local.thread_turn import SESSIONS, TURN
from bedrockish.sqltext.attach import Order

IDLE_S = 0.1  # a snapshot that is not read for this time is released
_FOREVER = float("inf")


_Read = tuple[tuple[str, ...], list[Row], OpenResult | None]


class _Known(NamedTuple):
    """The last read.

    ``until``: until when the node counts as running if the page still has ``last_bytes``. ``commits``: the commits of
    this process with which the snapshot was compared.
    """

    reader: ReadConnection
    moment: FileMoment
    last_bytes: bytes
    until: int
    level: str
    token: Token
    commits: Token


class LocalReads:
    """Runs one session's reads on the node's file. Threads may share it; a lock admits one read at a time.

    Why so large: A known read takes three microseconds and uses most of the attributes; each object between them would
    add to that time.

    Args:
        database: the absolute path of the node's file.
        user: see the attributes.
    """

    def __init__(self, database: str, user: str = "") -> None:
        # ``user``: the user whose rights are checked; empty: the program may read everything.
        self.database, self.user = database, user
        self.lock = threading.RLock()
        # Ends old open transactions; called twice in ``IDLE_S``, by the thread that releases idle snapshots.
        self.on_tick: Callable[[], None] = lambda: None
        # The registrations of the program's functions, by ``Registration.key``.
        self.registrations: dict[object, Registration] = {}
        self.attached = Attached()  # the files that the session has attached
        # Called with each new registration of a function.
        self.on_registration: Callable[[Registration], None] = lambda _: None
        self._snapshots = FileSnapshots(database, self._prepare, self._is_late)
        self._until = _FOREVER  # the deadline of the running read
        self._is_left: Callable[[], bool] = _never
        self._told: tuple[FileMoment | None, Token, Token] = (None, Token(), Token())  # the last answer of ``seen_by``
        self._known: _Known | None = None
        self._is_running = False
        self._results = OpenResults(self._snapshots, lambda: self.lock)  # results with rows left to fetch
        self._see: Callable[[Token], None] = lambda _: None
        # Ends the statement that the program runs here, for its progress handler; None if no statement runs.
        self.ending: End | None = None
        SESSIONS[id(self)] = None
        weakref.finalize(self, SESSIONS.pop, id(self), None)
        watch_forks(self)
        wait_at_forks(self)

    # -- the file --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file.

        Raises:
            UnavailableError: no node of this machine serves the file.
            UsageError: another SQLite library of this process has the file open.
        """
        with self.lock:
            self._snapshots.newest(Token(), STALE)

    def take_over(self, released: FileConnections) -> bool:
        """Use the connections of a closed session, in place of ``open``; return False if that fails.

        Raises:
            UnavailableError: the machine gives no further thread.
        """
        with self.lock:
            self._add_to_keeper()
            return self._snapshots.take_over(released)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster of the file; empty if the file was never open, or has none yet."""
        return self._snapshots.origin[1]

    @property
    def published(self) -> Published | None:
        """The node's page; None before the file was first opened."""
        return self._snapshots.published

    def facts(self) -> PublishedFacts | None:
        """Return the facts that the node publishes; None while no node serves the file. The caller holds ``lock``."""
        return self._snapshots.facts()

    def belong(self, cluster_id: Callable[[], str], see: Callable[[Token], None]) -> None:
        """Bind the reads to a session's cluster, now and whenever the file is opened again.

        ``see`` merges a token into the session's.

        Raises:
            ForeignClusterError: the file belongs to another cluster.
        """
        self._see = see
        with self.lock:
            self._snapshots.bind_to_cluster(cluster_id)

    def note_commit(self, place: tuple[str, int], clock: int) -> None:
        """Let the later reads of all sessions of this process see a commit of this session.

        ``clock`` is that of the token after the commit.
        """
        note_commit(self._snapshots.origin, place, clock)

    def _prepare(self, db: apsw.Connection) -> None:
        leave_to_plugins(db)
        for given in list(self.registrations.values()):
            given(db)
        self.attached.apply_to(db)
        self._add_to_keeper()

    def _add_to_keeper(self) -> None:
        """Have the keeper maintain this session and, later, its connections; start the keeper's thread if need be.

        A fork does not copy the thread. The connections are not added when the session ends: the finalizer that ends it
        may begin while this thread has the keeper's lock.
        """
        KEEPER.add(self)
        KEEPER.add(connections.KEPT)

    def register(self, given: Registration) -> None:
        """Register a function or collation of the program on all present and future connections.

        Raises:
            SqlError: SQLite refuses the registration.
        """
        notice_fork()
        with self.lock:
            self._known = None
            for reader in self._snapshots.readers:
                try:
                    given(reader.db)
                except apsw.Error as error:
                    raise SqlError(f"Error creating function: SQLite does not take it ({error})") from error
                reader.forget_texts()
            self.registrations[given.key] = given
            self._results.prepare_again()
        self.on_registration(given)

    def attach(self, order: Order) -> None:
        """Attach a file read-only, or detach it, on all connections of the session.

        Raises:
            UsageError: the program is in a ``snapshot`` block.
            SqlError: the name is taken or unknown, or the file cannot be read.
        """
        notice_fork()
        with self.lock:
            if self._snapshots.pins:
                raise UsageError("files are attached and detached outside of a snapshot; leave its block first")
            self.attached.note(order)
            try:
                for reader in self._snapshots.readers:
                    reader.end()
                    self.attached.apply_to(reader.db)
                    reader.forget_texts()
            except apsw.Error as error:
                self.attached.forget(order.name)
                raise SqlError(f"unable to open database: {order.path}: {error}") from error
            finally:
                self._results.prepare_again()

    def read_again(self, sql: str, params: tuple[Any, ...] | dict[str, Any], level: str, token: Token) -> _Read | None:
        """Run a known statement on the snapshot of the last read, if page, level and token are unchanged since.

        Return the names of the columns, the first rows, and the source of further rows; None if the caller must use
        ``read``.

        Args:
            params: values that SQLite stores without conversion.

        Raises:
            DeadlineError: the program has interrupted the read.
        """
        notice_fork()
        with self.lock:
            if FORKING:
                stand_still()
            known = self._known
            if known is None or known.token is not token or known.level != level:
                return None
            reader, published = known.reader, self._snapshots.published
            if (
                reader.moment is not known.moment
                or published is None
                or not published.still_has(known.last_bytes)
                or known.commits is not self._snapshots.commits
                or now_ns() > known.until
            ):
                self._known = None
                return None
            piece = reader.known(sql)
            values = None if piece is None else in_order(piece.names, params)
            if piece is None or values is None:
                return None
            self._snapshots.is_read = self._is_running = True
            try:
                if len(SESSIONS) < 2 or piece.sql in reader.long_texts:
                    rows, is_more = reader.fetch(piece.sql, values)
                else:
                    with TURN:
                        rows, is_more = reader.fetch(piece.sql, values)
                return piece.columns, rows, self._rest(reader, piece.sql, rows) if is_more else None
            except apsw.InterruptError:
                raise self._interrupted() from None
            except (apsw.Error, TypeError, ValueError, OverflowError, BedrockishError):
                return None  # ``read`` raises the same error, or leaves the statement to the node
            finally:
                self._is_running = False
                if self._snapshots.is_closed:
                    self._snapshots.close()

    def read_at_once(
        self, statements: Sequence[tuple[str, Params]], level: str, token: Token, budget_s: float
    ) -> tuple[list[Rows], Token] | None:
        """Run statements as ``read`` does; also wait at most ``budget_s`` for the read of another thread.

        Raises:
            TimeoutError: see ``read``, or another thread reads for longer than ``budget_s``.
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
            self._is_left = _never
            lock.release()

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(
        self,
        statements: Sequence[tuple[str, Params]],
        level: str,
        token: Token,
        budget_s: float = _FOREVER,
        *,
        in_parts: bool = False,
    ) -> tuple[list[Rows], Token] | None:
        """Run statements, which only read, on one snapshot.

        Return the results, and the session's token after them; None if the session must send the statements to the
        node. With ``in_parts``, a large result has its first rows, and the source of further rows.

        Raises:
            TimeoutError: the statements have run for ``budget_s`` without ending.
            ResultLostError: the snapshot of a ``snapshot`` block was released.
            ForbiddenError: the user lacks the right.
            DeadlineError: the program has interrupted the read.
        """
        notice_fork()
        snapshots = self._snapshots
        if not snapshots.pins and level not in (SESSION, STALE):
            return None
        with self.lock:
            if FORKING:
                stand_still()
            before = self._until, self._is_running, self.ending  # a function of an outer statement may call this
            try:
                reader = snapshots.newest(token, level, min(DURABLE_S, budget_s))
                if reader is None:
                    self._see(snapshots.commits)
                    return None
                if budget_s != _FOREVER:
                    self._until = monotonic() + budget_s
                found: list[Rows] = []
                self._is_running, self.ending = True, _nothing
                for sql, params in statements:
                    rows = self._run(reader, sql, params, in_parts=in_parts)
                    if rows is None:
                        return None
                    found.append(rows)
            except (ResultLostError, ForbiddenError, ProgramError):
                raise
            except apsw.InterruptError as error:
                if self._is_late():
                    raise TimeoutError from error
                raise self._interrupted() from None  # another thread or the progress handler has interrupted the read
            except (BedrockishError, apsw.Error, TypeError, ValueError, OverflowError) as error:
                self._leave_to_node(statements, error)
                return None
            finally:
                self._until, self._is_running, self.ending = before
                if snapshots.is_closed and not self._is_running:
                    snapshots.close()
            if snapshots.is_closed:
                raise closed()
            return found, self._token_after(reader, level, token)

    def _token_after(self, reader: ReadConnection, level: str, token: Token) -> Token:
        """Return the session's token after a read; keep the read for ``read_again``; release its snapshot if due."""
        moment, snapshots = reader.moment, self._snapshots
        assert moment is not None
        if snapshots.is_log_ending and not snapshots.pins:
            snapshots.end()
        if moment is not self._told[0] or token is not self._told[1]:
            self._told = moment, token, seen_by(moment, token)
        is_plain = not (snapshots.pins or self.user or snapshots.is_log_ending or self.registrations)
        if self._told[2] is token and is_plain and reader is snapshots.readers[0]:  # not lent to a result
            published = snapshots.published
            assert published is not None
            if published.still_has(published.last_bytes):
                until = published.facts().heartbeat + SILENT_NS
                self._known = _Known(reader, moment, published.last_bytes, until, level, token, snapshots.compared)
        return self._told[2]

    def _leave_to_node(self, statements: Sequence[tuple[str, Params]], error: Exception) -> None:
        """Leave a failed read to the node; raise its error in a ``snapshot`` block, where the node cannot answer.

        The node would raise the same error as with a URL, but from another snapshot than the block's.
        """
        if self._snapshots.pins:
            raise _own(error, "; ".join(sql for sql, _ in statements)) from error

    def _run(self, reader: ReadConnection, sql: str, params: Params, *, in_parts: bool) -> Rows | None:
        piece = reader.permitted(sql, self.user) if self.user else reader.piece(sql, is_limited=False)
        if piece is None:
            return None
        kind = type(params)
        values: Any
        if (kind is tuple or kind is list) and len(params) == len(piece.names):  # type: ignore[arg-type]
            values = params  # APSW binds the same types as the node, and refuses all others
        else:
            binder = Binder(params)
            values = binder.bind_next(piece.names)
            binder.finish()
        if piece.whole_schema or piece.settings:  # not cached, because EXPLAIN does not check the schema's version
            with in_force(reader.db, piece.settings):
                return Rows(piece.columns, reader.db.execute(piece.sql, values, can_cache=False).fetchall())
        if not in_parts:
            return Rows(piece.columns, reader.execute(piece.sql, values).fetchall())
        rows, is_more = next_rows(reader.execute(piece.sql, values))
        return Rows(piece.columns, rows, rest=self._rest(reader, piece.sql, rows) if is_more else None)

    # -- results that are fetched later ----------------------------------------------------------------------------

    def _rest(self, reader: ReadConnection, sql: str, rows: list[Row]) -> OpenResult | None:
        """Return the source of the further rows of a running statement.

        If the statement must end now, add these rows to ``rows``, and return None.
        """
        names = [given.key[1] if len(given.key) > 1 else "" for given in self.registrations.values()]
        self._known = None  # first: if the handler of a signal raises, no read may use the lent connection
        running = self._results.open(reader, sql, names)
        if running is None:
            rows += reader.cursor.fetchall()
            return None
        return OpenResult(self, running)

    def read_on(self, running: RunningRead) -> list[Row]:
        """Return the next rows of a result; an empty list at the end.

        Raises:
            ResultLostError: a parent process has the result, or the program has not fetched it for long.
            DeadlineError: the program has interrupted the read.
            BedrockishError: SQLite could not compute a row.
        """
        notice_fork()
        before = self.ending  # a function that the session's statement calls may fetch another result
        try:
            with running.lock:
                if FORKING:
                    stand_still()
                if not running.is_over and running not in self._results.running:
                    raise ResultLostError("the parent process has this result; run the statement again")
                self.ending = _nothing
                return running.fetch()
        except apsw.InterruptError:
            raise self._interrupted() from None
        except (apsw.Error, TypeError, ValueError, OverflowError) as error:
            raise _own(error, running.sql) from error
        finally:
            self.ending = before
            if running.is_over:
                self.end_dropped()
            if self._snapshots.is_closed:
                running.close()

    def end_dropped(self) -> None:
        """End the results that no cursor needs."""
        self._results.end_dropped()

    def interrupt(self) -> None:
        """Interrupt the read of another thread, and results that are not fetched yet, which raise ``DeadlineError``."""
        self._results.interrupt()
        for reader in self._snapshots.readers if self._is_running else ():
            with suppress(apsw.ConnectionClosedError):  # that thread has just ended its read, and closed the file
                reader.db.interrupt()

    def _interrupted(self) -> BedrockishError:
        return closed() if self._snapshots.is_closed else interrupted()

    def _is_late(self) -> bool:
        return self._is_left() or (self._until != _FOREVER and monotonic() > self._until)

    # -- snapshots -------------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self, level: str, token: Callable[[], Token], timeout_s: float) -> Iterator[None]:
        """Let all reads in the block use one snapshot.

        Raises:
            UnavailableError: no durable snapshot was new enough for the session in time.
            UnsupportedError: the level is strict.
        """
        pin = SnapshotBlock()
        self.pin(pin, level, token, timeout_s)
        try:
            yield
        finally:
            self.unpin(pin)

    @staticmethod
    def new_pin() -> SnapshotBlock:
        """Return a pin for ``pin`` and ``unpin``; it holds the snapshot only while the block's frame refers to it."""
        return SnapshotBlock()

    def pin(self, pin: SnapshotBlock, level: str, token: Callable[[], Token], timeout_s: float) -> None:
        """Hold a snapshot until ``unpin``. The errors are those of ``snapshot``."""
        notice_fork()
        if level == STRICT:
            raise UnsupportedError(
                "a strict read is certified by its read set, which is unknown when a snapshot is taken; "
                'pass snapshot(read="session"), or read in a transaction at the level strict'
            )
        until = monotonic() + timeout_s
        while True:
            with self.lock:
                if self._snapshots.pin(pin, token(), level):
                    self._known = None
                    return
            if monotonic() > until:
                raise UnavailableError(
                    f"{self.database} does not have the session's commits within {timeout_s:g} s; try again"
                )
            time.sleep(0.001)

    def unpin(self, pin: SnapshotBlock) -> None:
        """Let later reads use newer snapshots, after the last block has ended."""
        with self.lock:
            self._snapshots.unpin(pin)

    def unpin_at_once(self, pin: SnapshotBlock) -> bool:
        """Do as ``unpin`` and return True, unless another thread reads now, perhaps for long."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._snapshots.unpin(pin)
        finally:
            self.lock.release()
        return True

    def fork_locks(self) -> Iterable[Lock]:
        """Return the locks of the threads that open, read or close the file."""
        yield self.lock
        for running in list(self._results.running):
            yield running.lock

    def after_fork(self) -> None:
        """Leave the connections to the parent; the child's next read opens the file again."""
        self._snapshots.abandon()
        self._results.abandon()
        self.lock = threading.RLock()
        self._until, self._known = _FOREVER, None
        self._is_left, self._is_running, self.ending = _never, False, None

    def release(self) -> None:
        """Release a snapshot without recent reads. Called by the keeper."""
        if not self.lock.acquire(blocking=False):
            return  # a read is under way
        try:
            self._snapshots.release_idle()
            self._results.end_dropped()
        except (apsw.Error, BedrockishError):
            return
        finally:
            self.lock.release()

    def tick(self) -> None:
        """Release a snapshot without recent reads, and end old transactions. Called by the keeper."""
        self.release()
        self.on_tick()

    def leave(self) -> FileConnections | None:
        """Close the reads as ``close`` does, but return their connections if another session can use them.

        The caller keeps them in ``connections.KEPT``, or closes them.
        """
        notice_fork()
        released = None
        if self.lock.acquire(timeout=connections.ASK_S):  # the keeper may have the lock for a moment
            try:
                is_own = self.registrations or self.attached.version or self._results.running or self._snapshots.pins
                if not (is_own or self._is_running):
                    released, self._snapshots.is_closed = self._snapshots.release_connections(), True
            finally:
                self.lock.release()
        self.close()
        return released

    def close(self) -> None:
        """Close the file, and end the read of another thread; a second close does nothing.

        If a read of this thread calls the program, such as its progress handler, the read ends and closes the file.
        """
        notice_fork()
        SESSIONS.pop(id(self), None)
        self._snapshots.is_closed = True
        with connections.lock_interrupting(self.lock, self.interrupt):
            if self._is_running:
                self.interrupt()
            else:
                self._snapshots.close()
        self._results.close()


def _own(error: Exception, sql: str) -> BedrockishError:
    """Return the error to raise for a statement that failed here, and that is not left to the node."""
    if isinstance(error, BedrockishError):
        return error
    if isinstance(error, apsw.Error):
        return translate(error, sql)
    return SqlError(f"the statement cannot be run: {error}")


def _never() -> bool:
    """Return False: the caller waits until the read is over."""
    return False


def _nothing() -> None:
    """Do nothing: SQLite itself ends a read when its progress handler returns true."""


def closed() -> ClientClosedError:
    """Return the error of a statement whose session another thread has closed."""
    return ClientClosedError("the client was closed during the call")


def interrupted() -> DeadlineError:
    """Return the error of a statement that the program has interrupted."""
    return DeadlineError("the program interrupted the call; it did not happen", interrupted=True)


class Ticking(Protocol):
    """An object that the thread for idle snapshots maintains."""

    def tick(self) -> None:
        """Release what no session uses any more."""


KEEPER: Keeper[Ticking] = Keeper("bedrockish-snapshots", IDLE_S / 2, lambda one, _: one.tick())

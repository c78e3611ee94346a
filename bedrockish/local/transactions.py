"""Open transactions of a program, executed in its own process on a node's file. The node learns of them at COMMIT.

Each transaction runs in a ``Workspace``, a durable snapshot with a private overlay, by the engine's own executor. Its
COMMIT is one message with the keys read, the keys written, and the rows; the node certifies it like its own open
transactions. Before COMMIT the node holds no state of the transaction, so a program that dies leaves nothing there.

Some statements need the node: changes of the schema, and calls of ``transaction_clock()``, ``cluster_clock()``,
``skip_locked()`` or a function of a plugin. Then the earlier statements are repeated at the node. If each has the same
result as here, the transaction continues at the node; otherwise it fails with a ConflictError.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import apsw

from bedrockish.api.requests import SERIALIZABLE, STALE, STRICT, Request, Result, Statement, Token
from bedrockish.api.temporary import FRESH
from bedrockish.common.forks import FORKING, Lock, stand_still, wait_at_forks, watch_forks
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.engine.storage.overlay_vfs import Moment
from bedrockish.errors import (
    BedrockishError,
    DeadlineError,
    SqlError,
    TemporaryLostError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from bedrockish.local import connections
from bedrockish.local.attached import Attached
from bedrockish.local.file_schema import FILE_SCHEMAS, FileSchema
from bedrockish.local.leased_ids import Given, IdsNeededError, LeasedIds
from bedrockish.local.page import SERVING, Facts, Published
from bedrockish.local.place import NodeNeededError, Place
from bedrockish.local.program_functions import Give, ProgramError
from bedrockish.local.reads import LocalReads, closed, interrupted
from bedrockish.local.snapshots import may_see, seen_by
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.transaction_control import control_of, parse_control

IDLE_MAX = 8  # workspaces that are kept for the next transaction
OPEN_S = 60.0  # a transaction is rolled back after so long, because its snapshot blocks the node's checkpoints
DURABLE_S = 1.0  # how long to wait until the newest snapshot is durable
PAUSE_S, PAUSE_MAX_S = 0.0002, 0.001  # pauses between two polls of the page: each twice as long as the last
LOG_MAX, LOG_BYTES = 5_000, 4 << 20  # statements, and bytes of results, up to which a transaction can be repeated
RESULT_BYTES = Limits().result_bytes


@dataclass(slots=True)
class Logged:
    """An executed statement with its result, or with the text of its error."""

    statement: Statement
    told: Result | None
    failure: str = ""


class LocalTransaction:
    """One open transaction of this process. One thread at a time uses it."""

    keeps_rows = False  # whether it stays open until the outcome of COMMIT is known, because it has rows of TEMP tables

    def __init__(self, owner: "LocalTransactions", place: Place, request: Request, moment: FileMoment) -> None:
        # ``request``: its BEGIN.
        self._owner, self._place, self.request = owner, place, request
        self.seen = seen_by(moment, request.token)  # the session's token after reading its snapshot
        self.since = time.monotonic()
        self.ids: list[tuple[str, int]] = []  # the leased ids that it has given to rows, with their tables
        self._ids_version = owner.ids.version
        self.log: list[Logged] | None = []  # the statements so far; None if there are too many to repeat at the node
        self._logged = 0
        self._ended: BedrockishError | None = None
        self.lock = threading.RLock()  # held by the thread that runs a statement
        self._statement = owner.statement_of(self)
        self._moment = moment
        self._work: TransactionWork
        self._running: OverlayTransaction
        work = TransactionWork(
            request.isolation == SERIALIZABLE, request.command, request.user, base_clock=moment.clock
        )
        self._open(work, moment)

    def _open(self, work: TransactionWork, moment: FileMoment) -> None:  # noqa: ARG002  a subclass needs the moment
        """Open the overlay on the workspace's snapshot."""
        self._work, self._running = work, OverlayTransaction(self._place.workspace, work)
        self._running.start()

    def work_at(self, moment: FileMoment) -> TransactionWork | None:
        """Return the transaction's work if its snapshot is the same as ``moment``; else None."""
        return self._work if self._moment.batch == moment.batch else None

    @property
    def _stays(self) -> str:
        """Why the transaction cannot move to the node, as the end of an error's text; empty if it can."""
        if self._owner.attached.has_any:
            return "which has none of the attached files; detach them before the transaction begins"
        return ""

    def decide(self, error: BaseException | None) -> None:
        """Note the outcome of COMMIT: ``error`` is None if it succeeded. Does nothing without TEMP tables."""

    @property
    def lastrowid(self) -> int | None:
        """Rowid of the row that the transaction inserted last."""
        return self._work.lastrowid or None

    def run(self, statement: Statement) -> Result:
        """Run one statement, which may be SAVEPOINT, RELEASE or ROLLBACK TO; return its result.

        Raises:
            NodeNeededError: the transaction must move to the node.
            IdsNeededError: ids must be leased; afterwards the caller runs the statement again.
            BedrockishError: as at the node. After a usage error the transaction stays open, unless ``is_over``.
        """
        try:
            with self.lock, self._statement:
                self._check_goes_on()
                try:
                    result = self._run(statement)
                    self._check_level()
                except IdsNeededError:
                    self._owner.ids.take_again()
                    raise
        except (NodeNeededError, ClockNeededError) as error:
            if self._stays:
                why = f"the statement needs the node ({error.message}), {self._stays}"
                raise UnsupportedError(why, sql=statement.sql) from error
            raise NodeNeededError(error.message) from error
        except IdsNeededError:
            raise
        except UnsupportedError as error:  # the node raises the same error, or can run the statement
            if self._stays:
                raise
            raise NodeNeededError(error.message) from error
        except SqlError as error:
            is_lacking = "no such function" in error.message or "no such collation" in error.message
            if is_lacking and not self.keeps_rows:
                raise NodeNeededError(error.message) from error
            self._note(Logged(statement, None, error.message))
            raise
        except UsageError as error:
            self._note(Logged(statement, None, error.message))
            raise
        self._note(Logged(statement, result))
        return result

    def _check_level(self) -> None:
        """Check that a transaction whose level is ``strict`` has not read tables of the cluster itself."""
        if self.request.read == STRICT and self._work.reads_system:
            self._work.reads_system = False  # the program does not get the result
            raise NodeNeededError("a strict read of the cluster's own tables runs at the node")

    def run_again(self, sql: str, values: tuple[Any, ...]) -> Result | None:
        """Run a text that has run here before, in less time than ``run``; None: ``run`` must run it.

        Args:
            values: parameters that SQLite stores without conversion.

        Raises:
            BedrockishError: see ``run``.
        """
        # The program's progress handler may end a statement, and its functions may fail: ``run`` provides for that.
        if self.keeps_rows or self._owner.has_own:
            return None
        try:
            with self.lock:
                if FORKING:
                    stand_still()
                if self._ended is not None:
                    return None
                self._owner.ids.given.ids.clear()
                result = self._running.interactive.run_again(self._work, sql, values, RESULT_BYTES)
        except UsageError as error:
            self._note(Logged(Statement(sql, values), None, error.message))
            raise
        if result is not None:
            self._note(Logged(Statement(sql, values), result))
        return result

    def run_alike(self, statements: Sequence[Statement], first: int) -> tuple[list[Result], int]:
        """Run consecutive statements with the same text together, from the one at ``first`` on.

        Return their results, and the place up to which these reach. Without results, the caller runs the statements up
        to that place one by one.

        Raises:
            BedrockishError: as ``run``.
        """
        if self.keeps_rows:  # if SQLite rolls back the transaction, rows of TEMP tables cannot be made again
            return [], len(statements)
        given = self._owner.ids.given
        with self.lock, self._statement:
            self._check_goes_on()
            found, alone = self._running.run_alike(statements, first)
            if not found:
                self._owner.ids.take_again()
                alone = first + 1 if given.is_short else alone  # the next statement alone leases ids for the others
        for statement, result in zip(statements[first:], found, strict=False):
            self._note(Logged(statement, result))
        return found, alone

    def _run(self, statement: Statement) -> Result:
        if not _is_ordinary(statement.sql):
            control = control_of(statement.sql, statement.params)
            if control is not None:
                self._running.control(control)
                return Result((), [], -1, self.lastrowid)
            if not self.keeps_rows:
                raise NodeNeededError("a schema change runs at the node")
        return self._running.run(statement, RESULT_BYTES)[0]

    def read(self, statement: Statement) -> Result:
        """Run one statement that only reads; return its result.

        Raises:
            UnsupportedError: the statement does not only read, or no read set covers its reads.
            BedrockishError: see ``run``.
        """
        with self.lock, self._statement:
            result = self._running.run(statement, RESULT_BYTES, read_only=True)[0]
            if self._work.looked_behind or self._running.scope.used:
                raise UnsupportedError("read sets do not cover the database's own tables and clocks")
            return result

    def _note(self, one: Logged) -> None:
        if self.log is None:
            return
        self.log.append(one)
        if one.told is not None:
            self._logged += sum(len(row) for row in one.told.rows) * 16
        if len(self.log) > LOG_MAX or self._logged > LOG_BYTES:
            self.log = None

    @property
    def is_over(self) -> bool:
        """Whether SQLite itself has rolled the transaction back because of a statement."""
        return self._work.over

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with their declared types, without running the statement.

        Raises:
            SqlError: SQLite does not accept the statement.
        """
        with self.lock:
            self._check_goes_on()
            return self._running.columns(statement)

    def finish(self) -> Prepared:
        """Return the transaction for certification by the node. After an error the transaction is still open.

        Raises:
            ConstraintError: a deferred foreign key is broken.
            UnavailableError: the node has stopped, or has exchanged its file, since the transaction began.
        """
        with self.lock, self._statement:
            self._check_goes_on()
            self._owner.check_generation(self._place.facts)
            return self._running.finish()

    def give_ids_back(self) -> None:
        """Return the transaction's ids to the leases, because it is rolled back."""
        if self._ids_version == self._owner.ids.version:
            self._owner.ids.give_back(self.ids)

    def end(self, error: BedrockishError | None = None) -> None:
        """Roll the transaction back and return its workspace; do nothing if it has ended already.

        Interrupt a statement that another thread runs, so that it raises ``error``; also a statement of this thread
        that is calling the program, for example its progress handler.
        """
        error = error or UnavailableError("the transaction is over; begin another one")
        with connections.taken(self.lock, lambda: self.stop(error)):
            if self._ended is None:
                self._ended = error
                if self._statement.is_running:
                    self.stop(error)
                else:
                    self._leave()

    def leave_ended(self) -> None:
        """Return the workspace if the transaction was ended during the statement that is now over."""
        if self._ended is not None:
            self._leave()

    def _leave(self) -> None:
        self._owner.give_back(self._place)

    def abandon(self) -> None:
        """Refuse further statements in this process, because the transaction belongs to its parent."""
        self._ended = closed()

    def _check_goes_on(self) -> None:
        if self._ended is not None:
            raise self._ended

    def end_late(self, error: BedrockishError) -> None:
        """End the transaction; if a thread runs a statement, only interrupt it, and leave the end to a later call."""
        if not self.lock.acquire(blocking=False):
            self.stop(error)
            return
        try:
            self.end(error)
        finally:
            self.lock.release()

    def give(self, given: Give) -> None:
        """Register a function or collation of the program on the connections of the transaction."""
        with self.lock:
            if self._ended is None:
                given(self._place.reader)
                given(self._running.db)

    def interrupt(self) -> None:
        """Interrupt the statement that another thread runs; the transaction is lost."""
        self.stop(interrupted())

    def stop(self, error: BedrockishError) -> None:
        """Interrupt the statement that another thread runs; it raises ``error``."""
        self._statement.stopped = error
        self._place.workspace.stop(error)


class _Statement:
    """A context manager around each statement of a transaction.

    Within it the program's progress handler is called, and the row ids of the statement are noted in the transaction.
    An error of SQLite that no part of the engine has translated becomes one of the client's; the transaction is lost.
    """

    __slots__ = ("_given", "_ids", "_leave", "_place", "_reads", "_stop", "is_running", "stopped")

    def __init__(self, one: LocalTransaction, reads: LocalReads, given: Given) -> None:
        self._reads, self._given, self._ids, self._place = reads, given, one.ids, one._place
        self.stopped: BedrockishError | None = None  # the error of the transaction's last ``stop``
        self._stop, self._leave = one.interrupt, one.leave_ended
        self.is_running = False  # whether a statement runs; its thread holds the lock of the transaction

    def __enter__(self) -> None:
        """Begin a statement in this thread."""
        if FORKING:
            stand_still()
        self._given.ids.clear()
        self._given.is_short = False
        self._reads.ending = self._stop
        self.is_running = True

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._reads.ending = None
        self.is_running = False
        self._ids += self._given.ids
        self._leave()
        if isinstance(error, apsw.Error):
            raise self._failed(error) from error

    def _failed(self, error: apsw.Error) -> BedrockishError:
        """Return the error for SQL that is not the client's, such as the EXPLAIN that derives a read set."""
        if self.stopped is not None and isinstance(error, apsw.InterruptError):
            return self.stopped
        self._place.workspace.is_broken = True
        return UnavailableError(f"the private copy of the database failed: {error}; it did not happen: run it again")


@remembered
def _is_ordinary(sql: str) -> bool:
    """Return whether a text is neither transaction control nor for the node: a schema change, or an EXPLAIN."""
    is_explain = first_word(without_settings(sql)) == "EXPLAIN"
    return not (is_explain or Interactive.is_schema(Statement(sql)) or parse_control(sql) is not None)


BeginWith = Callable[["LocalTransactions", Place, Request, FileMoment, LocalTransaction | None], LocalTransaction]


class LocalTransactions:
    """The open transactions of one session of a program.

    Args:
        reads: the session's reads, which hold the file and its page.
        begin_with: begins a transaction with TEMP objects.
    """

    def __init__(self, reads: LocalReads, begin_with: "BeginWith") -> None:
        self._reads, self._begin_with = reads, begin_with
        self._lock = threading.Lock()
        self._beginning = threading.RLock()  # held by the thread that opens a connection or takes a snapshot
        self._idle: list[Place] = []
        self._temporary: Place | None = None
        self._temporary_name = ""
        self._schema: FileSchema | None = None
        self.access = Access()
        self.ids = LeasedIds()  # the row ids leased by the node
        self.is_closed = False  # whether the session is closed
        self._open: dict[str, LocalTransaction] = {}
        self._inherited: frozenset[str] = frozenset()  # commands of the transactions that are open in the parent
        reads.on_tick, reads.on_given = self.end_late, self._give
        watch_forks(self)
        wait_at_forks(self)

    @property
    def attached(self) -> Attached:
        """The files that the session has attached."""
        return self._reads.attached

    def prepare(self, db: apsw.Connection) -> None:
        """Register the program's functions on a connection, and attach the session's files to it."""
        for given in self._reads.given:
            given(db)
        self.attached.bring(db)

    def _give(self, given: Give) -> None:
        """Register a function of the program on open transactions; close idle workspaces, which lack the function."""
        with self._lock:
            idle, self._idle = self._idle, []
        for place in idle:
            self._close(place)
        if self._temporary is not None:
            self._temporary.workspace.tell(given)
        for one in list(self._open.values()):
            one.give(given)

    def begin(self, request: Request) -> LocalTransaction | None:
        """Begin a transaction on the newest durable snapshot; return None if it must begin at the node."""
        if request.user != self._reads.user:
            request = replace(request, user=self._reads.user)
        if self.is_closed:
            return None
        with self._beginning:
            made = self._begin(request)
        if self.is_closed:
            self._lose_at_close()
        return made

    def _begin(self, request: Request) -> LocalTransaction | None:
        if FORKING:
            stand_still()
        place = None
        try:
            published, facts = self._serving()
            if published is None or facts is None:
                return None
            place = self._place(published, facts)
            place.attach()
            moment = self._snapshot(place, published, facts.durable, request)
            if moment is None:
                self.give_back(place)
                return None
            made = LocalTransaction(self, place, request, moment)
        except (BedrockishError, apsw.Error, OSError):
            if place is not None:
                self._close(place)
            return None  # the transaction begins at the node, which raises the error if it remains
        self._open[request.command] = made
        if self.is_closed:  # by another thread, which has not seen this transaction among the open ones
            made.end(closed())
        return made

    def read(self, request: Request) -> tuple[list[Result], Prepared, Token] | None:
        """Run statements that only read, as one transaction; return None if the node must run them or reject them.

        Return the results, the transaction for certification by the node, and the session's token after the read.

        Raises:
            ProgramError: a function of the program has raised an error.
            DeadlineError: the program has interrupted the read.
        """
        one = self.begin(request)
        if one is None:
            return None
        try:
            return [one.read(statement) for statement in request.statements], one.finish(), one.seen
        except ProgramError:
            raise
        except BedrockishError as error:
            if error.details.get("interrupted"):
                raise
            return None
        finally:
            self.forget(request.command)

    def statement_of(self, one: LocalTransaction) -> "_Statement":
        """Return the context manager for each statement of a transaction."""
        return _Statement(one, self._reads, self.ids.given)

    def is_served(self) -> bool:
        """Return whether the node of the file leads transactions now, according to its page."""
        return self._serving()[0] is not None

    def is_at_learner(self) -> bool:
        """Return whether the node of the file is a learner, by the membership that the last transaction has read."""
        if self._schema is None:
            one = self.begin(Request("", ()))
            if one is None:
                return False
            self.forget("")
        assert self._schema is not None
        return self._schema.is_learner

    @property
    def has_functions(self) -> bool:
        """Whether the program has registered functions, collations or a progress handler."""
        return bool(self._reads.given)

    @property
    def has_own(self) -> bool:
        """Whether the session has functions or attached files, which the node does not have."""
        return self.has_functions or self.attached.has_any

    def has_temporary(self, name: str) -> bool:
        """Return whether this process holds the TEMP objects of this name."""
        return self._temporary is not None and self._temporary_name == name.removeprefix(FRESH)

    def begin_with_temporary(self, request: Request, before: LocalTransaction | None = None) -> bool:
        """Begin a transaction that uses the session's TEMP objects; return False if they must be made at the node.

        Args:
            request: its BEGIN.
            before: the same transaction, if it began before the session had TEMP objects.

        Raises:
            TemporaryLostError: the TEMP objects are gone.
            UnavailableError: the file was not new enough for the session in time.
            ConflictError: see ``temporary.WithTemporary``.
        """
        try:
            with self._beginning:
                return self._begin_with_temporary(replace(request, user=self._reads.user), before)
        finally:
            if self.is_closed:
                self._lose_at_close()

    def _begin_with_temporary(self, request: Request, before: LocalTransaction | None) -> bool:
        published, facts = (None, None) if self.is_closed else self._serving()
        place = self._temporary if self.has_temporary(request.temporary) else None
        if place is not None and (published is None or facts is None or not place.is_of(facts) or place.is_broken):
            self.lose_temporary()
            raise TemporaryLostError(
                "the TEMP objects of the session are gone: the node has stopped, or has exchanged its file, or their "
                "connection has failed; it did not happen: make them again"
            )
        if published is None or facts is None:
            return False
        if place is None:
            self.lose_temporary()
            place = self._temporary = Place(self, published, facts, has_temporary=True)
            self._temporary_name = request.temporary.removeprefix(FRESH)
        assert place.held is not None
        if place.held.transaction is not None:
            raise UnsupportedError("another open transaction of the session has its TEMP objects; end that one first")
        place.attach()
        moment = self._snapshot(place, published, facts.durable, request)
        if moment is None:
            place.workspace.end()
            raise UnavailableError(f"{published.database} does not have the session's commits; try again")
        made = self._begin_with(self, place, request, moment, before)
        if before is not None:
            before.end()
        self._open[request.command] = made
        if self.is_closed:
            made.end(closed())
        return True

    def lose_temporary(self) -> None:
        """Drop the TEMP objects of the session."""
        place, self._temporary = self._temporary, None
        if place is not None:
            self._close(place)

    def find(self, command: str) -> LocalTransaction | None:
        """Return the open transaction of a command; None if none exists."""
        return self._open.get(command)

    def is_inherited(self, command: str) -> bool:
        """Return whether the parent of this process has opened the transaction of a command before a fork."""
        return command in self._inherited

    def forget(self, command: str) -> None:
        """End the open transaction of a command in this process, if there is one."""
        found = self._open.pop(command, None)
        if found is not None:
            found.end()

    def end_late(self) -> None:
        """End transactions that have been open for ``OPEN_S``, because each blocks the node's checkpoints."""
        late = time.monotonic() - OPEN_S
        for one in [one for one in list(self._open.values()) if one.since < late]:
            one.end_late(DeadlineError(f"the transaction was open for {OPEN_S:g} s; it did not happen"))

    @property
    def has_any(self) -> bool:
        """Whether the session has an open transaction in this process."""
        return bool(self._open)

    def stop(self) -> None:
        """Interrupt the statements that other threads run; their transactions are lost."""
        for one in list(self._open.values()):
            one.interrupt()

    def stop_one(self, command: str) -> None:
        """Interrupt the statement of one transaction, which is lost; do nothing if it has ended."""
        found = self.find(command)
        if found is not None:
            found.interrupt()

    def close(self) -> None:
        """End all transactions, also those in which another thread runs a statement, and close their connections."""
        self.is_closed = True
        for one in list(self._open.values()):
            one.end(closed())
        self._open.clear()
        with self._lock:
            idle, self._idle = self._idle, []
        for place in idle:
            self._close(place)
        self._lose_at_close()

    def _lose_at_close(self) -> None:
        """Drop the TEMP objects of a closed session; a thread that is beginning a transaction with them does so."""
        if self._beginning.acquire(blocking=False):
            try:
                self.lose_temporary()
            finally:
                self._beginning.release()

    # -- places ----------------------------------------------------------------------------------------------------

    def _serving(self) -> tuple[Published | None, Facts | None]:
        """Return the page, and its facts if the node leads transactions now."""
        with self._reads.lock:
            facts = self._reads.facts()
            published = self._reads.published
        if published is None or facts is None or facts.mode != SERVING or facts.why_not:
            return None, None
        return published, facts

    def _place(self, published: Published, facts: Facts) -> Place:
        while True:
            with self._lock:
                place = self._idle.pop() if self._idle else None
            if place is None:
                return Place(self, published, facts)
            if place.is_of(facts):
                return place
            self._close(place)

    def _snapshot(self, place: Place, published: Published, durable: int, request: Request) -> FileMoment | None:
        """Take the newest snapshot and wait until it is durable; return its moment.

        Return None if it is not durable, or not new enough for the session, within ``DURABLE_S``. ``durable`` is the
        number of a batch that is known to be durable.
        """
        workspace, until, pause = place.workspace, time.monotonic() + DURABLE_S, PAUSE_S
        while True:
            moment = moment_row.read(workspace.begin_with(moment_row.QUERY))
            if moment is None:
                return None
            while moment.batch > durable and moment.batch > (durable := self._durable(published)):
                if time.monotonic() > until:
                    return None
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
            batch = published.batch(moment.batch)
            # Either many newer batches were written since, so that the page no longer names this one; or a commit that
            # the session has seen is not applied here yet.
            if batch is None or (request.read != STALE and not may_see(moment, request.token)):
                workspace.end()
                if time.monotonic() > until:
                    return None
                time.sleep(PAUSE_S)
                continue
            place.schema = self.schema(place.reader, place.facts, moment.schema, moment.members)
            workspace.move_to(
                moment.vector, moment.schema, Moment(batch.frames, batch.salts, moment.batch), moment.clock
            )
            return moment

    def _durable(self, published: Published) -> int:
        with self._reads.lock:
            return published.facts().durable

    def schema(self, db: apsw.Connection, facts: Facts, version: int, members: int = -1) -> FileSchema:
        """Return the schema and the membership of a connection's snapshot, from the cache if their versions are equal.

        ``version`` -1 accepts any cached schema.
        """
        known = self._schema
        if known is not None and (version < 0 or (known.version, known.membership.version) == (version, members)):
            return known
        made = self._schema = FILE_SCHEMAS.read(db, facts)
        if known is not None and known.version != made.version:
            self.ids.forget_leases()
        self.access.learn(made.membership.users, made.membership.nodes, made.membership.version)
        self.ids.use_members(made.node, made.membership)
        return made

    def check_generation(self, facts: Facts) -> None:
        """Check that the node still serves the file on which a transaction has run.

        Raises:
            UnavailableError: the node has stopped or exchanged its file; the transaction was not committed.
        """
        _, now = self._serving()
        if now is None or (now.generation, now.since) != (facts.generation, facts.since):
            raise UnavailableError(
                "the node has stopped, or has exchanged its file, since the transaction began; it did not happen: run "
                "it again"
            )

    def give_back(self, place: Place) -> None:
        """Take a workspace back, and keep it for the next transaction or close it."""
        try:
            place.workspace.leave_work()
            place.workspace.end()
        except (BedrockishError, apsw.Error):
            place.workspace.is_broken = True
        with self._lock:
            if not (self.is_closed or place.workspace.is_broken or len(self._idle) >= IDLE_MAX):
                self._idle.append(place)
                return
        self._close(place)

    @staticmethod
    def _close(place: Place) -> None:
        try:
            place.close()
        except (BedrockishError, apsw.Error, OSError):
            return

    def fork_locks(self) -> Iterable[Lock]:
        """Return the locks of the thread that begins a transaction, of those that run statements, and of the reads."""
        yield self._beginning
        for one in list(self._open.values()):
            yield one.lock
        yield self._reads.lock

    def after_fork(self) -> None:
        """Leave the transactions to the parent, without closing its connections."""
        connections.abandon((self._idle, self._open, self._temporary))
        self._inherited |= self._open.keys()
        for one in self._open.values():
            one.abandon()
        self.ids.forget_leases()  # the parent gives these ids to its rows
        self._idle, self._open, self._temporary = [], {}, None
        self._lock, self._beginning = threading.Lock(), threading.RLock()

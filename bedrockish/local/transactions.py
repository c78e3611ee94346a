"""Open transactions of a program, executed in its own process on a node's file. The node hears of them at COMMIT.

Each runs in a ``Workspace``: a snapshot that is durable, and a private overlay on it, by the engine's own executor. Its
COMMIT is one message with the keys that it has read and written, and the rows; the node certifies it as it certifies
its own open transactions. Until then the node holds nothing for it, and a program that dies leaves nothing there.

Some statements need the node: those that change the schema, and those that call ``transaction_clock()``,
``cluster_clock()``, ``skip_locked()`` or a function of a plugin. Then the statements so far run again at the node. If
each gives there what it gave here, the transaction goes on at the node, else it has lost to another one.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import apsw

from bedrockish.access_sets.analysis import Analysis
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import SERIALIZABLE, STALE, Request, Result, Statement, Token
from bedrockish.api.temporary import FRESH
from bedrockish.core.protocol.records import Membership, Prepared, decode_membership
from bedrockish.engine.execution.executor import Known
from bedrockish.engine.execution.interfaces import Beside
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.engine.execution.temporary import TemporaryWorkspace
from bedrockish.engine.execution.workspace import Work, Workspace
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.statements.expansion import Expansion
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.engine.statements.rowid_allocator import AutoIds
from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage import system_tables as system
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
from bedrockish.local.page import SERVING, Facts, Published
from bedrockish.local.program_functions import Give, ProgramError
from bedrockish.local.reads import LocalReads, interrupted, may_see, seen_by
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.transaction_control import control_of

IDLE_MAX = 8  # workspaces that are kept for the next transaction
OPEN_S = 60.0  # after which a transaction is rolled back: its snapshot holds up the node's checkpoints
DURABLE_S = 1.0  # how long to wait until the newest moment is durable
PAUSE_S, PAUSE_MAX_S = 0.0002, 0.001  # between two looks: twice as long each time
LOG_MAX, LOG_BYTES = 5_000, 4 << 20  # statements, and bytes of results, that can be run again at the node
TEMPORARY_BYTES = 1 << 40  # of TEMP tables: they take the program's own room
RESULT_BYTES = Limits().result_bytes
LEASE = 64  # ids that the node gives at a time


class NodeNeededError(UsageError):
    """Raised inside: a statement needs the node, so the transaction has to go on there."""

    code = "node_needed"


class IdsNeededError(UsageError):
    """Raised inside: a statement gives ids of a table, and the lease of ids is used up.

    ``details["table"]`` and ``details["above"]`` say which ids are wanted.
    """

    code = "ids_needed"


@dataclass(slots=True)
class Logged:
    """A statement that was run: its result, or the error that it gave."""

    statement: Statement
    told: Result | None
    failure: str = ""


class _Given(threading.local):
    """The ids that a statement of this thread has given, with their tables."""

    def __init__(self) -> None:
        self.ids: list[tuple[str, int]] = []


class LeasedIds(AutoIds):
    """Ids that the node has leased to this process: no other transaction of the cluster gets them.

    Attributes:
        version: another number after each change of the schema: a table of the same name may be a new one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self._leases: dict[str, list[int]] = {}  # of each table, the next id last
        self.given = _Given()

    def twin(self) -> "LeasedIds":
        """Return one for another connection, which takes from the same leases."""
        other = LeasedIds()
        other._home, other._highest, other._leases = self, self._highest, self._leases
        other.given = self.given
        return other

    def note_lease(self, table: str, ids: list[int]) -> None:
        """Note ids that the node has given for a table, in rising order."""
        self._leases[table] = ids[::-1]

    def give_back(self, ids: list[tuple[str, int]]) -> None:
        """Take ids back that no row has: the next rows get them."""
        for table, found in ids:
            leased = self._leases.get(table)
            if leased is not None:
                leased.append(found)  # in place: another thread may take the next one
                leased.sort(reverse=True)

    def forget_leases(self) -> None:
        """Lease again, for a new schema."""
        self.version += 1
        self._leases.clear()

    def _next(self, db: apsw.Connection, table: str) -> int | None:
        above = self._in_table(db, table)
        leased = self._leases.get(table, [])
        while leased:
            found = leased.pop()
            if found > above:
                self.given.ids.append((table, found))
                return found
        raise IdsNeededError("the lease of ids is used up", table=table, above=above)


@dataclass(slots=True, eq=False)
class _Schema:
    """Parts that all workspaces of one file share."""

    known: Known
    membership: Membership
    version: int
    members: int
    is_learner: bool = False
    access: Access = field(default_factory=Access)


class Place:
    """A workspace on a node's file, and the generation of the page under which its files were opened."""

    def __init__(
        self, owner: "LocalTransactions", published: Published, facts: Facts, *, has_temporary: bool = False
    ) -> None:
        self.held: TemporaryWorkspace | None = None
        self._published, self.facts, self._owner = published, facts, owner
        self._dbs: list[apsw.Connection] = []
        self._wal = -1
        self._attached = owner.attached.version
        reader = self._connect()
        try:
            reader.execute("ROLLBACK")
            self._wal = os.open(published.database + "-wal", os.O_RDONLY | os.O_CLOEXEC)
            self.schema = owner.schema(reader, -1)
            self._first: apsw.Connection | None = reader
            locks = RowLocks(lambda: self.schema.known.schema)
            beside = Beside(
                self._reader,
                owner.prepare,
                self._wal,
                owner.ids,
                Limits(),
                locks,
                lambda: self.schema.known,
                self.schema.access,
            )
            if has_temporary:
                self.held = TemporaryWorkspace(beside, TEMPORARY_BYTES)
            self.workspace = self.held.workspace if self.held is not None else Workspace(beside)
            self.workspace.scope.locks = None  # rows are locked at the node
            self.workspace.scope.tick = needs_node
        except BaseException:
            self._release()
            raise

    def _connect(self) -> apsw.Connection:
        db = connections.connect(self._published, self.facts)
        self._dbs.append(db)
        self._owner.prepare(db)
        return db

    def _reader(self) -> apsw.Connection:
        """Give the workspace its reader, which was opened and checked before."""
        found, self._first = self._first, None
        assert found is not None
        return found

    @property
    def reader(self) -> apsw.Connection:
        """The connection that holds the snapshot."""
        return self._dbs[0]

    def attach(self) -> None:
        """Give the connections the files that the session has attached, before a transaction begins."""
        attached = self._owner.attached
        if self._attached != attached.version:
            self.workspace.tell(attached.bring)
            self._attached = attached.version

    def is_of(self, facts: Facts) -> bool:
        """Whether its files are those that the page tells of."""
        return (self.facts.generation, self.facts.since) == (facts.generation, facts.since)

    @property
    def is_broken(self) -> bool:
        """Return whether its connections have failed."""
        return self.workspace.is_broken

    def close(self) -> None:
        """Close the files."""
        try:
            self.workspace.end()
            self.workspace.close()
        finally:
            self._release()

    def _release(self) -> None:
        for db in self._dbs:
            connections.close(db, (self.facts.device, self.facts.inode))
        self._dbs.clear()
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1


def needs_node() -> int:
    """Refuse to give a value of the cluster's clock."""
    raise NodeNeededError("the clock of the cluster is the node's")


class LocalTransaction:
    """One open transaction of this process. One thread at a time uses it.

    Attributes:
        request: its BEGIN.
        seen: the session's token after its snapshot.
        log: the statements so far; None: too many to be run again at the node.
        ids: those that it has given to rows, with their tables.
        keeps_rows: it has rows of TEMP tables, and stays open until it is decided.
    """

    keeps_rows = False

    def __init__(self, owner: "LocalTransactions", place: Place, request: Request, moment: FileMoment) -> None:
        self._owner, self._place, self.request = owner, place, request
        self.seen = seen_by(moment, request.token)
        self.since = time.monotonic()
        self.ids: list[tuple[str, int]] = []
        self._ids_version = owner.ids.version
        self.log: list[Logged] | None = []
        self._logged = 0
        self._ended: BedrockishError | None = None
        self._lock = threading.RLock()  # of the thread that runs a statement
        self._statement = owner.statement_of(self)
        self._moment = moment
        self._session: Session
        self._work: Work
        session = Session(request.isolation == SERIALIZABLE, request.command, request.user, base_clock=moment.clock)
        self._open(session, moment)

    def _open(self, session: Session, moment: FileMoment) -> None:  # noqa: ARG002  another kind needs the moment
        """Begin to run."""
        self._session, self._work = session, self._place.workspace.open_work(session)

    def work_at(self, moment: FileMoment) -> Session | None:
        """Return the work so far if it began at this moment; else None."""
        return self._session if self._moment.batch == moment.batch else None

    def decide(self, error: BaseException | None) -> None:
        """Note the outcome of COMMIT: None, or its error."""

    @property
    def lastrowid(self) -> int | None:
        """Rowid of the row that the transaction inserted last."""
        return self._session.lastrowid or None

    def run(self, statement: Statement) -> Result:
        """Run one statement, or SAVEPOINT, RELEASE and ROLLBACK TO.

        Raises:
            NodeNeededError: the transaction has to go on at the node.
            IdsNeededError: ids have to be leased; then the statement is to be run again.
            BedrockishError: as at the node; the transaction can go on after a usage error, unless ``is_over``.
        """
        if self._ended is not None:
            raise self._ended
        try:
            with self._lock, self._statement:
                result = self._run(statement)
        except (NodeNeededError, ClockNeededError) as error:
            if self._owner.attached.has_any:
                raise UnsupportedError(
                    f"the statement needs the node ({error.message}), which has none of the attached files; detach "
                    "them before the transaction begins",
                    sql=statement.sql,
                ) from error
            raise NodeNeededError(error.message) from error
        except IdsNeededError:
            raise
        except UnsupportedError as error:  # the node says so, or it knows a way
            if self._owner.attached.has_any:
                raise
            raise NodeNeededError(error.message) from error
        except SqlError as error:
            if "no such function" in error.message or "no such collation" in error.message:
                raise NodeNeededError(error.message) from error
            self._note(Logged(statement, None, error.message))
            raise
        except UsageError as error:
            self._note(Logged(statement, None, error.message))
            raise
        self._note(Logged(statement, result))
        return result

    def _run(self, statement: Statement) -> Result:
        control = control_of(statement.sql, statement.params)
        if control is None:
            if _is_for_node(statement.sql) or self._work.interactive.is_schema(statement):
                raise NodeNeededError("the schema changes at the node")
            return self._work.run(statement)
        self._work.interactive.control(self._session, control)
        return Result((), [], -1, self.lastrowid)

    def read(self, statement: Statement) -> Result:
        """Run one statement that only reads.

        Raises:
            UnsupportedError: it does more, or no read set tells what it reads.
            BedrockishError: see ``run``.
        """
        with self._lock, self._statement:
            result = self._work.run(statement, read_only=True)
            if self._session.looked_behind or self._work.scope.used:
                raise UnsupportedError("no read set tells of the database's own tables, or of a clock")
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
        """Whether SQLite itself has ended the transaction because of a statement."""
        return self._session.over

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result; only a transaction with TEMP objects has tables of its own."""
        raise NotImplementedError

    def finish(self) -> Prepared:
        """Return the transaction as the node certifies it; it stays open if this raises.

        Raises:
            ConstraintError: a deferred foreign key is broken.
            UnavailableError: the node has stopped, or has exchanged its file, since the transaction began.
        """
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._owner.check_generation(self._place.facts)
            return self._work.finish()

    def give_ids_back(self) -> None:
        """Let later transactions have the ids that this one has given to rows: it is rolled back."""
        if self._ids_version == self._owner.ids.version:
            self._owner.ids.give_back(self.ids)

    def end(self, error: BedrockishError | None = None) -> None:
        """Roll back what is left of it, and give the workspace back. Ending it twice is fine."""
        if self._ended is None:
            self._ended = error or UnavailableError("the transaction is over; begin another one")
            self._owner.give_back(self._place)

    def end_late(self, error: BedrockishError) -> None:
        """End it if no thread runs a statement of it now; else that statement ends, and the next look ends the rest."""
        if not self._lock.acquire(blocking=False):
            self.stop(error)
            return
        try:
            self.end(error)
        finally:
            self._lock.release()

    def give(self, given: Give) -> None:
        """Register something of the program on the connections of the transaction."""
        with self._lock:
            if self._ended is None:
                given(self._place.reader)
                given(self._work.db)

    def stop(self, error: BedrockishError) -> None:
        """Have the statement that another thread runs end with this error."""
        self._place.workspace.stop(error)


class _Statement:
    """The time in which a transaction runs a statement.

    Meanwhile the program's progress handler is asked, and the ids that the statement gets are the transaction's.
    """

    __slots__ = ("_given", "_ids", "_reads", "_stop")

    def __init__(self, one: LocalTransaction, reads: LocalReads, given: _Given) -> None:
        self._reads, self._given, self._ids = reads, given, one.ids
        self._stop = lambda: one.stop(interrupted())

    def __enter__(self) -> None:
        """Begin a statement in this thread."""
        self._given.ids.clear()
        self._reads.ending = self._stop

    def __exit__(self, *_: object) -> None:
        self._reads.ending = None
        self._ids += self._given.ids


@remembered
def _is_for_node(sql: str) -> bool:
    """Return whether a text asks the node for an explanation."""
    return first_word(without_settings(sql)) == "EXPLAIN"


BeginWith = Callable[["LocalTransactions", Place, Request, FileMoment, LocalTransaction | None], LocalTransaction]


class LocalTransactions:
    """The open transactions of one session of a program.

    Args:
        reads: the session's reads, which know the file and its page.
        begin_with: begins a transaction with TEMP objects.

    Attributes:
        ids: leased by the node.
    """

    def __init__(self, reads: LocalReads, begin_with: "BeginWith") -> None:
        self._reads, self._begin_with = reads, begin_with
        self._lock = threading.Lock()
        self._idle: list[Place] = []
        self._temporary: Place | None = None
        self._temporary_name = ""
        self._schema: _Schema | None = None
        self.ids = LeasedIds()
        self._process = os.getpid()
        self._is_closed = False
        self._open: dict[str, LocalTransaction] = {}
        reads.on_tick, reads.on_given = self.end_late, self._give

    @property
    def attached(self) -> Attached:
        """The files that the session has attached."""
        return self._reads.attached

    def prepare(self, db: apsw.Connection) -> None:
        """Give a connection the functions of the program, and the files that it has attached."""
        for given in self._reads.given:
            given(db)
        self.attached.bring(db)

    def _give(self, given: Give) -> None:
        """Register something of the program: workspaces that are idle are made again, open transactions get it."""
        with self._lock:
            idle, self._idle = self._idle, []
        for place in idle:
            self._close(place)
        if self._temporary is not None:
            self._temporary.workspace.tell(given)
        for one in list(self._open.values()):
            one.give(given)

    def begin(self, request: Request) -> LocalTransaction | None:
        """Begin a transaction on the newest moment; None: it is to begin at the node."""
        request = replace(request, user=self._reads.user)
        if self._is_closed:
            return None
        if self._process != os.getpid():
            self._abandon()
        place = None
        try:
            published, facts = self._serving()
            if published is None or facts is None:
                return None
            place = self._place(published, facts)
            place.attach()
            moment = self._snapshot(place, published, request)
            if moment is None:
                self.give_back(place)
                return None
            made = LocalTransaction(self, place, request, moment)
        except (BedrockishError, apsw.Error, OSError):
            if place is not None:
                self._close(place)
            return None  # the node says what is wrong
        self._open[request.command] = made
        return made

    def read(self, request: Request) -> tuple[list[Result], Prepared, Token] | None:
        """Run statements that only read; None: they are for the node, which also says what is wrong with them.

        Returns:
            their results, the transaction that the node certifies, and the token of a session that has seen it.

        Raises:
            ProgramError: a function of the program has raised.
            DeadlineError: the program has interrupted it.
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
        """Return what stands around each statement of a transaction."""
        return _Statement(one, self._reads, self.ids.given)

    @property
    def is_served(self) -> bool:
        """Whether the node of the file leads transactions now, by its page."""
        return self._serving()[0] is not None

    def is_at_learner(self) -> bool:
        """Whether the node of the file is a learner, as far as the last transaction has seen."""
        if self._schema is None:
            one = self.begin(Request("", ()))
            if one is None:
                return False
            self.forget("")
        assert self._schema is not None
        return self._schema.is_learner

    @property
    def has_own(self) -> bool:
        """Whether the session has functions or attached files, which the node does not have."""
        return bool(self._reads.given) or self.attached.has_any

    def has_temporary(self, name: str) -> bool:
        """Return whether this process has the TEMP objects of a name."""
        return self._temporary is not None and self._temporary_name == name.removeprefix(FRESH)

    def begin_with_temporary(self, request: Request, before: LocalTransaction | None = None) -> bool:
        """Begin a transaction that sees the TEMP objects of the session; False: they are to be made at the node.

        Args:
            request: its BEGIN.
            before: the same transaction, if it has begun before there were any.

        Raises:
            TemporaryLostError: they are gone.
            UnavailableError: no snapshot can be had in time.
            ConflictError: see ``temporary.WithTemporary``.
        """
        request = replace(request, user=self._reads.user)
        published, facts = (None, None) if self._is_closed or self._process != os.getpid() else self._serving()
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
        moment = self._snapshot(place, published, request)
        if moment is None:
            place.workspace.end()
            raise UnavailableError(f"{published.database} does not show what the session has seen; try again")
        made = self._begin_with(self, place, request, moment, before)
        if before is not None:
            before.end()
        self._open[request.command] = made
        return True

    def lose_temporary(self) -> None:
        """Throw the TEMP objects of the session away."""
        place, self._temporary = self._temporary, None
        if place is not None:
            self._close(place)

    def find(self, command: str) -> LocalTransaction | None:
        """Return the open transaction of a command."""
        return self._open.get(command)

    def forget(self, command: str) -> None:
        """A transaction is over here."""
        found = self._open.pop(command, None)
        if found is not None:
            found.end()

    def end_late(self) -> None:
        """End transactions that have been open for too long: each holds up the node's checkpoints."""
        late = time.monotonic() - OPEN_S
        if self._process == os.getpid():
            for one in [one for one in list(self._open.values()) if one.since < late]:
                one.end_late(DeadlineError(f"the transaction was open for {OPEN_S:g} s; it did not happen"))

    @property
    def has_any(self) -> bool:
        """Whether the session has an open transaction here."""
        return bool(self._open)

    def stop(self) -> None:
        """Have the statements that other threads run end now; their transactions are lost."""
        for one in list(self._open.values()):
            one.stop(interrupted())

    def close(self) -> None:
        """Close all of them, and the file."""
        self._is_closed = True
        for command in list(self._open):
            self.forget(command)
        with self._lock:
            idle, self._idle = self._idle, []
        for place in idle:
            self._close(place)
        self.lose_temporary()

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

    def _snapshot(self, place: Place, published: Published, request: Request) -> FileMoment | None:
        """Take the newest snapshot once it is durable; None if the session may not see it yet."""
        workspace, until, pause = place.workspace, time.monotonic() + DURABLE_S, PAUSE_S
        while True:
            workspace.begin({}, 0, Moment(0, b"", 0), 0)
            moment = moment_row.read(system.get_meta(place.reader, moment_row.KEY))
            if moment is None:
                return None
            while moment.batch > self._durable(published):
                if time.monotonic() > until:
                    return None
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
            batch = published.batch(moment.batch)
            # So many batches were written since that the page has forgotten it; or one that the session has seen is
            # still on its way here.
            if batch is None or (request.read != STALE and not may_see(moment, request.token)):
                workspace.end()
                if time.monotonic() > until:
                    return None
                time.sleep(PAUSE_S)
                continue
            place.schema = self.schema(place.reader, moment.schema, moment.members)
            workspace.move_to(
                moment.vector, moment.schema, Moment(batch.frames, batch.salts, moment.batch), moment.clock
            )
            return moment

    def _durable(self, published: Published) -> int:
        with self._reads.lock:
            return published.facts().durable

    def schema(self, db: apsw.Connection, version: int, members: int = -1) -> _Schema:
        """Return what is known of the schema and the members that a connection sees."""
        known = self._schema
        if known is not None and known.version == version and known.members == members:
            return known
        if version < 0 and known is not None:
            return known
        membership = decode_membership(system.get_meta(db, "membership"))
        found = int(system.get_meta(db, "schema_version"))
        if known is None or known.version != found:
            tables = Tables(db, known.known.tables if known is not None else None)
            before = known.known.schema if known is not None else None
            schema = Analysis(db, lambda _db: None, before, tables.definitions).schema
            expansion = Expansion(tables.definitions, known.known.expansion if known is not None else None)
            made = _Schema(Known(tables, schema, expansion), membership, found, membership.version)
            if known is not None:
                made.access = known.access
                self.ids.forget_leases()
        else:
            made = _Schema(known.known, membership, found, membership.version, access=known.access)
        made.access.learn(membership.users, membership.nodes, membership.version)
        node = system.get_meta(db, "node")
        made.is_learner = node in membership.nodes and not membership.members[node].voter
        self.ids.use_members(node, membership)
        self._schema = made
        return made

    def check_generation(self, facts: Facts) -> None:
        """Make sure that the node still serves the file on which a transaction has run.

        Raises:
            UnavailableError: it does not; the transaction did not happen.
        """
        _, now = self._serving()
        if now is None or (now.generation, now.since) != (facts.generation, facts.since):
            raise UnavailableError(
                "the node has stopped, or has exchanged its file, since the transaction began; it did not happen: run "
                "it again"
            )

    def give_back(self, place: Place) -> None:
        """Keep a workspace for the next transaction."""
        try:
            place.workspace.leave_work()
            place.workspace.end()
        except (BedrockishError, apsw.Error):
            place.workspace.is_broken = True
        with self._lock:
            if not (self._is_closed or place.workspace.is_broken or len(self._idle) >= IDLE_MAX):
                self._idle.append(place)
                return
        self._close(place)

    @staticmethod
    def _close(place: Place) -> None:
        try:
            place.close()
        except (BedrockishError, apsw.Error, OSError):
            return

    def _abandon(self) -> None:
        """Begin again after a fork: the connections are the parent's."""
        connections.abandon((self._idle, self._open, self._temporary))
        self._idle, self._open, self._process, self._temporary = [], {}, os.getpid(), None
        self._lock = threading.Lock()

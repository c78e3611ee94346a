"""The connection of PEP 249, compatible with sqlite3's."""

import inspect
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from bedrockish.api.requests import ISOLATIONS, READ_LEVELS, SESSION, check_timeout
from bedrockish.client.blocking import Connection as Link
from bedrockish.client.blocking import connect as open_link
from bedrockish.client.request_builder import Where, target_of
from bedrockish.common.forks import notice_fork, watch_forks
from bedrockish.common.pauses import monotonic
from bedrockish.dbapi import callbacks, errors
from bedrockish.dbapi.cursor import PARSE_COLNAMES, PARSE_DECLTYPES, Again, Cursor, RowFactory, RowSource
from bedrockish.dbapi.errors import InterfaceError, NotSupportedError, OperationalError, ProgrammingError, standing_for
from bedrockish.dbapi.local_functions import LocalFunctions
from bedrockish.dbapi.places import LOCK_S, place_of
from bedrockish.dbapi.session import LEGACY_TRANSACTION_CONTROL, Session
from bedrockish.dbapi.whole import Blob, copy, dump, read_blob
from bedrockish.errors import BedrockishError
from bedrockish.sqltext.statement_kinds import inserts, kind_of
from bedrockish_journal.storage.virtual_tables import is_loaded_by_nodes

if TYPE_CHECKING:
    from bedrockish.dbapi.write_lock import WriteLock

T = TypeVar("T")
P = ParamSpec("P")
FACTORY = 5  # position of ``factory`` among the arguments of ``connect``
DECLARED_S, DECLARED_MAX = 60.0, 1000  # how long, and for how many texts, declared types are cached
DECLARED_CHARACTERS = 1 << 20  # if these texts are longer together, the cache is cleared
ISOLATION_LEVELS = ("", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")


class Connection:
    """A session with a cluster. Get one from ``connect``; close it after use.

    Threads may share a connection and its transaction, one call at a time.

    Why so large: The names are those of PEP 249 and of sqlite3, which programs call.

    Attributes:
        row_factory: called by new cursors for each row as ``row_factory(cursor, tuple)``; None for plain tuples.
        text_factory: called with the UTF-8 bytes of each fetched text; ``str`` by default.
        detect_types: 0, ``PARSE_COLNAMES``, ``PARSE_DECLTYPES`` or both.
    """

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError
    _opened: "tuple[Link, Session] | None" = None  # None if a derived class does not call this __init__

    def __init__(
        self,
        url: Where | bytes | None = None,
        timeout: float | None = None,
        detect_types: int = 0,
        isolation_level: str | None = "",
        check_same_thread: bool = True,
        factory: "Callable[..., Connection] | None" = None,
        cached_statements: int = 128,
        uri: bool = False,
        *,
        database: Where | bytes | None = None,
        read: str | None = None,
        isolation: str = "serializable",
        autocommit: bool | int = LEGACY_TRANSACTION_CONTROL,
        schema_commits: bool = False,
        replay: bool = False,
        write_lock: bool = False,
        token: bytes | None = None,
    ) -> None:
        if type(detect_types) is not int or not 0 <= detect_types <= PARSE_COLNAMES | PARSE_DECLTYPES:
            known = "PARSE_COLNAMES, PARSE_DECLTYPES or both"
            raise ProgrammingError(f"detect_types should be {known}, not {detect_types!r}")
        if read is not None and read not in READ_LEVELS:
            raise ProgrammingError(f"there is no read level {read!r}; there is {', '.join(READ_LEVELS)}")
        url = database if url is None else url
        if url is not None and not isinstance(url, str | bytes | PathLike):
            raise InterfaceError(f"a cluster is named by a URL or a path, not by a {type(url).__name__}")
        try:
            url, can_write = place_of(url)
            target = target_of(url)
            seconds = max(check_timeout(timeout), LOCK_S) if timeout else target.timeout_s
            link = open_link(url, token=token)
        except BedrockishError as error:
            raise standing_for(error) from error
        self._tracer: Callable[[str], object] | None = None
        self._local = LocalFunctions()
        self._opened = link, Session(link, read or target.read or SESSION, seconds, self._trace)
        self.detect_types = detect_types
        self._lock = threading.RLock()
        watch_forks(self)
        self.row_factory: RowFactory | None = None
        self.text_factory: Callable[[bytes], Any] = str
        self._dropped: list[RowSource] = []  # streams whose cursors were dropped; the next call closes them
        self._declared_types: dict[str, tuple[float, list[str | None]]] = {}
        try:
            self._session.schema_commits, self._session.replay = schema_commits, replay
            self._session.can_write = can_write
            self.isolation, self.isolation_level, self.autocommit = isolation, isolation_level, autocommit
            if write_lock:
                self._session.lock = _write_lock(link, LOCK_S if timeout is None else timeout)
        except BaseException:
            self.close()
            raise

    @property
    def _link(self) -> Link:
        if self._opened is None:
            raise ProgrammingError("Base Connection.__init__ not called.")
        return self._opened[0]

    @property
    def _session(self) -> Session:
        if self._opened is None:
            raise ProgrammingError("Base Connection.__init__ not called.")
        return self._opened[1]

    # -- PEP 249 ---------------------------------------------------------------------------------------------------

    def cursor(self, factory: Callable[["Connection"], Cursor] = Cursor) -> Cursor:
        """Return a new cursor."""
        self._check()
        made = factory(self)
        if not issubclass(type(made), Cursor):  # by type(), because an object can claim another __class__
            raise TypeError(f"factory should return a Cursor, not {type(made).__name__}")
        return made

    def commit(self) -> None:
        """Commit the open transaction; do nothing without one.

        Raises:
            OperationalError: the transaction was not committed, or, if ``code`` is ``unknown``, may have been.
            IntegrityError: a deferred constraint is broken; the transaction is still open.
        """
        self._run(lambda session: session.commit())

    def rollback(self) -> None:
        """Roll back the open transaction; do nothing without one."""
        self._run(lambda session: session.rollback())

    def close(self) -> None:
        """Close the session and roll back its open transaction; a second close does nothing."""
        self._link.close()
        if self._session.lock is not None:
            self._session.lock.close()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __call__(self, *_: Any) -> None:
        """Refuse: in sqlite3 a call of the connection makes a statement object, which no other method accepts.

        Raises:
            NotSupportedError: always.
        """
        self._check()
        raise NotSupportedError("statements are compiled at the nodes; use execute()")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Commit; roll back if the block or the COMMIT raises. The connection stays open, as in sqlite3."""
        if error is None:
            try:
                self.commit()
            except BaseException:
                # After COMMIT failed on a deferred constraint, the transaction is still open; but the block, which
                # could have repaired the rows, is over.
                if self._session.in_transaction:
                    self.rollback()
                raise
        elif not self._link.closed:
            self.rollback()
        return False

    # -- further methods of sqlite3 --------------------------------------------------------------------------------

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """Run one statement on a new cursor, and return the cursor; see ``Cursor.execute``."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Cursor:
        """Run one statement many times on a new cursor, and return the cursor; see ``Cursor.executemany``."""
        return self.cursor().executemany(sql, seq_of_parameters)

    def executescript(self, sql_script: str, /) -> Cursor:
        """Run a script on a new cursor, and return the cursor; see ``Cursor.executescript``."""
        return self.cursor().executescript(sql_script)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or has failed and was not rolled back yet."""
        self._check()
        return self._session.in_transaction

    @property
    def total_changes(self) -> int:
        """Number of rows that this connection has changed since it was opened."""
        self._check()
        return self._session.changes

    @property
    def isolation_level(self) -> str | None:
        """sqlite3's legacy mode: with None only BEGIN opens a transaction, with any other value a write does, too."""
        self._check()
        return self._session.isolation_level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        if level is not None and not isinstance(level, str):
            raise TypeError("isolation_level must be str or None")
        level = next((known for known in ISOLATION_LEVELS if level is not None and known == level.upper()), level)
        if level is not None and level not in ISOLATION_LEVELS:
            raise ValueError("isolation_level string must be '', 'DEFERRED', 'IMMEDIATE', or 'EXCLUSIVE'")
        if level is None and self._session.autocommit == LEGACY_TRANSACTION_CONTROL:
            self.commit()
        self._session.isolation_level = level

    @property
    def autocommit(self) -> bool | int:
        """Whether statements are transactions of their own: True, False, or ``LEGACY_TRANSACTION_CONTROL``."""
        return self._session.autocommit

    @autocommit.setter
    def autocommit(self, value: bool | int) -> None:
        if value not in (True, False, LEGACY_TRANSACTION_CONTROL):
            raise ProgrammingError(f"autocommit should be True, False or LEGACY_TRANSACTION_CONTROL, not {value!r}")
        if value is True:
            self.commit()
        self._session.autocommit = value

    # -- beyond sqlite3 ----------------------------------------------------------------------------------------------

    @property
    def isolation(self) -> str:
        """The isolation of transactions begun from now on: ``serializable`` or ``snapshot``."""
        return self._session.isolation

    @isolation.setter
    def isolation(self, value: str) -> None:
        if value not in ISOLATIONS:
            raise ProgrammingError(f"there is no isolation {value!r}; there is {', '.join(ISOLATIONS)}")
        self._session.isolation = value

    @property
    def closed(self) -> bool:
        """Return whether ``close`` was called."""
        return self._link.closed

    @property
    def token(self) -> bytes:
        """The token of this session. A connection that gets this token sees all commits that this session has seen."""
        self._check()
        return self._link.token

    @token.setter
    def token(self, token: bytes) -> None:
        self._check()
        self._link.token = token

    def ping(self) -> None:
        """Wait for an answer of any node.

        Raises:
            OperationalError: no node answers.
        """
        self._run(lambda session: self._link.ping(timeout=session.timeout_s))

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all reads in the block use one snapshot of the node's file: ``with connection.snapshot(): …``.

        Only statements outside of transactions use the snapshot. The block's reads do not see the block's writes.

        Raises:
            NotSupportedError: the connection has no node's file.
            OperationalError: the file was not new enough for the session in time.
        """
        return self._run(lambda session: self._link.snapshot(read=session.read, timeout=session.timeout_s))

    # -- whole databases and single values ------------------------------------------------------------------------

    def iterdump(self) -> Iterator[str]:
        """Return the statements that recreate the database, from one snapshot."""
        self._check()

        def lines() -> Iterator[str]:
            with self._moment() as run:
                yield from dump(run)

        return lines()

    def backup(self, target: sqlite3.Connection, **_: Any) -> None:
        """Copy a snapshot of the database into an empty sqlite3 database. ``bedrockish backup`` copies a node's file.

        Raises:
            TypeError: the target is not a connection of sqlite3.
            ProgrammingError: the target is not empty.
        """
        self._check()
        with self._moment() as run:
            copy(run, target)

    def blobopen(self, table: str, column: str, row: int, /, *, readonly: bool = False, name: str = "main") -> Blob:
        """Open a value to read it as a file; the blob is read-only, even if ``readonly`` is False.

        Raises:
            OperationalError: there is no such value.
        """
        if name != "main":
            raise OperationalError(f"no such table: {name}.{table}; a cluster is one database, main")
        with self._moment() as run:
            return read_blob(run, table, column, row, self._check)

    @contextmanager
    def _moment(self) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
        """Yield a function that runs statements on one snapshot: in the open transaction, or in a new one."""

        def run(sql: str, params: Any = None) -> list[tuple[Any, ...]]:
            rows = self._run(lambda session: session.run(sql, params, kind_of(sql)))
            return list(rows.rows)

        if self.in_transaction:
            yield run
            return
        self.execute("BEGIN")
        try:
            yield run
        finally:
            if not self._link.closed:
                self.rollback()

    # -- methods of sqlite3 that call back into the program, or concern its file ---------------------------------------

    def set_trace_callback(self, callback: Callable[[str], object] | None, /) -> None:
        """Set a function to call with the text of each statement before it is sent, including BEGIN and COMMIT.

        As in sqlite3, exceptions of the function are dropped, or printed after ``enable_callback_tracebacks(True)``.
        Parameters are not written into the text.
        """
        self._check()
        self._tracer = callback

    def _trace(self, sql: str) -> None:
        if self._tracer is not None:
            try:
                self._tracer(sql)
            except Exception:
                callbacks.report()

    def create_function(self, name: str, narg: int, func: Any, *, deterministic: bool = False) -> None:
        """Register a function of the program.

        On a connection with a node's file, reads and statements of open transactions can call it. On a connection by
        URL, a statement that calls the function raises an error, unless a plugin of the nodes has a function of this
        name.

        Raises:
            NotSupportedError: SQLite has a function of this name, which the nodes would run.
        """
        self._register("function", "scalar", name, narg, func, deterministic=deterministic)

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: Any) -> None:
        """Register an aggregate; see ``create_function``."""
        self._register("aggregate", "aggregate", name, n_arg, aggregate_class)

    def create_window_function(self, name: str, num_params: int, aggregate_class: Any, /) -> None:
        """Register a window function; see ``create_function``."""
        self._register("window function", "window", name, num_params, aggregate_class)

    def create_collation(self, name: str, callback: Any, /) -> None:
        """Register a collation; see ``create_function``.

        Raises:
            TypeError: the callback is neither None nor callable.
        """
        if callback is not None and not callable(callback):
            raise TypeError("parameter must be callable")
        self._register("collation", "collation", name, callback)

    def lacks(self, name: str) -> bool:
        """Return whether the connection has a node's file, and the program has registered no function of that name."""
        return self._link.file is not None and not self._local.has(name)

    def _register(self, kind: str, maker: str, name: str, *arguments: Any, **options: Any) -> None:
        """Record a function or collation, and register it on the connections to the node's file, if there is one.

        The last argument is the program's function or class; None removes it. ``maker`` is a function of
        ``bedrockish.local.program_functions``.
        """
        self._check()
        self._local.add(kind, name, is_removed=arguments[-1] is None)
        file = self._link.file
        if file is not None:
            from bedrockish.local import program_functions

            given = getattr(program_functions, maker)(name, *arguments, **options)
            self._run(lambda _: file.register(given))

    def set_authorizer(self, authorizer_callback: Any) -> None:
        """Refuse any authorizer but None: the nodes compile the SQL, and check the user's rights."""
        self._check()
        if authorizer_callback is not None:
            why = "SQL is compiled on the nodes, which cannot call this program's authorizer"
            raise NotSupportedError(f"{why}; connect as a user with fewer rights, or to a file with mode=ro")

    def set_progress_handler(self, progress_handler: Any, n: int) -> None:
        """Set a handler that is called after every ``n`` steps of a statement; a true result interrupts the statement.

        The handler is called only for statements that run in this process: reads of a node's file, and statements of
        open transactions on it. By URL any handler but None is refused; ``timeout`` limits the calls.

        Raises:
            NotSupportedError: this connection has no node's file.
        """
        self._check()
        if self._link.file is not None:
            from bedrockish.local.program_functions import progress

            file = self._link.file
            given = progress(callbacks.guarded(progress_handler), n, lambda: file.ending)
            self._run(lambda _: file.register(given))
        elif progress_handler is not None:
            raise NotSupportedError("SQL runs on the nodes; give a timeout to connect() to end long calls")

    def interrupt(self) -> None:
        """End the calls that other threads are making on this connection, if any.

        The ended calls raise ``OperationalError`` with ``sqlite_errorname`` ``SQLITE_INTERRUPT``. If its ``code`` is
        ``unknown``, the statement may have been committed. An open transaction must be rolled back afterwards.
        """
        self._check()
        self._link.interrupt()

    def enable_load_extension(self, enabled: bool, /) -> None:
        """Do nothing: ``load_extension`` accepts only extensions of the nodes."""
        self._check()

    def load_extension(self, name: str, /, *, entrypoint: str | None = None) -> None:
        """Accept the modules for vectors, ``vec0`` and ``vec1``, which nodes load themselves; refuse all others.

        Raises:
            NotSupportedError: the extension is not one of these modules.
        """
        self._check()
        if not is_loaded_by_nodes(Path(name).stem):
            why = "an extension would exist in this program only; register its functions in a plugin (docs/plugins.md)"
            raise NotSupportedError(why)

    def serialize(self, *, name: str = "main") -> bytes:
        """Refuse: the file is at the nodes.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("the file is at the nodes; 'bedrockish backup' copies it, backup() its content")

    def deserialize(self, data: Any, /, *, name: str = "main") -> None:
        """Refuse: no program can replace a cluster's database.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("no program can replace a cluster's database; load a file with 'bedrockish import'")

    def getlimit(self, category: int, /) -> int:
        """Refuse: the nodes set the limits.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError("the limits are those of the nodes' SQLite; docs/sizes.md has them")

    def setlimit(self, category: int, limit: int, /) -> int:
        """Refuse, like ``getlimit``."""
        return self.getlimit(category)

    def after_fork(self) -> None:
        """Replace the lock in a forked child, because another thread of the parent may have held it."""
        self._lock = threading.RLock()

    # -- for cursors -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        opened = self._opened
        if (self._link if opened is None else opened[0]).closed:
            raise ProgrammingError("Cannot operate on a closed database: this connection is closed; open another")

    def end_at_once(self, *, commits: bool) -> bool:
        """Commit or roll back if that takes some microseconds; return False if ``commit`` or ``rollback`` must do it.

        Only a transaction that has run nothing but known reads on a node's file ends so fast.
        """
        opened = self._opened
        if opened is None or opened[0].closed or not self._lock.acquire(blocking=False):
            return False
        try:
            return opened[1].end_at_once(commits=commits)
        finally:
            self._lock.release()

    def _run_again(
        self, sql: Any, params: tuple[Any, ...] | dict[str, Any], *, only_brief: bool = False
    ) -> Again | None:
        """Repeat, in less time, a statement that has read a node's file or run in a transaction on it before.

        Return None if the statement must be run like any other.

        Args:
            params: values that SQLite stores without conversion.
            only_brief: whether to return None also if that would take more than some microseconds.
        """
        opened = self._opened
        if opened is None or type(sql) is not str or self._tracer is not None:
            return None
        link, session = opened
        if link.closed:
            return None
        notice_fork()
        try:
            if session.reads_alone:
                if only_brief:
                    return None
                read = link.read_again(sql, params, session.read)
                return None if read is None else (read[0], read[1], -1, None, read[2])
            if not self._lock.acquire(blocking=not only_brief):
                return None
            try:
                done = session.run_again(sql, params, only_brief=only_brief)
            finally:
                self._lock.release()
        except BedrockishError as error:
            if "sql" in error.details:
                error.details = {**error.details, "sql": sql}
            raise standing_for(error) from error
        if done is None:
            return None
        lastrowid = None
        if done.rowcount >= 0 and inserts(sql):
            lastrowid = link.values.last_insert_rowid if done.lastrowid is None else done.lastrowid
        return done.columns, done.rows, done.rowcount, lastrowid, None

    def _run(self, what: Callable[[Session], T]) -> T:
        """Call a function with the session, under the connection's lock; raise the exceptions of PEP 249."""
        if self._opened is None:  # a derived class did not call __init__, so the lock is missing; ``_check`` raises
            self._check()
        notice_fork()
        with self._lock:
            self._check()
            while self._dropped:
                self._dropped.pop().close()
            try:
                return what(self._session)
            except BedrockishError as error:
                raise self._local.explained(standing_for(error), has_file=self._link.file is not None) from error

    def _declared(self, sql: str) -> list[str | None]:
        """Return the declared types of a statement's columns, cached by text for ``DECLARED_S``."""
        if self._session.has_own_schema:
            return self._run(lambda session: [declared for _, declared in session.columns(sql)])
        known = self._known_types(sql)
        if known is not None:
            return known
        types = self._run(lambda session: [declared for _, declared in session.columns(sql)])
        if len(self._declared_types) >= DECLARED_MAX or sum(map(len, self._declared_types)) > DECLARED_CHARACTERS:
            self._declared_types.clear()
        self._declared_types[sql] = (monotonic(), types)
        return types

    def _known_types(self, sql: str) -> list[str | None] | None:
        """Return the declared types of a statement's columns if they are cached; else None."""
        kept = self._declared_types.get(sql)
        is_known = kept is not None and monotonic() - kept[0] < DECLARED_S and not self._session.has_own_schema
        return kept[1] if kept is not None and is_known else None

    def _forget_types(self) -> None:
        """Drop the cached declared types, because the schema has changed."""
        self._declared_types.clear()

    def _script(self, section: Sequence[str]) -> None:
        """Run one statement of a script, or several as one transaction, as if ``autocommit`` were True."""

        def work(session: Session) -> None:
            before, session.autocommit = session.autocommit, True
            try:
                if len(section) > 1 and not session.in_transaction:
                    session.run_section(section)
                else:
                    for sql in section:
                        session.run(sql, None, kind_of(sql))
            finally:
                session.autocommit = before

        self._run(work)


def _write_lock(link: Link, timeout_s: float) -> "WriteLock":
    """Return the write lock of a connection.

    Raises:
        NotSupportedError: the connection has no node's file, and with it no lock that several programs share.
    """
    if link.file is None:
        why = "write_lock is shared by programs on a node's file: connect by its path, or add ?local=PATH to the URL"
        raise NotSupportedError(why)
    from bedrockish.dbapi.write_lock import WriteLock  # Windows lacks ``fcntl``

    return WriteLock(link.file.database, link, timeout_s)


def _opening(opened: Callable[P, Connection]) -> Callable[P, Connection]:
    def connect(*args: P.args, **kwargs: P.kwargs) -> Connection:
        """Open a session with a cluster. The first arguments are those of ``sqlite3.connect``, in the same order.

        Args:
            url: such as ``bedrockish://localhost:7373,localhost:7374/?read=session``, or the path of a node's file,
                also as a URI of SQLite (``file:A.sqlite?mode=ro``); by default the environment variable BEDROCKISH_URL.
            timeout: seconds for each call, at least 5; by default, and for 0, the value in the URL. Only a call with
                ``write_lock`` waits for a lock: for this time, which may be 0, and by default for 5 s as in sqlite3.
            check_same_thread, cached_statements, uri: have no effect: threads may share a connection, the nodes compile
                the statements, and a URL is always recognised.
            factory: class of the connection.
            database: the URL, under the name of the argument in sqlite3.
            read: ``stale``, ``session`` or ``strict``; by default the level in the URL.
            isolation: ``serializable`` or ``snapshot``.
            isolation_level: as in sqlite3; None for no implicit transactions.
            autocommit: as in sqlite3; False for the behaviour of PEP 249, where every statement is in a transaction.
            replay: after a conflict, repeat the transaction statement by statement, and continue it if each statement
                has the same result as before; otherwise raise the error as without ``replay``.
            write_lock: let transactions that write wait for each other, as on a SQLite file. It holds between all
                connections with this option that programs of this machine have to the node's file.
            schema_commits: make CREATE, ALTER and DROP transactions of their own that first commit the open
                transaction, as MySQL does; otherwise they join the open transaction.
            detect_types: ``PARSE_COLNAMES`` converts columns named ``x [typename]``, ``PARSE_DECLTYPES`` columns whose
                declared type has a converter; with both, the converter of the name has precedence.
            token: the ``token`` of another session, whose commits the new session sees.

        Raises:
            InterfaceError: the URL cannot be parsed.
            OperationalError: no node can be reached, or the nodes refuse the credentials.
        """
        factory: Any = kwargs.get("factory", args[FACTORY] if len(args) > FACTORY else opened)
        if isinstance(factory, type) and not issubclass(factory, Connection):
            raise ProgrammingError(f"factory should be a class derived from Connection, not {factory!r}")
        # As in sqlite3, the factory gets the arguments unchanged: a derived class may have further ones.
        made: Connection = factory(*args, **kwargs)
        return made

    connect.__signature__ = inspect.signature(opened)  # type: ignore[attr-defined]
    return connect


connect = _opening(Connection)

"""The connection of PEP 249, with the habits of sqlite3."""

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from bedrockish.client.aio import target_of
from bedrockish.client.blocking import Connection as Link
from bedrockish.client.blocking import connect as open_link
from bedrockish.client.rows import Rows
from bedrockish.dbapi import errors
from bedrockish.dbapi.cursor import PARSE_COLNAMES, PARSE_DECLTYPES, Cursor, RowFactory
from bedrockish.dbapi.errors import InterfaceError, NotSupportedError, ProgrammingError, standing_for
from bedrockish.dbapi.session import LEGACY_TRANSACTION_CONTROL, Session
from bedrockish.dbapi.statements import kind_of
from bedrockish.errors import BedrockishError
from bedrockish.params import check_timeout
from bedrockish.requests import ISOLATIONS, READ_LEVELS, SESSION

T = TypeVar("T")
DECLARED_S, DECLARED_MAX = 60.0, 1000  # how long, and for how many texts, declared types are kept
ISOLATION_LEVELS = (None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")


class Connection:
    """A session with a cluster. Get one from ``connect``; close it after use.

    Threads may share it, and take turns; they share its transaction as well.

    Attributes:
        row_factory: what new cursors make of each row, as ``row_factory(cursor, tuple)``; None for tuples.
        text_factory: makes what is fetched of each text from its UTF-8 bytes; ``str`` by default.
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

    def __init__(self, link: Link, session: Session, detect_types: int) -> None:
        self._link, self._session, self.detect_types = link, session, detect_types
        self._lock = threading.RLock()
        self.row_factory: RowFactory | None = None
        self.text_factory: Callable[[bytes], Any] = str
        self._declared_types: dict[str, tuple[float, list[str | None]]] = {}

    # -- the standard ----------------------------------------------------------------------------------------------

    def cursor(self, factory: Callable[["Connection"], Cursor] = Cursor) -> Cursor:
        """Return a new cursor."""
        self._check()
        return factory(self)

    def commit(self) -> None:
        """Commit the open transaction; nothing happens without one.

        Raises:
            OperationalError: it did not happen, or, if ``code`` is ``unknown``, it cannot be told.
            IntegrityError: a deferred constraint is broken; the transaction is still open.
        """
        self._run(lambda session: session.commit())

    def rollback(self) -> None:
        """Take back what the open transaction has done; nothing happens without one."""
        self._run(lambda session: session.rollback())

    def close(self) -> None:
        """Close the session; what is not committed is taken back. Closing twice is fine."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Commit, or roll back if the block has raised. The connection stays open, as sqlite3's does."""
        if error is None:
            self.commit()
        elif not self._link.closed:
            self.rollback()
        return False

    # -- sqlite3's habits ------------------------------------------------------------------------------------------

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """Run one statement on a new cursor, and return that; see ``Cursor.execute``."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Cursor:
        """Run one statement many times on a new cursor, and return that; see ``Cursor.executemany``."""
        return self.cursor().executemany(sql, seq_of_parameters)

    def executescript(self, sql_script: str, /) -> Cursor:
        """Run a script on a new cursor, and return that; see ``Cursor.executescript``."""
        return self.cursor().executescript(sql_script)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or was lost and has not been rolled back yet."""
        return self._session.in_transaction

    @property
    def total_changes(self) -> int:
        """Rows that this connection has changed since it was opened."""
        return self._session.changes

    @property
    def isolation_level(self) -> str | None:
        """In sqlite3's legacy habit: None for no implicit transactions, any of its other values for them."""
        return self._session.isolation_level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        if level not in ISOLATION_LEVELS:
            known = "None, '', DEFERRED, IMMEDIATE or EXCLUSIVE"
            raise ProgrammingError(f"isolation_level should be {known}, not {level!r}")
        if level is None and self._session.autocommit == LEGACY_TRANSACTION_CONTROL:
            self.commit()
        self._session.isolation_level = level

    @property
    def autocommit(self) -> bool | int:
        """Whether statements are transactions of their own: True, False, or sqlite3's legacy habit."""
        return self._session.autocommit

    @autocommit.setter
    def autocommit(self, value: bool | int) -> None:
        if value not in (True, False, LEGACY_TRANSACTION_CONTROL):
            raise ProgrammingError(f"autocommit should be True, False or LEGACY_TRANSACTION_CONTROL, not {value!r}")
        if value is True:
            self.commit()
        self._session.autocommit = value

    # -- what sqlite3 does not have --------------------------------------------------------------------------------

    @property
    def isolation(self) -> str:
        """Of transactions begun from now on: ``serializable`` or ``snapshot``."""
        return self._session.isolation

    @isolation.setter
    def isolation(self, value: str) -> None:
        if value not in ISOLATIONS:
            raise ProgrammingError(f"there is no isolation {value!r}; there is {', '.join(ISOLATIONS)}")
        self._session.isolation = value

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._link.closed

    @property
    def token(self) -> bytes:
        """What this session has seen. Hand it to another connection to let that one see it too."""
        self._check()
        return self._link.token

    @token.setter
    def token(self, token: bytes) -> None:
        self._check()
        self._link.token = token

    def ping(self) -> None:
        """Make sure that some node answers.

        Raises:
            OperationalError: none does.
        """
        self._run(lambda session: self._link.ping(timeout=session.timeout_s))

    def create_function(self, name: str, *_: Any, **__: Any) -> None:
        """Refuse: a function of the program does not exist on the nodes.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            f"the function {name} would exist in this program only, but SQL runs on the nodes; compute in Python"
        )

    # -- for cursors -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._link.closed:
            raise InterfaceError("this connection is closed; open another")

    def _run(self, what: Callable[[Session], T]) -> T:
        """Do something in this connection's turn, with the standard's exceptions."""
        with self._lock:
            self._check()
            try:
                return what(self._session)
            except BedrockishError as error:
                raise standing_for(error) from error

    def _declared(self, sql: str) -> list[str | None]:
        """Return the declared types of a statement's columns: asked once for a text, and anew after a minute."""
        kept = self._declared_types.get(sql)
        if kept is not None and time.monotonic() - kept[0] < DECLARED_S:
            return kept[1]
        types = self._run(
            lambda session: [declared for _, declared in self._link.columns(sql, timeout=session.timeout_s)]
        )
        if len(self._declared_types) >= DECLARED_MAX:
            self._declared_types.clear()
        self._declared_types[sql] = (time.monotonic(), types)
        return types

    def _forget_types(self) -> None:
        """Ask anew: the schema was changed."""
        self._declared_types.clear()

    def _script(self, sql: str) -> Rows:
        """Run a statement of a script: nothing begins a transaction but BEGIN."""

        def work(session: Session) -> Rows:
            before, session.autocommit = session.autocommit, True
            try:
                return session.run(sql, None, kind_of(sql))
            finally:
                session.autocommit = before

        return self._run(work)


def connect(
    url: str | None = None,
    *,
    timeout: float | None = None,
    read: str | None = None,
    isolation: str = "serializable",
    isolation_level: str | None = "",
    autocommit: bool | int = LEGACY_TRANSACTION_CONTROL,
    schema_commits: bool = False,
    detect_types: int = 0,
    token: bytes | None = None,
) -> Connection:
    """Open a session with a cluster.

    Args:
        url: such as ``bedrockish://localhost:7373,localhost:7374/?read=session``; by default the environment variable
            BEDROCKISH_URL.
        timeout: seconds for each call; by default what the URL says.
        read: ``stale``, ``session`` or ``strict``; by default what the URL says.
        isolation: ``serializable`` or ``snapshot``.
        isolation_level: sqlite3's; None for no implicit transactions.
        autocommit: sqlite3's; False for the standard's habit, where every statement is in a transaction.
        schema_commits: let CREATE, ALTER and DROP be transactions of their own, and commit what was done before, as
            MySQL does; otherwise they join the transaction that is open.
        detect_types: ``PARSE_COLNAMES`` to have columns named ``x [typename]`` converted, ``PARSE_DECLTYPES`` those
            whose table declares such a type; or both, of which the name counts first.
        token: what another session has seen.

    Raises:
        InterfaceError: the URL cannot be understood.
        OperationalError: no node can be reached, or it does not let us in.
    """
    if type(detect_types) is not int or not 0 <= detect_types <= PARSE_COLNAMES | PARSE_DECLTYPES:
        raise ProgrammingError(f"detect_types should be PARSE_COLNAMES, PARSE_DECLTYPES or both, not {detect_types!r}")
    if read is not None and read not in READ_LEVELS:
        raise ProgrammingError(f"there is no read level {read!r}; there is {', '.join(READ_LEVELS)}")
    try:
        target = target_of(url)
        seconds = target.timeout_s if timeout is None else check_timeout(timeout)
        link = open_link(url, token=token)
    except BedrockishError as error:
        raise standing_for(error) from error
    made = Connection(link, Session(link, read or target.read or SESSION, seconds), detect_types)
    try:
        made._session.schema_commits = schema_commits
        made.isolation, made.isolation_level, made.autocommit = isolation, isolation_level, autocommit
    except BaseException:
        made.close()
        raise
    return made

"""The TEMP objects of one session: its workspace, which it keeps, and its transactions, which all run there.

The workspace is an overlay on a snapshot (``workspace``), whose connection is the session's own, so SQLite keeps the
TEMP tables as it always does. A transaction begins on the newest snapshot. Its rows in the database are captured and
certified like those of any other; rows of TEMP tables are in no read set, write set or journal. When the transaction is
decided, the overlay is committed, which keeps the TEMP tables, and dropped; or it is rolled back, and they are as they
were before.

No TEMP object has the name of an object in the database: texts of our own name tables without their database.

``begin``, ``stop`` and ``close`` belong to the loop; the rest to one thread at a time.
"""

from collections.abc import Callable
from typing import Any

import apsw

from bedrockish.api.requests import Result
from bedrockish.engine.execution.interfaces import Beside
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.workspace import Work, Workspace
from bedrockish.engine.statements.classify import Piece
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.errors import (
    BedrockishError,
    TemporaryLostError,
    TooLargeError,
    UnsupportedError,
)
from bedrockish.sqltext.transaction_control import ROLLBACK_TO, Control

OF_SCHEMA = (
    "a transaction of a session with TEMP objects cannot change the schema of the database; change it outside of a "
    "transaction, with no TEMP object in the statement, or on another connection"
)
OF_DEFERRING = (
    "a session with TEMP objects cannot defer foreign keys by it; send the statements on another connection, or "
    "declare the keys DEFERRABLE INITIALLY DEFERRED"
)
_CLASH = """
SELECT own.name FROM sqlite_temp_schema AS own JOIN main.sqlite_schema AS other ON own.name = other.name COLLATE NOCASE
WHERE own.type <> 'trigger' AND other.type <> 'trigger' AND own.name NOT LIKE 'bedrockish!_%' ESCAPE '!' LIMIT 1
"""


class TemporaryWorkspace:
    """A workspace that holds the TEMP objects of one session.

    Args:
        means: opens its connections.
        most_bytes: how much its TEMP tables may take.

    Attributes:
        transaction: the open transaction that runs here.
    """

    def __init__(self, means: Beside, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.workspace = Workspace(means)
        self.workspace.temporary_bytes = most_bytes
        self.transaction: TemporaryTransaction | None = None

    @property
    def is_broken(self) -> bool:
        """Return whether its connections failed, so that the TEMP objects are lost."""
        return self.workspace.is_broken

    def close(self) -> None:
        """Throw the TEMP objects away. No thread may be at work."""
        self.workspace.end()
        self.workspace.close()


class TemporaryTransaction(OverlayTransaction):
    """One transaction of a session with TEMP objects; its end leaves the session's workspace open.

    Args:
        held: the session's workspace; no other transaction may be open on it.
        session: the open transaction, which may have run statements elsewhere.
        tick: gives values of the node's clock.
        like: another record of the same transaction, whose statements this one has, too; or None.
    """

    def __init__(
        self, held: TemporaryWorkspace, session: Session, tick: Callable[[], int], like: Session | None = None
    ) -> None:
        super().__init__(held.workspace, session, tick)
        self._held, self._like = held, like
        held.transaction = self
        self._defined = False

    def close(self, *, is_lost: bool = False) -> None:
        """Roll the transaction back unless it was kept; ``is_lost`` ends the use of the TEMP objects."""
        if self.is_closed:
            return
        self.is_closed = True
        workspace = self.workspace
        workspace.is_broken = workspace.is_broken or is_lost
        self._held.transaction = None
        workspace.leave_work()
        if self._defined and self._work is not None:
            self._work.executor.forget_texts()
        workspace.end()

    def open(self) -> None:
        """Make the changes again that the transaction has made elsewhere, before it had TEMP objects.

        Raises:
            ConflictError: its rows no longer fit.
            TemporaryLostError: the database has an object by now with the name of a TEMP one.
            BedrockishError: the file cannot be read, or the error that ``stop`` was given.
        """
        if self._like is not None:
            self.session.follow(self._like)
        super().open()

    def _check(self, work: Work) -> None:
        work.interactive.no_schema, work.interactive.no_defer = OF_SCHEMA, OF_DEFERRING
        clash = self._clash(work.db)
        if clash:
            self.workspace.is_broken = True
            raise TemporaryLostError(
                f"{clash}: the database has an object of this name since, so the TEMP objects of the session are gone; "
                "it did not happen: make them again, under other names"
            )

    def _run_piece(self, work: Work, piece: Piece, params: tuple[Any, ...], room: int) -> Result:
        assert work.interactive.inside is self.session, "rows of TEMP tables cannot be made again"
        try:
            result = super()._run_piece(work, piece, params, room)
        except ClockNeededError:
            raise UnsupportedError(
                "transaction_clock() cannot be called in a session with TEMP objects; call it on another connection, "
                "and send the value as a parameter",
                sql=piece.sql,
            ) from None
        except BedrockishError as error:
            if work.interactive.inside is not self.session:
                self.session.over = True  # SQLite has rolled all of it back, TEMP tables included
            if not isinstance(error.__cause__, apsw.FullError):
                raise
            raise TooLargeError(
                f"the TEMP tables of a session take at most {self._held.most_bytes} bytes (temporary_bytes_max); drop "
                "some of them, or copy less",
                sql=piece.sql,
            ) from error
        if piece.defines:
            self._defined = True
            work.executor.forget_texts()
            clash = self._clash(work.db)
            if clash:
                # The statement has run, so the transaction cannot go on without what it has made.
                self.session.over = True
                raise UnsupportedError(
                    f"{clash}: the database has an object of this name; give the TEMP one another name", sql=piece.sql
                )
        return result

    @staticmethod
    def _clash(db: apsw.Connection) -> str:
        found = db.execute(_CLASH).fetchone()
        return "" if found is None else str(found[0])

    def control(self, control: Control) -> None:
        """Run SAVEPOINT, RELEASE or ROLLBACK TO; ROLLBACK TO rolls back changes of TEMP tables, too.

        Raises:
            SqlError: there is no such savepoint.
        """
        super().control(control)
        if control.kind == ROLLBACK_TO:
            self.work.executor.forget_texts()

    def keep(self) -> None:
        """Keep the TEMP tables: the transaction is decided."""
        try:
            self.workspace.keep_work()
        except apsw.Error:
            self.workspace.is_broken = True

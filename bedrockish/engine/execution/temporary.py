"""The TEMP objects of one session: a workspace for the life of the session, in which all of its transactions run.

The workspace is an overlay on a snapshot (``workspace``) with a connection for this session alone, on which SQLite has
the TEMP tables as usual. A transaction begins on the newest snapshot. Its changes of the database are captured and
certified like those of any other transaction; rows of TEMP tables are in no read set, write set or journal. A
commit keeps the TEMP tables and drops the overlay; a rollback drops the overlay and restores the TEMP tables.

No TEMP object may have the name of an object in the database, because the engine's own SQL names tables without their
schema. SQLite's own ``sqlite_sequence`` and ``sqlite_stat1`` are in both; the engine reads these with their schema.

The loop calls ``take_snapshot``, ``stop`` and ``close``; one thread at a time calls the other methods.
"""

from collections.abc import Callable
from typing import Any

import apsw

from bedrockish.api.requests import Result
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.interactive import broken_at_commit
from bedrockish.engine.execution.interfaces import Connector
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.errors import is_of_a_file
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.statements.compiled import Compiled
from bedrockish.errors import BedrockishError, ConstraintError, TemporaryLostError, TooLargeError, UnsupportedError
from bedrockish.sqltext.transaction_control import ROLLBACK_TO, Control
from bedrockish_journal.storage.schema_steps import deferred_broken

OF_SCHEMA = (
    "a transaction of a session with TEMP objects cannot change the schema of the database; change it outside of a "
    "transaction (the DB-API does so with schema_commits=True), with no TEMP object in the statement, or on another "
    "connection"
)
_CLASH = """
SELECT own.name FROM sqlite_temp_schema AS own JOIN main.sqlite_schema AS other ON own.name = other.name COLLATE NOCASE
WHERE own.type <> 'trigger' AND other.type <> 'trigger' AND own.name NOT LIKE 'bedrockish!_%' ESCAPE '!'
AND own.name NOT LIKE 'sqlite!_%' ESCAPE '!' LIMIT 1
"""


class TemporaryWorkspace(Workspace):
    """The workspace with the TEMP objects of one session, which ``close`` deletes."""

    def __init__(self, connector: Connector, temporary_bytes: int) -> None:
        super().__init__(connector)
        self.temporary_bytes = temporary_bytes
        self.transaction: TemporaryTransaction | None = None  # the open transaction of the session, or None


class TemporaryTransaction(OverlayTransaction):
    """One transaction of a session with TEMP objects; its end leaves the session's workspace open.

    Args:
        workspace: the session's workspace; no other transaction may be open on it.
        work: the open transaction, which may have run statements on the writing connection.
        tick: returns values of the node's clock.
    """

    workspace: TemporaryWorkspace

    def __init__(self, workspace: TemporaryWorkspace, work: TransactionWork, tick: Callable[[], int]) -> None:
        super().__init__(workspace, work, tick)
        workspace.transaction = self
        self._defined = False

    def close(self, *, is_lost: bool = False) -> None:
        """Roll the transaction back unless ``keep`` was called; ``is_lost`` marks the TEMP objects as lost."""
        if self.is_closed:
            return
        self.is_closed = True
        workspace = self.workspace
        workspace.is_broken = workspace.is_broken or is_lost
        workspace.transaction = None
        workspace.leave_work()
        if self._defined and self._writer is not None:
            self.executor.texts.forget()
        workspace.end()
        self.break_cycle()

    def open(self) -> None:
        """Repeat the changes that the transaction made on the writing connection, before it had TEMP objects.

        Raises:
            ConflictError: its rows no longer fit.
            TemporaryLostError: the database now has an object with the name of a TEMP object, or a temporary file
                cannot be written.
            BedrockishError: the file cannot be read, or the transaction was stopped with this error.
        """
        try:
            super().open()
        except BedrockishError as error:
            self._check_files(error)
            raise

    def _check_files(self, error: BedrockishError) -> None:
        """Give the TEMP objects up if a write of their files failed: SQLite may have lost some of their pages.

        Raises:
            TemporaryLostError: a write failed.
        """
        number = 0 if self._writer is None else self._writer.db.system_errno  # None if ``stop`` came before a writer
        if not is_of_a_file(error.__cause__, number):
            return
        self.workspace.is_broken = self.work.has_failed = True
        raise TemporaryLostError(
            "the TEMP objects of the session are gone: their temporary files could not be written; the transaction did "
            "not happen: make room in the folder of temporary files (TMPDIR), and make the objects again"
        ) from error

    def _check(self) -> None:
        self.interactive.no_schema = OF_SCHEMA
        clash = self._clash(self.db)
        if clash:
            self.workspace.is_broken = True
            raise TemporaryLostError(
                f"{clash}: the database now has an object of this name, so the TEMP objects of the session are gone; "
                "the transaction did not happen: make the objects again, under other names"
            )

    def _run_piece(self, piece: Compiled, params: tuple[Any, ...], room: int) -> tuple[Result, int]:
        assert self.interactive.swapped_in is self.work, "a swap-out would lose the rows of TEMP tables"
        try:
            found = super()._run_piece(piece, params, room)
        except ClockNeededError:
            raise UnsupportedError(
                "transaction_clock() cannot be called in a session with TEMP objects; call it on another connection, "
                "and send the value as a parameter",
                sql=piece.shown,
            ) from None
        except BedrockishError as error:
            if self.interactive.swapped_in is not self.work:
                self.work.has_failed = True  # SQLite has rolled the whole transaction back, including its TEMP tables
            self._check_files(error)
            if isinstance(error, ConstraintError) or not isinstance(error.__cause__, apsw.FullError):
                raise
            if not self.work.has_failed:
                self._end = None  # the statement alone is undone, and the next one may need less room
            raise TooLargeError(
                f"the TEMP tables of a session take at most {self.workspace.temporary_bytes} bytes "
                "(temporary_bytes_max); drop some of them, or copy less",
                sql=piece.shown,
            ) from error
        if piece.defines_temporary:
            self._defined = True
            self.executor.texts.forget()
            clash = self._clash(self.db)
            if clash:
                # The statement has run, and only the end of the transaction removes its TEMP object.
                self.work.has_failed = True
                raise UnsupportedError(
                    f"{clash}: the database has an object of this name; give the TEMP object another", sql=piece.sql
                )
        return found

    @staticmethod
    def _clash(db: apsw.Connection) -> str:
        found = db.execute(_CLASH).fetchone()
        return "" if found is None else str(found[0])

    def control(self, control: Control) -> None:
        """Execute SAVEPOINT, RELEASE or ROLLBACK TO; ROLLBACK TO also rolls back changes of TEMP tables.

        Raises:
            SqlError: no savepoint has that name.
        """
        super().control(control)
        if control.kind == ROLLBACK_TO:
            self.executor.texts.forget()

    def finish(self) -> Prepared:
        """Return the prepared transaction, as ``OverlayTransaction.finish`` does.

        Raises:
            ConstraintError: also if a deferred foreign key of a TEMP table is broken, with which ``keep`` would fail.
        """
        if self._end is None and deferred_broken(self.db):
            raise broken_at_commit()
        return super().finish()

    def keep(self) -> None:
        """Keep the changes of TEMP tables, because the transaction is committed."""
        try:
            self.workspace.keep_work()
        except apsw.Error:
            self.workspace.is_broken = True

"""Open transactions of a session with TEMP objects, in the program's process.

The session keeps one workspace, whose connection has the TEMP tables, views and triggers. All transactions of the
session run there, by the same code as a node's sessions with TEMP objects.
"""

import apsw

from bedrockish.api.requests import STRICT, Request
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.temporary import TemporaryTransaction, TemporaryWorkspace
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.errors import BedrockishError, ConflictError, OutcomeUnknownError, TemporaryLostError
from bedrockish.local.program_functions import Registration
from bedrockish.local.transaction import LocalTransaction
from bedrockish.local.transactions import LocalTransactions
from bedrockish.local.workspace_pool import FileWorkspace, raise_node_needed


class WithTemporary(LocalTransaction):
    """One open transaction of a session with TEMP objects.

    Raises:
        TemporaryLostError: the database now has an object with the name of a TEMP object.
        ConflictError: a statement of ``before`` has a different result on this snapshot.
    """

    keeps_rows = True
    _why_not_movable = "which has no TEMP objects of this program; run it on another connection"
    _running: TemporaryTransaction

    def __init__(
        self,
        owner: LocalTransactions,  # the session's transactions
        file_workspace: FileWorkspace,  # the session's workspace
        request: Request,  # the transaction's BEGIN
        moment: FileMoment,  # the moment of the snapshot that the workspace holds
        before: LocalTransaction | None,  # the same transaction, if it began before the session had TEMP objects
    ) -> None:
        self._work_before = None if before is None else before.work_at(moment)
        super().__init__(owner.pool, file_workspace, request, moment)
        self.log = None
        if before is not None and self._work_before is None:
            try:
                self._run_again(before)
            except BaseException:
                self.end()
                raise

    def _open(self, work: TransactionWork, moment: FileMoment) -> None:
        workspace = self._file_workspace.workspace
        assert isinstance(workspace, TemporaryWorkspace)
        if self._work_before is not None:
            work.follow(self._work_before)
        self._running = running = TemporaryTransaction(workspace, work, raise_node_needed)
        running.may_read_system = self.request.read != STRICT
        self._work = work
        self._work.base, self._work.schema = dict(moment.vector), moment.schema
        self._work.base_clock = moment.clock
        try:
            running.open()
        except BaseException as error:
            running.close(is_lost=not isinstance(error, BedrockishError))
            raise

    def _run_again(self, before: LocalTransaction) -> None:
        """Repeat the statements of ``before``; raise ``ConflictError`` if a result differs."""
        if before.log is None:
            raise ConflictError(
                "the transaction has created its first TEMP object after other commits, and is too long to be run "
                "again on them; it did not happen: run it again, and create the TEMP object first"
            )
        same = True
        for logged in before.log:
            told, failure = None, ""
            try:
                told = self.run(logged.statement)
            except BedrockishError as error:
                failure = error.message
            same = same and told == logged.result and failure == logged.failure
        if not same:
            raise ConflictError(
                "the transaction has created its first TEMP object, and another transaction has changed rows that it "
                "had read before; it did not happen: run it again, or create the TEMP object first"
            )

    def end_commit(self, error: BaseException | None) -> None:
        """Keep the changes of TEMP tables if COMMIT succeeded; roll them back if it failed.

        If the outcome of COMMIT is unknown, drop all TEMP objects of the session.
        """
        with self.lock:
            if error is None:
                self._running.keep()
            is_known = error is None or (
                isinstance(error, BedrockishError) and not isinstance(error, OutcomeUnknownError)
            )
            self._running.close(is_lost=not is_known)

    def _return_workspace(self) -> None:
        """Roll the transaction back; keep the session's workspace."""
        try:
            self._running.close()
        except BaseException as error:
            self._file_workspace.workspace.is_broken = True
            if not isinstance(error, apsw.Error):
                raise

    def register(self, given: Registration) -> None:
        """Do nothing: ``LocalTransactions`` registers functions on the session's workspace."""


def begin(
    owner: LocalTransactions,
    file_workspace: FileWorkspace,
    request: Request,
    moment: FileMoment,
    before: LocalTransaction | None,
) -> WithTemporary:
    """Begin a transaction in the workspace that has the TEMP objects of its session.

    Raises:
        BedrockishError: see ``WithTemporary``; after a ``TemporaryLostError`` the TEMP objects are gone.
    """
    try:
        return WithTemporary(owner, file_workspace, request, moment, before)
    except TemporaryLostError:
        owner.lose_temporary()
        raise

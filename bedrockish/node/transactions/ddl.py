"""Open transactions that change the schema; each runs in threads, on a private copy of the database."""

from functools import partial

from bedrockish.api.requests import Result, Statement
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.open_transaction import ASKED_BYTES, LOG_BYTES, LOG_MAX, TransactionWork
from bedrockish.engine.execution.temporary import TemporaryTransaction
from bedrockish.errors import TooLargeError, UnavailableError, UsageError
from bedrockish.node.transactions.lending import Lending

DRAFTS_MAX = 4  # most private copies at the same time; a copy may take much memory


class SchemaTransactions:
    """Runs the open transactions of one node that change the schema."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._open: set[TransactionWork] = set()

    async def run(self, work: TransactionWork, statement: Statement, room: int) -> tuple[Result, int]:
        """Run one text; the first call makes the transaction's private copy.

        Return the result of its last statement, and about how many bytes the results take.

        Raises:
            ConflictError: the schema has changed, or data that the transaction has read.
            BedrockishError: as ``Draft.run``.
        """
        if not isinstance(work.workspace, Draft | TemporaryTransaction):
            await self._start(work, room)
        workspace = self._lending.workspace(work)
        return await self._lending.run(work, lambda: workspace.run(statement, room))

    async def _start(self, work: TransactionWork, room: int) -> None:
        self._lending.interactive.check_schema(work)
        if work.log is None:
            raise TooLargeError(
                f"a transaction may have {LOG_MAX} statements, {ASKED_BYTES >> 20} MiB of their texts and parameters, "
                f"and {LOG_BYTES >> 20} MiB of results before it changes the schema, and no more than its share of the "
                "node's memory; this one has more: change the schema first, or in a transaction of its own"
            )
        self._open = {one for one in self._open if isinstance(one.workspace, Draft)}
        if len(self._open) >= DRAFTS_MAX:
            raise UnavailableError(
                f"{len(self._open)} transactions change the schema at this node now, which is its limit; try again"
            )
        before, was_over = work.workspace, work.over
        draft = Draft(self._lending.engine.connector(), work.user)
        self._open.add(work)
        try:
            await self._lending.begin(work, draft, partial(self._take_copy, work, draft))
            self._lending.workspace(work)  # an operator may have ended the transaction while it waited
            log = work.log
            assert log is not None
            await self._lending.run(work, lambda: draft.open(log, room))
        except UsageError:
            # The copy cannot repeat a statement, such as one that not all nodes can run. The transaction goes on where
            # it has its rows, without the schema statement.
            if not work.ended:
                draft.close()
                work.workspace, work.over, before = before, was_over, None
            raise
        else:
            work.take_log()
            self._lending.interactive.forget(work)
        finally:
            if before is not None:
                before.close()

    def _take_copy(self, work: TransactionWork, draft: Draft) -> None:
        if work.ended:  # the step was cancelled, too; the lender closes the copy
            return
        error = self._lending.begin_on(draft)
        if error is not None:
            draft.stop(error)

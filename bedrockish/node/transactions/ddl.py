"""Open transactions that change the schema; each runs in threads, on a private copy of the database."""

from functools import partial
from typing import Any

from bedrockish.api.requests import Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.open_transaction import ASKED_BYTES, LOG_BYTES, LOG_MAX, Session
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.temporary import TemporaryTransaction
from bedrockish.errors import ConflictError, TooLargeError, UnavailableError
from bedrockish.node.transactions.lending import Lending
from bedrockish.sqltext.transaction_control import Control

DRAFTS_MAX = 4  # a copy may take much memory


class SchemaTransactions:
    """The open transactions of one node that change the schema."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._open: set[Session] = set()

    async def run(self, session: Session, statement: Statement, room: int) -> tuple[Result, int]:
        """Run one text; the first call makes the transaction's private copy.

        Return the result of its last statement, and about how many bytes the results take.

        Raises:
            ConflictError: the schema has changed, or data that the transaction has read.
            BedrockishError: as ``Draft.run``.
        """
        if not isinstance(session.workspace, Draft | TemporaryTransaction):
            await self._start(session, room)
        draft = self._draft(session)
        return await self._lending.run(session, lambda: draft.run(statement, room))

    async def columns(self, session: Session, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, by the tables of the private copy.

        The errors are those of ``Draft.columns``.
        """
        draft = self._draft(session)
        return await self._lending.run(session, lambda: draft.columns(statement))

    async def control(self, session: Session, control: Control) -> None:
        """Run SAVEPOINT, RELEASE or ROLLBACK TO. The errors are those of ``Draft.control``."""
        draft = self._draft(session)
        await self._lending.run(session, lambda: draft.control(control))

    async def finish(self, session: Session) -> Prepared:
        """Return the prepared transaction for its commit. After a usage error the transaction stays open.

        The errors are those of ``Draft.finish``.
        """
        return await self._lending.run(session, self._draft(session).finish)

    async def _start(self, session: Session, room: int) -> None:
        self._lending.interactive.check_schema(session)
        if session.log is None:
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
        if session.workspace is not None:
            session.workspace.close()
        draft = Draft(self._lending.engine.beside(), session.user)
        self._open.add(session)
        await self._lending.begin(session, draft, partial(self._take_copy, session, draft))
        self._draft(session)  # an operator may have ended the transaction while it waited
        log = session.take_log()
        await self._lending.run(session, lambda: draft.open(log, room))

    def _take_copy(self, session: Session, draft: Draft) -> None:
        if session.ended:  # its step was cancelled, too; the lender closes the copy
            return
        error = self._lending.take_snapshot(session, draft)
        if error is not None:
            draft.stop(error)

    def _draft(self, session: Session) -> Draft | OverlayTransaction:
        """Return a transaction's workspace, if it still has the schema in force."""
        if session.workspace is None:
            raise UnavailableError("the transaction was ended; it did not happen")
        if session.workspace.version != self._lending.engine.schema_version:
            raise ConflictError(
                "the schema has changed since the transaction began; it did not happen: run it again", table="schema"
            )
        assert isinstance(session.workspace, Draft | OverlayTransaction)
        return session.workspace

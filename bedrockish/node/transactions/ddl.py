"""Open transactions that change the schema: in threads, each on a private copy of the database (``engine.draft``)."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import trio

from bedrockish.api.requests import Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import ASKED_BYTES, LOG_BYTES, LOG_MAX, Session
from bedrockish.engine.execution.temporary import TemporaryTransaction
from bedrockish.errors import ConflictError, TooLargeError, UnavailableError
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.sqltext.transaction_control import Control

logger = logging.getLogger(__name__)

T = TypeVar("T")
DRAFTS_MAX = 4  # each may take much memory


class SchemaTransactions:
    """The open transactions of one node that change the schema.

    Args:
        engine: has the file that is copied.
        interactive: the code shared with other open transactions.
        durable: returns when all that the node has written so far is durable.
        boundary: runs an action between two batches, where a copy can begin.
    """

    def __init__(
        self, engine: Engine, interactive: Interactive, durable: Callable[[], Awaitable[None]], boundary: Boundary
    ) -> None:
        self._engine, self._interactive, self._durable, self._boundary = engine, interactive, durable, boundary
        self._open: set[Session] = set()

    async def run(self, session: Session, statement: Statement, room: int) -> tuple[Result, int]:
        """Run one text; the first call makes the transaction's private copy.

        Returns:
            the result of its last statement, and about how many bytes the results take.

        Raises:
            ConflictError: the schema has changed, or data that the transaction has read.
            BedrockishError: as ``Draft.run``.
        """
        if session.draft is None:
            await self._start(session, room)
        draft = self._draft(session)
        return await self._in_thread(session, lambda: draft.run(statement, room))

    async def columns(self, session: Session, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, as the private copy has the tables.

        Raises:
            BedrockishError: as ``Draft.columns``.
        """
        draft = self._draft(session)
        return await self._in_thread(session, lambda: draft.columns(statement))

    async def control(self, session: Session, control: Control) -> None:
        """Do SAVEPOINT, RELEASE or ROLLBACK TO.

        Raises:
            BedrockishError: as ``Draft.control``.
        """
        draft = self._draft(session)
        await self._in_thread(session, lambda: draft.control(control))

    async def finish(self, session: Session) -> Prepared:
        """Return the prepared transaction for its commit. After a usage error the transaction stays open.

        Raises:
            BedrockishError: as ``Draft.finish``.
        """
        return await self._in_thread(session, self._draft(session).finish)

    async def _start(self, session: Session, room: int) -> None:
        self._interactive.check_schema(session)
        if session.log is None:
            raise TooLargeError(
                f"a transaction may have {LOG_MAX} statements, {ASKED_BYTES >> 20} MiB of their texts and parameters, "
                f"and {LOG_BYTES >> 20} MiB of results before it changes the schema, and no more than its share of the "
                "node's memory; this one has more: change the schema first, or in a transaction of its own"
            )
        self._open = {one for one in self._open if isinstance(one.draft, Draft)}
        if len(self._open) >= DRAFTS_MAX:
            raise UnavailableError(
                f"{len(self._open)} transactions change the schema at this node now, which is its limit; try again"
            )
        draft = session.draft = Draft(self._engine.beside(), session.user)
        self._open.add(session)
        session.lent = True
        try:
            # The client is told contents of the copy, so its commits must be durable.
            await self._boundary.begin(partial(self._begin, session, draft), self._durable, is_open=self._engine.dirty)
        finally:
            self._back(session)
        self._draft(session)  # an operator may have ended the transaction while it waited
        log = session.take_log()
        await self._in_thread(session, lambda: draft.open(log, room))

    def _begin(self, session: Session, draft: Draft) -> None:
        engine = self._engine
        if session.ended:  # its step was cancelled, too, so no other code would delete the copy
            return
        try:
            draft.begin(engine.applied, engine.schema_version, engine.moment(), engine.applied_clock)
        except UnavailableError as error:
            draft.stop(error)
        except Exception as error:  # this runs in the node's loop, which must not get the error
            logger.exception("a schema workspace could not be opened")
            draft.stop(UnavailableError(f"the node has no room for a schema workspace ({error}); try again"))
        self._interactive.forget(session)

    def _draft(self, session: Session) -> Draft | TemporaryTransaction:
        """Return a transaction's copy, if the copy still has the schema in force.

        Raises:
            ConflictError: the schema has changed.
            UnavailableError: the transaction has ended.
        """
        if session.draft is None:
            raise UnavailableError("the transaction was ended; it did not happen")
        if session.draft.version != self._engine.schema_version:
            raise ConflictError(
                "the schema has changed since the transaction began; it did not happen: run it again", table="schema"
            )
        assert isinstance(session.draft, Draft | TemporaryTransaction)
        return session.draft

    async def _in_thread(self, session: Session, action: Callable[[], T]) -> T:
        session.lent = True
        try:
            return await trio.to_thread.run_sync(action)
        finally:
            session.over = session.over or (session.draft is not None and session.draft.is_over)
            self._back(session)

    def _back(self, session: Session) -> None:
        """Give a transaction's copy back; if the transaction has ended since it was lent, throw the copy away."""
        session.lent = False
        if session.ended:
            self._interactive.end(session)

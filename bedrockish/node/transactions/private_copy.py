"""Open transactions that change the schema: each runs in threads, on a private copy of the database."""

from dataclasses import replace
from functools import partial

import trio

from bedrockish.api.requests import Answer, Request
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.merged_inserts import count_alike
from bedrockish.engine.execution.open_transaction import ASKED_BYTES, LOG_BYTES, LOG_MAX, TransactionWork
from bedrockish.errors import TooLargeError, UnavailableError, UsageError
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.open import OpenTransaction, checked
from bedrockish.node.transactions.places import Services, StatementList, WorkspacePlace

WAIT_S, LOOK_S = 3.0, 0.005  # how long a transaction waits for a copy, and the pause between two checks
DRAFTS_MAX = 4  # most private copies at the same time; a copy may take much memory


class PrivateCopy(WorkspacePlace):
    """The private copy of the database on which a transaction changes the schema."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._open: set[TransactionWork] = set()

    def run(self, tx: OpenTransaction, texts: StatementList) -> steps.Steps[None]:
        """Run the next text, or several INSERTs with the same text; the first schema statement makes the copy."""
        work = tx.work
        if work.workspace is None:
            yield from self._services.visibility.catch_up(tx)
        if not isinstance(work.workspace, Draft):
            yield from steps.wait(partial(self.start, work, texts.room))
        draft, rest = self.workspace(work), texts.rest
        may_merge = texts.control is None and texts.position >= texts.alone and count_alike(rest) > 1
        if may_merge and isinstance(draft, Draft):
            found, size = yield from steps.wait(
                partial(self.run_in_thread, work, partial(draft.run_alike, rest, texts.room))
            )
            self._services.check_open(tx)
            for result in found:
                texts.add(result)
            texts.room -= size
            if found:
                return
            texts.alone = texts.position + count_alike(rest)
        yield from super().run(tx, texts)

    def commit(self, tx: OpenTransaction, last: Request) -> steps.Steps[Answer]:
        """Commit the transaction's statements, which every node runs again at the activation."""
        if tx.request.read_only:
            raise UsageError("the transaction was begun as read-only, and has changed the schema; roll it back")
        drafted, engine = (yield from self._finish(tx)), self._engine
        self._services.close(tx)
        prepare = checked(engine.access, last.user, lambda: replace(drafted, base=dict(engine.applied)))
        try:
            return (yield from steps.wait(self._services.submit(last, prepare, once=True)))
        except UsageError as error:  # the schema change failed on the data at its activation
            raise type(error)(error.message, **{**error.details, "ended": True}) from error

    async def start(self, work: TransactionWork, room: int) -> None:
        """Make the copy of a transaction, and repeat its earlier statements there.

        Raises:
            ConflictError: the schema has changed, or data that the transaction has read.
            BedrockishError: as ``Draft.open``.
        """
        if work.log is None:
            raise TooLargeError(
                f"a transaction may have {LOG_MAX} statements, {ASKED_BYTES >> 20} MiB of their texts and parameters, "
                f"and {LOG_BYTES >> 20} MiB of results before it changes the schema, and no more than its share of the "
                "node's memory; this one has more: change the schema first, or in a transaction of its own"
            )
        await self._wait_for_room()
        if work.ended:
            raise UnavailableError("the transaction was ended while it waited; it did not happen")
        self._interactive.check_schema(work)
        before, had_failed = work.workspace, work.has_failed
        draft = Draft(self._engine.connector(), work.user)
        self._open.add(work)
        try:
            await self.begin(work, draft, moves=False)
            self.workspace(work)  # the schema may have changed while the transaction waited
            log = work.log
            assert log is not None
            await self.run_in_thread(work, lambda: draft.open(log, room))
        except UsageError:
            # The copy cannot repeat an earlier statement, for example one that would have another result elsewhere. The
            # transaction goes on in its earlier place, without the schema statement.
            if not work.ended:
                draft.close()
                work.workspace, work.has_failed, before = before, had_failed, None
            raise
        else:
            work.take_log()
            self._interactive.release_connections(work)
        finally:
            if before is not None:
                before.close()

    async def _wait_for_room(self) -> None:
        """Wait, as SQLite waits for its lock, until fewer than ``DRAFTS_MAX`` transactions have a copy.

        Raises:
            UnavailableError: the wait has taken ``WAIT_S``.
        """
        until = trio.current_time() + WAIT_S
        while True:
            self._open = {one for one in self._open if isinstance(one.workspace, Draft)}
            if len(self._open) < DRAFTS_MAX:
                return
            if trio.current_time() >= until:
                raise UnavailableError(
                    f"{len(self._open)} transactions change the schema at this node now, which is its limit; try again"
                )
            await trio.sleep(LOOK_S)

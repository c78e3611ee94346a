"""The TEMP objects of sessions at one node: bounded workspaces, in which the transactions of these sessions run."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

import trio

from bedrockish.api.requests import STRICT, Answer, Request
from bedrockish.api.temporary import FRESH
from bedrockish.config.config import Bounds
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.temporary import TemporaryTransaction, TemporaryWorkspace
from bedrockish.errors import (
    BedrockishError,
    OutcomeUnknownError,
    TemporaryLostError,
    UnavailableError,
    UnsupportedError,
)
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.callers import RULE, has_room
from bedrockish.node.transactions.open import OpenTransaction, checked
from bedrockish.node.transactions.places import Services, WorkspacePlace
from bedrockish.node.transactions.visibility import checked_read

ENDED_MAX = 1_000  # the most dropped workspaces for which the reason is kept for a later step of the client
ENDING_S, LOOK_S = 5.0, 0.01
_ELSEWHERE = "they were at another node, or on a link that was lost"


@dataclass(slots=True, eq=False)
class _SessionObjects:
    """The TEMP objects of one session."""

    owner: object
    caller: str  # the user or the address to whose share the TEMP objects count
    workspace: TemporaryWorkspace
    touched: float  # when the session's last transaction began, in seconds

    @property
    def is_ending(self) -> bool:
        """Whether the session's transaction was ended while a statement of it still runs."""
        running = self.workspace.transaction
        return running is not None and running.work.ended


class SessionWorkspaces(WorkspacePlace):
    """The workspaces of the sessions that have TEMP objects."""

    def __init__(self, services: Services, bounds: Bounds) -> None:
        super().__init__(services)
        self._bounds = bounds
        self._by_session: dict[str, _SessionObjects] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_session)

    def move(self, tx: OpenTransaction, name: str) -> steps.Steps[None]:
        """Move a transaction to the workspace of its session.

        Args:
            name: the name of the session's TEMP objects.

        Raises:
            TemporaryLostError: the session's TEMP objects are gone.
            UnavailableError: the node has no room for TEMP objects of another session.
            ConflictError: data or a schema on which the transaction rests has changed.
        """
        yield from self._services.visibility.catch_up(tx)
        yield partial(self._move, tx, name)
        self._services.check_open(tx)

    async def _move(self, tx: OpenTransaction, name: str) -> None:
        work = tx.work
        self._interactive.check_schema(work)
        objects = self._find(tx.owner, name, tx.caller)
        if objects.is_ending:
            with trio.move_on_after(ENDING_S):  # an interrupted statement ends soon; wait for its end
                while objects.is_ending:  # noqa: ASYNC110  a thread of the workers ends it
                    await trio.sleep(LOOK_S)
            objects = self._find(tx.owner, name, tx.caller)
        if objects.workspace.transaction is not None:
            raise UnsupportedError("another open transaction of the session has its TEMP objects; end that one first")
        tick = self._services.workers.scope(work.command, work.clock).tick
        assert tick is not None
        if isinstance(work.workspace, OverlayTransaction):
            work.workspace.record()
            work.workspace.close()
        running = TemporaryTransaction(objects.workspace, work, tick)
        await self.begin(work, running, moves=True)
        await self.run_in_thread(work, running.open)
        tx.revealed = work.base

    def commit(self, tx: OpenTransaction, last: Request) -> steps.Steps[Answer]:
        """Commit the rows of the transaction; the TEMP tables keep theirs if the commit succeeds."""
        running, services = tx.work.workspace, self._services
        assert isinstance(running, TemporaryTransaction)
        prepared = checked_read(tx, (yield from self._finish(tx)))
        answer = Answer(prepared.result, services.visibility.token(tx))
        tx.work.workspace = None  # else ``close`` would roll back its rows in TEMP tables
        services.close(tx)
        is_led = not prepared.readonly or tx.request.read == STRICT
        prepare = checked(self._engine.access, last.user, lambda: prepared)
        led = services.submit(last, prepare, once=True) if is_led else None
        return (yield from steps.wait(partial(_end_prepared, running, led, answer)))

    def end_late(self) -> None:
        """Drop the TEMP objects that were idle for too long."""
        late = time.monotonic() - self._bounds.idle_temporary_ms / 1000
        for name, objects in list(self._by_session.items()):
            if objects.workspace.transaction is None and objects.touched < late:
                self._close(
                    name, f"no statement used them for {self._bounds.idle_temporary_ms / 1000:g} s (idle_temporary_ms)"
                )

    def end_owner(self, owner: object) -> None:
        """Drop the TEMP objects of a client whose link and transactions have ended."""
        for name, objects in list(self._by_session.items()):
            if objects.owner is owner and objects.workspace.transaction is None:
                self._close(name, _ELSEWHERE)
            elif objects.owner is owner:
                objects.owner, objects.touched = None, 0.0  # a thread still runs; ``end_late`` drops it later

    def close(self) -> None:
        """Drop all TEMP objects, because the node stops."""
        for name, objects in list(self._by_session.items()):
            if objects.workspace.transaction is None:  # otherwise a thread still runs, and was interrupted
                self._close(name, "the node is stopping")

    def _find(self, owner: object, name: str, caller: str) -> _SessionObjects:
        objects = self._by_session.get(name.removeprefix(FRESH))
        if objects is not None and objects.owner is owner and objects.workspace.is_broken:
            self._close(name.removeprefix(FRESH), "their connection at the node failed, or may not be used any more")
            objects = None
        if objects is not None and objects.owner is owner:
            objects.touched = time.monotonic()
            return objects
        if not name.startswith(FRESH) or objects is not None:
            why = self._ended.get(name, _ELSEWHERE)
            raise TemporaryLostError(
                f"the TEMP objects of the session are gone: {why}; the transaction did not happen: "
                "make the objects again"
            )
        mine = sum(one.owner is owner for one in self._by_session.values())
        most = self._bounds.temporary_max
        if mine >= max(most // 4, 1) or not has_room(most, (one.caller for one in self._by_session.values()), caller):
            raise UnavailableError(
                f"{mine} sessions with TEMP objects on this link and {len(self._by_session)} at this node: its limit "
                f"is {most} (temporary_max), a quarter of them on one link, and {RULE}: close some"
            )
        workspace = TemporaryWorkspace(self._engine.connector(), self._bounds.temporary_bytes_max)
        made = _SessionObjects(owner, caller, workspace, time.monotonic())
        self._by_session[name.removeprefix(FRESH)] = made
        return made

    def _close(self, name: str, why: str) -> None:
        objects = self._by_session.pop(name)
        objects.workspace.close()
        self._ended[name] = why
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)


async def _end_prepared(running: TemporaryTransaction, led: steps.Submission | None, read: Answer) -> Answer:
    """End a prepared transaction, and return its answer.

    If the transaction commits, its changes of TEMP tables stay. If it fails, they are rolled back. If its outcome is
    unknown, all TEMP objects of the session are lost.

    Args:
        led: commits the transaction; None: it has only read.
        read: the answer if it has only read.

    Raises:
        BedrockishError: the error of the commit.
    """
    try:
        answer = read if led is None else await led
    except BaseException as error:
        is_known = isinstance(error, BedrockishError) and not isinstance(error, OutcomeUnknownError)
        running.close(is_lost=not is_known)
        raise
    await trio.to_thread.run_sync(running.keep)
    running.close()
    return answer

"""Strict reads of the cluster's own tables that cannot be executed again: those of open transactions and of streams.

Before such a read, the node asks a majority what it knows, and waits for that (``core.coordinator.catch_up``). So the
snapshot that is read has every commit that was acknowledged before the transaction or the stream began.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import trio

from bedrockish.api.requests import NOTHING, OPEN, STRICT, Request
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.interfaces import Lends
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.errors import ConflictError, UsageError
from bedrockish.node.scheduling.durability import Durable, Submit
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.transactions.open import Open
from bedrockish.node.transactions.steps import Steps
from bedrockish.node.transactions.visibility import Visibility
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.model.vector import covers

SUFFIX, ID_MAX = "+level", 200  # the end of the question's command id, and its length at most


async def reach_level(submit: Submit, engine: Lends, request: Request) -> None:
    """Return when this node has applied every commit that was acknowledged before the call.

    Args:
        request: the request for which the node asks.

    Raises:
        UnavailableError: no majority told what it knows, or a transaction did not end, in the time of the request.
    """

    def empty() -> Prepared:
        applied, version = dict(engine.applied), engine.schema_version
        return Prepared(applied, version, True, ROWS, AccessSet(), b"", NOTHING, reads_system=True)

    command = f"{request.command}{SUFFIX}"[-ID_MAX:]
    await submit(replace(request, command=command, statements=(), read=STRICT, digest=OPEN), empty)


def checked_read(one: Open, prepared: Prepared) -> Prepared:
    """Return a transaction for its commit; its reads of the cluster's own tables need no further question.

    Raises:
        UsageError: the transaction writes, and was begun as read-only.
    """
    if one.request.read_only and not prepared.readonly:
        raise UsageError("the transaction was begun as read-only, and has written; roll it back")
    assert not prepared.reads_system or one.level is not None or one.request.read != STRICT, "it asked before it read"
    return replace(prepared, reads_system=False)


class StrictLevel:
    """The questions of open transactions whose read level is ``strict``."""

    def __init__(
        self,
        engine: Lends,
        submit: Submit,  # has the core answer a request
        durable: Durable,
        boundary: Boundary,  # runs actions between two batches
        visibility: Visibility,  # moves the snapshots of transactions
    ) -> None:
        self._engine, self._submit, self._durable = engine, submit, durable
        self._boundary, self._visibility = boundary, visibility

    def reach(self, one: Open, find: Callable[[], object]) -> Steps[None]:
        """Have a transaction see every commit that was acknowledged before this call.

        The manager calls this before the first read of the cluster's own tables. It cannot tell which tables a
        statement in a workspace reads, so it also calls this before it makes a workspace.

        Args:
            one: the transaction.
            find: raises the error of the transaction if it has ended.

        Raises:
            ConflictError: the snapshot cannot move up, because rows that the transaction has read were changed.
            UnavailableError: as ``reach_level``.
        """
        session = one.session
        yield partial(reach_level, self._submit, self._engine, one.request)
        find()
        one.level = dict(self._engine.applied)
        if session.snapshot is None or covers(session.base or {}, one.level):
            return  # its next statement runs on a newer snapshot, or on the newest commits
        moved = trio.Event()
        self._boundary.call(partial(self._move_up, session, moved))
        yield self._durable
        yield moved.wait
        find()
        if not covers(session.base or {}, one.level):
            raise ConflictError(
                "the transaction read rows before it read a table of the cluster itself, and its snapshot lacks "
                "commits that the level strict needs; it did not happen: run it again, or read that table first"
            )

    def _move_up(self, session: Session, moved: trio.Event) -> None:
        """Move a transaction that has only read to a snapshot of the last batch, if its reads would be the same."""
        # The clock that its client got has to stay later than its snapshot, and under snapshot isolation the first
        # snapshot stays.
        if not (session.ended or session.clock) and session.serializable and session.base is not None:
            self._visibility.move_up(session, dict(session.base))
        moved.set()

"""Compares the before-images of a large transaction with our rows, in a thread and on a snapshot, before the vote.

The snapshot has everything that was applied when the voter asked, the transaction's base included. An entry that is
applied between the snapshot and the vote does no harm: if it has written one of these rows, it conflicts with the
transaction, because it is not in the base. The voter tests that in the step in which it takes the result of the
comparison, and rejects the transaction.

The rows are unpacked for the comparison, and stay unpacked until they are applied (``engine.storage.staged_changes``).
The rows of a transaction that this node leads are unpacked as well, without a comparison.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio

from bedrockish.core.protocol.events import Compared, Event
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.batch import LONG_BYTES
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage.staged_changes import StagedChanges, stage
from bedrockish.errors import DamagedError, UnavailableError
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.snapshots import Snapshots
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid

STAGED_S = 30.0  # how long rows stay unpacked if they are not applied
LOOK_S = 0.5  # seconds between two tests whether the rows are applied
KEPT_MAX = 16  # most stored results; some are never read, because their transactions have ended


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """The result of a comparison; ``why`` is None if the comparison could not be made."""

    body: bytes
    schema: int
    why: str | None


class RowComparison:
    """Compares before-images for the core's ``compare_rows``, for transactions larger than ``LONG_BYTES``."""

    def __init__(
        self,
        engine: Engine,
        snapshots: Snapshots,  # takes the snapshots on which the rows are compared
        post: Callable[[Event], None],  # takes events for the core
        start: Callable[..., None],  # runs a task until the node ends
        stop: Callable[[Exception], None],  # ends the node's loop with an error
        faults: Faults,  # takes unexpected errors
    ) -> None:
        self._engine, self._snapshots, self._post = engine, snapshots, post
        self._start, self._stop, self._faults = start, stop, faults
        self._running: set[Txid] = set()
        self._found: OrderedDict[Txid, ComparisonResult] = OrderedDict()
        self._limiter = trio.CapacityLimiter(1)  # one comparison at a time, because each has some of its rows in memory

    def compare(self, transaction: Transaction) -> str | None:
        """Return how a transaction's old rows differ from ours, or an empty text; None if ``Compared`` follows."""
        engine, txid = self._engine, transaction.txid
        if transaction.kind != ROWS:
            return engine.entries.why_rows_differ(transaction)
        found = self._found.pop(txid, None)
        if found is not None and found.body == transaction.body and found.schema == engine.schema_version:
            return engine.entries.why_rows_differ(transaction) if found.why is None else found.why
        if txid not in self._running:
            self._running.add(txid)
            self._start(self._compare, transaction, engine.schema_version)
        return None

    async def _compare(self, transaction: Transaction, schema: int) -> None:
        why: str | None = None
        try:
            if transaction.schema != schema:
                why = ""  # rows of a schema that is not in force here cannot be compared, and count as equal
            else:
                why = await self._on_snapshot(transaction)
        except UnavailableError:
            pass  # no room for another connection: the rows are compared in the loop
        except DamagedError as error:
            self._stop(error)
            return
        except Exception as error:
            self._faults.caught(f"comparing the rows of {transaction.txid}", error)
        self._running.discard(transaction.txid)
        self._found[transaction.txid] = ComparisonResult(transaction.body, schema, why)
        while len(self._found) > KEPT_MAX:
            self._found.popitem(last=False)
        self._post(Compared(transaction.txid))

    async def _on_snapshot(self, transaction: Transaction) -> str:
        async with self._limiter:
            staged = await self._unpacked(transaction.changes)
            try:
                snapshot, _ = await self._snapshots.take()
                try:
                    tables = self._engine.tables
                    why = await trio.to_thread.run_sync(snapshot.compare, transaction.changes, tables, staged)
                finally:
                    self._snapshots.give_back(snapshot)
            except BaseException:
                if staged is not None:
                    staged.close()
                raise
            if staged is not None:
                self._keep(staged)
            return why

    # -- unpacking -------------------------------------------------------------------------------------------------

    def unpack(self, prepared: Prepared) -> None:
        """Unpack the rows of a transaction that this node leads, if they are many, while the votes on it are under way.

        Without other voters, the transaction is applied at once, and its rows are not unpacked.
        """
        alone = len(self._engine.access.nodes) == 1
        if len(prepared.changes) > LONG_BYTES and prepared.kind == ROWS and not prepared.readonly and not alone:
            self._start(self._unpack, prepared.changes)

    async def _unpack(self, changes: bytes) -> None:
        try:
            async with self._limiter:
                staged = await self._unpacked(changes)
        except Exception as error:  # the rows are applied without unpacking
            self._faults.caught("unpacking a large transaction", error)
            return
        if staged is not None:
            self._keep(staged)

    async def _unpacked(self, changes: bytes) -> StagedChanges | None:
        engine = self._engine
        return await trio.to_thread.run_sync(stage, changes, engine.tables, engine.schema_version)

    def _keep(self, staged: StagedChanges) -> None:
        self._engine.entries.staged.keep(staged)
        self._engine.memory.hold(staged, staged.size)
        self._start(self._expire, staged)

    async def _expire(self, staged: StagedChanges) -> None:
        """Drop unpacked rows once they are applied, and after ``STAGED_S`` at the latest."""
        engine = self._engine
        try:
            with trio.move_on_after(STAGED_S):
                while staged in engine.entries.staged:  # noqa: ASYNC110  another thread may apply them
                    await trio.sleep(LOOK_S)
            engine.entries.staged.drop(staged.changes)
        finally:
            engine.memory.hold(staged, -staged.size)

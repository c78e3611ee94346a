"""Programs that follow the change feed page by page, each page from any node, and read each transaction once."""

from random import Random
from typing import TYPE_CHECKING

from bedrockish_journal.model.transaction import Txid

if TYPE_CHECKING:
    from tools.sim.machine import Machine
    from tools.sim.world import World

PAGE = 7
POLL_S = 0.05


class FeedReader:
    """A reader of the feed. Its cursor is the last transaction that it has read."""

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.name = world, f"reader {number}"
        self.luck = Random(f"{self.name} {world.options.seed}")
        self.seen: list[Txid] = []  # the transactions in the order in which they were read

    def start(self) -> None:
        """Begin to read."""
        self.world.after(self.luck.uniform(0.0, 0.2), self._ask)

    def _ask(self) -> None:
        self.world.after(POLL_S * self.luck.uniform(0.5, 3.0), self._ask)
        running = [machine for machine in self.world.machines.values() if machine.running]
        if running:
            self.read(self.luck.choice(running))

    def read(self, machine: "Machine") -> None:
        """Read the next page from one node: the transactions after the cursor, up to the node's safe time."""
        assert machine.node is not None
        after = self.seen[-1] if self.seen else Txid(0, "")
        safe = machine.node.state.clock.safe
        found = sorted(txid for txid in machine.disk.seen.txids if txid > after and txid.clock <= safe)[:PAGE]
        machine.disk.then(lambda: self._take(after, found))

    def _take(self, after: Txid, found: list[Txid]) -> None:
        if (self.seen[-1] if self.seen else Txid(0, "")) == after:  # else a page of another node came first
            self.seen.extend(found)
            self.world.counts["fed"] += len(found)

"""The faults: nodes are killed and restarted, stopped and continued, and cut off from each other in many ways."""

import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field

import trio

from tools.chaos.cluster import ProxiedCluster
from tools.chaos.proxy import Line
from tools.cluster import LocalNode

QUIET_ROWS = 200  # of the table ``quiet``, which no client uses after its creation
FLIPS_MAX = 3
FAULTS = ("kill", "pause", "partition", "flip")


@dataclass
class Faults:
    """Draws faults and undoes them after a while.

    Attributes:
        cluster: the nodes.
        luck: the source of random choices.
        kinds: the kinds of faults to draw.
        counts: the number of faults, by kind.
        deaths: the last output of nodes that ended without being killed.
    """

    cluster: ProxiedCluster
    luck: random.Random
    kinds: tuple[str, ...] = FAULTS
    counts: Counter[str] = field(default_factory=Counter)
    deaths: list[str] = field(default_factory=list)
    _struck: set[str] = field(default_factory=set)  # nodes that are dead or stopped
    _killed: set[str] = field(default_factory=set)
    _parted: bool = False

    async def run(self) -> None:
        """Strike until cancelled, then undo everything: all nodes run, and all of them hear each other."""
        strikes: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "partition": self._part,
            "flip": self._flip,
        }
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(self.luck.uniform(0.2, 2.0))
                    nursery.start_soon(strikes[self.luck.choice(self.kinds)])
        finally:
            self.undo()

    def undo(self) -> None:
        """Start, continue and connect everything."""
        self.cluster.network.heal()
        for node in self.cluster.nodes:
            self.look(node)
            if node.is_running:
                _signal(node, signal.SIGCONT)
            else:
                node.start()
        self._struck.clear()
        self._killed.clear()

    def look(self, node: LocalNode) -> None:
        """Note it if a node has ended by itself."""
        if node.is_running or node.name in self._killed:
            return
        assert node.process is not None
        self.deaths.append(f"node {node.name} ended by itself ({node.process.returncode}):\n{node.last_words()}")
        self._killed.add(node.name)  # said once

    def _victims(self) -> list[LocalNode]:
        """Choose nodes to strike: mostly so that a majority is left, sometimes not. Without one, little happens."""
        well = [node for node in self.cluster.nodes if node.name not in self._struck]
        spare = self._spare() - self._parted
        if self.luck.random() < 0.1:
            spare = len(well)
        if spare <= 0:
            return []
        return self.luck.sample(well, self.luck.randint(1, spare))

    def _spare(self) -> int:
        """Return how many more nodes may fall before the majority is lost."""
        return (len(self.cluster.nodes) - 1) // 2 - len(self._struck)

    async def _kill(self) -> None:
        """Kill some nodes at one moment; start each again by itself."""
        victims = self._victims()
        self._struck |= {node.name for node in victims}
        for node in victims:
            self.look(node)
            self._killed.add(node.name)
            node.kill()
            self.counts["kills"] += 1
        self.counts["several killed at once"] += len(victims) > 1
        async with trio.open_nursery() as nursery:
            for node in victims:
                nursery.start_soon(self._start, node)

    async def _start(self, node: LocalNode) -> None:
        await trio.sleep(self.luck.choice([0.0, self.luck.uniform(0, 1), self.luck.uniform(1, 5)]))
        node.start()
        self._killed.discard(node.name)
        await trio.sleep(self.luck.uniform(0.5, 2))
        self._struck.discard(node.name)

    async def _flip(self) -> None:
        """Kill one node, change one bit of an unused row in its file, and start it again.

        Only where all other nodes are well, and not often: a node that fills itself again is one that is missing.
        """
        if self._struck or self._parted or self.counts["flipped bits"] >= FLIPS_MAX or self.luck.random() < 0.7:
            return
        node = self.luck.choice(self.cluster.nodes)
        self._struck.add(node.name)
        self.look(node)
        self._killed.add(node.name)
        node.kill()
        self.counts["flipped bits"] += await trio.to_thread.run_sync(flip_bit, node, self.luck.randrange(QUIET_ROWS))
        await self._start(node)

    async def _pause(self) -> None:
        """Stop nodes, for less or for longer than others wait before they finish what is theirs."""
        victims = self._victims()
        self._struck |= {node.name for node in victims}
        for node in victims:
            _signal(node, signal.SIGSTOP)
            self.counts["pauses"] += 1
        await trio.sleep(self.luck.choice([self.luck.uniform(0.05, 0.5), self.luck.uniform(1, 4)]))
        for node in victims:
            _signal(node, signal.SIGCONT)
            self._struck.discard(node.name)

    async def _part(self) -> None:
        """Put the network into one of many bad states."""
        if self._parted or (self._spare() <= 0 and self.luck.random() < 0.9):
            return
        self._parted = True
        name, lines = self._draw_lines()
        how = self.luck.choice(["cut", "cut", "hold", "slow"])
        self.counts[f"partitions: {name}, {how}"] += 1
        for line in lines:
            match how:
                case "cut":
                    line.cut()
                case "hold":
                    line.hold()
                case _:
                    line.slow(self.luck.uniform(0.02, 0.6))
        await trio.sleep(self.luck.uniform(0.3, 5))
        self.cluster.network.heal()
        self._parted = False

    def _draw_lines(self) -> tuple[str, list[Line]]:
        network = self.cluster.network
        names = self.luck.sample(network.names, len(network.names))
        half = len(names) // 2
        match self.luck.choice(["one alone", "halves", "bridge", "one way", "one pair", "some lines", "deaf", "mute"]):
            case "one alone":
                return "one alone", network.apart(names[1:])
            case "halves":
                return "halves", network.apart(names[:half], names[half:])
            case "bridge":  # two halves that share one node
                return "bridge", network.apart(names[: half + 1], names[half:])
            case "one way":
                return "one way", [network.lines[names[0], names[1]]]
            case "one pair":
                return "one pair", network.between(names[:1], names[1:2])
            case "deaf":
                return "deaf", [network.lines[one, names[0]] for one in names[1:]]
            case "mute":
                return "mute", network.from_node(names[0])
            case _:
                return "some lines", [line for line in network.lines.values() if self.luck.random() < 0.4]


def flip_bit(node: LocalNode, row: int) -> bool:
    """Change one bit of a row of the table ``quiet`` in the file of a node that does not run; whether it is there."""
    text = f"quiet row {row:04d}".encode()
    with closing(sqlite3.connect(node.database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        pages = {page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = 'quiet'")}
    data = bytearray(node.database.read_bytes())
    place = data.find(text)
    while place >= 0:
        if place // size + 1 in pages:  # the journal has the same text, and a page may have it twice, once as waste
            data[place + len(text) - 1] ^= 1
            node.database.write_bytes(data)
            with closing(sqlite3.connect(node.database)) as db:
                if db.execute("SELECT v FROM quiet WHERE id = ?", [row]).fetchone() != (text.decode(),):
                    return True
            data[place + len(text) - 1] ^= 1
        place = data.find(text, place + 1)
    return False


def _signal(node: LocalNode, number: signal.Signals) -> None:
    assert node.process is not None
    if node.process.poll() is None:
        os.kill(node.process.pid, number)

"""The faults: nodes and programs are killed, stopped and cut off, lose unsynced writes, and the members change."""

import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import trio

from bedrockish import open_client
from bedrockish.api.requests import REMOVE, MemberChange
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, ConflictError, MembershipError, OutcomeUnknownError, UnavailableError
from bedrockish.local.page import READING, Published
from tools.chaos.cluster import ProxiedCluster
from tools.chaos.power import lose_unsynced
from tools.chaos.programs import ProgramProcess
from tools.chaos.proxy import Line
from tools.cluster import DemoError, LocalNode

QUIET_ROWS = 200  # rows of the table ``quiet``, which no client uses after its creation
FLIPS_MAX = 3
NEWCOMERS = "XYZUVWRSTPQ"  # names of nodes that join, each once
FAULTS = ("kill", "pause", "partition", "flip", "power", "program", "schema")
MEMBER = "member"  # not together with partitions: newcomers need a cluster whose nodes connect without proxies
TABLES = ("texts", "items", "parts")  # tables in which a column is added or dropped
INDEXES = (("items_by_value", "items(value)"), ("parts_by_value", "parts(value)"), ("texts_by_items", "texts(items)"))
REMOVE_S, LEAVE_S = 60.0, 5.0
SYNC_S = 1.0  # how long a power cut waits for a batch that is not synced


@dataclass
class Faults:
    """Draws faults and undoes them after a while."""

    cluster: ProxiedCluster  # the nodes
    luck: random.Random  # the source of random choices
    kinds: tuple[str, ...] = FAULTS  # the kinds of faults to draw
    programs: Sequence[ProgramProcess] = ()  # the programs on the nodes' files; the workload adds more to this list
    counts: Counter[str] = field(default_factory=Counter)  # the number of faults, by kind
    deaths: list[str] = field(default_factory=list)  # the last output of nodes that ended without being killed
    former: list[LocalNode] = field(default_factory=list)  # nodes that have left
    lost_bytes: int = 0  # bytes of write-ahead logs that power cuts have removed
    _struck: set[str] = field(default_factory=set)  # nodes that are dead or stopped
    _killed: set[str] = field(default_factory=set)
    _parted: bool = False
    _is_changing: bool = False  # whether a change of the schema or of the members is under way
    _joined: int = 0
    _flipped: LocalNode | None = None  # the node whose file is being damaged

    async def run(self) -> None:
        """Cause faults until cancelled, then undo them: all nodes run, and all links work."""
        strikes: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "partition": self._part,
            "flip": self._flip,
            "power": self._cut_power,
            "program": self._strike_programs,
            "schema": self._change_schema,
            MEMBER: self._change_members,
        }
        try:
            async with trio.open_nursery() as nursery:
                try:
                    while True:
                        await trio.sleep(self.luck.uniform(0.2, 2.0))
                        nursery.start_soon(strikes[self.luck.choice(self.kinds)])
                finally:
                    self.undo()  # before the tasks end: a change of the members that is under way needs the nodes
        finally:
            self.undo()

    def undo(self) -> None:
        """Heal all links, continue stopped processes, and start dead nodes."""
        self.cluster.network.heal()
        for program in self.programs:
            program.send(signal.SIGCONT)
        for node in self.cluster.nodes:
            if node is self._flipped:
                continue  # a thread still changes its file: the call after the end of that thread starts the node
            self._record_death(node)
            if node.is_running:
                _signal(node, signal.SIGCONT)
            else:
                node.start()
                self.cluster.dark.discard(node.database)
            self._struck.discard(node.name)
            self._killed.discard(node.name)

    def _record_death(self, node: LocalNode) -> None:
        if node.is_running or node.name in self._killed:
            return
        assert node.process is not None
        self.deaths.append(f"node {node.name} ended by itself ({node.process.returncode}):\n{node.last_words()}")
        self._killed.add(node.name)  # so that the death is recorded only once

    def _victims(self) -> list[LocalNode]:
        """Choose nodes to strike: mostly so few that a majority is left, now and then any number."""
        well = [node for node in self.cluster.nodes if node.name not in self._struck]
        spare = self._spare() - self._parted
        if self.luck.random() < 0.1:
            spare = len(well)
        if spare <= 0:
            return []
        return self.luck.sample(well, self.luck.randint(1, spare))

    def _spare(self) -> int:
        """Return the number of nodes that may still fail before the majority is lost."""
        return (len(self.cluster.nodes) - 1) // 2 - len(self._struck)

    async def _kill(self) -> None:
        """Kill some nodes at one moment, and start each again after a pause of its own."""
        victims = self._victims()
        self._struck |= {node.name for node in victims}
        for node in victims:
            self._record_death(node)
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
        self.cluster.dark.discard(node.database)
        self._killed.discard(node.name)
        await trio.sleep(self.luck.uniform(0.5, 2))
        self._struck.discard(node.name)

    async def _flip(self) -> None:
        """Kill one node, change one bit of an unused row in its file, and start it again.

        This happens rarely, and only while all other nodes are well: a node that fills itself again does not vote.
        """
        if self._struck or self._parted or self.counts["flipped bits"] >= FLIPS_MAX or self.luck.random() < 0.7:
            return
        node = self.luck.choice(self.cluster.nodes)
        self._darken(node)
        self._flipped = node
        try:
            row = self.luck.randrange(QUIET_ROWS)
            self.counts["flipped bits"] += await trio.to_thread.run_sync(flip_bit, node, row)
        finally:
            self._flipped = None
        await self._start(node)

    async def _cut_power(self) -> None:
        """Cut the power of some machines: nodes and programs end at one moment, and lose unsynced writes."""
        victims = self._victims()
        self._struck |= {node.name for node in victims}
        async with trio.open_nursery() as nursery:
            for node in victims:
                nursery.start_soon(self._slow_sync, node)
        for node in victims:
            self._darken(node)
            self.counts["power cuts"] += 1
            assert node.process is not None
            self.lost_bytes += lose_unsynced(node.database, node.process.pid, self.luck)
        async with trio.open_nursery() as nursery:
            for node in victims:
                nursery.start_soon(self._start, node)

    async def _slow_sync(self, node: LocalNode) -> None:
        """Try to stop a node after a batch is in its log and before the sync; its programs run on for a moment."""
        try:
            published = Published(str(node.database))
        except UnavailableError:
            return
        try:
            with trio.move_on_after(SYNC_S):
                while not _is_unsynced(published):
                    await trio.lowlevel.checkpoint()
                _signal(node, signal.SIGSTOP)
                await trio.sleep(self.luck.uniform(0, 0.1))
        except UnavailableError:
            return
        finally:
            published.close()

    def _darken(self, node: LocalNode) -> None:
        """Kill a node and all programs on its file; no program starts again before the node."""
        self._struck.add(node.name)
        self._record_death(node)
        self._killed.add(node.name)
        self.cluster.dark.add(node.database)
        for program in self.programs:
            if program.database == node.database:
                program.send(signal.SIGKILL)
        node.kill()

    async def _strike_programs(self) -> None:
        """Kill some programs, or stop them for a while, even while they hold a snapshot or a transaction."""
        running = [program for program in self.programs if program.is_running]
        victims = self.luck.sample(running, self.luck.randint(1, (len(running) + 1) // 2)) if running else []
        is_kill = self.luck.random() < 0.5
        self.counts["programs killed" if is_kill else "programs stopped"] += len(victims)
        for program in victims:
            program.send(signal.SIGKILL if is_kill else signal.SIGSTOP)
        if not is_kill:
            await trio.sleep(self.luck.choice([self.luck.uniform(0.05, 0.5), self.luck.uniform(1, 4)]))
            for program in victims:
                program.send(signal.SIGCONT)

    async def _change_schema(self) -> None:
        """Add a column or an index that no client uses, or drop it."""
        if self._is_changing:
            return
        self._is_changing = True
        try:
            url = self.cluster.url(self.luck.randrange(len(self.cluster.nodes)), options="/?connect_timeout=2")
            async with open_client(url) as client:
                what, change = await self._draw_change(client)
                await client.execute(change, timeout=10)
                self.counts[f"changes of the schema: {what}"] += 1
        except BedrockishError as error:
            self.counts[f"changes of the schema: {error.code}"] += 1
            if not isinstance(error, ConflictError | UnavailableError | OutcomeUnknownError):
                self.deaths.append(f"a change of the schema was told {error.code}: {error.message}")
        finally:
            self._is_changing = False

    async def _draw_change(self, client: Client) -> tuple[str, str]:
        """Return a change of the schema, as a kind and as a statement."""
        if self.luck.random() < 0.5:
            name, on = self.luck.choice(INDEXES)
            found = await client.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", [name], read="strict")
            if found.rows:
                return "DROP INDEX", f"DROP INDEX {name}"
            return "CREATE INDEX", f"CREATE INDEX {name} ON {on}"
        table = self.luck.choice(TABLES)
        extra = "SELECT 1 FROM pragma_table_info(?) WHERE name = 'extra'"
        if (await client.execute(extra, [table], read="strict")).rows:
            return "DROP COLUMN", f"ALTER TABLE {table} DROP COLUMN extra"
        return "ADD COLUMN", f"ALTER TABLE {table} ADD COLUMN extra TEXT DEFAULT 'none'"

    async def _change_members(self) -> None:
        """Let a node join as a learner or voter, work for some seconds, and leave while programs have its file open."""
        names = NEWCOMERS[self._joined :]
        if self._struck or self._parted or self._is_changing or not names or self.luck.random() < 0.5:
            return
        self._is_changing = True
        self._joined += 1
        with trio.CancelScope(shield=True):  # the end of the faults must not interrupt the change
            option = self.luck.choice(["--voter", "--replay", ""])
            try:
                await self.cluster.join(names[0], *filter(None, [option]))
                self.counts[f"nodes that joined {option}".strip()] += 1
                await trio.sleep(self.luck.uniform(2, 10))
            except DemoError as error:
                self.deaths.append(str(error))
            finally:
                self._is_changing = False
            await self._remove(self._node(names[0]))

    def _node(self, name: str) -> LocalNode:
        return next(node for node in self.cluster.nodes if node.name == name)

    async def _remove(self, node: LocalNode) -> None:
        """Remove a node from the members; it runs on for a while, and its file is not read afterwards."""
        with trio.move_on_after(REMOVE_S) as scope:
            while not await self._is_removed(node):  # noqa: ASYNC110  the members are known in another process
                await trio.sleep(1)
        if scope.cancelled_caught:
            self.deaths.append(f"node {node.name} could not be removed within {REMOVE_S:g} s")
        self.cluster.nodes.remove(node)
        self.former.append(node)
        self.counts["nodes that left"] += 1
        while node.name in self._struck:  # noqa: ASYNC110  another fault has still to continue or start the node
            await trio.sleep(0.1)
        await trio.sleep(LEAVE_S)
        if node.is_running and Published(str(node.database)).facts().mode <= READING:
            self.deaths.append(f"node {node.name} was removed {LEAVE_S:g} s ago, and its page says that it serves")
        self._killed.add(node.name)
        if node.is_running:
            node.kill()

    async def _is_removed(self, node: LocalNode) -> bool:
        try:
            async with open_client(self.cluster.url(0, options="/?connect_timeout=2")) as client:
                await client.change_members(MemberChange(REMOVE, node.name, force=True), timeout=10)
        except MembershipError as error:
            return error.details.get("reason") == "unknown"
        except BedrockishError:
            return False
        return True

    async def _pause(self) -> None:
        """Stop nodes: briefly, or for so long that other nodes recover their transactions."""
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
        """Cut, hold or slow some links for a while."""
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
    """Change one bit of a row of the table ``quiet`` in a stopped node's file; return whether the row was found."""
    text = f"quiet row {row:04d}".encode()
    with closing(sqlite3.connect(node.database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        pages = {page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = 'quiet'")}
    data = bytearray(node.database.read_bytes())
    offset = data.find(text)
    while offset >= 0:
        # The journal has the same text, and a page may have it twice, once in a free part.
        if offset // size + 1 in pages:
            data[offset + len(text) - 1] ^= 1
            node.database.write_bytes(data)
            with closing(sqlite3.connect(node.database)) as db:
                if db.execute("SELECT v FROM quiet WHERE id = ?", [row]).fetchone() != (text.decode(),):
                    return True
            data[offset + len(text) - 1] ^= 1
        offset = data.find(text, offset + 1)
    return False


def _is_unsynced(published: Published) -> bool:
    facts = published.facts()
    return facts.written > facts.durable


def _signal(node: LocalNode, number: signal.Signals) -> None:
    assert node.process is not None
    if node.process.poll() is None:
        os.kill(node.process.pid, number)

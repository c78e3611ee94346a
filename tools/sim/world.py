"""The world of one seed: its event queue, its parts, and its phases from the first load to the final rest."""

import heapq
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

from bedrockish.core.describe import Printer
from bedrockish.core.protocol.events import Received
from bedrockish.core.protocol.messages import Message
from bedrockish.core.state.settings import approvals_needed
from bedrockish.node.cluster.incarnations import PREFIX, read_seen
from bedrockish.node.cluster.starts import SeenState, lacks
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import Txid
from tools.sim.clients import Client, FeedReader
from tools.sim.damage import Flips
from tools.sim.disk import Image
from tools.sim.faults import Faults
from tools.sim.laws import Laws
from tools.sim.machine import Machine
from tools.sim.network import Network
from tools.sim.operator import Operator
from tools.sim.options import Options

NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SETTLE_S = 60.0  # time within which a cluster without faults must come to rest
EVENTS_MAX = 3_000_000


class LawBrokenError(Exception):
    """Raised when a law of the database is broken."""

    def __init__(self, law: str, story: str) -> None:
        super().__init__(f"{law}: {story}")
        self.law, self.story = law, story


class World:
    """A simulated cluster with its clients and faults, drawn from a seed.

    Why so large: It wires the parts of a world, which are most of the attributes.
    """

    def __init__(self, options: Options, tell: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.tell = tell
        self.now = 0.0  # seconds since the world began
        self.heap: list[tuple[float, int, Callable[[], Any]]] = []
        self.order = 0
        self.counts: Counter[str] = Counter()
        self.digest = blake2b(digest_size=16)
        self.closing = False  # whether clients no longer begin new commands
        self.happened: list[str] = []  # names of the commands, faults and needless recoveries, as they began
        self.laws = Laws(self)
        self.flips = Flips(self)
        self.network = Network(self, options, Random(f"network {options.seed}"))
        names = NAMES[: options.voters + options.learners]
        members = {
            name: Member(name, f"{name.lower()}:4100", place < options.voters) for place, name in enumerate(names)
        }
        self.founded = self.membership = Membership(0, members, "simulated", options.level)
        self._printer = Printer(names)
        self.machines: dict[str, Machine] = {}
        for name in names:
            self.add_machine(name, Image(self.founded), f"file of {name}")
        self.clients = [Client(self, f"c{number}") for number in range(options.clients)]
        self.readers = [FeedReader(self, number) for number in range(options.readers)]
        self.operator = Operator(self)
        self.faults = Faults(self)

    # -- members ---------------------------------------------------------------------------------------------------

    def add_machine(self, name: str, image: Image, store: str) -> Machine:
        machine = self.machines[name] = Machine(self, name, image, store)
        self.network.add(machine)
        return machine

    @property
    def voters(self) -> list[str]:
        """The voters of the newest membership that is committed."""
        return self.membership.voters

    @property
    def short_handed(self) -> bool:
        """Whether too few voters run for new commits; then only transactions in flight can be completed."""
        alive = sum(self.machines[name].running and not self.machines[name].forgot for name in self.voters)
        return alive < approvals_needed(len(self.voters))

    def can_spare(self, gone: Callable[[Machine], bool]) -> bool:
        """Return whether one more voter may be gone for a time, besides the voters for which ``gone`` is true."""
        return sum(gone(self.machines[name]) for name in self.voters) < (len(self.voters) - 1) // 2

    def can_lose(self) -> bool:
        """Return whether one more voter may lose its file: the other voters must be able to replace it.

        With seven voters, fewer may lose their files than may be gone for a time, because the latter return with their
        promises.
        """
        lost = sum(self.machines[name].forgot for name in self.voters)
        return len(self.voters) - lost > approvals_needed(len(self.voters))

    def knows_file(self, machine: Machine, backup: Image | None) -> bool:
        """Return whether all other members remember a machine's file well enough to notice a new or an older one.

        They cannot tell a node in time whose other file names it as the only voter: it commits before they reach it.
        """
        if approvals_needed(len((self.founded if backup is None else backup.membership).voters)) == 1:
            return False
        for name in self.membership.nodes:
            if name == machine.name:
                continue
            if name not in self.machines:
                return False
            kept = self.machines[name].disk.durable.meta.get(PREFIX + machine.name)
            seen = read_seen(kept) if kept else SeenState()
            if seen.store != machine.store:
                return False
            if backup is not None and not lacks([*backup.starts, (b"next", backup.batches)], backup.batches, seen):
                return False
        return True

    def here(self) -> list[Machine]:
        """Return the members that run and have not lost their files, in the order of their names."""
        found = (self.machines[name] for name in self.membership.nodes if name in self.machines)
        return [machine for machine in found if machine.running and not machine.forgot]

    # -- time ------------------------------------------------------------------------------------------------------

    def after(self, delay: float, action: Callable[[], Any]) -> None:
        """Schedule an action after ``delay`` seconds."""
        self.order += 1
        heapq.heappush(self.heap, (self.now + delay, self.order, action))

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Run events until ``end``, or until ``done`` returns True at a regular check; return whether it did."""
        look = self.now
        while self.heap and self.heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self.heap)
            action()
            self.counts["events"] += 1
            if self.counts["events"] > EVENTS_MAX:
                self.broken("the cluster comes to rest", f"{EVENTS_MAX} events and no end")
            if done is not None and self.now >= look:
                if done():
                    return True
                look = self.now + 0.05
        self.now = end
        return done is not None and done()

    # -- the phases ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the world to its end.

        Raises:
            LawBrokenError: a law was broken.
        """
        with self.options.constants():
            self._live()

    def _live(self) -> None:
        for machine in self.machines.values():
            machine.start()
        for start in (*(client.start for client in self.clients), *(reader.start for reader in self.readers)):
            start()
        self.operator.start()
        self.faults.start()
        self.flips.start()
        self.run_until(self.options.load_s)
        self.faults.stop()
        self.flips.stopped = True
        if self.options.end_s:
            self.run_until(self.options.end_s)
            return
        if self._heal():
            self._rest("with some voters dead")
            self._mend_links()
            self._start_all()
        self._rest("with everybody back")
        if self.options.power_cut:
            for machine in list(self.machines.values()):
                machine.crash()
            self._start_all()
            self._rest("after a power cut")
        for client in self.clients:
            client.finish()
        self._rest("after the last reads")
        for machine in self.machines.values():
            if machine.node is not None:
                self.counts["reservations"] += machine.node.state.counts["reservations"]
                self.counts["recoveries"] += machine.node.recovery.counts["started"]
        self.laws.over()

    def _heal(self) -> list[str]:
        """End all faults, and return the voters that stay dead: as many as the options say and the cluster tolerates.

        No voter stays dead while the membership is being changed, or while a voter without its file must be replaced.
        """
        luck = Random(f"heal {self.options.seed}")
        dead = luck.sample(self.voters, min(self.options.dead, (len(self.voters) - 1) // 2))
        self.operator.stop()
        if not self.operator.idle:
            dead = []
        for name in dead:
            self.machines[name].crash()
        for machine in self.machines.values():
            machine.paused_until = min(machine.paused_until, self.now)
            machine.slow_until = self.now
            if not machine.running and machine.name not in dead and not machine.retired:
                machine.start()
            elif machine.running and machine.turning:
                machine.turning = False
                machine._turn_soon(0.0)
        self.network.faulty = False
        self.network.pace = self.options.pace_at_rest
        self._mend_links()
        self.closing = True
        return dead

    def _mend_links(self) -> None:
        network = self.network
        network.slow.clear()
        for one, two in sorted(network.blocked):
            network.unblock(one, two)
        if self.options.lose or not self.options.ordered:  # nodes send silently lost messages again on a new link
            for pair in sorted(sorted(pair) for pair in network.links):
                network.break_link(pair[0], pair[1])
        network.connect_all()

    def _start_all(self) -> None:
        for machine in self.machines.values():
            if not machine.running and not machine.retired:
                machine.start()

    def _rest(self, when: str) -> None:
        self.trace("world", "settle", when)
        began = self.now
        if not self.run_until(self.now + SETTLE_S, lambda: not self.laws.unrest()):
            self.broken("the cluster comes to rest", f"{when}, not after {SETTLE_S:g} s: {self.laws.unrest()}")
        self.counts["settle_ms"] += int((self.now - began) * 1000)

    # -- messages and the trace ------------------------------------------------------------------------------------

    def alive_names(self) -> list[str]:
        """Return the names of the running machines that clients know, including some that have left the cluster."""
        return [name for name, machine in self.machines.items() if machine.running]

    def leave(self, source: str, target: str, message: Message, data: bytes) -> None:
        """Send a message from a node, and have the laws check it."""
        self.counts["messages"] += 1
        self.laws.left(source, message)
        self.flips.says(self.machines[source], message)
        self.digest.update(data)
        if self.tell is not None:
            self.tell(f"{self.now:10.6f} {source} -> {target} {self._printer.message(message)}")
        self.network.send(source, target, data)

    def allows(self, name: str) -> bool:
        """Return whether the options allow a command, fault or needless recovery with this name."""
        return not self.options.only or name in self.options.only

    def happens(self, name: str) -> bool:
        """Record that a command, fault or needless recovery begins; return False if the options leave it out."""
        if not self.allows(name):
            return False
        self.happened.append(name)
        return True

    def trace(self, who: str, *what: object) -> None:
        """Add an event to the trace and to the digest."""
        event = what[0]
        if isinstance(event, Received):
            self.digest.update(b"r%d" % int(self.now * 1e6))
            if self.tell is None:
                return
            what = ("<-", event.peer, self._printer.message(event.message))
        text = f"{self.now:10.6f} {who} " + " ".join(map(short, what))
        self.digest.update(text.encode())
        if self.tell is not None:
            self.tell(text)

    def broken(self, law: str, story: str) -> None:
        """End this world because a law is broken, by raising LawBrokenError."""
        raise LawBrokenError(law, f"at {self.now:.3f} s: {story}")


def short(value: object) -> str:
    """Return a value as one line, without its bytes."""
    fields = getattr(value, "__dataclass_fields__", None)
    if isinstance(value, str | Txid):
        return str(value)
    if fields is None:
        return repr(value)[:100]
    return f"{type(value).__name__} " + " ".join(
        f"{name}={short(getattr(value, name))}" for name in fields if name not in ("store", "access_set", "statements")
    )

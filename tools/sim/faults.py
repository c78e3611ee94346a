"""The faults: crashes, partitions, pauses, slow disks and links, clocks that jump."""

from random import Random
from typing import TYPE_CHECKING

from bedrockish.core.protocol.events import Woken
from tools.sim.disk import Image

if TYPE_CHECKING:
    from tools.sim.machine import Machine
    from tools.sim.world import World


class Faults:
    """Causes faults until it is stopped."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.luck = Random(f"faults {world.options.seed}")
        self.pauses = Random(f"pauses {world.options.seed}")
        self.strikes = self.suspicions = 0
        self.stopped = False
        self.backups: dict[str, Image] = {}

    def start(self) -> None:
        """Begin to cause faults and needless recoveries, if the options say so."""
        if self.world.options.faults:
            self._wait()
        if self.world.options.suspect_every_s:
            self._suspect_later()

    def _suspect_later(self) -> None:
        self.world.after(self.pauses.expovariate(1 / self.world.options.suspect_every_s), self._suspect)

    def _suspect(self) -> None:
        if self.stopped:
            return
        self.suspicions += 1
        name = f"s{self.suspicions}"
        self._renew(name)
        if self.world.allows(name) and suspect(self._machine(), self.luck):
            self.world.happens(name)
        self._suspect_later()

    def _renew(self, name: str) -> None:
        """Seed the random generator by a fault's name, so that leaving out a fault does not change the others."""
        self.luck = Random(f"{name} {self.world.options.seed}")

    def stop(self) -> None:
        """Cause no further faults; the world heals those in force."""
        self.stopped = True

    def _wait(self) -> None:
        self.world.after(self.pauses.expovariate(1 / self.world.options.fault_every_s), self._strike)

    def _strike(self) -> None:
        if self.stopped:
            return
        self._wait()
        self.strikes += 1
        name = f"f{self.strikes}"
        self._renew(name)
        if not self.world.happens(name):
            return
        kind = self.luck.choice(self.world.options.faults)
        self.world.counts[f"fault {kind}"] += 1
        self.world.trace("faults", kind)
        getattr(self, f"_{kind}")()

    def _names(self) -> list[str]:
        return sorted(name for name, machine in self.world.machines.items() if not machine.retired)

    def _machine(self) -> "Machine":
        return self.world.machines[self.luck.choice(self._names())]

    def _pair(self) -> tuple[str, str]:
        names = self._names()
        if len(names) == 1:
            return names[0], names[0]
        one, two = self.luck.sample(names, 2)
        return one, two

    def _down_s(self) -> float:
        return self.luck.choice((0.001, 0.05, 0.5, 2.0, 5.0)) * self.luck.uniform(0.5, 2)

    def _crash(self, machine: "Machine | None" = None) -> None:
        machine = machine or self._machine()
        if not machine.running:
            return
        machine.crash()
        self.world.after(self._down_s(), lambda: self._restart(machine))

    def _restart(self, machine: "Machine") -> None:
        if not self.stopped and not machine.running and not machine.retired:
            machine.start()

    def _kill(self) -> None:
        """Kill a voter until all faults end, if the cluster can spare one more."""
        voters = self.world.voters
        if self.world.can_spare(lambda machine: not machine.running or machine.forgot):
            self.world.machines[self.luck.choice(voters)].crash()

    def _wipe(self) -> None:
        """Have a voter lose its file and restart with an empty one."""
        self._forget(None)

    def _restore(self) -> None:
        """Have a voter restart with an older copy of its file; if no copy of its file was made yet, only make one."""
        machine = self._machine()
        if machine.name in self.backups:
            self._forget(self.backups[machine.name])
        elif machine.node is not None and machine.node.state.roster.joining is None:
            self.backups[machine.name] = machine.disk.durable.copy()

    def _forget(self, backup: Image | None) -> None:
        """Replace a voter's file, if the cluster tolerates the loss and all other nodes can detect it.

        No protocol can repair an undetectable loss: a file that is only slightly older than the others remember.
        """
        world = self.world
        owners = [name for name in world.voters if self.backups.get(name) is backup or backup is None]
        if not owners or world.operator.shrinks or not world.can_lose():
            return
        machine = world.machines[self.luck.choice(owners)]
        if machine.forgot or not world.knows_file(machine, backup):
            return
        machine.crash()
        machine.lose(Image(world.founded) if backup is None else backup.copy(), machine.store + "'" * (backup is None))
        world.counts["files lost" if backup is None else "files put back"] += 1
        world.after(self._down_s(), lambda: self._restart(machine))

    def _crash_all(self) -> None:
        if self.luck.random() < 0.3:
            for name in self._names():
                self._crash(self.world.machines[name])

    def _partition(self) -> None:
        names = self._names()
        side = {name for name in names if self.luck.random() < 0.5}
        for one in names:
            for two in names:
                if (one in side) != (two in side):
                    self._block(one, two)

    def _one_way(self) -> None:
        one, two = self._pair()
        if one != two:
            self._block(one, two)

    def _block(self, one: str, two: str) -> None:
        network = self.world.network
        network.block(one, two)
        if self.luck.random() < 0.7:
            self.world.after(self.luck.uniform(0.05, 2.0), lambda: self._time_out(one, two))
        self.world.after(self._down_s() + self.luck.uniform(0, 0.2), lambda: network.unblock(one, two))

    def _time_out(self, one: str, two: str) -> None:
        if (one, two) in self.world.network.blocked:
            self.world.network.break_link(one, two)

    def _reset(self) -> None:
        one, two = self._pair()
        if one != two:
            self.world.network.break_link(one, two)

    def _pause(self) -> None:
        machine = self._machine()
        machine.paused_until = self.world.now + self._down_s()

    def _some(self) -> "list[Machine]":
        """Return as many random voters as may be gone at once."""
        voters = self.world.voters
        return [self.world.machines[name] for name in self.luck.sample(voters, (len(voters) - 1) // 2)]

    def _pause_some(self) -> None:
        until = self.world.now + self._down_s()
        for machine in self._some():
            machine.paused_until = until

    def _crash_some(self) -> None:
        for machine in self._some():
            self._crash(machine)

    def _slow_disk(self) -> None:
        self._machine().slow_until = self.world.now + self._down_s()

    def _slow_link(self) -> None:
        one, two = self._pair()
        slow = self.world.network.slow
        slow[one, two] = self.luck.choice((10.0, 100.0))
        self.world.after(self._down_s(), lambda: slow.pop((one, two), None))

    def _jump(self) -> None:
        self._machine().wall_offset_ms += self.luck.choice((-1, 1)) * self.luck.choice((3, 100, 1_000, 3_000))

    def _leap(self) -> None:
        machine = self._machine()
        hours = self.luck.choice((-1, 1)) * self.luck.uniform(0.5, 30)
        machine.wall_offset_ms += int(hours * 3_600_000)
        self.world.after(self._down_s(), lambda: self._leap_back(machine, hours))

    def _leap_back(self, machine: "Machine", hours: float) -> None:
        machine.wall_offset_ms -= int(hours * 3_600_000)


def suspect(machine: "Machine", luck: Random) -> bool:
    """Have a node needlessly recover a pending transaction, or give up its own, as after a wrong suspicion."""
    node = machine.node
    if node is None or machine.paused_until > machine.world.now or not node.state.roster.is_voter(machine.name):
        return False
    node.state.set_now(machine.now())
    attempts = [attempt for attempt in node.coordinator.attempts.open.values() if attempt.counting]
    pending = [txid for txid in node.state.votes.pending.transactions if txid not in node.recovery.rounds]
    if attempts and luck.random() < 0.3:
        attempt = luck.choice(attempts)
        machine.world.trace(machine.name, "gives up", attempt.transaction.txid)
        machine.guarded(lambda node: node.coordinator.attempts.give_up(attempt))
    elif pending:
        transaction = node.state.votes.pending.transactions[luck.choice(pending)]
        machine.world.trace(machine.name, "recovers", transaction.txid)
        machine.guarded(lambda node: node.recovery.start(transaction))
    machine.post(Woken())
    return bool(attempts or pending)

"""The operator: adds, promotes, demotes, removes and replaces nodes while the cluster works.

A plan is a generator that yields the seconds to wait; each step uses the membership at that time.
"""

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING

from bedrockish.api.requests import ADD, ADDRESS, DEMOTE, PROMOTE, RAISE, REMOVE, REPLACE, Answer, MemberChange, Request
from bedrockish.core.protocol.records import Joining
from bedrockish.core.state.settings import approvals_needed
from bedrockish.errors import BedrockishError, MembershipError
from bedrockish_journal.model.levels import LEVEL
from tools.sim.disk import Image

if TYPE_CHECKING:
    from tools.sim.world import World

Plan = Generator[float, None, None]

LOOK_S = 0.05
ANSWER_S = 4.0
FORCED_S = 2.5  # time after which a forced change is given up: a voter that ran at its beginning may have stopped
TRIES_MAX = 30
MACHINES_MAX = 14
VOTERS_MAX = 7


class Operator:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.luck = Random(f"operator {world.options.seed}")
        self.names = Random(f"names {world.options.seed}")
        self.plan: Plan | None = None
        self.stopped = False
        self.shrinks = False  # whether a change that removes a vote is under way
        self.count = 0
        # The time from which the operator raises the release level, in a world that begins at an older one.
        self.raises_at = Random(f"level {world.options.seed}").uniform(0.0, world.options.load_s)

    @property
    def idle(self) -> bool:
        return self.plan is None and not self._lost()

    def _lost(self) -> list[str]:
        machines = self.world.machines
        return [name for name in self.world.membership.nodes if name in machines and machines[name].forgot]

    def start(self) -> None:
        """Begin to change the membership."""
        self._later()

    def stop(self) -> None:
        """Begin no further plans, except those that are needed to come to rest."""
        self.stopped = True

    def _later(self) -> None:
        every_s = self.world.options.changes_every_s
        wait = self.luck.expovariate(1 / every_s) if every_s and not self.stopped else LOOK_S
        self.world.after(max(LOOK_S, wait), self._begin)

    def _begin(self) -> None:
        lost, former = self._lost(), self._former_voters()
        if lost and self.luck.random() < 0.3 + self.stopped:
            self._go(self._replace(lost[0]))
        elif self._raises():
            self._go(self._change(MemberChange(RAISE, self.world.membership.nodes[0])))
        elif former and not self.stopped and self.names.random() < self.world.options.names_again:
            name = self.names.choice(former)  # the node is installed again, on an empty file
            store = f"second file of {name}"
            self._go(self._change(MemberChange(ADD, name, f"{name.lower()}:4200", store=store)))
        elif self.world.options.changes_every_s and not self.stopped:
            self._go(self._choose())
        else:
            self._later()

    def _raises(self) -> bool:
        """Return whether to raise the level now: not while too few voters run for a commit."""
        world = self.world
        if world.membership.level >= LEVEL or world.now < self.raises_at:
            return False
        alive = sum(1 for name in world.voters if world.machines[name].running)
        return not self.stopped or alive >= approvals_needed(len(world.voters))

    def _go(self, plan: Plan) -> None:
        self.plan = plan
        self._step()

    def _step(self) -> None:
        assert self.plan is not None
        try:
            wait = next(self.plan)
        except StopIteration:
            self.plan, self.shrinks = None, False
            self._later()
        else:
            self.world.after(wait, self._step)

    # -- plans -----------------------------------------------------------------------------------------------------

    def _choose(self) -> Plan:
        world, luck = self.world, self.luck
        members = world.membership
        learners = [name for name in members.nodes if name not in members.voters]
        if world.options.comings and luck.random() < world.options.comings:
            if len(members.voters) > 3 or len(world.machines) == MACHINES_MAX:
                return self._shrink(REMOVE, luck.choice(members.voters))
            return self._grow(promote=True)
        match luck.choice(("grow", "grow", "promote", "demote", "remove", "address")):
            case "grow" if len(world.machines) < MACHINES_MAX:
                return self._grow(promote=luck.random() < 0.7 and len(members.voters) < VOTERS_MAX)
            case "promote" if learners and len(members.voters) < VOTERS_MAX:
                return self._change(MemberChange(PROMOTE, luck.choice(learners)))
            case "demote":
                return self._shrink(DEMOTE, luck.choice(members.voters))
            case "remove":
                return self._shrink(REMOVE, luck.choice(members.nodes))
            case _:
                name = luck.choice(members.nodes)
                address = f"{name.lower()}:{luck.randint(4101, 4999)}"
                return self._change(MemberChange(ADDRESS, name, address, force=True))

    def _former_voters(self) -> list[str]:
        """Return the nodes that were voters and were removed."""
        laws = self.world.laws
        voted = {*self.world.founded.voters, *(name for voters in laws.voters.values() for name in voters)}
        return [name for name, machine in self.world.machines.items() if machine.retired and name in voted]

    def _shrink(self, action: str, name: str) -> Plan:
        """Take a voter's vote, if enough voters with intact files are left."""
        world = self.world
        left = [voter for voter in world.voters if voter != name]
        sound = [voter for voter in left if not world.machines[voter].forgot]
        if len(sound) < approvals_needed(max(1, len(left))):
            return
        if world.options.flip_every_s and len(left) < 2:
            return  # a lone voter has no peer to compare its rows with
        self.shrinks = True
        # A forced change may leave no quorum, so the operator forces it only while enough of the other voters run.
        running = [voter for voter in left if world.machines[voter].running]
        force = len(running) >= approvals_needed(max(1, len(left)))
        yield from self._change(MemberChange(action, name, force=force))
        machine = world.machines.get(name)
        if machine is not None and name not in world.membership.members:
            yield self.luck.uniform(0.1, 3.0)  # the node may or may not learn of the change in this time
            machine.crash()
            machine.retired = True

    def _grow(self, *, promote: bool) -> Plan:
        name = self._next_name()
        yield from self._join(name)
        if promote and name in self.world.membership.members:
            yield from self._change(MemberChange(PROMOTE, name), insist=True)

    def _replace(self, name: str) -> Plan:
        """Replace a node that lost its file by a new one with another name."""
        new = self._next_name()
        was_voter = name in self.world.voters
        yield from self._change(MemberChange(REPLACE, name, f"{new.lower()}:4100", new), insist=True)
        if name in self.world.membership.members:
            return
        machine = self.world.machines[name]
        machine.crash()
        machine.retired = True
        yield from self._join(new)
        if was_voter and new in self.world.membership.members:
            yield from self._change(MemberChange(PROMOTE, new), insist=True)

    def _next_name(self) -> str:
        taken = {*self.world.machines, *self.world.membership.members}
        return next(name for name in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if name not in taken)

    def _join(self, name: str) -> Plan:
        """Join a node as ``bedrockish join`` does: add the member, copy a file or fetch the journal, and start it."""
        world, store = self.world, f"file of {name}"
        yield from self._change(MemberChange(ADD, name, f"{name.lower()}:4100", store=store), insist=True)
        for _ in range(TRIES_MAX):
            member = world.membership.members.get(name)
            if member is None or member.store != store:
                return
            lent: list[tuple[Image, Joining]] = []
            donor = self.luck.choice([*world.here(), *world.here(), *world.machines.values()])
            if donor.lend(lambda image, told, lent=lent: lent.append((image, told))):  # type: ignore[misc]
                for _ in range(20):
                    if lent:
                        break
                    yield LOOK_S
            told = lent[0][1].membership.members.get(name) if lent else None
            if told is not None and told.store == store:
                image, joining = lent[0]
                if self.luck.random() < 0.5:
                    image = Image(world.founded)
                    world.counts["joined by replay"] += 1
                elif not image.flipped:
                    world.counts["joined by copy"] += 1
                else:  # the donor's tables are damaged, so another donor is asked
                    world.counts["copies refused"] += 1
                    yield LOOK_S
                    continue
                yield self.luck.choice((0.0, 0.0, 0.5))
                world.add_machine(name, image.lent_to(name, joining), store).start()
                return
            yield LOOK_S

    def _change(self, change: MemberChange, *, insist: bool = False) -> Plan:
        """Request a membership change until it is made or refused; with ``insist``, retry after refusals, too."""
        world, began = self.world, self.world.now
        self.count += 1
        for turn in range(TRIES_MAX):
            if change.force and change.action in (DEMOTE, REMOVE) and world.now - began > FORCED_S:
                return
            command = f"change-{self.count}"
            request = Request(command, (), change=change, timeout_s=2.0)
            world.laws.submitted(request)
            found: list[Answer | BedrockishError] = []
            machine = self.luck.choice([*world.here(), *world.here(), *world.machines.values()])
            machine.submit(request, found.append)
            for _ in range(int(ANSWER_S / LOOK_S)):
                if found or not machine.running:
                    break
                yield LOOK_S
            match found:
                case [Answer() as answer]:
                    world.counts[f"member {change.action}"] += 1
                    world.laws.changed(request, answer)
                    return
                case [MembershipError() as error]:
                    world.counts[f"refused {error.details['reason']}"] += 1
                    if not insist or error.details["reason"] not in ("behind", "silent", "quorum"):
                        return
            if turn > 3 and self.stopped and not insist:
                return
            yield 4 * LOOK_S

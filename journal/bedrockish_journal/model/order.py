"""The orders in which entries may be applied. An entry may be applied if

* the entry before it in its timeline is applied (a timeline never jumps: E2 without E1 is never applied), and
* every component of its ``after`` is covered by the applied entries.

All orders that respect these rules give the same database. A second label of one transaction (adopted by S, later found
in L's timeline) is an entry like any other here, and covers its tick; the code that applies entries must not apply its
changes again.

Only the next entry of each timeline can be applicable, so an order is made by interleaving timelines, with one entry of
each in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from bedrockish_journal.model.errors import ReplayBlockedError
from bedrockish_journal.model.vector import Vector, covers

Place = tuple[str, int]


class PlacedEntry(Protocol):
    """The attributes of an entry that decide its order."""

    @property
    def place(self) -> Place:
        """Leader and tick."""

    @property
    def after(self) -> Vector:
        """The vector that has to be applied before the entry."""


P = TypeVar("P", bound=PlacedEntry)


def may_apply(entry: PlacedEntry, applied: Vector) -> bool:
    """Return whether an entry may be the next on a node that has applied ``applied``."""
    leader, tick = entry.place
    return applied.get(leader, 0) == tick - 1 and covers(applied, entry.after)


def replay_order(entries: Iterable[P], draw: Callable[[], float], start: Vector | None = None) -> Iterator[P]:
    """Yield ``entries`` in a causally valid order, drawn at random.

    At each step every timeline whose next entry may be applied is equally likely. An entry that was given twice is
    yielded once; entries that ``start`` covers are left out.

    Args:
        entries: in any order, from any mix of nodes.
        draw: returns numbers in [0, 1).
        start: the vector that is applied already.

    Raises:
        ReplayBlockedError: entries are left that can never be applied; all others were yielded before.
    """
    timelines: dict[str, dict[int, P]] = {}
    for entry in entries:
        leader, tick = entry.place
        timelines.setdefault(leader, {}).setdefault(tick, entry)
    ordered = {leader: [byplace[tick] for tick in sorted(byplace)] for leader, byplace in timelines.items()}
    return interleave({leader: iter(ordered[leader]) for leader in sorted(ordered)}, draw, start)


def interleave(
    timelines: Mapping[str, Iterator[P]], draw: Callable[[], float], start: Vector | None = None
) -> Iterator[P]:
    """Yield the entries of timelines, each given by rising tick, in a causally valid random order.

    One entry of each timeline is in memory at a time, so the journals may be larger than memory. The work is
    proportional to the number of entries and of the components of their ``after``: an entry that waits for a tick is
    checked again only when that tick is applied.

    Raises:
        ReplayBlockedError: entries are left that can never be applied; all others were yielded before.
    """
    return _Interleaving(timelines, draw, start or {}).run()


class _Interleaving(Generic[P]):
    """The state of ``interleave``: the next entry of each timeline, its head, is ready or waits for one tick."""

    def __init__(self, timelines: Mapping[str, Iterator[P]], draw: Callable[[], float], start: Vector) -> None:
        self.timelines, self.draw, self.applied = timelines, draw, dict(start)
        self.heads: dict[str, P] = {}
        self.needs: dict[str, list[Place]] = {}  # timeline -> places that its head needs, not checked yet
        self.ready: list[str] = []  # timelines whose head may be applied
        self.waiting: dict[Place, list[str]] = {}  # timelines whose head waits for a tick

    def run(self) -> Iterator[P]:
        for leader in self.timelines:
            self._pull(leader)
        while self.ready:
            pick = int(self.draw() * len(self.ready))
            assert 0 <= pick < len(self.ready), "draw() gives numbers in [0, 1)"
            self.ready[pick], self.ready[-1] = self.ready[-1], self.ready[pick]
            leader = self.ready.pop()
            entry = self.heads.pop(leader)
            tick = self.applied[leader] = entry.place[1]
            yield entry
            for waiter in self.waiting.pop((leader, tick), ()):
                self._check_needs(waiter)
            self._pull(leader)
        if self.heads:
            raise self._blocked()

    def _pull(self, leader: str) -> None:
        done = self.applied.get(leader, 0)
        for entry in self.timelines[leader]:
            owner, tick = entry.place
            assert owner == leader, f"{owner}{tick} is not of timeline {leader}"
            if tick > done:
                self.heads[leader] = entry
                before = [(leader, tick - 1)] if tick > 1 else []
                self.needs[leader] = [*entry.after.items(), *before]
                self._check_needs(leader)
                return

    def _check_needs(self, leader: str) -> None:
        """Add a timeline to the ready ones, or let its head wait for a tick that is not applied."""
        needs = self.needs[leader]
        while needs:
            other, tick = needs[-1]
            if self.applied.get(other, 0) < tick:
                self.waiting.setdefault((other, tick), []).append(leader)
                return
            needs.pop()
        self.ready.append(leader)

    def _blocked(self) -> ReplayBlockedError:
        blocked: list[Place] = []
        wanted: set[Place] = set()
        for leader in sorted(self.heads):
            before = self.applied.get(leader, 0)
            for entry in (self.heads[leader], *self.timelines[leader]):
                tick = entry.place[1]
                blocked.append(entry.place)
                if tick > before + 1:
                    wanted.add((leader, tick - 1))
                before = tick
                wanted.update(need for need in entry.after.items() if self.applied.get(need[0], 0) < need[1])
        return ReplayBlockedError(blocked, sorted(wanted.difference(blocked)))

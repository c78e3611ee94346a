"""The conflict window against a list of all commits: drawn adoptions, late labels, packing, dropping and bases."""

from random import Random

import pytest

from bedrockish.core.state import access_index
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.model.vector import Vector, covers
from tools.sim.options import WINDOW_CONSTANTS

WORLDS, STEPS = 150, 150
NODES = "ABC"
WINDOW = 30  # clocks below settled time that the window keeps


def draw_access_set(luck: Random) -> AccessSet:
    def points(most: int) -> frozenset[bytes]:
        return frozenset(b"t:x\0" + bytes([luck.randint(0, 40)]) for _ in range(luck.randint(0, most)))

    def ranges() -> tuple[tuple[bytes, bytes], ...]:
        if luck.random() < 0.8:
            return ()
        low = luck.randint(0, 38)
        return ((b"t:x\0" + bytes([low]), b"t:x\0" + bytes([low + luck.randint(1, 3)])),)

    reads = points(3)
    # A statement that changes a row has read it, too.
    return AccessSet(reads, ranges(), points(2) | (reads if luck.random() < 0.3 else frozenset()), ranges())


class World:
    """A conflict window, and next to it the list of all commits with all their places."""

    def __init__(self, seed: int) -> None:
        self.luck, self.window = Random(seed), CommitWindow()
        self.ticks = dict.fromkeys(NODES, 0)
        self.commits: dict[Txid, tuple[Transaction, list[tuple[str, int]]]] = {}
        self.order: list[tuple[tuple[str, int], Transaction]] = []
        self.needed: set[Txid] = set()
        self.clock, self.settled = 100, 0
        self.restarted: dict[str, int] = {}  # the floor after the last restart

    def step(self) -> None:
        what = self.luck.random()
        if what < 0.55:
            self.commit()
        elif what < 0.65 and self.commits:
            self.label_again()
        elif what < 0.75:
            self.settle()
        elif what < 0.76:
            self.restart()
        else:
            self.compare()

    def place(self, made: Transaction, *, is_repeat: bool) -> None:
        """Take a commit at the next tick of a drawn timeline, as ``State.add_entry`` does."""
        leader = self.luck.choice(NODES)
        self.ticks[leader] += 1
        place = leader, self.ticks[leader]
        self.commits.setdefault(made.txid, (made, []))[1].append(place)
        self.order.append((place, made))
        is_late = made.txid.clock <= self.settled - WINDOW
        if not ((is_late or is_repeat) and self.window.pass_over(place, made.txid, is_repeat=is_repeat)):
            self.window.add(place, made)

    def commit(self) -> None:
        luck = self.luck
        self.clock += luck.randint(1, 3)
        late = luck.randint(5, 60) if luck.random() < 0.15 else 0
        txid = Txid(max(1, self.clock - late), luck.choice(NODES))
        if txid not in self.commits:
            sets = draw_access_set(luck)
            made = Transaction(txid, {}, 0, 0, 0, f"c{self.clock}", "serializable", ROWS, sets, b"", b"")
            if txid.clock > self.settled and luck.random() < 0.3:
                self.needed.add(txid)
            self.place(made, is_repeat=False)

    def label_again(self) -> None:
        """Deliver a second label of a recent commit, or of one that the window dropped long ago."""
        newest = self.luck.choice((25, 200))
        self.place(self.commits[self.luck.choice(sorted(self.commits)[-newest:])][0], is_repeat=True)

    def settle(self) -> None:
        self.settled = max(self.settled, self.clock - self.luck.randint(5, 40))
        self.needed = {txid for txid in self.needed if self.luck.random() < 0.5}
        self.window.pack(self.settled, self.needed)
        assert self.needed <= self.window.known.keys(), "the place of a commit whose outcome is needed is packed"
        self.window.forget(self.settled - WINDOW)
        self.check_floor(self.settled - WINDOW)

    def restart(self) -> None:
        """Fill another window with the newest entries of the journal, as ``State._recover`` does."""
        least = self.settled - self.luck.choice((0, 10, WINDOW))
        self.window, read = (
            CommitWindow(dict(self.ticks)),
            [(place, made) for place, made in self.order if made.txid.clock > least],
        )
        self.needed.clear()
        for place, made in read:
            self.window.add(place, made)
            self.window.pack(self.settled, ())
        self.window.set_floor(self.ticks, [place for place, _ in read])
        self.restarted = dict(self.window.floor)
        self.window.forget(self.settled - WINDOW)

    def check_floor(self, forgotten: int) -> None:
        """Check that no commit younger than the window was dropped, and no base refused for a second label alone."""
        firsts = {places[0]: txid for txid, (_, places) in self.commits.items()}
        for leader, tick in self.window.floor.items():
            assert tick in (0, self.restarted.get(leader)) or firsts[leader, tick].clock <= forgotten

    def compare(self) -> None:
        luck = self.luck
        base = {leader: max(0, tick - luck.choice((0, 0, 1, 2, 5, 20))) for leader, tick in self.ticks.items()}
        mine, lacking, newer = draw_access_set(luck), self.lacking(base), self.window.newer_than(base)
        if newer is not None:
            assert {known.txid for known in newer} == {made.txid for made in lacking}
        # A base below the floor is refused, or compared with the journal.
        if not covers(base, self.window.floor):
            return
        assert self.window.oldest_outside(base) == min((made.txid.clock for made in lacking), default=None)
        found = {each.other for each in self.window.conflicts(mine, base)}
        assert found == {made.txid for made in lacking if conflict(mine, made.access_set) is not None}
        spans = draw_access_set(luck).write_ranges
        if spans:
            readers = {each.other for each in self.window.readers(spans, base)}
            assert readers == {made.txid for made in lacking if made.access_set.read_in(spans) is not None}

    def lacking(self, base: Vector) -> list[Transaction]:
        return [
            made
            for made, places in self.commits.values()
            if not any(base.get(leader, 0) >= tick for leader, tick in places)
        ]


@pytest.mark.parametrize("large", [2, access_index.LARGE])
def test_a_base_conflicts_with_exactly_the_commits_that_it_lacks(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base with the second label includes the first one, even if the window dropped the commit long ago."""
    for (module, name), value in zip(WINDOW_CONSTANTS, (4, 6, 5), strict=True):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(access_index, "LARGE", large)
    for seed in range(WORLDS):
        world = World(seed)
        for _ in range(STEPS):
            world.step()

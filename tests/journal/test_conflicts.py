"""The search finds exactly the pairs of conflicting entries of which neither follows the other."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.model.transaction import MEMBERS, ROWS, Transaction, Txid
from bedrockish_journal.model.vector import covers
from bedrockish_journal.verify import conflicts
from bedrockish_journal.verify.conflicts import Conflicts
from bedrockish_journal.verify.verify import verify
from tests.spark.worlds import honest, touching

KEYS = [b"t:t\0" + bytes([number]) for number in range(9)]


@dataclass
class Story:
    """Three leaders that do not wait for each other, so that their commits may conflict."""

    luck: random.Random
    kinds: tuple[str, ...] = (ROWS,)
    applied: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in "ABC"})
    entries: list[Entry] = field(default_factory=list)

    def commit(self) -> None:
        leader = self.luck.choice("ABC")
        if self.luck.random() < 0.5:  # causally closed: the base of an entry in the base is in it, too
            for name, tick in self.applied[self.luck.choice("ABC")].items():
                self.applied[leader][name] = max(tick, self.applied[leader].get(name, 0))
        base, number = dict(self.applied[leader]), len(self.entries)
        ends = [entry.tick for entry in self.entries if entry.leader == leader]
        seen = max((entry.txid.clock for entry in self.entries if covers(base, {entry.leader: entry.tick})), default=0)
        # above the clocks in the base, in no other order
        clock = (seen // 100 + self.luck.randrange(1, 5)) * 100 + number
        txid, kind = Txid(clock, leader), self.luck.choice(self.kinds)
        body = Transaction(txid, base, 0, 0, 0, f"c{number}", "serializable", kind, self._access_set(), b"", b"")
        self._label(leader, max(ends, default=0) + 1, body, None)
        self.applied[leader][leader] = max(ends, default=0) + 1
        if self.luck.random() < 0.1:
            other = self.luck.choice("ABC".replace(leader, ""))
            ends = [entry.tick for entry in self.entries if entry.leader == other]
            if covers(self.applied[other], base):
                self._label(other, max(ends, default=0) + 1, body, leader)
                self.applied[other][other] = max(ends, default=0) + 1

    def _label(self, leader: str, tick: int, body: Transaction, adopted: str | None) -> None:
        self.entries.append(Entry(leader, tick, {leader: tick}, body, adopted, GENESIS))

    def _access_set(self) -> AccessSet:
        def points() -> frozenset[bytes]:
            return frozenset(self.luck.sample(KEYS, self.luck.choice((0, 1, 2))))

        def ranges() -> tuple[tuple[bytes, bytes], ...]:
            low, high = sorted(self.luck.sample(KEYS, 2))
            return ((low, high),) if self.luck.random() < 0.15 else ()

        return AccessSet(points(), ranges(), points(), ranges())

    def pairs(self) -> Iterator[tuple[Entry, Entry]]:
        """Yield each conflicting pair of concurrent transactions, by the definition."""
        first = {entry.txid: entry for entry in reversed(self.entries)}
        for one in first.values():
            for other in first.values():
                if one.txid.clock < other.txid.clock and not self._follows(other, one):
                    members = MEMBERS in (one.transaction.kind, other.transaction.kind)
                    if members or conflict(one.transaction.access_set, other.transaction.access_set) is not None:
                        yield one, other

    def _follows(self, later: Entry, earlier: Entry) -> bool:
        labels = [entry.place for entry in self.entries if entry.txid == earlier.txid]
        return any(later.after.get(leader, 0) >= tick for leader, tick in labels)


def found(entries: list[Entry], horizon: int = 0) -> list[Finding]:
    """Return the conflicts of entries that a walk through files finds."""
    told = Conflicts()
    for entry in entries:
        told.add(entry)
    answer = list(told.check("A, B, C", horizon, {}))
    told.close()
    return answer


def met_widely(one: Entry, other: Entry) -> bool:
    """Return whether two conflict by a range, or because one changes the membership."""
    left, right = one.transaction.access_set, other.transaction.access_set
    ranges = [replace(each, read_points=frozenset(), write_points=frozenset()) for each in (left, right)]
    met = conflict(ranges[0], right) is not None or conflict(left, ranges[1]) is not None
    return met or MEMBERS in (one.transaction.kind, other.transaction.kind)


def names(pairs: Iterator[tuple[Entry, Entry]]) -> set[tuple[str, str]]:
    return {(str(other.txid), f"{one.leader}{one.tick}") for one, other in pairs}


def test_conflict_search_matches_the_definition() -> None:
    """Each reported pair is a conflict. If there are conflicts, some are reported, and all of those with ranges."""
    some = none = 0
    for seed in range(400):
        story = Story(random.Random(seed), (ROWS,) * 9 + (MEMBERS,))
        for _ in range(story.luck.choice((3, 6, 12))):
            story.commit()
        true = names(story.pairs())
        noted = story.luck.sample(story.entries, len(story.entries))  # files tell it in any order, and more than once
        told = {(str(one.txid), one.text.split()[2]) for one in found([*noted, *noted[:3]])}
        first = {entry.txid: entry for entry in reversed(noted)}
        places = {
            f"{entry.leader}{entry.tick}": f"{first[entry.txid].leader}{first[entry.txid].tick}"
            for entry in story.entries
        }
        assert told <= {(later, places[earlier]) for later, earlier in true}, seed
        assert bool(told) == bool(true), seed
        wide = {(str(b.txid), places[f"{a.leader}{a.tick}"]) for a, b in story.pairs() if met_widely(a, b)}
        assert wide <= told, seed
        some, none = some + bool(true), none + (not true)
    assert min(some, none) > 20


def test_conflict_search_omits_conflicts_up_to_the_horizon() -> None:
    story = Story(random.Random(3))
    while not list(story.pairs()):
        story.commit()
    last = max(entry.txid.clock for entry in story.entries)
    assert found(story.entries)
    assert found(story.entries, last) == []


def test_surplus_conflicts_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "SHOWN_MAX", 2)
    written = AccessSet(write_points=frozenset(KEYS[:1]))
    entries = [
        Entry(
            name,
            1,
            {name: 1},
            Transaction(Txid(9, name), {}, 0, 0, 0, name, "serializable", ROWS, written, b"", b""),
            None,
            GENESIS,
        )
        for name in "ABCD"
    ]
    assert [one.text for one in found(entries)][2:] == ["there are more conflicts than these 2"]


def test_conflict_of_two_files_names_the_row(tmp_path: Path) -> None:
    """Each file is consistent by itself; the report names the row that both wrote."""
    world = honest(60)
    paths = world.write(tmp_path / "sound")
    assert verify(paths).findings == []
    world.commit("A", touching("7"))
    first = world.commit("B", touching("8"))
    assert first is not None
    world.change(first.place, lambda draft: replace(draft, access_set=touching("7", "8")))
    paths = world.write(tmp_path / "halves")
    assert all(verify([path]).findings == [] for path in paths)
    (told,) = verify(paths).findings
    assert (told.check, told.node, told.leader, told.tick) == ("conflict", "A, B, C", *first.place)
    assert told.text.endswith("neither had seen the other, and both touch 7 of t:accounts")

"""The conflict window finds the same conflicts as a comparison with all commits."""

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish.core.state import access_index, commit_window, packed_commits
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.commit_window import KEYS_AT_ONCE, CommitWindow
from bedrockish.core.state.packed_commits import SEGMENT, SEGMENT_KEYS
from bedrockish.core.state.pending import Pending
from bedrockish_journal.model.access_set import MANY, AccessSet, conflict
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid

NODES = "ABC"
keys = st.sampled_from([b"t:a\0%d" % number for number in range(6)])
ranges = st.tuples(keys, keys).map(lambda pair: (min(pair), max(pair) + b"\xff"))
access_sets = st.builds(
    AccessSet,
    st.frozensets(keys, max_size=3),
    st.lists(ranges, max_size=2).map(tuple),  # a set may list a range twice
    st.frozensets(keys, max_size=3),
    st.lists(ranges, max_size=2).map(tuple),
)
bases = st.fixed_dictionaries({node: st.integers(0, 8) for node in NODES})
histories = st.lists(st.tuples(st.sampled_from(NODES), access_sets), max_size=20)


# The commits of a segment, its keys, the keys of a large access set, and the keys that are many.
SEGMENTS = (
    (3, SEGMENT_KEYS, 2, 1),
    (3, SEGMENT_KEYS, access_index.LARGE, MANY),
    (SEGMENT, SEGMENT_KEYS, access_index.LARGE, MANY),
)


@pytest.fixture(scope="module", params=SEGMENTS)
def segment(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the number of commits that are packed together: also three, so that short histories fill several segments."""
    count, keys_in_segment, large, many = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_commits, "SEGMENT", count)
        patch.setattr(packed_commits, "SEGMENT_KEYS", keys_in_segment)
        patch.setattr(commit_window, "LATEST", count)
        patch.setattr(packed_commits, "MANY", many)
        patch.setattr(access_index, "LARGE", large)
        yield count


def transaction(clock: int, access_set: AccessSet) -> Transaction:
    return Transaction(Txid(clock, "A"), {}, 0, 0, 0, str(clock), "serializable", ROWS, access_set, b"", b"")


@pytest.mark.parametrize("segment", [(SEGMENT, 6, access_index.LARGE, MANY), *SEGMENTS], indirect=True)
@pytest.mark.usefixtures("segment")
@given(histories, access_sets, bases, st.data())
def test_commit_window_finds_the_same_conflicts_as_a_full_comparison(
    history: list[tuple[str, AccessSet]], access_set: AccessSet, base: dict[str, int], data: st.DataObject
) -> None:
    recent, ticks = CommitWindow(), dict.fromkeys(NODES, 0)
    places: dict[Txid, list[tuple[str, int]]] = {}

    def place(committed: Transaction, leader: str) -> None:
        ticks[leader] += 1
        recent.add((leader, ticks[leader]), committed)
        places.setdefault(committed.txid, []).append((leader, ticks[leader]))

    done = [transaction(clock, each) for clock, (_, each) in enumerate(history, 1)]
    for committed, (leader, _) in zip(done, history, strict=True):
        fate = data.draw(st.sampled_from(["placed", "placed", "placed", "adopted"]))
        place(committed, leader)
        if fate == "adopted":
            place(committed, data.draw(st.sampled_from(NODES)))
    safe = data.draw(st.integers(0, len(done)))
    forgotten = data.draw(st.integers(0, safe))
    recent.pack(safe, data.draw(st.sets(st.sampled_from([one.txid for one in done]))) if done else ())
    late = [one for one in done if data.draw(st.booleans())]
    for committed in late[:2]:  # its own label turns up late
        place(committed, data.draw(st.sampled_from(NODES)))
    recent.forget(forgotten)
    expected = {
        committed.txid
        for committed in done
        if conflict(access_set, committed.access_set) is not None
        and not any(base[leader] >= tick for leader, tick in places[committed.txid])
    }
    conflicts = list(recent.conflicts(access_set, base))
    found = {each.other for each in conflicts}
    assert len(found) == len(conflicts)
    assert found <= expected
    for txid in expected - found:
        assert txid.clock <= forgotten
        assert any(recent.floor.get(leader, 0) >= tick for leader, tick in places[txid])
    for own in expected:
        assert own not in {each.other for each in recent.conflicts(access_set, base, own)}
    for each in conflicts:
        met = AccessSet(write_points=frozenset({each.key}))
        assert conflict(met, access_set) is not None
    written, read = AccessSet(write_ranges=access_set.write_ranges), set()
    for committed in done:
        one = committed.access_set
        if conflict(written, AccessSet(one.read_points, one.read_ranges)) is not None:
            read.add(committed.txid)
    readers = list(recent.readers(written.write_ranges, base))
    assert {each.other for each in readers} <= expected & read
    assert all(txid.clock <= forgotten for txid in (expected & read).difference(each.other for each in readers))
    for each in readers:
        assert conflict(AccessSet(read_points=frozenset({each.key})), written) is not None
    newer = recent.newer_than(base)
    if newer is not None:  # the keys decide for a base this old
        assert {one.txid for one in newer if conflict(access_set, one.access_set) is not None} == expected
    above = set(recent.any_conflicts(access_set, safe))
    assert above == {
        one.txid for one in done if one.txid.clock > safe and conflict(access_set, one.access_set) is not None
    }


@pytest.mark.parametrize("segment", [(3, SEGMENT_KEYS, access_index.LARGE, MANY)], indirect=True)
def test_second_label_that_arrives_late_counts_for_packed_commits(segment: int) -> None:
    """A commit whose outcome is still needed stays unpacked, and later ones stay in the order of their timeline
    although they are packed: a base that includes one of these by another place has seen it.
    """
    written = AccessSet(write_points=frozenset({b"t:a\x001"}))
    recent, ranged = CommitWindow(), AccessSet(read_ranges=((b"t:a\0", b"t:a\0\xff"),))
    for clock in range(1, segment + 2):
        recent.add(("A", clock), transaction(clock, written))
    needed = Txid(2, "A")
    recent.pack(segment + 1, {needed})
    assert {found.other.clock for found in recent.conflicts(ranged, {"A": 2})} == {3, 4}
    recent.add(("B", 1), transaction(3, written))
    assert {found.other.clock for found in recent.conflicts(ranged, {"A": 2, "B": 1})} == {4}


def test_settled_commits_are_packed_in_several_steps() -> None:
    """Packing all commits of a minute at once would block the loop for a second."""
    recent, width = CommitWindow(), 40
    count = 10 * KEYS_AT_ONCE // width
    for number in range(1, count + 1):
        points = frozenset(b"t:account\0%08d" % (100 * number + key) for key in range(width))
        recent.add(("A", number), transaction(number, AccessSet(write_points=points)))
    left = [len(recent.known)]
    while len(left) < 3 or left[-1] < left[-2]:
        recent.pack(count, ())
        left.append(len(recent.known))
    steps = [before - after for before, after in pairwise(left)]
    assert max(steps) <= count // 8 + SEGMENT
    assert len(steps) > 8
    assert left[-1] < SEGMENT
    for number in (1, count // 2, count):
        hit = AccessSet(frozenset({b"t:account\0%08d" % (100 * number)}))
        assert [each.other.clock for each in recent.conflicts(hit, {})] == [number]


@pytest.mark.parametrize("segment", SEGMENTS[-1:], indirect=True)
def test_a_commit_of_ten_keys_takes_less_than_400_bytes_below_safe_time(segment: int) -> None:
    """The window keeps 60 s of 1,000 commits a second for transactions that take long."""
    count = 40 * segment

    def commit(number: int) -> Transaction:
        points = frozenset(b"t:account\0%08d" % (100 * number + key) for key in range(10))
        command = f"{number:032x}"
        claimed = claim(AccessSet(points, (), points), (command,), ROWS, number)
        return Transaction(Txid(number, "A"), {}, 0, 0, 0, command, "serializable", ROWS, claimed, b"", b"")

    gc.collect()
    tracemalloc.start()
    recent, before = CommitWindow(), tracemalloc.get_traced_memory()[0]
    for number in range(1, count + 1):
        recent.add(("A", number), commit(number))
        recent.pack(number, ())
    gc.collect()
    taken = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert len(recent.known) < SEGMENT_KEYS // 20  # fewer than a segment has
    assert taken <= 400
    hit = AccessSet(frozenset({b"t:account\0%08d" % 503}))
    assert [each.other.clock for each in recent.conflicts(hit, {})] == [5]
    assert not list(recent.conflicts(hit, {"A": 5}))


@given(st.lists(access_sets, max_size=12), access_sets, st.sets(st.integers(1, 12)))
def test_pending_finds_the_same_conflicts_as_a_full_comparison(
    held: list[AccessSet], access_set: AccessSet, removed: set[int]
) -> None:
    pending = Pending()
    for clock, each in enumerate(held, 1):
        pending.add(transaction(clock, each), 0.0)
    for clock in removed:
        pending.remove(Txid(clock, "A"))
    found = [each.other.clock for each in pending.conflicts(access_set)]
    assert sorted(found) == [
        clock for clock, each in enumerate(held, 1) if clock not in removed and conflict(access_set, each) is not None
    ]


def test_a_late_place_in_a_retired_timeline_is_in_every_base(segment: int) -> None:
    """No base names a retired timeline any more, because all bases have it; the rule holds for packed commits, too."""
    recent = CommitWindow()
    done = [
        transaction(clock, AccessSet(frozenset(), (), frozenset({b"k%d" % clock}))) for clock in range(1, segment + 1)
    ]
    for tick, committed in enumerate(done, 1):
        recent.add(("A", tick), committed)
    recent.pack(done[-1].txid.clock, ())
    assert not recent.known, "all are packed"
    recent.retire({"B"})
    first = done[0]
    assert [found.other for found in recent.conflicts(first.access_set, {})] == [first.txid]
    recent.add(("B", 9), first)
    assert not list(recent.conflicts(first.access_set, {}))


@pytest.mark.parametrize("segment", [(3, SEGMENT_KEYS, access_index.LARGE, MANY)], indirect=True)
def test_packed_commits_inside_the_base_cost_nothing(segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of commits fills hundreds of segments, and neither a conflict test nor a new commit looks at all of
    them.
    """
    recent = CommitWindow()
    made = [
        transaction(clock, AccessSet(frozenset(), (), frozenset({b"k%d" % clock}))) for clock in range(1, 8 * segment)
    ]
    for committed in made[:-1]:
        recent.add(("A", committed.txid.clock), committed)
        recent.pack(committed.txid.clock, ())
    last = made[-1].txid.clock
    with monkeypatch.context() as patch:
        for asked in ("is_in", "owner_of", "add_place", "conflicts"):
            patch.delattr(packed_commits.PackedSegment, asked)
        recent.add(("A", last), made[-1])
        assert not list(recent.conflicts(made[0].access_set, {"A": last}))
    assert [found.other for found in recent.conflicts(made[0].access_set, {"A": 0})] == [made[0].txid]


def test_newer_than_finds_commits_by_their_ticks() -> None:
    recent = CommitWindow()
    for tick in range(1, commit_window.LATEST + 4):
        recent.add(("A", tick), transaction(tick, AccessSet()))
    recent.add(("B", 1), transaction(2, AccessSet()))  # known already, from A
    last = commit_window.LATEST + 3
    assert recent.newer_than({"A": last}) == []
    newer = recent.newer_than({"A": last - 2, "B": 0})
    assert newer is not None
    assert [one.txid.clock for one in newer] == [last - 1, last]
    assert recent.newer_than({"A": 2}) is None
    assert recent.newer_than({"A": 3}) is not None
    recent.retire({"A"})
    assert recent.newer_than({}) == [], "every base has seen what is retired"


def test_a_large_commit_takes_little_more_than_its_keys_below_safe_time() -> None:
    points = frozenset(b"t:account\0%08d" % key for key in range(50_000))
    gc.collect()
    recent = CommitWindow()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(1, SEGMENT + 6):  # the fifth ends a segment by its keys
        written = points if number == 5 else frozenset({b"t:small\0%d" % number})
        recent.add(("A", number), transaction(number, AccessSet(write_points=written)))
    for _ in range(2):  # after so many keys, the rest is packed in the next step
        recent.pack(SEGMENT + 5, ())
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert not recent.known
    assert taken < 50_000 * 25, taken
    for hit in (AccessSet(frozenset({b"t:account\0%08d" % 503})), AccessSet(read_ranges=((b"t:account", b"t:b"),))):
        assert [each.other.clock for each in recent.conflicts(hit, {})] == [5]
        assert not [*recent.conflicts(hit, {"A": 5})]


@pytest.mark.parametrize("many", [1, MANY])
def test_large_commit_is_found_by_its_keys_and_ranges(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_commits, "SEGMENT", 2)
    monkeypatch.setattr(packed_commits, "MANY", many)
    monkeypatch.setattr(access_index, "LARGE", 4)
    read, written = (frozenset(b"t:%s\0%d" % (name, key) for key in range(5)) for name in (b"read", b"written"))
    span = (b"t:span\0", b"t:span\0\xff")
    recent = CommitWindow()
    recent.add(("A", 1), transaction(1, AccessSet(read, (), written, (span,))))
    recent.add(("A", 2), transaction(2, AccessSet()))
    recent.pack(2, ())
    assert not recent.known
    few = frozenset({b"t:read\0" + b"3", b"t:other\0", b"t:a\0"})
    kept = frozenset({b"t:written\0" + b"3", b"t:other\0", b"t:a\0"})
    for asked, key in (
        (AccessSet(write_points=few), b"t:read\0" + b"3"),
        (AccessSet(few), None),
        (AccessSet(write_points=kept), b"t:written\0" + b"3"),
        (AccessSet(kept), b"t:written\0" + b"3"),
        (AccessSet(write_ranges=((b"t:read\0", b"t:read\0\xff"),)), b"t:read\0" + b"0"),
        (AccessSet(read_ranges=((b"t:read\0", b"t:read\0\xff"),)), None),
        (AccessSet(read_ranges=((b"t:written\0" + b"2", b"t:x"),)), b"t:written\0" + b"2"),
        (AccessSet(read_ranges=((b"t:written\0" + b"5", b"t:x"),)), None),
        (AccessSet(frozenset({b"t:span\0" + b"7"})), b"t:span\0" + b"7"),
    ):
        found = [each.key for each in recent.conflicts(asked, {})]
        assert found == ([] if key is None else [key]), asked

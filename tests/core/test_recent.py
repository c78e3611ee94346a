"""The conflict tests find what comparing with everything finds."""

from hypothesis import given
from hypothesis import strategies as st

from bedrockish.core.conflicts import Pending, Recent
from journal.footprint import Footprint, conflict
from journal.transaction import ROWS, Transaction, Txid

NODES = "ABC"
keys = st.sampled_from([b"t:a\0%d" % number for number in range(6)])
ranges = st.tuples(keys, keys).map(lambda pair: (min(pair), max(pair) + b"\xff"))
footprints = st.builds(
    Footprint,
    st.frozensets(keys, max_size=3),
    st.lists(ranges, max_size=1).map(tuple),
    st.frozensets(keys, max_size=3),
    st.lists(ranges, max_size=1).map(tuple),
)
bases = st.fixed_dictionaries({node: st.integers(0, 8) for node in NODES})
histories = st.lists(st.tuples(st.sampled_from(NODES), footprints), max_size=20)


def transaction(clock: int, footprint: Footprint) -> Transaction:
    return Transaction(Txid(clock, "A"), {}, 0, 0, 0, str(clock), "serializable", ROWS, footprint, b"", b"")


@given(histories, footprints, bases, st.data())
def test_recent_finds_what_comparing_with_everything_finds(
    history: list[tuple[str, Footprint]], footprint: Footprint, base: dict[str, int], data: st.DataObject
) -> None:
    recent, ticks = Recent(), dict.fromkeys(NODES, 0)
    places: dict[Txid, list[tuple[str, int]]] = {}

    def place(committed: Transaction, leader: str) -> None:
        ticks[leader] += 1
        recent.add((leader, ticks[leader]), committed)
        places.setdefault(committed.txid, []).append((leader, ticks[leader]))

    done = [transaction(clock, each) for clock, (_, each) in enumerate(history, 1)]
    for committed, (leader, _) in zip(done, history, strict=True):
        fate = data.draw(st.sampled_from(["placed", "placed", "placed", "adopted", "decided"]))
        if fate == "decided":
            recent.decide(committed)
            places[committed.txid] = []
            continue
        place(committed, leader)
        if fate == "adopted":
            place(committed, data.draw(st.sampled_from(NODES)))
    forgotten = data.draw(st.integers(0, len(done)))
    recent.forget(forgotten)
    kept = {known.transaction.txid for known in recent.known.values()}
    expected = {
        committed.txid: conflict(footprint, committed.footprint)
        for committed in done
        if (committed.txid in kept or not places[committed.txid])
        and not any(base[leader] >= tick for leader, tick in places[committed.txid])
    }
    found = list(recent.conflicts(footprint, base))
    assert sorted({each.other for each in found}) == sorted(txid for txid, key in expected.items() if key is not None)
    for own in expected:
        assert own not in {each.other for each in recent.conflicts(footprint, base, own)}


@given(st.lists(footprints, max_size=12), footprints, st.sets(st.integers(1, 12)))
def test_pending_finds_what_comparing_with_everything_finds(
    held: list[Footprint], footprint: Footprint, removed: set[int]
) -> None:
    pending = Pending()
    for clock, each in enumerate(held, 1):
        pending.add(transaction(clock, each), 0.0)
    for clock in removed:
        pending.remove(Txid(clock, "A"))
    found = [each.other.clock for each in pending.conflicts(footprint)]
    assert sorted(found) == [
        clock for clock, each in enumerate(held, 1) if clock not in removed and conflict(footprint, each) is not None
    ]

"""Memory of other nodes' files: the starts that a node knows, and the peers that it refuses."""

from typing import Any

import cbor2

from bedrockish.node.cluster.incarnations import AMNESIA, OLDER_FILE, PREFIX, STEP, Incarnations
from bedrockish.node.cluster.starts import STARTS, STARTS_MAX, add_start, read_starts
from bedrockish_journal.model.membership import Member, Membership

MEMBERS = Membership(0, {"B": Member("B", "h:1"), "L": Member("L", "h:2", voter=False)})


class Disk:
    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def start(self) -> Incarnations:
        return Incarnations(dict(self.kept), self.kept.__setitem__)


class File:
    """The file of a peer, with the facts that it reports, and its copies."""

    def __init__(self, store: str = "one", batches: int = 0, kept: bytes | None = None) -> None:
        self.store, self.batches, self.kept = store, batches, kept

    def start(self, start: bytes) -> "File":
        self.kept = add_start(self.kept, start, self.batches)
        self.batches += 1
        return self

    def copy(self) -> "File":
        return File(self.store, self.batches, self.kept)

    @property
    def info(self) -> dict[str, object]:
        starts = cbor2.loads(self.kept) if self.kept else []
        return {"store": self.store, "batches": self.batches, STARTS: starts}


def told(store: object, batches: object) -> dict[str, object]:
    """Return the HELLO of a program from before starts existed."""
    return {"store": store, "batches": batches}


def why(known: Incarnations, node: str, info: dict[str, object], membership: Membership = MEMBERS) -> str:
    """Return the code of the refusal."""
    refusal = known.judge(node, info, membership)
    return "" if refusal is None else refusal.code


def test_peer_remembers_a_voters_file_over_restarts_and_refuses_another() -> None:
    """Another file of the same voter is refused, with a remedy; the right file may come again."""
    disk = Disk()
    assert why(disk.start(), "B", told("one", 0)) == ""
    known = disk.start()
    refusal = known.judge("B", told("two", 500), MEMBERS)
    assert refusal is not None
    assert refusal.code == AMNESIA
    assert "another file" in refusal.reason
    assert "member replace URL B" in refusal.reason
    assert known.refused == {"B": refusal.reason}
    assert why(known, "B", told("one", 7)) == ""
    assert not known.refused


def test_peer_refuses_an_older_state_of_a_known_file() -> None:
    """A running peer compares the exact number of batches; a restarted one, the number that it last stored."""
    disk = Disk()
    known = disk.start()
    known.judge("B", told("one", 10), MEMBERS)
    known.learn("B", "one", 11)
    assert why(known, "B", told("one", 11)) == ""
    refusal = known.judge("B", told("one", 10), MEMBERS)
    assert refusal is not None
    assert refusal.code == OLDER_FILE
    assert "member replace URL B" in refusal.reason
    known.learn("B", "one", 10 + STEP)
    assert why(disk.start(), "B", told("one", 9 + STEP)) == OLDER_FILE


def test_put_back_file_is_recognised_after_any_growth() -> None:
    """Peers recognise the file by the start that it lacks, or by entries written after its last start; also after more
    starts.
    """
    disk, file = Disk(), File().start(b"1")
    known = disk.start()
    assert why(known, "B", file.info) == ""
    early = file.copy()
    file.batches += 50
    known.learn("B", "one", file.batches)
    assert why(known, "B", file.start(b"2").info) == ""
    late = file.copy()
    file.batches += 2 * STEP
    known.learn("B", "one", file.batches)
    for back in (early, late):
        assert why(known, "B", back.start(b"3").info) == OLDER_FILE
        back.batches += 10 * STEP
        assert why(known, "B", back.info) == OLDER_FILE
        assert why(disk.start(), "B", back.start(b"4").info) == OLDER_FILE
    assert why(known, "B", file.start(b"5").info) == ""
    assert why(disk.start(), "B", file.start(b"6").info) == ""


def test_restarted_peer_notices_a_copy_from_before_a_start_it_has_seen() -> None:
    """All nodes that have seen the last start notice a copy from before it, also after a restart of their own."""
    disk, file = Disk(), File().start(b"1")
    disk.start().judge("B", file.info, MEMBERS)
    copy = file.copy()
    disk.start().judge("B", file.start(b"2").info, MEMBERS)
    copy.start(b"3").batches += STEP
    assert why(disk.start(), "B", copy.info) == OLDER_FILE


def test_file_that_no_longer_has_an_old_start_is_accepted() -> None:
    """A file keeps ``STARTS_MAX`` starts.

    A peer that has last seen an older start cannot compare, and accepts the file.
    """
    known, file = Disk().start(), File().start(b"first")
    known.judge("B", file.info, MEMBERS)
    for number in range(STARTS_MAX):
        file.start(b"%d" % number)
    assert len(cbor2.loads(file.kept or b"")) == STARTS_MAX
    assert why(known, "B", file.info) == ""


def test_peer_that_reports_no_starts_is_judged_by_its_number_of_batches() -> None:
    """The rule of older releases applies; and the message does not count as a start that the next one must have."""
    disk, file = Disk(), File().start(b"1")
    disk.kept[PREFIX + "B"] = cbor2.dumps(["one", 1])
    known = disk.start()
    assert why(known, "B", file.info) == ""
    assert why(known, "B", told("one", 1)) == ""
    assert why(known, "B", file.start(b"2").info) == ""
    assert why(known, "B", told("one", 1)) == OLDER_FILE


def test_peer_ignores_malformed_starts_in_a_hello() -> None:
    """Malformed starts are ignored; the peer is judged by the rest."""
    for nonsense in (None, 7, "x", [1], [[b"1"]], [[b"1", True]], [["1", 1]], [[b"1", 1, 1]], {b"1": 1}):
        assert read_starts(nonsense) == []
        assert why(Disk().start(), "B", {**told("one", 1), STARTS: nonsense}) == ""
    assert read_starts([[b"1", 0], (b"2", 5)]) == [(b"1", 0), (b"2", 5)]


def test_record_of_peers_is_not_written_while_nothing_changes() -> None:
    """Otherwise two nodes would cause each other's writes for ever."""
    disk, file = Disk(), File(batches=10).start(b"1")
    known = disk.start()
    known.judge("B", file.info, MEMBERS)
    before = dict(disk.kept)
    for batches in range(11, 11 + STEP):
        known.learn("B", "one", batches)
    known.judge("B", file.info, MEMBERS)
    assert disk.kept == before
    known.save()
    assert disk.kept != before


def test_learners_and_strangers_may_come_with_any_file() -> None:
    """A learner promises nothing, so it may connect with any file; the nodes record the latest one."""
    known = Disk().start()
    assert why(known, "L", told("one", 9)) == ""
    assert why(known, "L", told("two", 1)) == ""
    assert known.stores == {"L": "two"}
    assert why(known, "X", told("one", 0)) == ""
    assert why(known, "B", told(None, None)) == ""


def test_file_put_back_before_the_promotion_is_accepted_from_the_voter() -> None:
    """The voter judges a promoted learner by its starts since the promotion, also over new links and restarts."""
    disk = Disk()
    known = disk.start()
    learner = Membership(1, {"L": Member("L", "h:1", voter=False, store="one")})
    voter = Membership(2, {"L": Member("L", "h:1", voter=True, store="one")})
    first = add_start(None, b"first", 0)
    again = add_start(first, b"again", 1_000)

    def file(batches: int, starts: bytes) -> dict[str, object]:
        return {"store": "one", "batches": batches, STARTS: cbor2.loads(starts)}

    assert why(known, "L", file(1, first), learner) == ""
    known.learn("L", "one", 5_000)
    assert why(known, "L", file(1_001, again), learner) == ""  # from a copy of batch 1000
    assert why(known, "L", file(1_500, again), voter) == ""
    assert why(disk.start(), "L", file(1_500, again), voter) == ""
    known.learn("L", "one", 2_000)
    assert why(known, "L", file(1_001, add_start(first, b"third", 1_000)), voter) == OLDER_FILE


def test_peer_accepts_the_new_file_of_a_voter_that_the_membership_names() -> None:
    """A voter that returned as a new one, with the cluster's consent, need not have its old file."""
    known = Disk().start()
    known.judge("B", told("one", 50), MEMBERS)
    renewed = Membership(5, {"B": Member("B", "h:1", voter=True, store="two")})
    assert why(known, "B", told("two", 0), renewed) == ""
    assert why(known, "B", told("one", 60), renewed) == AMNESIA


def test_peer_forgets_the_file_of_a_removed_member() -> None:
    """The name may return with another file after that."""
    disk = Disk()
    known = disk.start()
    known.judge("B", told("one", 50), MEMBERS)
    known.forget(Membership(1, {}))
    assert disk.kept == {PREFIX + "B": None}
    assert why(disk.start(), "B", told("two", 0)) == ""

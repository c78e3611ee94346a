"""Large transactions: their pieces precede their BEGIN, are fetched by nodes that lack them, and are dropped at the
end.
"""

import gc
import sys
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

import cbor2
import pytest

from bedrockish.core.coordinator.request import Stage
from bedrockish.core.protocol import pieces
from bedrockish.core.protocol.events import Event
from bedrockish.core.protocol.health import DISK_FULL, Mode
from bedrockish.core.protocol.messages import (
    Accept,
    Approve,
    Begin,
    Commit,
    Entries,
    InPieces,
    Offer,
    Piece,
    Promise,
    Recover,
    Reject,
    Stored,
    Want,
    decode,
    encode,
)
from bedrockish.core.protocol.pieces import Cutter
from bedrockish.core.replica import staging
from bedrockish.core.state.settings import Settings
from bedrockish.errors import ReadOnlyError
from bedrockish_journal.model import transaction as transaction_form
from bedrockish_journal.model.access_set import AccessSet, clock_key
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from tests.core.net import Net, add

T = TypeVar("T")
LARGE = Settings(inline_bytes=300, piece_bytes=16, ask_rest_ms=0)  # all transactions of these tests are large
BIG = "k" * 1_000  # a key so long that any transaction that writes it is large


def txn(clock: int, changes: bytes, base: int = 0) -> Transaction:
    access_set = AccessSet(
        frozenset({b"t:a\0one", clock_key(clock)}), (), frozenset({b"t:a\0" + b"k" * 100, b"c:\0me"}), ()
    )
    return Transaction(
        Txid(clock, "A"), {"A": base}, 0, 0, 0, "me", "serializable", ROWS, access_set, changes, b"r" * 40
    )


def of_kind(net: Net, kind: type[T], sender: str = "") -> list[T]:
    return [message for name, _, message in net.said if isinstance(message, kind) and sender in ("", name)]


def test_message_joined_from_its_pieces_decodes_to_the_original() -> None:
    """A message of any content decodes to itself after its parts are joined."""
    one, two = txn(1, bytes(range(256)) * 9), txn(2, b"small")
    packed = tuple((bytes(32), b"label", t.body) for t in (one, two, one))
    for message in (
        Begin(one.body),
        Commit(b"label", one.body, bytes(32), 7),
        Recover(one.body, 3, 9),
        Accept(one.body, 3, commit=True, clock=9),
        Promise(one.txid, 3, 3, (2, True), (one.body, two.body), (two.txid,), 9, 9),
        Entries(packed, 5),
        Entries(packed * 40, 5),
        Begin(b"\xff" * 3_000),  # no valid transaction
    ):
        cut = Cutter(100, 200).cut_message(message)
        assert cut.pieces
        assert max(len(part) for part in cut.parts if isinstance(part, bytes)) <= 1_500
        data = b"".join(part if isinstance(part, bytes) else cut.pieces[part[0]].read() for part in cut.parts)
        assert decode(data) == message
        assert decode(encode(InPieces(cut.parts))) == InPieces(cut.parts)


def test_second_begin_cuts_most_of_the_same_pieces() -> None:
    """A new clock, base or rollback changes no piece of an execution. Small transactions have no pieces."""
    changes = b"".join(sha256(bytes([n])).digest() for n in range(200))
    early, late = txn(1, changes), replace(txn(1 << 60, changes, base=70_000), rollbacks=(Txid(9, "A"),), body=b"")
    cuts = [Cutter(64, 300).cut_body(t.body).names for t in (early, late)]
    assert len(set(cuts[0]) & set(cuts[1])) >= len(changes) // 64
    assert not Cutter(1 << 16, 1 << 16).cut_body(early.body).pieces


def test_cached_cuts_take_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "CACHED_BYTES", 50_000)
    cutter = Cutter(100, 200)
    for number in range(40):
        body = txn(number, bytes(5_000)).body
        cutter.cut_body(body)
        assert cutter.cut_body(body) is cutter.cut_body(body), "the last cuts are cached"
        caches = (cutter._hashed, cutter._hashed_before, cutter._bodies, cutter._bodies_before)
        kept = {id(text): len(text) for cache in caches for text, _ in cache.values()}
        assert sum(kept.values()) <= 100_000


def test_cut_message_is_freed_without_the_garbage_collector() -> None:
    body = txn(1, bytes(5_000)).body
    before = sys.getrefcount(body)
    gc.disable()
    try:
        for _ in range(3):
            assert Cutter(100, 200).cut_message(Begin(body)).pieces
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()


def test_large_transaction_begins_when_a_quorum_has_its_pieces() -> None:
    net = Net("ABC", settings=LARGE)
    net.kept = {Piece}
    net.ask("A", add("one", BIG))
    net.deliver()
    assert {type(m) for _, to, m in net.said if to == "B"} == {Offer, Piece}
    assert not of_kind(net, InPieces)
    [request_id] = net.places["A"].core.coordinator.replies.in_flight.values()
    assert request_id.stage is Stage.OFFERED
    net.kept = set()
    net.deliver()
    assert net.told("A") == {"one": "A1"}
    kinds = net.kinds("A")
    assert kinds.index("InPieces") > max(n for n, kind in enumerate(kinds) if kind == "Piece"), "BEGIN needs no more"
    assert "Begin" not in kinds
    for place in net.places.values():
        assert place.disk.seen.rows[BIG]


def test_leader_that_becomes_read_only_during_its_offer_names_its_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    net, answers = Net("ABC", settings=LARGE), list[object]()
    net.kept = {Piece}
    net.ask("A", add("one", BIG))
    net.deliver()
    core = net.places["A"].core
    monkeypatch.setattr(core.coordinator.replies, "finish", lambda _, answer: answers.append(answer))
    core.state.health.set_alarm(DISK_FULL, Mode.READ_ONLY, "the disk is full")
    net.kept = set()
    net.deliver()
    [refused] = answers
    assert isinstance(refused, ReadOnlyError)
    assert refused.details["alarm"] == DISK_FULL


def test_long_body_has_the_same_bytes_as_by_the_encoder_for_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [txn(7, bytes(size)).body for size in (3, 100, 300, 70_000)]
    monkeypatch.setattr(transaction_form, "LONG_BYTES", 1)
    assert [txn(7, bytes(size)).body for size in (3, 100, 300, 70_000)] == whole
    for count in (0, 23, 24, 255, 256, 65_535, 65_536):
        assert transaction_form.head(2, count) + bytes(count) == cbor2.dumps(bytes(count))


def test_other_messages_go_on_while_one_is_assembled() -> None:
    """The voters handle the small transaction first, and keep all pieces of the large one, although no other message
    names it.
    """
    net = Net("ABC", settings=replace(LARGE, inline_bytes=1_000))
    net.slow = {"B", "C"}
    net.ask("A", add("large", BIG))
    net.deliver()
    net.ask("A", add("small", "k"))
    net.deliver()
    assert net.told("A") == {"small": "A1"}
    for name in "BC":
        net.places[name].core.staging.offers.clear()
    net.run(2.0)
    assert net.told("A") == {"small": "A1"}
    net.slow = set()
    net.run(2.0)
    assert net.told("A") == {"small": "A1", "large": "A2"}
    assert all(BIG in place.disk.seen.rows for place in net.places.values())
    assert not net.places["B"].core.state.pieces.assembling


def test_message_that_began_to_arrive_in_time_counts_as_in_time() -> None:
    """Closing waits for this message only, so a series of messages cannot stop it."""
    net = Net("ABC", settings=LARGE)
    net.slow = {"B", "C"}
    for number in range(20):
        net.ask("A", add(f"large {number}", f"{number}{BIG}"))
        net.run(0.15)
        for name in "BC":
            place = net.places[name]
            if number > 3 and place.assembling:
                net.play(name, "assemble")
    assert min(net.places[name].core.state.clock.closed for name in "BC") > 0
    closed = [place.core.state.clock.closed for place in net.places.values()]
    net.slow = set()
    net.run(2.0)
    assert set(net.told("A")) == {f"large {number}" for number in range(20)}
    assert not of_kind(net, Reject), "too late"
    assert all(
        place.core.state.clock.closed > before for place, before in zip(net.places.values(), closed, strict=True)
    )


def test_incomplete_message_is_not_fetched() -> None:
    """The COMMIT after it shows C that a message is missing; C already has that message in pieces."""
    net = Net("ABC", settings=replace(LARGE, inline_bytes=1_000))
    net.slow = {"C"}
    net.ask("A", add("large", BIG))
    net.deliver()
    net.ask("A", add("small", "k"))
    net.run(3.0)
    assert net.told("A") == {"large": "A1", "small": "A2"}
    assert "k" not in net.places["C"].disk.seen.rows
    net.slow = set()
    net.run(1.0)
    assert {BIG, "k"} <= net.places["C"].disk.seen.rows.keys()
    assert "Fetch" not in net.kinds("C")


def test_small_transactions_are_not_sent_in_pieces() -> None:
    net = Net("ABC", settings=replace(LARGE, inline_bytes=100_000))
    net.ask("A", add("one", BIG))
    net.deliver()
    assert net.kinds("A") == ["Begin"] * 2 + ["Commit"] * 2


def test_pieces_are_dropped_when_nothing_names_them() -> None:
    net = Net("ABC", settings=LARGE)
    net.ask("A", add("one", BIG))
    net.deliver()
    assert all(place.disk.seen.pieces for place in net.places.values())
    net.run(3.0)
    assert not any(place.disk.seen.pieces or place.core.state.pieces.saved for place in net.places.values())
    assert not net.places["B"].core.staging.offers


def test_known_pieces_are_not_sent_again() -> None:
    """If a second execution has the same effect, its BEGIN needs no further pieces."""
    net = Net("ABC", settings=LARGE)
    net.kept = {Stored}
    net.ask("A", add("one", BIG))
    net.deliver()
    before = len(of_kind(net, Piece))
    assert before
    coordinator = net.places["A"].core.coordinator
    [number] = coordinator.replies.in_flight
    core = net.places["A"].core
    core.state.set_now(net.now)
    coordinator.replies.in_flight[number].move(Stage.EXECUTING)
    coordinator.ready.add(coordinator.replies.in_flight[number])
    net.places["A"].perform(core._finish_step())
    net.kept = set()
    net.deliver()
    assert net.told("A") == {"one": "A1"}
    assert len(of_kind(net, Piece)) == before


@pytest.mark.parametrize(("why", "executions"), [("a row is another one", 2), ("", 1)])
def test_transaction_rejected_for_differing_rows_is_executed_again(
    monkeypatch: pytest.MonkeyPatch, why: str, executions: int
) -> None:
    """The leader itself may have the damaged rows, and be repaired by now. After another rejection it would begin again
    without execution.
    """
    net = Net("ABC", settings=LARGE)
    place = net.places["A"]
    executed: list[int] = []
    execute = place._execute

    def noted(number: int, group: tuple[int, ...]) -> Event:
        executed.append(number)
        return execute(number, group)

    place._execute = noted  # type: ignore[method-assign, assignment]
    states = [net.places[name].core.state for name in "BC"]
    for state in states:
        monkeypatch.setattr(state, "why_rows_differ", lambda _: why)
    if not why:
        net.kept = {InPieces, Begin}
    net.ask("A", add("one", BIG))
    net.deliver()
    for state in states:
        monkeypatch.setattr(state, "why_rows_differ", lambda _: "")
    if not why:
        coordinator = place.core.coordinator
        coordinator.attempts.give_up(next(iter(coordinator.attempts.open.values())))
        net.kept = set()
    net.run(5.0)
    assert net.told("A") == {"one": "A1"}
    assert len(executed) == executions


@pytest.mark.parametrize(("cut_off", "told_after_s"), [(True, 2.0), (False, 8.0)])
def test_transaction_without_quorum_fails_in_time_for_another_node(cut_off: bool, told_after_s: float) -> None:
    """If a quorum is in reach, the transaction has all of its client's time, which it may need on slow links."""
    net = Net("ABC", settings=LARGE)
    if cut_off:
        for other in "BC":
            net.cut("A", other)
    net.kept = {Piece}
    net.ask("A", replace(add("one", BIG), timeout_s=2.0, longest_s=8.0))
    net.run(told_after_s - 0.5)
    assert net.told("A") == {}
    net.run(1.0)
    assert net.told("A") == {"one": "did not happen"}


def test_lost_questions_and_answers_are_asked_again() -> None:
    net = Net("ABC", settings=LARGE)
    net.kept = {Piece}
    net.ask("A", add("one", BIG))
    net.deliver()
    net.flights.clear()  # lost, and the sender does not notice
    net.kept = {Want}
    net.run(3.0)
    net.flights.clear()
    net.kept = set()
    net.run(5.0)
    assert net.told("A") == {"one": "A1"}


def test_a_late_voter_fetches_the_pieces_of_a_commit() -> None:
    """A voter that was cut off gets the commit from the journal, in pieces, too."""
    net = Net("ABC", settings=LARGE)
    for other in "AB":
        net.cut("C", other)
    net.ask("A", add("one", BIG))
    net.deliver()
    assert net.told("A") == {"one": "A1"}
    net.said.clear()
    for other in "AB":
        net.mend("C", other)
    net.run(3.0)
    assert BIG in net.places["C"].disk.seen.rows
    assert of_kind(net, Piece)
    assert not of_kind(net, Entries)
    assert not net.places["C"].core.staging.fetched


def test_a_dead_leaders_large_transaction_is_recovered() -> None:
    """The vote is stored in pieces. After a restart it is complete again, and nodes without the body fetch it."""
    net = Net("ABC", settings=LARGE)
    net.cut("A", "C")
    net.kept = {Stored}
    net.ask("A", add("one", BIG))
    net.deliver()
    net.kept = set()
    net.flights = net.flights.__class__(f for f in net.flights if type(f[2]) is Stored)
    while not any(type(f[2]).__name__ == "Approve" for f in net.flights):
        flight = net.flights.popleft()
        net.play(flight[1], "receive", flight[0], flight[2])
    net.flights.clear()
    net.cut("A", "B")
    place = net.places["B"]
    assert place.disk.seen.parts, "the vote names the pieces"
    body = place.core.state.votes.by_txid[next(iter(place.core.state.votes.by_txid))].transaction.body  # type: ignore[union-attr]
    net.play("B", "reboot", 0)
    net.places["B"].now = net.now
    assert place.core.state.votes.by_txid[next(iter(place.core.state.votes.by_txid))].transaction.body == body  # type: ignore[union-attr]
    net.mend("B", "C")
    net.run(20.0)
    assert BIG in net.places["B"].disk.seen.rows
    assert BIG in net.places["C"].disk.seen.rows
    assert of_kind(net, Piece, "B")
    net.run(20.0)
    assert not net.places["B"].disk.seen.pieces


def test_recovery_waits_for_a_voter_that_fetches_its_body() -> None:
    """Another round would have another ballot, and the voter would fetch all pieces again."""
    net = Net("ABC", settings=LARGE)
    net.cut("A", "C")
    key = "".join(map(str, range(500)))  # all pieces differ
    net.ask("A", add("one", key))
    while not any(type(f[2]) is Approve for f in net.flights):
        flight = net.flights.popleft()
        net.play(flight[1], "receive", flight[0], flight[2])
    net.flights.clear()
    net.cut("A", "B")
    net.kept = {Piece}
    began = net.seconds
    while key not in net.places["B"].disk.seen.rows:
        net.run(0.25)
        assert net.seconds < began + 60
        for _ in range(min(4, len(net.flights))):
            flight = net.flights.popleft()
            net.play(flight[1], "receive", flight[0], flight[2])
    assert net.seconds > began + 5, "longer than any patience"
    assert net.places["B"].core.recovery.counts["started"] == 1


def test_a_vote_keeps_its_pieces_over_a_restart_with_other_sizes() -> None:
    """A restart with another ``piece_bytes`` still finds the stored pieces, by the names in the file."""
    net = Net("ABC", settings=LARGE)
    net.cut("A", "C")
    net.kept = {Commit, InPieces}
    net.ask("A", add("one", BIG))
    net.deliver()
    begin = next(f for f in net.flights if type(f[2]) is InPieces and f[1] == "B")
    net.play("B", "receive", begin[0], begin[2])
    net.flights.clear()
    for other in "AC":
        net.cut("B", other)
    place = net.places["B"]
    place.settings = replace(LARGE, piece_bytes=40)
    net.play("B", "reboot", 0)
    net.run(30.0)
    assert place.core.state.votes.pending.transactions
    net.play("B", "reboot", 0)
    assert place.core.state.votes.pending.transactions


def test_pieces_of_a_crashed_leader_are_dropped() -> None:
    net = Net("ABC", settings=LARGE)
    net.kept = {Stored}
    net.ask("A", add("one", BIG))
    net.deliver()
    net.flights.clear()
    assert net.places["B"].disk.seen.pieces
    for other in "BC":
        net.cut("A", other)
    net.play("A", "reboot", 0)
    assert net.places["A"].disk.seen.pieces
    net.run(staging.FOUND_S + 1)
    assert not net.places["A"].disk.seen.pieces
    assert net.places["B"].disk.seen.pieces, "its leader may come back"
    net.run(staging.KEPT_S)
    assert not net.places["B"].disk.seen.pieces


def test_offered_pieces_of_a_peer_are_bounded_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "OFFERED_BYTES_MAX", 1_000)
    net = Net("ABC", settings=LARGE)
    for number in range(5):
        offer = Offer(number, tuple((bytes([number, n]) * 16, 100) for n in range(4)), 0)
        net.play("B", "receive", "A", offer)
    core = net.places["B"].core
    assert len(core.staging.offers) == 2
    assert [message.stored for message in of_kind(net, Stored)] == [False] * 3
    net.play("B", "receive", "A", Piece(b"x" * 32, b"never asked for"))
    digest = next(iter(core.staging.requests["A"].asked))
    net.play("B", "receive", "A", Piece(digest, b"z" * 100))
    assert not core.state.pieces.saved, "only what was asked for, and only if it is what its name says"


def test_incomplete_messages_are_bounded() -> None:
    net = Net("ABC", settings=LARGE)
    for n in range(20):
        net.play("B", "receive", "A", InPieces((b"x", (bytes([n]) * 32, 50))))
    core = net.places["B"].core
    assert len(core.staging.incomplete) == staging.MESSAGES_MAX
    net.play("B", "receive", "A", InPieces(((b"y" * 32, 1 << 20),) * 100))
    assert core.state.counts["messages_too_many"] == 17
    net.flights.clear()
    net.run(staging.KEPT_S + 5)
    assert not core.staging.incomplete
    assert not core.staging.fetched


def test_malformed_reassembled_message_is_dropped() -> None:
    net = Net("ABC", settings=LARGE)
    for data in (b"nonsense", encode(InPieces((encode(Want(())),)))):
        net.play("B", "receive", "A", InPieces((data,)))
    assert net.places["B"].core.state.counts["malformed"] == 2


def test_client_learns_that_its_pieces_did_not_reach_a_quorum() -> None:
    net = Net("ABC", settings=LARGE)
    net.kept = {Piece}
    net.ask("A", add("one", BIG, timeout_s=3.0))
    net.run(5.0)
    assert net.told("A") == {"one": "did not happen"}
    net.run(1.0)
    assert not net.places["A"].core.state.pieces.offered
    assert not net.places["B"].core.staging.offers

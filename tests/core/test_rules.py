"""Single rules of a node, each at the moment at which a decision depends on it. See ``docs/mutations.md``."""

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bedrockish.api.requests import Request
from bedrockish.core.coordinator.attempts import Attempt
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.reservations import Reservation
from bedrockish.core.coordinator.revalidation import first_conflict, move
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Apply, Malformed, Send
from bedrockish.core.protocol.events import Now, Received
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.messages import (
    Accept,
    Approve,
    Begin,
    Checked,
    Gossip,
    Outcome,
    Promise,
    Reason,
    Recover,
    Reject,
    Standing,
    Stored,
    ToldClock,
)
from bedrockish.core.protocol.records import Joining, Prepared, Recovered, Vote
from bedrockish.core.recovery.recovery import RecoveryRound
from bedrockish.core.replica.voter import COMPARING_S
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.pieces import Assembling
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import CLOCK_LIMIT, pack
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction, Txid
from bedrockish_journal.model.vector import Vector

WALL = 1_800_000_000_000
CLOCK = pack(WALL)
ABC = Membership(1, {node: Member(node, f"{node}:1") for node in "ABC"})


def make(leader: str, number: int, key: bytes = b"t:x\0k", base: Vector | None = None, config: int = 1) -> Transaction:
    """Return a transaction that reads and writes a key."""
    command = f"{leader}-{number}"
    sets = claim(
        AccessSet(read_points=frozenset({key}), write_points=frozenset({key})), (command,), ROWS, CLOCK + number
    )
    txid = Txid(CLOCK + number, leader)
    return Transaction(txid, base or {}, CLOCK - 1, 0, config, command, "serializable", ROWS, sets, b"", b"")


class Voter:
    """The node B, which knows its peers' wall clocks; the test plays the other nodes."""

    def __init__(self, members: Membership = ABC, **recovered: Any) -> None:
        self.seconds, self.rows = 0.0, ""
        self.journal: set[Txid] = set()
        self.compared: list[Txid] = []
        self.node = Node(
            Recovered("B", "sB", members, **recovered),
            Settings(ask_rest_ms=0),
            lambda: 0.5,
            self.now,
            lookups=FileLookups(has_applied=lambda txid: txid in self.journal, compare_rows=self._compare),
        )
        self.node.start(self.now)
        self.state = self.node.state
        for peer in self.state.roster.peers:
            self.hear(peer, Gossip({}, 0, 0, 1, f"s{peer}", 1, WALL, config=members.version))

    def _compare(self, transaction: Transaction) -> str | None:
        self.compared.append(transaction.txid)
        return self.rows

    @property
    def now(self) -> Now:
        return Now(self.seconds, WALL + int(1000 * self.seconds))

    def hear(self, peer: str, message: Any) -> list[Any]:
        """Return the messages to the peer in answer."""
        effects = self.node.step(Received(peer, message), self.now)
        return [one.message for one in effects if isinstance(one, Send) and one.peer == peer]


@pytest.fixture
def voter() -> Voter:
    return Voter()


# -- votes ---------------------------------------------------------------------------------------------------------


def test_outcome_of_a_commit_of_this_step_is_kept_though_it_is_settled(voter: Voter) -> None:
    """The journal has the commit only after the step."""
    votes, made = voter.state.votes, make("A", 1)
    voter.state.clock.raise_settled(CLOCK + 5)
    votes.end(made.txid, commit=True)
    votes.apply(made.txid)
    votes.take_ended()
    voter.state.outbox.emit(Apply(Entry("A", 1, {"A": 1}, made, None, GENESIS), False))
    votes.forget(())
    assert votes.outcomes == {made.txid: True}
    voter.state.outbox.drain()
    votes.forget(())
    assert not votes.outcomes


def test_promise_names_a_rollback_that_came_before_its_begin(voter: Voter) -> None:
    """The node does not know the transaction's keys, so it may conflict with anything (J6)."""
    given_up, other = make("A", 1), make("C", 2)
    assert voter.state.votes.accept_rollback(given_up.txid)
    assert voter.node.recovery._ended_against(other) == [given_up.txid]


def test_promise_names_an_accepted_abort(voter: Voter) -> None:
    orphan, other = make("A", 1), make("C", 2)
    voter.hear("A", Begin(orphan.body))
    assert voter.node.recovery._ended_against(other) == []
    voter.hear("C", Accept(orphan.body, 4, False, CLOCK))
    assert voter.node.recovery._ended_against(other) == [orphan.txid]


def test_copied_cut_is_lowered_below_the_transactions_that_the_node_holds() -> None:
    """The cut of the copy may be above a held transaction's clock; a voter approves nothing at or below its cut."""
    held = make("A", 1)
    voter = Voter(votes=(Vote(held.txid, held, held=True),), cut=CLOCK + 50)
    assert voter.state.clock.cut < held.txid.clock
    assert voter.state.clock.closed < held.txid.clock


# -- state ---------------------------------------------------------------------------------------------------------


def test_own_commit_older_than_the_window_stays_in_it(voter: Voter) -> None:
    """The client learns the place; the window omits only commits of other leaders."""
    voter.state.clock.raise_settled(CLOCK + (200_000 << 22))
    own, other = make("B", 1), make("C", 2)
    voter.state.add_entry(Entry("A", 1, {"A": 1}, own, "B", GENESIS))
    voter.state.add_entry(Entry("C", 1, {"C": 1}, other, None, GENESIS))
    assert set(voter.state.commit_window.known) == {own.txid}


def test_command_of_a_commit_that_waits_for_its_base_has_happened(voter: Voter) -> None:
    waiting = make("C", 1, base={"A": 7})
    voter.state.add_entry(Entry("C", 1, {"C": 1}, waiting, None, GENESIS))
    found = voter.state.happened(("C-1",))
    assert found is not None
    assert found.other == waiting.txid


def test_retired_timelines_count_as_seen_in_the_journal() -> None:
    voter = Voter(Membership(2, ABC.members, retired={"X": 2}))
    asked: list[Vector] = []

    def conflicts(_access_set: AccessSet, seen: Vector, _upto: Vector) -> bool:
        asked.append(seen)
        return False

    voter.state._lookups = FileLookups(conflicts=conflicts)
    voter.state.commit_window.floor["A"] = 1
    assert voter.state.conflicts_outside(make("C", 1)) is False
    assert asked == [{"X": CLOCK_LIMIT}]


def test_rows_are_not_compared_in_a_step_that_applies(voter: Voter) -> None:
    """The tables get the rows only after the step."""
    made = make("A", 1)
    voter.state.outbox.emit(Apply(Entry("C", 1, {"C": 1}, make("C", 2), None, GENESIS), False))
    assert voter.state.why_rows_differ(made) is None
    assert voter.compared == []
    voter.state.outbox.drain()
    assert voter.state.why_rows_differ(made) == ""


def test_node_in_read_only_mode_does_not_vote(voter: Voter) -> None:
    assert voter.state.roster.is_voter("B")
    voter.state.health.set_alarm("disk", Mode.READ_ONLY, "no room")
    assert not voter.state.roster.is_voter("B")
    assert voter.state.roster.is_voter("A")


def test_new_node_has_not_joined_before_the_change_that_took_it_in() -> None:
    """Until this node applies that change, it counts by the earlier membership."""
    voter = Voter(joining=Joining(Membership(3, ABC.members), {"A": 9}))
    assert not voter.state.roster.join_if_caught_up({"A": 9}, 0.0)
    assert voter.state.roster.joining is not None
    voter.state.roster.set_membership(Membership(3, ABC.members), 0.0)
    assert not voter.state.roster.join_if_caught_up({"A": 8}, 0.0)
    assert voter.state.roster.join_if_caught_up({"A": 9}, 0.0)


def test_release_level_is_the_highest_of_all_received_messages() -> None:
    voter = Voter(Membership(1, ABC.members, level=LEVEL))
    assert voter.state.roster.level == LEVEL
    voter.state.roster.hear("A", LEVEL + 2)
    assert voter.state.roster.level == LEVEL + 2


def test_timeline_with_an_unapplied_commit_is_not_whole() -> None:
    voter = Voter(applied={"X": 3})
    for peer in voter.state.roster.peers.values():
        peer.applied = {"X": 3}
    assert voter.state.timelines.whole() == {"X"}
    voter.state.timelines.taken["X"] = 4
    assert voter.state.timelines.whole() == set()


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", ["compared", "assembled", ""])
def test_time_is_not_closed_over_a_begin_that_came_in_time(voter: Voter, waits: str) -> None:
    """A BEGIN must not be TOO LATE because its rows are compared or its pieces are still missing."""
    txid, later = Txid(CLOCK + 1, "A"), voter.seconds + 100.0
    if waits == "compared":
        voter.state.votes.comparing[txid] = later
    elif waits:
        voter.state.pieces.assembling.append(Assembling("A", (), txid.clock - 1, later))
    for _ in range(20):
        voter.seconds += 0.1
        voter.state.set_now(voter.now)
        voter.node.safe_time.advance()
    assert (voter.state.clock.closed < txid.clock) == bool(waits)


def test_comparison_of_rows_holds_time_back_for_a_bounded_while(voter: Voter) -> None:
    """The bound counts from the first comparison, even if it begins again."""
    voter.rows = None  # type: ignore[assignment]
    made = make("A", 1)
    voter.hear("A", Begin(made.body))
    until = voter.state.votes.comparing[made.txid]
    voter.seconds += COMPARING_S / 2
    voter.state.set_now(voter.now)
    voter.node.voter.on_compared(made.txid)
    assert voter.state.votes.comparing[made.txid] == until


def test_safe_time_ignores_reports_made_under_a_newer_membership(voter: Voter) -> None:
    for peer in voter.state.roster.peers.values():
        peer.report, peer.closed, peer.cut = None, CLOCK, CLOCK
    assert voter.node.safe_time._settled() > 0
    voter.state.roster.peers["A"].config = 2
    assert voter.node.safe_time._settled() == 0


def test_smallest_unapplied_clock_includes_entries_behind_the_first(voter: Voter) -> None:
    """An adopted transaction brings an old clock to a late place."""
    entries = [Entry("C", tick, {"C": tick}, make("C", number), None, GENESIS) for tick, number in ((1, 9), (2, 3))]
    voter.node.apply_queue.waiting["C"] = deque(entries)
    assert voter.node.apply_queue.smallest_unapplied() == CLOCK + 3


# -- pieces --------------------------------------------------------------------------------------------------------


def test_pieces_that_a_vote_names_are_not_dropped(voter: Voter) -> None:
    pieces, held = voter.state.pieces, make("A", 1)
    voter.state.votes.hold(held)
    pieces.saved |= {b"named": 5, b"free": 4}
    pieces.named[held.txid] = (b"named",)
    voter.node.staging._drop_unnamed()
    assert set(pieces.saved) == {b"named"}


def test_pieces_of_an_own_offer_are_saved_when_a_quorum_has_stored_them(voter: Voter) -> None:
    """The pieces contain the leader's own vote."""
    offers, body = voter.node.coordinator.offers, bytes(range(256)) * 2_000
    prepared = Prepared({}, 0, False, ROWS, AccessSet(), body, b"")
    for peer in voter.state.roster.peers.values():
        peer.up = True
    assert offers.offer(1, prepared)
    names = set(offers.under_way[1].cut.pieces)
    assert names
    assert not names & voter.state.pieces.saved.keys()
    assert offers.on_stored("A", Stored(offers.under_way[1].number, True, CLOCK)) == 1
    assert names <= voter.state.pieces.saved.keys()


# -- revalidation, offers and open transactions --------------------------------------------------------------------


def test_commit_that_read_in_a_span_conflicts_with_the_writer_of_the_span() -> None:
    span = (b"i:y\0", b"i:y\0\xff")
    window, reader = CommitWindow(), make("A", 1, b"i:y\0k")
    window.add(("A", 1), reader)
    mine = AccessSet(write_ranges=(span,))
    found = first_conflict(window, mine, {}, (span,))
    assert found is not None
    assert found.other == reader.txid
    assert first_conflict(window, mine, {"A": 1}, (span,)) is None


@pytest.mark.parametrize(("clock", "base"), [(0, {"A": 4}), (CLOCK, {"A": 3})])
def test_transaction_whose_client_got_its_clock_keeps_its_base(clock: int, base: Vector) -> None:
    """A newer base would include commits that are younger than the clock."""
    voter = Voter(applied={"A": 4})
    prepared = Prepared({"A": 3}, 0, False, ROWS, AccessSet(), b"", b"", clock)
    voter.state.commit_window.floor.clear()
    moved = move(voter.state, InFlight(1, Request("c", ()), 10.0), prepared)
    assert isinstance(moved, Prepared)
    assert moved.base == base


@pytest.mark.parametrize(("kind", "goes_on"), [(ROWS, True), (MEMBERS, False)])
def test_base_of_a_member_change_does_not_move_over_another_change(kind: str, goes_on: bool) -> None:
    """A large membership change is sent in pieces; with a newer base, it would undo the change in between."""
    voter = Voter(applied={"A": 4})
    change = make("A", 1)
    everything = claim(AccessSet(), ("A-1",), MEMBERS, CLOCK + 1)
    window = voter.state.commit_window = CommitWindow({"A": 3})
    window.add(("A", 4), replace(change, kind=MEMBERS, access_set=everything))
    window.note_member_change(change.txid, 0)
    prepared = Prepared({"A": 3}, 0, False, kind, AccessSet(write_points=frozenset({b"t:y\0k"})), b"", b"")
    moved = move(voter.state, InFlight(1, Request("c", ()), 10.0), prepared)
    assert isinstance(moved, Prepared) == goes_on


@pytest.mark.parametrize(("clock", "kept"), [(0, True), (CLOCK, False)])
def test_execution_is_kept_unless_its_client_got_its_clock(clock: int, kept: bool) -> None:
    inflight = InFlight(1, Request("c", ()), 10.0)
    inflight.keep(Prepared({}, 0, False, ROWS, AccessSet(), b"", b"", clock))
    assert (inflight.kept is not None) == kept


def test_reject_for_a_recovery_is_not_counted(voter: Voter) -> None:
    """The recovery ends the transaction, and may commit it."""
    made = make("B", 1)
    voter.state.votes.hold(made)
    attempt = voter.node.coordinator.attempts.open[made.txid] = Attempt(made, [], 0.0, {"B": 0})
    for peer in "AC":
        voter.hear(peer, Reject(made.txid, Reason.PROMISED, None, b"", CLOCK))
    assert attempt.counting
    assert not attempt.rejects


def test_second_schema_change_waits_whatever_its_clock(voter: Voter) -> None:
    barrier = voter.node.coordinator.replies.schema_barrier
    voter.state.schema.scheduled = SimpleNamespace(activates=CLOCK + 100, txid=Txid(CLOCK, "A"))  # type: ignore[assignment]
    rows, change = (Prepared({}, 0, False, kind, AccessSet(), b"", b"") for kind in (ROWS, SCHEMA))
    assert not barrier.blocks(rows, CLOCK + 1)
    assert barrier.blocks(rows, CLOCK + 100)
    assert barrier.blocks(change, CLOCK + 1)


def test_membership_change_does_not_wait_for_a_reservation(voter: Voter) -> None:
    reservations = voter.node.coordinator.contention.reservations
    made = make("A", 1)
    reservations.honoured = Reservation(made.txid, 100, made.access_set)
    inflight = InFlight(1, Request("c", ()), 10.0)
    assert reservations.blocks(inflight, made.access_set, ROWS) == made.txid
    assert reservations.blocks(inflight, made.access_set, MEMBERS) is None


def test_answer_of_a_learner_does_not_count_for_a_strict_read() -> None:
    members = {**ABC.members, "L": Member("L", "L:1", False)}
    reading = Voter(Membership(1, members)).node.read_checks
    prepared = Prepared({}, 0, True, ROWS, AccessSet(read_points=frozenset({b"t:x\0k"})), b"", b"")
    assert reading.begin(InFlight(1, Request("c", ()), 10.0, attempts=1), prepared) is None
    assert reading.on_checked("L", Checked(1, (), CLOCK)) == []
    assert reading.on_checked("A", Checked(1, (), CLOCK)) == [(1, True)]


@pytest.mark.parametrize(("schema", "answered"), [(0, True), (7, False)])
def test_strict_read_of_an_older_schema_is_not_answered(voter: Voter, schema: int, answered: bool) -> None:
    """The read is executed again, because its columns and rows are not those of the present schema."""
    replies = voter.node.coordinator.replies
    inflight = replies.in_flight[1] = InFlight(1, Request("c", ()), 10.0, stage=Stage.CHECKING)
    inflight.unchecked_read = Prepared({}, schema, True, ROWS, AccessSet(), b"", b"\x80")
    voter.node.coordinator.stage_ended(Stage.CHECKING, 1, result=True)
    voter.node.coordinator.advance()
    assert (1 not in replies.in_flight) == answered


def test_answer_with_a_refused_clock_does_not_count_for_the_quorum(voter: Voter) -> None:
    quorum = voter.node.coordinator.clock_quorum
    assert not quorum.ask(7)
    assert quorum.on_told("A", ToldClock(1, pack(WALL + 3_600_000))) is None
    assert quorum.on_told("C", ToldClock(1, CLOCK)) == 7


# -- recovery ------------------------------------------------------------------------------------------------------


def test_transaction_that_cannot_be_compared_is_blocked(voter: Voter) -> None:
    """The voter answers neither HELD nor NEVER, because it no longer has an entry that the base lacks (P14)."""
    voter.state.commit_window.floor["A"] = 1
    said = voter.hear("C", Recover(make("C", 1).body, 4, CLOCK))
    assert [one.standing for one in said if isinstance(one, Promise)] == [Standing.BLOCKED]
    assert not len(voter.state.votes.pending)


def test_recovery_does_not_begin_below_safe_time(voter: Voter) -> None:
    voter.state.clock.close(CLOCK + 5, CLOCK + 5, CLOCK + 5)
    voter.node.recovery.start(make("A", 1))
    assert not voter.node.recovery.rounds


def test_leader_of_a_begin_that_waits_for_its_base_gets_the_outcome(voter: Voter) -> None:
    """The base may never arrive, and the leader must learn that the transaction has ended."""
    made = make("A", 1, base={"C": 9})
    assert not [one for one in voter.hear("A", Begin(made.body)) if isinstance(one, Approve)]
    voter.state.votes.end(made.txid, commit=False)
    voter.state.outbox.drain()
    voter.node.voter.judge_deferred()
    told = [one.message for one in voter.state.outbox.drain() if isinstance(one, Send) and one.peer == "A"]
    assert [(one.txid, one.commit) for one in told if isinstance(one, Outcome)] == [(made.txid, False)]
    assert not voter.node.voter.deferred


def test_clock_of_a_recovery_more_than_a_year_ahead_is_not_followed(voter: Voter) -> None:
    far = pack(WALL + 2 * 366 * 86_400_000)
    effects = voter.node.step(Received("A", Outcome(Txid(CLOCK, "A"), False, "", 0, far)), voter.now)
    assert [one.peer for one in effects if isinstance(one, Malformed)] == ["A"]
    assert voter.state.clock.value < far


def test_rollback_below_safe_time_is_not_taken(voter: Voter) -> None:
    """Below safe time only the journal has outcomes, and it may have the commit."""
    voter.state.clock.close(CLOCK + 5, CLOCK + 5, CLOCK + 5)
    voter.hear("A", Outcome(Txid(CLOCK + 1, "A"), False, "", 0, CLOCK))
    assert not voter.state.votes.outcomes
    voter.node.recovery.rounds[Txid(CLOCK + 1, "A")] = RecoveryRound(make("A", 1), 3, 0.0)
    voter.node.recovery.check()
    assert not voter.node.recovery.rounds

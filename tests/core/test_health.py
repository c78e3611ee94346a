"""A node with damaged tables, or one that only reads: its permitted and forbidden messages and actions."""

import cbor2
import pytest

from bedrockish.api.requests import STRICT, Request, Statement
from bedrockish.core.coordinator.attempts import Attempt
from bedrockish.core.coordinator.request import InFlight, did_not_happen
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Apply, Effect, Execute, Persist, Reply, Send, SendEntries
from bedrockish.core.protocol.events import Compared, Executed, Now, PeerUp, Received, Submitted, Woken
from bedrockish.core.protocol.health import (
    DAMAGED_TABLES,
    DISK_FULL,
    UNAPPLICABLE,
    Alarm,
    Health,
    Mode,
    decode_alarm,
    encode_alarm,
)
from bedrockish.core.protocol.messages import (
    Accept,
    Accepted,
    Approve,
    AskClock,
    Begin,
    Check,
    Checked,
    Entries,
    Fetch,
    Gossip,
    Message,
    Promise,
    Reason,
    Recover,
    Reject,
    Rollback,
    Standing,
    decode,
    encode,
)
from bedrockish.core.protocol.records import Prepared, Recovered, Vote
from bedrockish.core.state.certifier import command_key
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.settings import Settings
from bedrockish.errors import ConflictError, ReadOnlyError, UnavailableError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from tests.core.test_member_changes import CLOCK, WALL, commit, membership, transaction

MEMBERS = membership(0, "ABC")
WHERE = {DAMAGED_TABLES: Alarm(Mode.DAMAGED, "a row is not what the journal says", {"table": "t", "key": "7"})}
FITS_NOWHERE = {UNAPPLICABLE: Alarm(Mode.READ_ONLY, "A1 fits nowhere", {})}
NOTHING_READ = cbor2.dumps(AccessSet().pack())


class Sick:
    """The node B with alarms in its file; the test plays A and C."""

    def __init__(self, alarms: dict[str, Alarm], votes: tuple[Vote, ...] = (), blocked: frozenset[Txid] = frozenset()):
        recovered = Recovered("B", "store of B", MEMBERS, votes=votes, alarms=alarms, blocked=blocked)
        self.node = Node(recovered, Settings(), lambda: 0.5, Now(0.0, WALL))
        self.first = self.node.start(Now(0.0, WALL))
        self.seconds = 0.0
        for peer in "AC":
            self.step(PeerUp(peer))
            self.hear(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL))

    def step(self, event: object) -> list[Effect]:
        self.seconds += 0.001
        return self.node.step(event, Now(self.seconds, WALL + int(1000 * self.seconds)))  # type: ignore[arg-type]

    def hear(self, peer: str, message: Message) -> list[Effect]:
        return self.step(Received(peer, message))

    def submit(self, read: str = "session") -> list[Effect]:
        return self.step(Submitted(1, Request("c1", (Statement("SELECT 1", None),), read=read)))


def said(effects: list[Effect]) -> list[type]:
    return [type(effect.message) for effect in effects if isinstance(effect, Send)]


def prepared(*, readonly: bool) -> Prepared:
    return Prepared({}, 0, readonly, ROWS, AccessSet(read_points=frozenset({b"k"})), b"", b"")


def questions(made: Transaction) -> list[Message]:
    return [
        Begin(made.body),
        Recover(made.body, 2, CLOCK),
        Accept(made.body, 2, True, CLOCK),
        Rollback(made.txid, CLOCK),
        Check(1, {}, NOTHING_READ, CLOCK),
        AskClock(1, CLOCK + 5),
        commit(made),
        Entries(((GENESIS, commit(made).label, made.body),), CLOCK),
    ]


def test_node_with_damaged_tables_sends_no_message_that_is_counted() -> None:
    """The damaged node approves, promises, accepts, certifies, applies and executes nothing."""
    sick = Sick(WHERE)
    for question in questions(transaction("A", 1)):
        assert sick.hear("A", question) == [], question
    found = sick.submit()
    assert not [effect for effect in found if isinstance(effect, Execute | Apply)]
    (reply,) = [effect for effect in found if isinstance(effect, Reply)]
    assert isinstance(reply.answer, UnavailableError)
    assert "not what the journal says" in str(reply.answer)
    for _ in range(50):
        sick.seconds += 1.0
        assert set(said(sick.step(Woken()))) <= {Gossip}


def test_node_with_sound_tables_answers_the_same_messages() -> None:
    """A sound node answers, so the test above can fail."""
    heard = [bool(Sick({}).hear("A", question)) for question in questions(transaction("A", 1))]
    assert heard.count(True) >= 6


def test_damaged_node_still_serves_its_journal() -> None:
    """The damaged node may be the only one that has a commit."""
    made = transaction("A", 1)
    entry = Entry("A", 1, {"A": 1}, made, None, GENESIS)
    recovered = Recovered("B", "b", MEMBERS, applied={"A": 1}, heads={"A": entry.hash}, window=(entry,), alarms=WHERE)
    node = Node(recovered, Settings(), lambda: 0.5, Now(0.0, WALL))
    node.start(Now(0.0, WALL))
    effects = node.step(Received("C", Fetch({"A": 1}, 1000)), Now(0.1, WALL))
    assert [effect for effect in effects if isinstance(effect, SendEntries)] == [SendEntries("C", {"A": 1}, 1000)]


def test_damaged_node_keeps_its_promises_and_gives_up_its_own_transactions() -> None:
    """The node's own transactions end as after a crash, so that others need not wait for them; its votes on others'
    stay.
    """
    own, other = transaction("B", 1), transaction("A", 2)
    sick = Sick(WHERE, (Vote(own.txid, own, held=True), Vote(other.txid, other, held=True)))
    assert said(sick.first).count(Rollback) == 2
    assert not [e for e in sick.first if isinstance(e, Persist) and e.vote.txid == other.txid]
    sick.hear("A", Accepted(own.txid, 1, CLOCK))
    assert sick.node.state.votes.outcomes.get(own.txid) is None, (
        "one other voter is no majority, and it does not vote itself"
    )
    sick.hear("C", Accepted(own.txid, 1, CLOCK))
    assert sick.node.state.votes.outcomes[own.txid] is False
    assert sick.node.state.votes.by_txid[other.txid].held


def test_peers_count_a_damaged_node_as_silent_despite_its_messages() -> None:
    """Other nodes finish its transactions as soon as if it were down."""
    made = transaction("A", 1)
    sick = Sick({}, (Vote(made.txid, made, held=True),))
    spoke: list[type] = []
    for _ in range(40):
        sick.seconds += 0.1
        spoke += said(sick.hear("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL, mode=Mode.DAMAGED)))
        spoke += said(sick.hear("C", Gossip({}, 0, 0, 1, "store of C", 1, WALL)))
        spoke += said(sick.step(Woken()))
    assert Recover in spoke
    assert sick.node.state.roster.peers["A"].mode is Mode.DAMAGED


def test_a_node_that_only_reads_reads_strictly_and_refuses_writes() -> None:
    """Its peers count the node's answers for strict reads; the node leads and approves nothing."""
    sick = Sick(FITS_NOWHERE)
    assert said(sick.hear("A", Begin(transaction("A", 1).body))) == [Reject]
    assert said(sick.hear("A", Check(1, {}, NOTHING_READ, CLOCK)))
    assert [e for e in sick.submit(STRICT) if isinstance(e, Execute)]
    sick.step(Executed(1, prepared(readonly=True)))
    (reply,) = [e for e in sick.hear("A", Checked(1, (), CLOCK)) if isinstance(e, Reply)]
    assert not isinstance(reply.answer, Exception)
    sick = Sick(FITS_NOWHERE)
    sick.submit()
    (reply,) = [e for e in sick.step(Executed(1, prepared(readonly=False))) if isinstance(e, Reply)]
    assert isinstance(reply.answer, ReadOnlyError)
    assert reply.answer.details["alarm"] == UNAPPLICABLE
    assert "A1 fits nowhere" in str(reply.answer)


def test_misfit_entry_blocks_only_its_timeline() -> None:
    """The entry waits with all later ones of its timeline; other timelines go on."""
    bad, good = transaction("A", 1), transaction("C", 2)
    sick = Sick(FITS_NOWHERE, blocked=frozenset({bad.txid}))
    assert not [e for e in sick.hear("A", commit(bad)) if isinstance(e, Apply)]
    assert [e.entry.place for e in sick.hear("C", commit(good)) if isinstance(e, Apply)] == [("C", 1)]
    assert sick.node.state.timelines.applied == {"C": 1}


def test_worst_alarm_decides_the_mode_and_is_cleared_by_name() -> None:
    """With a full disk and damaged tables, the mode is damaged; when one alarm is cleared, the other stays."""
    health = Health()
    assert (health.mode, health.reason, health.reads, health.writes) == (Mode.SERVING, "", True, True)
    health.set_alarm(DISK_FULL, Mode.READ_ONLY, "the disk is full", free=0)
    assert (health.mode, health.name, health.reads, health.writes) == (Mode.READ_ONLY, DISK_FULL, True, False)
    health.set_alarm(DAMAGED_TABLES, Mode.DAMAGED, "a row differs")
    assert (health.mode, health.reads, health.applies) == (Mode.DAMAGED, False, False)
    health.clear_alarm(DAMAGED_TABLES)
    assert health.reason == "the disk is full"
    health.clear_alarm(DISK_FULL)
    health.clear_alarm(DISK_FULL)
    assert health.mode is Mode.SERVING


def test_alarm_and_mode_survive_encoding_and_gossip() -> None:
    """The alarm is read from its bytes, and the mode from gossip; a malformed alarm is refused with a typed error."""
    alarm = WHERE[DAMAGED_TABLES]
    assert decode_alarm(encode_alarm(alarm)) == alarm
    with pytest.raises(EntryMalformedError, match="not an alarm"):
        decode_alarm(b"\x01")
    gossip = Gossip({}, 0, 0, 1, "s", 1, WALL, mode=Mode.DAMAGED)
    assert decode(encode(gossip)) == gossip
    sick = Sick({})
    # a mode of a newer release counts as the worst known one
    sick.hear("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL, mode=77))
    assert sick.node.state.roster.peers["A"].mode is Mode.REPAIRING


def doubting(why: str, recovered: Recovered) -> Node:
    node = Node(
        recovered, Settings(), lambda: 0.5, Now(0.0, WALL), lookups=FileLookups(compare_rows=lambda _transaction: why)
    )
    node.start(Now(0.0, WALL))
    for peer in "AC":
        node.step(Received(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL, level=LEVEL)), Now(0.01, WALL + 10))
    return node


def test_voter_rejects_transactions_with_other_before_images() -> None:
    """An approved one would fit no other node. The voter stores nothing about it, and checks its tables."""
    made = transaction("A", 1)
    node = doubting("row 7 of t differs here or is missing", Recovered("B", "b", MEMBERS))
    effects = node.step(Received("A", Begin(made.body)), Now(0.1, WALL))
    answers = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Approve | Reject)]
    assert [answer.reason for answer in answers if isinstance(answer, Reject)] == [Reason.DIFFERS]
    assert len(answers) == 1
    assert made.txid not in node.state.votes.by_txid
    assert node.state.doubts == 1
    node = doubting("", Recovered("B", "b", MEMBERS))
    assert Approve in said(node.step(Received("A", Begin(made.body)), Now(0.1, WALL)))


def test_voter_does_not_hold_a_recovered_transaction_with_other_before_images() -> None:
    made = transaction("A", 1)
    for why, standing in (("row 7 differs", Standing.BLOCKED), ("", Standing.HELD)):
        node = doubting(why, Recovered("B", "b", MEMBERS))
        effects = node.step(Received("C", Recover(made.body, 3, CLOCK)), Now(0.1, WALL))
        (promise,) = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Promise)]
        assert promise.standing == standing


def test_rows_of_an_entry_in_this_step_are_compared_in_the_next() -> None:
    """The tables do not have the entry yet, so the comparison would find a difference."""
    first = transaction("A", 1)
    second = transaction("A", 2, base={"A": 1})
    asked: list[Txid] = []

    def compare(made: Transaction) -> str:
        asked.append(made.txid)
        return ""

    node = Node(
        Recovered("B", "b", MEMBERS), Settings(), lambda: 0.5, Now(0.0, WALL), lookups=FileLookups(compare_rows=compare)
    )
    node.start(Now(0.0, WALL))
    for peer in "AC":
        node.step(Received(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL)), Now(0.01, WALL + 10))
    node.step(Received("A", Begin(second.body)), Now(0.1, WALL + 100))
    effects = node.step(Received("A", commit(first)), Now(0.11, WALL + 110))
    assert [type(e) for e in effects if isinstance(e, Apply)] == [Apply]
    assert Approve not in said(effects)
    assert asked == []
    deadline = node.deadline()
    assert deadline is not None
    assert deadline <= 0.11
    assert Approve in said(node.step(Woken(), Now(0.11, WALL + 110)))
    assert asked == [second.txid]


@pytest.mark.parametrize("in_time", [True, False])
def test_slow_row_comparison_delays_the_vote_and_closing(in_time: bool) -> None:
    made = transaction("A", 1)
    verdicts: list[str | None] = [None]
    node = Node(
        Recovered("B", "b", MEMBERS),
        Settings(),
        lambda: 0.5,
        Now(0.0, WALL),
        lookups=FileLookups(compare_rows=lambda _transaction: verdicts[0]),
    )
    node.start(Now(0.0, WALL))
    for peer in "AC":
        node.step(Received(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL, level=LEVEL)), Now(0.01, WALL + 10))
    effects = node.step(Received("A", Begin(made.body)), Now(0.1, WALL + 100))
    effects += node.step(Compared(Txid(7, "C")), Now(0.2, WALL + 200))  # a verdict about another transaction
    wait_s = 3.0 if in_time else 12.0
    for beat in range(int(10 * wait_s)):
        effects += node.step(Woken(), Now(0.3 + 0.1 * beat, WALL + 300 + 100 * beat))
    assert (node.state.clock.closed < made.txid.clock) == in_time
    verdicts[0] = ""
    effects += node.step(Compared(made.txid), Now(0.4 + wait_s, WALL + 400 + int(1000 * wait_s)))
    answers = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Approve | Reject)]
    assert [type(answer) for answer in answers] == [Approve if in_time else Reject]
    assert (made.txid in node.state.votes.pending) == in_time
    if not in_time:
        assert isinstance(answers[0], Reject)
        assert answers[0].reason == Reason.TOO_LATE


def test_row_written_during_its_comparison_is_a_conflict() -> None:
    """The verdict is about the rows at the beginning of the comparison."""
    made, other = transaction("A", 1), transaction("C", 1)
    verdicts: list[str | None] = [None]
    node = Node(
        Recovered("B", "b", MEMBERS),
        Settings(),
        lambda: 0.5,
        Now(0.0, WALL),
        lookups=FileLookups(compare_rows=lambda _transaction: verdicts[0]),
    )
    node.start(Now(0.0, WALL))
    for peer in "AC":
        node.step(Received(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL, level=LEVEL)), Now(0.01, WALL + 10))
    assert not {Approve, Reject} & {*said(node.step(Received("A", Begin(made.body)), Now(0.1, WALL + 100)))}
    effects = node.step(Received("C", commit(other)), Now(0.11, WALL + 110))
    assert not {Approve, Reject} & {*said(effects)}, "it is not looked at again with each commit: it may be large"
    verdicts[0] = ""
    effects += node.step(Compared(made.txid), Now(0.12, WALL + 120))
    rejects = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Reject)]
    assert [(one.reason, one.other) for one in rejects] == [(Reason.FOR, other.txid)]


def test_leader_doubts_its_rows_after_a_reject_for_differing_rows() -> None:
    made = transaction("B", 1)
    node = doubting("", Recovered("B", "b", MEMBERS, votes=(Vote(made.txid, made, held=True),)))
    assert node.state.doubts == 0
    node.coordinator.attempts.open[made.txid] = Attempt(made, [], 0.0, {"B": 0})
    node.step(Received("A", Reject(made.txid, Reason.DIFFERS, None, b"", CLOCK)), Now(0.1, WALL))
    assert node.state.doubts == 1


def test_request_that_waits_for_a_repair_names_the_voter_with_other_rows() -> None:
    """The voter also holds the command's earlier attempt; an error that named that one would mislead the operator."""
    made, earlier = transaction("B", 2), transaction("B", 1).txid
    node = doubting("", Recovered("B", "b", MEMBERS, votes=(Vote(made.txid, made, held=True),)))
    inflight = InFlight(1, Request("pay", (), timeout_s=1.0), 1.0, attempts=9)
    node.coordinator.replies.in_flight[1] = inflight
    node.coordinator.attempts.open[made.txid] = Attempt(made, [1], 0.0, {"B": 0})
    node.step(Received("A", Reject(made.txid, Reason.DIFFERS, None, b"", CLOCK)), Now(0.1, WALL))
    inflight.last_reject = Reject(made.txid, Reason.FOR, earlier, command_key("pay"), CLOCK)
    error = did_not_happen(inflight, node.state)
    assert isinstance(error, UnavailableError)
    assert "A has other rows than B" in str(error)
    inflight.last_reject = Reject(made.txid, Reason.FOR, earlier, b"t:account\0x", CLOCK)
    assert isinstance(did_not_happen(inflight, node.state), ConflictError)

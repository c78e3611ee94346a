"""Rules of ballots, clocks and restarts for situations that a random world seldom reaches."""

from dataclasses import replace

from bedrockish.api.requests import Answer, Request, Statement, Token
from bedrockish.core.coordinator.request import InFlight, committed
from bedrockish.core.protocol.effects import Keep, Reply, Send
from bedrockish.core.protocol.events import Executed, Submitted
from bedrockish.core.protocol.messages import (
    Accept,
    Accepted,
    Begin,
    Message,
    Promise,
    Reason,
    Recover,
    Refused,
    Reject,
    Rollback,
    Standing,
)
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.certifier import command_key
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import ROWS, Txid, decode_transaction
from bedrockish_journal.model.vector import covers
from tests.core.net import Net, add


def hear(net: Net, sender: str, receiver: str, kind: type[Message]) -> Message:
    """Let the next message of a kind arrive, and only that."""
    flight = next(one for one in net.flights if one[:2] == (sender, receiver) and isinstance(one[2], kind))
    net.flights.remove(flight)
    net.play(receiver, "receive", sender, flight[2])
    return flight[2]


def state(net: Net, name: str) -> State:
    return net.places[name].core.state


def begin(net: Net, leader: str = "A", command: str = "P", approvers: str = "BC") -> Txid:
    """Let a transaction begin, and be approved; no approval has arrived."""
    net.ask(leader, add(command, "x"))
    (txid,) = net.places[leader].core.coordinator.attempts.open
    for node in approvers:
        hear(net, leader, node, Begin)
    return txid


# -- ballots -------------------------------------------------------------------------------------------------------


def test_an_acceptance_survives_a_restart() -> None:
    """A recoverer may have based a decision on it."""
    net = Net("ABC")
    txid = begin(net)
    net.play("B", "suspect", txid)
    hear(net, "B", "C", Recover)
    hear(net, "C", "B", Promise)
    hear(net, "B", "C", Accept)
    net.play("C", "reboot", 0)
    assert state(net, "C").votes.by_txid[txid].accepted == (3, True)


def test_an_accepted_rollback_survives_a_restart() -> None:
    """Because of this acceptance, the leader may have answered its client that the transaction was rolled back."""
    net = Net("ABC")
    txid = begin(net)
    net.play("A", "give up", txid)
    hear(net, "A", "C", Rollback)
    net.play("C", "reboot", 0)
    assert state(net, "C").votes.by_txid[txid].accepted == (1, False)
    assert txid not in state(net, "C").votes.pending


def test_a_decided_rollback_is_known_after_a_restart() -> None:
    """A node that asks gets the outcome, and need not recover the transaction."""
    net = Net("ABC")
    txid = begin(net)
    net.play("A", "give up", txid)
    hear(net, "A", "C", Rollback)
    hear(net, "C", "A", Accepted)
    net.play("A", "reboot", 0)
    assert state(net, "A").votes.outcomes.get(txid) is False


def test_an_acceptance_of_another_ballot_does_not_count() -> None:
    """The acceptance was for another proposer's value, or for an earlier round."""
    net = Net("ABC")
    txid = begin(net)
    net.play("B", "suspect", txid)
    hear(net, "B", "C", Recover)
    hear(net, "C", "B", Promise)
    net.play("B", "receive", "C", Accepted(txid, 2, 0))
    assert txid not in state(net, "B").votes.outcomes
    net.play("B", "receive", "C", Accepted(txid, 3, 0))
    assert state(net, "B").votes.outcomes[txid]


def test_a_promise_of_another_ballot_does_not_count() -> None:
    """The promiser may still accept a ballot in between."""
    net = Net("ABC")
    txid = begin(net)
    net.play("B", "suspect", txid)
    net.play("B", "receive", "C", Promise(txid, 2, Standing.HELD, None, (), (), 0, 0))
    assert net.places["B"].core.recovery.rounds[txid].decision is None
    net.play("B", "receive", "C", Promise(txid, 3, Standing.HELD, None, (), (), 0, 0))
    assert net.places["B"].core.recovery.rounds[txid].decision is True


def test_refused_recoverer_retries_above_the_promised_ballot() -> None:
    """Otherwise the recoverer would raise its ballot by one in each round, with longer and longer pauses."""
    net = Net("ABC")
    txid = begin(net)
    net.play("B", "suspect", txid)
    net.play("B", "receive", "C", Refused(txid, 31, 0))
    net.play("B", "again", txid)
    assert net.places["B"].core.recovery.rounds[txid].ballot == 33


def test_only_an_acceptance_at_ballot_1_counts_for_the_rollback() -> None:
    """An acceptance at a higher ballot may be one of the commit."""
    net = Net("ABC")
    txid = begin(net)
    net.play("A", "give up", txid)
    net.play("A", "receive", "C", Accepted(txid, 4, 0))
    assert txid not in state(net, "A").votes.outcomes
    net.play("A", "receive", "C", Accepted(txid, 1, 0))
    assert state(net, "A").votes.outcomes[txid] is False


def test_transaction_of_an_older_membership_is_not_recovered() -> None:
    """The transaction is not in the base of the membership change, so it can never commit."""
    net = Net("ABC")
    txid = begin(net, approvers="B")
    here = state(net, "C")
    here.roster.membership = Membership(1, here.roster.membership.members)
    net.play("B", "suspect", txid)
    hear(net, "B", "C", Recover)
    assert here.votes.outcomes[txid] is False


# -- clocks --------------------------------------------------------------------------------------------------------


def test_voter_rejects_a_begin_at_or_below_its_closed_time() -> None:
    """Time is closed up to that clock, inclusively."""
    net = Net("ABC")
    net.ask("A", add("P", "x"))
    (txid,) = net.places["A"].core.coordinator.attempts.open
    state(net, "C").clock.closed = txid.clock
    hear(net, "A", "C", Begin)
    reject = hear(net, "C", "A", Reject)
    assert isinstance(reject, Reject)
    assert reject.reason == Reason.TOO_LATE


def test_new_clock_is_above_closed() -> None:
    """Otherwise no voter could approve a transaction with this clock."""
    here = state(Net("ABC"), "A")
    here.clock.closed = here.clock.value + 1_000
    assert here.clock.tick() > here.clock.closed


def test_ceiling_is_durable_before_any_message_leaves() -> None:
    """After a crash between the two, the node must not be behind a clock that others know from it."""
    net = Net("ABC")
    core = net.places["A"].core
    core.step(Submitted(7, add("P", "x")), net.now)
    core.state.clock.adjust(core.state.clock.ceiling + 1)
    access_set = AccessSet(write_points=frozenset({b"t:rows\0x"}))
    prepared = Prepared(dict(core.state.timelines.applied), 0, False, ROWS, access_set, b"", b"")
    effects = core.step(Executed(7, prepared), net.now)
    kept = next(at for at, effect in enumerate(effects) if isinstance(effect, Keep) and effect.name == "clock_ceiling")
    said = next(at for at, effect in enumerate(effects) if isinstance(effect, Send))
    assert kept < said


def ended_after(net: Net) -> tuple[Txid, Txid]:
    """Let B give up Q, and learn its end at a clock above that of P, which A began after Q."""
    older = begin(net, "B", "Q", approvers="C")
    state(net, "A").clock.adjust(older.clock + 10)
    younger = begin(net, "A", "P", approvers="")
    assert younger > older
    net.play("B", "give up", older)
    state(net, "B").clock.adjust(younger.clock + 10)
    hear(net, "B", "C", Rollback)
    hear(net, "C", "B", Accepted)
    assert state(net, "B").votes.outcomes[older] is False
    return older, younger


def rejected_for(net: Net) -> Txid | None:
    """Let B judge P."""
    hear(net, "A", "B", Begin)
    reject = hear(net, "B", "A", Reject)
    assert isinstance(reject, Reject)
    return reject.other


def test_own_rollback_vetoes_begins_older_than_the_clock_at_which_it_was_learned() -> None:
    """Until B learned the end of its own Q, a recovery of P may have counted B out."""
    net = Net("ABC")
    older, _ = ended_after(net)
    assert rejected_for(net) == older


def test_own_rollback_is_kept_until_its_clock_is_closed() -> None:
    """Safe time does not matter: closed time decides which transactions can still be approved."""
    net = Net("ABC")
    older, _ = ended_after(net)
    net.places["B"].core.safe_time._forget()
    assert rejected_for(net) == older


def test_clock_given_to_a_client_is_later_than_own_rollbacks() -> None:
    """Otherwise the transaction would be older than a rollback on which others rely."""
    net = Net("ABC")
    ended_after(net)
    core = net.places["B"].core
    latest = core.state.votes.own_ends.latest
    assert not core.coordinator.clock_quorum.fits(latest, 0)
    assert core.coordinator.clock_quorum.fits(latest + 1, 0)


def test_cut_stays_at_or_below_own_closed() -> None:
    """However far the other nodes are, this node may still approve below its closed time."""
    net = Net("ABC")
    core = net.places["A"].core
    for peer in core.state.roster.peers.values():
        peer.closed = 1 << 60
    core.safe_time.advance()
    assert core.state.clock.cut <= core.state.clock.closed


def test_dropping_commits_raises_the_floor() -> None:
    """A base below the floor cannot be judged here any more."""
    net = Net("ABC")
    net.ask("A", add("P", "x"))
    net.run(1.0)
    recent = state(net, "B").commit_window
    recent.forget(1 << 62)
    assert recent.floor["A"] == 1


# -- sessions ------------------------------------------------------------------------------------------------------


def test_a_session_waits_until_its_time_is_safe() -> None:
    """Cut is not enough: commits that the session has seen may still be in transit."""
    here = state(Net("ABC"), "A")
    here.clock.safe, here.clock.cut = 5, 10
    assert here.has_seen(Token({"B": 99}, 5))
    assert not here.has_seen(Token({"B": 99}, 8))


def test_read_token_covers_the_sessions_token() -> None:
    """The token covers it even if a commit's label was lost with its holders, and only safe time shows the commit."""
    net = Net("ABC")
    core = net.places["A"].core
    core.state.clock.safe = 5
    core.step(Submitted(7, Request("R", (Statement("read", ["x"]),), token=Token({"B": 99}, 5))), net.now)
    read = Prepared(dict(core.state.timelines.applied), 0, True, ROWS, AccessSet(), b"", b"")
    (reply,) = (effect for effect in core.step(Executed(7, read), net.now) if isinstance(effect, Reply))
    assert isinstance(reply.answer, Answer)
    assert reply.answer.token.vector["B"] == 99


def test_token_of_a_write_includes_the_base_of_the_write() -> None:
    """The token names everything that the session has seen, not only its own commits."""
    net = Net("ABC")
    txid = begin(net)
    transaction = replace(net.places["A"].core.state.votes.pending.transactions[txid], base={"B": 3})
    answer = committed(net.places["A"].core.state, InFlight(1, add("P", "x"), 10.0), transaction, ("A", 1))
    assert covers(answer.token.vector, {"A": 1, "B": 3})


# -- shared transactions -------------------------------------------------------------------------------------------


def test_a_shared_transaction_claims_the_ids_of_all_its_commands() -> None:
    """Otherwise one of the commands, sent again to another node, would be executed twice."""
    net = Net("ABC")
    for command in ("first", "one", "two"):
        net.ask("A", add(command, "x"))
    net.run(1.0)
    begun = [decode_transaction(message.body) for _, _, message in net.said if isinstance(message, Begin)]
    assert begun[-1].commands == ("one", "two")
    assert {command_key("one"), command_key("two")} <= begun[-1].access_set.write_points


def test_request_does_not_share_a_transaction_that_has_ended() -> None:
    """The time of the transaction is over, and its client got the answer that nothing was committed."""
    request_id = InFlight(1, add("one", "x"), 10.0)
    coordinator = Net("ABC").places["A"].core.coordinator
    coordinator.replies.in_flight[1] = request_id
    assert coordinator.contention.wait_queue.joined(request_id, ["gone"]) is None

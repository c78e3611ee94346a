"""A command is executed once: every voter looks up its id, for any base, and refuses an id that is too old."""

from collections.abc import Mapping

import pytest

from bedrockish.api.requests import Request
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Effect, Execute, Reply, Send
from bedrockish.core.protocol.events import Event, Executed, Now, PeerUp, Received, Submitted
from bedrockish.core.protocol.messages import (
    Approve,
    Begin,
    Commit,
    Gossip,
    Message,
    Promise,
    Reason,
    Recover,
    Reject,
    Standing,
)
from bedrockish.core.protocol.records import FORGOTTEN, Prepared, Recovered
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.settings import Settings
from bedrockish.errors import ForgottenError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.model.vector import Vector

WALL = 1_700_000_000_000
CLOCK = pack(WALL)
MEMBERS = Membership(0, {name: Member(name, "", True) for name in "ABC"})
WRITES = AccessSet(write_points=frozenset({b"t:x\0001"}))


def transaction(leader: str, number: int, command: str, base: Vector, joined: tuple[str, ...] = ()) -> Transaction:
    written = AccessSet(write_points=frozenset({b"t:x\0%d" % number}))
    access_set = claim(written, (command, *joined), ROWS, CLOCK + number)
    results = tuple((one, b"") for one in joined)
    txid = Txid(CLOCK + number, leader)
    return Transaction(txid, base, CLOCK - 1, 0, 0, command, "serializable", ROWS, access_set, b"", b"", joined=results)


class Voter:
    """The node B on its own; ``journal`` has the ids that its driver finds there."""

    def __init__(self, journal: Mapping[str, Txid] | None = None) -> None:
        find = dict(journal or {}).get
        recovered = Recovered("B", "store of B", MEMBERS, safe=CLOCK - 1)
        self.node = Node(recovered, Settings(), lambda: 0.5, Now(0.0, WALL), lookups=FileLookups(find_command=find))
        self.node.start(Now(0.0, WALL))
        for peer in "AC":
            self.step(PeerUp(peer))
            self.hear(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL))

    def step(self, event: Event) -> list[Effect]:
        return self.node.step(event, Now(0.01, WALL + 10))

    def hear(self, peer: str, message: Message) -> list[Message]:
        effects = self.step(Received(peer, message))
        return [effect.message for effect in effects if isinstance(effect, Send) and effect.peer == peer]

    def commit(self, made: Transaction) -> None:
        entry = Entry(made.txid.leader, 1, {made.txid.leader: 1}, made, None, GENESIS)
        self.hear(made.txid.leader, Commit(entry.label, made.body, entry.hash, made.txid.clock))


@pytest.mark.parametrize("joined", [(), ("other", "pay")])
def test_a_command_that_is_in_the_base_is_rejected(joined: tuple[str, ...]) -> None:
    """The leader looked for the id before it took the snapshot, so only the base shows the command. Each id of a group
    counts.
    """
    voter = Voter()
    first = transaction("C", 1, "pay", {})
    voter.commit(first)
    again = transaction("A", 2, "pay" if not joined else "lead", {"C": 1}, joined)
    said = voter.hear("A", Begin(again.body))
    assert [(one.reason, one.other, one.key) for one in said if isinstance(one, Reject)] == [
        (Reason.FOR, first.txid, b"c:\0pay")
    ]
    assert not [one for one in said if isinstance(one, Approve)]


def test_a_command_that_is_in_the_journal_alone_is_rejected() -> None:
    """The entry is older than the commits that the node keeps in memory."""
    old = Txid(CLOCK - pack(3_600_000), "C")
    voter = Voter({"pay": old})
    said = voter.hear("A", Begin(transaction("A", 2, "pay", {}).body))
    assert [(one.reason, one.other) for one in said if isinstance(one, Reject)] == [(Reason.FOR, old)]
    assert [one for one in voter.hear("A", Begin(transaction("A", 3, "new", {}).body)) if isinstance(one, Approve)]


def test_recoverer_learns_that_a_repeated_command_never_happens() -> None:
    """No quorum can have approved the transaction, because every voter looks up the id."""
    voter = Voter()
    voter.commit(transaction("C", 1, "pay", {}))
    said = voter.hear("C", Recover(transaction("A", 2, "pay", {"C": 1}).body, 4, CLOCK))
    assert [one.standing for one in said if isinstance(one, Promise)] == [Standing.NEVER]
    other = voter.hear("C", Recover(transaction("A", 3, "other", {"C": 1}).body, 4, CLOCK))
    assert [one.standing for one in other if isinstance(one, Promise)] == [Standing.HELD]


def test_voter_rejects_a_command_id_that_is_too_old_and_the_client_learns_it() -> None:
    voter = Voter({"ancient": FORGOTTEN})
    said = voter.hear("A", Begin(transaction("A", 2, "ancient", {}).body))
    assert [(one.reason, one.other) for one in said if isinstance(one, Reject)] == [(Reason.FORGOTTEN, None)]
    # Another node does not see a promise to hold the transaction, either.
    said = voter.hear("C", Recover(transaction("A", 3, "ancient", {}).body, 4, CLOCK))
    assert [one.standing for one in said if isinstance(one, Promise)] == [Standing.HELD]


def test_leader_reports_a_command_that_its_voters_have_forgotten() -> None:
    leader = Voter()
    leader.step(Submitted(1, Request("ancient", ())))
    leader.step(Executed(1, Prepared({}, 0, False, ROWS, WRITES, b"", b"")))
    (txid,) = leader.node.coordinator.attempts.open
    answers: list[object] = []
    for peer in "AC":
        effects = leader.step(Received(peer, Reject(txid, Reason.FORGOTTEN, None, b"c:\0ancient", CLOCK)))
        answers += [effect.answer for effect in effects if isinstance(effect, Reply)]
    assert not answers  # the rollback of the transaction is not accepted yet
    leader.node.state.votes.end(txid, commit=False)
    now = Now(1.0, WALL + 1_000)
    effects = leader.node.step(Received("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL)), now)
    effects += leader.node.step(Received("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL)), Now(2.0, WALL + 2_000))
    answers += [effect.answer for effect in effects if isinstance(effect, Reply)]
    assert [type(one) for one in answers] == [ForgottenError]
    assert not [effect for effect in effects if isinstance(effect, Execute)]


def test_leader_checks_again_for_the_command_after_execution() -> None:
    """Executed again, it is answered from the journal."""
    leader = Voter()
    leader.step(Submitted(1, Request("pay", ())))
    leader.commit(transaction("C", 1, "pay", {}))
    effects = leader.step(Executed(1, Prepared({"C": 1}, 0, False, ROWS, WRITES, b"", b"")))
    assert not [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Begin)]
    effects = leader.node.step(Received("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL)), Now(1.0, WALL + 1_000))
    assert [effect.request_id for effect in effects if isinstance(effect, Execute)] == [1]

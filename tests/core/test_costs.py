"""The cost of a step of the core does not grow with its state: counted in executed lines, not in time."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bedrockish.api.requests import Request
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Event, Executed, Now, PeerUp, Received, Submitted
from bedrockish.core.protocol.messages import Begin, Commit, Gossip, Outcome, Reason, Recover, Reject
from bedrockish.core.protocol.records import Prepared, Recovered
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid

WALL = 1_700_000_000_000
CLOCK = pack(WALL)
MEMBERS = Membership(0, {name: Member(name, "", True) for name in "ABC"})
NOW = Now(0.01, WALL + 10)
FEW, MANY = 50, 1_000


def transaction(leader: str, number: int) -> Transaction:
    keys = frozenset(b"t:x\0%d" % (3 * number + key) for key in range(3))
    command = f"{leader}-{number}"
    access_set = claim(AccessSet(keys, (), keys), (command,), ROWS, CLOCK + number)
    txid = Txid(CLOCK + number, leader)
    return Transaction(txid, {}, CLOCK - 1, 0, 0, command, "serializable", ROWS, access_set, b"", b"")


class Core:
    """The node B, with scripted messages of A and C."""

    def __init__(self) -> None:
        recovered = Recovered("B", "store of B", MEMBERS, safe=CLOCK - 1)
        self.node = Node(recovered, Settings(), lambda: 0.5, Now(0.0, WALL))
        self.node.start(Now(0.0, WALL))
        self.prev = GENESIS
        for peer in "AC":
            self.node.step(PeerUp(peer), Now(0.0, WALL))
            self.node.step(Received(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL)), Now(0.0, WALL))

    def step(self, event: Event) -> None:
        self.node.step(event, NOW)

    def begin(self, number: int) -> None:
        self.step(Received("A", Begin(transaction("A", number).body)))

    def commit(self, number: int) -> None:
        entry = Entry("C", number, {}, transaction("C", number), None, self.prev)
        self.prev = entry.hash
        self.step(Received("C", Commit(entry.label, entry.transaction.body, entry.hash, CLOCK)))

    def lead(self, number: int) -> None:
        written = AccessSet(write_points=frozenset({b"t:y\0%d" % number}))
        self.step(Submitted(number, Request(f"B-{number}", ())))
        self.step(
            Executed(number, Prepared(dict(self.node.state.timelines.applied), 0, False, ROWS, written, b"", b""))
        )

    def lead_in_vain(self, number: int) -> None:
        """Pause the request while the rollback of its transaction is not accepted yet."""
        before = set(self.node.coordinator.attempts.open)
        self.lead(number)
        (txid,) = set(self.node.coordinator.attempts.open) - before
        for peer in "AC":
            self.step(Received(peer, Reject(txid, Reason.TOO_LATE, None, b"", CLOCK)))

    def roll_back(self, number: int) -> None:
        """Decide the rollback of a transaction of A that was approved here."""
        self.begin(number)
        self.step(Received("C", Outcome(Txid(CLOCK + number, "A"), False, "", 0, CLOCK)))

    def end_own(self, number: int) -> None:
        """Roll back one of its own transactions for good."""
        made = transaction("B", number)
        self.node.state.votes.own_ends.add(made, self.node.state.clock.tick())

    def recover(self, number: int) -> None:
        self.step(Received("C", Recover(transaction("A", number).body, 4, CLOCK)))

    def check(self, _: int) -> None:
        self.node.state.set_now(NOW)
        self.node.recovery.check()


def lines(action: Callable[[int], None], number: int) -> int:
    """Return how many lines are run."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action(number)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("held", "action"),
    [
        ("commit", "begin"),
        ("commit", "recover"),
        ("commit", "lead"),
        ("begin", "begin"),
        ("begin", "commit"),
        ("begin", "recover"),
        ("begin", "check"),
        ("roll_back", "recover"),
        ("end_own", "begin"),
        ("lead", "commit"),
        ("lead", "begin"),
        ("lead_in_vain", "lead"),
        ("lead_in_vain", "begin"),
    ],
)
def test_cost_of_a_step_does_not_grow_with_the_state(held: str, action: str) -> None:
    """The held state does not concern the step; ``commit`` holds transactions above safe time."""
    found = []
    for count in (FEW, MANY):
        core = Core()
        for number in range(1, count + 1):
            getattr(core, held)(number)
        number = 1 if action == "commit" else 10_000  # the next tick of C's timeline, or a tick in the far future
        found.append(lines(getattr(core, action), number))
    assert found[1] <= found[0] + 20, f"{found[0]} lines with {FEW}, {found[1]} with {MANY}"

"""Transactions that are executed once: led with a newer base, lost at once, or settled by their command's id."""

from collections import deque
from dataclasses import replace
from functools import partial

from bedrockish.api.requests import STRICT, Answer, Request
from bedrockish.core.coordinator.revalidation import moved_up
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Apply, Effect, Execute, Reply, Send, SendEntries
from bedrockish.core.protocol.events import Event, Executed, Now, PeerUp, Received, Submitted, Woken
from bedrockish.core.protocol.messages import Begin, Entries, Message, Rollback
from bedrockish.core.protocol.records import Prepared, Recovered
from bedrockish.core.state.settings import Settings
from bedrockish.engine.execution.merging import merge
from bedrockish.errors import BedrockishError, ConflictError, OutcomeUnknownError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import encode_changes
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.model.vector import Vector

NODES = ("A", "B", "C")
MEMBERS = Membership(0, {node: Member(node, "") for node in NODES})


def access_set(reads: str = "", writes: str = "") -> AccessSet:
    keys = {name: name.encode() for name in "xyz"}
    return AccessSet(
        frozenset(keys[key] for key in reads + writes), write_points=frozenset(keys[key] for key in writes)
    )


def prepared(base: Vector, reads: str = "", writes: str = "") -> Prepared:
    changes = encode_changes([])
    return Prepared(dict(base), 0, not writes, ROWS, access_set(reads, writes), changes, b"result")


class Trio:
    """Three cores, whose messages wait until they are delivered; messages to and from cut-off nodes are lost."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.nodes = {
            name: Node(Recovered(name, name, MEMBERS), Settings(ask_rest_ms=0), lambda: 0.5, self.now) for name in NODES
        }
        self.under_way: deque[tuple[str, str, Message]] = deque()
        self.cut: set[str] = set()
        self.answers: dict[int, Answer | BedrockishError] = {}
        self.executes: dict[int, Prepared] = {}
        self.requests: dict[int, Request] = {}
        self.executions: dict[int, int] = {}
        self.journals: dict[str, list[Entry]] = {name: [] for name in NODES}
        self.count = 0
        for name, node in self.nodes.items():
            self.perform(name, node.start(self.now))
        for name in NODES:
            for other in NODES:
                if other != name:
                    self.step(name, PeerUp(other))
        self.run(1.0)

    @property
    def now(self) -> Now:
        return Now(self.seconds, 1_000_000 + round(self.seconds * 1000))

    def step(self, name: str, event: Event) -> None:
        self.perform(name, self.nodes[name].step(event, self.now))

    def perform(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer, message):
                    self.under_way.append((name, peer, message))
                case Execute(request_id, _, group):
                    self.executions[request_id] = self.executions.get(request_id, 0) + 1
                    self.step(name, Executed(request_id, self.merged(name, request_id, group)))
                case Reply(request_id, answer):
                    self.answers[request_id] = answer
                case Apply(entry):
                    self.journals[name].append(entry)
                case SendEntries(peer, wants):
                    found = [entry for entry in self.journals[name] if entry.tick >= wants.get(entry.leader, 1 << 62)]
                    packed = tuple((entry.prev, entry.label, entry.transaction.body) for entry in found)
                    self.under_way.append((name, peer, Entries(packed, self.nodes[name].state.clock.value)))
                case _:
                    pass

    def merged(self, name: str, number: int, group: tuple[int, ...]) -> Prepared:
        """Return a transaction that was executed before, with those of the group that can be merged with it."""
        others = [(self.requests[other], partial(self.executes.__getitem__, other)) for other in group]
        first = self.requests[number], self.executes[number]
        return merge(first, others, partial(moved_up, self.nodes[name].state), lambda each: (each[0], ()))

    def deliver(self) -> None:
        """Deliver everything that can arrive; the rest is lost."""
        while self.under_way:
            sender, receiver, message = self.under_way.popleft()
            if sender not in self.cut and receiver not in self.cut:
                self.step(receiver, Received(sender, message))

    def run(self, seconds: float) -> None:
        """Let time pass, and deliver all heartbeats and messages."""
        until = self.seconds + seconds
        while self.seconds < until:
            self.deliver()
            self.seconds += 0.01
            for name in NODES:
                self.step(name, Woken())
        self.deliver()

    def submit(self, name: str, what: Prepared, *, once: bool = True, command: str = "", read: str = "session") -> int:
        number, request = self.ask(what, command, read)
        self.step(name, Submitted(number, request, once))
        return number

    def ask(self, what: Prepared, command: str = "", read: str = "session") -> tuple[int, Request]:
        self.count += 1
        self.executes[self.count] = what
        request = Request(command or f"c{self.count}", (), read=read, timeout_s=10.0)
        self.requests[self.count] = request
        return self.count, request

    def submit_together(self, name: str, *each: Prepared) -> list[int]:
        (first, request), *others = map(self.ask, each)
        self.step(name, Submitted(first, request, True, tuple(others)))
        return [first, *(number for number, _ in others)]

    def base(self, name: str) -> dict[str, int]:
        return dict(self.nodes[name].state.timelines.applied)

    def commit(self, name: str, reads: str = "", writes: str = "") -> None:
        number = self.submit(name, prepared(self.base(name), reads, writes), once=False)
        self.run(0.1)
        assert isinstance(self.answers[number], Answer)


def test_unrelated_commit_of_another_node_moves_the_base() -> None:
    """A commit since the snapshot that touches other keys is in the base when the transaction is led."""
    world = Trio()
    old = prepared(world.base("A"), reads="x", writes="y")
    world.commit("B", writes="z")
    world.run(0.5)
    number = world.submit("A", old)
    world.run(0.2)
    answer = world.answers[number]
    assert isinstance(answer, Answer)
    assert answer.place == ("A", 1)
    assert world.nodes["C"].state.timelines.applied == {"A": 1, "B": 1}
    assert answer.token.vector == {"A": 1, "B": 1}  # the base has moved up to the other commit


def test_transaction_names_the_safe_time_of_its_snapshot() -> None:
    """If safe time passes a commit during a long execution, the transaction does not name the new safe time, because
    its snapshot lacks the commit.
    """
    world = Trio()
    old = prepared(world.base("A"), writes="y")
    world.commit("B", writes="z")
    world.run(3.0)
    world.submit("A", old, once=False)
    world.run(0.2)
    theirs, ours = (entry.transaction for entry in world.journals["A"])
    assert world.nodes["A"].state.clock.safe > theirs.txid.clock
    assert ours.base == {}
    assert ours.safe < theirs.txid.clock


def test_conflicting_commit_outside_the_base_ends_an_open_transaction() -> None:
    """The transaction is not executed again, because its client has acted on the old value."""
    world = Trio()
    old = prepared(world.base("A"), reads="x", writes="y")
    world.commit("B", writes="x")
    number = world.submit("A", old)
    error = world.answers[number]
    assert isinstance(error, ConflictError)
    assert error.retry
    assert error.details["leader"] == "B"
    assert error.details["key"] == b"x".hex()


def test_prepared_transaction_waits_for_a_pending_one_and_then_loses_or_goes_on() -> None:
    """Another leader's transaction on the same key is pending: its commit ends ours, its rollback does not."""
    world = Trio()
    base = world.base("A")
    first = world.submit("B", prepared(world.base("B"), writes="x"), once=False)
    sender, receiver, message = next(entry for entry in world.under_way if isinstance(entry[2], Begin))
    world.step("A", Received("B", replace(message)))
    world.under_way.remove((sender, receiver, message))
    number = world.submit("A", prepared(base, reads="x", writes="y"))
    assert number not in world.answers
    world.run(0.5)
    assert isinstance(world.answers[first], Answer)
    assert isinstance(world.answers[number], ConflictError)

    world = Trio()
    world.cut = {"B"}
    first = world.submit("B", prepared(world.base("B"), writes="x"), once=False)
    begin = next(entry[2] for entry in world.under_way if isinstance(entry[2], Begin))
    world.step("A", Received("B", begin))
    number = world.submit("A", prepared(base, reads="x", writes="y"))
    assert number not in world.answers
    world.under_way.clear()
    for other in ("A", "C"):
        world.step(other, Received("B", Rollback(next(iter(world.nodes["A"].state.votes.pending.transactions)), 0)))
    world.run(0.5)
    assert isinstance(world.answers[number], Answer)


def test_prepared_transactions_that_come_together_share_one() -> None:
    """Each gets its own answer, and the shared base has the newest commits, though their snapshots differ."""
    world = Trio()
    old = world.base("A")
    world.commit("B", writes="z")
    numbers = world.submit_together("A", prepared(old, "x", "x"), prepared(world.base("A"), "z", "y"))
    world.run(0.2)
    answers = [world.answers[number] for number in numbers]
    assert [one.place for one in answers if isinstance(one, Answer)] == [("A", 1)] * 2
    (led,) = (entry for entry in world.journals["C"] if entry.leader == "A")
    assert led.transaction.commands == ("c2", "c3")
    assert led.transaction.base == {"B": 1}


def test_overtaken_prepared_transaction_is_lost_alone() -> None:
    """The test puts the overtaken one at each place; the commands that arrived with it are led."""
    for place in range(3):
        world = Trio()
        old = world.base("A")
        world.commit("B", writes="x")
        each = [prepared(world.base("A"), writes="y"), prepared(world.base("A"), writes="z")]
        each.insert(place, prepared(old, "x", ""))
        each[place] = replace(each[place], readonly=False)
        numbers = world.submit_together("A", *each)
        world.run(0.2)
        assert isinstance(world.answers[numbers.pop(place)], ConflictError)
        assert all(isinstance(world.answers[number], Answer) for number in numbers)


def test_prepared_transactions_with_one_key_are_not_merged() -> None:
    """A transaction that has read a row of another one is lost; a third one is not."""
    world = Trio()
    base = world.base("A")
    numbers = world.submit_together("A", prepared(base, "x", "x"), prepared(base, "x", "x"), prepared(base, writes="y"))
    world.run(0.5)
    first, second, third = (world.answers[number] for number in numbers)
    assert isinstance(first, Answer)
    assert isinstance(second, ConflictError)
    assert isinstance(third, Answer)


def test_unblocked_command_of_a_rejected_group_commits_alone() -> None:
    """B and C hold a transaction of B on a key of the first: the second is committed, the first waits."""
    world = Trio()
    base = world.base("A")
    world.submit("B", prepared(world.base("B"), writes="x"), once=False)
    begin = next(entry[2] for entry in world.under_way if isinstance(entry[2], Begin))
    world.under_way.clear()
    world.step("C", Received("B", begin))
    world.under_way.clear()  # C's approval is lost
    one, other = world.submit_together("A", prepared(base, "x", "x"), prepared(base, "y", "y"))
    world.run(0.5)
    assert isinstance(world.answers[other], Answer)
    assert one not in world.answers


def test_rejected_prepared_transaction_begins_again_unchanged() -> None:
    """Both other voters hold a transaction on the same key; when that one is rolled back, ours commits unchanged."""
    world = Trio()
    base = world.base("A")
    first = world.submit("B", prepared(world.base("B"), writes="x"), once=False)
    begin = next(entry[2] for entry in world.under_way if isinstance(entry[2], Begin))
    world.under_way.clear()
    world.step("C", Received("B", begin))
    world.under_way.clear()  # C's approval is lost: B cannot commit, and holds it, as C does
    number = world.submit("A", prepared(base, reads="x", writes="x"))
    world.run(0.5)
    assert number not in world.answers
    assert world.executions[number] > 1
    txid = next(iter(world.nodes["C"].state.votes.pending.transactions))
    if txid.leader == "B":
        world.nodes["B"].coordinator.attempts.give_up(world.nodes["B"].coordinator.attempts.open[txid])
    world.run(2.0)
    outcomes = {number: world.answers.get(number), first: world.answers.get(first)}
    happened = [number for number, answer in outcomes.items() if isinstance(answer, Answer)]
    assert happened
    if number not in happened:
        assert isinstance(outcomes[number], ConflictError)


def test_empty_transaction_settles_its_command() -> None:
    """If the empty transaction commits first, the original never does; otherwise the empty one finds the original."""
    world = Trio()
    base = world.base("A")
    empty = Prepared(world.base("B"), 0, False, ROWS, AccessSet(), encode_changes([]), b"nothing")
    settled = world.submit("B", empty, once=False, command="pay")
    world.run(0.3)
    assert isinstance(world.answers[settled], Answer)
    number = world.submit("A", prepared(base, writes="y"), command="pay")
    world.run(0.3)
    assert isinstance(world.answers[number], ConflictError)
    assert world.base("A") == {"B": 1}


def test_no_answer_leaves_before_every_attempt_has_ended() -> None:
    """Ours is in flight when another on the same key commits at another node: the client learns the loss after our
    rollback.
    """
    world = Trio()
    base = world.base("A")
    world.cut = {"A"}
    number = world.submit("A", prepared(base, reads="x", writes="y"))
    other = world.submit("B", prepared(world.base("B"), writes="x"), once=False)
    world.run(0.3)
    assert isinstance(world.answers[other], Answer)
    assert number not in world.answers
    world.cut = set()
    for name in NODES:
        for peer in NODES:
            if peer != name:
                world.step(name, PeerUp(peer))
    world.run(2.0)
    assert isinstance(world.answers[number], ConflictError)
    assert not world.nodes["A"].coordinator.attempts.open


def test_outcome_is_unknown_without_a_majority() -> None:
    """The transaction has begun and its node is cut off: the outcome is unknown, never "did not happen"."""
    world = Trio()
    number = world.submit("A", prepared(world.base("A"), writes="y"))
    world.cut = {"A"}
    world.run(13.0)
    assert isinstance(world.answers[number], OutcomeUnknownError)


def test_a_strict_transaction_that_only_read_is_lost_to_a_later_writer() -> None:
    """Strict reads must be valid at the time of the answer; an interactive transaction cannot read again."""
    world = Trio()
    old = prepared(world.base("A"), reads="x")
    fine = world.submit("A", old, read=STRICT)
    world.run(0.2)
    assert isinstance(world.answers[fine], Answer)
    world.commit("B", writes="x")
    lost = world.submit("A", old, read=STRICT)
    world.run(0.2)
    assert isinstance(world.answers[lost], ConflictError)
    plain = world.submit("A", old)
    assert isinstance(world.answers[plain], Answer)

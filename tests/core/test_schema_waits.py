"""Requests that wait for a schema change are not executed while they wait."""

from bedrockish.api.requests import STRICT, Answer, Request, Statement
from bedrockish.core.coordinator.request import RETRY_MS_MIN, InFlight, Ready, Stage, retry_pause_ms
from bedrockish.core.coordinator.wait_queue import WaitQueue
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Execute
from bedrockish.core.protocol.events import Executed, Now, Submitted
from bedrockish.core.protocol.messages import Begin, Check, Reason, Reject, Rollback
from bedrockish.core.protocol.records import Prepared, Recovered
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.settings import Settings
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.access_set import AccessSet, clock_key
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Transaction, Txid
from tests.core.net import Net

MEMBERS = Membership(0, {name: Member(name, "") for name in "ABC"})


def state() -> State:
    return State(Recovered("A", "file of A", MEMBERS), Settings(), lambda: 0.5, Now(1.0, 0), follows_wall=False)


def transaction(kind: str, leader: str = "B") -> Transaction:
    touched = AccessSet(frozenset(), (), frozenset({b"t:x\0k"}))
    return Transaction(Txid(7, leader), {}, 0, 0, 0, "c", "serializable", kind, touched, b"", b"")


def request_id(number: int) -> InFlight:
    return InFlight(number, Request(f"c{number}", (Statement("UPDATE"),)), 10.0)


def queues(count: int) -> tuple[WaitQueue, Ready]:
    """Return the requests that wait for a transaction of B, and the ready ones."""
    coordinator = Net("ABC").places["A"].core.coordinator
    in_flight, found = coordinator.replies.in_flight, coordinator.contention.wait_queue
    in_flight.update({number: request_id(number) for number in range(count)})
    for one in in_flight.values():
        found.wait(one, Txid(7, "B"))
    return found, coordinator.ready


def test_one_of_the_requests_that_waited_for_rows_goes_on() -> None:
    """The other requests would only conflict with the first one, so they stay behind it."""
    found, ready = queues(3)
    found.released(Txid(7, "B"), ROWS)
    assert list(ready.queue) == [0]


def test_requests_that_waited_for_a_schema_change_go_on_at_once() -> None:
    """The requests have nothing in common except the change."""
    found, ready = queues(3)
    found.released(Txid(7, "B"), SCHEMA)
    assert list(ready.queue) == [0, 1, 2]


def test_ready_request_whose_time_is_over_in_this_step_is_not_taken_up() -> None:
    """Another request of the same step ended it between its release and its turn."""
    coordinator, one, two = Net("ABC").places["A"].core.coordinator, request_id(1), request_id(2)
    ready = coordinator.ready
    for inflight in (one, two):
        inflight.move(Stage.WAITING)
        ready.add(inflight)
        ready.add(inflight)
    one.move(Stage.ENDING)
    coordinator.advance()
    assert (one.stage, two.stage) == (Stage.ENDING, Stage.EXECUTING)


def test_request_rejected_for_an_unknown_schema_change_pauses_for_its_delay() -> None:
    """Before the change is here, another attempt would be rejected again."""
    one = request_id(1)
    one.last_reject = Reject(Txid(9, "A"), Reason.FOR, Txid(7, "B"), b"t:x\0k", 0)
    assert retry_pause_ms(one, Settings(), 1.0) == RETRY_MS_MIN
    one.last_reject = Reject(Txid(9, "A"), Reason.FOR, Txid(7, "B"), clock_key(9), 0)
    assert retry_pause_ms(one, Settings(), 1.0) == Settings().schema_delay_ms


def test_request_that_must_wait_for_a_change_is_not_executed_again() -> None:
    """A change is committed and not in force, and the clock is past its moment."""
    node = Node(Recovered("A", "file of A", MEMBERS), Settings(), lambda: 0.5, Now(1.0, 0), follows_wall=False)
    node.start(Now(1.0, 0))
    effects = node.step(Submitted(1, Request("c", (Statement("UPDATE"),))), Now(1.0, 0))
    assert Execute(1) in effects
    access_set = AccessSet(frozenset(), (), frozenset({b"t:x\0k"}))
    node.step(Executed(1, Prepared({}, 0, False, ROWS, access_set, b"", b"")), Now(1.0, 0))
    waiting = node.coordinator.replies.in_flight[1]
    assert waiting.access_set is not None
    node.state.schema.scheduled = transaction(SCHEMA)
    effects = []
    waiting.move(Stage.PAUSED)  # the attempt was given up
    node.coordinator.ready.add(waiting)
    node.coordinator.advance()
    assert waiting.stage is Stage.SCHEMA
    assert not [effect for effect in node.state.outbox.effects if isinstance(effect, Execute)]


def test_strict_reads_do_not_wait_for_each_other() -> None:
    """The reads have waited for a schema change that was rolled back; each asks a majority at once."""
    net = Net("ABC")
    state = net.places["A"].core.state
    clock = state.clock.tick()
    touched = claim(AccessSet(), ("change",), SCHEMA, clock, clock + 1)
    change = Transaction(
        Txid(clock, "B"),
        dict(state.timelines.applied),
        state.clock.safe,
        0,
        0,
        "change",
        "serializable",
        SCHEMA,
        touched,
        b"",
        b"",
        activates=clock + 1,
    )
    net.play("A", "receive", "B", Begin(change.body))
    for number in range(3):
        net.ask("A", Request(f"r{number}", (Statement("read", ["x"]),), read=STRICT, timeout_s=30.0))
    assert [one.stage for one in net.places["A"].core.coordinator.replies.in_flight.values()] == [Stage.WAITING] * 3
    net.kept = {Check}
    net.play("A", "receive", "B", Rollback(change.txid, clock + 1))
    net.run(0.05)
    assert [one.stage for one in net.places["A"].core.coordinator.replies.in_flight.values()] == [Stage.CHECKING] * 3
    net.kept = set()
    net.run(1.0)
    assert net.told("A") == dict.fromkeys(("r0", "r1", "r2"), "read")


def test_read_on_the_old_schema_gets_no_clock_of_the_next_one() -> None:
    """The clock is past the change's moment, but the change is not in force, because other nodes may still be before
    it. A session with that clock would have to wait at this very node.
    """
    net = Net("ABC")
    net.ask("A", Request("change", (Statement("alter"),), timeout_s=30.0))
    net.deliver()
    core = net.places["A"].core
    scheduled = core.state.schema.scheduled
    assert scheduled is not None
    core.state.clock.adjust(scheduled.activates + 1)
    reads = answers(net, "read", Request("read", (Statement("read", ["x"]),)))
    assert [answer.token.clock for answer in reads] == [scheduled.activates - 1]
    assert core.state.has_seen(reads[0].token)
    net.run(3.0)
    assert core.state.schema.version == 1
    (later,) = answers(net, "later", Request("later", (Statement("read", ["x"]),)))
    assert later.token.clock > scheduled.activates


def answers(net: Net, command: str, request: Request) -> list[Answer]:
    """Ask A, and return its answer."""
    found: list[Answer] = []
    core = net.places["A"].core
    finish = core.coordinator.replies.finish

    def noted(inflight: InFlight, answer: Answer | BedrockishError) -> None:
        if inflight.request.command == command and isinstance(answer, Answer):
            found.append(answer)
        finish(inflight, answer)

    core.coordinator.replies.finish = noted  # type: ignore[method-assign]
    net.ask("A", request)
    net.deliver()
    return found

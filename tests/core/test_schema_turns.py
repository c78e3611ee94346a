"""Schema changes of several clients at once: those of one node queue, and the leaders take turns."""

from collections import Counter, deque

import pytest

from bedrockish.api.requests import Request, Statement
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.wait_queue import WaitQueue
from bedrockish.core.protocol.events import Executed
from bedrockish.core.protocol.messages import Begin, Reason, Reject
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet, clock_key
from bedrockish_journal.model.clock import milliseconds, moved
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Transaction, Txid, decode_transaction
from tests.core.net import Net
from tests.core.test_shared_transactions import journal
from tools.sim import database
from tools.sim.options import Options
from tools.sim.world import World

DELAY_MS = Settings().schema_delay_ms
ROW = AccessSet(frozenset(), (), frozenset({b"t:x\0k"}))


def alter(command: str) -> Request:
    return Request(command, (Statement("alter"),), timeout_s=30.0)


def delay_ms(change: Transaction) -> int:
    return milliseconds(change.activates) - milliseconds(change.txid.clock)


@pytest.mark.parametrize("seed", [2, 4])
def test_changes_of_many_clients_come_into_force_one_after_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve clients at three nodes change the schema all the time, for five seconds of virtual time.

    Without turns, most changes would reject each other, and each rejection would double the delay of the next attempt.
    """
    monkeypatch.setattr(database, "crc32", lambda _: 0)  # no change builds an index
    world = World(Options(seed, clients=12, alter=1.0, think_ms=5.0, load_s=5.0, timeout_s=30.0, readers=0, wander=0.0))
    world.run()
    # In the first seconds the nodes wait for each other's clocks.
    calls = [call for client in world.clients for call in client.calls if call.began > 2.0]
    answers = [call.answer for call in calls if call.answer and call.answer.place]
    counts = sum((machine.node.state.counts for machine in world.machines.values() if machine.node), Counter[str]())
    assert len(answers) > 30
    assert counts["rejected_for"] < len(answers) / 3
    # Once when it arrives, once at its turn, and seldom again after a rejection.
    assert sum(answer.attempts for answer in answers) < 2.5 * len(answers)


def test_change_that_is_rejected_for_another_change_keeps_its_delay() -> None:
    """Each of three leaders holds its own change when the others' BEGINs arrive."""
    net = Net("ABC")
    net.kept = {Begin}
    for name in "ABC":
        net.ask(name, alter(f"change of {name}"))
    net.kept = set()
    net.run(3.0)
    changes = journal(net)
    assert sum(isinstance(message, Reject) for _, _, message in net.said) >= 6
    assert sorted(one.command for one in changes) == ["change of A", "change of B", "change of C"]
    assert {delay_ms(one) for one in changes} == {DELAY_MS}


def test_change_that_came_too_soon_for_a_voter_gets_twice_the_delay() -> None:
    """A voter has approved a transaction of rows with a clock from the activation on."""
    net = Net("ABC")
    net.kept = {Begin}
    net.ask("A", alter("change"))
    begin = next(message for _, _, message in net.said if isinstance(message, Begin))
    first = decode_transaction(begin.body)
    net.flights.clear()
    later = first.activates + 1
    for name in "BC":
        net.play("A", "receive", name, Reject(first.txid, Reason.FOR, Txid(later, "B"), clock_key(later), later))
    net.kept = set()
    net.run(3.0)
    assert [delay_ms(one) for one in journal(net)] == [2 * DELAY_MS]


def paused_change() -> tuple[WaitQueue, InFlight, int]:
    """Return a change of A that waits for its turn, and the clock at which its last attempt would be in force."""
    coordinator = Net("ABC").places["A"].core.coordinator
    change = InFlight(1, alter("change"), 10.0, stage=Stage.EXECUTING, alters=True)
    activates = moved(coordinator.state.clock.tick(), DELAY_MS)
    change.access_set = claim(AccessSet(), ("change",), SCHEMA, activates - 1, activates)
    coordinator.replies.in_flight[1] = change
    coordinator.contention.pause(change, 100)
    change.turn = coordinator.state.clock.now.seconds, ["B"]
    return coordinator.contention.wait_queue, change, activates


def test_rows_do_not_line_up_behind_a_change_that_waits_for_its_turn() -> None:
    """The clocks that its last attempt has written do not belong to its next one."""
    queue, _, activates = paused_change()
    row = InFlight(2, Request("row", (Statement("UPDATE"),)), 10.0)
    assert queue.head(row, claim(ROW, ("row",), ROWS, activates + 1)) is None
    assert queue.head(row, claim(AccessSet(), ("other",), SCHEMA, activates + 1, activates + 2)) == 1


def test_schema_change_at_its_turn_waits_for_schema_changes_only() -> None:
    queue, change, activates = paused_change()
    queue.became_pending(Txid(activates + 1, "B"), claim(ROW, ("row",), ROWS, activates + 1))
    assert list(queue.heads) == [1]
    queue.became_pending(Txid(activates + 2, "B"), claim(AccessSet(), ("other",), SCHEMA, activates + 2, activates + 3))
    assert change.stage is Stage.WAITING


def test_schema_changes_and_rows_that_waited_together_continue_separately() -> None:
    """The requests that write rows have nothing in common with the schema changes, which go on one at a time."""
    coordinator = Net("ABC").places["A"].core.coordinator
    queue, in_flight = coordinator.contention.wait_queue, coordinator.replies.in_flight
    for number in range(4):
        in_flight[number] = InFlight(number, alter(f"c{number}"), 10.0, alters=number % 2 == 0, access_set=ROW)
        queue.wait(in_flight[number], Txid(7, "B"))
    queue.released(Txid(7, "B"), SCHEMA)
    assert list(coordinator.ready.queue) == [1, 3, 0]
    assert list(in_flight[0].behind) == [2]


def changes_at_a(count: int) -> tuple[Net, list[InFlight]]:
    """Return changes of A, of which the first is executed and the others stay behind it."""
    net = Net("ABC")
    in_flight = net.places["A"].core.coordinator.replies.in_flight
    for number in range(count):
        in_flight[number] = InFlight(number, alter(f"c{number}"), 10.0, alters=True, access_set=ROW)
        in_flight[number].stage = Stage.WAITING if number else Stage.EXECUTING
    in_flight[0].behind.extend(range(1, count))
    return net, list(in_flight.values())


def test_schema_changes_wait_for_one_that_is_executed_in_a_worker() -> None:
    """With thousands of tables each change is executed there, and of all at once only one would commit."""
    net, (first, *others) = changes_at_a(3)
    coordinator = net.places["A"].core.coordinator
    coordinator.moved_to_worker(first.number)
    assert not coordinator.ready.queue
    assert [one.stage for one in others] == [Stage.WAITING] * 2


def test_schema_change_executed_on_an_older_schema_lets_those_behind_it_go_first() -> None:
    """A change that takes long to be executed may be overtaken again and again by those of other leaders."""
    net, (first, second, third) = changes_at_a(3)
    coordinator = net.places["A"].core.coordinator
    old = Prepared({}, coordinator.state.schema.version - 1, False, SCHEMA, AccessSet(), b"", b"")
    coordinator.ready.add(first, Executed(first.number, old))
    coordinator.advance()
    assert (second.stage, list(second.behind), first.behind) == (Stage.EXECUTING, [third.number], deque())


def test_turn_of_a_change_includes_its_execution_up_to_a_bound() -> None:
    turns = Net("ABC").places["A"].core.coordinator.contention.turns
    rows_ms = turns.turn_ms(alters=False)
    turns.note_change(0.05)
    assert round(turns.turn_ms(alters=True) - rows_ms) == 50
    assert turns.turn_ms(alters=False) == rows_ms
    turns.note_change(9.0)
    assert turns.turn_ms(alters=True) - rows_ms < 1000

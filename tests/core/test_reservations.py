"""A statement over much of a busy table commits, because other leaders hold back for a limited time."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import cbor2
import pytest

from bedrockish.api.requests import STRICT, Request, Statement
from bedrockish.core.coordinator import reservations
from bedrockish.core.coordinator.request import InFlight, Stage, did_not_happen
from bedrockish.core.coordinator.reservations import Reservation, shortened, without_names
from bedrockish.core.protocol.events import Event, Executed, Failed, MovedToWorker, Overtaken
from bedrockish.core.protocol.messages import Approve, Gossip, Message, decode, encode
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import EVERYTHING, claim
from bedrockish.core.state.settings import Settings
from bedrockish.errors import ConflictError
from bedrockish_journal.model.access_set import AccessSet, Range, conflict, object_range
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import Member, Membership, pack_membership
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Txid
from tests.core.net import Net, add
from tests.core.test_shared_transactions import journal
from tools.modelcheck.place import LEAVING, Place

STEP_S = 0.004
NEVER = Settings(reserve_ms=1)


def total(command: str, timeout_s: float = 30.0) -> Request:
    """Read all rows, and write one."""
    return Request(command, (Statement("total", ("k", "k~", f"t {command}")),), timeout_s=timeout_s)


class Busy(Net):
    """Clients at each node that write single rows of one table without pause."""

    def __init__(
        self, voters: str = "ABC", settings: Settings | None = None, *, took_s: float = 0.0, delay_s: float = STEP_S
    ) -> None:
        super().__init__(voters, settings=settings or Settings())
        self.took_s = took_s  # for statements over the whole table
        self.delay_s = delay_s  # of each message
        self.way: deque[tuple[float, tuple[str, str, Message]]] = deque()
        self.slow_ones: deque[tuple[float, str, Event]] = deque()
        self.executed: list[str] = []  # commands over the whole table, each time
        self.silent: set[str] = set()  # nodes that do nothing at all
        self.count = 0
        self.asked: dict[str, float] = {}
        self.waits: list[tuple[float, float]] = []  # for each write, the time of its answer and its duration
        for name, place in self.places.items():
            place.core.state.draw = Random(name).random
            self._watch(name, place)

    def _watch(self, name: str, place: Place) -> None:
        execute = place._execute

        def later(number: int, group: tuple[int, ...]) -> Event:
            asked = place.requests.get(number)
            is_long = asked is not None and asked.statements[0].sql != "add"
            event = execute(number, () if is_long and self.took_s else group)
            if asked is None or not is_long or not isinstance(event, Executed | Failed):
                return event
            self.executed.append(asked.command)
            if not self.took_s:
                return event
            self.slow_ones.append((self.seconds + self.took_s, name, event))
            return MovedToWorker(number)

        place._execute = later  # type: ignore[method-assign, assignment]

    def _finish(self, name: str, event: Event) -> None:
        place = self.places[name]
        place.now = self.now
        LEAVING.clear()
        place.step(event)
        place._release_output()
        sent = [(name, peer, message) for peer, message in LEAVING]
        self.flights += [one for one in sent if frozenset(one[:2]) not in self.cuts]

    def go_on(self, seconds: float, until: Callable[[], bool] = lambda: False, writers: int = 2) -> bool:
        """Let all clients work; return whether the awaited state was reached."""
        end = self.seconds + seconds
        while self.seconds < end:
            for name, place in self.places.items():
                busy = sum(one.statements[0].sql == "add" for one in place.requests.values())
                for _ in range(writers - busy if name not in self.silent else 0):
                    self.count += 1
                    self.asked[f"{name}-{self.count}"] = self.seconds
                    self.ask(name, add(f"{name}-{self.count}", f"k{self.count % 40:02}"))
            self.seconds += STEP_S
            self.way += [(self.seconds, flight) for flight in self.flights]
            self.flights.clear()
            while self.way and self.way[0][0] <= self.seconds - self.delay_s:
                _, (sender, receiver, message) = self.way.popleft()
                if not self.silent.intersection((sender, receiver)):
                    self.play(receiver, "receive", sender, message)
            while self.slow_ones and self.slow_ones[0][0] <= self.seconds:
                _, name, event = self.slow_ones.popleft()
                if name not in self.silent:
                    self._finish(name, event)
            for name, place in self.places.items():
                if name not in self.silent and (place.core.deadline() or end) <= self.seconds:
                    self.play(name, "wake")
            for name in self.places:
                for command in [one for one in self.told(name) if one in self.asked]:
                    self.waits.append((self.seconds, self.seconds - self.asked.pop(command)))
            if until():
                return True
        return False

    def ended(self, name: str, command: str) -> Callable[[], bool]:
        return lambda: command in self.told(name)

    def held(self, name: str) -> Reservation | None:
        return self.places[name].core.coordinator.contention.reservations.honoured


@pytest.mark.parametrize("took_s", [0.0, 0.08])
def test_statement_over_a_busy_table_commits(took_s: float) -> None:
    """The statement needs few executions, instead of failing after many; writers wait no longer than the reservation
    asks.
    """
    net = Busy(took_s=took_s)
    net.go_on(0.1)
    net.ask("A", total("all"))
    began = net.seconds
    assert net.go_on(5.0, net.ended("A", "all"))
    assert net.seconds - began < reservations.AGE_S_MIN + 6 * took_s + 0.5
    if took_s:
        assert len(net.executed) <= 12
    net.go_on(0.3)
    assert [one.commands for one in journal(net)].count(("all",)) == 1
    assert max(wait for _, wait in net.waits) < reservations.AGE_S_MIN + 3 * took_s + 0.3
    assert [net.held(name) for name in "ABC"] == [None, None, None]


INDEX = object_range("i:rows")


def indexed(net: Busy, *, reads: bool = False) -> None:
    """Give each row an entry in an index. A large transaction declares a write of all index entries, and writes a row
    of its own; with ``reads`` it has read all entries as well.
    """
    for place in net.places.values():
        place._execute = partial(_with_entries, net, place, place._execute, reads)  # type: ignore[method-assign]


def _with_entries(
    net: Busy, place: Place, execute: Callable[..., Event], reads: bool, number: int, *more: Any
) -> Event:
    event = execute(number, *more)
    if not isinstance(event, Executed):
        return event
    access_set = event.prepared.access_set
    spans: tuple[Range, ...] = ()
    if place.requests[number].command == "large":
        net.executed.append("large")
        spans = (INDEX,)
        access_set = replace(access_set, read_ranges=spans if reads else (), write_ranges=spans)
    else:
        entries = {INDEX[0] + key for key in access_set.write_points}
        access_set = replace(access_set, write_points=access_set.write_points | entries)
    return Executed(number, replace(event.prepared, access_set=access_set, spans=spans))


LARGE = Settings(inline_bytes=300, piece_bytes=64)
OWN_ROW = "x" * 1_000  # a key so long that any transaction that writes it is large


def test_large_transaction_without_conflicts_is_executed_once() -> None:
    """A statement over much of a table declares a write of a whole index. Rows that others insert have entries in it,
    but do not force another execution, which may take longer than others hold back.
    """
    net = Busy(settings=replace(LARGE, reserve_ms=400))
    indexed(net)
    net.go_on(0.3)
    net.ask("A", add("large", OWN_ROW, timeout_s=30.0))
    assert net.go_on(5.0, net.ended("A", "large"))
    assert net.executed == ["large"]
    assert [one.commands for one in journal(net)].count(("large",)) == 1
    assert net.places["A"].core.state.counts["reservations"] == 1
    assert max(wait for _, wait in net.waits) < 0.4 + 0.1


def test_large_transaction_that_read_changed_rows_is_executed_again() -> None:
    net = Busy(settings=LARGE)
    indexed(net, reads=True)
    net.go_on(0.3)
    net.ask("A", add("large", OWN_ROW, timeout_s=30.0))
    assert net.go_on(5.0, net.ended("A", "large"))
    assert len(net.executed) > 1
    assert [one.commands for one in journal(net)].count(("large",)) == 1


def test_large_statement_fails_if_no_leader_holds_back() -> None:
    """Without reservations, the load of the other tests makes the large statement fail."""
    net = Busy(settings=NEVER, took_s=0.08)
    net.go_on(0.1)
    net.ask("A", total("all"))
    assert not net.go_on(3.0, net.ended("A", "all"))
    assert len(net.executed) > 25


def test_a_strict_read_of_a_busy_table_is_answered() -> None:
    net = Busy(took_s=0.08)
    net.go_on(0.1)
    net.ask("A", Request("all", (Statement("scan", ("k", "k~")),), timeout_s=30.0, read=STRICT, read_only=True))
    assert net.go_on(5.0, net.ended("A", "all"))
    assert len(net.executed) <= 12


def _with_change(place: Place, execute: Callable[..., Event], number: int, *more: Any) -> Event:
    """Let the command ``change`` be a change of the members, which keeps all of them."""
    event = execute(number, *more)
    if not isinstance(event, Executed) or place.requests[number].command != "change":
        return event
    members = {name: Member(name, "") for name in "ABC"}
    changes = pack_membership(Membership(1, members))
    return replace(event, prepared=replace(event.prepared, kind=MEMBERS, access_set=AccessSet(), changes=changes))


@pytest.mark.parametrize("delay_s", [STEP_S, 0.06, 0.2])
def test_change_of_members_commits_while_all_nodes_write(delay_s: float) -> None:
    """The change conflicts with every transaction, and at each execution another node has begun one more."""
    net = Busy(delay_s=delay_s)
    place = net.places["A"]
    place._execute = partial(_with_change, place, place._execute)  # type: ignore[method-assign]
    net.go_on(1.0)
    net.ask("A", add("change", "x"))
    assert net.go_on(4.0, net.ended("A", "change"))
    net.go_on(1.0)
    assert net.places["B"].core.state.roster.membership.version == 1
    assert max(wait for _, wait in net.waits) < reservations.CHANGE_MS / 1000 + 2 * delay_s


def test_several_large_statements_commit_one_after_the_other() -> None:
    """All nodes hold back for one reservation at a time, whichever leader has it, apart from the time of a message."""
    net = Busy(took_s=0.05)
    net.go_on(0.1)
    for name, command in (("A", "a1"), ("B", "b"), ("A", "a2"), ("C", "c")):
        net.ask(name, total(command))
    apart = 0

    def over() -> bool:
        nonlocal apart
        apart += len({held.txid for name in "ABC" if (held := net.held(name)) is not None}) > 1
        return all(command in net.told(command[0].upper()) for command in ("a1", "a2", "b", "c"))

    assert net.go_on(15.0, over)
    assert apart < 50
    assert len(net.executed) < 60


def test_constant_reservations_get_a_quarter_of_the_time() -> None:
    """Each node holds back for that share and once for the longest reservation, for any asking node."""
    settings = Settings(reserve_ms=500)
    net = Busy(settings=settings, took_s=0.15)
    net.go_on(0.1)
    count, held_s, seconds = 0, 0.0, 10.0

    def greedy() -> bool:
        nonlocal count, held_s
        held_s += STEP_S * (net.held("B") is not None)
        for name in "AC":
            if not any(one.statements[0].sql == "total" for one in net.places[name].requests.values()):
                count += 1
                net.ask(name, total(f"{name}{count}"))
        return False

    net.go_on(seconds, greedy)
    assert held_s < reservations.TIME_SHARE * seconds + settings.reserve_ms / 1000 + 0.1
    assert held_s > 0.1 * seconds
    assert len(net.waits) > 0.5 * 6 * seconds / 0.02
    assert max(wait for _, wait in net.waits) < settings.reserve_ms / 1000 + 0.3


@pytest.mark.parametrize("how", ["its node stands still", "its node is cut off", "its client's time is over"])
def test_reservation_of_a_vanished_request_is_dropped(how: str) -> None:
    net = Busy(took_s=1.0, settings=Settings(reserve_ms=20_000))
    net.go_on(0.1)
    net.ask("A", total("all", timeout_s=3.0 if how.startswith("its client") else 60.0))
    assert net.go_on(3.0, lambda: net.held("B") is not None)
    if how == "its node stands still":
        net.silent.add("A")
    elif how == "its node is cut off":
        net.cut("A", "B")
        net.cut("A", "C")
    began, answered = net.seconds, len(net.waits)
    assert net.go_on(3.0, lambda: net.held("B") is None and len(net.waits) > answered + 10)
    longest_s = {"its node stands still": 1.3, "its node is cut off": 0.2, "its client's time is over": 1.2}[how]
    assert net.seconds - began < longest_s + 0.2
    assert net.held("B") is None


def test_expired_reservation_may_be_made_again_and_holds_others_back_no_longer() -> None:
    """If the remaining time is too short for the statement, no leader holds back for it."""
    settings = Settings(reserve_ms=300)
    net = Busy(settings=settings, took_s=0.28)
    net.go_on(0.1)
    net.ask("A", total("all", timeout_s=4.0))
    assert net.go_on(8.0, net.ended("A", "all"))
    assert max(wait for _, wait in net.waits) < 0.3 + 0.3
    slower = Busy(settings=settings, took_s=0.4)
    slower.go_on(0.1)
    slower.ask("A", total("all", timeout_s=4.0))
    assert slower.go_on(8.0, slower.ended("A", "all"))
    assert "reservations" not in slower.places["A"].core.state.counts
    assert max(wait for _, wait in slower.waits) < 0.3


def test_request_for_few_rows_queues_like_all_others() -> None:
    """On a hot row no request reserves: waiting requests share transactions and take turns."""
    net = Busy()
    for number in range(400):
        for name in "ABC":
            net.ask(name, add(f"{name} {number}", "k00"))
        net.go_on(0.004, writers=0)
    assert all("reservations" not in place.core.state.counts for place in net.places.values())


def now(net: Net, name: str) -> float:
    net.play(name, "wake")
    return net.seconds


def lose(net: Net, name: str, number: int, access_set: AccessSet, kind: str = ROWS) -> InFlight:
    """Let a request lose several times at a node."""
    coordinator = net.places[name].core.coordinator
    inflight = InFlight(number, total(f"{name}-{number}"), 100.0, attempts=9)
    now(net, name)
    coordinator.replies.in_flight[number] = inflight
    coordinator.contention.reservations.reserve_if_needed(inflight, access_set, kind)
    return inflight


TABLE = AccessSet(read_ranges=(object_range("t:rows"),))


def test_oldest_reservation_goes_first_and_each_has_its_turn() -> None:
    net = Net("ABC")
    later, first = lose(net, "B", 900, TABLE), lose(net, "A", 901, TABLE)
    assert later.goes_first
    assert first.goes_first  # neither has heard of the other
    for place in net.places.values():
        place.play(("wake",))
    net.run(0.0)
    for name in "AB":
        net.play(name, "heartbeat")
    net.run(0.0)
    names = {place.core.coordinator.contention.reservations.honoured for place in net.places.values()}
    assert len(names) == 1
    (held,) = names
    assert held is not None
    assert held.txid.leader == min((one.txid, one.txid.leader) for one in told(net, "C").values())[1]
    winner, loser = (later, first) if held.txid.leader == "B" else (first, later)
    assert (winner.goes_first, loser.goes_first) == (True, False)
    replies = net.places[held.txid.leader].core.coordinator.replies
    replies.finish(winner, ConflictError("enough"))
    net.play(held.txid.leader, "heartbeat")
    net.run(0.0)
    assert loser.goes_first


def told(net: Net, name: str) -> dict[str, Reservation]:
    return net.places[name].core.coordinator.contention.reservations.latest


def test_small_schema_once_only_and_young_requests_make_no_reservation() -> None:
    """Requests for few keys, schema changes, requests that cannot be executed again, and requests that have not lost
    for long enough.
    """
    net = Net("A")
    point = AccessSet(frozenset({b"t:rows\0k"}), (), frozenset({b"t:rows\0k"}))
    assert not lose(net, "A", 900, claim(point, ("c",), ROWS, 5)).reserves
    assert not lose(net, "A", 901, TABLE, SCHEMA).reserves
    contention, seconds = net.places["A"].core.coordinator.contention, now(net, "A")
    once = InFlight(902, total("once"), 100.0, attempts=9, once=True)
    young = InFlight(903, total("young"), 100.0, attempts=9, arrived_at=seconds)
    first = InFlight(904, total("first"), 100.0, attempts=1)
    long = InFlight(905, total("long"), 100.0, attempts=9, execution_s=3.0)
    for inflight in (once, young, first, long):
        contention.reservations.reserve_if_needed(inflight, TABLE)
        assert not inflight.reserves
    assert lose(net, "A", 906, TABLE).reserves
    assert not lose(net, "A", 907, TABLE).reserves  # each node has one at a time


def test_reservation_message_is_short_and_covers_the_access_set() -> None:
    few = AccessSet(frozenset({b"t:a\0k"}), ((b"t:b\0x", b"t:b\0z"),), frozenset({b"t:c\0k"}))
    assert shortened(few) == (few, cbor2.dumps(few.pack()))
    many = AccessSet(
        frozenset(b"t:a\0%d" % number for number in range(5_000)),
        ((b"i:b\0x", b"i:b\0z"), (b"t:d\0", b"t:f\0")),
        frozenset(b"t:c\0%d" % number for number in range(5_000)),
        ((b"t:e\0x", b"t:e\0z"),),
    )
    found, said = shortened(many)
    assert AccessSet.unpack(cbor2.loads(said)) == found
    assert found.read_ranges == ((b"i:b\0", b"i:b\0\xff"), (b"t:a\0", b"t:a\0\xff"), (b"t:d\0", b"t:f\0"))
    assert found.write_ranges == ((b"t:c\0", b"t:c\0\xff"), (b"t:e\0", b"t:e\0\xff"))
    assert conflict(found, AccessSet(write_points=frozenset({b"t:a\0new"}))) is not None
    assert conflict(found, AccessSet(read_points=frozenset({b"t:a\0new"}))) is None
    objects = AccessSet(read_points=frozenset(b"t:table %d\0k" % number for number in range(500)))
    found, said = shortened(objects)
    assert (found.write_ranges, len(said) < 100) == ((EVERYTHING,), True)
    assert without_names(claim(few, ("one", "two"), ROWS, 77)) == few


def test_gossip_of_an_older_release_has_no_reservation() -> None:
    said = Gossip({}, 0, 0, 1, "s", 1, 2, reserved=(5, 100, cbor2.dumps(TABLE.pack())))
    assert decode(encode(said)) == said
    packed = cbor2.loads(encode(said))
    older = decode(cbor2.dumps(packed[:13]))
    assert isinstance(older, Gossip)
    assert older.reserved is None
    for wrong in ([5, 100], [5, 100, b"", 1], [-1, 100, b""], [5, -1, b""], [5, 100, "x"], 7, [True, 1, b""]):
        with pytest.raises(EntryMalformedError):
            decode(cbor2.dumps([*packed[:13], wrong]))
    heard = Net("ABC").places["A"].core.coordinator.contention.reservations.heard
    for wrong_set in (b"", b"\xff", cbor2.dumps(7), cbor2.dumps([[], [], []]), cbor2.dumps([[1], [], [], []])):
        with pytest.raises(EntryMalformedError):
            heard("B", (5, 100, wrong_set))


def test_overtaken_execution_in_a_worker_is_repeated_and_counted_for_the_client() -> None:
    net = Busy(took_s=9.0)
    net.ask("A", total("all"))
    core, (number,) = net.places["A"].core, net.places["A"].requests
    (_, _, event), net.slow_ones = net.slow_ones[0], deque()
    assert isinstance(event, Executed)
    net.ask("B", add("b", "k01"))
    net.run(0.5)
    net._finish("A", Overtaken(number, event.prepared))
    inflight = core.coordinator.replies.in_flight[number]
    assert net.executed == ["all", "all"]
    assert inflight.attempts == 1
    assert inflight.last_conflict is not None
    assert inflight.last_conflict.other.leader == "B"
    inflight.access_set = event.prepared.access_set
    error = did_not_happen(inflight, core.state)
    assert isinstance(error, ConflictError)
    assert error.retry
    assert error.details["attempts"] == 1
    assert "conflicted with" in error.message
    assert "table rows" in error.message
    net._finish("A", Overtaken(77, event.prepared))  # its request has ended


def test_error_names_the_commit_that_the_request_lost_to() -> None:
    """The request writes a whole index, which two commits touch. Only one of them changed a row that it has read."""
    net = Busy(took_s=9.0)
    indexed(net)
    net.ask("A", total("all"))
    core, (number,) = net.places["A"].core, net.places["A"].requests
    (_, _, event), net.slow_ones = net.slow_ones[0], deque()
    assert isinstance(event, Executed)
    for name, key in (("B", "x"), ("C", "k01")):
        net.ask(name, add(name, key))
        net.run(0.5)
    written = replace(event.prepared.access_set, write_ranges=(INDEX,))
    net._finish("A", Overtaken(number, replace(event.prepared, access_set=written, spans=(INDEX,))))
    lost = core.coordinator.replies.in_flight[number].last_conflict
    assert lost is not None
    assert (lost.other.leader, lost.object) == ("C", "t:rows")


def test_error_of_a_large_statement_names_a_way_out() -> None:
    """The advice depends on whether the statement writes to the contested table."""
    state = Net("A").places["A"].core.state
    inflight = InFlight(1, total("all"), 1.0, attempts=7)
    inflight.last_conflict = Conflict(Txid(5, "B"), b"t:rows\0k01")
    inflight.access_set = AccessSet(read_ranges=(object_range("t:rows"),), write_points=frozenset({b"t:report\0t"}))
    assert "isolation='snapshot'" in did_not_happen(inflight, state).message
    inflight.access_set = AccessSet(read_ranges=(object_range("t:rows"),), write_points=frozenset({b"t:rows\0k02"}))
    assert "over a range of keys at a time" in did_not_happen(inflight, state).message
    inflight.access_set = AccessSet(write_ranges=((b"t:rows\0k01", b"t:rows\0k09"),))  # it writes very many of them
    assert "over a range of keys at a time" in did_not_happen(inflight, state).message
    inflight.access_set = AccessSet(write_points=frozenset({b"t:rows\0k01"}))
    assert did_not_happen(inflight, state).message.endswith("it is safe to run it again")


def test_reservation_waits_until_a_quarter_of_the_time_covers_its_duration() -> None:
    """A node honours the first reservation at once, and the second after four times its duration."""
    net = Net("ABC", settings=Settings(reserve_ms=1_000))
    asks, contention = net.places["A"].core.state, net.places["C"].core.coordinator.contention
    for number, longest_s in enumerate((0.2, 4.2)):
        asks.reserved = (asks.clock.value + number, 1_000, cbor2.dumps(TABLE.pack()))
        waited_s = 0.0
        while contention.reservations.honoured is None and waited_s < 9.0:
            net.run(0.1)
            waited_s += 0.1
        assert longest_s - 0.5 < waited_s < longest_s
        net.run(1.1)
        # the time of the reservation is over, though its node still announces it
        assert contention.reservations.honoured is None


def test_malformed_reservations_cost_no_more_than_the_share() -> None:
    """An empty reservation blocks no request, and constant ones get only the share of all reservations together."""
    settings = Settings(reserve_ms=1_000)
    net, said = Net("ABC", settings=settings), cbor2.dumps(TABLE.pack())
    asks, other, here = (net.places[name] for name in "ABC")
    honoured = here.core.coordinator.contention.reservations
    other.core.state.reserved, asks.core.state.reserved = (0, 0, said), (1, 200, said)
    net.run(0.15)
    assert honoured.honoured is not None
    assert honoured.honoured.txid.leader == "A"
    asks.core.state.reserved = None
    net.run(4.0)
    held_s, step_s, steps = 0.0, 0.01, 3_000
    for number in range(steps):
        for place, clock in ((asks, number), (other, (1 << 60) + number)):
            place.core.state.reserved = (clock, 1 << 40, said)
            place.core.coordinator.contention.reservations.is_changed = number % 3 == 0
            net.play(place.name, "wake")
        net.run(step_s)
        held_s += step_s * (honoured.honoured is not None)
    assert 0 < held_s < settings.reserve_ms / 1000 + reservations.TIME_SHARE * steps * step_s + 0.1


def test_reservation_and_its_end_are_announced_at_once() -> None:
    """A heartbeat would be too late: transactions of other leaders in between would be lost."""
    net = Net("ABC")
    net.play("A", "wake")
    net.deliver()
    inflight = lose(net, "A", 900, TABLE)
    net.deliver()
    assert told(net, "B") == {}
    net.play("A", "wake")
    net.deliver()
    assert {*told(net, "B")} == {*told(net, "C")} == {"A"}
    net.places["A"].core.coordinator.replies.finish(inflight, ConflictError("enough"))
    net.play("A", "wake")
    net.deliver()
    assert (told(net, "B"), told(net, "C")) == ({}, {})


def test_reserving_request_goes_before_those_held_back_for_it() -> None:
    net = Net("A")
    queue, early = net.places["A"].core.coordinator.contention.wait_queue, InFlight(900, total("early"), 100.0)
    late = InFlight(901, total("late"), 100.0, goes_first=True)
    for inflight in (early, late):
        inflight.move(Stage.EXECUTING)
        queue.wait(inflight, Txid(5, "B"))
    assert [*queue.waits[Txid(5, "B")]] == [901, 900]


def test_reserving_request_pauses_for_transactions_begun_earlier() -> None:
    """Another execution before their end would lose again."""
    net = Busy()
    net.kept = {Approve}
    net.ask("B", add("b", "k01"))
    net.run(0.01)
    net.ask("A", total("all"))
    coordinator = net.places["A"].core.coordinator
    (inflight,) = coordinator.replies.in_flight.values()
    assert (net.executed, inflight.stage) == (["all"], Stage.WAITING)
    assert inflight.access_set is not None
    inflight.attempts, inflight.arrived_at, coordinator.state.commit_s = 9, -9.0, 0.01
    now(net, "A")
    coordinator.contention.reservations.reserve_if_needed(inflight, inflight.access_set)
    assert (inflight.goes_first, inflight.stage) == (True, Stage.PAUSED)
    net.run(0.035)
    assert inflight.stage is Stage.PAUSED
    net.run(0.01)
    assert (net.executed, inflight.stage) == (["all"], Stage.WAITING)
    net.kept.clear()
    net.run(0.2)
    assert net.told("A")["all"]
    assert net.executed == ["all", "all"]
    assert [one.commands for one in journal(net)] == [("b",), ("all",)]

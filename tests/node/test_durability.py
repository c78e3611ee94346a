"""The rule of the driver: output leaves when everything that the node knew before it is durable."""

import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, cast

import cbor2
import pytest
import trio

from bedrockish.api.requests import Answer, Request, Statement
from bedrockish.api.url import Address
from bedrockish.config.config import Config
from bedrockish.core.protocol.effects import Early, Keep, KeepHold
from bedrockish.core.protocol.events import Accused, Woken
from bedrockish.core.protocol.messages import Approve, Begin, Fetch, Gossip, decode, encode
from bedrockish.engine.engine import Engine, Founding
from bedrockish.errors import BedrockishError, DamagedError, EntryMismatchError, UnavailableError
from bedrockish.node.runtime import Runtime
from bedrockish.node.scheduling import durability
from bedrockish.node.scheduling.durability import FsyncThread
from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import Txid
from bedrockish_net import mesh as net
from bedrockish_net.inflow import Inflow
from bedrockish_net.mesh import INFLOW_BYTES
from bedrockish_net.read_loop import ReadLoop


class Disk:
    """Holds the engine's syncs until the test lets them pass."""

    running: ClassVar[int] = 0  # syncs of all engines that were let through and have not ended

    def __init__(self, engine: Engine) -> None:
        self._sync = engine.sync
        self.gate = threading.Event()
        self.gate.set()
        self.count = 0
        self.broken: BaseException | None = None

    def sync(self) -> None:
        assert self.gate.wait(60)
        if self.broken is not None:
            raise self.broken
        self.count += 1
        Disk.running += 1
        try:
            self._sync()
        finally:
            Disk.running -= 1


class Wire:
    """A mesh without peers: it records sent messages."""

    def __init__(self) -> None:
        self.left: list[tuple[str, Any]] = []
        self.up = frozenset({"B", "C"})
        self.rejected: list[tuple[str, str]] = []
        self.unreachable: dict[str, str] = {}
        self.inflow = Inflow(INFLOW_BYTES, time.monotonic)

    def describe(self) -> dict[str, dict[str, float]]:
        return {"left_alone": {}, "peer_certificates": {}}

    def waiting_bytes(self) -> int:
        return 0

    def drop_slowest(self, held: object, least: int, stuck_seconds: float = 0.0) -> bool:
        return False

    def reject(self, node: str, reason: str) -> None:
        self.rejected.append((node, reason))

    def send_many(self, node: str, payloads: Iterable[bytes], *, bulk: bool = False) -> bool:
        self.left += [(node, message) for payload in payloads if not isinstance(message := decode(payload), Gossip)]
        return True


def open_runtime(tmp_path: Path, nodes: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Runtime, Disk, Engine]:
    members = {name: Member(name, f"127.0.0.1:{7000 + place}") for place, name in enumerate(nodes)}
    engine = Engine.open(tmp_path / "a.db", founding=Founding("A", Membership(0, members), "store"))
    disk = Disk(engine)
    monkeypatch.setattr(engine, "sync", disk.sync)
    peers = {name: Address("127.0.0.1", 7000 + place) for place, name in enumerate(nodes)}
    config = Config(node="A", database=str(tmp_path / "a.db"), listen=peers["A"], peers=peers)
    monkeypatch.setattr(durability, "QUICK_S", 0.0)  # the gate is for a thread
    return Runtime(engine, config), disk, engine


def request(sql: str, command: str) -> Request:
    return Request(command, (Statement(sql),), timeout_s=5)


async def settled() -> None:
    """Let the loop and the sync thread finish their work, after the last sync of a slow disk."""
    quiet = 0
    with trio.fail_after(60):
        while quiet < 20:
            await trio.sleep(0.005)
            quiet = 0 if Disk.running else quiet + 1


async def idle(runtime: Runtime) -> None:
    """Return when the loop's task waits for something to do."""
    loop = runtime._loop
    with trio.fail_after(60):
        while not loop._is_waiting or loop._wake.is_set() or loop._has_work() or runtime.gate.is_syncing:  # noqa: ASYNC110
            await trio.sleep(0.001)


async def test_short_writes_that_come_during_a_sync_share_a_transaction_and_reads_are_executed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write could not leave before the end of the sync anyway, and later execution with others costs less."""
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[Answer | BedrockishError] = []
    insert = "INSERT INTO t(x) VALUES (1)"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await runtime.submit(request(insert, "known"))
        await settled()
        disk.gate.clear()
        runtime.begin(request(insert, "first"), answers.append)
        await settled()
        executed = runtime.counts["executions"]
        for number in range(5):
            runtime.begin(request(insert, f"more {number}"), answers.append)
        runtime.begin(request("SELECT count(*) FROM t", "read"), answers.append)
        await settled()
        assert runtime.counts["executions"] == executed + 1
        disk.gate.set()
        with trio.fail_after(60):
            while len(answers) < 7:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
        assert runtime.core.state.counts["grouped"] == 4
        places = [one.place for one in answers if isinstance(one, Answer) and one.place is not None]
        assert len(places) == 6
        assert len(set(places)) == 2
        nursery.cancel_scope.cancel()
    engine.close()


async def test_an_answer_waits_for_the_disk_and_later_ones_share_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[Answer | BedrockishError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await settled()
        disk.gate.clear()
        runtime.begin(request("INSERT INTO t VALUES (1)", "first"), answers.append)
        await settled()
        assert answers == []
        for number in range(2, 30):
            runtime.begin(request(f"INSERT INTO t VALUES ({number})", f"c{number}"), answers.append)
        # it has read a row that is not durable yet
        runtime.begin(request("SELECT count(*) FROM t", "look"), answers.append)
        await settled()
        assert answers == []
        before = disk.count
        disk.gate.set()
        with trio.fail_after(60):
            while len(answers) < 30:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.005)
        assert disk.count - before <= 4  # the first, the next, and a heartbeat or two
        assert all(isinstance(answer, Answer) for answer in answers)
        nursery.cancel_scope.cancel()
    engine.close()


def test_client_is_answered_before_other_nodes_get_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message wakes another node; where processors are few, that node ran before the client got its answer."""
    runtime, _, engine = open_runtime(tmp_path, "ABC", monkeypatch)
    order: list[str] = []
    wire = Wire()
    monkeypatch.setattr(wire, "send_many", lambda node, _payloads: order.append(node))
    runtime.output.mesh = wire  # type: ignore[assignment]
    asked = request("SELECT 1", "asked")
    answer = UnavailableError("any answer")
    waiter = durability.Waiter(1, asked, lambda _: order.append("client"), answer=answer)
    runtime.release(durability.HeldOutput({"B": [b""], "C": [b""]}, [waiter]))
    assert order == ["client", "B", "C"]
    runtime.leave()
    engine.close()


async def test_messages_leave_after_the_sync_of_their_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, disk, engine = open_runtime(tmp_path, "ABC", monkeypatch)
    wire = Wire()
    runtime.output.mesh = wire  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await settled()
        state = runtime.core.state
        state.hear_wall(state.roster.peers["B"], int(1000 * time.time()))  # as if other nodes had sent gossip
        state.clock.adjust(pack(int(1000 * time.time())))
        state.clock.safe = state.clock.value
        disk.gate.clear()
        runtime.begin(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"), lambda _: None)
        await settled()
        assert wire.left == []
        wanted = Fetch({"C": 1}, 1000)
        state.outbox.send("B", wanted)  # promises nothing
        runtime.post(Woken())
        await settled()
        assert wire.left == [("B", wanted)]
        wire.left.clear()
        disk.gate.set()
        with trio.fail_after(60):
            while len(wire.left) < 2:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.005)
        assert [(node, type(message)) for node, message in wire.left] == [("B", Begin), ("C", Begin)]
        nursery.cancel_scope.cancel()
    engine.close()


async def test_early_message_leaves_when_its_own_facts_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ceiling and the tick of the last sync count, not those of the open batch or of the batch that is syncing."""
    runtime, disk, engine = open_runtime(tmp_path, "ABC", monkeypatch)
    wire = Wire()
    runtime.output.mesh = wire  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await settled()
        ceiling, outbox = engine.durable_ceiling, runtime.core.state.outbox
        assert ceiling > 0
        disk.gate.clear()
        outbox.emit(Keep("vote", 1))
        outbox.send("B", Approve(Txid(1, "A"), 1, 1), Early(ceiling, 0))
        outbox.send("C", Approve(Txid(2, "A"), 1, 1), Early(ceiling + 1, 0))
        outbox.send("C", Approve(Txid(3, "A"), 1, 1), Early(ceiling, 1))
        outbox.send("B", Approve(Txid(4, "A"), 1, 1))
        runtime.post(Woken())
        await settled()
        assert [(node, message.txid.clock) for node, message in wire.left] == [("B", 1)]
        outbox.emit(Keep("clock_ceiling", ceiling + 1))  # in the batch after the one that is syncing
        outbox.send("C", Approve(Txid(5, "A"), 1, 1), Early(ceiling + 1, 0))
        runtime.post(Woken())
        await settled()
        assert len(wire.left) == 1
        disk.gate.set()
        with trio.fail_after(60):
            while len(wire.left) < 5:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.005)
        assert engine.durable_ceiling == ceiling + 1
        nursery.cancel_scope.cancel()
    engine.close()


async def test_failing_disk_stops_the_node_before_any_output_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[Answer | BedrockishError] = []

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await settled()
            disk.broken = DamagedError("it cannot be synced")
            runtime.begin(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"), answers.append)

    with pytest.RaisesGroup(DamagedError, flatten_subgroups=True), trio.fail_after(60):
        await live()
    assert answers == []
    engine.close()


@pytest.mark.parametrize("error", [DamagedError("the disk failed"), EntryMismatchError("A2 does not fit")])
async def test_node_writes_nothing_after_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: DamagedError
) -> None:
    """The core counts the failed effect as done, and later effects of the batch may depend on it."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)

    def failing(*_arguments: Any, **_options: Any) -> None:
        raise error

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
            monkeypatch.setattr(engine, "apply", failing)
            runtime.begin(request("INSERT INTO t VALUES (1)", "insert"), lambda _: None)

    with pytest.RaisesGroup(type(error), flatten_subgroups=True):
        await live()
    batches = engine.batch.number
    runtime.leave()
    assert engine.batch.number == batches
    engine.close()


async def test_node_stopped_during_a_disk_failure_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync may succeed although the system dropped pages after the first."""
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await settled()
            disk.gate.clear()
            runtime.core.state.outbox.emit(Keep("synced", 1))
            runtime.post(Woken())
            await settled()
            runtime.core.state.outbox.emit(Keep("waits", 1))
            runtime.post(Woken())
            await settled()
            assert engine.batch.is_dirty
            disk.broken = DamagedError("it cannot be synced")
            nursery.cancel_scope.cancel()
            disk.gate.set()

    with pytest.RaisesGroup(DamagedError, flatten_subgroups=True):
        await live()
    batches, disk.broken = engine.batch.number, None
    runtime.leave()
    assert engine.batch.number == batches
    engine.close()


async def test_node_stopped_at_the_moment_of_damage_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that began where links are read has failed half way, and the loop's task is cancelled, too."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)

    def failing(*_arguments: Any) -> None:
        raise DamagedError("the disk failed")

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await settled()
            monkeypatch.setattr(runtime._loop, "_waits", lambda: False)
            monkeypatch.setattr(engine.journal, "save_hold", failing)
            await idle(runtime)
            runtime.core.state.outbox.emit(Keep("half", 1))
            runtime.core.state.outbox.emit(KeepHold("reader", 1, 1))
            nursery.cancel_scope.cancel()
            runtime.gather()
            runtime.post(Woken())
            runtime.act()  # before the loop's task knows that it is cancelled
            assert engine.batch.is_dirty

    with pytest.RaisesGroup(DamagedError, flatten_subgroups=True):
        await live()
    batches = engine.batch.number
    runtime.leave()
    assert engine.batch.number == batches
    engine.close()


async def test_graceful_shutdown_flushes_open_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch may have an accusation of amnesia, which is sent only once, and the unused rest of the clock."""
    runtime, disk, engine = open_runtime(tmp_path, "ABC", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await settled()
        disk.gate.clear()
        runtime.core.state.outbox.emit(Keep("first", 1))
        runtime.post(Accused("C", "another file", for_good=False))
        await settled()
        runtime.post(Accused("B", "an older file", for_good=True))  # its batch waits for that sync
        await settled()
        assert runtime.core.state.roster.lost_promise
        assert engine.batch.is_dirty
        nursery.cancel_scope.cancel()
        disk.gate.set()
    runtime.leave()
    clock = runtime.core.state.clock.value
    engine.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as db:
        kept = dict(db.execute("SELECT key, value FROM bedrockish_meta"))
    assert kept["lost"] == "an older file"
    assert kept["clock_ceiling"] == clock


async def test_graceful_shutdown_finishes_the_current_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first effects of the turn would be stored without the others, on which the core relies."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        with trio.fail_after(60):
            while not runtime._loop._is_waiting:  # noqa: ASYNC110  earlier writes must be synced first
                await trio.sleep(0.01)
        monkeypatch.setattr(runtime, "_is_long", lambda effect: isinstance(effect, Keep) and effect.name == "long")
        monkeypatch.setattr(runtime._loop, "_waits", lambda: False)
        await idle(runtime)
        for name in ("before", "long", "after"):
            runtime.core.state.outbox.emit(Keep(name, 1))
        nursery.cancel_scope.cancel()
        runtime.gather()
        runtime.post(Woken())
        runtime.act()  # before the loop's task knows that it is cancelled
        assert runtime._loop._unfinished is not None
    runtime.leave()
    engine.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as db:
        kept = dict(db.execute("SELECT key, value FROM bedrockish_meta"))
    assert [kept.get(name) for name in ("before", "long", "after")] == [1, 1, 1]


async def test_malformed_message_ends_the_link_and_unknown_ones_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _, engine = open_runtime(tmp_path, "ABC", monkeypatch)
    wire = runtime.output.mesh = cast(Any, Wire())
    good, newer = encode(Approve(Txid(1, "A"), 1, 1)), cbor2.dumps([999, "of a later version"])
    runtime.peers.on_net(net.Received("B", [newer, good]))
    assert wire.rejected == []
    for number, nonsense in enumerate((b"\xff\x00 nonsense", b"", cbor2.dumps([2, [1, "A"], -1, 1])), 2):
        runtime.peers.on_net(net.Received("B", [nonsense, good]))
        assert runtime.counts["malformed"] == number
        assert [peer for peer, _ in wire.rejected] == ["B"] * (number - 1)
    assert wire.rejected[-1] == ("B", "tick of a Approve: there should be a whole number below 2^63, not -1")
    engine.close()


async def test_fsync_thread_calls_done_in_the_loop_with_the_error_of_a_sync() -> None:
    main, found, failing = threading.get_ident(), [], False

    def sync() -> None:
        assert threading.get_ident() != main
        if failing:
            raise OSError("no")

    over = trio.Event()

    def done(error: BaseException | None) -> None:
        found.append((threading.get_ident() == main, type(error)))
        over.set()

    with FsyncThread(sync) as syncer, trio.fail_after(60):
        syncer.start(done)
        await over.wait()
        over, failing = trio.Event(), True
        syncer.start(done)
        await over.wait()
    assert found == [(True, type(None)), (True, OSError)]


async def test_end_of_a_sync_is_reported_with_the_input_of_links() -> None:
    main, found, over = threading.get_ident(), list[tuple[bool, type]](), trio.Event()
    is_reading = False
    loop = ReadLoop(lambda what, error: found.append((False, type(error))))
    errors = [None, OSError("no")]

    def sync() -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    def done(error: BaseException | None) -> None:
        found.append((is_reading and threading.get_ident() == main, type(error)))
        if errors:
            syncer.start(done)
        else:
            over.set()

    def before() -> None:
        nonlocal is_reading
        is_reading = True

    def after() -> bool:
        nonlocal is_reading
        is_reading = False
        return True

    loop.before, loop.after = before, after
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        syncer = FsyncThread(sync)
        syncer.report_to(loop)
        with syncer, trio.fail_after(60):
            syncer.start(done)
            await over.wait()
        nursery.cancel_scope.cancel()
    assert found == [(True, type(None)), (True, OSError)]


async def test_unreported_error_of_a_sync_is_raised_at_the_end() -> None:
    def sync() -> None:
        raise OSError("no")

    syncer = FsyncThread(sync)
    syncer.report_to(ReadLoop(lambda what, error: None))  # the loop does not run any more
    with pytest.raises(OSError, match="no"), syncer:
        syncer.start(lambda error: None)


def test_a_disk_that_has_stalled_is_not_waited_for_in_the_loop_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, took = 0.0, [0.0002] * 5 + [3.0] + [0.0002] * 200

    def sync() -> None:
        nonlocal now
        now += took.pop(0)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    syncer = FsyncThread(sync)
    assert not syncer.is_quick, "nothing is known of it"
    for _ in range(5):
        syncer.sync_now()
        assert syncer.is_quick
    syncer.sync_now()
    for _ in range(100):
        syncer.sync_now()
    assert syncer.mean_s < durability.QUICK_S
    assert not syncer.is_quick
    now += durability.DISTRUST_S
    assert syncer.is_quick

"""Large transactions at one node: the loop goes on during the write, and no reader sees a part of one."""

import threading
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.lowlevel

from bedrockish.access_sets import definitions
from bedrockish.api.requests import Answer, Request, Statement, decode_results
from bedrockish.core.protocol.effects import Assemble, SendEntries
from bedrockish.core.protocol.events import Assembled, Compared, Event
from bedrockish.core.protocol.messages import Entries, Removed, decode, encode
from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine
from bedrockish.engine.entry_applier import EntryApplier
from bedrockish.engine.storage.schema_versions import Versions
from bedrockish.errors import EntryMismatchError, UnavailableError
from bedrockish.node.cluster.incarnations import PREFIX, read_seen
from bedrockish.node.runtime import Runtime
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.row_comparison import RowComparison
from bedrockish.node.scheduling.writer_thread import WriterThread
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.storage import store
from bedrockish_net import mesh as net
from tests.node.test_durability import Wire, open_runtime, request, settled

ROW = 1_000
MANY = 3_000  # rows: three megabytes
ALL = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {MANY}) SELECT i, zeroblob({ROW}) FROM n"


class BlockedMethod:
    """Blocks a method of an engine, in the thread that runs it, until the test opens it."""

    def __init__(self, engine: Engine | EntryApplier | Versions, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inner: Callable[..., Any] = getattr(engine, method)
        self.opened = threading.Event()
        self.threads: list[int] = []
        monkeypatch.setattr(engine, method, self)

    def __call__(self, *arguments: object, **named: object) -> Any:
        found = self.inner(*arguments, **named)
        if threading.get_ident() != threading.main_thread().ident:
            self.threads.append(threading.get_ident())
            assert self.opened.wait(60)
        return found


@pytest.mark.parametrize("method", ["apply", "flush"])
async def test_loop_goes_on_while_a_large_entry_is_written_and_no_read_sees_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Writes, statements of open transactions and questions wait, and are then answered; a read need not wait."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: dict[str, Any] = {}

    async def ask(name: str, sql: str) -> None:
        answers[name] = await runtime.submit(request(sql, name))

    async def look_in_a_transaction() -> None:
        owner = object()
        begun = Request("open", (), timeout_s=5)
        await runtime.transactions.handle(owner, "begin", begun)
        asked = Request("open", (Statement("SELECT count(*) FROM t"),), timeout_s=5)
        answers["open"] = await runtime.transactions.handle(owner, "statements", asked)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        blocked = BlockedMethod(engine.entries if method == "apply" else engine, method, monkeypatch)
        nursery.start_soon(ask, "large", f"INSERT INTO t {ALL}")
        with trio.fail_after(60):
            while not blocked.threads:  # noqa: ASYNC110  a thread sets it
                await trio.sleep(0.005)
        assert engine.batch.is_in_thread
        nursery.start_soon(ask, "small", "INSERT INTO t VALUES (0, 'small')")
        nursery.start_soon(ask, "read", "SELECT count(*) FROM t")
        nursery.start_soon(look_in_a_transaction)
        await settled()
        # Once the batch is written, the read belongs to it, and waits until it is durable.
        assert answers.keys() == ({"read"} if method == "apply" else set())
        assert engine.batch.is_dirty
        assert runtime.status()["node"] == "A"
        blocked.opened.set()
        with trio.fail_after(60):
            while len(answers) < 4:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.005)
        assert count_in(answers["read"]) == (0 if method == "apply" else MANY)
        (counted,) = engine.background.open_reader().execute("SELECT count(*) FROM t")
        assert counted == (MANY + 1,)
        nursery.cancel_scope.cancel()
    assert not engine.batch.is_in_thread
    engine.close()


def count_in(answer: Answer) -> int:
    """Return the number in the answer of a count."""
    count = decode_results(answer.results)[0].rows[0][0]
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("method", ["apply", "flush"])
async def test_caller_that_needs_the_writing_connection_waits_for_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A caller that cannot wait asynchronously blocks the loop, but sees no half of an entry; its write is durable when
    reported so, and not with the batch before.
    """
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        blocked = BlockedMethod(engine.entries if method == "apply" else engine, method, monkeypatch)
        runtime.begin(request(f"INSERT INTO t {ALL}", "large"), lambda _answer: None)
        with trio.fail_after(60):
            while not blocked.threads:  # noqa: ASYNC110  a thread sets it
                await trio.sleep(0.005)
        opener = threading.Timer(0.2, blocked.opened.set)
        opener.start()
        engine.set_meta("told", 1)
        assert blocked.opened.is_set()
        assert engine.journal.find_command("large") is not None
        assert engine.get_meta("told") == {"told": 1}
        await runtime.durable()
        reader = engine.background.open_reader()
        assert reader.execute("SELECT value FROM bedrockish_meta WHERE key = 'told'").fetchall() == [(1,)]
        nursery.cancel_scope.cancel()
    engine.close()


async def test_facts_about_a_peers_file_are_stored_without_blocking_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of the loop read links, so one that waited for the thread would delay all of them."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    blocked = BlockedMethod(engine.entries, "apply", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        runtime.begin(request(f"INSERT INTO t {ALL}", "large"), lambda _answer: None)
        with trio.fail_after(60):
            while not blocked.threads:  # noqa: ASYNC110  a thread sets it
                await trio.sleep(0.005)
        runtime.incarnations.learn("B", "file of B", 500)
        runtime.incarnations.learn("B", "file of B", 900)
        assert engine.batch.is_in_thread
        assert not blocked.opened.is_set()
        blocked.opened.set()
        await runtime.durable()
        assert read_seen(engine.get_meta(PREFIX)[PREFIX + "B"]).batches == 900
        nursery.cancel_scope.cancel()
    engine.close()


async def test_a_large_entry_that_does_not_fit_is_rolled_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    apply, found = engine.apply, list[EntryMismatchError]()

    def damaged(entry: Entry, *, repeat: bool, applied_ms: int) -> None:
        if entry.transaction.command == "large":
            in_the_way = f"INSERT INTO t VALUES ({MANY}, 'in the way')"
            engine.batch.write(
                lambda: engine._db.execute(in_the_way).get
            )  # the rollback is repeated when the batch is written again
            try:
                apply(entry, repeat=repeat, applied_ms=applied_ms)
            except EntryMismatchError as error:
                found.append(error)
                assert engine._db.execute("SELECT count(*) FROM t").get == 1
                raise
        apply(entry, repeat=repeat, applied_ms=applied_ms)

    monkeypatch.setattr(engine, "apply", damaged)
    with pytest.RaisesGroup(EntryMismatchError, allow_unwrapped=True, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
            runtime.begin(request(f"INSERT INTO t {ALL}", "large"), lambda _answer: None)
            await trio.sleep(10)
    assert len(found) == 1
    assert found[0].details["txid"]
    engine.close()


async def test_a_cancelled_node_ends_a_large_entry_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the file and the core would differ."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    blocked = BlockedMethod(engine.entries, "apply", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        runtime.begin(request(f"INSERT INTO t {ALL}", "large"), lambda _answer: None)
        with trio.fail_after(60):
            while not blocked.threads:  # noqa: ASYNC110  a thread sets it
                await trio.sleep(0.005)
        threading.Timer(0.2, blocked.opened.set).start()
        nursery.cancel_scope.cancel()
    assert blocked.opened.is_set()
    runtime.leave()
    assert engine.applied == {"A": 2}
    engine.close()
    again = Engine.open(tmp_path / "a.db", founding=None)
    assert again.applied == {"A": 2}
    assert again.background.open_reader().execute("SELECT count(*) FROM t").get == MANY
    again.close()


async def test_thread_starts_before_the_loop_can_wait_for_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter for the writer blocks the loop, so the thread must start without a turn of the loop."""
    _, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    began, looked, waited = threading.Event(), threading.Event(), list[bool]()

    async def look() -> None:
        while not engine.batch.is_in_thread:
            await trio.lowlevel.checkpoint()
        waited.append(began.wait(30))
        looked.set()

    def write() -> None:
        began.set()
        looked.wait(30)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(look)
        await trio.lowlevel.checkpoint()
        await WriterThread(engine).run(write)
        nursery.cancel_scope.cancel()
    assert waited
    assert all(waited)
    assert not engine.batch.is_in_thread
    engine.close()


async def test_the_loop_goes_on_while_a_schema_change_comes_into_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change may build an index, or have SQLite read thousands of definitions again."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[Any] = []

    async def ask(sql: str, name: str) -> None:
        answers.append(await runtime.submit(request(sql, name)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        blocked = BlockedMethod(engine._versions, "activate", monkeypatch)
        nursery.start_soon(ask, "CREATE INDEX t_x ON t(x)", "index")
        with trio.fail_after(60):
            while not blocked.threads:  # noqa: ASYNC110  a thread sets it
                await trio.sleep(0.005)
        assert engine.batch.is_in_thread
        nursery.start_soon(ask, "INSERT INTO t VALUES (0, 'small')", "small")
        await settled()
        assert answers == []
        assert runtime.status()["node"] == "A"
        blocked.opened.set()
        with trio.fail_after(60):
            while len(answers) < 2:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.005)
        assert all(isinstance(answer, Answer) for answer in answers)
        nursery.cancel_scope.cancel()
    engine.close()


async def test_requests_after_a_schema_change_with_many_tables_run_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the loop, SQLite would read all of them again after each request."""
    monkeypatch.setattr(definitions, "_MANY", 3)
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    executed: list[str] = []
    execute = engine.execute

    def noted(asked: Request, budget_s: float, clock: int) -> Prepared:
        executed.append(asked.command)
        return execute(asked, budget_s, clock)

    monkeypatch.setattr(engine, "execute", noted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await runtime.durable()
        await runtime.submit(request("INSERT INTO t VALUES (1, 1)", "before"))
        await runtime.durable()
        monkeypatch.setattr(engine, "_has_schema_change", True)
        await runtime.submit(request("INSERT INTO t VALUES (2, 2)", "changed"))
        await runtime.durable()
        await runtime.submit(request("INSERT INTO t VALUES (3, 3)", "after"))
        nursery.cancel_scope.cancel()
    assert [name for name in executed if name != "create"] == ["before", "after"]
    engine.close()


# -- comparing -----------------------------------------------------------------------------------------------------


async def prepare(runtime: Runtime, sql: str) -> Transaction:
    """Return what a request would be, without committing it."""
    found: list[Prepared] = [runtime.engine.execute(request(sql, "prepared"))]
    made, engine = found[0], runtime.engine
    assert len(made.changes) > 1 << 20
    access_set = AccessSet(write_points=frozenset({b"t:t\0"}))
    base, schema = dict(engine.applied), engine.schema_version
    return Transaction(Txid(5, "B"), base, 0, schema, 0, "c", "serializable", ROWS, access_set, made.changes, b"")


async def test_a_large_transaction_is_compared_in_a_worker_and_the_verdict_is_about_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    posted: list[Event] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await runtime.submit(request(f"INSERT INTO t {ALL}", "large"))
        update = await prepare(runtime, "UPDATE t SET x = zeroblob(999)")
        in_loop: list[Transaction] = []
        why_rows_differ = engine.entries.why_rows_differ

        def noted(transaction: Transaction) -> str:
            in_loop.append(transaction)
            return why_rows_differ(transaction)

        monkeypatch.setattr(engine.entries, "why_rows_differ", noted)
        comparison = RowComparison(
            engine,
            runtime.transactions.snapshots,
            posted.append,
            nursery.start_soon,
            runtime.stop,
            Faults(runtime.counts, runtime.stop),
        )

        async def verdict(transaction: Transaction) -> str:
            posted.clear()
            assert comparison.compare(transaction) is None
            assert comparison.compare(transaction) is None  # asked again, it is not started again
            with trio.fail_after(60):
                while not posted:  # noqa: ASYNC110  the loop has no event for it
                    await trio.sleep(0.005)
            assert posted == [Compared(transaction.txid)]
            found = comparison.compare(transaction)
            assert found is not None
            return found

        assert await verdict(update) == ""
        engine.batch.write(lambda: engine._db.execute(f"UPDATE t SET x = zeroblob(1) WHERE id = {MANY}").get)
        assert await verdict(update) == f"row ({MANY},) of t differs here or is missing"
        assert in_loop == []
        garbled = Transaction(
            Txid(6, "B"),
            {},
            0,
            engine.schema_version,
            0,
            "d",
            "serializable",
            ROWS,
            AccessSet(),
            b"\xff" * (2 << 20),
            b"",
        )
        assert "cannot be read" in await verdict(garbled)
        nursery.cancel_scope.cancel()
    engine.close()


async def test_rows_are_compared_in_the_loop_if_no_snapshot_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        answer = await runtime.submit(request(f"INSERT INTO t {ALL}", "large"))
        assert isinstance(answer, Answer)
        update = await prepare(runtime, "UPDATE t SET x = zeroblob(999)")

        def no_room() -> None:
            raise apsw_cannot_open()

        monkeypatch.setattr(runtime.transactions.snapshots._readers, "_connect", no_room)
        runtime.transactions.snapshots._readers._idle.clear()
        comparison = runtime._comparison
        assert comparison.compare(update) is None
        with trio.fail_after(60):
            while update.txid in comparison._running:  # noqa: ASYNC110  the loop has no event for it
                await trio.sleep(0.005)
        assert comparison.compare(update) == ""
        nursery.cancel_scope.cancel()
    engine.close()


@pytest.mark.parametrize("nodes", ["A", "ABC"])
async def test_own_large_transaction_is_staged_during_the_vote_and_counts_as_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    runtime, _, engine = open_runtime(tmp_path, nodes, monkeypatch)
    async with trio.open_nursery() as nursery:
        runtime._nursery = nursery
        engine.batch.write(lambda: engine._db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)").get)
        engine._learn_schema()
        engine.flush()
        prepared = engine.execute(request(f"INSERT INTO t {ALL}", "large"))
        runtime._comparison.unpack(prepared)
        runtime._comparison.unpack(engine.execute(request("INSERT INTO t VALUES (1, 1)", "small")))
        with trio.move_on_after(0.3 if nodes == "A" else 60):
            while not len(engine.entries.staged):  # noqa: ASYNC110 (no event exists)
                await trio.sleep(0.01)
        await trio.lowlevel.checkpoint()
        assert len(engine.entries.staged) == (len(nodes) > 1)
        for staged in [*engine.entries.staged._kept.values()]:
            assert engine.memory.held(staged) == len(prepared.changes)
            engine.entries.staged.drop(staged.changes)
            with trio.fail_after(60):
                while engine.memory.held(staged):  # noqa: ASYNC110 (no event exists)
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    engine.close()


def apsw_cannot_open() -> Exception:
    import apsw

    return apsw.CantOpenError("unable to open database file")


async def test_missing_entries_are_read_in_a_thread_and_sent_when_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop reads few and short entries itself; a repeated question is answered once."""
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    wire = Wire()
    read: Callable[..., list[Entry]] = store.read
    threads: list[bool] = []

    def watched(*arguments: Any) -> list[Entry]:
        threads.append(threading.current_thread() is threading.main_thread())
        return read(*arguments)

    monkeypatch.setattr(store, "read", watched)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await settled()
        runtime.output.mesh = cast(net.Mesh, wire)
        threads.clear()
        runtime._do(SendEntries("B", {"A": 1}, 1 << 24), deque())
        assert threads == [True]
        await settled()
        [(peer, short)] = wire.left
        assert peer == "B"
        assert len(short.entries) == 1
        disk.gate.clear()
        nursery.start_soon(runtime.submit(request(f"INSERT INTO t {ALL}", "large")).wait)
        with trio.fail_after(60):
            while engine.applied.get("A") != 2 or engine.batch.is_in_thread:  # noqa: ASYNC110  a thread does it
                await trio.sleep(0.005)
        threads.clear()
        for _ in range(3):
            runtime._do(SendEntries("B", {"A": 1}, 1 << 24), deque())
        await settled()
        assert len(wire.left) == 1, "the large one is not durable"
        disk.gate.set()
        with trio.fail_after(60):
            while len(wire.left) < 2:  # noqa: ASYNC110  the wire has no event for it
                await trio.sleep(0.005)
        await settled()
        nursery.cancel_scope.cancel()
    assert threads == [False]
    peer, large = wire.left[1]
    assert peer == "B"
    assert len(wire.left) == 2
    pieces = {
        digest: piece.read() for one in runtime.core.state.pieces.sent["B"] for digest, piece in one.pieces.items()
    }
    data = b"".join(part if isinstance(part, bytes) else pieces[part[0]] for part in large.parts)
    expected = tuple((one.prev, one.label, one.transaction.body) for one in engine.read_entries("A", 1, 1 << 24))
    message = decode(data)
    assert isinstance(message, Entries)
    assert message.entries == expected


async def test_a_message_in_pieces_is_read_in_a_thread_and_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces may be in the open batch; if the file cannot be opened again, the writer reads them."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    posted: list[Event] = []
    monkeypatch.setattr(runtime._assembler, "_post", posted.append)
    apart = engine.background.assemble
    threads: list[bool] = []

    def watched(parts: tuple[Part, ...]) -> bytes:
        threads.append(threading.current_thread() is threading.main_thread())
        if len(threads) == 2:
            raise UnavailableError("too many open files")
        return apart(parts)

    monkeypatch.setattr(engine.background, "assemble", watched)
    data = [encode(Removed({"B": number}, 1)) + bytes(10 * number) for number in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await settled()
        for one in data:
            engine.votes.save_piece(sha256(one[3:]).digest(), one[3:])
            parts: tuple[Part, ...] = (one[:3], (sha256(one[3:]).digest(), len(one) - 3))
            runtime._do(Assemble("B", parts), deque())
        assert engine.batch.is_dirty
        assert not posted
        with trio.fail_after(60):
            while len(posted) < 3:  # noqa: ASYNC110  it is a list
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert [one.data for one in posted if isinstance(one, Assembled)] == data
    assert threads == [False] * 3


@pytest.mark.parametrize("values", ["VALUES (1, 'short')", ALL])
async def test_damaged_entry_is_not_sent_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, values: str
) -> None:
    """The requester learns that the entry is missing here, and gets the ones before and after it; the node goes on."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    wire = Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await runtime.submit(request(f"INSERT INTO t {values}", "damaged"))
        await runtime.submit(request("INSERT INTO t VALUES (-1, 'after')", "after"))
        engine._db.execute("UPDATE main.bedrockish_journal SET body = CAST(substr(body, 2) AS BLOB) WHERE tick = 2")
        engine.set_meta("changed", 1)
        await runtime.durable()
        runtime.output.mesh = cast(net.Mesh, wire)
        for first in (1, 2, 2, 3):
            runtime._do(SendEntries("B", {"A": first}, 1 << 24), deque())
            with trio.fail_after(60):
                sent = len(wire.left)
                while len(wire.left) == sent:  # noqa: ASYNC110  the wire has no event for it
                    await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    said = [message for peer, message in wire.left if peer == "B"]
    assert [type(one) for one in said] == [Entries, Removed, Removed, Entries]
    assert [len(one.entries) for one in said if isinstance(one, Entries)] == [1, 1]
    assert [one.upto for one in said if isinstance(one, Removed)] == [{"A": 2}] * 2
    told = [one.getMessage() for one in caplog.records if "damaged" in one.getMessage()]
    assert len(told) == 1
    assert "the entry A2 of this node's journal is damaged" in told[0]
    assert "bedrockish member repair URL A" in told[0]
    assert list(runtime.status()["journal_damaged"]) == ["A2"]
    assert [one["code"] for one in runtime.status()["troubles"] if one["code"] == "journal_damaged"]
    engine.close()

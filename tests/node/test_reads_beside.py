"""Reads while a thread has the writer: which data they may show, and which have to wait for the thread."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.requests import STALE, STRICT, USER_ADD, Answer, MemberChange, Statement, Token, decode_results
from bedrockish.common.password_hash import hash_password
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.committed_reads import CommittedReads
from bedrockish.engine.execution.interfaces import Flushed
from bedrockish.errors import BedrockishError, DamagedError, ForbiddenError, SqlError
from bedrockish.node import executions
from bedrockish.node.runtime import Runtime
from bedrockish.node.scheduling.turn_loop import FairQueue
from bedrockish_journal.storage import schema_history
from tests.node.test_durability import Disk, open_runtime, request, settled
from tests.node.test_large import ALL, MANY, BlockedMethod

COUNT = "SELECT count(*) FROM t"
HASH = str(hash_password("x", bytes(16)))


@dataclass
class Node:
    """A node whose writer is about to be away."""

    runtime: Runtime
    disk: Disk
    engine: Engine
    answers: dict[str, Answer | BedrockishError] = field(default_factory=dict)

    def ask(self, name: str, sql: str = COUNT, **others: Any) -> None:
        asked = replace(request(sql, name), **others)
        self.runtime.begin(asked, lambda answer: self.answers.__setitem__(name, answer))

    async def wait(self, *names: str) -> None:
        with trio.fail_after(60):
            while not self.answers.keys() >= {*names}:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)

    def told(self, name: str) -> Any:
        """Return the first value of a request's answer."""
        return decode_results(self.answer(name).results)[0].rows[0][0]

    def answer(self, name: str) -> Answer:
        answer = self.answers[name]
        assert isinstance(answer, Answer), answer
        return answer


@asynccontextmanager
async def a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    node = Node(runtime, disk, engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await runtime.submit(request("INSERT INTO t VALUES (0, 'first')", "first"))
        yield node
        nursery.cancel_scope.cancel()
    runtime.leave()
    engine.close()


async def come(blocked: BlockedMethod) -> None:
    """Wait until a thread is blocked in the method."""
    with trio.fail_after(60):
        while not blocked.threads:  # noqa: ASYNC110  a thread sets it
            await trio.sleep(0.001)


@asynccontextmanager
async def writing(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Let a thread write a large transaction during the block; after the block the transaction is answered."""
    blocked = BlockedMethod(node.engine.entries, "apply", monkeypatch)
    node.ask("large", f"INSERT INTO t {ALL}")
    await come(blocked)
    try:
        yield
    finally:
        blocked.opened.set()
    await node.wait("large")


async def test_each_read_level_keeps_its_promise_during_a_large_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large transaction is committed, and another client may know it, so a strict read waits for it."""
    async with a_node(tmp_path, monkeypatch) as node:
        async with writing(node, monkeypatch):
            node.ask("stale", read=STALE)
            node.ask("session")
            node.ask("strict", read=STRICT)
            node.ask(
                "own", "SELECT x FROM t WHERE id = ?", statements=(Statement("SELECT x FROM t WHERE id = ?", [0]),)
            )
            await node.wait("stale", "session", "own")
            await settled()
            assert "strict" not in node.answers
            assert [node.told(name) for name in ("stale", "session", "own")] == [1, 1, "first"]
        await node.wait("strict")
        assert node.told("strict") == MANY + 1
        assert node.runtime.counts["reads_beside"] == 3
        assert not node.runtime.waiters.open


async def test_session_never_sees_an_older_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        before = dict(node.engine.flushed.applied)
        seen = Token({"A": before["A"] + 1}, node.runtime.core.state.clock.value)
        async with writing(node, monkeypatch):
            node.ask("ahead", token=seen)  # it was told of the large transaction by another node
            node.ask("even", token=Token(before))
            await node.wait("even")
            assert node.answer("even").token.vector == before
            node.ask("again", token=node.answer("even").token)
            await node.wait("again")
            await settled()
            assert "ahead" not in node.answers
        await node.wait("ahead")
        assert node.told("ahead") == MANY + 1
        node.ask("later", token=node.answer("again").token)
        await node.wait("later")
        assert node.told("later") == MANY + 1


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("INSERT INTO t VALUES (-1, 'x') RETURNING 7", 7),
        (f"{COUNT}; DELETE FROM t WHERE id = 0", 0),
        ("CREATE TABLE u(x)", None),
        ("SELECT transaction_clock() > 0", 1),
        ("SELECT cluster_clock() > 0", 1),
        ("SELECT skip_locked('t', id) FROM t WHERE id = 0", 1),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 400000) SELECT count(*) FROM n",
            400_000,
        ),
        ("SELECT count(*) FROM nothing", SqlError),
        ("SELECT abs(-9223372036854775808)", SqlError),
        ("", SqlError),
    ],
)
async def test_requests_other_than_short_reads_wait_for_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, told: object
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        async with writing(node, monkeypatch):
            node.ask("it", sql)
            node.ask("after")
            await node.wait("after")
            await settled()
            assert "it" not in node.answers
        await node.wait("it")
        if told is SqlError:
            assert isinstance(node.answers["it"], SqlError)
        elif sql.startswith(COUNT):
            assert node.told("it") == MANY + 1
        elif told is not None:
            assert node.told("it") == told
        assert node.runtime.counts["internal_errors"] == 0


async def test_read_beside_a_large_entry_returns_no_commit_that_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is in the file, and its sync has not ended, while the next and large commit is being written."""
    async with a_node(tmp_path, monkeypatch) as node:
        node.disk.gate.clear()
        node.ask("small", "INSERT INTO t VALUES (-1, 'small')")
        await settled()
        blocked = BlockedMethod(node.engine.entries, "apply", monkeypatch)
        node.ask("large", f"INSERT INTO t {ALL}")
        await come(blocked)
        node.ask("read")
        await settled()
        assert node.answers == {}
        node.disk.gate.set()
        await node.wait("small", "read")
        assert node.told("read") == 2
        blocked.opened.set()
        await node.wait("large")


async def test_read_that_depends_on_the_large_batch_runs_again_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first the read ran on the open batch, before the large transaction in it."""
    async with a_node(tmp_path, monkeypatch) as node:
        node.disk.gate.clear()
        node.ask("small", "INSERT INTO t VALUES (-1, 'small')")  # its sync keeps the next batch open
        await settled()
        executed = node.runtime.counts["executions"]
        node.ask("read")
        node.ask("strict", read=STRICT)
        while node.runtime.counts["executions"] < executed + 2:  # noqa: ASYNC110
            await trio.sleep(0.001)
        assert {waiter.request.command for waiter in node.runtime.gate.kept.replies} == {"read", "strict"}
        blocked = BlockedMethod(node.engine.entries, "apply", monkeypatch)
        node.ask("large", f"INSERT INTO t {ALL}")
        await come(blocked)
        node.disk.gate.set()
        await node.wait("small", "read")
        assert node.told("read") == 2
        await settled()
        assert "strict" not in node.answers
        blocked.opened.set()
        await node.wait("large", "strict")
        assert node.told("strict") == 2
        assert not node.runtime.waiters.open


async def test_a_change_of_the_schema_is_seen_when_it_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that has read on the new schema at another node waits; others read on the old one, and their tokens say
    so.
    """
    async with a_node(tmp_path, monkeypatch) as node:
        await node.runtime.submit(request("CREATE INDEX t_x ON t(x)", "index"))
        in_force, following = schema_history.clocks(node.engine._db)
        assert following is None
        before = node.engine.flushed.applied
        blocked = BlockedMethod(node.engine._versions, "activate", monkeypatch)
        node.ask("drop", "DROP INDEX t_x; ALTER TABLE t DROP COLUMN x")
        await come(blocked)
        node.ask("old", "SELECT x FROM t")
        node.ask("new", "SELECT * FROM t", token=Token({"A": before["A"] + 1}))
        await node.wait("old")
        await settled()
        assert node.told("old") == "first"
        assert node.answer("old").token.clock >= in_force  # otherwise another node could show the earlier schema
        assert "new" not in node.answers
        blocked.opened.set()
        await node.wait("new", "drop")
        assert decode_results(node.answer("new").results)[0].columns == ("id",)
        # From now on the connection for such reads must know the new schema.
        async with writing_a_bit(node, monkeypatch, "INSERT INTO t VALUES (77)"):
            node.ask("columns", "SELECT * FROM t")
            node.ask("gone", "SELECT x FROM t")
            await node.wait("columns")
            assert decode_results(node.answer("columns").results)[0].columns == ("id",)
            assert "gone" not in node.answers
        await node.wait("gone")
        assert isinstance(node.answers["gone"], SqlError)


async def test_a_session_that_has_seen_a_scheduled_change_in_force_elsewhere_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's token includes the change, but the earlier schema is still in force here."""
    monkeypatch.setattr(executions, "LONG_CHANGE_S", -1)
    monkeypatch.setattr(executions, "BUILD_S", 0.5)
    async with a_node(tmp_path, monkeypatch) as node:
        for _ in range(2):  # so that it goes to a worker, and takes its time
            node.runtime.workers.took_long("CREATE INDEX t_x ON t(x)")
        node.ask("index", "CREATE INDEX t_x ON t(x)")
        while node.runtime.core.state.schema.scheduled is None or node.engine.batch.is_dirty:  # noqa: ASYNC110
            await trio.sleep(0.001)
        _, following = schema_history.clocks(node.engine.background.open_reader())
        assert following is not None
        vector = dict(node.engine.flushed.applied)
        async with writing_a_bit(node, monkeypatch, "INSERT INTO t VALUES (77, '')"):
            node.ask("before", token=Token(vector, following - 1))
            node.ask("after", token=Token(vector, following))
            await node.wait("before")
            assert node.answer("before").token.clock < following
            assert "after" not in node.answers
            assert "index" not in node.answers
        await node.wait("after", "index")


@asynccontextmanager
async def writing_a_bit(node: Node, monkeypatch: pytest.MonkeyPatch, sql: str, user: str = "") -> AsyncIterator[None]:
    """Let a thread write rows inside the block, as for a large transaction."""
    monkeypatch.setattr(node.engine.entries, "is_long", lambda entry: entry.transaction.command == "long")
    blocked = BlockedMethod(node.engine.entries, "apply", monkeypatch)
    node.ask("long", sql, user=user)
    await come(blocked)
    try:
        yield
    finally:
        blocked.opened.set()
    await node.wait("long")


async def test_read_waits_until_its_users_rights_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        admin = replace(
            request("", "root"), statements=(), change=MemberChange(USER_ADD, "root", role="admin", secret=HASH)
        )
        await node.runtime.submit(admin)
        change = MemberChange(USER_ADD, "ann", role="reader", secret=HASH)
        reader = replace(request("", "ann"), statements=(), change=change, user="root")
        blocked = BlockedMethod(node.engine.entries, "apply", monkeypatch)
        monkeypatch.setattr(node.engine.entries, "is_long", lambda entry: entry.transaction.command == "ann")
        node.runtime.begin(reader, lambda answer: node.answers.__setitem__("ann", answer))
        await come(blocked)
        assert node.engine.has_new_members
        node.ask("read", user="ann")
        await settled()
        assert node.answers == {}
        blocked.opened.set()
        await node.wait("ann", "read")
        assert node.told("read") == 1
        async with writing_a_bit(node, monkeypatch, "INSERT INTO t VALUES (77, '')", "root"):
            node.ask("ann's", user="ann")
            node.ask("nobody's", user="nobody")
            await node.wait("ann's")
            await settled()
            assert "nobody's" not in node.answers
        await node.wait("nobody's")
        assert isinstance(node.answers["nobody's"], ForbiddenError)


async def test_a_file_that_cannot_be_read_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_arguments: object) -> None:
        raise DamagedError("the file is damaged")

    monkeypatch.setattr(CommittedReads, "read", damaged)
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    blocked = BlockedMethod(engine.entries, "apply", monkeypatch)
    with pytest.RaisesGroup(DamagedError, allow_unwrapped=True, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
            runtime.begin(request(f"INSERT INTO t {ALL}", "large"), lambda _answer: None)
            await come(blocked)
            runtime.begin(request(COUNT, "read"), lambda _answer: None)
            threading.Timer(0.1, blocked.opened.set).start()
            await trio.sleep(10)
    engine.close()


async def test_fault_of_a_direct_read_is_counted_and_the_read_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError

    async with a_node(tmp_path, monkeypatch) as node:
        monkeypatch.setattr(CommittedReads, "read", broken)
        async with writing(node, monkeypatch):
            node.ask("read")
            await settled()
            assert "read" not in node.answers
        await node.wait("read")
        assert node.told("read") == MANY + 1
        assert node.runtime.counts["internal_errors"] in (1, 2)  # when it is applied, and when it is written


async def test_snapshot_beside_the_writer_shows_only_a_completely_known_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may commit the next batch during a read."""
    _, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    reads = CommittedReads(engine.connector())
    reads.learn()
    asked = request("SELECT value FROM bedrockish_meta WHERE key = 'mine'", "read")
    engine.set_meta("mine", 1)
    before: Flushed = engine.flushed
    assert reads.read(asked, before, 1.0) is not None
    engine.flush()
    assert reads.read(asked, before, 1.0) is None
    found = reads.read(asked, engine.flushed, 1.0)
    assert found is not None
    assert decode_results(found[0])[0].rows == [(1,)]
    reads.close()
    engine.close()


def test_fair_queue_removes_chosen_items_and_keeps_the_order_of_the_rest() -> None:
    queue: FairQueue[int] = FairQueue()
    for owner, item in (("a", 1), ("a", 2), ("b", 3), ("a", 4), ("c", 6)):
        queue.put(owner, item)
    even: Callable[[int], bool] = lambda item: item % 2 == 0  # noqa: E731
    assert queue.sift(even) == [("a", 2), ("a", 4), ("c", 6)]
    assert [queue.take() for _ in range(queue.count)] == [1, 3]
    assert not queue.count

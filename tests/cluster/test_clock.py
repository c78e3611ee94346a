"""The cluster's clock with real nodes: Citus's pattern as it is written, walls that are hours off, the safety valve."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, ConflictError, UnavailableError
from bedrockish_journal.model.clock import milliseconds
from tests.cluster.story import judge_files, level, ready, send_signal, status_of, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

HOUR_MS = 3_600_000
STANDS_S = 10.0  # a leader is suspected after one second, and the machine may be busy
TRACK = (
    "CREATE TABLE track_table(TransactionId TEXT, operation TEXT, row_key INTEGER)",
    "CREATE TABLE transaction_commit_clock(TransactionId TEXT PRIMARY KEY, CommitClock INTEGER, timestamp TEXT)",
    "CREATE TABLE stock(id INTEGER PRIMARY KEY, n INTEGER)",
)
NOTE = "INSERT INTO track_table SELECT transaction_id(), ?, ?"
CLOCK = "INSERT INTO transaction_commit_clock SELECT transaction_id(), transaction_clock(), datetime('now')"
JOINED = "FROM track_table tt, transaction_commit_clock cc WHERE tt.TransactionId = cc.TransactionId"


@contextmanager
def shifted(path: Path, *offsets_ms: int, more: dict[int, list[str]] | None = None) -> Iterator[LocalCluster]:
    """Start nodes whose wall clocks are off."""
    cluster = LocalCluster(path, ("A", "B", "C")[: len(offsets_ms)])
    cluster.write_files()
    try:
        for index, offset in enumerate(offsets_ms):
            start(cluster, index, offset, *(more or {}).get(index, []))
        yield cluster
    finally:
        cluster.stop()


def start(cluster: LocalCluster, index: int, offset_ms: int, *settings: str) -> None:
    arguments = [word for one in (f"wall_offset_ms={offset_ms}", *settings) for word in ("--set", one)]
    cluster.nodes[index].start("serve", *arguments)


async def rows(client: Client, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await client.execute(sql, params or None)]


async def test_example_tables_of_the_clock_page_order_all_transactions(cluster: LocalCluster) -> None:
    """This holds for tables of an application, in one request or an open transaction, and for the journal's table."""
    await ready(cluster)
    clients = []
    async with open_client(cluster.url(0)) as a, open_client(cluster.url(1)) as b, open_client(cluster.url(2)) as c:
        clients = [a, b, c]
        for statement in TRACK:
            await a.execute(statement)
        order = []
        token = a.token
        for number in range(12):
            client = clients[number % 3]
            client.token = token
            key = number % 4
            change = ("INSERT INTO stock VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1", [key])
            note, clock = (NOTE, ["upsert", key]), (CLOCK, None)
            if number % 2:
                await client.transact([change, note, clock])
            else:
                await through_a_transaction(client, [change, note, clock])
            token = client.token
            order.append(key)
        for client in clients:
            client.token = token  # without the token, the client might not see the last commits
        # all events in the causal order, those of one object, those of the last hour
        assert await rows(a, f"SELECT tt.row_key {JOINED} ORDER BY cc.CommitClock") == [(key,) for key in order]
        assert len(await rows(b, f"SELECT tt.operation {JOINED} AND row_key = ? ORDER BY cc.CommitClock", 2)) == 3
        assert len(await rows(c, f"SELECT 1 {JOINED} AND cc.timestamp >= datetime('now', '-1 hour')")) == 12
        # the clock is the transaction's, and the id is the command's
        mine = "SELECT TransactionId, CommitClock FROM transaction_commit_clock ORDER BY 1"
        same = "SELECT command, clock FROM bedrockish_journal WHERE repeat = 0 AND command IN "
        assert await rows(a, mine) == await rows(a, f"{same}(SELECT TransactionId FROM track_table) ORDER BY 1")
        # the same without tables of the application's own
        query = "SELECT row_key FROM bedrockish_changes WHERE table_name = 'stock' ORDER BY clock, leader, seq"
        assert await rows(b, query) == [(key,) for key in order]
        recent = "SELECT count(*) FROM bedrockish_changes WHERE table_name = 'stock' AND row_key = 2 AND clock > ?"
        assert await rows(b, recent, (await ask_clock(b, "cluster_clock")) - (HOUR_MS << 22)) == [(3,)]
        # pruning, as the page has it
        await c.execute("DELETE FROM transaction_commit_clock WHERE timestamp < datetime('now', '+1 day')")
        assert await rows(c, f"SELECT 1 {JOINED}") == []


async def through_a_transaction(client: Client, statements: list[tuple[str, Any]]) -> None:
    for attempt in range(20):
        try:
            async with client.transaction() as tx:
                for sql, params in statements:
                    await tx.execute(sql, params)
            return
        except ConflictError:
            await trio.sleep(0.05 * attempt)
    raise AssertionError("an open transaction never got its clock in time")


async def test_a_transaction_clock_is_later_than_all_that_was_acknowledged(cluster: LocalCluster) -> None:
    """No commit acknowledged before, at any node, has a later clock, and the next query gets a later one."""
    await ready(cluster)
    acknowledged = 0
    last = 0
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, c INTEGER)")
    await level(cluster)
    async with open_client(cluster.url(0)) as a, open_client(cluster.url(1)) as b, open_client(cluster.url(2)) as c:
        clients = [a, b, c]

        async def write(client: Client) -> None:
            nonlocal acknowledged
            for _ in range(15):
                id_ = uuid_of(await client.execute("INSERT INTO t(c) VALUES (transaction_clock()) RETURNING c"))
                acknowledged = max(acknowledged, id_)

        async def ask() -> None:
            nonlocal last
            for number in range(30):
                before, previous = acknowledged, last
                clock = await ask_clock(clients[number % 3])
                assert clock > before
                assert clock > previous
                last = clock

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(write, client)
                nursery.start_soon(ask)
        await level(cluster)
        joined = "SELECT count(*) FROM t JOIN bedrockish_changes AS j ON j.table_name = 't' AND row_key = id"
        assert await rows(a, f"{joined} WHERE c <> clock") == [(0,)]
        assert await rows(a, f"{joined} WHERE c = clock") == [(45,)]
        one_name = "SELECT count(DISTINCT clock || leader) FROM bedrockish_changes WHERE table_name = 't'"
        assert await rows(a, one_name) == [(45,)]


def uuid_of(found: Any) -> int:
    return int(found.value())


async def test_wall_clocks_that_are_hours_wrong_are_not_followed(tmp_path: Path) -> None:
    """One wall is an hour behind, another is two hours ahead. The cluster follows the third, also after a restart."""
    with shifted(tmp_path / "cluster", -HOUR_MS, 2 * HOUR_MS, 0) as cluster:
        await ready(cluster)
        async with open_client(cluster.url()) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, c INTEGER)")
        before = await write_everywhere(cluster, 0)
        told = await status_of(cluster, 2)
        offsets = {name: node["wall_offset_ms"] for name, node in told["nodes"].items()}
        assert abs(offsets["A"] + HOUR_MS) < 60_000
        assert abs(offsets["B"] - 2 * HOUR_MS) < 60_000
        assert abs(told["clock_ahead_ms"]) < 60_000, "as node C sees it, whose wall is right"
        cluster.nodes[1].kill()
        start(cluster, 1, -5 * HOUR_MS)
        await ready(cluster)
        after = await write_everywhere(cluster, before)
        assert milliseconds(after) - milliseconds(before) < 600_000
        await level(cluster)
        cluster.stop()
        judge_files(cluster)


async def ask_clock(client: Client, function: str = "transaction_clock") -> int:
    """Return the value of a function of the clock."""
    return int((await client.execute(f"SELECT {function}()", read="stale")).value())


async def write_everywhere(cluster: LocalCluster, last: int) -> int:
    """Let each node commit and tell its clock, which must be later than that of the node before; return the last."""
    for index in range(3):
        async with open_client(cluster.url(index, only=True)) as client:
            await client.execute("INSERT INTO t(c) VALUES (transaction_clock())")
            clock = await ask_clock(client)
            assert clock > last
            last = clock
    return last


@pytest.mark.slow
async def test_node_with_a_clock_too_far_ahead_is_refused_and_named(tmp_path: Path) -> None:
    """The node follows its own wall clock, two hours ahead; the others reject its transactions and go on."""
    stubborn = {1: ["clock_offset_ms=100000000", "conflict_window_ms=100000000"]}
    with shifted(tmp_path / "cluster", 0, 2 * HOUR_MS, 0, more=stubborn) as cluster:
        for index in range(3):
            await cluster.wait_ready(index)

        async def refused() -> bool:
            async with open_client(cluster.url(1, only=True)) as client:
                try:
                    await client.execute("CREATE TABLE IF NOT EXISTS refused(a)", timeout=3)
                except UnavailableError as error:
                    return "the clock of B" in error.message
                except BedrockishError:
                    return False
            return False

        await until("B is told that its clock is refused", refused)
        async with open_client(cluster.url(0)) as client:
            await client.execute("CREATE TABLE t(c INTEGER)")
            await client.execute("INSERT INTO t VALUES (transaction_clock())")
            clock = int((await client.execute("SELECT c FROM t")).value())
            told = await client.status()
        assert abs(told["clock_ahead_ms"]) < 60_000, "A was not dragged along"
        assert milliseconds(clock) <= milliseconds(told["clock"])

        async def shown() -> bool:
            trouble = (await status_of(cluster, 0))["nodes"]["B"]["trouble"]
            return trouble is not None and "ahead of what most voters" in trouble

        await until("A shows what is wrong with B", shown)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_dead_or_paused_voter_does_not_stop_safe_time(cluster: LocalCluster, how: signal.Signals) -> None:
    """Schema changes, strict reads and the feed, which depend on safe time, also go on at each of the other nodes."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as a, open_client(cluster.url(1, only=True)) as b:
        await a.execute("CREATE TABLE before(id INTEGER PRIMARY KEY)")
        await level(cluster)
        send_signal(cluster.nodes[2], how)
        try:
            for number, client in enumerate((a, b)):
                with trio.fail_after(STANDS_S):
                    await client.execute(f"CREATE TABLE after{number}(id INTEGER PRIMARY KEY)")
                    await client.execute(f"INSERT INTO after{number} VALUES (1)")
            for client in (a, b):
                clock = await ask_clock(client)

                async def is_safe(client: Client = client, clock: int = clock) -> bool:
                    return int((await client.execute("SELECT safe_clock()", read="stale")).value()) >= clock

                await until("what came after is safe", is_safe, STANDS_S)
                fed = [one async for one in Changes(client, follow=False)]
                assert {"after0", "after1"} <= {change.table for one in fed for change in one.changes}
                with trio.fail_after(STANDS_S):
                    assert (await client.execute("SELECT count(*) FROM after1", read="strict")).value() == 1
        finally:
            if how == signal.SIGSTOP:
                send_signal(cluster.nodes[2], signal.SIGCONT)


async def test_clock_switched_off_by_an_operator_counts_on_from_its_last_value(cluster: LocalCluster) -> None:
    """Off, the clock counts and everything goes on; the switch holds over a restart; on again, it catches up."""
    await ready(cluster)

    async def turn(to: str) -> None:
        for index in range(3):
            async with open_client(cluster.url(index, only=True)) as client:
                await client.upkeep({"do": "clock", "set": to})

    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, c INTEGER)")
        await turn("off")
        first = await ask_clock(client)
        await trio.sleep(1.5)
        for _ in range(5):
            await client.execute("INSERT INTO t(c) VALUES (transaction_clock())")
        clock = await ask_clock(client)
        assert clock > first
        assert milliseconds(clock) - milliseconds(first) < 1_000, "it only counts"
        written = int((await client.execute("SELECT max(clock) FROM bedrockish_journal")).value())

        async def safe() -> bool:
            return await ask_clock(client, "safe_clock") >= written

        await until("safe time goes on without the wall", safe)
    cluster.nodes[2].kill()
    cluster.nodes[2].start()
    await ready(cluster)
    assert (await status_of(cluster, 2))["cluster_clock"] == "off"
    await turn("on")
    async with open_client(cluster.url(2)) as client:

        async def caught_up() -> bool:
            await client.execute("INSERT INTO t(c) VALUES (transaction_clock())")
            return bool(abs((await client.status())["clock_ahead_ms"]) < 500)

        await until("the clock is with the wall again", caught_up)
        assert await ask_clock(client) > clock
    await level(cluster)
    cluster.stop()
    judge_files(cluster)

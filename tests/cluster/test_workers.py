"""Long work blocks no other: requests, writes, and statements of open transactions."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import SERIALIZABLE, SNAPSHOT
from bedrockish.api.wire import CANCEL, Ask, Told
from bedrockish.client.sansio.core import IN_FLIGHT_MAX
from bedrockish.client.transaction import Transaction
from bedrockish.client.trio_client import Client
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DeadlineError,
    StatementTimeoutError,
    TooLargeError,
)
from tests.cluster.story import PATIENT, judge_files, level, ready, rows, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

STATEMENT_S = 10
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
LONG = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    limits = {"statement_ms_max": 1_000 * STATEMENT_S, "loop_ms_max": 5}
    with LocalCluster(tmp_path_factory.mktemp("workers") / "cluster", settings={"limits": limits}).running() as cluster:
        yield cluster


async def test_long_statements_block_no_other_request(cluster: LocalCluster) -> None:
    """Four statements run for ever at one node while others commit there; each is interrupted, and undone, in time."""
    await ready(cluster)
    ended: list[str] = []
    async with (
        open_client(cluster.url(0, only=True, options=PATIENT)) as client,
        open_client(cluster.url(0, only=True, options=PATIENT)) as other,
    ):
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        await client.execute("INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)")
        other.token = client.token
        read_only = await client.begin()
        assert (await read_only.execute("SELECT n FROM t WHERE id = 1")).value() == 0
        writing = await client.begin()
        await writing.execute("UPDATE t SET n = 2 WHERE id = 2")

        async def run_away(name: str, on: Client | Transaction, sql: str) -> None:
            with pytest.raises(StatementTimeoutError, match=f"longer than {STATEMENT_S} s"):
                await on.execute(sql, timeout=40)
            ended.append(name)

        async def all_run() -> bool:
            return bool((await other.status())["workers"]["running"] == 3)  # and one on its transaction's own snapshot

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_away, "read", client, f"{ENDLESS} SELECT count(*) FROM n")
            nursery.start_soon(run_away, "write", client, f"INSERT INTO t {ENDLESS} SELECT 1000000 - i, 1 FROM n, t")
            nursery.start_soon(run_away, "snapshot", read_only, f"{ENDLESS} SELECT count(*) FROM n")
            nursery.start_soon(run_away, "own writes", writing, f"{ENDLESS} SELECT count(*) FROM n")
            await until("all of them run", all_run)
            for number in range(3):
                await other.execute("UPDATE t SET n = ? WHERE id = 3", [number])
            assert not ended
        assert sorted(ended) == ["own writes", "read", "snapshot", "write"]
        assert (await read_only.execute("SELECT sum(n) FROM t WHERE id < 3")).value() == 0
        await read_only.commit()
        assert (await writing.execute("SELECT n FROM t WHERE id = 2")).value() == 2
        await writing.commit()
        with pytest.raises(DeadlineError, match="was still running"):
            await client.execute(f"{ENDLESS} SELECT count(*) FROM n", timeout=1)
        assert (await client.execute("SELECT * FROM t")).rows == [(1, 0), (2, 2), (3, 2)]
        assert (await client.status())["counts"]["over_budget"] >= 2


@pytest.mark.parametrize("isolation", [SERIALIZABLE, SNAPSHOT])
async def test_transaction_sees_the_writes_of_its_long_statement(cluster: LocalCluster, isolation: str) -> None:
    """The statements are short, long and short. The last runs in the loop again, and sees the writes of both.

    The node may give up the writer in between, depending on its other work; here it has none, and the test repeats
    the case.
    """
    await ready(cluster)
    async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
        await client.execute("CREATE TABLE IF NOT EXISTS seen(id INTEGER PRIMARY KEY, n INTEGER)")
        await client.execute("INSERT OR REPLACE INTO seen VALUES (1, 0), (2, 0)")
        for _ in range(20):
            transaction = await client.begin(isolation=isolation)
            await transaction.execute("UPDATE seen SET n = 1 WHERE id = 1")
            long = await transaction.execute(
                f"UPDATE seen SET n = 2 + ({LONG} SELECT 0 * count(*) FROM n) WHERE id = 2"
            )
            assert long.rowcount == 1
            assert (await transaction.execute("SELECT n FROM seen")).rows == [(1,), (2,)]
            assert (await transaction.execute("UPDATE seen SET n = n + 1 WHERE n = 2")).rowcount == 1
            await transaction.rollback()
            await trio.sleep(0.05)


async def test_long_reads_of_a_client_that_has_gone_leave_their_workers(cluster: LocalCluster) -> None:
    """A killed program's reads must not keep workers for ``statement_ms_max``, or those of its next run would wait."""
    await ready(cluster)
    url = cluster.url(0, only=True, options=PATIENT)
    async with open_client(url) as other:

        async def workers() -> tuple[int, int]:
            found = (await other.status())["workers"]
            return found["running"], found["waiting"]

        async def read(client: Client) -> None:
            with contextlib.suppress(BedrockishError):
                await client.execute(f"{ENDLESS} SELECT count(*) FROM n", timeout=60)

        async def all_wait() -> bool:
            return await workers() == (4, 4)

        async def none_is_left() -> bool:
            return await workers() == (0, 0)

        async with open_client(url) as client, trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(read, client)
            await until("four run and four wait", all_wait)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        await until("the workers are free", none_is_left)
        assert trio.current_time() - began < STATEMENT_S, "otherwise those that waited would run until their time limit"


async def test_rows_of_all_long_statements_count_towards_the_limit_of_their_transaction(cluster: LocalCluster) -> None:
    """If the rows did not count, the node would keep rows without limit, and COMMIT would fail instead of the
    statement.
    """
    await ready(cluster)
    async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
        await client.execute("CREATE TABLE big(id INTEGER PRIMARY KEY, v BLOB)")
        await client.execute("INSERT INTO big VALUES (1, x'')")
        transaction = await client.begin()
        insert = f"INSERT INTO big SELECT ?, zeroblob(12000000 + 0 * ({LONG} SELECT count(*) FROM n))"
        for number in (2, 3):
            assert (await transaction.execute(insert, [number])).rowcount == 1
        with pytest.raises(TooLargeError, match="changes more than"):
            await transaction.execute(insert, [4])
        assert (await transaction.execute("SELECT count(*) FROM big")).value() == 3
        await transaction.commit()
        assert (await client.execute("SELECT sum(length(v)) FROM big")).value() == 24_000_000


async def test_results_of_all_long_statements_count_towards_the_limit_of_their_request(cluster: LocalCluster) -> None:
    """If the results did not count, one request of many statements could take all memory of the node."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
        await client.execute("CREATE TABLE single(id INTEGER PRIMARY KEY, v BLOB)")
        transaction = await client.begin()
        await transaction.execute("INSERT INTO single VALUES (1, x'')")
        select = f"SELECT zeroblob(12000000 + 0 * ({LONG} SELECT count(*) FROM n)) FROM single"
        assert [len(one.value()) for one in await transaction.run([select] * 2)] == [12_000_000] * 2
        with pytest.raises(TooLargeError, match="results take more than"):
            await transaction.run([select] * 3)
        await transaction.commit()
        assert (await client.execute("SELECT count(*) FROM single")).value() == 1


async def test_long_requests_behave_like_short_ones(cluster: LocalCluster) -> None:
    """Rows, ids, triggers and constraints are as for short requests.

    A client that knows several nodes starts a long request at only one of them.
    """
    await ready(cluster)
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE v(id INTEGER PRIMARY KEY, n INTEGER UNIQUE)")
        await client.execute("CREATE TABLE log(id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT)")
        await client.execute("CREATE TRIGGER logs AFTER INSERT ON v BEGIN INSERT INTO log(what) VALUES (new.n); END")
        wanted = f"INSERT INTO v(n) {LONG} SELECT i % 10 FROM n GROUP BY 1"
        for number in range(3):
            results = await client.transact(["DELETE FROM v", wanted, "SELECT count(*), sum(n) FROM v"], timeout=40)
            assert [one.rowcount for one in results[:2]] == [10 if number else 0, 10]
            assert results[2].one() == (10, 45)
        with pytest.raises(ConstraintError, match="UNIQUE"):
            await client.execute(wanted, timeout=40)
        assert (await client.execute("SELECT count(*) FROM log")).value() == 30
        assert (await client.status())["counts"]["worker_runs"] >= 4
        patient = f"{LONG.replace('400000', '12000000')} SELECT count(*) FROM n"
        with pytest.raises(StatementTimeoutError):  # after more than the 2.5 s that the first of several nodes has
            await client.execute(patient.replace("12000000", "1200000000"), timeout=40)
    for index in (1, 2):
        async with open_client(cluster.url(index, only=True, options=PATIENT)) as other:
            assert "worker_runs" not in (await other.status())["counts"]


async def test_long_statements_of_open_transactions_block_no_other_request(cluster: LocalCluster) -> None:
    """Long statements see their transaction's writes and snapshot, write, fail, and lose if a row that they read has
    changed.
    """
    await ready(cluster)
    total = f"{LONG} SELECT sum(w.n) + 0 * max(i) FROM n, w WHERE w.id < 3"
    async with (
        open_client(cluster.url(0, options=PATIENT)) as client,
        open_client(cluster.url(1, options=PATIENT)) as other,
    ):
        await client.execute("CREATE TABLE w(id INTEGER PRIMARY KEY, n INTEGER)")
        await client.execute("CREATE TABLE u(n INTEGER)")
        await client.execute("INSERT INTO w VALUES (1, 10), (2, 20), (3, 0)")
        other.token = client.token
        scale = 400_000
        async with client.transaction() as tx:
            run = partial(tx.execute, timeout=40)
            assert (await run(total)).value() == 30 * scale
            await run("UPDATE w SET n = 11 WHERE id = 1")
            assert (await run(total)).value() == 31 * scale
            await run("SAVEPOINT s")
            assert (await run(f"UPDATE w SET n = ({LONG} SELECT count(*) FROM n) WHERE id = 2")).rowcount == 1
            assert (await run("SELECT n FROM w WHERE id = 2")).value() == scale
            await run("ROLLBACK TO s")
            with pytest.raises(ConstraintError):
                await run(f"INSERT INTO w {LONG} SELECT 3, max(i) FROM n")
            assert (await run(f"INSERT INTO w(n) {LONG} SELECT max(i) FROM n RETURNING n")).value() == scale
            assert (await run("SELECT count(*) FROM w")).value() == 4
        for isolation in ("serializable", SNAPSHOT):
            tx = await client.begin(isolation=isolation)
            assert (await tx.execute(total, timeout=40)).value() == 31 * scale
            await other.execute("UPDATE u SET n = n + 1")  # the transaction has not read it
            await tx.execute(f"UPDATE w SET n = {int(isolation == SNAPSHOT)} WHERE id = 3")
            assert (await tx.execute(total, timeout=40)).value() == 31 * scale
            other.token = client.token
            await other.execute("UPDATE w SET n = 21 WHERE id = 2")  # the transaction has read it
            client.token = other.token
            await client.execute("SELECT 1")
            with pytest.raises(ConflictError):
                await tx.execute(total, timeout=40)
            await other.execute("UPDATE w SET n = 20 WHERE id = 2")
            client.token = other.token
        for _ in range(2):  # the second time the statement is known to be long, and is the first of its transaction
            async with client.transaction() as tx:
                await tx.execute(f"INSERT INTO u {LONG} SELECT max(i) FROM n", timeout=40)
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    assert rows(cluster.nodes[2], "SELECT n FROM w WHERE id = 1") == [(11,)]


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[LocalCluster]:
    """Start a node whose statements end by a cancellation alone."""
    with LocalCluster(tmp_path / "one", ("A",), settings={"limits": {"statement_ms_max": 600_000}}).running() as one:
        yield one


async def test_statements_of_cancelled_calls_end_at_their_node(patient: LocalCluster) -> None:
    """Cancelled calls fill the link's places; another call on it is answered, and nothing has happened."""
    await patient.wait_all_ready()
    endless = f"{ENDLESS} SELECT count(*) FROM n"
    async with open_client(patient.url()) as client, open_client(patient.url()) as other:
        await client.execute("CREATE TABLE t(n)")
        transaction = await client.begin()
        await transaction.execute("INSERT INTO t VALUES (1)")

        async def idle() -> bool:
            workers = (await other.status())["workers"]
            return (workers["running"], workers["waiting"]) == (0, 0)

        async def busy() -> bool:
            return not await idle()

        calls = (
            partial(client.execute, endless),
            partial(client.execute, f"INSERT INTO t {endless}"),
            partial(client.explain, endless),
            partial(transaction.execute, endless),
        )
        for call in calls:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(call, timeout=500))
                await until("it runs", busy)
                nursery.cancel_scope.cancel()
            await until("it has ended", idle)
        with pytest.raises(DeadlineError, match="was cancelled by its caller"):
            await transaction.execute("SELECT 1")
        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT_MAX):
                nursery.start_soon(partial(client.execute, endless, timeout=500))
            await until("they run", busy)
            nursery.cancel_scope.cancel()
        assert (await client.execute("SELECT count(*) FROM t")).value() == 0
        await until("they have ended", idle)


async def test_cancelled_call_stops_no_other_call_of_its_command(patient: LocalCluster) -> None:
    """The node cannot tell which of the two calls its cancellation means."""
    await patient.wait_all_ready()
    async with open_client(patient.url()) as client:
        await client.execute("CREATE TABLE t(n)")
        slow = f"INSERT INTO t {ENDLESS} SELECT count(*) FROM (SELECT i FROM n LIMIT 3000000)"
        insert = partial(client.execute, slow, command="twice", timeout=300)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(insert)
            await trio.sleep(0.1)
            with trio.move_on_after(0.1):
                await insert()
        assert (await client.execute("SELECT count(*) FROM t")).value() == 1


async def test_statement_that_is_stopped_leaves_no_row_locked(patient: LocalCluster) -> None:
    """The transaction ends before the worker's thread does, which may lock a row in that time."""
    await patient.wait_all_ready()
    async with open_client(patient.url()) as client, open_client(patient.url()) as other:
        await client.execute("CREATE TABLE jobs(id INTEGER PRIMARY KEY)")
        await client.execute(f"INSERT INTO jobs {ENDLESS} SELECT i FROM n LIMIT 900")
        lock_all = f"{ENDLESS} SELECT count(*) FROM n WHERE skip_locked('jobs', 1 + i % 900)"
        for _ in range(10):
            transaction = await client.begin()
            await transaction.execute("INSERT INTO jobs VALUES (NULL)")
            with trio.move_on_after(0.05):
                await transaction.execute(lock_all, timeout=10)

        async def free() -> bool:
            async with other.transaction() as reader:
                rows = await reader.execute("SELECT count(*) FROM jobs WHERE id <= 900 AND skip_locked('jobs', id)")
            return bool(rows.value() == 900)

        await until("all rows are free", free)


async def test_malformed_cancellation_keeps_the_link(patient: LocalCluster) -> None:
    await patient.wait_all_ready()
    async with open_client(patient.url()) as client:
        before = (await client.status())["memory"]["taken_bytes"]
        malformed: tuple[dict[str, object], ...] = (
            {"call": [1]},
            {"call": {}, "command": []},
            {"call": "1" * 900_000},
            {},
        )
        for asked in malformed:
            assert isinstance(await client._call(Ask(0, CANCEL, asked=asked), 10.0), Told)
        status = await client.status()
        assert status["internal_errors_recent"] == 0
        assert status["memory"]["taken_bytes"] - before < 500_000, "the node keeps no bytes of the calls"

"""Interactive transactions over three real nodes: statements, many at once, lost nodes and lost answers."""

import json
import signal
import subprocess
from dataclasses import replace

import pytest
import trio

from bedrockish import Connection, connect, open_client
from bedrockish.api.requests import SERIALIZABLE, Request, Statement
from bedrockish.api.wire import BEGIN, COMMIT, ROLLBACK, Step
from bedrockish.client.transaction import Transaction
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DeadlineError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from tests.cluster.story import judge_files, level, ready, rows, send_signal, until
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode

pytestmark = pytest.mark.cluster


async def test_transactions_support_savepoints_batches_schema_changes_and_retries(cluster: LocalCluster) -> None:
    """Own writes, savepoints, failed statements, batches, deferred keys, schema changes, and retries that succeed."""
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE parent(id INTEGER PRIMARY KEY, n INTEGER CHECK(n < 2000))")
            await tx.execute(
                "CREATE TABLE child(id INTEGER PRIMARY KEY, p REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)"
            )
        async with client.transaction() as tx:
            assert await tx.executemany("INSERT INTO parent VALUES (?, ?)", [[n, n] for n in range(1500)]) == 1500
            assert (await tx.execute("SELECT count(*) FROM parent")).value() == 1500
            with pytest.raises(ConstraintError):
                await tx.execute("INSERT INTO parent VALUES (1, 1)")
            with pytest.raises(ConstraintError):
                await _spoil(tx)
            await tx.execute("SAVEPOINT mine")
            await tx.execute("UPDATE parent SET n = 0")
            await tx.execute("ROLLBACK TO mine")
        assert (await client.execute("SELECT count(*), sum(n) FROM parent")).one() == (1500, 1124250)
        tx = await client.begin()
        await tx.execute("INSERT INTO child VALUES (1, 5000)")
        await client.execute("INSERT INTO parent VALUES (1999, 1)")  # swaps the other one out
        with pytest.raises(ConstraintError):
            await tx.commit()
        await tx.execute("INSERT INTO parent VALUES (5000, 1)")
        assert (await tx.commit()).place is not None
        tx = await client.begin()
        await tx.execute("INSERT INTO child VALUES (2, 6000)")
        # A node interrupts a long write, and executes it elsewhere; SQLite then forgets its count of broken keys.
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 400000) SELECT i, 1 FROM n"
        assert (await tx.execute(f"INSERT INTO parent {numbers} WHERE i % 90000 = 0")).rowcount == 4
        with pytest.raises(ConstraintError, match="deferred"):
            await tx.commit()
        await tx.rollback()

        async def add(transaction: Transaction, amount: int) -> int:
            n = (await transaction.execute("SELECT n FROM parent WHERE id = 0")).value()
            await transaction.execute("UPDATE parent SET n = ? WHERE id = 0", [n + amount])
            return int(n)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(client.run_transaction, add, 5)
        assert (await client.execute("SELECT n FROM parent WHERE id = 0")).value() == 40


async def test_statistics_end_no_open_transaction(cluster: LocalCluster) -> None:
    """ANALYZE at another node; the transactions are at a node, by URL and by the path of its file."""
    await ready(cluster)
    async with open_client(cluster.url(1)) as client:
        await client.transact(["CREATE TABLE t(id INTEGER PRIMARY KEY, n)", "INSERT INTO t VALUES (1, 0), (2, 0)"])
    await level(cluster)

    def add() -> None:
        with (
            connect(cluster.url(0)) as one,
            connect(str(cluster.nodes[0].database)) as two,
            connect(cluster.url(1)) as other,
        ):
            for analyze, n in (("ANALYZE", 1), ("PRAGMA optimize", 2)):
                with one.transaction() as by_url, two.transaction() as by_path:
                    for row, tx in ((1, by_url), (2, by_path)):
                        assert tx.execute("UPDATE t SET n = n + 1 WHERE id = ? RETURNING n", [row]).value() == n
                    other.execute(analyze)
                    by_url.execute("INSERT INTO t VALUES (?, 0)", [10 * n])
                    by_path.execute("INSERT INTO t VALUES (?, 0)", [10 * n + 1])

    await trio.to_thread.run_sync(add)
    async with open_client(cluster.url(2)) as client:
        assert (await client.execute("SELECT count(*) FROM bedrockish_schema")).value() == 2
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        assert rows(node, "SELECT id, n FROM t ORDER BY id") == [(1, 2), (2, 2), (10, 0), (11, 0), (20, 0), (21, 0)]


async def test_begin_is_sent_with_the_first_statement(cluster: LocalCluster) -> None:
    """A node learns of a transaction with its first statement; the transaction is open even if this statement fails."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        await client.execute("CREATE TABLE one(id INTEGER PRIMARY KEY)")
        await client.execute("INSERT INTO one VALUES (1)")

        async def is_open(tx: Transaction) -> bool:
            assert tx.command
            return bool((await client.upkeep({"do": "transactions"}))["open"])

        async with client.transaction() as tx:
            assert not await is_open(tx)
        tx = await client.begin()
        with pytest.raises(ConstraintError):
            await tx.execute("INSERT INTO one VALUES (1)")
        assert tx.is_open
        assert await is_open(tx)
        await tx.execute("INSERT INTO one VALUES (2)")
        assert (await tx.commit()).place is not None
        tx = await client.begin()
        with pytest.raises(UsageError):
            await tx.execute("SELECT nothing FROM nowhere")
        await tx.rollback()
        assert not await is_open(tx)
        tx = await client.begin()
        with trio.move_on_after(0.2) as scope:
            await tx.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
        assert scope.cancelled_caught
        with pytest.raises(BedrockishError, match="cancelled"):
            await tx.execute("SELECT 1")
        await tx.rollback()

        async def is_over() -> bool:
            return not await is_open(tx)

        await until("it is rolled back", is_over)
        assert (await client.execute("SELECT count(*) FROM one")).value() == 2


async def test_each_statement_of_a_transaction_has_its_own_timeout(cluster: LocalCluster) -> None:
    """The short time limit of the first statement, which carries BEGIN, does not apply to the later ones."""
    await ready(cluster)
    counted = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT max(i) FROM n)"
    async with open_client(cluster.url(0, only=True)) as client:
        await client.execute("CREATE TABLE one(id INTEGER PRIMARY KEY)")
        async with client.transaction() as tx:
            await tx.execute("INSERT INTO one VALUES (1)", timeout=3)
            await trio.sleep(3)
            await tx.execute(f"INSERT INTO one SELECT {counted.format(10_000_000)}", timeout=60)
        tx = await client.begin(timeout=60)
        await tx.execute("INSERT INTO one VALUES (2)")
        with pytest.raises(DeadlineError):
            await tx.execute(f"INSERT INTO one SELECT {counted.format(4_000_000_000)}", timeout=0.5)
        await tx.rollback()
        assert (await client.execute("SELECT id FROM one ORDER BY id")).rows == [(1,), (10_000_000,)]


async def _spoil(tx: Transaction) -> None:
    async with tx.savepoint():
        await tx.execute("DELETE FROM parent WHERE id > 2")
        await tx.execute("INSERT INTO parent VALUES (1, 1)")


async def test_commits_go_on_beside_two_hundred_open_transactions(cluster: LocalCluster) -> None:
    """Each transaction sees its own snapshot while others commit; those that then write unshared rows commit."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client, open_client(cluster.url(1, only=True)) as other:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        async with client.transaction() as tx:
            await tx.executemany("INSERT INTO t VALUES (?, 0)", [[n] for n in range(201)])
        other.token = client.token
        opened: list[Transaction] = []
        for _ in range(200):
            opened.append(await client.begin())
        for tx in opened:
            assert (await tx.execute("SELECT count(*), sum(n) FROM t WHERE id = 200")).one() == (1, 0)
        for n in range(1, 101):
            await other.execute("UPDATE t SET n = ? WHERE id = 200", [n])
        for place, tx in enumerate(opened):
            assert (await tx.execute("SELECT n FROM t WHERE id = 200")).value() == 0
            if place % 2:
                with pytest.raises(ConflictError):
                    await tx.execute("UPDATE t SET n = 1 WHERE id = ?", [place])
        for tx in opened:
            if tx.is_open:
                await tx.commit()
            await tx.rollback()

        async def mark(place: int) -> None:
            async with client.transaction() as one:
                await one.execute("UPDATE t SET n = n + 1 WHERE id = ?", [place])
                await one.execute("UPDATE t SET n = n + 1 WHERE id = ?", [place])

        async with trio.open_nursery() as nursery:
            for place in range(200):
                nursery.start_soon(mark, place)
        assert (await client.execute("SELECT sum(n) FROM t WHERE id < 200")).value() == 400
        assert (await client.status())["open_transactions"] == 0


async def test_open_transactions_end_with_their_node(cluster: LocalCluster) -> None:
    """The client gets a typed error that allows a retry; run_transaction retries at another node."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        tx = await client.begin()
        await tx.execute("INSERT INTO t VALUES (1, 1)")
        runs = 0

        async def insert(transaction: Transaction) -> None:
            nonlocal runs
            runs += 1
            await transaction.execute("INSERT INTO t VALUES (2, 2)")
            if runs == 1:
                cluster.nodes[0].kill()

        await client.run_transaction(insert, timeout=30)
        assert runs == 2
        with pytest.raises(UnavailableError, match="did not happen") as caught:
            await tx.execute("SELECT 1")
        assert caught.value.retry
        assert (await client.execute("SELECT id FROM t", read="strict")).rows == [(2,)]
    cluster.nodes[0].start()
    await cluster.wait_ready(0)
    await level(cluster)
    cluster.stop()
    judge_files(cluster)


async def test_lost_answer_of_commit_is_settled(cluster: LocalCluster) -> None:
    """The node is killed or paused around COMMIT: the client reports the true outcome, and the files agree."""
    await ready(cluster)
    happened: dict[int, bool] = {}
    async with open_client(cluster.url(1)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        token = client.token

    async def commit(number: int, begun: list[int], all_begun: trio.Event, after_s: float) -> None:
        async with open_client(cluster.url(0), token=token) as client:
            tx = await client.begin(timeout=20)
            await tx.execute("INSERT INTO t VALUES (?)", [number])
            begun.remove(number)
            if not begun:
                all_begun.set()
            await all_begun.wait()
            await trio.sleep(after_s)
            try:
                await tx.commit()
                happened[number] = True
            except OutcomeUnknownError:
                happened[number] = await client.settle(tx.command, timeout=30)
            except (ConflictError, UnavailableError):
                happened[number] = False
            assert await client.settle(tx.command, timeout=30) is happened[number]

    # milliseconds between the COMMIT and the disturbance; several commits if the pause is long
    for numbers, disturb in (([0], _kill), ([2], _kill), ([4], _kill), ([1, 3, 5], _stand_still)):
        begun, all_begun = list(numbers), trio.Event()
        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(commit, number, begun, all_begun, 0.001 * (numbers[-1] - number))
            await all_begun.wait()
            await trio.sleep(0.001 * numbers[-1])
            await disturb(cluster.nodes[0])
        if not cluster.nodes[0].is_running:
            cluster.nodes[0].start()
        await cluster.wait_ready(0)
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    assert [row[0] for row in rows(cluster.nodes[2], "SELECT id FROM t")] == [n for n in range(6) if happened[n]]


async def _kill(node: LocalNode) -> None:
    node.kill()


async def _stand_still(node: LocalNode) -> None:
    """Stop a node for longer than a client waits."""
    send_signal(node, signal.SIGSTOP)
    await trio.sleep(6)
    send_signal(node, signal.SIGCONT)


async def test_blocking_connection_takes_transactions_in_sql(cluster: LocalCluster) -> None:
    """The blocking client takes BEGIN, COMMIT, ROLLBACK and savepoints as SQLite does, and has each trio method."""
    await ready(cluster)
    await trio.to_thread.run_sync(_use_connection, cluster)


def _use_connection(cluster: LocalCluster) -> None:
    with connect(cluster.url()) as db, connect(cluster.url(1)) as other:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        db.execute("BEGIN IMMEDIATE")
        assert db.in_transaction
        db.execute("INSERT INTO t VALUES (1, 1)")
        db.execute("SAVEPOINT a")
        db.transact(["INSERT INTO t VALUES (2, 2)", "INSERT INTO t VALUES (3, 3)"])
        db.execute("ROLLBACK TO a")
        assert db.execute("SELECT id FROM t").rows == [(1,)]
        assert other.execute("SELECT count(*) FROM t", read="strict").value() == 0
        assert db.execute("COMMIT").place is not None
        assert not db.in_transaction
        other.token = db.token
        db.execute("BEGIN")
        db.execute("UPDATE t SET n = 5 WHERE id = 1")
        other.execute("UPDATE t SET n = 6 WHERE id = 1")
        with connect(cluster.url()) as third:
            third.token = other.token
            assert third.execute("SELECT n FROM t WHERE id = 1").value() == 6  # the first node has the transaction, too
        for _ in range(2):  # it is lost, and says so until it is rolled back
            with pytest.raises(ConflictError):
                db.execute("SELECT n FROM t WHERE id = 1")
        db.execute("ROLLBACK")
        for sql in ("COMMIT", "ROLLBACK"):
            with pytest.raises(UsageError, match="BEGIN first"):
                db.execute(sql)
        with pytest.raises(ConstraintError):
            _collide(db)
        with db.transaction() as tx:
            assert tx.executemany("INSERT INTO t VALUES (?, ?)", [(n, n) for n in range(10, 15)]) == 5
        assert other.settle(tx.command)
        assert db.run_transaction(lambda tx: tx.execute("SELECT count(*) FROM t").value()) == 6


def _collide(db: Connection) -> None:
    with db.transaction() as tx:
        tx.execute("INSERT INTO t VALUES (7, 7)")
        tx.execute("INSERT OR ROLLBACK INTO t VALUES (1, 1)")


async def configure(cluster: LocalCluster, section: str, **settings: int) -> None:
    """Start the first node again with further settings."""
    await ready(cluster)
    node = cluster.nodes[0]
    with node.config.open("a") as config:
        config.write("\n".join(["", f"[{section}]", *(f"{name} = {value}" for name, value in settings.items()), ""]))
    node.kill()
    node.start()
    await cluster.wait_ready(0)


async def test_idle_and_excess_transactions_are_ended_or_refused(cluster: LocalCluster) -> None:
    """With limits of five seconds and three transactions: typed errors that say what to do."""
    await configure(cluster, "limits", idle_transaction_ms=5000, open_transactions_max=3)
    async with open_client(cluster.url(0, only=True)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        opened = [await client.begin() for _ in range(3)]
        for one in opened:
            await one.execute("SELECT * FROM t")
        await opened[0].execute("INSERT INTO t VALUES (1)")
        with pytest.raises(UnavailableError, match="limit"):
            await (await client.begin(timeout=1)).execute("SELECT * FROM t")

        async def ended() -> bool:
            return bool((await client.status())["open_transactions"] == 0)

        await until("idle transactions are ended", ended)
        with pytest.raises(DeadlineError, match=r"idle for 5 s; .* commit before a pause"):
            await opened[0].commit()
        async with client.transaction() as tx:
            await tx.execute("INSERT INTO t VALUES (1)")


async def test_transaction_that_is_busy_for_too_long_names_the_setting(cluster: LocalCluster) -> None:
    await configure(cluster, "timings", conflict_window_ms=4000)
    async with open_client(cluster.url(0, only=True)) as client:
        opened = await client.begin()

        async def use_for_a_minute() -> None:
            for _ in range(600):
                await opened.execute("SELECT 1")
                await trio.sleep(0.1)

        with pytest.raises(DeadlineError, match=r"open for 4 s; .* raise conflict_window_ms at all nodes"):
            await use_for_a_minute()


async def test_open_transaction_ends_with_its_clients_link(cluster: LocalCluster) -> None:
    """The client's transactions end with its link, and no node has their rows."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        tx = await client.begin(isolation=SERIALIZABLE)
        await tx.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(BedrockishError):
        await tx.commit()
    async with open_client(cluster.url(0, only=True)) as client:
        assert (await client.execute("SELECT count(*) FROM t")).value() == 0
        assert not await client.settle(tx.command)
        await client.execute("INSERT INTO t VALUES (1)")


async def test_a_begin_whose_answer_was_lost_is_sent_again_to_the_same_node(cluster: LocalCluster) -> None:
    """The node may have opened the transaction already, for a lost link; no client has used it."""
    await ready(cluster)
    url = cluster.url(0, only=True)
    async with open_client(url) as client:
        await client.execute("CREATE TABLE note(text TEXT)")
        async with open_client(url) as lost:
            first = await lost.begin()
            await first.execute("SELECT 1")
            request = Request(first.command, (), timeout_s=10.0)

            async def step(op: str, *sql: str) -> None:
                statements = tuple(Statement(each) for each in sql)
                await client._call(Step(0, replace(request, statements=statements), op), 10.0)

            await step(BEGIN, "INSERT INTO note VALUES ('twice')")  # the first link is still alive
            with pytest.raises(UnavailableError):
                await first.execute("SELECT 1")
        await step(ROLLBACK)
        await step(BEGIN, "INSERT INTO note VALUES ('once')")  # both links have ended
        await step(COMMIT)
        assert (await client.execute("SELECT text FROM note")).rows == [("once",)]
        with pytest.raises(UsageError, match="before"):
            await step(BEGIN, "SELECT 1")


async def test_rollback_of_a_lost_transaction_ends_its_block_without_an_error(cluster: LocalCluster) -> None:
    """The node has ended the transaction, and does not know the ROLLBACK of the client any more."""
    async with open_client(cluster.url(0)) as client, open_client(cluster.url(0)) as other:
        await client.transact(["CREATE TABLE lost(id INTEGER PRIMARY KEY, n)", "INSERT INTO lost VALUES (1, 0)"])
        other.token = client.token
        async with client.transaction() as tx:
            await tx.execute("SELECT n FROM lost")
            await other.execute("UPDATE lost SET n = 1")
            with pytest.raises(ConflictError):
                await tx.execute("UPDATE lost SET n = 2")
            await tx.rollback()
        assert (await client.execute("SELECT n FROM lost", read="strict")).value() == 1


async def test_operator_lists_and_ends_an_open_transaction(cluster: LocalCluster) -> None:
    """The client of the ended transaction gets an error that it did not happen, and none of its rows stays."""
    await ready(cluster)

    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await trio.to_thread.run_sync(program, "transactions", cluster.url(), *arguments)

    async with open_client(cluster.url(1, only=True)) as client:
        await client.execute("CREATE TABLE held(id INTEGER PRIMARY KEY)")
        none = await run("--json")
        assert (none.stdout, none.stderr) == ("[]\n", "no transaction is open\n")
        tx = await client.begin()
        await tx.execute("INSERT INTO held VALUES (1)")
        [row] = json.loads((await run("--json")).stdout)
        command = row["command"]
        assert (row["node"], row["changed"], row["statement"]) == ("B", 1, "INSERT INTO held VALUES (1)")
        assert "name the node" in (await run("--end", command)).stderr
        assert "has no open transaction" in (await run("--end", command, "--node", "A")).stderr
        assert (await run("--end", command, "--node", "B")).returncode == 0
        with pytest.raises(UnavailableError, match="an operator has ended the transaction; it did not happen"):
            await tx.commit()
        assert (await client.execute("SELECT count(*) FROM held", read="strict")).value() == 0

"""Schema changes are built next to their table at three nodes that are written to, and killed."""

import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError, ConstraintError
from bedrockish_journal.model.clock import milliseconds
from tests.cluster.story import PATIENT, insist, judge_files, level, ready, rows, send_signal, until
from tests.engine.virtual_pair import check_virtual
from tools.cluster import LocalCluster, LocalNode

pytestmark = pytest.mark.cluster

DELAY_MS = 4_000  # from the decision until the change comes into force, as for the index of a large table
ROWS = 20_000
MANY = 200_000
ENDS_S = 60.0  # longer than any stop takes; the log shows whether the node has waited for a build
LEFT = {".sqlite-node", ".toml", ".log", ".sqlite", ".lock"}  # the suffixes of the files of a stopped node
FILL = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) INSERT INTO t "
SWAP = (  # both or none; SQLite evaluates expressions that do not depend on the row once
    "UPDATE t SET code = (SELECT sum(code) FROM t WHERE id IN (?1, ?2)) - code "
    "WHERE id IN (?1, ?2) AND (SELECT count(code) FROM t WHERE id IN (?1, ?2)) = 2"
)


@pytest.fixture
def slow(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    timings = {"schema_delay_ms": getattr(request, "param", DELAY_MS)}
    with LocalCluster(tmp_path / "cluster", settings={"timings": timings}).running() as cluster:
        yield cluster


class Work:
    """Clients that write all over the table until the block ends."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster, self.stopping, self.done = cluster, False, 0

    async def write(self, number: int) -> None:
        luck = random.Random(number)
        async with open_client(self.cluster.url(number, options=PATIENT)) as client:
            while not self.stopping:
                one, other = luck.sample(range(1, ROWS + 1), 2)
                sql, values = luck.choice(
                    [
                        ("UPDATE t SET n = ?, r = r + 1 WHERE id BETWEEN ? AND ? + 5", [luck.randrange(99), one, one]),
                        ("UPDATE t SET v = NULL WHERE id = ?", [one]),
                        ("DELETE FROM t WHERE id = ?", [one]),
                        ("INSERT OR IGNORE INTO t(id, code, v, r, n) VALUES (?, NULL, 'New', 2, ?)", [one, one % 97]),
                        (SWAP, [one, other]),
                    ]
                )
                try:
                    await client.execute(sql, values)
                    self.done += 1
                except BedrockishError:  # the node was killed
                    await trio.sleep(0.05)
                await trio.sleep(0.01)


async def activates_in_s(cluster: LocalCluster, index: int) -> float:
    """Wait until a change is scheduled at a node; return how long it is until it comes into force."""
    found: list[float] = []

    async def scheduled() -> bool:
        async with open_client(cluster.url(index, only=True)) as client:
            query = "SELECT activates FROM bedrockish_schema WHERE state = 'scheduled'"
            for (clock,) in (await client.execute(query, read="stale")).rows:
                found.append(milliseconds(clock) / 1000 - time.time())
        return bool(found)

    await until("a change is scheduled", scheduled)
    return found[0]


def was_built_beside(node: LocalNode, title: str) -> bool:
    return f"{title} was built next to its table" in node.log.read_text()


Change = tuple[str, str]  # a statement, and the log's name for the object that it creates


CHANGES = {
    "index": (
        "CREATE INDEX by_v ON t(v, r DESC, n) WHERE n < 90",
        "CREATE UNIQUE INDEX by_code ON t(code)",
        ("t INDEXED BY by_v WHERE n < 90", "n < 90"),
    ),
    "search": (
        "CREATE VIRTUAL TABLE by_v USING fts5(v, n, content='t', content_rowid='id')",
        "CREATE VIRTUAL TABLE by_code USING fts5(v, code, content=t, content_rowid=id, tokenize=porter)",
        ("by_v('v : row')", "v LIKE 'row %'"),
    ),
}
"""Two changes, and what finds some rows by the first one and without it."""


async def make_and_kill(
    cluster: LocalCluster, run: Callable[[str], Awaitable[object]], first: Change, second: Change
) -> None:
    """Make two changes of the schema; a node dies while the first one is built, and when the second comes into force.

    Depending on the moment the first is built again or comes into force late; the second is in force before or right
    after the restart.
    """
    one, two, three = cluster.nodes
    async with trio.open_nursery() as change:
        change.start_soon(run, first[0])
        await activates_in_s(cluster, 2)
        await trio.sleep(0.3)
        three.kill()
        three.start()
    await ready(cluster)
    assert was_built_beside(one, first[1])
    assert was_built_beside(two, first[1])
    async with trio.open_nursery() as change:
        change.start_soon(run, second[0])
        await trio.sleep(max(0.0, await activates_in_s(cluster, 1)))
        two.kill()
        two.start()
    await ready(cluster)
    assert was_built_beside(one, second[1])
    assert was_built_beside(three, second[1])


def is_sound(node: LocalNode) -> bool:
    """Return whether SQLite finds no fault, indexes included, and no table of the build is left."""
    db = apsw.Connection(str(node.database))
    left = db.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'bedrockish_b[au]*'").fetchall()
    found = db.execute("PRAGMA integrity_check").fetchall()
    db.close()
    return (found, left) == ([("ok",)], [])


@pytest.mark.parametrize("kind", CHANGES)
async def test_index_build_survives_kills_of_nodes(slow: LocalCluster, kind: str) -> None:
    cluster, (first, second, all_of_it) = slow, CHANGES[kind]
    await ready(cluster)
    async with open_client(cluster.url(0, options=PATIENT)) as client:
        columns = "id INTEGER PRIMARY KEY, code INTEGER, v TEXT COLLATE NOCASE, r REAL, n INTEGER"
        await client.transact([f"CREATE TABLE t({columns})"])
        await client.execute(f"{FILL} SELECT i, i, 'row ' || i, i / 2, i % 97 FROM k", [ROWS], timeout=60)
        work = Work(cluster)
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(work.write, number)
            await make_and_kill(cluster, client.execute, (first, "index by_v"), (second, "index by_code"))
            if "UNIQUE" in second:
                with pytest.raises(ConstraintError):
                    await client.execute("INSERT INTO t(code, n) VALUES (77000, 1), (77000, 2)")
            work.stopping = True
        assert work.done > 50
        found = await client.execute(f"SELECT count(*) FROM {all_of_it[0]}")
        assert found.rows == (await client.execute(f"SELECT count(*) FROM t NOT INDEXED WHERE {all_of_it[1]}")).rows
        assert found.value() > 1_000
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        assert is_sound(node), node.name
        with closing(apsw.Connection(str(node.database))) as db:
            check_virtual(db)
    told = [rows(node, "SELECT name, sql FROM sqlite_schema WHERE name GLOB 'by_*'") for node in slow.nodes]
    assert told[0] == told[1] == told[2] != []


async def test_nodes_stop_at_once_during_an_index_build(slow: LocalCluster) -> None:
    """The node that received the change and another one end at once, and build again later.

    The client gets the answer.
    """
    cluster = slow
    one, _, three = cluster.nodes
    await ready(cluster)
    async with open_client(cluster.url(1, options=PATIENT)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, n INTEGER, x INTEGER)")
        # Large enough that the building takes a while, also on a fast machine.
        fill = f"{FILL} SELECT ?2 + i, 'row ' || i, i % 97, i FROM k"
        for first in range(0, MANY, 5 * ROWS):
            await client.execute(fill, [5 * ROWS, first], timeout=60)
        await level(cluster)
        async with trio.open_nursery() as change:
            change.start_soon(insist, cluster.url(0, options=PATIENT), "CREATE INDEX by_v ON t(v, n)", [], "change")
            await activates_in_s(cluster, 1)
            for node in (one, three):
                send_signal(node, signal.SIGTERM)
            for node in (one, three):
                assert node.process is not None
                assert await trio.to_thread.run_sync(node.process.wait, ENDS_S) == 0, node.last_words()
                # The node that received the change may complete it, because a graceful stop answers its clients first.
                assert node is one or not was_built_beside(node, ""), "it was too late to see anything"
                assert {path.suffix for path in node.directory.glob(f"{node.name}.*")} == LEFT
                node.start()
        await ready(cluster)
        await client.execute("CREATE INDEX next ON t(n)")
        assert (await client.execute("SELECT count(*) FROM t INDEXED BY next")).value() == MANY
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    told = [rows(node, "SELECT name, sql FROM sqlite_schema WHERE tbl_name = 't'") for node in cluster.nodes]
    assert told[0] == told[1] == told[2]
    for node in cluster.nodes:
        assert is_sound(node), node.name
        assert "damaged" not in node.log.read_text()


@pytest.mark.parametrize("slow", [2 * DELAY_MS], indirect=True)  # the duplicate comes in time on a busy machine, too
async def test_duplicate_during_an_index_build_fails_the_schema_change(slow: LocalCluster) -> None:
    cluster = slow
    await ready(cluster)
    async with open_client(cluster.url(0, options=PATIENT)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, code INTEGER)")
        await client.execute(f"{FILL} SELECT i, i FROM k", [ROWS], timeout=60)

        async def change() -> None:
            with pytest.raises(ConstraintError, match=r"UNIQUE constraint failed: t\.code"):
                await client.execute("CREATE UNIQUE INDEX by_code ON t(code)")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            await activates_in_s(cluster, 1)
            await trio.sleep(1)
            async with open_client(cluster.url(1, only=True)) as other:
                await other.execute("UPDATE t SET code = 5 WHERE id = 7")
        states = await client.execute("SELECT state FROM bedrockish_schema ORDER BY version")
        assert states.rows[-1] == ("failed",)
        await client.execute("UPDATE t SET code = 7 WHERE id = 7")
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        assert is_sound(node), node.name

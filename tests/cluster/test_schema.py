"""Schema changes while three nodes read and write, with wall clocks that are wrong, and with a node that dies."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, ConstraintError, SqlError
from bedrockish_journal.verify.replay import replay
from tests.cluster.schema_load import Load, change, offset_walls
from tests.cluster.story import insist, judge_copy, judge_files, level, ready, rows, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

CHANGES = 16


@pytest.fixture
def skewed(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.write_files()
    offset_walls(cluster, [0, 1_500, -1_500])
    try:
        for node in cluster.nodes:
            node.start()
        yield cluster
    finally:
        cluster.stop()


async def test_schema_changes_fail_no_client(skewed: LocalCluster, tmp_path: Path) -> None:
    """Clients write at all nodes; after the answer to a change every node shows it; all histories are equal."""
    cluster = skewed
    await ready(cluster)
    load = Load(cluster)
    await load.prepare()
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(load.write, number)
        await change(cluster, CHANGES)
        load.stopping = True
    assert load.failures == []
    await _seen_everywhere(cluster)
    await _one_of_two_wins(cluster)
    await _history_and_dry_runs(cluster)
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    history = [rows(node, "SELECT * FROM bedrockish_schema ORDER BY version") for node in cluster.nodes]
    assert history[0] == history[1] == history[2]
    assert [row[0] for row in history[0]] == list(range(1, len(history[0]) + 1))
    assert {row[4] for row in history[0]} == {"active"}
    moments = [row[3] for row in history[0]]
    assert moments == sorted(moments)
    paths = [node.database for node in cluster.nodes]
    for seed in range(3):
        replay(paths, tmp_path / f"{seed}.sqlite", draw=Random(seed).random)
        judge_copy(tmp_path / f"{seed}.sqlite", paths[0])


async def _seen_everywhere(cluster: LocalCluster) -> None:
    """Check that the client that changed the schema can use the change at once, at another node."""
    async with open_client(cluster.url(0, only=True)) as client:
        await client.execute("CREATE TABLE latest(x)")
        token = client.token
    for index in (1, 2):
        async with open_client(cluster.url(index, only=True)) as client:
            client.token = token
            await client.execute("INSERT INTO latest VALUES (?)", [index])


async def _one_of_two_wins(cluster: LocalCluster) -> None:
    """Check that one of two changes that exclude each other commits, and that the other gets the reason."""
    ends: list[str] = []

    async def create(index: int) -> None:
        async with open_client(cluster.url(index, only=True)) as client:
            try:
                await client.execute(f"CREATE TABLE twice(made_at_{index})")
                ends.append("made")
            except SqlError as error:
                ends.append(error.message)

    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(create, index)
    assert sorted(ends) == ["made", "table twice already exists", "table twice already exists"]


HISTORY = "SELECT version, activates, statements FROM bedrockish_schema ORDER BY version"


async def _history_and_dry_runs(cluster: LocalCluster) -> None:
    """Check that every node has the same history, without the schema change that was rolled back."""
    told = []
    for index in range(3):
        async with open_client(cluster.url(index, only=True)) as client:
            told.append((await client.execute(HISTORY)).rows)
            await client.execute("INSERT INTO account VALUES (?, 0, '')", [1_000 + index])
    assert [version for version, *_ in told[0]] == list(range(1, len(told[0]) + 1))
    assert all(earlier < later for (_, earlier, _), (_, later, _) in itertools.pairwise(told[2]))
    async with open_client(cluster.url(1, only=True)) as client:
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE thrice(x)")
            await tx.rollback()
        opened = await client.begin()
        with pytest.raises(ConstraintError, match=r"UNIQUE constraint failed: account\.note"):
            await opened.execute("CREATE UNIQUE INDEX one_note ON account(note)")
        await opened.rollback()
        assert (await client.execute(HISTORY)).rows == told[1]
    assert any("CREATE TABLE latest(x)" in statements for _, _, statements in told[1])


async def test_schema_change_of_a_killed_leader_is_in_force_everywhere_or_nowhere(cluster: LocalCluster) -> None:
    """Either every node or none has the change; later statements succeed."""
    await ready(cluster)
    async with open_client(cluster.url(1)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")

    async def alter(client: Client) -> None:
        with contextlib.suppress(BedrockishError):  # the node died; the client asks by the id
            await client.execute("ALTER TABLE t ADD COLUMN c0", command="alter-0", timeout=2)

    # Connect before the kill; otherwise, on a busy machine, the node may die before it receives a request.
    async with open_client(cluster.url(0, only=True)) as client, trio.open_nursery() as nursery:
        nursery.start_soon(alter, client)
        await trio.sleep(0.04)
        cluster.nodes[0].kill()
    await insist(cluster.url(1), "ALTER TABLE t ADD COLUMN c0", [], "alter-0")

    async def is_in_force() -> bool:
        async with open_client(cluster.url(2, only=True)) as client:
            return bool((await client.execute("SELECT count(*) FROM pragma_table_info('t')")).value() == 3)

    await until("the change is in force at C", is_in_force)
    await insist(cluster.url(2), "INSERT INTO t(n, c0) VALUES (1, 2)", [], "insert-0")
    cluster.nodes[0].start()
    await ready(cluster)
    await insist(cluster.url(0), "ALTER TABLE t ADD COLUMN c1", [], "alter-1")
    async with open_client(cluster.url(0)) as client:
        await client.execute("INSERT INTO t(n) VALUES (1), (1)")
        with pytest.raises(ConstraintError):
            await client.execute("CREATE UNIQUE INDEX one_n ON t(n)")
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    assert rows(cluster.nodes[0], "SELECT n, c0 FROM t ORDER BY id LIMIT 1") == [(1, 2)]


async def test_strict_read_at_another_node_sees_the_rows_of_a_schema_change(cluster: LocalCluster) -> None:
    """The other node may have activated the change while its durable state has the entry and still lacks the rows."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as writer, open_client(cluster.url(1, only=True)) as reader:
        await writer.execute("CREATE TABLE counted(id INTEGER PRIMARY KEY, a)")
        for number in range(40):
            await writer.transact([f"CREATE INDEX counted_{number} ON counted(a)", "INSERT INTO counted(a) VALUES (1)"])
            found = await reader.execute("SELECT count(*) FROM counted", read="strict")
            assert found.value() == number + 1

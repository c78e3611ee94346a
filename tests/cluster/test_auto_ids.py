"""Three nodes insert rows without ids at once: ids are unique, no row is lost, and few statements run twice."""

import pytest
import trio
from click.testing import CliRunner

from bedrockish import open_client
from bedrockish.cli.main import main
from tests.cluster.story import judge_files, level, ready, rows
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

CLIENTS, EACH = 12, 15
TABLES = (
    "CREATE TABLE plain(id INTEGER PRIMARY KEY, who TEXT)",
    "CREATE TABLE counted(id INTEGER PRIMARY KEY AUTOINCREMENT, who TEXT)",
    "CREATE TABLE hidden(who TEXT)",
)
TEXTS = (
    "INSERT INTO plain(who) VALUES (?) RETURNING id",
    "INSERT INTO counted VALUES (NULL, ?) RETURNING id",
    "INSERT INTO hidden SELECT ? RETURNING rowid",
)


async def test_inserts_without_ids_do_not_conflict(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        for text in TABLES:
            await client.execute(text)
    given: dict[str, list[int]] = {text: [] for text in TEXTS}
    attempts = 0

    async def insert(number: int) -> None:
        nonlocal attempts
        async with open_client(cluster.url(number % len(cluster.nodes))) as client:
            for count in range(EACH):
                text = TEXTS[count % len(TEXTS)]
                found = await client.execute(text, [f"{number}-{count}"], timeout=30)
                assert found.lastrowid == found.value()
                given[text].append(found.value())
                attempts += found.attempts

    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(insert, number)

    for ids in given.values():
        assert len(set(ids)) == len(ids) == CLIENTS * EACH // len(TEXTS)
    assert attempts < CLIENTS * EACH * 1.05
    await level(cluster)
    runner = CliRunner()
    told = await trio.to_thread.run_sync(
        runner.invoke, main, ["explain", cluster.url(1), TEXTS[0], "--param", "somebody"]
    )
    cluster.stop()
    judge_files(cluster)
    for table, text in zip(("plain", "counted", "hidden"), TEXTS, strict=True):
        kept = rows(cluster.nodes[1], f"SELECT rowid FROM {table} ORDER BY 1")
        assert [rowid for (rowid,) in kept] == sorted(given[text])
    assert "given by the node" in told.output
    assert "table plain" in told.output

"""Journals are pruned while nodes run: entries in use stay, and late readers get an error."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, CommandIdError, ForgottenError, PrunedError, UsageError
from bedrockish.transfer.load_database import commands_done
from bedrockish_journal.feed.change_feed import Committed
from bedrockish_journal.storage.pruning import marks
from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.verify import verify
from tests.cluster.story import judge_files, level, ready, status_of, until
from tests.cluster.test_members import newcomer
from tests.forked import program
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that keep little for the protocol's own sake."""
    with LocalCluster(tmp_path / "cluster", settings={"timings": {"conflict_window_ms": 1_000}}).running() as cluster:
        yield cluster


async def write(client: Client, first: int, count: int) -> None:
    for number in range(first, first + count):
        await client.execute("INSERT INTO t VALUES (?)", [number])


async def read(client: Client, after: str | None = None, **options: Any) -> list[Committed]:
    return [one async for one in Changes(client, after, follow=False, **options)]


async def all_safe(client: Client, count: int) -> list[Committed]:
    """Wait until the feed has so many transactions, and return them."""
    found: list[Committed] = []

    async def there() -> bool:
        found[:] = await read(client)
        return len(found) >= count

    await until("the feed has everything", there)
    return found


async def removable(client: Client) -> None:
    """Wait until the protocol itself no longer needs any present entry."""
    last = int((await client.execute("SELECT max(clock) FROM bedrockish_journal")).value())

    async def old() -> bool:
        return bool((await client.status())["safe"] - (2_000 << 22) > last)

    await until("what was written is old", old)


def tells_who_is_away(cluster: LocalCluster) -> None:
    """Check that commands that ask all nodes print the reason of a missing answer on stderr, and not in the table."""
    cluster.nodes[2].kill()
    for asked in (("clock", cluster.url()), ("journal", "prune", cluster.url(), "--older-than", "0s")):
        told = program(*asked)
        assert (told.returncode, "C is not included: no node can be reached" in told.stderr) == (3, True), told.stderr
        head, *rows = told.stdout.splitlines()
        assert [row.split()[0] for row in rows] == ["A", "B", "C"], head
    cluster.nodes[2].start()


async def test_pruning_keeps_held_entries_and_tells_late_readers(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        await client.execute("INSERT INTO t VALUES (0)", command="order-0")
        await write(client, 1, 39)
        whole = await all_safe(client, 41)
        early, middle = str(whole[5].cursor), str(whole[20].cursor)
        await client.hold("slow", middle)
        await removable(client)
        # A reader holds it at all nodes that have heard of the reader.
        for index in range(3):

            async def heard(index: int = index) -> bool:
                return "slow" in (await status_of(cluster, index))["journal"]["holds"]

            await until("every node has heard of the reader", heard)
        done = program("journal", "prune", cluster.url(), "--older-than", "0s")
        assert done.returncode == 0, done.stderr
        assert "reader slow has read up to" in done.stdout
        rest = await read(client, middle, hold="slow")
        assert [one.cursor for one in rest] == [one.cursor for one in whole[21:]]
        with pytest.raises(PrunedError, match="bedrockish export"):
            await read(client, early)
        with pytest.raises(PrunedError):
            await read(client)
        with pytest.raises(UsageError, match="begins after"):
            await client.hold("late", early)
        late = program("changes", cluster.url(), "--after", early)
        assert (late.returncode, "were removed to make room" in late.stderr) == (2, True)
        assert "INSERT t" in program("changes", cluster.url(), "--after", late.stderr.split()[-1]).stdout, "as it says"
        await client.hold("slow", release=True)
        assert program("journal", "prune", cluster.url(), "--older-than", "0s").returncode == 0
        with pytest.raises(PrunedError):
            await read(client, middle)
        await pruned_commands_are_remembered(cluster)
        assert await commands_done(client, "order-") == {"order-0"}
        assert (await client.execute("SELECT count(*) FROM t")).value() == 40
        assert "no reader" in program("journal", "hold", cluster.url(), "slow", "--release").stdout
        tells_who_is_away(cluster)
        # Nodes go on with the other entries, also after a restart; a copy names the cursor with which its feed
        # continues.
        cluster.nodes[1].kill()
        cluster.nodes[1].start()
        await ready(cluster)
        copy = cluster.directory / "copy.db"
        exported = program("export", cluster.url(), str(copy))
        cursor = exported.stdout.split("cursor ")[1].strip()
        await write(client, 40, 10)
        tail: list[Committed] = []

        async def ten() -> bool:
            tail[:] = await read(client, cursor)
            return len(tail) >= 10

        await until("the feed goes on after the copy", ten)
        assert [change.after for one in tail for change in one.changes] == [(number,) for number in range(40, 50)]
    await level(cluster)
    await new_nodes_are_copied(cluster)
    cluster.stop()
    judge_files(cluster)
    removed = [marks(db) for db in map(open_readonly, [node.database for node in cluster.nodes])]
    assert all(removed)


async def pruned_commands_are_remembered(cluster: LocalCluster) -> None:
    """Check that commands of removed entries count as executed, once, and under their own text."""
    for index in range(3):
        async with open_client(cluster.url(index, only=True)) as late_client:
            with pytest.raises(ForgottenError, match="has happened") as forgotten:
                await late_client.execute("INSERT INTO t VALUES (0)", command="order-0", resend=True)
            with pytest.raises(CommandIdError, match="with other statements"):
                await late_client.execute("INSERT INTO t VALUES (99)", command="order-0", resend=True)
            assert forgotten.value.details == {"command": "order-0", "happened": True}
            assert await late_client.settle("order-0")


async def new_nodes_are_copied(cluster: LocalCluster) -> None:
    refused = newcomer(cluster, "D", "--replay")
    assert refused.process is not None
    assert refused.process.wait(60) == 2
    assert "removed to make room" in refused.last_words()
    assert "join without --replay" in refused.last_words()
    async with open_client(cluster.url(0, only=True)) as client:
        assert "D" not in await client.nodes(), "it was not taken in"
    refused.start("join", cluster.url(0, only=True))

    async def joined() -> bool:
        try:
            status = await status_of(cluster, 3)
        except BedrockishError:
            return False
        return not status["trouble"] and bool(status["journal"]["removed"])

    await until("D has joined by a copy", joined)
    await level(cluster)


@pytest.mark.slow
async def test_entries_for_an_absent_node_are_kept_unless_forced(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        await write(client, 0, 5)
        await level(cluster)
        cluster.nodes[2].kill()
        await write(client, 5, 30)
        await removable(client)
        kept = program("journal", "prune", cluster.url(), "--larger-than", "0KB")
        assert "node C has not reported all entries that are here" in kept.stdout
        assert kept.returncode == 3, "C does not answer"
        assert (await client.execute("SELECT count(*) FROM bedrockish_journal")).value() >= 30
        forced = program("journal", "prune", cluster.url(), "--older-than", "0s", "--force")
        assert forced.returncode == 3
        assert int((await client.execute("SELECT count(*) FROM bedrockish_journal")).value()) < 30
        cluster.nodes[2].start()

        async def told() -> bool:
            try:
                trouble = (await status_of(cluster, 2))["trouble"]
            except BedrockishError:
                return False
            return bool(trouble) and "removed from their journals" in trouble and "bedrockish join" in trouble

        await until("C says that it cannot catch up", told)
        await write(client, 40, 5)
    cluster.stop()
    report = verify([node.database for node in cluster.nodes[:2]])
    assert report.findings == []
    digests = set()
    for node in cluster.nodes[:2]:
        with closing(open_readonly(node.database)) as db:
            digests.add(digest(db))
    assert len(digests) == 1


@pytest.mark.slow
async def test_a_node_shortens_its_journal_and_its_file_by_itself(tmp_path: Path) -> None:
    """The default bounds the journal's size. Free pages are returned to the disk."""
    settings = {"timings": {"conflict_window_ms": 1_000}, "journal": {"journal_keep_mb": 1}}
    cluster = LocalCluster(tmp_path / "cluster", ("A",), settings)
    cluster.write_files()
    try:
        cluster.nodes[0].start()
        await ready(cluster)
        async with open_client(cluster.url()) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB)")
            for number in range(1, 31):
                await client.execute("INSERT INTO t VALUES (?, randomblob(1000000))", [number])
            await client.execute("DELETE FROM t WHERE id > 3")

            async def shorter() -> bool:
                left = int((await client.execute("SELECT sum(length(body)) FROM bedrockish_journal")).value())
                return bool((await client.status())["journal"]["removed"]) and left < 30_000_000

            await until("of the entries with much, only the last one is left, with the rows that it removed", shorter)

            async def small() -> bool:
                await client.execute("UPDATE t SET data = NULL WHERE id = 1")
                await client.execute("UPDATE t SET data = NULL WHERE id = 2")
                return cluster.nodes[0].database.stat().st_size < 25_000_000

            before = cluster.nodes[0].database.stat().st_size
            await until(f"the file, of {before} bytes, is smaller", small)
            assert (await client.execute("SELECT count(*) FROM t")).value() == 3
            assert (await client.execute("PRAGMA integrity_check")).value() == "ok"
    finally:
        cluster.stop()

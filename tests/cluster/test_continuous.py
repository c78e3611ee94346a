"""A continuous backup of a real cluster is killed and continued at any node; each of its moments can be restored."""

import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import Rows
from bedrockish.api.url import parse_address
from bedrockish.client.feed import Changes
from bedrockish.client.trio_client import Client
from bedrockish.errors import ConfigError, ResultLostError, UnavailableError
from bedrockish.node.cluster import join
from bedrockish.transfer import continuous
from bedrockish.transfer.continuous import BackupPlan, follow, numbered, too_old
from bedrockish_journal.storage.store import applied, reading
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.restore import SEGMENTS, SNAPSHOTS
from tests.cluster.story import PATIENT, all_safe, command, ready, until
from tests.cluster.test_pruning import cluster as forgetful
from tests.cluster.test_pruning import removable
from tests.cluster.test_restore import rows_at, rows_of, write
from tests.spark.worlds import honest
from tools.cluster import LocalCluster, clean_environment

pytestmark = pytest.mark.cluster
short = forgetful  # a cluster that keeps little for the protocol's own sake


@contextmanager
def following(url: str, folder: Path, *options: str) -> Iterator[None]:
    """Follow in another process, which gets a SIGKILL at the end."""
    program = [sys.executable, "-m", "bedrockish.cli.main", "backup", "follow", url, str(folder), *options]
    with (folder.parent / "follow.log").open("a") as log:
        running = subprocess.Popen(program, stdout=log, stderr=log, env=clean_environment())
        try:
            yield
            assert running.poll() is None, (folder.parent / "follow.log").read_text()
        finally:
            running.kill()
            running.wait()


async def snapshots(folder: Path, count: int) -> None:
    async def there() -> bool:
        return len(numbered(folder, SNAPSHOTS)) >= count

    await until(f"{count} snapshots", there)


async def test_every_moment_since_the_backup_began_can_be_restored(cluster: LocalCluster, tmp_path: Path) -> None:
    await ready(cluster)
    folder, new = tmp_path / "kept", tmp_path / "new.db"
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)")
        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(write, cluster, index, range(100 * (index + 1), 100 * (index + 1) + 60))
            for number in range(3):  # killed, and started again at another node
                with following(cluster.url(number), folder, "--every", "1s"):
                    await snapshots(folder, number + 1)
                    await trio.sleep(0.5)
                if number == 1:
                    await client.execute("ALTER TABLE account ADD COLUMN state TEXT DEFAULT 'new'")
        await client.execute("DELETE FROM account")
        await all_safe(cluster)
        command("backup", "follow", cluster.url(2, only=True), folder, "--once")
        feed = [one async for one in Changes(client, follow=False)]
    for one in (*feed[3 :: len(feed) // 6], feed[-2]):
        command("restore", "--from", folder, "--to", new, "--at", one.clock)
        assert rows_of(new) == rows_at(feed, one.clock)
        new.unlink()
    assert "any moment from its cluster's beginning on" in command("backup", "verify", folder, "--proven")
    # The oldest snapshot with all segments gives the same database as the newest one.
    newest = numbered(folder, SNAPSHOTS)
    command("restore", "--from", folder, "--to", new)
    for path in newest[1:]:
        path.unlink()
    command("restore", "--from", folder, "--to", tmp_path / "same.db")
    assert digest(new) == digest(tmp_path / "same.db")
    assert rows_of(new) == {}
    told = command("backup", "follow", cluster.url(), tmp_path / "new.db", "--once", status=2)
    assert "is a file" in told


async def test_snapshot_bridges_entries_that_nodes_have_removed(short: LocalCluster, tmp_path: Path) -> None:
    await ready(short)
    folder, new = tmp_path / "kept", tmp_path / "new.db"
    async with open_client(short.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)")
        await all_safe(short)
        assert "snapshot-000001.db" in command("backup", "follow", short.url(), folder, "--once")
        await write(short, 0, range(1, 20))
        await removable(client)
        command("journal", "prune", short.url(), "--older-than", "0s")
        assert "making a snapshot" in command("backup", "follow", short.url(), folder, "--once")
        await write(short, 1, range(20, 30))
        await all_safe(short)
        command("backup", "follow", short.url(), folder, "--once")
        feed = [one async for one in Changes(client, str((await client.execute(LAST)).value()), follow=False)]
    command("restore", "--from", folder, "--to", new)
    assert sorted(rows_of(new)) == list(range(1, 30))
    assert "no moment between" in command("backup", "verify", folder, "--younger-than", "1h")
    assert feed
    numbers = [path.name[-9:-3] for path in (*numbered(folder, SNAPSHOTS), *numbered(folder, SEGMENTS))]
    assert numbers == ["000001", "000002"] * 2
    assert too_old(folder, time.time() - 3_600) == []
    assert {path.name for path in too_old(folder, time.time())} >= {"snapshot-000001.db"}


LAST = "SELECT max(clock) || '.' || origin FROM bedrockish_pruned"


async def test_failed_snapshot_leaves_no_file(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, and the file left behind would have filled it."""
    await ready(cluster)

    def no_room(path: Path) -> None:
        path.with_name(f"{path.name}-wal").touch()
        raise ConfigError(f"{path} cannot be finished")

    monkeypatch.setattr(join, "make_plain", no_room)
    with pytest.raises(ConfigError, match="cannot be finished"):
        await join.back_up(cluster.url(), tmp_path / "one.db")
    assert not numbered(tmp_path, "one.db*")


async def test_journal_goes_on_while_no_snapshot_can_be_made(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a snapshot is due and each node refuses it for want of room, the backup still records the commits."""
    await ready(cluster)
    folder, new, said = tmp_path / "kept", tmp_path / "new.db", list[str]()

    async def refuse(*_: object) -> int:
        raise UnavailableError("the node has no room for a copy")

    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)")
        await all_safe(cluster)
        await follow(cluster.url(), folder, BackupPlan(0, None, once=True), said.append)
        with monkeypatch.context() as patch:
            patch.setattr(continuous, "back_up", refuse)
            await write(cluster, 0, range(20))
            await all_safe(cluster)
            with pytest.raises(UnavailableError, match="no room for a copy"):
                await follow(cluster.url(), folder, BackupPlan(0, None, once=True), said.append)
        await all_safe(cluster)
    assert "no new snapshot, and trying again in 60 s: the node has no room for a copy" in said
    command("restore", "--from", folder, "--to", new)
    assert sorted(rows_of(new)) == list(range(20))
    snapshots = numbered(folder, SNAPSHOTS)
    for path in snapshots:
        path.unlink()
    await follow(cluster.url(), folder, BackupPlan(3_600, None, once=True), said.append)
    assert numbered(folder, SNAPSHOTS) > snapshots, "the segment of a snapshot that is gone is not written over"


@pytest.mark.parametrize("is_back", [True, False])
async def test_continuous_backup_ends_when_its_directory_is_exchanged_or_removed(
    is_back: bool, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Otherwise the backup would go on in the open files of the moved directory, or fail with an IndexError."""
    await ready(cluster)
    folder, old, said = tmp_path / "kept", tmp_path / "old", list[str]()

    async def run() -> None:
        with pytest.raises(ConfigError, match="was removed or exchanged while it was written"):
            await follow(cluster.url(), folder, BackupPlan(3_600, None), said.append)
        said.append("ended")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await snapshots(folder, 1)
        await trio.sleep(0.5)
        folder.rename(old)
        if is_back:
            shutil.copytree(old, folder)
        with trio.fail_after(60):
            while said[-1] != "ended":  # noqa: ASYNC110
                await trio.sleep(0.1)


async def test_snapshot_is_fetched_from_members_that_the_url_lacks(cluster: LocalCluster, tmp_path: Path) -> None:
    await ready(cluster)
    addresses = [parse_address(f"127.0.0.1:{node.port}", where="a test") for node in cluster.nodes]
    await trio.to_thread.run_sync(cluster.nodes[0].kill)
    assert await join.back_up(cluster.url(0, only=True), tmp_path / "one.db", addresses) > 0


async def test_entries_of_many_megabytes_are_followed(cluster: LocalCluster, tmp_path: Path) -> None:
    """The query for a page of entries mentions their bodies often, so the limit for their length is lower."""
    await ready(cluster)
    folder, new = tmp_path / "kept", tmp_path / "new.db"
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE large(id INTEGER PRIMARY KEY, data BLOB)")
        await all_safe(cluster)
        command("backup", "follow", cluster.url(), folder, "--once")
        for number in (1, 2, 5):
            await client.execute("INSERT INTO large VALUES (?, zeroblob(?))", [number, number * 6_000_000])
        await all_safe(cluster)
        command("backup", "follow", cluster.url(), folder, "--once")
        await client.execute("DROP TABLE large")
    assert not list(folder.glob("*-wal"))  # so that any program can copy the directory now
    command("restore", "--from", folder, "--to", new)
    with closing(apsw.Connection(str(new))) as db:
        found = db.execute("SELECT id, length(data) FROM large").fetchall()
    assert found == [(number, number * 6_000_000) for number in (1, 2, 5)]


async def test_backup_of_another_cluster_is_not_continued(cluster: LocalCluster, tmp_path: Path) -> None:
    await ready(cluster)
    folder = tmp_path / "kept"
    told = command("backup", cluster.url(), tmp_path / "nowhere" / "one.db", status=2)
    assert "No such file or directory; name a folder that may be written" in told
    command("backup", "follow", cluster.url(), folder, "--once")
    with following(cluster.url(), folder):

        async def opened() -> bool:
            return bool(numbered(folder, f"{SEGMENTS}-wal"))

        await until("the follower has opened it", opened)
        told = command("backup", "follow", cluster.url(), folder, "--once", status=2)
        assert "another process continues the backup" in told
    cluster.stop()
    other = LocalCluster(tmp_path / "other")
    other.write_files()
    try:
        for node in other.nodes:
            node.start()
        await ready(other)
        told = command("backup", "follow", other.url(), folder, "--once", status=2)
        assert "of another cluster" in told
    finally:
        other.stop()


class FakeClient:
    """A client of a node that has some rows of the journal, and whose first streams are lost in the middle."""

    def __init__(self, rows: list[tuple[bytes, ...]], losses: int) -> None:
        self._rows, self._losses = rows, losses

    @asynccontextmanager
    async def stream(self, _sql: str, span: tuple[str, int, int], **_: object) -> AsyncIterator[AsyncIterator[Any]]:
        """Return the rows of a range."""

        async def rows() -> AsyncIterator[Any]:
            for number, row in enumerate(self._rows[span[1] - 1 : span[2]]):
                if number == 2 and self._losses:
                    self._losses -= 1
                    raise ResultLostError("the node was lost")
                yield row

        yield rows()

    async def execute(self, *_: object, **__: object) -> Rows:
        """Return that no entry was removed."""
        return Rows(("tick",), [])


async def test_entries_are_fetched_once_more_and_without_gaps(tmp_path: Path) -> None:
    with reading(honest(30).write(tmp_path)[0]) as db:
        rows: list[Any] = db.execute(
            "SELECT prev, label, body, hash FROM bedrockish_journal WHERE leader = 'A' ORDER BY tick"
        ).fetchall()
        others = applied(db)
    has, wanted = {**others, "A": 0}, {"A": len(rows)}
    found = await continuous._fetch(cast(Client, FakeClient(rows, 1)), dict(has), wanted)
    assert [entry.tick for entry in found] == list(range(1, len(rows) + 1))
    with pytest.raises(ResultLostError):
        await continuous._fetch(cast(Client, FakeClient(rows, 2)), dict(has), wanted)
    with pytest.raises(UnavailableError, match="ask again"):
        await continuous._fetch(cast(Client, FakeClient([*rows[:2], *rows[3:]], 0)), dict(has), wanted)

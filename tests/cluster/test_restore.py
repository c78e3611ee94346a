"""After a table was deleted, a backup and the later journal restore the state before it, for a new cluster."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

import bedrockish
from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish.engine.storage.rename_copy import claimed
from bedrockish.transfer.continuous import numbered
from bedrockish_journal.feed.change_feed import Committed
from bedrockish_journal.verify.replay import digest
from tests.cluster.story import PATIENT, all_safe, command, level, ready
from tests.cluster.test_members import newcomer, voters
from tests.forked import program
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster
Rows = dict[int, tuple[Any, ...]]


def rows_of(path: Path) -> Rows:
    db = apsw.Connection(str(path))
    try:
        return {row[0]: tuple(row) for row in db.execute("SELECT * FROM account")}
    finally:
        db.close()


def rows_at(feed: list[Committed], clock: int) -> Rows:
    """Return the rows that the feed gives for the table at a clock."""
    found: Rows = {}
    for transaction in feed:
        if transaction.clock > clock:
            break
        if any("ADD COLUMN" in sql for sql in transaction.statements):
            found = {key: (*row, "new") for key, row in found.items()}
        for change in transaction.changes:
            if change.after is None:
                assert change.before is not None
                del found[int(str(change.before[0]))]
            else:
                found[int(str(change.after[0]))] = tuple(change.after)
    return found


async def write(cluster: LocalCluster, index: int, keys: range) -> None:
    async with open_client(cluster.url(index, options=PATIENT)) as client:
        for key in keys:
            await client.execute("INSERT INTO account(id, owner) VALUES (?, ?)", [key, f"of {index}"])
            await client.execute("UPDATE account SET owner = owner || '!' WHERE id = ?", [key - key % 5])


async def live(cluster: LocalCluster, early: Path) -> tuple[list[Committed], list[tuple[Any, ...]]]:
    """Write, back up, write on while the schema changes, lose all, write on; return the feed and the rows."""
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)")
        await level(cluster)
        await write(cluster, 1, range(1, 20))
        await trio.to_thread.run_sync(command, "backup", cluster.url(), early)
        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(write, cluster, index, range(100 * (index + 1), 100 * (index + 1) + 20))
            await trio.sleep(0.2)
            await client.execute("ALTER TABLE account ADD COLUMN state TEXT DEFAULT 'new'")
        await level(cluster)
        seen = [tuple(row) for row in (await client.execute("SELECT * FROM account ORDER BY id")).rows]
        await client.execute("DELETE FROM account")  # without a WHERE
        await client.execute("INSERT INTO account(id, owner) VALUES (7, 'who knows nothing of it')")
        await all_safe(cluster)
        return [one async for one in Changes(client, follow=False)], seen


async def test_restore_returns_the_state_before_the_mistake(cluster: LocalCluster, tmp_path: Path) -> None:
    await ready(cluster)
    early, late, new = tmp_path / "early.db", tmp_path / "late.db", tmp_path / "new.db"
    feed, seen = await live(cluster, early)
    await trio.to_thread.run_sync(command, "backup", cluster.url(2, only=True), late)
    assert "equal to a replay of its journal" in command("backup", "verify", late, "--proven", "--younger-than", "1h")
    mistake = max((one for one in feed if one.changes), key=lambda one: len(one.changes))
    assert len(mistake.changes) == len(seen) == 79
    # By the clock before it, from an older backup and the journal of a younger one.
    command("restore", "--from", early, "--journal", late, "--to", new, "--at", mistake.clock - 1)
    assert list(rows_of(new).values()) == seen
    # By its time in the feed; by going back from the younger backup alone; and from the files of the nodes.
    when, same = mistake.at.isoformat(), tmp_path / "same.db"
    files = [node.database for node in cluster.nodes]
    for way in (
        ("restore", "--from", early, "--journal", late, "--at", when),
        ("restore", "--from", late, "--at", when),
        ("restore", "--from", early, "--journal", files[0], "--journal", files[1], "--at", mistake.clock - 1),
        ("journal", "replay", *files, "--until", when, "--order", "random"),
    ):
        command(*way, "--to", same)
        assert digest(same) == digest(new)
        same.unlink()
    # At any other moment the restored rows are those of a reader of the feed.
    for number, transaction in enumerate(feed[3::20]):
        made = tmp_path / f"{number}.db"
        command("restore", "--from", early, "--journal", late, "--to", made, "--at", transaction.clock)
        assert rows_of(made) == rows_at(feed, transaction.clock), number
    told = command("restore", "--from", early, "--to", same, "--at", mistake.clock, status=1)
    assert "is too late: the files are complete up to" in told
    assert not same.exists()
    await _found(founded(new, tmp_path / "second"), len(seen))


def founded(new: Path, folder: Path) -> LocalCluster:
    """Return a cluster of one with the restored database."""
    cluster = LocalCluster(folder, ("X",))
    cluster.write_files()
    new.rename(cluster.nodes[0].database)
    return cluster


async def _found(second: LocalCluster, count: int) -> None:
    """Start it; clients write to it, and another node joins."""
    try:
        second.nodes[0].start()
        await second.wait_ready(0)
        newcomer(second, "Y", "--voter")
        async with open_client(second.url(0, only=True, options=PATIENT)) as client:
            await client.execute("INSERT INTO account VALUES (1000, 'after', 'restored')")
            await second.wait_ready(1)
            await voters(second, "X", "Y")
            await client.execute("UPDATE account SET state = 'seen' WHERE id = 1000")
            token = client.token
        async with open_client(second.url(1, only=True, options=PATIENT), token=token) as client:
            found = await client.execute("SELECT count(*), max(state) FROM account WHERE id < 1000 OR state = 'seen'")
            assert [tuple(row) for row in found.rows] == [(count + 1, "seen")]
    finally:
        second.stop()


async def test_log_of_an_older_database_spoils_no_new_file(tmp_path: Path) -> None:
    """If only the file of an older node was removed, SQLite would write the remaining log into the restored file."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        async with open_client(cluster.url()) as client:
            await client.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)")
            command("backup", cluster.url(), tmp_path / "early.db")
            await client.execute("INSERT INTO account VALUES (1, 'ann')")
        await level(cluster)
        first = cluster.nodes[0]
        first.kill()
        log = first.database.with_name("A.sqlite-wal")
        assert log.stat().st_size > 0
        first.database.unlink()
        url = cluster.url(1, only=True)
        for arguments in (
            ("restore", "--from", tmp_path / "early.db", "--to", first.database),
            ("backup", url, first.database),
            ("export", url, first.database),
            ("join", url, "--config", first.config, "--set", f"database={first.database}", "--no-serve"),
        ):
            told = await trio.to_thread.run_sync(program, *map(str, arguments))
            assert told.returncode in (1, 2), arguments
            assert f"{log} is the log of an older database" in told.stderr, told.stderr
            assert not first.database.exists()
        # A run that was killed while it changed its copy left a log next to the unfinished file.
        for name in ("b.db.part-wal", "e.db.unfinished-wal", "e.db.unfinished.part-wal"):
            shutil.copy(log, tmp_path / name)
        command("backup", url, tmp_path / "b.db")
        command("export", url, tmp_path / "e.db")
        for name in ("b.db", "e.db"):
            with closing(apsw.Connection(str(tmp_path / name))) as db:
                assert db.execute("SELECT * FROM account").fetchall() == [(1, "ann")]
        assert numbered(tmp_path, "*-wal") == []


async def test_only_one_process_at_a_time_writes_a_backup_an_export_or_a_joined_file(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Otherwise two backups would write into one unfinished copy, and the first to end would publish it."""
    await ready(cluster)
    target, url = tmp_path / "b.db", cluster.url(1, only=True)
    config = tmp_path / "D.toml"
    config.write_text(f'node = "D"\ndatabase = "{target}"\nlisten = "127.0.0.1:1"\n')
    with claimed(target):
        target.with_name("b.db.part").write_text("of the other process")
        for arguments in (("backup", url, target), ("export", url, target), ("join", url, "--config", config)):
            told = await trio.to_thread.run_sync(program, *map(str, arguments))
            assert told.returncode == 2, told
            assert f"another process writes {target} now; wait until it has ended" in told.stderr, told.stderr
        assert target.with_name("b.db.part").read_text() == "of the other process"
    await trio.to_thread.run_sync(command, "backup", url, target)
    assert numbered(tmp_path, "b.db*") == [target]


def test_restored_file_is_not_served_with_the_log_of_the_one_before(tmp_path: Path) -> None:
    """SQLite would write the log of the killed node into a restored file that is moved to the node's path."""
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(ready, cluster)
        node = cluster.nodes[0]
        with bedrockish.connect(cluster.url()) as db:
            db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)")
            command("backup", cluster.url(), tmp_path / "early.db")
            db.execute("INSERT INTO account VALUES (1, 'ann')")
        node.kill()
        log = node.database.with_name("A.sqlite-wal")
        command("restore", "--from", tmp_path / "early.db", "--to", tmp_path / "new.db")
        (tmp_path / "new.db").replace(node.database)
        told = program("serve", "--config", str(node.config), cwd=node.directory)
        assert told.returncode == 2
        assert f"{log} is the log of another database" in told.stderr
        log.unlink()
        node.database.with_name("A.sqlite-shm").unlink(missing_ok=True)
        node.start()
        trio.run(cluster.wait_all_ready)
        with bedrockish.connect(cluster.url()) as db:
            assert db.execute("SELECT count(*) FROM account").value() == 0
        node.kill()
        node.start()
        trio.run(cluster.wait_all_ready)

"""A user's data are erased as docs/erasure.md says: no node has a byte of them, and every check still passes."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from bedrockish import open_client
from bedrockish_journal.storage.store import open_readonly, scan
from bedrockish_journal.verify.replay import digest
from tests.cluster.story import PATIENT, all_safe, command, judge_files, level, ready, until
from tests.cluster.test_pruning import cluster as forgetful
from tests.cluster.test_pruning import removable
from tools.cluster import LocalCluster, LocalNode

pytestmark = pytest.mark.cluster
short = forgetful  # a cluster that keeps little for the protocol's own sake
SOMEBODY = "ann.of.the.hills@example.org"


def bytes_with(folder: Path) -> list[str]:
    """Return the files that contain a person's bytes."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.name for path in files if SOMEBODY.encode() in path.read_bytes()]


def entries_with(path: Path) -> int:
    """Return how many entries of a file's journal contain a person's bytes, those in packs included."""
    with closing(open_readonly(path)) as db:
        return sum(SOMEBODY.encode() in one.transaction.body for one in scan(db))


def end(node: LocalNode) -> None:
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGTERM)
    node.process.wait(60)


@pytest.mark.slow  # some thirty commands, each a process
async def test_no_file_has_bytes_of_an_erased_person(short: LocalCluster, tmp_path: Path) -> None:
    await ready(short)
    nodes, before, after = short.directory, tmp_path / "before", tmp_path / "after"
    async with open_client(short.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE person(id INTEGER PRIMARY KEY, mail TEXT COLLATE NOCASE UNIQUE, note)")
        await client.execute("CREATE TABLE log(text TEXT)")
        for number in range(30):
            await client.execute("INSERT INTO person VALUES (?, ?, 'x')", [number, f"p{number}@example.org"])
        await client.execute("INSERT INTO person VALUES (77, ?, ?) RETURNING mail", [SOMEBODY, f"of {SOMEBODY}"])
        await client.execute(f"UPDATE person SET note = 'wrote to {SOMEBODY}' WHERE mail = '{SOMEBODY.upper()}'")
        await client.execute("INSERT INTO log VALUES (?)", [SOMEBODY])
        await client.execute("UPDATE person SET note = NULL WHERE mail = ?", [SOMEBODY])
        await client.transact(["CREATE TABLE list(mail TEXT)", ("INSERT INTO list VALUES (?)", [SOMEBODY])])
        await all_safe(short)
        command("backup", "follow", short.url(), before / "kept", "--once")
        command("export-journal", short.nodes[0].database, "--to", before / "export")
        # The application, which knows the person's rows, deletes them.
        await client.execute("DELETE FROM person WHERE mail = ?", [SOMEBODY])
        await client.execute("DELETE FROM log WHERE text = ?", [SOMEBODY])
        await client.execute("DELETE FROM list")
        for path in (*(node.database for node in short.nodes), before / "kept" / "snapshot-000001.db"):
            assert entries_with(path) >= 4
        await level(short)
        for index in range(3):  # the last entry of a timeline stays, so every timeline gets a newer one
            async with open_client(short.url(index, only=True)) as near:
                await near.execute("INSERT INTO log VALUES (?)", [f"somebody asked to be forgotten {index}"])
        await level(short)
        await removable(client)

        async def is_removed() -> bool:
            command("journal", "prune", short.url(), "--older-than", "0s")
            return not any(entries_with(node.database) for node in short.nodes)

        await until("no journal has it", is_removed)
        assert bytes_with(nodes) != []
        for index, node in enumerate(short.nodes):
            assert "in use by another node" in command("compact", node.database, status=2)
            end(node)
            command("compact", node.database)
            node.start()
            await short.wait_ready(index)
        await ready(short)
        assert bytes_with(nodes) == []
        # The cluster goes on, and newly written files have none of their data either.
        await client.execute("INSERT INTO person VALUES (78, 'bob@example.org', 'new')")
        await all_safe(short)
        command("backup", "follow", short.url(), after / "kept", "--once")
        command("export-journal", short.nodes[1].database, "--to", after / "export", "--oldest")
        assert bytes_with(after) == []
    await level(short)
    short.stop()
    files = [node.database for node in short.nodes]
    told = command("journal", "verify", *files)
    assert "has removed up to" in told
    assert "the journals hold" in command("audit", *files)
    judge_files(short)
    restored = tmp_path / "restored.db"
    command("restore", "--from", after / "kept", "--to", restored)
    assert digest(restored) == digest(files[0])
    assert "whole journal" in command("journal", "replay", *files, "--to", tmp_path / "again.db", status=1)
    assert "snapshot-000001.db" in bytes_with(before)  # so the old backup is to be thrown away

"""Shared parts of the stories: waiting for conditions, and judging files after the nodes have stopped."""

import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError, OutcomeUnknownError
from bedrockish_journal.verify.differences import differences, last_writers
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.verify import verify
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode

BOUND_S = 40.0
PATIENT = "/?timeout=40"  # the end of a URL: on a busy machine, anything may take long


async def until(what: str, holds: Callable[[], Awaitable[bool]], bound_s: float = BOUND_S) -> None:
    """Wait for something, with a bound."""
    with trio.move_on_after(bound_s):
        while not await holds():  # noqa: ASYNC110  it is in another process
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {bound_s} s: {what}")


async def ready(cluster: LocalCluster) -> None:
    """Wait until every node answers and sees every other."""
    for index in range(len(cluster.nodes)):
        await cluster.wait_ready(index)

    async def linked() -> bool:
        for index in range(len(cluster.nodes)):
            status = await status_of(cluster, index)
            if not all(node["up"] for node in status["nodes"].values()) or not status["safe"]:
                return False
        return True

    await until("all links up", linked)


async def status_of(cluster: LocalCluster, index: int) -> dict[str, Any]:
    """Ask one node for its status."""
    async with open_client(cluster.url(index, only=True)) as client:
        return await client.status(timeout=20)


async def level(cluster: LocalCluster) -> None:
    """Wait until all nodes have applied the same, nothing is in doubt and all changes of the schema are in force.

    A node may report entries as applied while it still writes them, and would fetch them again after a stop. A strict
    read waits for the writer, and for the disk.
    """

    async def same() -> bool:
        try:
            found = [await status_of(cluster, index) for index in range(len(cluster.nodes))]
            waiting = await _numbers(
                cluster, "SELECT count(*) FROM bedrockish_schema WHERE state = 'scheduled'", "strict"
            )
        except BedrockishError:
            return False
        vectors = [one["applied"] for one in found]
        is_same = all(vector == vectors[0] for vector in vectors) and not any(one["in_doubt"] for one in found)
        return is_same and not any(waiting)

    await until("all nodes equal, nothing in doubt and every schema in force", same)


async def heard(cluster: LocalCluster, index: int) -> None:
    """Wait until every node has applied what one has now, and its changes of the schema; clients may write on."""
    told = (await status_of(cluster, index))["applied"]

    async def by_all() -> bool:
        try:
            found = [(await status_of(cluster, place))["applied"] for place in range(len(cluster.nodes))]
            waiting = await _numbers(cluster, "SELECT count(*) FROM bedrockish_schema WHERE state = 'scheduled'")
        except BedrockishError:
            return False
        has_all = [all(one.get(leader, 0) >= tick for leader, tick in told.items()) for one in found]
        return all(has_all) and not any(waiting)

    await until("every node has applied it", by_all)


async def all_safe(cluster: LocalCluster) -> None:
    """Wait until safe time has passed all present commits at every node, so that a feed includes them.

    A feed ends at the safe time of the node that is read. It is behind acknowledged commits, and differs between nodes.
    """
    journal = await _numbers(cluster, "SELECT max(clock) FROM bedrockish_journal", "strict")
    schema = await _numbers(cluster, "SELECT coalesce(max(activates), 0) FROM bedrockish_schema", "strict")
    last = max(*journal, *schema)

    async def safe() -> bool:
        try:
            return min(await _numbers(cluster, "SELECT safe_clock()")) >= last
        except BedrockishError:
            return False

    await until("all of it is safe at every node", safe)


async def _numbers(cluster: LocalCluster, query: str, read: str = "stale") -> list[int]:
    """Ask every node for a number; ``stale`` reads it from the last state that the node wrote."""
    found = []
    for index in range(len(cluster.nodes)):
        async with open_client(cluster.url(index, only=True)) as client:
            found.append(int((await client.execute(query, read=read)).value()))
    return found


def send_signal(node: LocalNode, number: signal.Signals) -> None:
    """Send a signal to a process of ours."""
    assert node.process is not None
    os.kill(node.process.pid, number)


async def insist(url: str, sql: str, params: list[object], command: str) -> int:
    """Run a command until its outcome is known, as a careful application does; return how often it was sent."""
    async with open_client(url) as client:
        for attempt in range(1, 30):
            try:
                await client.execute(sql, params, command=command, timeout=8)
            except OutcomeUnknownError:
                continue  # sending the same id again is safe
            except BedrockishError as error:
                if not error.retry:
                    raise
                continue
            return attempt
    raise AssertionError(f"{command} has no outcome after 30 attempts")


def command(*arguments: object, status: int = 0) -> str:
    """Run ``bedrockish`` with arguments until it ends with a status, and return its output."""
    done = program(*arguments)
    assert done.returncode == status, done.stderr + done.stdout
    return done.stdout + done.stderr


def judge_files(cluster: LocalCluster) -> None:
    """Check the files of the stopped nodes: journals sound and equal, tables equal."""
    paths = [node.database for node in cluster.nodes]
    found = verify(paths)
    assert not found.findings, "\n".join(finding.text for finding in found.findings[:10])
    for path in paths[1:]:
        judge_copy(path, paths[0])


def judge_copy(database: Path, node: Path) -> None:
    """Check that a database equals a stopped node's; on a difference, name the rows and their last writers."""
    if digest(database) == digest(node):
        return
    found = differences(str(database), str(node), 10)
    writers = last_writers(str(node), found)
    lines = [f"{database} is not what {node} is:"]
    for one in found:
        entry = writers.get((one.table, one.key or ""))
        lines.append(one.text + (f"; written last by {entry.place}, {entry.txid}" if entry is not None else ""))
    raise AssertionError("\n".join(lines))


def rows(node: LocalNode, sql: str) -> list[tuple[Any, ...]]:
    """Ask the file of a stopped node, with the standard library's SQLite."""
    with closing(sqlite3.connect(node.database)) as db:
        return db.execute(sql).fetchall()

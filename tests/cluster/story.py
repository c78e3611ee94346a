"""What the stories have in common: waiting for things, and judging files when the nodes are gone."""

import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError, OutcomeUnknownError
from journal.replay import digest
from journal.store import open_readonly
from journal.verify import verify
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
        return await client.status(timeout=5)


async def level(cluster: LocalCluster) -> None:
    """Wait until all nodes have applied the same and nothing is in doubt."""

    async def same() -> bool:
        try:
            found = [await status_of(cluster, index) for index in range(len(cluster.nodes))]
        except BedrockishError:
            return False
        vectors = [one["applied"] for one in found]
        return all(vector == vectors[0] for vector in vectors) and not any(one["in_doubt"] for one in found)

    await until("all nodes equal and nothing in doubt", same)


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
                continue  # the same id again is safe
            except BedrockishError as error:
                if not error.retry:
                    raise
                continue
            return attempt
    raise AssertionError(f"{command} has no outcome after 30 attempts")


def judge_files(cluster: LocalCluster) -> None:
    """Check the files of the stopped nodes: journals sound and equal, tables equal."""
    paths = [node.database for node in cluster.nodes]
    found = verify(paths)
    assert not found.findings, "\n".join(finding.text for finding in found.findings[:10])
    digests = set()
    for path in paths:
        with closing(open_readonly(path)) as db:
            digests.add(digest(db))
    assert len(digests) == 1


def rows(node: LocalNode, sql: str) -> list[tuple[Any, ...]]:
    """Ask the file of a stopped node, with the standard library's SQLite."""
    with closing(sqlite3.connect(node.database)) as db:
        return db.execute(sql).fetchall()

"""The views of each state of a node: docs/trouble-states.md has the table that is measured here.

``WRITE=1`` writes the page; otherwise the page must be what is measured.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import DEMOTE, PROMOTE, MemberChange
from bedrockish.errors import BedrockishError
from bedrockish.node.admin.troubles import BY_CODE
from tests.cluster.story import ready, status_of, until
from tests.cluster.test_waiting import LIMIT_BYTES, fill, limit_files
from tools.cluster import LocalCluster, clean_environment, local_cluster

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs" / "trouble-states.md"
NOISE = {"safe_time", "in_doubt", "node_behind", "behind", "node_slow", "disk_filling"}  # they come and go with load
HEAD = (
    "| state of C | `status` of C | `status` of the others | mode of C in `nodes` | `/livez` of C | `/readyz` of C "
    "| `/readyz` of the others | alerts |"
)


class Seen(NamedTuple):
    """The views of one state."""

    own: str
    others: str
    mode: str
    livez: str
    readyz: str
    others_readyz: str
    alerts: str


def probe(cluster: LocalCluster, index: int, path: str) -> str:
    """Return the status of an answer of HTTP, or ``no answer``."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.nodes[index].http_port}{path}", timeout=3) as reply:
            return str(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return str(error.code)
    except OSError:
        return "no answer"


def metrics_of(cluster: LocalCluster) -> str:
    """Return the metrics of the first node."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.nodes[0].http_port}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


def codes(status: dict[str, Any]) -> set[str]:
    return {one["code"] for one in status["troubles"]} - NOISE


async def told(cluster: LocalCluster, index: int) -> dict[str, Any] | None:
    """Return the status of a node; None if it does not answer."""
    with trio.move_on_after(3):
        try:
            return await status_of(cluster, index)
        except BedrockishError:
            return None
    return None


async def look(cluster: LocalCluster) -> Seen:
    """Look at C from everywhere, and check that all views agree."""
    own, other = await told(cluster, 2), await status_of(cluster, 0)
    mine = codes(own) if own is not None else set()
    theirs = codes(other)
    ready_of = {index: await trio.to_thread.run_sync(probe, cluster, index, "/readyz") for index in (0, 2)}
    assert (ready_of[0] == "503") is any(BY_CODE[code].useless for code in theirs)
    if own is not None:
        assert (ready_of[2] == "503") is any(BY_CODE[code].useless for code in mine)
    metrics = await trio.to_thread.run_sync(metrics_of, cluster)
    alerts = set(re.findall(r'bedrockish_trouble{code="(\w+)"} 1', metrics)) - NOISE
    assert alerts == theirs
    rules = (PAGE.parent / "alerts.yml").read_text()
    assert all(f'code="{code}"' in rules for code in mine | theirs)
    return Seen(
        shown(mine) if own is not None else "no answer",
        shown(theirs),
        other["nodes"]["C"]["mode"],
        await trio.to_thread.run_sync(probe, cluster, 2, "/livez"),
        ready_of[2],
        ready_of[0],
        shown(mine | theirs),
    )


def shown(found: set[str]) -> str:
    return ", ".join(f"`{code}`" for code in sorted(found)) or "nothing"


async def until_seen(cluster: LocalCluster, *, own: set[str] | None, others: set[str]) -> Seen:
    async def there() -> bool:
        mine = await told(cluster, 2)
        return (codes(mine) if mine is not None else None) == own and codes(await status_of(cluster, 0)) == others

    await until(f"{own} at C and {others} at A", there)
    return await look(cluster)


def send(cluster: LocalCluster, index: int, number: signal.Signals) -> None:
    process = cluster.nodes[index].process
    assert process is not None
    process.send_signal(number)


@asynccontextmanager
async def started_again(cluster: LocalCluster, *arguments: str) -> AsyncIterator[None]:
    """Run C with other settings in this block."""
    cluster.nodes[2].kill()
    cluster.nodes[2].start("serve", *arguments)
    await ready(cluster)
    yield
    cluster.nodes[2].kill()
    cluster.nodes[2].start()
    await ready(cluster)


async def without_room(cluster: LocalCluster) -> Seen:
    limit_files(cluster.nodes[2], LIMIT_BYTES)
    await fill(cluster)
    seen = await until_seen(cluster, own={"cannot_write"}, others={"node_trouble"})
    limit_files(cluster.nodes[2], resource.RLIM_INFINITY)
    return seen


async def paused(cluster: LocalCluster) -> Seen:
    send(cluster, 2, signal.SIGSTOP)
    seen = await until_seen(cluster, own=None, others={"node_away"})
    send(cluster, 2, signal.SIGCONT)
    return seen


async def dead(cluster: LocalCluster) -> Seen:
    cluster.nodes[2].kill()
    seen = await until_seen(cluster, own=None, others={"node_away"})
    cluster.nodes[2].start()
    return seen


async def stopped(cluster: LocalCluster) -> Seen:
    process = cluster.nodes[2].process
    assert process is not None
    process.terminate()
    await trio.to_thread.run_sync(process.wait)
    seen = await until_seen(cluster, own=None, others={"node_away"})
    cluster.nodes[2].start()
    return seen


async def clock_behind(cluster: LocalCluster) -> Seen:
    async with started_again(cluster, "--set", "wall_offset_ms=-4000"):
        return await until_seen(cluster, own={"clock_skew"}, others={"clock_skew"})


async def no_quorum(cluster: LocalCluster) -> Seen:
    send(cluster, 1, signal.SIGSTOP)
    cluster.nodes[2].kill()
    seen = await until_seen(cluster, own=None, others={"no_quorum", "node_away"})
    send(cluster, 1, signal.SIGCONT)
    cluster.nodes[2].start()
    return seen


async def one_voter(cluster: LocalCluster) -> Seen:
    async with open_client(cluster.url(0)) as client:
        for node in "AB":
            await client.change_members(MemberChange(DEMOTE, node, force=True))
        seen = await until_seen(cluster, own={"one_voter"}, others={"one_voter"})
        for node in "AB":
            await client.change_members(MemberChange(PROMOTE, node))
    return seen


STATES: dict[str, Callable[[LocalCluster], Awaitable[Seen]]] = {
    "killed, or its machine is gone": dead,
    "stopped by SIGTERM": stopped,
    "paused (SIGSTOP), or cut off": paused,
    "disk full, quota used up or read-only file system": without_room,
    "its clock is four seconds behind": clock_behind,
    "dead, and B as well: no quorum": no_quorum,
    "the only voter of three members": one_voter,
}


async def test_every_view_of_a_state_agrees_and_is_on_the_page(tmp_path: Path) -> None:
    lines = [HEAD, "| " + "--- | " * 8]
    with local_cluster(tmp_path / "three", http=True) as cluster:
        await ready(cluster)
        lines.append(row("all is well", await until_seen(cluster, own=set(), others=set())))
        for name, make in STATES.items():
            lines.append(row(name, await make(cluster)))
            await ready(cluster)
            await until_seen(cluster, own=set(), others=set())
    text = PAGE.read_text()
    opening, closing = "<!-- states -->\n\n", "\n\n<!-- end of states -->"
    before, _, rest = text.partition(opening)
    found, _, after = rest.partition(closing)
    table = "\n".join(line.rstrip() for line in lines)
    if os.environ.get("WRITE"):
        PAGE.write_text(before + opening + table + closing + after)
    else:
        assert found == table


def row(name: str, seen: Seen) -> str:
    return f"| {name} | " + " | ".join(seen) + " |"


def test_status_of_the_command_line_ends_with_one_for_each_trouble(tmp_path: Path) -> None:
    """The table names codes; the command prints each with what to do."""
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(ready, cluster)
        command = [sys.executable, "-m", "bedrockish.cli.main", "status", cluster.url()]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, "TROUBLE" in done.stdout) == (0, False)

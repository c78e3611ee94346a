"""A file with a long journal: how long a restart takes, a copy, a replay, and catching up; and in how much memory.

    tools/bench entries --entries 1000000 --megabytes 1000

An engine makes the file: so many commits of one row each, over the last days, packed where they are old. A node serves
it; another joins by a copy, and compares that with its journal while it serves; a third joins by a replay of the whole
journal. Then clients write for a while as fast as they can with the second one stopped, which is started again and
catches up when they have ended. At last the first one is killed and started: its conflict window has all they wrote.
"""

import argparse
import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from tools.cluster import LocalCluster, LocalNode, free_ports
from tools.scenarios.year import Year

CLIENTS = 16
AGE_MS = 2 * 86_400_000  # of the first commit
BARE_BYTES = 330  # that an entry takes besides its row, when it is packed
PATIENCE_S = 1_800
REST_S = 0.2  # between two looks
COUNT = "SELECT count(*) FROM item"


def make_file(cluster: LocalCluster, entries: int, size: int) -> None:
    """Write the first node's file: entries that were committed one by one, over some days."""
    node, luck = cluster.nodes[0], random.Random(1)
    began_ms = int(time.time() * 1000) - AGE_MS
    note_bytes = max(16, 2 * (size // entries - BARE_BYTES) // 3)  # in its table, and packed in the journal
    year = Year(node.database, None, address=f"127.0.0.1:{node.port}")
    year.commit(began_ms, ("CREATE TABLE item(id INTEGER PRIMARY KEY, note TEXT)", ()))
    for number in range(entries):
        note = luck.randbytes(note_bytes // 2).hex()
        at_ms = began_ms + 1 + number * (AGE_MS - 600_000) // entries
        year.commit(at_ms, ("INSERT INTO item VALUES (?, ?)", (number, note)))
        if number % 10_000 == 9_999:
            year.pack(began_ms + AGE_MS)
            year.flush()
    year.close()


def memory_mb(node: LocalNode) -> int:
    """Return the most memory that a node's process has had, in MB."""
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1000 for line in lines if line.startswith("VmHWM"))


async def reached(cluster: LocalCluster, index: int, rows: int) -> None:
    """Wait until a node has so many rows and answers."""
    found = 0
    while found < rows:
        await trio.sleep(REST_S)
        with suppress(BedrockishError):  # it starts, or has to catch up before it answers
            async with open_client(cluster.url(index, only=True, options="/?connect_timeout=2")) as client:
                found = (await client.execute(COUNT, read="stale", timeout=5)).value()


def tell(what: str, seconds: float, note: str, *nodes: LocalNode) -> None:
    """Print a line: how long it took, what that means, and what the nodes' processes took for it since they started."""
    took = ", ".join(f"{node.name} {node.processor_s():.1f} s and {memory_mb(node)} MB" for node in nodes)
    print(f"{what:24} {seconds:7.1f} s  {note:36} {took}", flush=True)


async def join(cluster: LocalCluster, name: str, rows: int, *options: str) -> float:
    """Let a node join, and return how long it took until it had all rows."""
    node = LocalNode(name, free_ports(1)[0], cluster.directory)
    node.config.write_text(f'node = "{name}"\ndatabase = "{node.database.name}"\nlisten = "127.0.0.1:{node.port}"\n')
    url = cluster.url(0)
    cluster.nodes.append(node)
    began = time.monotonic()
    node.start("join", url, *options)
    await reached(cluster, len(cluster.nodes) - 1, rows)
    return time.monotonic() - began


async def compared(cluster: LocalCluster, index: int) -> float:
    """Wait until a node has compared its copy with its journal, which it does while it serves; return for how long."""
    began = time.monotonic()
    async with open_client(cluster.url(index, only=True)) as client:
        while (await client.status(timeout=30))["mode"] != "serving":  # noqa: ASYNC110  it is in another process
            await trio.sleep(REST_S)
    return time.monotonic() - began


async def write(cluster: LocalCluster, first: int, seconds: float) -> int:
    """Let clients write rows, each in a transaction of its own; return how many."""
    made = 0
    ends = time.monotonic() + seconds

    async def work() -> None:
        nonlocal made
        async with open_client(cluster.url(0, only=True)) as client:
            while time.monotonic() < ends:
                made += 1
                await client.execute("INSERT INTO item VALUES (?, ?)", [first + made, f"row {made} ".ljust(100, "x")])

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(work)
    return made


async def measure(cluster: LocalCluster, entries: int, write_s: float) -> None:
    """Measure all of it, one after the other."""
    with trio.fail_after(PATIENCE_S):
        await measure_each(cluster, entries, write_s)


async def measure_each(cluster: LocalCluster, entries: int, write_s: float) -> None:
    """Print a line for each."""
    first = cluster.nodes[0]
    size_mb = first.database.stat().st_size / 1e6
    print(f"{entries} entries, {size_mb:.0f} MB; processor time and most memory of each process", flush=True)
    began = time.monotonic()
    first.start()
    await reached(cluster, 0, entries)
    tell("start", time.monotonic() - began, "", first)
    took = await join(cluster, "B", entries)
    tell("join by a copy", took, f"{size_mb / took:.0f} MB/s", *cluster.nodes)
    took = await compared(cluster, 1)
    tell("the copy is compared", took, f"{entries / took:.0f} entries/s", cluster.nodes[1])
    took = await join(cluster, "C", entries, "--replay")
    tell("join by a replay", took, f"{entries / took:.0f} entries/s", first, cluster.nodes[2])
    cluster.nodes[1].kill()
    made = await write(cluster, entries, write_s)
    tell("writing, B stopped", write_s, f"{made / write_s:.0f} commits/s", first)
    began = time.monotonic()
    cluster.nodes[1].start()
    await reached(cluster, 1, entries + made)
    took = time.monotonic() - began
    tell("B starts, catches up", took, f"{made / took:.0f} entries/s", cluster.nodes[1])
    first.kill()
    began = time.monotonic()
    first.start()
    await reached(cluster, 0, entries + made)
    tell("A starts again", time.monotonic() - began, "", first)


def main(arguments: list[str] | None = None) -> int:
    """Make the file, and measure."""
    parser = argparse.ArgumentParser(prog="tools/bench entries", description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=100, help="of the file, about")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long clients write")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="entries-") as place:
        cluster = LocalCluster(Path(place), ("A",))
        cluster.write_files()
        began = time.monotonic()
        make_file(cluster, given.entries, given.megabytes * 1_000_000)
        print(f"the file was made in {time.monotonic() - began:.0f} s", flush=True)
        try:
            trio.run(measure, cluster, given.entries, given.seconds)
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

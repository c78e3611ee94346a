"""What recording traces costs: processor time of three nodes for a commit, with traces off, on, and recorded.

Each kind gets a cluster of its own, one after the other, in several rounds; at each node one client inserts a row at a
time. Spans are made by OpenTelemetry's SDK in the nodes and dropped there: what an exporter does comes on top.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

from bedrockish import open_client
from tools.cluster import LocalCluster

NAMES = "ABC"
PLUGIN, SHARE = "tools.scenarios.tracing_plugin", "BENCH_TRACES"
KINDS = {  # which part of all requests is recorded; None: traces are off
    "off": None,
    "on, no request is recorded": 0.0,
    "on, one request of 100 is": 0.01,
    "on, all requests are": 1.0,
}


async def insert(cluster: LocalCluster, seconds: float) -> float:
    """Let clients insert rows, and return how many milliseconds of the processor the nodes take for one."""
    for index in range(len(NAMES)):
        await cluster.wait_ready(index)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, note TEXT)")
    made = 0

    async def work(index: int, ends: float) -> None:
        nonlocal made
        async with open_client(cluster.url(index, only=True)) as client:
            while time.monotonic() < ends:
                made += 1
                await client.execute("INSERT INTO item VALUES (?, ?)", [made, "what was ordered, and by whom"])

    async def all_work(for_s: float) -> None:
        async with trio.open_nursery() as nursery:
            for index in range(len(NAMES)):
                nursery.start_soon(work, index, time.monotonic() + for_s)

    await all_work(1.0)
    before, counted = cluster.processor_s(), made
    await all_work(seconds)
    return 1000 * (cluster.processor_s() - before) / (made - counted)


def measure(share: float | None, seconds: float) -> float:
    """Measure one kind once."""
    with tempfile.TemporaryDirectory(prefix="tracing-") as place:
        cluster = LocalCluster(Path(place, "nodes"), NAMES, {} if share is None else {"log": {"traces": True}})
        cluster.write_files()
        if share is not None:
            os.environ[SHARE] = str(share)
            for node in cluster.nodes:
                node.config.write_text(f'plugins = ["{PLUGIN}"]\n' + node.config.read_text())
        try:
            for node in cluster.nodes:
                node.start()
            return trio.run(insert, cluster, seconds)
        finally:
            cluster.stop()


def main(arguments: list[str] | None = None) -> int:
    """Measure each kind in turn."""
    parser = argparse.ArgumentParser(prog="tools/bench tracing", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for how long clients write")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind, share in KINDS.items():
            found[kind].append(measure(share, given.seconds))
    off = statistics.median(found["off"])
    print("processor time of three nodes for a commit: the median, and all rounds")
    for kind, each in found.items():
        middle = statistics.median(each)
        rounds = ", ".join(f"{one:.2f}" for one in each)
        print(f"{kind:28} {middle:6.2f} ms  {100 * (middle / off - 1):+4.0f} %   {rounds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

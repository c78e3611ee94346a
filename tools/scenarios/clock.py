"""What the cluster's clock and safe time cost, and how far safe time is behind: on this machine, three real nodes.

tools/bench clock                 both
tools/bench clock --seconds 5     longer rounds

Rounds with and without alternate, and the ratio is that of their medians, so that a machine that gets slower meanwhile
slows both down. "Without" is a clock that only counts, and a heartbeat every two seconds instead of ten a second.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from bedrockish import open_client
from bedrockish.api.requests import STALE
from bedrockish.client.admin_calls import is_after
from bedrockish.client.trio_client import Client
from tools.cluster import LocalCluster

CLIENTS = 8  # at each node
WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "clock": {"enable_cluster_clock": False},
    "timings": {"heartbeat_ms": 2_000, "suspicion_ms": 10_000},
}
POLL_S = 0.005


async def inserts(url: str, seconds: float) -> float:
    """Return how many rows a second the clients of one node insert, each in a transaction of its own."""
    done = 0
    async with open_client(url) as client:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:

                async def work() -> None:
                    nonlocal done
                    while True:
                        await client.execute("INSERT INTO t(n) VALUES (1)")
                        done += 1

                for _ in range(CLIENTS):
                    nursery.start_soon(work)
    return done / seconds


async def lags(cluster: LocalCluster, count: int, pause_s: float) -> list[float]:
    """Return, for each of so many commits at one node, after how many ms another node calls it safe."""
    found: list[float] = []
    async with open_client(cluster.url(0)) as writer, open_client(cluster.url(1, only=True)) as reader:
        for _ in range(count):
            began = trio.current_time()
            sql = "INSERT INTO t(n) VALUES (transaction_clock()) RETURNING n"
            clock = int((await writer.execute(sql)).value())
            while is_after(clock, await _safe(reader)):  # noqa: ASYNC110  it is in another process
                await trio.sleep(POLL_S)
            found.append(1000 * (trio.current_time() - began))
            await trio.sleep(pause_s)
    return found


async def _safe(client: Client) -> int:
    return int((await client.execute("SELECT safe_clock()", read=STALE)).value())


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


async def measure_cost(directory: Path, seconds: float, rounds: int) -> None:
    """Print the ratio of inserts with the clock and safe time to those without."""
    rates: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for name in rates:
            settings = WITHOUT if name == "without" else {}
            async with running(directory / f"{name}{number}", settings) as cluster:
                rates[name].append(sum(await _at_all(cluster, seconds)))
                print(f"  {name:8} {rates[name][-1]:8.0f} inserts/s", flush=True)
    ratio = statistics.median(rates["with"]) / statistics.median(rates["without"])
    print(f"inserts with clock and safe time, against without: {ratio:.2f}")


async def _at_all(cluster: LocalCluster, seconds: float) -> list[float]:
    rates: list[float] = []

    async def one(index: int) -> None:
        rates.append(await inserts(cluster.url(index, only=True), seconds))

    async with trio.open_nursery() as nursery:
        for index in range(len(cluster.nodes)):
            nursery.start_soon(one, index)
    return rates


async def measure_lag(directory: Path, count: int) -> None:
    """Print how far safe time is behind, when nothing else happens and when clients are at work."""
    async with running(directory / "lag", {}) as cluster:
        await trio.sleep(3)
        _print("quiet", await lags(cluster, count, 0.2))
        async with trio.open_nursery() as nursery:
            for index in range(len(cluster.nodes)):
                nursery.start_soon(inserts, cluster.url(index, only=True), 3_600.0)
            await trio.sleep(2)
            _print("busy", await lags(cluster, count, 0.05))
            nursery.cancel_scope.cancel()


def _print(name: str, found: list[float]) -> None:
    p50, p99 = percentile(found, 50), percentile(found, 99)
    print(f"from a commit to safe at another node, {name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, of {len(found)}")


class running:  # noqa: N801  it is used as a function is
    """Three nodes, for the time of a block."""

    def __init__(self, directory: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._cluster = LocalCluster(directory, settings=settings)

    async def __aenter__(self) -> LocalCluster:
        cluster = self._cluster
        cluster.write_files()
        for node in cluster.nodes:
            node.start()
        for index in range(len(cluster.nodes)):
            await cluster.wait_ready(index)
        async with open_client(cluster.url()) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        return cluster

    async def __aexit__(self, *_error: object) -> None:
        await trio.to_thread.run_sync(self._cluster.stop)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools/bench clock", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round (3)")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind (3)")
    parser.add_argument("--commits", type=int, default=40, help="that are watched until they are safe (40)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        trio.run(measure_cost, Path(name), chosen.seconds, chosen.rounds)
        trio.run(measure_lag, Path(name), chosen.commits)


if __name__ == "__main__":
    main()

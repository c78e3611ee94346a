"""What schema changes cost those who read and write meanwhile: three nodes, a mixed load, and ALTERs and indexes.

tools/bench schema [--changes N] [--clients N] [--seconds S] [--skew MS]

Prints the rate and the times of the load before, during and after the changes, and the ratios to before; those are what
to look at, for the figures themselves are the machine's. Fails if a transaction of a client failed, or if the nodes'
files are not sound and equal afterwards.
"""

import tempfile
import time
from functools import partial
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table

from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.verify import verify
from tools.bench import quantile
from tools.cluster import LocalCluster
from tools.schema_load import Load, change, offset_walls

QUIET, CHANGING, AFTER = "before", "during", "after"


async def measure(
    cluster: LocalCluster, changes: int, clients: int, seconds: float, *, apart: bool
) -> tuple[Load, list[float], dict[str, float]]:
    """Run the load, and the changes in the middle of it; return both, and how long each phase lasted."""
    for index in range(len(cluster.nodes)):
        await cluster.wait_ready(index)
    load, lasted = Load(cluster, QUIET, apart=clients if apart else 0), dict[str, float]()
    await load.prepare()
    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(load.write, number)
        await trio.sleep(1.0)  # until everything is warm
        load.took.clear()
        load.attempts.clear()
        await trio.sleep(seconds)
        lasted[QUIET] = seconds
        load.phase, began = CHANGING, time.monotonic()
        took = await change(cluster, changes)
        lasted[CHANGING] = time.monotonic() - began
        load.phase = AFTER
        await trio.sleep(seconds)
        lasted[AFTER] = seconds
        load.stopping = True
    return load, took, lasted


def render(load: Load, lasted: dict[str, float]) -> Table:
    """Return a table of the load's phases."""
    table = Table(title="transactions of clients")
    for head in (
        "phase",
        "per second",
        "p50 ms",
        "p99 ms",
        "max ms",
        "rate to before",
        "p99 to before",
        "writes run again",
    ):
        table.add_column(head, justify="right")
    first = load.took[QUIET]
    for phase, seconds in lasted.items():
        took = load.took[phase]
        rate, p99 = len(took) / seconds, quantile(took, 0.99)
        table.add_row(
            *(
                phase,
                f"{rate:.0f}",
                f"{quantile(took, 0.5) * 1000:.1f}",
                f"{p99 * 1000:.1f}",
                f"{max(took) * 1000:.0f}",
            ),
            *(f"{rate / (len(first) / lasted[QUIET]):.2f}", f"{p99 / quantile(first, 0.99):.2f}"),
            _again(load.attempts[phase]),
        )
    return table


def _again(attempts: list[int]) -> str:
    again = sum(count > 1 for count in attempts)
    return f"{100 * again / len(attempts):.1f} %, at most {max(attempts) - 1} times"


def judge(cluster: LocalCluster) -> str:
    """Return what is wrong with the files of the stopped nodes; empty if nothing is."""
    paths = [node.database for node in cluster.nodes]
    found = verify(paths).findings
    if found:
        return found[0].text
    digests = set()
    for path in paths:
        db = open_readonly(path)
        digests.add(digest(db))
        db.close()
    return "" if len(digests) == 1 else "the nodes' tables differ"


@click.command()
@click.option("--changes", default=200, show_default=True, help="How many schema changes.")
@click.option("--clients", default=12, show_default=True, help="How many clients, each with one transaction at a time.")
@click.option("--seconds", default=10.0, show_default=True, help="How long to measure before and after them.")
@click.option("--skew", default=0, show_default=True, metavar="MS", help="How far two nodes' wall clocks are wrong.")
@click.option("--apart", is_flag=True, help="Each client has rows of its own: only changes can make anybody run again.")
def main(changes: int, clients: int, seconds: float, skew: int, apart: bool) -> None:
    """Measure what schema changes cost those who read and write meanwhile."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench-schema-") as directory:
        cluster = LocalCluster(Path(directory) / "cluster")
        cluster.write_files()
        offset_walls(cluster, [0, skew, -skew])
        try:
            for node in cluster.nodes:
                node.start()
            load, took, lasted = trio.run(partial(measure, cluster, changes, clients, seconds, apart=apart))
            trio.run(_level, cluster)
        finally:
            cluster.stop()
        wrong = judge(cluster)
    console.print(render(load, lasted))
    p50, p99 = quantile(took, 0.5) * 1000, quantile(took, 0.99) * 1000
    console.print(
        f"{len(took)} schema changes: p50 {p50:.0f} ms, p99 {p99:.0f} ms; {len(load.failures)} failed transactions"
    )
    if load.failures or wrong:
        raise click.ClickException(wrong or f"a client's transaction failed: {load.failures[0]}")


async def _level(cluster: LocalCluster) -> None:
    """Wait until all nodes have applied the same."""
    with trio.fail_after(60):
        while True:
            found = [(await cluster.wait_ready(index))["applied"] for index in range(len(cluster.nodes))]
            if all(one == found[0] for one in found):
                return
            await trio.sleep(0.1)


if __name__ == "__main__":
    main()

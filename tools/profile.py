"""Shows where one node spends its time under the benchmark's load: ``python -m tools.profile --work insert``.

Node A runs under cProfile; the figures are inflated by it, so read the order and the shares, not the seconds.
"""

import pstats
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import trio

from bedrockish import open_client
from tools.bench import SCHEMA, Draw
from tools.cluster import LocalCluster


async def load(cluster: LocalCluster, work: str, clients: int, seconds: float) -> int:
    """Run the load and return how many transactions were acknowledged."""
    done = 0

    async def client(number: int) -> None:
        nonlocal done
        draw = Draw(work, number, clients)
        async with open_client(cluster.url(number % 3)) as session:
            while True:
                await session.transact(draw())
                done += 1

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(client, number)
    return done


async def run(cluster: LocalCluster, work: str, clients: int, seconds: float) -> None:
    """Start, fill, load and stop."""
    for index in range(3):
        await cluster.wait_ready(index)
    async with open_client(cluster.url()) as session:
        for sql in SCHEMA:
            await session.execute(sql)
        for first in range(0, 10_000, 500):
            rows = [
                ("INSERT INTO bench_row(id, value) VALUES (?, 0)", (number,)) for number in range(first, first + 500)
            ]
            await session.transact(rows)
    print(f"{await load(cluster, work, clients, seconds) / seconds:.0f} transactions/s while profiled")


@click.command()
@click.option("--work", type=click.Choice(["insert", "update", "transfer", "hot"]), default="insert")
@click.option("--clients", default=64)
@click.option("--seconds", default=8.0)
@click.option("--lines", default=45)
@click.option("--sort", default="tottime")
def main(work: str, clients: int, seconds: float, lines: int, sort: str) -> None:
    """Profile node A of three under a load."""
    directory = Path(tempfile.mkdtemp(prefix="bedrockish-profile-"))
    cluster = LocalCluster(directory / "nodes")
    cluster.write_files()
    output = directory / "A.profile"
    first = cluster.nodes[0]
    try:
        with first.log.open("ab") as log:
            command = [sys.executable, "-m", "cProfile", "-o", str(output), "-m", "bedrockish.cli.main"]
            first.process = subprocess.Popen(
                [*command, "serve", "--config", str(first.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=first.directory,
            )
        for node in cluster.nodes[1:]:
            node.start()
        trio.run(run, cluster, work, clients, seconds)
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(20)
    finally:
        cluster.stop()
    pstats.Stats(str(output)).strip_dirs().sort_stats(sort).print_stats(lines)


if __name__ == "__main__":
    main()

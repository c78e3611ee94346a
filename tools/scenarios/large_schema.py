"""What changes of a large table's schema cost those who read and write others meanwhile.

tools/bench large_schema [--rows N]

Three nodes, and a table of so many rows: it is filled, indexed, and made anew in one transaction. For each it prints
how long it took, and the longest time that a node left a read and a write without an answer. Fails if one of them
failed.
"""

import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from tools.cluster import LocalCluster, local_cluster

PATIENT = "/?timeout=300&connect_timeout=100"
EVERY_S = 0.02
FILL = (
    "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) "
    "INSERT INTO big SELECT i, i * 7919 % 1000003, 'row ' || i FROM k"
)
TABLES = ["CREATE TABLE small(id INTEGER PRIMARY KEY, n)", "INSERT INTO small VALUES (1, 0), (2, 0)"]


class Bench:
    """The nodes, who asks them, and the longest answer of each phase, in seconds."""

    def __init__(self, cluster: LocalCluster, rows: int) -> None:
        self.cluster, self.rows = cluster, rows
        self.phase, self.stopping = "quiet", False
        self.longest: dict[tuple[str, str], float] = {}
        self.took: dict[str, float] = {}

    async def ask(self, index: int, name: str, sql: str, read: str) -> None:
        """Ask one node the same again and again; an error ends all."""
        async with open_client(self.cluster.url(index, only=True, options=PATIENT)) as client:
            while not self.stopping:
                phases, began = {self.phase}, time.monotonic()
                await client.execute(sql, read=read)
                waited = time.monotonic() - began
                for phase in phases | {self.phase}:
                    self.longest[phase, name] = max(self.longest.get((phase, name), 0.0), waited)
                await trio.sleep(EVERY_S)

    async def run(self) -> None:
        """Do it all."""
        for index in range(len(self.cluster.nodes)):
            await self.cluster.wait_ready(index)
        async with open_client(self.cluster.url(options=PATIENT)) as client:
            await client.transact([*TABLES])
            async with trio.open_nursery() as nursery:
                for index in range(len(self.cluster.nodes)):
                    nursery.start_soon(self.ask, index, "read", "SELECT n FROM small WHERE id = 1", "stale")
                nursery.start_soon(self.ask, 1, "write", "UPDATE small SET n = n + 1 WHERE id = 2", "session")
                await trio.sleep(2)
                await self._phase("fill", client, self._fill)
                await self._phase("index", client, self._index)
                await self._phase("make anew", client, self._anew)
                self.stopping = True

    async def _phase(self, name: str, client: Client, action: Callable[[Client], Awaitable[None]]) -> None:
        self.phase, began = name, time.monotonic()
        await action(client)
        self.took[name] = time.monotonic() - began
        self.phase = "quiet"
        await trio.sleep(1)

    async def _fill(self, client: Client) -> None:
        await client.transact(["CREATE TABLE big(id INTEGER PRIMARY KEY, n INTEGER, v TEXT)", (FILL, [self.rows])])

    async def _index(self, client: Client) -> None:
        await client.execute("CREATE INDEX big_n ON big(n)")

    async def _anew(self, client: Client) -> None:
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE new_big(id INTEGER PRIMARY KEY, n INTEGER, v TEXT, more)")
            await tx.execute("INSERT INTO new_big SELECT id, n, v, 0 FROM big")
            await tx.execute("DROP TABLE big")
            await tx.execute("ALTER TABLE new_big RENAME TO big")


@click.command()
@click.option("--rows", default=2_000_000, show_default=True, help="How many the table has.")
def main(rows: int) -> None:
    """Measure what changes of a large table's schema cost others."""
    with tempfile.TemporaryDirectory() as directory, local_cluster(Path(directory) / "cluster") as cluster:
        bench = Bench(cluster, rows)
        trio.run(bench.run)
    table = Table(title=f"{rows} rows, three nodes, seconds")
    for head in ("change", "took", "longest read", "longest write"):
        table.add_column(head, justify="right")
    for phase in ("quiet", *bench.took):
        figures = (bench.took.get(phase), *(bench.longest.get((phase, name)) for name in ("read", "write")))
        table.add_row(phase, *("" if figure is None else f"{figure:.2f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()

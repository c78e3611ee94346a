"""What changes of a large table's schema cost those who read and write others meanwhile.

tools/bench large_schema [--rows N] [--only index]

Three nodes, and a table of so many rows: it is filled, indexed, and made anew in one transaction. For each it prints
how long it took, and the longest time that a node left a read and a write without an answer, with the time that the
slowest but one in a hundred took. Fails if one of them failed.

On a machine that does other things, too, those times are not the nodes' own. So it also prints the longest time for
which a node's loop was held, by the processor time that it had in it (``tools.loop_holds``).
"""

import json
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
from tools.cluster import LocalCluster

PATIENT = "/?timeout=300&connect_timeout=100"
EVERY_S = 0.02
FILL = (
    "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) "
    "INSERT INTO big SELECT i, i * 7919 % 1000003, 'row ' || i FROM k"
)
TABLES = ["CREATE TABLE small(id INTEGER PRIMARY KEY, n)", "INSERT INTO small VALUES (1, 0), (2, 0)"]


class Bench:
    """The nodes, who asks them, and the longest answer of each phase, in seconds."""

    def __init__(self, cluster: LocalCluster, rows: int, only: str) -> None:
        self.cluster, self.rows, self.only = cluster, rows, only
        self.phase, self.stopping = "quiet", False
        self.waits: dict[tuple[str, str], list[float]] = {}
        self.spans: dict[str, tuple[float, float]] = {}
        self.took: dict[str, float] = {}

    async def ask(self, index: int, name: str, sql: str, read: str) -> None:
        """Ask one node the same again and again; an error ends all."""
        async with open_client(self.cluster.url(index, only=True, options=PATIENT)) as client:
            while not self.stopping:
                phases, began = {self.phase}, time.monotonic()
                await client.execute(sql, read=read)
                waited = time.monotonic() - began
                for phase in phases | {self.phase}:
                    self.waits.setdefault((phase, name), []).append(waited)
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
                if self.only != "index":
                    await self._phase("make anew", client, self._anew)
                self.stopping = True

    async def _phase(self, name: str, client: Client, action: Callable[[Client], Awaitable[None]]) -> None:
        self.phase, began = name, time.time()
        await action(client)
        self.spans[name] = began, time.time()
        self.took[name] = time.time() - began
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


def held_ms(directory: Path, since: float, until: float) -> float:
    """Return the longest time for which a node's loop was held between two moments, by its processor time."""
    found = [0.0]
    for told in directory.glob("*.holds"):
        for held in map(json.loads, told.read_text().splitlines()):
            if since <= held["at"] - held["wall_ms"] / 1000 and held["at"] <= until:
                found.append(held["busy_ms"])
    return max(found)


def shown(waits: list[float] | None) -> str:
    """Return the longest and the 99th percentile of some waits, for a table."""
    if not waits:
        return ""
    waits = sorted(waits)
    return f"{waits[-1]:.2f} ({waits[min(len(waits) - 1, len(waits) * 99 // 100)]:.2f})"


@click.command()
@click.option("--rows", default=2_000_000, show_default=True, help="How many the table has.")
@click.option("--only", type=click.Choice(["all", "index"]), default="all", show_default=True, help="What is done.")
def main(rows: int, only: str) -> None:
    """Measure what changes of a large table's schema cost others."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        cluster = LocalCluster(directory / "cluster", settings={"limits": {"statement_ms_max": 600_000}})
        cluster.write_files()
        try:
            for node in cluster.nodes:
                node.program = ("-m", "tools.loop_holds", str(directory / f"{node.name}.holds"))
                node.start()
            bench = Bench(cluster, rows, only)
            trio.run(bench.run)
        finally:
            cluster.stop()
        held = {phase: held_ms(directory, *span) for phase, span in bench.spans.items()}
    table = Table(title=f"{rows} rows, three nodes, seconds (99th percentile)")
    for head in ("change", "took", "longest read", "longest write", "loop held, ms of processor"):
        table.add_column(head, justify="right")
    for phase in ("quiet", *bench.took):
        took, busy = (f"{bench.took[phase]:.2f}", f"{held[phase]:.0f}") if phase in held else ("", "")
        table.add_row(
            phase, took, shown(bench.waits.get((phase, "read"))), shown(bench.waits.get((phase, "write"))), busy
        )
    Console().print(table)


if __name__ == "__main__":
    main()

"""Measures three of our nodes and three of MariaDB Galera, in turn and in one run, each commit durable.

Nodes and clients run on this machine: ours with the trio client, Galera with its own client in C, a thread each; a
transfer is one round trip at both. Each round starts new clusters; the output has medians. The reader has to install
Galera (see ``tools/peer_galera.py``).
"""

import math
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table

from tools.bench import WARM_UP_S, Measured, measure_all, quantile, read_numbers
from tools.cluster import DemoError, local_cluster
from tools.peer_galera import driver, galera

CHOICES = ("insert", "update", "transfer", "hot")
OURS, THEIRS = "bedrockish", "Galera"


@dataclass(frozen=True)
class Cell:
    """One measurement: a workload and a number of clients."""

    work: str
    clients: int


def measure_ours(directory: Path, cells: list[Cell], seconds: float) -> list[Measured]:
    """Run all cells on three nodes of ours."""
    works, clients = _axes(cells)
    with local_cluster(directory / "ours") as cluster:
        return trio.run(measure_all, cluster, works, clients, seconds, lambda _: None)


def measure_galera(directory: Path, cells: list[Cell], seconds: float) -> list[Measured]:
    """Run all cells on three nodes of Galera."""
    found, inserted, added = list[Measured](), 0, 0
    with galera(directory) as cluster:
        for cell in cells:
            used_s = cluster.processor_s()
            took, total, lost = cluster.run(cell.work, cell.clients, seconds, WARM_UP_S)
            nodes_ms = (cluster.processor_s() - used_s) * 1e3 / max(1, total)
            p50, p99 = quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3
            found.append(Measured(cell.work, 3, cell.clients, len(took), seconds, p50, p99, lost, 0, nodes_ms))
            inserted += total if cell.work == "insert" else 0
            added += total if cell.work in ("update", "hot") else 0
        cluster.check(inserted, added)
    return found


def _axes(cells: list[Cell]) -> tuple[list[str], list[int]]:
    return list(dict.fromkeys(cell.work for cell in cells)), list(dict.fromkeys(cell.clients for cell in cells))


def render(found: dict[tuple[str, Cell], list[Measured]], cells: list[Cell], rounds: int) -> Table:
    """Return the table for people: medians of the rounds, and ours divided by theirs."""
    table = Table(title=f"three nodes and their clients on this machine, medians of {rounds} rounds")
    for head in ("work", "clients", "", "commits/s", "ratio", "p50 ms", "p99 ms", "CPU ms", "run again"):
        table.add_column(head, justify="left" if head in ("work", "") else "right")
    for cell in cells:
        rates = {name: _median(found[name, cell], "rate") for name in (OURS, THEIRS)}
        for name in (OURS, THEIRS):
            runs = found[name, cell]
            ours = name == OURS
            ratio = f"{rates[OURS] / rates[THEIRS]:.2f}" if ours and rates[THEIRS] else ""
            figures = [f"{_median(runs, what):.2f}" for what in ("p50_ms", "p99_ms", "nodes_ms")]
            again = f"{_median(runs, 'retries'):,.0f}"
            named = (cell.work, str(cell.clients)) if ours else ("", "")
            table.add_row(*named, name, f"{rates[name]:,.0f}", ratio, *figures, again, end_section=not ours)
    return table


def _median(runs: list[Measured], what: str) -> float:
    return statistics.median(getattr(run, what) for run in runs) if runs else math.nan


@click.command(help=__doc__)
@click.option("--work", "works", multiple=True, type=click.Choice(CHOICES), help="of which kind; all by default")
@click.option("--clients", default="1,16,64", callback=read_numbers, show_default=True, help="how many at once")
@click.option("--seconds", default=5.0, show_default=True, help="for each kind of work and number of clients")
@click.option("--rounds", default=3, show_default=True, help="how often both are started and measured")
def main(works: tuple[str, ...], clients: list[int], seconds: float, rounds: int) -> None:
    """Run the program."""
    console, found = Console(), defaultdict[tuple[str, Cell], list[Measured]](list)
    cells = [Cell(work, count) for work in works or CHOICES for count in clients]
    try:
        driver()
        for number in range(rounds):
            for name, measure in ((OURS, measure_ours), (THEIRS, measure_galera)):
                with (
                    console.status(f"round {number + 1} of {rounds}: {name}"),
                    tempfile.TemporaryDirectory(prefix="bedrockish-peers-") as directory,
                ):
                    for one in measure(Path(directory), cells, seconds):
                        found[name, Cell(one.work, one.clients)].append(one)
    except DemoError as error:
        console.print(f"error: {error}", style="bold red", markup=False)
        sys.exit(1)
    console.print(render(found, cells, rounds))


if __name__ == "__main__":
    main(prog_name="tools/bench peers")

"""Measures three of our nodes and three of MariaDB Galera, in turn and in one run, each commit durable.

Nodes and clients run on this machine: ours with the trio client, Galera with its own client in C, a thread each; a
transfer is one round trip at both. A strict read of Galera has ``wsrep_sync_wait=1``. Reads over HTTP are ours alone,
by callers that keep their connections. Each round starts new clusters; the output has medians. The reader has to
install Galera (see ``tools/scenarios/galera.py``). A line below the table names each update that Galera has lost or
doubled.
"""

import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table

from tools.bench import READS, WARM_UP_S, Draw, Measured, measure_all, quantile, read_numbers
from tools.cluster import DemoError, LocalCluster, local_cluster
from tools.scenarios.galera import driver, galera

CHOICES = ("insert", "update", "transfer", "hot", *READS, "http")
OURS, THEIRS = "bedrockish", "Galera"
LENGTH = re.compile(rb"content-length: (\d+)")
HEAD = b"POST /db/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True)
class Cell:
    """One measurement: a workload and a number of clients."""

    work: str
    clients: int


def measure_ours(directory: Path, cells: list[Cell], seconds: float) -> list[Measured]:
    """Run all cells on three nodes of ours."""
    works, clients = _axes(cells)
    with local_cluster(directory / "ours", http="http" in works) as cluster:
        own = [work for work in works if work != "http"]
        found = trio.run(measure_all, cluster, own, clients, seconds, lambda _: None)
        return found + [trio.run(measure_http, cluster, c.clients, seconds) for c in cells if c.work == "http"]


async def measure_http(cluster: LocalCluster, clients: int, seconds: float) -> Measured:
    """Read rows over HTTP, by callers that keep their connections, spread evenly over the nodes."""
    took, total = list[float](), 0
    began, used_s = time.perf_counter(), cluster.processor_s()

    async def run(number: int) -> None:
        nonlocal total
        port, draw = cluster.nodes[number % len(cluster.nodes)].http_port, Draw("http", number, clients)
        assert port is not None
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            while (start := time.perf_counter()) - began < WARM_UP_S + seconds:
                await _ask(stream, json.dumps([[sql, *params] for sql, params in draw()]).encode())
                end = time.perf_counter()
                total += 1
                if start - began >= WARM_UP_S and end - began <= WARM_UP_S + seconds:
                    took.append(end - start)

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(run, number)
    nodes_ms = (cluster.processor_s() - used_s) * 1e3 / max(1, total)
    p50, p99 = quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3
    return Measured("http", len(cluster.nodes), clients, len(took), seconds, p50, p99, 0, 0, nodes_ms)


async def _ask(stream: trio.SocketStream, body: bytes) -> None:
    """Send one query and read the whole answer.

    Raises:
        DemoError: the node did not answer it.
    """
    await stream.send_all(HEAD % len(body) + body)
    answer, rest, missing = b"", b"", 1
    while missing > 0:
        piece = await stream.receive_some(65536)
        answer += piece
        head, found, rest = answer.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not piece or not answer.startswith(b"HTTP/1.1 200 "[: len(answer)]) or (found and length is None):
            raise DemoError(f"a read over HTTP failed: {answer[:300].decode(errors='replace')}")
        missing = int(length[1]) - len(rest) if found and length is not None else 1
    json.loads(rest)


def measure_galera(directory: Path, cells: list[Cell], seconds: float) -> tuple[list[Measured], str]:
    """Run all cells on three nodes of Galera; return the measurements, and a text about lost or doubled updates."""
    found, inserted, added = list[Measured](), 0, 0
    with galera(directory) as cluster:
        for cell in cells:
            if cell.work == "http":
                continue
            used_s = cluster.processor_s()
            ran = cluster.run(cell.work, cell.clients, seconds, WARM_UP_S)
            nodes_ms = (cluster.processor_s() - used_s) * 1e3 / max(1, ran.total)
            p50, p99 = quantile(ran.took, 0.5) * 1e3, quantile(ran.took, 0.99) * 1e3
            found.append(Measured(cell.work, 3, cell.clients, len(ran.took), seconds, p50, p99, ran.lost, 0, nodes_ms))
            inserted += ran.written if cell.work == "insert" else 0
            added += ran.written if cell.work in ("update", "hot", "mix") else 0
        return found, cluster.check(inserted, added)


def _axes(cells: list[Cell]) -> tuple[list[str], list[int]]:
    return list(dict.fromkeys(cell.work for cell in cells)), list(dict.fromkeys(cell.clients for cell in cells))


def render(found: dict[tuple[str, Cell], list[Measured]], cells: list[Cell], rounds: int) -> Table:
    """Return the table for people: medians of the rounds, and ours divided by theirs."""
    table = Table(title=f"three nodes and their clients on this machine, medians of {rounds} rounds")
    for head in ("work", "clients", "", "per second", "ratio", "p50 ms", "p99 ms", "CPU ms", "run again"):
        table.add_column(head, justify="left" if head in ("work", "") else "right")
    for cell in cells:
        rates = {name: _median(found[name, cell], "rate") for name in (OURS, THEIRS)}
        for name in (OURS, THEIRS) if cell.work != "http" else (OURS,):
            runs = found[name, cell]
            ours = name == OURS
            ratio = f"{rates[OURS] / rates[THEIRS]:.2f}" if ours and rates[THEIRS] > 0 else ""
            figures = [f"{_median(runs, what):.2f}" for what in ("p50_ms", "p99_ms", "nodes_ms")]
            again = f"{_median(runs, 'retries'):,.0f}"
            named = (cell.work, str(cell.clients)) if ours else ("", "")
            table.add_row(
                *named, name, f"{rates[name]:,.0f}", ratio, *figures, again, end_section=not ours or cell.work == "http"
            )
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
    faults: list[str] = []
    console, found = Console(), defaultdict[tuple[str, Cell], list[Measured]](list)
    cells = [Cell(work, count) for work in works or CHOICES for count in clients]
    try:
        driver()
        for number in range(rounds):
            for name in (OURS, THEIRS):
                with (
                    console.status(f"round {number + 1} of {rounds}: {name}"),
                    tempfile.TemporaryDirectory(prefix="bedrockish-peers-") as directory,
                ):
                    if name == OURS:
                        measured = measure_ours(Path(directory), cells, seconds)
                    else:
                        measured, wrong = measure_galera(Path(directory), cells, seconds)
                        faults += [f"round {number + 1}: {wrong}"] if wrong else []
                    for one in measured:
                        found[name, Cell(one.work, one.clients)].append(one)
    except DemoError as error:
        console.print(f"error: {error}", style="bold red", markup=False)
        sys.exit(1)
    console.print(render(found, cells, rounds))
    for fault in faults:
        console.print(fault, style="bold red", markup=False)


if __name__ == "__main__":
    main(prog_name="tools/bench peers")

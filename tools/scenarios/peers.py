"""Measures three of our nodes, three of MariaDB Galera and three of etcd, in turn and in one run, each commit durable.

Nodes and clients run on this machine: ours with the trio client, and Galera with its own client in C, both by Unix
sockets; etcd with gRPC by TCP, a thread for each client. A transfer is one round trip. etcd, where it is installed,
puts and reads keys (``tools.scenarios.etcd``). A strict read of Galera has ``wsrep_sync_wait=1``. Reads over HTTP are
ours alone, by callers that keep their connections. Each round starts new clusters; the output has medians. The reader
has to install Galera (see ``tools/scenarios/galera.py``). A line below the table names each update that Galera has lost
or doubled.
"""

import json
import math
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table

from tools.bench import READS, Draw, Measured, Run, clients_option, measure_all, seconds_option
from tools.cluster import DemoError, LocalCluster, local_cluster
from tools.scenarios import etcd
from tools.scenarios.galera import driver, galera

CHOICES = ("insert", "update", "transfer", "hot", *READS, "http")
OURS, THEIRS, ETCD = "bedrockish", "Galera", "etcd"
LENGTH = re.compile(rb"content-length: (\d+)")
HEAD = b"POST /db/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True)
class Cell:
    work: str
    clients: int


def measure_ours(directory: Path, cells: list[Cell], seconds: float) -> list[Measured]:
    """Run all cells on three of our nodes."""
    works, clients = dict.fromkeys(cell.work for cell in cells), list(dict.fromkeys(cell.clients for cell in cells))
    with local_cluster(directory / "ours", http="http" in works) as cluster:
        own = [work for work in works if work != "http"]
        measure = partial(measure_all, cluster, own, clients, seconds, lambda _: None, by_socket=True)
        found = trio.run(measure)
        return found + [trio.run(measure_http, cluster, c.clients, seconds) for c in cells if c.work == "http"]


async def measure_http(cluster: LocalCluster, clients: int, seconds: float) -> Measured:
    """Read rows over HTTP, by callers that keep their connections, spread evenly over the nodes."""
    run = Run("http", len(cluster.nodes), clients, seconds, cluster.processor_s)

    async def call(number: int) -> None:
        port, draw = cluster.nodes[number % len(cluster.nodes)].http_port, Draw("http", number, clients)
        assert port is not None
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            for start in run.starts():
                statements = draw()
                await _ask(stream, json.dumps([[sql, *params] for sql, params in statements]).encode())
                run.count(start, statements)

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(call, number)
    return run.measured()


async def _ask(stream: trio.SocketStream, body: bytes) -> None:
    """Send one query and read the whole answer."""
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
    with galera(directory) as cluster:
        runs = [cluster.run(cell.work, cell.clients, seconds) for cell in cells if cell.work != "http"]
        return runs, cluster.check()


def measure_etcd(directory: Path, cells: list[Cell], seconds: float) -> list[Measured]:
    """Run the cells whose work etcd supports on three nodes of etcd."""
    with etcd.etcd(directory) as cluster:
        return [cluster.run(cell.work, cell.clients, seconds) for cell in cells if cell.work in etcd.WORKS]


def render(found: dict[tuple[str, Cell], list[Measured]], cells: list[Cell], rounds: int) -> Table:
    """Return the table: the medians of the rounds, and our rate divided by that of each other system."""
    table = Table(title=f"three nodes and their clients on this machine, medians of {rounds} rounds")
    for head in ("work", "clients", "", "per second", "ours is", "p50 ms", "p99 ms", "CPU ms", "run again"):
        table.add_column(head, justify="left" if head in ("work", "") else "right")
    for cell in cells:
        names = [name for name in (OURS, THEIRS, ETCD) if found.get((name, cell))]
        rates = {name: _median(found[name, cell], "rate") for name in names}
        for name in names:
            runs = found[name, cell]
            ratio = f"{rates[OURS] / rates[name]:.2f}" if name != OURS and rates[name] > 0 else ""
            figures = [f"{_median(runs, what):.2f}" for what in ("p50_ms", "p99_ms", "nodes_ms")]
            again = f"{_median(runs, 'retries'):,.0f}"
            named = (cell.work, str(cell.clients)) if name == OURS else ("", "")
            table.add_row(*named, name, f"{rates[name]:,.0f}", ratio, *figures, again, end_section=name == names[-1])
    return table


def _median(runs: list[Measured], what: str) -> float:
    return statistics.median(getattr(run, what) for run in runs) if runs else math.nan


@click.command(help=__doc__)
@click.option(
    "--work",
    "works",
    multiple=True,
    type=click.Choice(CHOICES),
    help="the kind of work, all by default; may be repeated",
)
@clients_option
@seconds_option(5.0)
@click.option("--rounds", default=3, show_default=True, help="how often each system is started and measured")
def main(works: tuple[str, ...], clients: list[int], seconds: float, rounds: int) -> None:
    """Measure each system in each round, and print the table."""
    faults: list[str] = []
    console, found = Console(), defaultdict[tuple[str, Cell], list[Measured]](list)
    cells = [Cell(work, count) for work in works or CHOICES for count in clients]
    lacking = etcd.missing()
    names = (OURS, THEIRS) if lacking else (OURS, THEIRS, ETCD)
    try:
        driver()
        for number, name in product(range(rounds), names):
            with (
                console.status(f"round {number + 1} of {rounds}: {name}"),
                tempfile.TemporaryDirectory(prefix="bedrockish-peers-") as directory,
            ):
                place, wrong = Path(directory), ""
                if name == OURS:
                    measured = measure_ours(place, cells, seconds)
                elif name == ETCD:
                    measured = measure_etcd(place, cells, seconds)
                else:
                    measured, wrong = measure_galera(place, cells, seconds)
                faults += [f"round {number + 1}: {wrong}"] if wrong else []
                for one in measured:
                    found[name, Cell(one.work, one.clients)].append(one)
    except DemoError as error:
        console.print(f"error: {error}", style="bold red", markup=False)
        sys.exit(1)
    console.print(render(found, cells, rounds))
    if lacking:
        console.print(f"without etcd: install {lacking}")
    for fault in faults:
        console.print(fault, style="bold red", markup=False)

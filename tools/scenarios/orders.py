"""Measures open transactions of many statements, each a round trip, on three nodes and on MariaDB Galera: order entry,
and transfers.

Order entry is a mix of transactions of 10 to 45 statements (reads by key, joins, inserts, updates) of 12 terminals,
which are processes with the blocking client; a transfer is two reads and two updates. Both clusters have three nodes on
this machine, terminals spread over them, durable commits, and take turns; what is printed are medians of the rounds.
The processor's time for one statement depends least on what else the machine is busy with. At the end the confirmed
transactions are compared with the tables of each node. ``--alone`` measures ours only.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import trio
from rich.console import Console
from rich.table import Table

import bedrockish
from bedrockish.api.requests import ISOLATIONS, SERIALIZABLE
from tools.bench import quantile, read_numbers
from tools.cluster import ROOT, DemoError, clean_environment, local_cluster
from tools.scenarios.galera import driver, galera
from tools.scenarios.orders_work import FILLED, LAWS, SCHEMA, Told, rows

OURS, THEIRS = "bedrockish", "Galera"
WARM_UP_S = 1.0
PROCESSES_MAX = 12  # of terminals; more of them share some, as threads
KINDS = {"orders": [12], "transfer": [16, 64]}


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run of one workload.

    Attributes:
        rate: transactions in a second.
        p50_ms: median time of a transaction, with its tries that were lost.
        p99_ms: what one of a hundred exceeds.
        again: tries that were lost, for each transaction.
        statements: of a transaction, those of lost tries too.
        node_ms: processor time of all nodes for one statement, commits included.
        client_ms: the same of the clients.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    again: float
    statements: float
    node_ms: float
    client_ms: float


def run_terminals(
    kind: str, places: list[str], seconds: float, used_s: Callable[[], float], isolation: str = SERIALIZABLE
) -> Run:
    """Run one terminal per address, in separate processes.

    Raises:
        DemoError: a process has failed; the text has its error.
    """
    processes = []
    count = min(len(places), PROCESSES_MAX)
    for first in range(count):
        numbers = list(range(first, len(places), count))
        asked = {"places": [places[one] for one in numbers], "numbers": numbers, "kind": kind, "isolation": isolation}
        asked |= {"warm_up_s": WARM_UP_S, "seconds": seconds}
        command = [sys.executable, "-m", "tools.scenarios.orders_work", json.dumps(asked)]
        made = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_environment(),
        )
        processes.append(made)
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready, or has ended: then the next lines say so
        before_s = used_s()
        for process in processes:
            assert process.stdin is not None
            if process.poll() is None:
                process.stdin.write("go\n")
                process.stdin.flush()
        told = [_told(process, seconds) for process in processes]
        nodes_s = used_s() - before_s
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    took = [one for each in told for one in each.took]
    done, statements = sum(one.done for one in told), max(1, sum(one.statements for one in told))
    return Run(
        len(took) / seconds,
        quantile(took, 0.5) * 1e3,
        quantile(took, 0.99) * 1e3,
        sum(one.lost for one in told) / max(1, done),
        statements / max(1, done),
        nodes_s * 1e3 / statements,
        sum(one.busy_s for one in told) * 1e3 / statements,
    )


def _told(process: subprocess.Popen[str], seconds: float) -> Told:
    try:
        output, said = process.communicate(timeout=WARM_UP_S + seconds + 120)
    except subprocess.TimeoutExpired as error:
        raise DemoError("a terminal does not come to an end") from error
    if process.returncode:
        raise DemoError(f"a terminal has ended with an error: {said[-1500:]}")
    return Told(**json.loads(output.splitlines()[-1]))


@contextmanager
def ours(directory: Path) -> Iterator[tuple[list[str], Callable[[], float]]]:
    """Run three nodes of ours; yield the addresses for terminals, and a function that returns the nodes' processor
    time.
    """
    with local_cluster(directory / "ours") as cluster:
        for number in range(3):
            trio.run(cluster.wait_ready, number)
        urls = [cluster.url(number, only=True, options="/?timeout=60") for number in range(3)]
        with closing(bedrockish.connect(cluster.url(options="/?timeout=60"))) as connection:
            for sql in SCHEMA:
                connection.execute(sql)
            for sql, made in rows():
                for first in range(0, len(made), FILLED):
                    connection.transact([(sql, row) for row in made[first : first + FILLED]])
            yield urls, cluster.processor_s
            for node, url in zip(cluster.nodes, urls, strict=True):
                with closing(bedrockish.connect(url)) as there:
                    check(node.name, lambda sql, db=there: db.execute(sql, read="strict").value())  # type: ignore[misc]


@contextmanager
def theirs(directory: Path) -> Iterator[tuple[list[str], Callable[[], float]]]:
    """Run three nodes of Galera; give the same."""
    with galera(directory) as cluster:
        with closing(cluster.connect(0)) as db:
            cursor = db.cursor()
            for sql in SCHEMA:
                cursor.execute(sql)
            for sql, made in rows():
                cursor.executemany(sql.replace("?", "%s"), made)
        yield [str(node.socket) for node in cluster.nodes], cluster.processor_s
        for number in range(3):
            with closing(cluster.connect(number)) as db:
                cursor = db.cursor()
                cursor.execute("SET SESSION wsrep_sync_wait = 15")

                def ask(sql: str, cursor: Any = cursor) -> int:
                    cursor.execute(sql)
                    return int(cursor.fetchone()[0])

                check(f"Galera's node {number}", ask)


def check(node: str, ask: Callable[[str], int]) -> None:
    """Hold the laws of the tables against what a node has.

    Raises:
        DemoError: one is broken, so that the numbers mean nothing.
    """
    for law, pair in LAWS.items():
        one, other = map(ask, pair)
        if one != other:
            raise DemoError(f"{node}: {law} differ: {one} and {other}")


def measure(peer: str, cells: list[tuple[str, int]], seconds: float, isolation: str) -> list[Run]:
    """Start a cluster, and measure each kind of work with so many terminals."""
    with (
        tempfile.TemporaryDirectory(prefix="bedrockish-orders-") as directory,
        (ours if peer == OURS else theirs)(Path(directory)) as (places, used_s),
    ):
        found = []
        for kind, count in cells:
            spread = [places[number % len(places)] for number in range(count)]
            found.append(run_terminals(kind, spread, seconds, used_s, isolation))
        return found


def render(found: dict[tuple[str, str, int], list[Run]], cells: list[tuple[str, int]], rounds: int) -> Table:
    """Return the table for people: medians of the rounds, and ours divided by theirs."""
    table = Table(title=f"open transactions, three nodes and their clients on this machine, medians of {rounds} rounds")
    heads = ("work", "terminals", "", "/s", "ratio", "p50 ms", "p99 ms", "again", "statements", "node ms", "client ms")
    for head in heads:
        table.add_column(head, justify="left" if head in ("work", "") else "right")
    for kind, count in cells:
        for peer in (OURS, THEIRS):
            runs = found[peer, kind, count]
            if not runs:
                continue
            ratios = [mine.rate / their.rate for mine, their in zip(runs, found[THEIRS, kind, count], strict=False)]
            ratio = f"{statistics.median(ratios):.3f}" if peer == OURS and ratios else ""
            middle = {name: statistics.median(getattr(run, name) for run in runs) for name in Run.__slots__}
            named = (kind, str(count)) if peer == OURS else ("", "")
            table.add_row(
                *named,
                peer,
                f"{middle['rate']:,.0f}",
                ratio,
                f"{middle['p50_ms']:.1f}",
                f"{middle['p99_ms']:.0f}",
                f"{middle['again']:.2f}",
                f"{middle['statements']:.1f}",
                f"{middle['node_ms']:.3f}",
                f"{middle['client_ms']:.3f}",
                end_section=peer == THEIRS,
            )
    return table


@click.command(help=__doc__)
@click.option("--work", "works", multiple=True, type=click.Choice(list(KINDS)), help="of which kind; all by default")
@click.option("--clients", callback=lambda c, p, v: v and read_numbers(c, p, v), help="terminals; by default the usual")
@click.option("--seconds", default=5.0, show_default=True, help="for each kind of work and number of terminals")
@click.option("--rounds", default=3, show_default=True, help="how often each is started and measured")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATIONS),
    default=SERIALIZABLE,
    show_default=True,
    help="of our transactions; MariaDB's are at REPEATABLE READ, which is like snapshot",
)
@click.option("--alone", is_flag=True, help="ours only")
def main(
    works: tuple[str, ...], clients: list[int] | None, seconds: float, rounds: int, isolation: str, *, alone: bool
) -> None:
    """Run the program."""
    console, found = Console(width=None if sys.stdout.isatty() else 120), defaultdict[Any, list[Run]](list)
    cells = [(kind, count) for kind in works or KINDS for count in clients or KINDS[kind]]
    try:
        if not alone:
            driver()
        for number in range(rounds):
            for peer in (OURS,) if alone else (OURS, THEIRS):
                with console.status(f"round {number + 1} of {rounds}: {peer}"):
                    for cell, run in zip(cells, measure(peer, cells, seconds, isolation), strict=True):
                        found[peer, *cell].append(run)
    except DemoError as error:
        console.print(f"error: {error}", style="bold red", markup=False)
        sys.exit(1)
    console.print(render(found, cells, rounds))

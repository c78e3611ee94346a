"""Measures real nodes and plain SQLite in one run on one machine, with every commit durable on both sides.

Plain SQLite is one connection in WAL mode with ``synchronous=FULL``: one transaction, one fsync. The nodes are
processes; the clients are tasks of this process, each with its own link. At the end the counted commits are compared
with the tables.
"""

import ast
import importlib
import json
import math
import platform
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import trio
from rich.console import Console
from rich.table import Table

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError
from bedrockish.local.page import socket_path
from tools.cluster import DemoError, LocalCluster, end_in_order, local_cluster

NAMES = "ABCDEFG"  # the names of the nodes
ROWS = 10_000
WARM_UP_S = 0.5
BATCH = 500
SCHEMA = (
    "CREATE TABLE bench_item(id INTEGER PRIMARY KEY, note TEXT NOT NULL)",
    "CREATE TABLE bench_auto(id INTEGER PRIMARY KEY, note TEXT NOT NULL)",
    "CREATE TABLE bench_row(id INTEGER PRIMARY KEY, value INTEGER NOT NULL)",
)
INSERT = "INSERT INTO bench_item(id, note) VALUES (?, ?)"
AUTO = "INSERT INTO bench_auto(note) VALUES (?)"
NOTE = "what was ordered, and by whom"
FILL = "INSERT INTO bench_row(id, value) VALUES (?, 0)"
ADD = "UPDATE bench_row SET value = value + ? WHERE id = ?"
READ = "SELECT value FROM bench_row WHERE id = ?"
WRITES_OF_MIX = 0.05
Statements = list[tuple[str, tuple[Any, ...]]]


class Draw:
    """Makes up the transactions of one client."""

    def __init__(self, work: str, client: int, clients: int) -> None:
        self._make: Callable[[], Statements] = getattr(self, f"_{work}")
        self._luck = random.Random(f"{work} {client} of {clients}")
        self._client, self._clients, self._count = client, clients, 0

    def __call__(self) -> Statements:
        self._count += 1
        return self._make()

    def _insert(self) -> Statements:
        """Return an INSERT of one row; each client has its own ids."""
        return [(INSERT, (self._luck.getrandbits(40) << 10 | self._client, NOTE))]

    def _auto(self) -> Statements:
        """Return an INSERT of one row whose id the node assigns."""
        return [(AUTO, (NOTE,))]

    def _update(self) -> Statements:
        """Return an UPDATE of one row that no other client writes."""
        mine = self._luck.randrange(ROWS // self._clients) * self._clients + self._client
        return [(ADD, (1, mine + 1))]

    def _transfer(self) -> Statements:
        """Return a transfer between two of many rows; now and then two clients conflict."""
        one, other = self._luck.sample(range(1, ROWS + 1), 2)
        return [(ADD, (-1, one)), (ADD, (1, other))]

    def _hot(self) -> Statements:
        """Return an UPDATE of the one row that all clients write."""
        return [(ADD, (1, 1))]

    def _read(self) -> Statements:
        """Return a SELECT of one row by its key."""
        return [(READ, (self._luck.randrange(ROWS) + 1,))]

    _strict = _http = _read

    def _mix(self) -> Statements:
        return self._update() if self._luck.random() < WRITES_OF_MIX else self._read()


WORKS = {
    "insert": "one new row",
    "auto": "one new row without an id",
    "update": "one row of one's own",
    "transfer": "two rows of many",
    "hot": "one row of all",
}
READS = {"read": "one row by its key", "strict": "the same, strictly", "mix": "95 reads and 5 updates"}


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one run of one workload."""

    work: str  # the workload
    nodes: int  # the number of nodes; 0 is plain SQLite
    clients: int  # the number of concurrent clients; 0 is plain SQLite with one connection
    commits: int  # transactions that committed in the measured time
    seconds: float  # the measured time
    p50_ms: float  # the median time of a transaction
    p99_ms: float  # the 99th percentile of the time
    retries: int = 0  # how often a node ran a transaction again because of a conflict
    failures: int = 0  # commands that failed with a conflict
    nodes_ms: float = math.nan  # the processor time of all nodes for one transaction; NaN on systems without ``/proc``
    memory_mib: float = math.nan  # the resident memory of a node, the average of all; NaN on systems without ``/proc``

    @property
    def rate(self) -> float:
        """Transactions per second."""
        return self.commits / self.seconds


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile of some values; NaN without values.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


@dataclass
class Run:
    """A run of one workload: a warm-up, and then the measured time. Any thread may call its methods."""

    work: str  # the workload
    nodes: int  # the number of nodes; 0 is plain SQLite
    clients: int  # the number of concurrent clients; 0 is plain SQLite with one connection
    seconds: float  # the time to measure
    processor_s: Callable[[], float] = lambda: math.nan  # returns the processor time of all nodes, in seconds
    memory_mib: Callable[[], float] = lambda: math.nan  # returns the average resident memory of a node
    warm_up_s: float = WARM_UP_S
    took: list[float] = field(default_factory=list)  # the seconds of each transaction in the measured time
    retries: int = 0  # how often a node ran a measured transaction again because of a conflict
    failures: int = 0  # commands that failed with a conflict, in all of the run
    total: int = 0  # all transactions, including those of the warm-up
    written: int = 0  # the writing transactions among all

    def __post_init__(self) -> None:
        self._lock, self._used_s, self._began = threading.Lock(), self.processor_s(), time.perf_counter()

    def starts(self) -> Iterator[float]:
        """Yield the time at which the next transaction begins, until the run is over."""
        while (start := time.perf_counter()) - self._began < self.warm_up_s + self.seconds:
            yield start

    def count(self, start: float, statements: Statements, retries: int = 0) -> None:
        """Count a transaction that has ended now."""
        end = time.perf_counter()
        with self._lock:
            self.total += 1
            self.written += statements[0][0] != READ
            if start - self._began >= self.warm_up_s and end - self._began <= self.warm_up_s + self.seconds:
                self.took.append(end - start)
                self.retries += retries

    def measured(self) -> Measured:
        """Return the result, after the last transaction."""
        p50, p99 = quantile(self.took, 0.5) * 1e3, quantile(self.took, 0.99) * 1e3
        nodes_ms = (self.processor_s() - self._used_s) * 1e3 / max(1, self.total)
        head = (self.work, self.nodes, self.clients, len(self.took), self.seconds)
        return Measured(*head, p50, p99, self.retries, self.failures, nodes_ms, self.memory_mib())


def measure_sqlite(path: Path, work: str, seconds: float, warm_up_s: float = WARM_UP_S) -> Measured:
    """Run the work on plain SQLite: one connection, every commit durable before the next begins."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN")
        for sql in SCHEMA:
            db.execute(sql)
        db.executemany(FILL, ((i,) for i in range(1, ROWS + 1)))
        db.execute("COMMIT")
        draw, run = Draw(work, 0, 1), Run(work, 0, 0, seconds, warm_up_s=warm_up_s)
        for start in run.starts():
            statements = draw()
            db.execute("BEGIN IMMEDIATE")
            for sql, params in statements:
                db.execute(sql, params)
            db.execute("COMMIT")
            run.count(start, statements)
    return run.measured()


async def measure_cluster(
    cluster: LocalCluster, work: str, clients: int, seconds: float, *, by_socket: bool = False
) -> Run:
    """Run the work with clients spread evenly over the nodes.

    With ``by_socket``, the clients reach the nodes by their Unix sockets.
    """
    async with AsyncExitStack() as stack:
        links: list[Client] = []
        for number in range(clients):
            place = number % len(cluster.nodes)
            url = cluster.url(place, only=True, options="/?timeout=30")
            if by_socket:
                url = f"bedrockish://?host={socket_path(cluster.nodes[place].database)}&timeout=30"
            links.append(await stack.enter_async_context(open_client(url)))
        run = Run(work, len(cluster.nodes), clients, seconds, cluster.processor_s, cluster.memory_mib)

        async def serve(number: int, client: Client) -> None:
            draw, read = Draw(work, number, clients), work if work == "strict" else None
            for start in run.starts():
                statements = draw()
                try:
                    results = await client.transact(statements, read=read)
                except BedrockishError as error:
                    if error.code != "conflict":
                        raise
                    run.failures += 1
                else:
                    run.count(start, statements, results[0].attempts - 1)

        async with trio.open_nursery() as nursery:
            for number, client in enumerate(links):
                nursery.start_soon(serve, number, client)
    return run


async def prepare(client: Client, rows: int = ROWS) -> None:
    """Create the tables of the benchmark, and fill ``bench_row``."""
    for sql in SCHEMA:
        await client.execute(sql)
    for first in range(1, rows + 1, BATCH):
        await client.transact([(FILL, (i,)) for i in range(first, min(first + BATCH, rows + 1))])


async def check(client: Client, expected: dict[str, int]) -> None:
    """Compare the answers to the clients with the tables.

    Raises:
        DemoError: they differ, so the numbers mean nothing.
    """
    items = (await client.execute("SELECT count(*) FROM bench_item", read="strict")).value()
    autos = (await client.execute("SELECT count(*) FROM bench_auto", read="strict")).value()
    total = (await client.execute("SELECT sum(value) FROM bench_row", read="strict")).value()
    added = expected["update"] + expected["hot"] + expected["mix"]
    if items != expected["insert"] or autos != expected["auto"] or total != added:
        raise DemoError(
            f"the nodes lost or doubled something: {items} and {autos} rows and the sum {total}, expected {expected}"
        )


async def measure_all(
    cluster: LocalCluster,
    works: Sequence[str],
    clients: Sequence[int],
    seconds: float,
    tell: Callable[[str], None],
    *,
    by_socket: bool = False,
) -> list[Measured]:
    """Prepare the tables, measure every kind of work with every number of clients, and check the outcome."""
    await cluster.wait_all_ready()
    measured, expected = list[Measured](), dict.fromkeys(WORKS | READS, 0)
    async with open_client(cluster.url(options="/?timeout=60")) as client:
        await prepare(client)
        for work in works:
            for count in clients:
                tell(f"{work}, {len(cluster.nodes)} nodes, {count} clients")
                run = await measure_cluster(cluster, work, count, seconds, by_socket=by_socket)
                measured.append(run.measured())
                expected[work] += run.written
        await check(client, expected)
    return measured


def render(measured: Sequence[Measured], seconds: float) -> Table:
    about = f"{platform.machine()}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version} (plain)"
    table = Table(title=f"nodes on this machine beside plain SQLite, {seconds:g} s each", caption=about)
    for head in (
        "work",
        "nodes",
        "clients",
        "commits/s",
        "of plain SQLite",
        "p50 ms",
        "p99 ms",
        "CPU ms",
        "MiB",
        "run again",
        "given up",
    ):
        table.add_column(head, justify="left" if head == "work" else "right")
    plain = {result.work: result.rate for result in measured if result.clients == 0}
    for work, about in WORKS.items():
        for result in (each for each in measured if each.work == work):
            alone = result.clients == 0
            table.add_row(
                f"{work}: {about}" if alone else "",
                "plain" if alone else str(result.nodes),
                "" if alone else str(result.clients),
                f"{result.rate:,.0f}",
                "" if alone else f"{result.rate / plain[work]:.2f}",
                f"{result.p50_ms:.2f}",
                f"{result.p99_ms:.2f}",
                "" if math.isnan(result.nodes_ms) else f"{result.nodes_ms:.2f}",
                "" if math.isnan(result.memory_mib) else f"{result.memory_mib:.0f}",
                "" if alone else str(result.retries),
                "" if alone else str(result.failures),
                end_section=result is [each for each in measured if each.work == work][-1],
            )
    return table


def read_numbers(_context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    """Return the numbers in the text of an option, such as ``1,16,64``."""
    most = len(NAMES) if parameter.name == "nodes" else 1000
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 1,3") from error
    if not all(1 <= number <= most for number in numbers):
        raise click.BadParameter(f"numbers of {parameter.name} go from 1 to {most}")
    return numbers


def seconds_option(default: float = 3.0) -> Callable[[Any], Any]:
    text = "The time of each measurement."
    return click.option("--seconds", type=click.FloatRange(0.5, 600), default=default, show_default=True, help=text)


clients_option = click.option(
    "--clients", callback=read_numbers, default="1,16,64", show_default=True, help="The numbers of concurrent clients."
)


@click.command()
@seconds_option()
@clients_option
@click.option("--nodes", callback=read_numbers, default="3", show_default=True, help="Sizes of the cluster.")
@click.option(
    "--work",
    "works",
    type=click.Choice(list(WORKS)),
    multiple=True,
    help="The kind of work, all by default; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def main(seconds: float, clients: list[int], nodes: list[int], works: tuple[str, ...], as_json: bool) -> None:
    """Measure transactions per second and the time that each takes, on a cluster and on plain SQLite.

    ``tools/bench list`` names the other scenarios, such as ``tools/bench engine``, which measures what one node does
    for a transaction by itself; ``tools/bench NAME --help`` has their options.
    """
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, stderr=as_json, width=None if terminal else 110)
    chosen = list(works or WORKS)
    with tempfile.TemporaryDirectory(prefix="bedrockish-bench-") as place, console.status("") as status:
        measured: list[Measured] = []
        for work in chosen:
            status.update(f"{work}, plain SQLite")
            measured.append(measure_sqlite(Path(place, "plain.sqlite"), work, seconds))
        try:
            for count in nodes:
                with local_cluster(Path(place, f"nodes-{count}"), NAMES[:count]) as cluster:
                    measured += trio.run(measure_all, cluster, chosen, clients, seconds, status.update)
        except DemoError as error:
            console.print(f"error: {error}", style="bold red", markup=False)
            sys.exit(1)
    if as_json:
        print(json.dumps([{**asdict(result), "rate": result.rate} for result in measured], indent=2))
    else:
        console.print(render(measured, seconds))


def scenarios() -> dict[str, str]:
    """Return all scenarios: the name for ``tools/bench NAME``, and a description."""
    found = {}
    for path in sorted((Path(__file__).parent / "scenarios").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "@click.command" in text:  # other files are modules that scenarios use
            about = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
            found[path.stem] = " ".join(about.split())
    return found


def start(wanted: str, arguments: list[str]) -> None:
    """Run the named scenario with the arguments that follow its name, or the benchmark itself."""
    if wanted == "list":
        for scenario, about in scenarios().items():
            print(f"{scenario}: {about}")
    elif wanted in scenarios():
        command: click.Command = importlib.import_module(f"tools.scenarios.{wanted}").main
        command(arguments, prog_name=f"tools/bench {wanted}", standalone_mode=False)
    else:
        main(sys.argv[1:], prog_name="tools/bench", standalone_mode=False)


if __name__ == "__main__":
    end_in_order()
    try:
        start("".join(sys.argv[1:2]), sys.argv[2:])
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt, BaseExceptionGroup) as ended:  # Ctrl-C or SIGTERM: nodes are stopped by now
        if isinstance(ended, BaseExceptionGroup) and ended.split(KeyboardInterrupt)[1]:
            raise
        sys.exit(130)

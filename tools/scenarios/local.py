"""Measures programs that open a node's file, next to the same programs by URL and to plain ``sqlite3`` on a file.

All use the DB-API, in processes of their own, for reads by key, ranges of 100 rows, a mix of 95 reads and 5 writes with
few hot keys, and transactions of 31 statements (also without their COMMIT) and of 4. The node is one of three, on this
machine; each commit is durable, also plain SQLite's. MariaDB Galera (three nodes) and PostgreSQL (one) run the same by
their sockets if they are installed. ``--write`` adds a program that writes by URL; with ``--learner`` the file belongs
to a fourth node, which does not vote.
"""

import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table

import bedrockish
from bedrockish.errors import BedrockishError
from tools.bench import clients_option, quantile, read_numbers, seconds_option
from tools.cluster import READY_S, ROOT, DemoError, LocalCluster, LocalNode, clean_environment, local_cluster
from tools.scenarios.galera import driver, galera
from tools.scenarios.local_work import FILL, GALERA, PLAIN, POSTGRES, ROWS, SCHEMA, WORKS
from tools.scenarios.postgres import connect, postgres

FILE, URL = "file", "URL"
PROGRAM = (sys.executable, "-m", "tools.scenarios.local_work")
BATCH = 20_000


def measure(
    engine: str, where: str, work: str, processes: int, clients: int, seconds: float, processor_s: Callable[[], float]
) -> tuple[float, float, float, float]:
    """Measure clients in some processes; each client does the work once before the time begins.

    Return the rate, the median and the 99th percentile in microseconds, and by how much ``processor_s`` has grown for
    each counted run, in milliseconds.
    """
    threads = max(1, clients // processes)
    running = [
        subprocess.Popen(
            [*PROGRAM, engine, where, work, str(threads), str(seconds), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_environment(),
        )
        for number in range(1, min(processes, clients) + 1)
    ]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n", f"a client of {engine} could not begin"
    took, count, before = list[float](), 0, processor_s()
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in running:
        out, _ = one.communicate()
        times, number = out.splitlines()
        took += json.loads(times)
        count += int(number)
    used_ms = 1e3 * (processor_s() - before) / max(1, count)
    return count / seconds, quantile(took, 0.5), quantile(took, 0.99), used_ms


def fill_plain(path: Path) -> None:
    """Make a file of plain SQLite with the rows that ``fill`` gives the cluster."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        for sql in SCHEMA:
            db.execute(sql)
        db.execute(FILL, (0, ROWS - 1))


def fill(cluster: LocalCluster) -> None:
    """Create and fill the tables of the cluster."""
    with bedrockish.connect(cluster.url(options="timeout=120")) as db:
        for sql in SCHEMA:
            db.execute(sql)
        for first in range(0, ROWS, BATCH):
            db.execute(FILL, (first, first + BATCH - 1))


async def join_learner(cluster: LocalCluster) -> LocalNode:
    """Let a fourth node join, and return it when it has all rows.

    Raises:
        DemoError: the node lacks rows after ``READY_S`` seconds.
    """
    node = await cluster.join("D")
    if wrong := await cluster.wait_level(READY_S):
        raise DemoError(f"the learner does not have all rows: {wrong}")
    return node


@contextmanager
def peers(place: Path) -> Iterator[dict[str, str]]:
    """Run the other installed databases with the same rows; yield their addresses."""
    found = dict[str, str]()
    with ExitStack() as stack:
        place.chmod(0o755)  # the servers run as other users, and must enter
        with suppress(DemoError):
            driver()
            (place / "galera").mkdir()
            cluster = stack.enter_context(galera(place / "galera"))
            with closing(cluster.connect(0)) as db:
                for sql in (*SCHEMA, f"INSERT INTO item SELECT seq, concat('row ', seq), seq FROM seq_0_to_{ROWS - 1}"):
                    db.cursor().execute(of_peer(sql))
            found[GALERA] = str(cluster.nodes[0].socket)
        with suppress(DemoError):
            where = stack.enter_context(postgres(place / "postgres"))
            with closing(connect(where)) as db:
                for sql in (
                    *SCHEMA,
                    f"INSERT INTO item SELECT n, 'row ' || n, n FROM generate_series(0, {ROWS - 1}) n",
                ):
                    db.cursor().execute(of_peer(sql))
            found[POSTGRES] = where
        yield found


def of_peer(sql: str) -> str:
    """Return a statement in the form that the other databases accept."""
    return (
        sql.replace(" WITHOUT ROWID", "")
        .replace("a TEXT", "a VARCHAR(40)")
        .replace("customer INTEGER", "customer BIGINT")
    )


@contextmanager
def writing(url: str, *, wanted: bool) -> Iterator[None]:
    """Insert rows by URL until the end of the block, if ``wanted``."""
    over = threading.Event()

    def write() -> None:
        with bedrockish.connect(url) as db:
            number = 10 * ROWS
            while not over.is_set():
                try:
                    db.execute("INSERT INTO item VALUES (?, 'x', 1)", (number,))
                except BedrockishError:
                    continue
                number += 1

    thread = threading.Thread(target=write)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if wanted:
            thread.join()


@click.command()
@seconds_option(2.0)
@clients_option
@click.option(
    "--processes",
    callback=read_numbers,
    default="1,4",
    show_default=True,
    help="The numbers of processes that run the clients.",
)
@click.option(
    "--work",
    "works",
    type=click.Choice(WORKS),
    multiple=True,
    help="The kind of work, all by default; may be repeated.",
)
@click.option("--write", is_flag=True, help="Add a program that writes by URL.")
@click.option("--learner", is_flag=True, help="Use the file of a learner.")
def main(
    seconds: float, clients: list[int], processes: list[int], works: tuple[str, ...], *, write: bool, learner: bool
) -> None:
    """Measure reads and transactions of programs on a node's file."""
    table = Table("work", "processes", "clients", "by", "a second", "p50 µs", "p99 µs", "node ms each")
    temporary = tempfile.TemporaryDirectory
    with (
        temporary(prefix="bedrockish-bench-") as place,
        temporary(prefix="bedrockish-peers-") as beside,
        local_cluster(Path(place, "n")) as cluster,
    ):
        trio.run(cluster.wait_all_ready)
        plain = Path(place, "plain.sqlite")
        fill_plain(plain)
        fill(cluster)
        node = trio.run(join_learner, cluster) if learner else cluster.nodes[0]
        engines = {PLAIN: str(plain), FILE: str(node.database), URL: cluster.url(0, only=True)}
        with peers(Path(beside)) as found, writing(cluster.url(1), wanted=write):
            engines |= found
            for work in works or WORKS:
                for many in processes:
                    for count in [one for one in clients if one >= many]:
                        for engine, where in engines.items():
                            rate, p50, p99, used = measure(engine, where, work, many, count, seconds, node.processor_s)
                            shown = "" if engine not in (FILE, URL) or math.isnan(used) else f"{used:.3f}"
                            table.add_row(
                                work, str(many), str(count), engine, f"{rate:,.0f}", f"{p50:,.0f}", f"{p99:,.0f}", shown
                            )
    Console(highlight=False, width=None if sys.stdout.isatty() else 110).print(table)
    print(f"load average of the last minute at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")

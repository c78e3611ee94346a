"""Measures the processor by the size of a value, loads of many rows, and large results.

Each part is a table of docs/performance.md. ``values``: one row with a value of 100 bytes to a megabyte. ``bulk``: an
import with an index, ``executemany`` and results, with the p99 of another client, and plain ``sqlite3``.
"""

import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import trio

import bedrockish
from bedrockish import dbapi, open_client
from tools.bench import quantile, seconds_option
from tools.cluster import ROOT, LocalCluster, clean_environment, local_cluster

VALUES = (100, 10_000, 100_000, 1_000_000)
RESULTS = (10_000, 100_000)
NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < ?) "
TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b INTEGER, c REAL)"
INDEX = "CREATE INDEX t_b ON t(b)"


def show(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n| {' | '.join(['---'] * len(head))} |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


@contextmanager
def cluster(place: Path) -> Iterator[LocalCluster]:
    """Start three nodes in a new directory, and wait until each answers."""
    with local_cluster(Path(tempfile.mkdtemp(dir=place))) as started:
        trio.run(started.wait_all_ready)
        yield started


def values(place: Path, seconds: float) -> Iterator[list[str]]:
    """Yield a row for each size of a value, written by one client to three nodes."""
    with cluster(place) as started, bedrockish.connect(started.url(0)) as db:
        db.execute("CREATE TABLE v(id INTEGER PRIMARY KEY, value BLOB)")
        for size in VALUES:
            took, used_s, value = list[float](), started.processor_s(), bytes(size)
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                db.execute("INSERT INTO v(value) VALUES (?)", [value])
                took.append(time.perf_counter() - began)
            cpu_ms = 1e3 * (started.processor_s() - used_s) / len(took)
            rate = size * len(took) / seconds / 1e6
            yield [f"{size:,}", f"{1e3 * quantile(took, 0.5):.1f}", f"{cpu_ms:.1f}", f"{rate:.1f}"]


def waits(cluster: LocalCluster, action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that an action took, and the p99 in ms of the inserts of another client during the action."""

    async def run() -> tuple[float, float]:
        took: list[float] = []
        done = trio.Event()

        async def insert() -> None:
            async with open_client(cluster.url(1, only=True)) as client:
                while not done.is_set():
                    began = time.perf_counter()
                    await client.execute("INSERT INTO beside(note) VALUES ('beside')")
                    took.append(time.perf_counter() - began)
                    await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(insert)
            began = time.perf_counter()
            await trio.to_thread.run_sync(action)
            seconds = time.perf_counter() - began
            done.set()
        return seconds, 1e3 * quantile(took, 0.99)

    return trio.run(run)


def bulk(place: Path, rows: int) -> Iterator[list[str]]:
    """Yield a row for each kind of load, and for each size of a result."""
    made = ((number, f"row number {number}", number * 7919 % 1_000_003, number / 3) for number in range(rows))
    source = place / "source.sqlite"
    with closing(sqlite3.connect(source)) as db:
        db.execute(TABLE)
        db.execute(INDEX)
        db.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", made)
        db.commit()
    with closing(sqlite3.connect(source)) as db, cluster(place) as started:
        with bedrockish.connect(started.url(0)) as prepared:
            prepared.execute("CREATE TABLE beside(id INTEGER PRIMARY KEY, note TEXT)")
        command = [sys.executable, "-m", "bedrockish.cli.main", "import", "--add", started.url(0), str(source)]

        def load() -> None:
            subprocess.run(command, check=True, capture_output=True, env=clean_environment(), cwd=ROOT)

        def insert_many() -> None:
            with closing(dbapi.connect(started.url(0))) as other:
                other.execute("CREATE TABLE u(a, b)")
                other.executemany("INSERT INTO u VALUES (?, ?)", ((n, f"x{n}") for n in range(rows)))
                other.commit()

        works = (("`bedrockish import`, with an index", rows, load), ("`executemany`", rows, insert_many))
        for what, count, action in works:
            used_s = started.processor_s()
            seconds, p99 = waits(started, action)
            cpu_us = 1e6 * (started.processor_s() - used_s) / count
            yield [f"{what}, {count:,} rows", f"{count / seconds:,.0f}", "", f"{cpu_us:.0f}", f"{p99:.0f}"]
        with closing(dbapi.connect(started.url(0))) as other:
            for count in (min(rows, count) for count in RESULTS):
                rates = [_rate(one, count) for one in (other, db)]
                ratio = f"{rates[1]:,.0f} ({rates[0] / rates[1]:.2f})"
                yield [f"result of {count:,} rows", f"{rates[0]:,.0f}", ratio, "", ""]


def _rate(db: Any, count: int) -> float:
    """Return the rows per second that a connection reads, the best of three runs."""
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        found = db.execute("SELECT * FROM t LIMIT ?", (count,)).fetchall()
        assert len(found) == count
        best = max(best, count / (time.perf_counter() - began))
    return best


PARTS: dict[str, tuple[str, Sequence[str], Callable[[Path, Any], Iterator[list[str]]]]] = {
    "values": ("Values", ("bytes of the value", "p50 ms", "processor of all nodes, ms", "MB/s"), values),
    "bulk": (
        "Bulk",
        ("work", "rows/s", "plain `sqlite3` (ratio)", "processor of all nodes, µs a row", "others' p99, ms"),
        bulk,
    ),
}


@click.command(help=(__doc__ or "").partition("\n\n")[0])
@seconds_option()
@click.option(
    "--rows",
    type=click.IntRange(1_000, 10_000_000),
    default=100_000,
    show_default=True,
    help="The number of rows of a load.",
)
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
def main(seconds: float, rows: int, parts: tuple[str, ...]) -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory(prefix="bedrockish-growth-") as name:
        place = Path(name)
        for part in parts or PARTS:
            title, head, rows_of = PARTS[part]
            show(title, head, rows_of(place, rows if part == "bulk" else seconds))

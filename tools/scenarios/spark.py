"""Measures the journal in Spark beside Parquet, DuckDB and a plain reader, and what the audits cost, as journals grow.

``tools/bench spark`` makes sound journals (``tools.make_journals``) and asks them. Everything is measured in
one run on one machine, in processor time; the ratios are what to trust, and whether a row of a table is level.
"""

import contextlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cbor2
import click
import duckdb

from bedrockish_journal.arrow import read_journal
from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.model.entry import decode_entry
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.session import quiet_session
from bedrockish_journal.spark.source.context import CHANGES
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.files import open_file
from bedrockish_journal.spark.source.inputs import find_inputs, read_table
from tools.cluster import ROOT, clean_environment, processor_s
from tools.make_journals import NODES, make_journals

LOOK_S = 0.1
CLOCK_S = 1 / os.sysconf("SC_CLK_TCK")  # what the system counts processor time in
WAYS = {
    "journal verify": ("journal", "verify"),
    "audit": ("audit",),
    "audit --engine spark": ("audit", "--engine", "spark"),
}


def plain(path: Path, table: str) -> int:
    """Read a file with nothing but sqlite3 and the journal's own code; return the rows."""
    rows = 0
    with open_file(str(path)) as db:
        for prev, label, body in db.execute("SELECT prev, label, body FROM bedrockish_journal ORDER BY leader, tick"):
            entry = decode_entry(prev, label, body)
            rows += len(decode_changes(entry.transaction.changes)) if table == "changes" else 1
    return rows


def _drain_spark(spark: Any, path: Path) -> None:
    read_table(spark, find_inputs([str(path)]), "changes").write.format("noop").mode("overwrite").save()


DECODED: dict[str, dict[str, str]] = {
    "`changes`, rows as JSON": {"table": "changes"},
    "`changes`, five columns": {"table": "changes", "columns": "clock,table,pk,_change_type,after"},
    "`rows`, typed": {"rows": "accounts"},
    "`rows`, typed, five columns": {"rows": "accounts", "columns": "id,owner,balance,_change_type,_commit_clock"},
}


def measure_decoding(directory: Path, commits: int, changes: int) -> dict[str, float]:
    """Return how many changes are read in a processor second without Spark, the best of three turns of each way."""
    (path,) = make_journals(directory / "decoding", commits, 0.01, changes, NODES[:1])
    ways: dict[str, Callable[[], Any]] = {
        "SQLite and CBOR alone": partial(_decode_alone, path),
        "decoded into objects": partial(plain, path, "changes"),
        **{title: partial(_drain_arrow, path, options) for title, options in DECODED.items()},
    }
    best = dict.fromkeys(ways, 0.0)
    for _ in range(3):
        for title, way in ways.items():
            begun = time.process_time()
            way()
            best[title] = max(best[title], commits * changes / (time.process_time() - begun))
    return best


def _decode_alone(path: Path) -> None:
    with open_file(str(path)) as db:
        for (body,) in db.execute("SELECT body FROM bedrockish_journal"):
            cbor2.loads(cbor2.loads(body)[CHANGES])


def _drain_arrow(path: Path, options: dict[str, str]) -> None:
    for _ in read_journal(path, **options):
        pass


def measure_reads(spark: Any, directory: Path, sizes: list[int], changes: int) -> dict[str, dict[int, float]]:
    """Return how many changes each way to read, or to export, does in a processor second, at each size."""
    (small,) = make_journals(directory / "first", 100, 0.01, changes, NODES[:1])
    _export(small, directory / "first-out")
    for path in (small, directory / "first-out"):  # what a first query costs is not what is asked
        _drain_spark(spark, path)
    found: dict[str, dict[int, float]] = {}
    for size in sizes:
        (path,) = make_journals(directory / f"reads-{size}", size, 0.01, changes, NODES[:1])
        out = directory / f"out-{size}"
        ways: dict[str, Callable[[], Any]] = {
            "plain Python: each a `Change`": partial(plain, path, "changes"),
            "`read_journal`, rows as JSON": partial(_drain_arrow, path, {"table": "changes"}),
            "`read_journal`, typed, two rows for each": partial(_drain_arrow, path, {"rows": "accounts"}),
            "Spark, from the journal": partial(_drain_spark, spark, path),
            "writing the export, all its tables": partial(_export, path, out),
            "Spark, from the export": partial(_drain_spark, spark, out),
            "DuckDB, from the export": partial(_drain_duckdb, out),
        }
        for title, way in ways.items():
            begun = spent_s()
            way()
            found.setdefault(title, {})[size] = size * changes / max(spent_s() - begun, CLOCK_S)
        path.unlink()
        shutil.rmtree(out)
    return found


def _export(path: Path, out: Path) -> None:
    with open_feed(str(path)) as feed:
        export(feed, str(out))


def _drain_duckdb(out: Path) -> None:
    with duckdb.connect() as db:
        for _ in db.read_parquet(f"{out}/changes/*/*.parquet", hive_partitioning=True).to_arrow_reader():
            pass


def spent_s() -> float:
    """Return the processor time of this process and of all that it has started, what has ended among it."""
    spent = 0.0
    for process in (os.getpid(), *below(os.getpid())):
        with contextlib.suppress(OSError):  # it has ended: its parent, which comes first, does not have it yet
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            spent += sum(map(int, fields[11:15])) * CLOCK_S
    return spent


def measure_audits(directory: Path, sizes: list[int], hot: float, ways: tuple[str, ...]) -> dict[str, dict[int, float]]:
    """Return the processor seconds that each way to audit takes at each size; the journals must be found sound."""
    found: dict[str, dict[int, float]] = {}
    for size in sizes:
        paths = [str(path) for path in make_journals(directory / f"audits-{size}", size, hot)]
        for way in ways:
            seconds = watched_s([sys.executable, "-m", "bedrockish.cli.main", *WAYS[way], *paths])
            found.setdefault(way, {})[size] = seconds
        for path in paths:
            Path(path).unlink()
    return found


def watched_s(command: list[str]) -> float:
    """Return the processor time of a command and of all that it starts, Java too; it must end well."""
    used: dict[int, float] = {}
    started = subprocess.Popen(command, cwd=ROOT, env=clean_environment(), stdout=subprocess.DEVNULL)
    while started.poll() is None:
        for process in (started.pid, *below(started.pid)):
            seconds = processor_s(process)
            if not math.isnan(seconds):  # it has not ended meanwhile
                used[process] = seconds
        time.sleep(LOOK_S)
    assert started.returncode == 0, f"{command} ended with {started.returncode}"
    return sum(used.values())


def below(process: int) -> Iterator[int]:
    """Yield the processes that a process has started, and they."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from below(child)


@click.command()
@click.option(
    "--changes", default=4, show_default=True, help="Rows that each commit of a journal that is read changes."
)
@click.option("--sizes", default="10000,40000,160000", show_default=True, help="Commits of the journals.")
@click.option("--hot", default=0.2, show_default=True, help="Share of the commits that write one and the same key.")
@click.option("--only", type=click.Choice(["decoding", "reads", "audits"]), help="Only this.")
@click.option("--way", type=click.Choice([*WAYS]), multiple=True, help="Of the audits, only this.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(changes: int, sizes: str, hot: float, only: str | None, way: tuple[str, ...], as_json: bool) -> None:
    """Measure the data source, the export and the audits."""
    numbers: dict[str, Any] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    commits = [int(size) for size in sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="bedrockish-bench-spark-") as place:
        if only in (None, "decoding"):
            numbers["decoding"] = measure_decoding(Path(place), min(*commits, 50_000), changes)
        if only in (None, "reads"):
            spark = quiet_session("bench")
            numbers["reads"] = measure_reads(spark, Path(place), commits, changes)
            spark.stop()
        if only in (None, "audits"):
            numbers["audits"] = measure_audits(Path(place), commits, hot, way or tuple(WAYS))
    print(json.dumps(numbers, indent=2) if as_json else _table(numbers))


def _table(numbers: dict[str, Any]) -> str:
    """Return the numbers as the tables of docs/spark.md and docs/audit.md."""
    lines = []
    if "decoding" in numbers:
        lines += ["| without Spark | changes per processor second |", "| --- | --- |"]
        lines += [f"| {title} | {rate:,.0f} |" for title, rate in numbers["decoding"].items()]
        lines.append("")
    for name, head, form in (
        ("reads", "changes per processor second of a journal of", ",.0f"),
        ("audits", "processor seconds for three files of", ".1f"),
    ):
        if name in numbers:
            sizes = list(next(iter(numbers[name].values())))
            lines.append(f"| {head} | " + " | ".join(f"{size:,} commits" for size in sizes) + " |")
            lines.append("| --- " * (1 + len(sizes)) + "|")
            for title, of in numbers[name].items():
                lines.append(f"| {title} | " + " | ".join(f"{of[size]:{form}}" for size in sizes) + " |")
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main(prog_name="tools/bench spark")
    sys.exit(0)

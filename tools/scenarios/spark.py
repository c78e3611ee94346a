"""Measures the journal in Spark: the data source beside Parquet and a plain reader, and what the audits cost.

``tools/bench spark`` makes sound journals (``tools.make_journals``) and asks them. Everything is measured in
one run on one machine; the ratios are what to trust.
"""

import contextlib
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cbor2
import click

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
WAYS = {
    "`journal verify`": ("journal", "verify"),
    "`audit`": ("audit",),
    "`audit --engine spark`": ("audit", "--engine", "spark"),
}


def timed(action: Callable[[], Any], times: int = 2) -> float:
    """Return the best of some times, in seconds."""
    best = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begun)
    return best


def plain(path: Path, table: str) -> int:
    """Read a file with nothing but sqlite3 and the journal's own code; return the rows."""
    rows = 0
    with open_file(str(path)) as db:
        for prev, label, body in db.execute("SELECT prev, label, body FROM bedrockish_journal ORDER BY leader, tick"):
            entry = decode_entry(prev, label, body)
            rows += len(decode_changes(entry.transaction.changes)) if table == "changes" else 1
    return rows


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _count(frames: Sequence[Any]) -> list[int]:
    return [frame.count() for frame in frames]


READS = {
    "commits, five columns of the row": ("commits", "leader tick clock origin command"),
    "commits, all columns": ("commits", ""),
    "changes": ("changes", ""),
    "changes, five columns": ("changes", "clock table pk _change_type after"),
    "footprints": ("footprints", ""),
}


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


def measure_reads(spark: Any, directory: Path, commits: int, changes: int) -> dict[str, dict[str, float]]:
    """Return rows per second of each way to read each table."""
    begun = time.perf_counter()
    (path,) = make_journals(directory / "reads", commits, 0.01, changes, NODES[:1])
    found: dict[str, dict[str, float]] = {"making the journal": {"commits/s": commits / (time.perf_counter() - begun)}}
    with open_feed(str(path)) as feed:
        begun = time.perf_counter()
        export(feed, str(directory / "out"))
        found["writing the export, all tables"] = {"commits/s": commits / (time.perf_counter() - begun)}
    for title, (table, columns) in READS.items():
        frames = {
            "data source": read_table(spark, find_inputs([str(path)]), table, columns.split()),
            "Parquet": read_table(spark, find_inputs([str(directory / "out")]), table, columns.split()),
        }
        rows = frames["Parquet"].count()
        found[title] = {"rows": rows}
        for way, frame in frames.items():
            found[title][way] = rows / timed(partial(_drain, frame), 1 if way == "data source" else 2)
        if table != "footprints" and not columns:
            begun = time.perf_counter()
            assert plain(path, table) == rows
            found[title]["plain Python"] = rows / (time.perf_counter() - begun)
    return found


def measure_audits(directory: Path, sizes: list[int], hot: float) -> dict[str, dict[int, float]]:
    """Return the processor seconds that each way to audit takes at each size; the journals must be found sound."""
    found: dict[str, dict[int, float]] = {}
    for size in sizes:
        paths = [str(path) for path in make_journals(directory / f"audits-{size}", size, hot)]
        for way, command in WAYS.items():
            seconds = watched_s([sys.executable, "-m", "bedrockish.cli.main", *command, *paths])
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
@click.option("--commits", default=500_000, show_default=True, help="Commits of the journal that is read.")
@click.option("--changes", default=4, show_default=True, help="Rows that each of them changes.")
@click.option("--sizes", default="10000,40000,160000", show_default=True, help="Commits of the journals audited.")
@click.option("--hot", default=0.2, show_default=True, help="Share of the commits that write one and the same key.")
@click.option("--only", type=click.Choice(["decoding", "reads", "audits"]), help="Only this.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(commits: int, changes: int, sizes: str, hot: float, only: str | None, as_json: bool) -> None:
    """Measure the data source, the export and the audits."""
    numbers: dict[str, Any] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    with tempfile.TemporaryDirectory(prefix="bedrockish-bench-spark-") as place:
        if only in (None, "decoding"):
            numbers["decoding"] = measure_decoding(Path(place), min(commits, 50_000), changes)
        if only in (None, "reads"):
            spark = quiet_session("bench")
            numbers["reads"] = measure_reads(spark, Path(place), commits, changes)
            spark.stop()
        if only in (None, "audits"):
            numbers["audits"] = measure_audits(Path(place), [int(size) for size in sizes.split(",")], hot)
    print(json.dumps(numbers, indent=2) if as_json else _table(numbers))


def _table(numbers: dict[str, Any]) -> str:
    """Return the numbers as the tables of docs/spark.md."""
    lines = []
    if "decoding" in numbers:
        lines += ["| without Spark | changes per processor second |", "| --- | --- |"]
        lines += [f"| {title} | {rate:,.0f} |" for title, rate in numbers["decoding"].items()]
        lines.append("")
    if "reads" in numbers:
        ways = ("data source", "Parquet", "plain Python")
        lines += ["| rows per second | rows | " + " | ".join(ways) + " |", "| --- " * 5 + "|"]
        for title, found in numbers["reads"].items():
            if "rows" in found:
                cells = [f"{found[way]:,.0f}" if way in found else "" for way in ways]
                lines.append(f"| {title} | {found['rows']:,} | " + " | ".join(cells) + " |")
            else:
                lines.append(f"| {title} | | {found['commits/s']:,.0f} commits | | |")
        lines.append("")
    if "audits" in numbers:
        sizes = list(next(iter(numbers["audits"].values())))
        lines += [
            "| processor seconds for three files of | " + " | ".join(f"{size:,} commits" for size in sizes) + " |"
        ]
        lines += ["| --- " * (1 + len(sizes)) + "|"]
        for name, times in numbers["audits"].items():
            lines.append(f"| {name} | " + " | ".join(f"{times[size]:.1f}" for size in sizes) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(prog_name="tools/bench spark")
    sys.exit(0)

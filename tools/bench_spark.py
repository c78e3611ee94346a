"""Measures the journal in Spark: the data source beside Parquet and a plain reader, and audits at several sizes.

``tools/bench spark`` makes sound journals (``tools.make_journals``) and asks them. Everything is measured in
one run on one machine; the ratios are what to trust.
"""

import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.model.entry import decode_entry
from bedrockish_journal.spark.audit.inputs import find_inputs, read_table
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.session import quiet_session
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.files import open_file
from tools.make_journals import NODES, make_journals


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


def measure_audits(spark: Any, directory: Path, sizes: list[int], hot: float) -> dict[str, dict[int, float]]:
    """Return the seconds that each audit takes at each size; the journals must be found sound."""
    from bedrockish_journal.spark.audit.audits import AUDITS, read_journals
    from bedrockish_journal.spark.audit.findings import collect

    found: dict[str, dict[int, float]] = {}
    for size in sizes:
        paths = make_journals(directory / f"audits-{size}", size, hot)
        begun = time.perf_counter()
        journals = read_journals(spark, [str(path) for path in paths])
        _count(journals.frames)
        found.setdefault("read and cache", {})[size] = time.perf_counter() - begun
        for name, (_, make) in AUDITS.items():
            counts: dict[str, int] = {}

            def run(make: Any = make, counts: dict[str, int] = counts, journals: Any = journals) -> None:
                counts.update(collect(make(journals), 5)[1])

            found.setdefault(name, {})[size] = timed(run, 1)
            assert not any(counts.values()), f"{name} found {counts} in journals that are sound"
        journals.unpersist()
        for path in paths:
            path.unlink()
    for name in list(found):
        assert list(found[name]) == sizes
    found["all"] = {size: sum(times[size] for times in found.values()) for size in sizes}
    return found


@click.command()
@click.option("--commits", default=500_000, show_default=True, help="Commits of the journal that is read.")
@click.option("--changes", default=4, show_default=True, help="Rows that each of them changes.")
@click.option("--sizes", default="20000,80000,320000", show_default=True, help="Commits of the journals audited.")
@click.option("--hot", default=0.2, show_default=True, help="Share of the commits that write one and the same key.")
@click.option("--only", type=click.Choice(["reads", "audits"]), help="Only this.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(commits: int, changes: int, sizes: str, hot: float, only: str | None, as_json: bool) -> None:
    """Measure the data source, the export and the audits."""
    numbers: dict[str, Any] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    spark = quiet_session("bench")
    with tempfile.TemporaryDirectory(prefix="bedrockish-bench-spark-") as place:
        if only != "audits":
            numbers["reads"] = measure_reads(spark, Path(place), commits, changes)
        if only != "reads":
            numbers["audits"] = measure_audits(spark, Path(place), [int(size) for size in sizes.split(",")], hot)
    spark.stop()
    print(json.dumps(numbers, indent=2) if as_json else _table(numbers))


def _table(numbers: dict[str, Any]) -> str:
    """Return the numbers as the tables of docs/spark.md."""
    lines = []
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
        sizes = list(numbers["audits"]["all"])
        lines += ["| seconds | " + " | ".join(f"{size:,} commits" for size in sizes) + " |"]
        lines += ["| --- " * (1 + len(sizes)) + "|"]
        for name, times in numbers["audits"].items():
            lines.append(f"| {name} | " + " | ".join(f"{times[size]:.1f}" for size in sizes) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(prog_name="tools/bench spark")
    sys.exit(0)

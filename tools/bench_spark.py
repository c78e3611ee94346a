"""Measures the journal in Spark: the data source beside Parquet and a plain reader, and audits at several sizes.

``python -m tools.bench_spark`` makes honest journals of three nodes, with nothing but the journal's own code, and asks
them. Everything is measured in one run on one machine; the ratios are what to trust.
"""

import json
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import cbor2
import click

from journal import store
from journal.changes import UPDATE, Change, decode_changes, encode_changes
from journal.entry import GENESIS, Entry, decode_entry
from journal.footprint import Footprint
from journal.spark.export import export
from journal.spark.feeds import open_feed
from journal.spark.files import open_file
from journal.spark.inputs import find_inputs, read_table
from journal.spark.session import quiet_session
from journal.transaction import ROWS, Transaction, Txid

NODES = ("A", "B", "C")
START_MS = 1_790_000_000_000
KEYS = 100_000
RANGED = 0.05  # of all commits, that read a range as well


@dataclass
class Maker:
    """Makes a chain of commits that are never concurrent on one key, each leader some commits behind the others."""

    hot: float
    luck: random.Random = field(default_factory=lambda: random.Random(7))
    applied: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[str, int]] = field(default_factory=lambda: {node: {} for node in NODES})
    heads: dict[str, bytes] = field(default_factory=dict)
    written: dict[int, tuple[str, int]] = field(default_factory=dict)
    read: dict[int, dict[str, int]] = field(default_factory=dict)

    def entry(self, number: int) -> Entry:
        """Return the next commit."""
        leader = self.luck.choice(NODES)
        tick = self.applied.get(leader, 0) + 1
        base = dict(self.seen[leader])
        if self.luck.random() < 0.5:
            base = dict(self.applied)  # the leader catches up
        one = 0 if self.luck.random() < self.hot else self.luck.randrange(1, KEYS)
        other = self.luck.randrange(KEYS, 2 * KEYS)
        low = self.luck.randrange(2 * KEYS, 3 * KEYS)
        ranges = ((_key(low), _key(low + 20)),) if self.luck.random() < RANGED else ()
        if any(base.get(name, 0) < at for row in (one, other) for name, at in self._uses(row)):
            base = dict(self.applied)  # it conflicted with something that it had not seen, and ran again
        self.seen[leader] = {**base, leader: tick}
        self.written[one] = (leader, tick)
        self.read.pop(one, None)
        self.read.setdefault(other, {})[leader] = tick
        self.applied[leader] = tick
        return self._made(number, leader, tick, base, Footprint(
            frozenset({b"s:accounts\0", _key(one), _key(other)}), ranges, frozenset({_key(one)})
        ), one)  # fmt: skip

    def _uses(self, row: int) -> list[tuple[str, int]]:
        return [*([self.written[row]] if row in self.written else []), *self.read.get(row, {}).items()]

    def _made(self, number: int, leader: str, tick: int, base: dict[str, int], footprint: Footprint, row: int) -> Entry:
        clock = (START_MS << 22) + (number + 1 << 20)
        columns = ("id", "owner", "balance")
        before, after = (row, "somebody or other", number), (row, "somebody or other", number + 1)
        changes = encode_changes([Change("accounts", columns, UPDATE, row, row, before, after)])
        transaction = Transaction(
            Txid(clock, leader), base, 0, 0, 0, f"command-{number}", "serializable", ROWS, footprint, changes, b""
        )
        friend = next(node for node in NODES if node != leader)
        quorum = {leader: tick, friend: self.applied.get(friend, 0)}
        entry = Entry(leader, tick, quorum, transaction, None, self.heads.get(leader, GENESIS))
        self.heads[leader] = entry.hash
        return entry


def _key(row: int) -> bytes:
    return b"t:accounts\0" + row.to_bytes(8, "big")


def make_journals(directory: Path, commits: int, hot: float) -> list[Path]:
    """Write the files of three nodes with the same commits; ``hot`` is the share that write one and the same key."""
    directory.mkdir()
    paths = [directory / f"{node}.db" for node in NODES]
    files = [apsw.Connection(str(path)) for path in paths]
    founding = cbor2.dumps([0, {node: [f"{node}:1", True, node * 8] for node in NODES}])
    for node, db in zip(NODES, files, strict=True):
        store.create(db)
        db.execute("CREATE TABLE accounts(id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER)")
        db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        db.execute("INSERT INTO bedrockish_meta VALUES ('node', ?), ('bootstrap', ?)", (node, founding))
        db.execute("BEGIN")
    maker = Maker(hot)
    for number in range(commits):
        entry = maker.entry(number)
        for db in files:
            store.append(db, entry, repeat=False, applied_ms=START_MS + number // 4)
    for db in files:
        db.execute("COMMIT")
        db.close()
    return paths


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
    "commits, bare columns": ("commits", "leader tick clock origin command"),
    "commits, all columns": ("commits", ""),
    "changes": ("changes", ""),
    "footprints": ("footprints", ""),
}


def measure_reads(spark: Any, directory: Path, commits: int) -> dict[str, dict[str, float]]:
    """Return rows per second of each way to read each table."""
    path = make_journals(directory / "reads", commits, 0.01)[0]
    with open_feed(str(path)) as feed:
        begun = time.perf_counter()
        export(feed, str(directory / "out"))
        exported = commits / (time.perf_counter() - begun)
    found: dict[str, dict[str, float]] = {"export to Parquet (all tables)": {"commits/s": exported}}
    for title, (table, columns) in READS.items():
        frames = {
            "data source": read_table(spark, find_inputs([str(path)]), table, columns.split()),
            "Parquet": read_table(spark, find_inputs([str(directory / "out")]), table, columns.split()),
        }
        rows = frames["data source"].count()
        assert rows == frames["Parquet"].count()
        found[title] = {"rows": rows}
        for way, frame in frames.items():
            found[title][way] = rows / timed(partial(_drain, frame))
        if table != "footprints" and not columns:
            found[title]["plain Python"] = rows / timed(partial(plain, path, table), 1)
    return found


def measure_audits(spark: Any, directory: Path, sizes: list[int], hot: float) -> dict[str, dict[int, float]]:
    """Return the seconds that each audit takes at each size; the journals must be found sound."""
    from journal.spark.audits import AUDITS, read_journals
    from journal.spark.findings import collect

    found: dict[str, dict[int, float]] = {}
    for size in sizes:
        paths = make_journals(directory / f"audits-{size}-{hot}", size, hot)
        journals = read_journals(spark, [str(path) for path in paths])
        frames = (journals.commits, journals.transactions, journals.points, journals.ranges, journals.members)
        found.setdefault("read and cache", {})[size] = timed(partial(_count, frames), 1)
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
@click.option("--commits", default=40_000, show_default=True, help="Commits of the journal that is read.")
@click.option("--sizes", default="10000,40000,160000", show_default=True, help="Commits of the journals audited.")
@click.option("--hot", default=0.2, show_default=True, help="Share of the commits that write one and the same key.")
@click.option("--only", type=click.Choice(["reads", "audits"]), help="Only this.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(commits: int, sizes: str, hot: float, only: str | None, as_json: bool) -> None:
    """Measure the data source, the export and the audits."""
    numbers: dict[str, Any] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    spark = quiet_session("bench")
    with tempfile.TemporaryDirectory(prefix="bedrockish-bench-spark-") as place:
        if only != "audits":
            numbers["reads"] = measure_reads(spark, Path(place), commits)
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
    main(prog_name="tools/bench_spark")
    sys.exit(0)

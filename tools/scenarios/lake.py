"""How fast a lake is filled, how soon a commit is in it, and what reading it costs.

``tools/bench lake --rows 100000`` has three real nodes write so many rows and change a tenth of them, and writes both
kinds of lake from the feed, twice: all at once, and then following, while single rows are committed one by one.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from bedrockish import connect
from bedrockish_journal.spark.lake import Lake
from bedrockish_journal.spark.session import quiet_session
from tools.cluster import LocalCluster, clean_environment, local_cluster
from tools.scenarios.restore import settled

TOGETHER = 500  # rows of a transaction
COMMITS = 40  # followed one by one


def fill(cluster: LocalCluster, rows: int) -> None:
    """Write rows, and change a tenth of them."""
    with connect(cluster.url(options="/?timeout=60")) as db:
        db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, amount REAL)")
        for first in range(0, rows, TOGETHER):
            values = ", ".join(f"({first + number}, 'item {number}', {number}.5)" for number in range(TOGETHER))
            db.execute(f"INSERT INTO item VALUES {values}")
        for part in range(0, rows, 10 * TOGETHER):
            db.execute("UPDATE item SET amount = amount + 1 WHERE id >= ? AND id < ?", (part, part + TOGETHER))


def command(cluster: LocalCluster, folder: Path, kind: str, *more: str) -> list[str]:
    """Return the command that writes a lake."""
    return [sys.executable, "-m", "bedrockish.cli.main", "lake", cluster.url(), str(folder), "--format", kind, *more]


def write_all(cluster: LocalCluster, folder: Path, kind: str) -> str:
    """Write all that is there; return how long it took, for people."""
    began = time.monotonic()
    process = subprocess.Popen(
        command(cluster, folder, kind), stdout=subprocess.PIPE, env=clean_environment(), text=True
    )
    assert process.stdout is not None
    rows = sum(int(line.split(" commits, ")[1].split()[0]) for line in process.stdout)
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the lake ended with {process.returncode}")
    busy = used.ru_utime + used.ru_stime
    return (
        f"{rows} changes in {time.monotonic() - began:.1f} s, {busy:.1f} s of processor ({rows / busy:.0f} a second), "
        f"{used.ru_maxrss / 1024:.0f} MB"
    )


def follow(cluster: LocalCluster, folder: Path, kind: str, every_s: float) -> list[float]:
    """Commit single rows while a lake follows; return how long each took until its batch was whole, in seconds."""
    process = subprocess.Popen(
        command(cluster, folder, kind, "--follow", "--every", str(every_s)),
        stdout=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )
    assert process.stdout is not None
    took: list[float] = []
    luck = random.Random(every_s)
    try:
        with connect(cluster.url()) as db:
            for number in range(COMMITS + 1):
                time.sleep(luck.random() * 2 * every_s)
                db.execute("UPDATE item SET amount = -amount WHERE id = ?", (number,))
                began = time.monotonic()
                process.stdout.readline()  # one commit, one batch: the next one comes when this one is there
                took.append(time.monotonic() - began)
    finally:
        process.kill()
        process.communicate()
    return took[1:]  # with the first one the program starts


def read(folder: Path, true: tuple[int, float]) -> None:
    """Read a lake with Spark, and print what it costs."""
    spark = quiet_session("lake", cores=2, memory="2g", brief=True)
    try:
        for turn in ("first", "again"):
            began = time.monotonic()
            lake = Lake(spark, folder)
            rows, total = lake.rows("item").selectExpr("count(*)", "sum(amount)").first() or (0, 0)
            versions = lake.history("item").count()
            print(f"  Spark, {turn}: {rows} rows, and {versions} versions of them: {time.monotonic() - began:.1f} s")
            if (rows, total) != true:
                raise SystemExit(f"Spark has {rows} rows with {total} in all, the database {true}")
    finally:
        spark.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="tools/bench lake", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=100_000, help="of the table")
    parser.add_argument("--every", type=float, nargs="+", default=[0.1, 1.0], help="seconds to a batch, followed")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lake-") as place:
        home = Path(place)
        with local_cluster(home / "cluster") as cluster:
            fill(cluster, given.rows)
            trio.run(settled, cluster)
            for kind in ("delta", "iceberg"):
                print(f"{kind}: {write_all(cluster, home / kind, kind)}", flush=True)
                for every in given.every:
                    times = sorted(follow(cluster, home / kind, kind, every))
                    p50, p99 = statistics.median(times), times[int(0.99 * (len(times) - 1))]
                    print(f"  from commit to table, --every {every:g}: p50 {p50:.2f}, p99 {p99:.2f} s", flush=True)
                trio.run(settled, cluster)
            with connect(cluster.url()) as db:
                true = db.execute("SELECT count(*), sum(amount) FROM item").rows[0]
            write_all(cluster, home / "delta", "delta")
        read(home / "delta", (true[0], true[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

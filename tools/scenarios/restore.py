"""A drill: a database of a given size is backed up off site while it is written to, and restored to a moment.

``tools/bench restore --megabytes 1000 --dir /somewhere/with/room`` makes it in three real nodes, keeps a continuous
backup of it in a store with encryption, fetches that back into an empty directory, restores a moment before a disaster,
and compares digests with a copy that was made at that moment in another way. It needs ten times the room.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import trio

from bedrockish import open_client
from bedrockish_journal.verify.replay import digest
from tools.cluster import LocalCluster, clean_environment, local_cluster

ROW_BYTES = 250_000
TOGETHER = 4  # rows of a transaction


def run(*words: object) -> tuple[float, float]:
    """Run a command of the program; return how long it took, in seconds, and the most memory it had, in megabytes."""
    began = time.monotonic()
    command = [sys.executable, "-m", "bedrockish.cli.main", *map(str, words)]
    process = os.posix_spawn(sys.executable, command, clean_environment())
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - began, used.ru_maxrss / 1024


async def fill(cluster: LocalCluster, megabytes: int) -> None:
    """Write rows of random bytes, at all nodes."""
    rows = megabytes * 1_000_000 // ROW_BYTES

    async def write(index: int) -> None:
        async with open_client(cluster.url(index, options="/?timeout=60")) as client:
            for first in range(index * TOGETHER, rows, 3 * TOGETHER):
                values = ", ".join(f"({first + number}, randomblob({ROW_BYTES}))" for number in range(TOGETHER))
                await client.execute(f"INSERT INTO item VALUES {values}")

    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, data BLOB)")
    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(write, index)


async def settled(cluster: LocalCluster) -> int:
    """Wait until all that is committed is safe; return the clock of the last commit."""
    async with open_client(cluster.url()) as client:
        last = int((await client.execute("SELECT max(clock) FROM bedrockish_journal", read="strict")).value())
        while int((await client.execute("SELECT safe_clock()", read="stale")).value()) < last:  # noqa: ASYNC110
            await trio.sleep(0.1)
        return last


async def destroy(cluster: LocalCluster) -> None:
    """Do what is to be undone, a little at a time, as a wrong program does."""
    async with open_client(cluster.url(options="/?timeout=60")) as client:
        for part in range(20):
            await client.execute("UPDATE item SET data = x'00' WHERE id % 200 = ?", [part])


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if what was restored is not what was there."""
    parser = argparse.ArgumentParser(prog="tools/bench restore", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=100, help="of rows")
    parser.add_argument("--dir", type=Path, help="where; by default where temporary files are")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="drill-", dir=given.dir) as place:
        home = Path(place)
        key, store, options = home / "key", f"file://{home / 'store'}", ("--key", home / "key")
        run("backup", "key", key)
        shown: list[tuple[str, float, float, float]] = []
        with local_cluster(home / "cluster") as cluster:
            trio.run(cluster.wait_ready, 0)
            trio.run(fill, cluster, given.megabytes)
            moment = trio.run(settled, cluster)
            follow = ("backup", "follow", cluster.url(), home / "kept", "--once", "--to", store, *options)
            size = cluster.nodes[0].database.stat().st_size / 1e6
            shown.append(("snapshot, journal, and the store", size, *run(*follow)))
            shown.append(("a copy, to compare with", size, *run("backup", cluster.url(), home / "copy.db")))
            trio.run(destroy, cluster)
            trio.run(settled, cluster)
            shown.append(("what was committed since, and the store", 0.0, *run(*follow)))
        kept = sum(path.stat().st_size for path in (home / "store").rglob("*") if path.is_file()) / 1e6
        shown.append(("fetch", kept, *run("backup", "fetch", store, home / "back", *options)))
        words = ("restore", "--from", home / "back", "--to", home / "then.db", "--at", moment)
        shown.append(("restore to the moment before", size, *run(*words)))
        run("restore", "--from", home / "copy.db", "--to", home / "same.db")
        for what, megabytes, took_s, memory in shown:
            rate = f"{megabytes / took_s:7.0f} MB/s" if megabytes else " " * 12
            print(f"{what:42} {took_s:7.1f} s {rate}   {memory:5.0f} MB of memory")
        same = digest(home / "then.db") == digest(home / "same.db")
        print(f"digests {'equal' if same else 'DIFFERENT'}; a node's file {size:.0f} MB, the store {kept:.0f} MB")
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

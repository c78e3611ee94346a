"""Makes a large file, lets a node serve it, and measures what grows with the file and what does not.

    python -m tools.sizes --gigabytes 10 --dir /somewhere/with/room

The same is measured on a file of a hundredth of the size, for comparison. With ``--join`` a second node joins, which
takes the room of the file twice more.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw
import click
import trio
from rich.console import Console
from rich.table import Table

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import TooLargeError
from tools.cluster import DemoError, LocalCluster, clean_environment, free_ports

ROW_BYTES = 4_000
OWNERS = 1_000
BATCH = 20_000
STREAM_S = 5.0
TRIES = 200


@dataclass(frozen=True)
class Figure:
    """One thing that was measured: how long it takes, in seconds, and what is to be said about it."""

    what: str
    seconds: float
    note: str = ""


def make_file(path: Path, size: int) -> int:
    """Make a SQLite file of about a size, in bytes, and return how many rows it has."""
    db = apsw.Connection(str(path))
    for name, value in (("journal_mode", "off"), ("synchronous", "off"), ("cache_size", -(256 << 10))):
        db.pragma(name, value)
    db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, owner INTEGER, note TEXT, payload BLOB)")
    rows = max(BATCH, size // (ROW_BYTES + 40))
    for first in range(1, rows + 1, BATCH):
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) "
            f"INSERT INTO item SELECT i, i % {OWNERS}, 'note ' || i, zeroblob({ROW_BYTES}) FROM n",
            (first, min(first + BATCH - 1, rows)),
        )
    db.execute("CREATE INDEX item_owner ON item(owner)")
    db.close()
    return rows


@contextmanager
def timed(found: list[Figure], what: str, note: str = "", times: int = 1) -> Iterator[None]:
    """Measure a block."""
    began = time.monotonic()
    yield
    found.append(Figure(what, (time.monotonic() - began) / times, note))


async def measure(cluster: LocalCluster, rows: int, found: list[Figure]) -> None:
    """Start the node on its file, and read and write."""
    with timed(found, "start, until the first answer"):
        cluster.nodes[0].start()
        await cluster.wait_ready(0)
    async with open_client(cluster.url(0, options="/?timeout=120")) as client:
        with timed(found, "first read of a row by its key"):
            assert (await client.execute("SELECT note FROM item WHERE id = ?", [rows // 2])).value()
        with timed(found, "read of a row by its key", times=TRIES):
            for number in range(TRIES):
                await client.execute("SELECT note FROM item WHERE id = ?", [1 + number * (rows // TRIES)])
        with timed(found, "change of a row", times=TRIES):
            for number in range(TRIES):
                await client.execute("UPDATE item SET note = 'new' WHERE id = ?", [1 + number * (rows // TRIES)])
        with timed(found, "read of all rows of one owner, by an index"):
            count = (await client.execute("SELECT count(*) FROM item WHERE owner = 7")).value()
            assert abs(count - rows / OWNERS) <= 1
        with timed(found, "a new row of 1 MB"):
            await client.execute("INSERT INTO item VALUES (-1, 0, 'large', ?)", [bytes(1_000_000)])
        with timed(found, "read of the row of 1 MB"):
            assert len((await client.execute("SELECT payload FROM item WHERE id = -1")).value()) == 1_000_000
        await _streams(client, found)
        began = time.monotonic()
        try:
            await client.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000) "
                "INSERT INTO item(id, note) SELECT -10 - i, 'many' FROM n"
            )
            note = "happened"
        except TooLargeError as error:
            note = f"refused: {error.message}"
        found.append(Figure("a million rows in one transaction", time.monotonic() - began, note))
    with timed(found, "stop"):
        cluster.stop()
    with timed(found, "start again"):
        cluster.nodes[0].start()
        await cluster.wait_ready(0)


async def _streams(client: Client, found: list[Figure]) -> None:
    began, size = time.monotonic(), 0
    async with client.stream("SELECT payload FROM item") as rows:
        while time.monotonic() < began + STREAM_S and (batch := await rows.batch()):
            size += sum(len(payload) for (payload,) in batch)
    took = time.monotonic() - began
    found.append(Figure("streaming", took, f"{size / took / 1e6:.0f} MB/s, for as long as this"))


def join(cluster: LocalCluster, found: list[Figure]) -> None:
    """Let a second node join."""
    place = cluster.directory / "B.toml"
    port = free_ports(1)[0]
    place.write_text(f'node = "B"\ndatabase = "B.sqlite"\nlisten = "127.0.0.1:{port}"\n')
    with timed(found, "a second node joins: copied, sent, and checked"):
        command = [sys.executable, "-m", "bedrockish.cli.main", "join", cluster.url(0), "--no-serve", "--config"]
        done = subprocess.run(
            [*command, str(place)],
            cwd=cluster.directory,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoError(f"node B could not join: {done.stderr.strip()[-500:]}")


def run(directory: Path, size: int, *, with_join: bool) -> list[Figure]:
    """Measure a file of a size, in bytes."""
    found: list[Figure] = []
    cluster = LocalCluster(directory, ("A",))
    cluster.write_files()
    try:
        with timed(found, "making the file, by plain SQLite"):
            rows = make_file(cluster.nodes[0].database, size)
        trio.run(measure, cluster, rows, found)
        if with_join:
            join(cluster, found)
    finally:
        cluster.stop()
    return found


@click.command()
@click.option("--gigabytes", type=click.FloatRange(0.1, 10_000), default=10.0, show_default=True)
@click.option(
    "--join", "with_join", is_flag=True, help="Let a second node join; takes the room of the file three times."
)
@click.option("--dir", "directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="With room.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def main(gigabytes: float, with_join: bool, directory: Path | None, as_json: bool) -> None:
    """Measure a node with a large file, beside one with a hundredth of it."""
    large = int(gigabytes * 1e9)
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix="bedrockish-sizes-") as place:
            small = run(Path(place, "small"), large // 100, with_join=with_join)
            found = run(Path(place, "large"), large, with_join=with_join)
    except DemoError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        rows = [
            {"what": o.what, "seconds": o.seconds, "small": s.seconds, "note": o.note}
            for o, s in zip(found, small, strict=True)
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"one node with a file of {gigabytes:g} GB")
    for head in ("what", "s", f"s, {gigabytes / 100:g} GB", "ratio", ""):
        table.add_column(head, justify="right" if head[:1] in "sr" else "left")
    for one, other in zip(found, small, strict=True):
        ratio = f"{one.seconds / other.seconds:.1f}" if other.seconds else ""
        table.add_row(one.what, f"{one.seconds:.4f}", f"{other.seconds:.4f}", ratio, one.note)
    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main(prog_name="tools.sizes")

"""What other clients notice of a statement over a large table, at every node.

    tools/bench large_table [--rows 5000000] [--only update --only batch …] [--plain] [--holds] [--work DIRECTORY]

Three nodes on this machine begin with a table of so many rows: one file, copied for each. At each node three clients go
on all the time: one reads random rows of the table, one writes single rows into it, and one into another table. Each
statement is run in turn, and from its beginning until some seconds after its end each client's longest wait is noted.
``batch`` is what ``bedrockish batch`` does, for a while. ``--plain`` first tells for how long each of them has the
writer of plain SQLite: nobody else can write into one file for so long, whatever is built on top of it; and for how
long the rows that it changes have that of a node's engine. ``--holds`` tells for how long each node's loop was held,
and where.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import apsw
import click
import trio

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.common.levels import LEVEL
from bedrockish.core.protocol.records import Member, Membership
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.storage.staged_changes import stage
from bedrockish.errors import BedrockishError, TooLargeError
from bedrockish.transfer.batch import Batch, read_progress
from tools.cluster import LocalCluster
from tools.scenarios.engine import Solo
from tools.scenarios.large import tell_holds

SHARES = {  # of the table: where the rows begin that a statement has, and how many they are
    "update": ("UPDATE big SET n = n + 1 WHERE id BETWEEN {} AND {}", 0.2, 0.02),
    "delete": ("DELETE FROM big WHERE id BETWEEN {} AND {}", 0.4, 0.04),
    "many": ("UPDATE big SET n = n + 1 WHERE id BETWEEN {} AND {}", 0.6, 0.1),
    "index": ("CREATE INDEX made ON big(n)", 0.0, 0.0),
    "indexed": ("UPDATE big SET n = n * 7919 % 1000003 WHERE id BETWEEN {} AND {}", 0.3, 0.02),
    "scan": ("UPDATE big SET n = n + 1 WHERE id % 50 = 7", 0.0, 0.0),
    "drop": ("ALTER TABLE big DROP COLUMN w", 0.0, 0.0),
}
FILL = (
    "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) "
    "INSERT INTO big SELECT i, i * 7919 % 1000003, 'row ' || i, i % 7 FROM k"
)
BATCH = "UPDATE big SET n = n + 1 WHERE id BETWEEN :first AND :last"
PLAIN_CACHE_KIB = 256 << 10
PAUSE_S = 0.02  # between two calls of a client
TIMEOUT_S = 180.0


def filled(path: Path, rows: int) -> None:
    """Make a plain database with a table of so many rows."""
    db = apsw.Connection(str(path))
    db.pragma("auto_vacuum", 2)
    db.execute("CREATE TABLE big(id INTEGER PRIMARY KEY, n INTEGER, v TEXT, w INTEGER)")
    db.execute("CREATE TABLE small(id INTEGER PRIMARY KEY, x)")
    with db:
        db.execute(FILL, (rows,))
    db.close()


def statement(name: str, rows: int) -> str:
    """Return the text of a statement for a table of so many rows."""
    text, begins, share = SHARES[name]
    return text.format(round(begins * rows) + 1, round((begins + share) * rows))


def tell_plain(made: Path, rows: int, names: list[str]) -> None:
    """Print for how long each statement has the writer of plain SQLite and that of a node's engine, alone on a copy."""
    with tempfile.TemporaryDirectory(dir=made.parent) as temporary:
        path, copy = Path(temporary) / "plain.sqlite", Path(temporary) / "engine.sqlite"
        shutil.copyfile(made, path)
        print("the writer alone: waited, and of that the processor's time; then until it is committed", flush=True)
        for name in names:
            if name not in SHARES:
                continue
            text = statement(name, rows)
            shutil.copyfile(path, copy)  # which also has the machine read it
            print(f"  {text}: plain SQLite {_plainly(path, text)}", flush=True)
            if text.startswith(("UPDATE", "DELETE")):
                print(f"    a node's engine, for its rows: {_at_an_engine(copy, text)}", flush=True)
            for one in Path(temporary).glob("engine.*"):
                one.unlink()


def _plainly(path: Path, text: str) -> str:
    """Run a statement on one connection of plain SQLite; return what its writer took."""
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.pragma("cache_size", -PLAIN_CACHE_KIB)
    db.wal_autocheckpoint(0)  # it would be a part of COMMIT, and is none at a node
    db.execute("BEGIN IMMEDIATE")
    took = [_took(lambda: db.execute(text)), _took(lambda: db.execute("COMMIT"))]
    db.close()
    return "; ".join(took)


def _at_an_engine(path: Path, text: str) -> str:
    """Apply a statement's rows at a node's engine, unpacked as they are at a node; return what its writer took."""
    solo = Solo(path)
    engine = solo.engine
    try:
        prepared = solo.prepare(((text, ()),))
        engine.flush()
        entry = solo.entry(prepared)
        staged = stage(prepared.changes, engine.tables, engine.schema_version)
        if staged is None:
            return "one by one, since they are few"
        engine.staged.keep(staged)

        def commit() -> None:
            engine.flush()
            engine.sync()

        return "; ".join([_took(lambda: engine.apply(entry, repeat=False, applied_ms=0)), _took(commit)])
    except TooLargeError as error:
        return f"too many: {error}"
    finally:
        engine.close()


def _took(do: Callable[[], object]) -> str:
    began, began_cpu = time.monotonic(), time.thread_time()
    do()
    return f"{time.monotonic() - began:.2f} s, {time.thread_time() - began_cpu:.2f}"


class Waits:
    """How long each call of each kind of client took, and at which node."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, str], list[float]] = {}
        self.failures: dict[str, int] = {}

    def clear(self) -> None:
        """Forget what was noted."""
        self._took.clear()
        self.failures.clear()

    def note(self, what: str, node: str, took_s: float) -> None:
        """Note a call."""
        self._took.setdefault((what, node), []).append(took_s)

    def tell(self) -> None:
        """Print a line for each kind, with the longest wait at each node."""
        for what in sorted({what for what, _ in self._took}):
            all_s = sorted(took_s for (one, _), some in self._took.items() if one == what for took_s in some)
            p50, p99 = (1e3 * all_s[int(part * (len(all_s) - 1))] for part in (0.5, 0.99))
            longest = ", ".join(
                f"{node} {1e3 * max(some):.0f}" for (one, node), some in sorted(self._took.items()) if one == what
            )
            print(f"  {what:16} {len(all_s):6} calls: p50 {p50:.1f}, p99 {p99:.1f}, longest {longest} ms", flush=True)
        for failure, count in self.failures.items():
            print(f"  {count} x {failure}", flush=True)


async def go_on(node: str, what: str, call: Callable[[], Awaitable[object]], waits: Waits) -> None:
    """Call again and again."""
    while True:
        began = trio.current_time()
        try:
            await call()
        except BedrockishError as error:
            failure = f"{what} at {node}: {type(error).__name__}: {error}"[:160]
            waits.failures[failure] = waits.failures.get(failure, 0) + 1
        waits.note(what, node, trio.current_time() - began)
        await trio.sleep(PAUSE_S)


def start_clients(nursery: trio.Nursery, node: str, clients: list[Client], rows: int, waits: Waits) -> None:
    """Let three clients work at a node until the nursery is cancelled."""
    luck = Random(node)
    reader, near, other = clients

    async def read() -> object:
        return await reader.execute("SELECT * FROM big WHERE id = ?", (luck.randint(1, rows),))

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "read a row": read,
        "insert there": lambda: near.execute("INSERT INTO big(n, v) VALUES (1, 'x')"),
        "insert elsewhere": lambda: other.execute("INSERT INTO small(x) VALUES (1)"),
    }
    for what, call in calls.items():
        nursery.start_soon(go_on, node, what, call, waits)


async def run_batch(client: Client, seconds: float) -> str:
    """Let a batch work for a while, as ``bedrockish batch`` does; return what it has done."""
    with tempfile.TemporaryDirectory() as temporary:
        state = Path(temporary) / "batch.json"
        work = Batch(client, state, read_progress(state, BATCH, "big", "id"), 0.0, lambda _: None)
        began = trio.current_time()
        with trio.move_on_after(seconds):
            await work.run(500)
        took_s = trio.current_time() - began
        done = work.progress
        return f"{done.rows} rows in {done.number} ranges after {took_s:.1f} s, {done.rows / took_s:.0f} rows a second"


async def run(
    cluster: LocalCluster, rows: int, names: list[str], sizes: Callable[[], str], batch_s: float, quiet_s: float
) -> None:
    """Run the statements in turn."""
    for number in range(len(cluster.nodes)):
        await cluster.wait_ready(number)
    waits = Waits()
    async with trio.open_nursery() as nursery:
        for number, node in enumerate(cluster.nodes):
            clients = [await nursery.start(_client, cluster.url(number, only=True)) for _ in range(3)]
            start_clients(nursery, node.name, clients, rows, waits)
        own: Client = await nursery.start(_client, cluster.url(0, only=True))
        await trio.sleep(quiet_s / 2)
        waits.clear()
        await trio.sleep(quiet_s)
        print("nothing else", flush=True)
        waits.tell()
        for name in names:
            waits.clear()
            print(BATCH if name == "batch" else statement(name, rows), flush=True)
            said = await (run_batch(own, batch_s) if name == "batch" else run_statement(own, statement(name, rows)))
            await trio.sleep(quiet_s)
            print(f"  {said}; {sizes()}", flush=True)
            waits.tell()
        nursery.cancel_scope.cancel()


async def run_statement(client: Client, text: str) -> str:
    """Run a statement; return what came of it."""
    began = trio.current_time()
    try:
        await client.execute(text, timeout=TIMEOUT_S)
        said = "done"
    except BedrockishError as error:
        said = f"{type(error).__name__}: {error}"
    return f"{said} after {trio.current_time() - began:.2f} s"


async def _client(url: str, *, task_status: trio.TaskStatus[Client]) -> None:
    async with open_client(url) as client:
        task_status.started(client)
        await trio.sleep_forever()


def found(cluster: LocalCluster, made: Path) -> None:
    """Give all nodes the same tables to begin with, which takes no commits; a node that is started refuses to."""
    members = {node.name: Member(node.name, f"127.0.0.1:{node.port}") for node in cluster.nodes}
    membership = Membership(0, members, secrets.token_hex(8), LEVEL)
    for node in cluster.nodes:
        shutil.copyfile(made, node.database)
        Engine.open(node.database, founding=Founding(node.name, membership, secrets.token_hex(8))).close()


@click.command()
@click.option("--rows", default=5_000_000, show_default=True, help="How many the table has.")
@click.option("--only", multiple=True, type=click.Choice([*SHARES, "batch"]), help="All, if none is named.")
@click.option("--batch", "batch_s", default=20.0, show_default=True, help="Seconds for which a batch works.")
@click.option("--quiet", "quiet_s", default=4.0, show_default=True, help="Seconds before and after each.")
@click.option(
    "--plain", is_flag=True, help="Tell first for how long the writer alone takes, of plain SQLite and of an engine."
)
@click.option("--holds", is_flag=True, help="Tell where each node's loop was held.")
@click.option("--work", type=click.Path(path_type=Path), help="Directory for the files; by default a temporary one.")
def main(
    rows: int, only: tuple[str, ...], batch_s: float, quiet_s: float, plain: bool, holds: bool, work: Path | None
) -> None:
    """Measure what other clients notice of a statement over a large table."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "made.sqlite"
        began = time.monotonic()
        filled(made, rows)
        print(f"{rows} rows, {made.stat().st_size / 1e6:.0f} MB, in {time.monotonic() - began:.1f} s", flush=True)
        names = [*(only or [*SHARES, "batch"])]
        if plain:
            tell_plain(made, rows, names)
        cluster = LocalCluster(work or Path(temporary) / "nodes")
        cluster.write_files()
        found(cluster, made)
        files = [cluster.directory / f"{node.name}.holds" for node in cluster.nodes]
        try:
            for node, path in zip(cluster.nodes, files, strict=True):
                if holds:
                    node.program = ("-m", "tools.loop_holds", str(path))
                node.start()

            def sizes() -> str:
                wals = (node.database.with_name(f"{node.database.name}-wal").stat().st_size for node in cluster.nodes)
                return "write-ahead logs of " + ", ".join(f"{size / 1e6:.0f}" for size in wals) + " MB"

            trio.run(run, cluster, rows, names, sizes, batch_s, quiet_s)
        finally:
            cluster.stop()
        if holds:
            tell_holds(files)


if __name__ == "__main__":
    main()

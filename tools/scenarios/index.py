"""What one node's engine does for a change of a large table: beside the table, and when it comes into force.

tools/bench index [--rows N] [--sql "CREATE INDEX made ON big(n)"]
tools/bench index --sql "ALTER TABLE big DROP COLUMN w"

No cluster: a file with a table of so many rows, and the engine in one thread. All times are of the processor, so they
mean something on a machine that does other things, too: each slice is a time for which the node's loop is held; the
move is what clients wait for when the change comes into force, and what they waited for without all this is beside it.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import apsw
import click

from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.records import Member, Membership
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.storage.build import Phase
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.transaction import Transaction, Txid

FILL = (
    "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) "
    "INSERT INTO big SELECT i, i * 7919 % 1000003, 'row ' || i, i % 7 FROM k"
)


def filled(path: Path, rows: int) -> None:
    """Make a plain database with a table of so many rows."""
    db = apsw.Connection(str(path))
    db.pragma("auto_vacuum", 2)
    db.execute("CREATE TABLE big(id INTEGER PRIMARY KEY, n INTEGER, v TEXT, w INTEGER)")
    with db:
        db.execute(FILL, (rows,))
    db.close()


def decided(engine: Engine, sql: str) -> Entry:
    """Try a change of the schema, and put it into the journal."""
    prepared = engine.execute(Request("index", (Statement(sql),)))
    what = (prepared.kind, prepared.access_set, prepared.changes, prepared.result)
    made = Transaction(Txid(1, "A"), prepared.base, 0, prepared.schema, 0, "index", "serializable", *what)
    entry = Entry("A", 1, {"A": 1}, replace(made, activates=100, body=b""), None, GENESIS)
    engine.apply(entry, repeat=False, applied_ms=0)
    engine.flush()
    return entry


def built_beside(engine: Engine, entry: Entry) -> None:
    """Build what the change makes, and print what its slices took."""
    plan = engine.plan_build(entry.transaction)
    if plan is None:
        raise click.ClickException("this is not built beside a table; see docs/schema-changes.md")
    build = engine.begin_build(plan, entry.txid)
    reading, slices, commits = 0.0, [], []
    while build.phase not in (Phase.READY, Phase.FAILED):
        moments = [time.thread_time()]
        if build.is_waiting:
            build.fetch()
        moments.append(time.thread_time())
        engine.go_on_with_build()
        moments.append(time.thread_time())
        build.took(moments[2] - moments[1])
        engine.flush()
        moments.append(time.thread_time())
        reading += moments[1] - moments[0]
        slices.append(1000 * (moments[2] - moments[1]))
        commits.append(1000 * (moments[3] - moments[2]))
    if build.phase is Phase.FAILED:
        raise click.ClickException(f"it was not built: {build.failure}")
    print(f"sorting and reading, in another thread: {reading:.2f} s")
    print(f"{len(slices)} slices: {sum(slices) / 1000:.2f} s, the longest {max(slices):.1f} ms")
    print(f"their commits: {sum(commits) / 1000:.2f} s, the longest {max(commits):.1f} ms")
    print(f"write-ahead log: {engine.wal_frames * 4096 / 1e6:.0f} MB")


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="How many the table has.")
@click.option("--sql", default="CREATE INDEX made ON big(n)", show_default=True, help="The change of the schema.")
def main(rows: int, sql: str) -> None:
    """Measure a change that is made beside its table, and the same one made when it comes into force."""
    for beside in (True, False):
        print("built beside" if beside else "built when it comes into force")
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "node.sqlite"
            filled(path, rows)
            members = Membership(0, {"A": Member("A", "127.0.0.1:1")})
            engine = Engine.open(path, founding=Founding("A", members, "index"))
            try:
                entry = decided(engine, sql)
                if beside:
                    built_beside(engine, entry)
                began = time.thread_time()
                failure = engine.activate(entry.txid)
                engine.flush()
                print(f"comes into force: {1000 * (time.thread_time() - began):.1f} ms {failure}")
            finally:
                engine.close()
            found = apsw.Connection(str(path)).execute("PRAGMA integrity_check").fetchall()
            print(f"integrity_check: {found[0][0]}")


if __name__ == "__main__":
    main()

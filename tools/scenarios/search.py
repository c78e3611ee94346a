"""Measures full-text search at a node's engine and in plain SQLite: queries, indexed inserts and building an index.

Both have the same documents, the same FTS5 index with external content, and the usual triggers. Compare the ratios,
because microseconds drift with the machine.
"""

import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

import apsw
import click
from rich.console import Console
from rich.table import Table

from tools.scenarios.engine import Solo
from tools.scenarios.plain import Clock, open_plain

DOCS = "CREATE TABLE {0}(id INTEGER PRIMARY KEY, title TEXT, body TEXT)"
INDEX = "CREATE VIRTUAL TABLE found USING fts5(title, body, content='docs', content_rowid='id')"
TRIGGERS = (
    "CREATE TRIGGER docs_ai AFTER INSERT ON docs BEGIN "
    "INSERT INTO found(rowid, title, body) VALUES (new.id, new.title, new.body); END",
    "CREATE TRIGGER docs_ad AFTER DELETE ON docs BEGIN "
    "INSERT INTO found(found, rowid, title, body) VALUES ('delete', old.id, old.title, old.body); END",
)
INSERT = "INSERT INTO {0}(id, title, body) VALUES (?, ?, ?)"
QUERIES = {
    "search, a rare word": "SELECT rowid FROM found WHERE found MATCH 'w4999' ORDER BY rank LIMIT 20",
    "search, a frequent word": "SELECT rowid FROM found WHERE found MATCH 'w3' ORDER BY rank LIMIT 20",
    "search, two words": "SELECT rowid FROM found WHERE found MATCH 'w10 w20' ORDER BY rank LIMIT 20",
    "search, joined": "SELECT docs.title, snippet(found, 1, '<', '>', '…', 8) FROM found "
    "JOIN docs ON docs.id = found.rowid WHERE found MATCH 'w700' ORDER BY rank LIMIT 20",
}
BATCH = 50  # transactions that are committed together, on both sides


@dataclass(frozen=True)
class Figure:
    """One line of the table: microseconds of the node's engine, and of plain SQLite."""

    what: str
    micros: float
    plain_micros: float


def documents(count: int) -> list[tuple[int, str, str]]:
    """Return documents of five and fifty words, of which a few are frequent and most are rare."""
    luck = random.Random(7)
    words = [f"w{number}" for number in range(5_000)]
    weights = [1 / (number + 1) for number in range(5_000)]
    return [
        (number + 1, " ".join(luck.choices(words, weights, k=5)), " ".join(luck.choices(words, weights, k=50)))
        for number in range(count)
    ]


def figures(clock: Clock, place: Path, count: int) -> Iterator[Figure]:
    """Yield the lines."""
    solo, plain = Solo(place / "node.sqlite"), open_plain(place / "plain.sqlite", "OFF")
    made = documents(count + 20_000)
    for name in ("docs", "bare"):
        solo.do((DOCS.format(name), ()))
        plain.execute(DOCS.format(name))
    for first in range(0, count, 500):
        solo.do(*((INSERT.format("docs"), row) for row in made[first : first + 500]))
    solo.engine.flush()
    with plain:
        plain.executemany(INSERT.format("docs"), made[:count])
    yield Figure("building the index, each document", *_built(solo, plain, count))
    for sql in TRIGGERS:
        solo.do((sql, ()))
        plain.execute(sql)
    solo.engine.flush()
    reader = solo.engine.background.open_reader()
    for what, sql in QUERIES.items():
        assert reader.execute(sql).fetchall() == plain.execute(sql).fetchall(), what
        ours, theirs = (clock.micros(lambda _, db=db, sql=sql: db.execute(sql).fetchall()) for db in (reader, plain))  # type: ignore[misc]
        yield Figure(what, ours, theirs)
    reader.close()
    for what, table in (("insert, indexed", "docs"), ("insert, not indexed", "bare")):
        yield Figure(what, *_inserted(clock, solo, plain, table, made[count:]))
    solo.engine.close()
    plain.close()


def _built(solo: Solo, plain: apsw.Connection, count: int) -> tuple[float, float]:
    found = []
    began = time.thread_time()
    solo.do((INDEX, ()))
    solo.engine.flush()
    found.append((time.thread_time() - began) / count * 1e6)
    began = time.thread_time()
    with plain:
        plain.execute(INDEX)
        plain.execute("INSERT INTO found(found) VALUES ('rebuild')")
    found.append((time.thread_time() - began) / count * 1e6)
    return found[0], found[1]


def _inserted(
    clock: Clock, solo: Solo, plain: apsw.Connection, table: str, rows: list[tuple[int, str, str]]
) -> tuple[float, float]:
    """Return the time of one INSERT as a transaction of its own, executed and applied."""
    sql = INSERT.format(table)
    texts = [row[1:] for row in rows]
    ours, theirs = (enumerate(cycle(texts), rows[0][0]) for _ in range(2))

    def node(number: int) -> None:
        rowid, row = next(ours)
        solo.do((sql, (rowid, *row)))
        if number % BATCH == BATCH - 1:
            solo.engine.flush()

    def sqlite(number: int) -> None:
        if number % BATCH == 0:
            plain.execute("BEGIN")
        rowid, row = next(theirs)
        plain.execute(sql, (rowid, *row))
        if number % BATCH == BATCH - 1:
            plain.execute("COMMIT")

    measured = clock.micros(node), clock.micros(sqlite)
    if plain.in_transaction:
        plain.execute("COMMIT")
    solo.engine.flush()
    return measured


@click.command()
@click.option("--documents", "count", default=100_000, show_default=True, help="In the table that is searched.")
@click.option("--seconds", default=1.0, show_default=True, help="Of each measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(count: int, seconds: float, as_json: bool) -> None:
    """Measure full-text search at a node's engine and in plain SQLite."""
    with tempfile.TemporaryDirectory() as place:
        found = list(figures(Clock(3, seconds), Path(place), count))
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    table = Table("", "node, µs", "SQLite, µs", "ratio", title=f"{count:,} documents")
    for one in found:
        table.add_row(one.what, f"{one.micros:.1f}", f"{one.plain_micros:.1f}", f"{one.micros / one.plain_micros:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main(prog_name="tools/bench search")

"""Measures a node's engine alone, without network or protocol, and plain SQLite with the same work in the same run.

Plain SQLite uses the same library, file settings and statements; compare the ratios, because microseconds drift with
the machine. Each figure is the median of several rounds.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import click
from rich.console import Console
from rich.table import Table

from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.daemon import calm_collector
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.sqltext.text_forms import with_parameters
from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import Transaction, Txid

ROWS = 10_000
SCHEMA = "CREATE TABLE item(id INTEGER PRIMARY KEY, owner TEXT, amount INTEGER); CREATE INDEX owned ON item(owner)"
INSERT = "INSERT INTO item(id, owner, amount) VALUES (?, ?, ?)"
UPDATE = "UPDATE item SET amount = amount + ? WHERE id = ?"
SELECT = "SELECT amount FROM item WHERE id = ?"
JOIN = "SELECT count(*) FROM item a JOIN item b ON b.owner = a.owner WHERE a.id = ? AND b.amount > {}"
Statements = tuple[tuple[str, tuple[Any, ...]], ...]


class Clock:
    """Measures the times of actions."""

    def __init__(self, rounds: int, seconds: float) -> None:
        self._rounds, self._seconds = rounds, seconds

    def after(self, first: Callable[[int], object], action: Callable[[int], object]) -> float:
        """Return the median processor time of an action, in microseconds; ``first`` runs before it and is not timed."""
        number, until = 0, time.perf_counter() + self._seconds
        found: list[float] = []
        while time.perf_counter() < until or not found:
            first(number)
            began = time.thread_time()
            action(number)
            found.append((time.thread_time() - began) * 1e6)
            number += 1
        return statistics.median(found)

    def micros(self, action: Callable[[int], object], units: int = 1, *, waits: bool = False) -> float:
        """Return the microseconds that one unit of an action takes: the median of rounds of equal length.

        Args:
            action: gets a new number each time.
            units: the number of units in one call of the action.
            waits: whether to count the time in which this thread waits; otherwise only processor time counts, which
                depends less on other work of the machine.
        """
        seconds = time.perf_counter if waits else time.thread_time
        number = 0
        found: list[float] = []
        for _ in range(self._rounds):
            began = seconds()
            until, count = began + self._seconds / self._rounds, 0
            while True:
                action(number)
                number += 1
                count += 1
                now = seconds()
                if now >= until:
                    break
            found.append((now - began) / count / units * 1e6)
        return statistics.median(found)


def open_plain(path: Path, synchronous: str) -> apsw.Connection:
    """Return a connection of plain SQLite to its own file."""
    db = apsw.Connection(str(path), statementcachesize=512)
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", synchronous)
    db.wal_autocheckpoint(0)
    return db


def works(number: int) -> dict[str, Statements]:
    """Return the requests that are measured, the ``number``-th of each kind."""
    row = number % ROWS
    return {
        "insert": ((INSERT, (ROWS + 1 + number, f"owner {row % 100}", row)),),
        "update": ((UPDATE, (1, row + 1)),),
        "transfer": ((UPDATE, (-1, row + 1)), (UPDATE, (1, (row * 7) % ROWS + 1))),
        "select": ((SELECT, (row + 1,)),),
    }


def run_plainly(db: apsw.Connection, statements: Statements) -> None:
    """Run the statements of a request on plain SQLite, and roll them back."""
    db.execute("SAVEPOINT request")
    for sql, params in statements:
        db.execute(sql, params).fetchall()
    db.execute("ROLLBACK TO request")
    db.execute("RELEASE request")


@dataclass(frozen=True)
class Figure:
    """A line of the table."""

    what: str  # the measured work
    micros: float  # its time in microseconds
    plain_micros: float = 0.0  # the time of plain SQLite for the same work; 0 if it has no such work


class Solo:
    """A node's engine without a cluster, which commits every request at once."""

    def __init__(self, path: Path) -> None:
        members = Membership(0, {"A": Member("A", "127.0.0.1:1")})
        self.engine = Engine.open(path, founding=Founding("A", members, "bench"))
        self._tick, self._head = 0, GENESIS

    def prepare(self, statements: Statements) -> Prepared:
        """Run a request and roll it back."""
        return self.engine.execute(Request("c", tuple(Statement(sql, params) for sql, params in statements)))

    def entry(self, prepared: Prepared) -> Entry:
        self._tick += 1
        transaction = Transaction(
            Txid(self._tick, "A"),
            prepared.base,
            0,
            prepared.schema,
            0,
            f"c{self._tick}",
            "serializable",
            prepared.kind,
            prepared.access_set,
            prepared.changes,
            prepared.result,
        )
        entry = Entry("A", self._tick, {"A": self._tick}, transaction, None, self._head)
        self._head = entry.hash
        return entry

    def do(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        """Run a request, and apply its entry."""
        self.engine.apply(self.entry(self.prepare(statements)), repeat=False, applied_ms=0)


def prepares(clock: Clock, solo: Solo, plain: apsw.Connection) -> Iterator[Figure]:
    """Yield the figures for whole requests, which are run and rolled back."""
    for name in works(0):

        def ours(number: int, name: str = name) -> None:
            solo.prepare(works(number)[name])

        def theirs(number: int, name: str = name) -> None:
            run_plainly(plain, works(number)[name])

        made = clock.micros(works)
        yield Figure(f"prepare, {name}", clock.micros(ours) - made, clock.micros(theirs) - made)


def steps(clock: Clock, solo: Solo, plain: apsw.Connection) -> Iterator[Figure]:
    executor = solo.engine._executor
    analysis = executor.analysis

    def new_text(number: int) -> None:
        for piece, params in executor.texts.pieces(Statement(JOIN.format(number), (1,))):
            analysis.plan(piece).bind(params)

    def plain_text(number: int) -> None:
        plain.execute(JOIN.format(-number), (None,)).fetchall()

    yield Figure("a text seen for the first time, a join", clock.micros(new_text), clock.micros(plain_text))
    literals = "UPDATE item SET amount = {0} WHERE id = {0} AND owner <> 'nobody'"
    yield Figure(
        "the form of a new text of literals", clock.micros(lambda number: with_parameters(literals.format(number)))
    )
    ((piece, _),) = executor.texts.pieces(Statement(UPDATE, (1, 2)))
    plan = analysis.plan(piece)
    yield Figure("bind a known plan", clock.micros(lambda number: plan.bind((1, number))))
    keys = analysis.keys
    row = (7, "owner 7", 70)
    after = (7, "owner 7", 71)
    yield Figure("keys of a changed row", clock.micros(lambda _: keys.keys("item", 7, 7, row, after)))

    sql = "UPDATE item SET amount = amount + 1 WHERE id BETWEEN ? AND ?"

    def captured(number: int) -> None:
        first = number * 1000 % (ROWS - 1000)
        solo.prepare(((sql, (first + 1, first + 1000)),))

    def uncaptured(number: int) -> None:
        first = number * 1000 % (ROWS - 1000)
        run_plainly(plain, ((sql, (first + 1, first + 1000)),))

    yield Figure(
        "capture, a row of a thousand, with its keys and its encoding",
        clock.micros(captured, 1000),
        clock.micros(uncaptured, 1000),
    )


class Opened:
    """Runs open transactions, one after the other; each swaps out the one before."""

    def __init__(self, solo: Solo) -> None:
        self.interactive = Interactive(solo.engine, lambda *_: None)

    def run(self, statements: Statements) -> None:
        """Run the statements of a transaction one by one, and prepare the transaction for its commit."""
        interactive, work = self.interactive, TransactionWork(serializable=True)
        for sql, params in statements:
            for piece, values in interactive.pieces(work, Statement(sql, params)):
                interactive.run(work, piece, values, 1 << 20)
        interactive.finish(work)
        interactive.end(work)


def sessions(clock: Clock, solo: Solo) -> Iterator[Figure]:
    """Yield the figure for open transactions, each of which the next one swaps out."""
    opened = Opened(solo)
    micros = clock.micros(lambda number: opened.run(works(number)["transfer"])) - clock.micros(works)
    yield Figure("open transaction, a transfer", micros)
    opened.interactive.close()


def applies(clock: Clock, solo: Solo, plain: apsw.Connection) -> Iterator[Figure]:
    """Yield the figures for applying other nodes' rows, and for a plain UPDATE of the same column."""
    sql = "UPDATE item SET amount = amount + 1 WHERE id <= 1000"
    changes = decode_changes(solo.prepare(((sql, ()),)).changes)
    prepared = solo.prepare(((sql, ()),))
    values = [(change.after[2], change.after[0]) for change in changes if change.after is not None]
    engine = solo.engine

    def ours(_: int) -> None:
        engine._db.execute("SAVEPOINT bench")
        engine._applier.apply(entry, [changes])
        engine._db.execute("ROLLBACK TO bench")
        engine._db.execute("RELEASE bench")

    def theirs(_: int) -> None:
        plain.execute("SAVEPOINT bench")
        plain.executemany("UPDATE item SET amount = ? WHERE id = ?", values)
        plain.execute("ROLLBACK TO bench")
        plain.execute("RELEASE bench")

    entry = solo.entry(prepared)
    solo.engine.apply(entry, repeat=True, applied_ms=0)
    yield Figure("apply, a row of a thousand", clock.micros(ours, 1000), clock.micros(theirs, 1000))


def commits(clock: Clock, solo: Solo, place: Path) -> Iterator[Figure]:
    """Yield the figures for one-row transactions that are committed in batches, with one sync for each batch."""
    plain = open_plain(place / "commits.sqlite", "FULL")
    plain.wal_autocheckpoint(2_000)  # frames after which a node, too, checkpoints the log
    plain.execute(SCHEMA)
    engine = solo.engine
    fresh = iter(range(1_000_000, 1 << 60))

    def insert(number: int) -> None:
        solo.do((INSERT, (next(fresh), "owner", number)))

    def insert_plain(number: int) -> None:
        plain.execute(INSERT, (next(fresh), "owner", number))

    def flush_plain(_: int) -> None:
        plain.execute("COMMIT")
        plain.execute("BEGIN IMMEDIATE")

    plain.execute("PRAGMA synchronous = NORMAL")
    plain.execute("BEGIN IMMEDIATE")
    flushes = clock.after(insert, lambda _: engine.flush()), clock.after(insert_plain, flush_plain)
    yield Figure("commit of a batch, without what is in it", *flushes)
    plain.execute("COMMIT")
    plain.execute("PRAGMA synchronous = FULL")
    for size in (1, 10, 100):

        def ours(number: int, size: int = size) -> None:
            for one in range(size):
                solo.do((INSERT, (next(fresh), "owner", number + one)))
            engine.flush()
            engine.sync()
            if engine.checkpoint_due:
                engine.wal.checkpoint()

        def theirs(number: int, size: int = size) -> None:
            plain.execute("BEGIN IMMEDIATE")
            for one in range(size):
                plain.execute(INSERT, (next(fresh), "owner", number + one))
            plain.execute("COMMIT")

        what = f"one-row transaction, from request to disk, {size} in a batch"
        yield Figure(f"{what}, processor", clock.micros(ours, size), clock.micros(theirs, size))
        synced = (clock.micros(ours, size, waits=True), clock.micros(theirs, size, waits=True))
        yield Figure(f"{what}, synced", *synced)
    plain.close()


def fill(solo: Solo) -> list[tuple[int, str, int]]:
    """Create and fill the table on which everything is measured, and return its rows."""
    solo.do((SCHEMA, ()))
    rows = [(number, f"owner {number % 100}", number) for number in range(1, ROWS + 1)]
    for first in range(0, ROWS, 500):
        solo.do(*((INSERT, row) for row in rows[first : first + 500]))
    solo.engine.flush()
    solo.engine.sync()
    return rows


def measure(place: Path, rounds: int, seconds: float) -> list[Figure]:
    """Return all figures, measured on files in a directory."""
    clock = Clock(rounds, seconds)
    solo = Solo(place / "engine.sqlite")
    plain = open_plain(place / "plain.sqlite", "NORMAL")
    rows = fill(solo)
    plain.execute(SCHEMA)
    plain.execute("BEGIN")
    plain.executemany(INSERT, rows)
    plain.execute("COMMIT")
    plain.execute("BEGIN IMMEDIATE")  # a node's connection is always in a transaction, too
    found = [
        *prepares(clock, solo, plain),
        *steps(clock, solo, plain),
        *sessions(clock, solo),
        *applies(clock, solo, plain),
        *commits(clock, solo, place),
    ]
    plain.close()
    solo.engine.close()
    return found


def render(figures: list[Figure]) -> Table:
    table = Table(title=f"the engine alone, SQLite {apsw.sqlite_lib_version()}, {os.cpu_count()} processors")
    for head in ("what", "µs", "plain µs", "ratio"):
        table.add_column(head, justify="left" if head == "what" else "right", no_wrap=True)
    for one in figures:
        table.add_row(
            one.what,
            f"{one.micros:.2f}",
            f"{one.plain_micros:.2f}" if one.plain_micros else "",
            f"{one.micros / one.plain_micros:.2f}" if one.plain_micros else "",
        )
    return table


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(0.01, 60), default=0.6, show_default=True, help="The time of each measurement."
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="The number of measurements, of which the median counts.",
)
def main(seconds: float, rounds: int) -> None:
    """Measure the cost of a transaction in one node without network and protocol, and in plain SQLite.

    The processor's time is shown, and where it says "synced", the time of day.
    """
    calm_collector()  # as the process of a node does
    with tempfile.TemporaryDirectory(prefix="bedrockish-bench-") as place:
        figures = measure(Path(place), rounds, seconds)
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(render(figures))

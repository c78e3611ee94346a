"""The references for the engine: plain SQLite, and the first experiments, of which the simplest run again.

The experiments noted what SQLite's hook tells of a request and took the request back, and did nothing else.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

ROWS = 10_000
SCHEMA = "CREATE TABLE item(id INTEGER PRIMARY KEY, owner TEXT, amount INTEGER); CREATE INDEX owned ON item(owner)"
INSERT = "INSERT INTO item(id, owner, amount) VALUES (?, ?, ?)"
UPDATE = "UPDATE item SET amount = amount + ? WHERE id = ?"
SELECT = "SELECT amount FROM item WHERE id = ?"
JOIN = "SELECT count(*) FROM item a JOIN item b ON b.owner = a.owner WHERE a.id = ? AND b.amount > {}"
Statements = tuple[tuple[str, tuple[Any, ...]], ...]


class Clock:
    """Measures."""

    def __init__(self, rounds: int, seconds: float) -> None:
        self._rounds, self._seconds = rounds, seconds

    def after(self, first: Callable[[int], object], action: Callable[[int], object]) -> float:
        """Return the processor's microseconds of an action alone, each time after another one: the median."""
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
        """Return how many microseconds one unit of an action takes: the median of rounds of equal length.

        Args:
            action: is given a number that is new each time.
            units: how many it does at once.
            waits: count the time in which this thread waits as well; else only what the processor does for it, which
                depends less on what else the machine is busy with.
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
    """Return plain SQLite on a file of its own."""
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


# Of the first experiments: to run a request, note what the hook is told, and roll it back.
EXPERIMENT = {"insert": 4.1, "update": 4.1, "transfer": 7.5}
# And with 5 to bind each statement and 3 for the keys of each row.
DESIGN = {"insert": 4.1 + 5 + 3, "update": 4.1 + 5 + 3, "transfer": 7.5 + 10 + 6, "select": 4.0 + 5}


def run_plainly(db: apsw.Connection, statements: Statements) -> None:
    """Do what a request needs of SQLite itself."""
    db.execute("SAVEPOINT request")
    for sql, params in statements:
        db.execute(sql, params).fetchall()
    db.execute("ROLLBACK TO request")
    db.execute("RELEASE request")


def drift(clock: Clock, hooked: apsw.Connection) -> float:
    """Return the time of the first experiments on this machine, as a multiple of their time back then."""
    heard: list[tuple[Any, ...]] = []

    def hear(update: apsw.PreUpdate) -> None:
        before = None if update.op == "INSERT" else update.old
        after = None if update.op == "DELETE" else update.new
        heard.append((update.table_name, update.op, update.rowid, update.rowid_new, before, after))

    def experiment(number: int, name: str) -> None:
        heard.clear()
        run_plainly(hooked, works(number)[name])

    hooked.preupdate_hook(hear)
    made = clock.micros(works)
    found = [
        (clock.micros(lambda number, name=name: experiment(number, name)) - made) / then  # type: ignore[misc]
        for name, then in EXPERIMENT.items()
    ]
    hooked.preupdate_hook(None)
    return statistics.median(found)

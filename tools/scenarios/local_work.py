"""A process with some clients of ``tools/bench local``: runs one work for some seconds and prints its times as JSON."""

import importlib
import json
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bedrockish import dbapi
from bedrockish.dbapi import Error
from tools.scenarios.postgres import connect

ROWS = 100_000
WARM_S = 60.0  # seconds in which all clients must have done the work once
PLAIN, GALERA, POSTGRES = "sqlite3", "Galera", "PostgreSQL"
WORKS = ("point", "range", "mix", "order", "open", "transfer")
POINT = "SELECT a FROM item WHERE id = ?"
RANGE = "SELECT id, b FROM item WHERE id BETWEEN ? AND ?"
ADD = "UPDATE item SET b = b + 1 WHERE id = ?"
SCHEMA = (
    "CREATE TABLE item(id INTEGER PRIMARY KEY, a TEXT, b INTEGER)",
    "CREATE TABLE line(customer INTEGER, n INTEGER, item INTEGER, PRIMARY KEY(customer, n)) WITHOUT ROWID",
)
FILL = (
    "WITH RECURSIVE n(i) AS (VALUES (?) UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
    "INSERT INTO item SELECT i, 'row ' || i, i FROM n"
)


LOST: tuple[type[Exception], ...] = (Error, sqlite3.OperationalError)


class Peer:
    """A connection to another database, with the methods of a bedrockish connection that the work calls."""

    def __init__(self, engine: str, where: str) -> None:
        if engine == GALERA:
            driver = importlib.import_module("MySQLdb")
            self._db = driver.connect(unix_socket=where, user="root", database="bench", autocommit=True)
        else:
            self._db = connect(where)
        self._texts = dict[str, str]()

    def execute(self, sql: str, params: Sequence[Any] = ()) -> Any:
        """Run a statement; return the cursor."""
        text = self._texts.get(sql)
        if text is None:
            text = self._texts[sql] = sql.replace("?", "%s")
        cursor = self._db.cursor()
        cursor.execute(text, params)
        return cursor

    def rollback(self) -> None:
        """Roll back the open transaction, of which the driver does not know: a BEGIN statement opened it."""
        self.execute("ROLLBACK")


class Client:
    def __init__(self, engine: str, where: str, seed: int) -> None:
        self._luck = random.Random(seed)
        self._begin = "BEGIN IMMEDIATE" if engine == PLAIN else "BEGIN"
        self._order = random.SystemRandom().getrandbits(40) << 20  # no other client or run has the same orders
        self._db: Any
        if engine in (GALERA, POSTGRES):
            self._db = Peer(engine, where)
        elif engine == PLAIN:
            self._db = sqlite3.connect(where, isolation_level=None, timeout=30, check_same_thread=False)
        else:
            self._db = dbapi.connect(where, isolation_level=None)

    def point(self) -> None:
        """Read a row by its key."""
        self._db.execute(POINT, (self._luck.randrange(ROWS),)).fetchone()

    def range(self) -> None:
        """Read 100 rows that follow each other."""
        first = self._luck.randrange(ROWS - 100)
        self._db.execute(RANGE, (first, first + 99)).fetchall()

    def mix(self) -> None:
        """Read a row by its key, or once in 20 times update it; few keys get most of the accesses."""
        key = int(ROWS * self._luck.random() ** 6)
        if self._luck.random() < 0.95:
            self._db.execute(POINT, (key,)).fetchone()
        else:
            self._db.execute(ADD, (key,))

    def order(self) -> None:
        """Enter an order: a transaction that reads a row, and ten times reads and updates a row and inserts a line."""
        self._enter()
        self._db.execute("COMMIT")

    def open(self) -> None:
        """Run the statements of an order, and roll them back."""
        self._enter()
        self._db.execute("ROLLBACK")

    def _enter(self) -> None:
        self._order += 1
        self._db.execute(self._begin)
        self._db.execute(POINT, (self._luck.randrange(ROWS),)).fetchone()
        for number in range(10):
            item = self._luck.randrange(ROWS)
            self._db.execute(POINT, (item,)).fetchone()
            self._db.execute(ADD, (item,))
            self._db.execute("INSERT INTO line VALUES (?, ?, ?)", (self._order, number, item))

    def transfer(self) -> None:
        """Move a unit between two rows: a transaction with two reads and two updates."""
        one, other = self._luck.sample(range(ROWS), 2)
        self._db.execute(self._begin)
        for row in (one, other):
            self._db.execute("SELECT b FROM item WHERE id = ?", (row,)).fetchone()
        self._db.execute("UPDATE item SET b = b - 1 WHERE id = ?", (one,))
        self._db.execute(ADD, (other,))
        self._db.execute("COMMIT")

    def run(self, do: Callable[[], None], begin: Callable[[], float], took: list[float]) -> None:
        """Do the work once, call ``begin``, which returns the time of the end, and repeat the work until then.

        Transactions that lose a conflict are rolled back and not counted.
        """
        with suppress(*LOST):
            do()
        self._db.rollback()
        until = begin()
        while (began := time.perf_counter()) < until:
            try:
                do()
            except LOST:
                self._db.rollback()
            else:
                took.append(time.perf_counter() - began)


def main() -> None:
    """Run one work in some threads, as the arguments say, and print the times and the number of transactions."""
    engine, where, work, threads, seconds, seed = sys.argv[1:]
    global LOST
    if engine in (GALERA, POSTGRES):
        LOST = (importlib.import_module("MySQLdb" if engine == GALERA else "psycopg2").Error,)
    clients = [Client(engine, where, int(seed) * 1_000 + number) for number in range(int(threads))]
    took = [list[float]() for _ in clients]
    warm, begun, until = threading.Barrier(len(clients) + 1, timeout=WARM_S), threading.Event(), 0.0

    def begin() -> float:
        warm.wait()
        begun.wait()
        return until

    running = [
        threading.Thread(target=client.run, args=(getattr(client, work), begin, times))
        for client, times in zip(clients, took, strict=True)
    ]
    for thread in running:
        thread.start()
    warm.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.perf_counter() + float(seconds)
    begun.set()
    for thread in running:
        thread.join()
    print(json.dumps([round(1e6 * one, 1) for times in took for one in times][:200_000]))
    print(sum(map(len, took)))


if __name__ == "__main__":
    main()

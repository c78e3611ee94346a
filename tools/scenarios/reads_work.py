"""The work that ``tools.scenarios.reads`` counts, run by the release whose checkout comes first on the path."""

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock


def part(name: str) -> Any:
    """Return what another scenario shares, as the release on the path has it: until 0.2.0 they had another folder."""
    try:
        return import_module(f"tools.scenarios.{name}")
    except ModuleNotFoundError:
        return import_module(f"tools.bench_{name}")


engine, plainly = part("engine"), part("plain")

RANGE = "SELECT id, amount FROM item WHERE owner = ?"
LIST = "SELECT id, amount FROM item WHERE id IN (?, ?, ?)"
ORDERS = (
    "CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER, total INTEGER)",
    "CREATE INDEX by_customer ON orders(customer)",
    "CREATE TABLE lines(id INTEGER PRIMARY KEY, order_id INTEGER, product TEXT, amount INTEGER)",
    "CREATE INDEX by_order ON lines(order_id)",
)
CUSTOMERS, EACH = 40, 5  # customers; orders of a customer, and lines of each two orders
JOIN = (
    "SELECT o.id, o.total, l.id, l.product, l.amount FROM orders o JOIN lines l ON l.order_id = o.id "
    "WHERE o.customer = ?"
)


def rows() -> list[tuple[str, tuple[object, ...]]]:
    """Return the statements that make the orders: 5 a customer, each with 10 lines."""
    found: list[tuple[str, tuple[object, ...]]] = []
    for order in range(CUSTOMERS * EACH):
        found.append(("INSERT INTO orders VALUES (?, ?, ?)", (order, order % CUSTOMERS, 10)))
        for line in range(2 * EACH):
            number = order * 2 * EACH + line
            found.append(("INSERT INTO lines VALUES (?, ?, ?, ?)", (number, order, f"product {line}", line)))
    return found


def leave_out() -> None:
    """Take what depends on rows for whole objects, as if nobody had ever asked for them."""

    def read(self: Any, piece: Any, params: Any, _query: Any = None) -> None:
        points, ranges = self._analysis.plan(piece).bind(params)
        self._points.update(points)
        if ranges:
            self._ranges.update(ranges)

    mock.patch("bedrockish.access_sets.analysis.AccessSetBuilder.read", read).start()


def run(work: str, count: int) -> None:
    """Do some work so many times, and end; after ``without``, the same without reads that depend on rows."""
    if work.startswith("without "):
        leave_out()
        work = work.removeprefix("without ")
    with tempfile.TemporaryDirectory() as directory:
        solo = engine.Solo(Path(directory) / "A.sqlite")
        plain = plainly.open_plain(Path(directory) / "plain.sqlite", "normal")
        for sql in (*plainly.SCHEMA.split("; "), *ORDERS):
            solo.do((sql, ()))
            plain.execute(sql)
        made = [(plainly.INSERT, (1 + row, f"owner {row % 100}", row)) for row in range(1_000)]
        solo.do(*made, *rows())
        for sql, params in (*made, *rows()):
            plain.execute(sql, params)
        solo.engine.flush()

        def once(number: int) -> None:
            if work == "plain join":
                plainly.run_plainly(plain, ((JOIN, (number % CUSTOMERS,)),))
            elif work == "join":
                solo.prepare(((JOIN, (number % CUSTOMERS,)),))
            elif work == "range":
                solo.prepare(((RANGE, (f"owner {number % 100}",)),))
            elif work == "in list":
                solo.prepare(((LIST, (number % 1_000, 7, number)),))
            else:
                solo.prepare(plainly.works(number)[work])

        for number in range(count):
            once(number)
        os._exit(0)  # without what is torn down at the end


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))

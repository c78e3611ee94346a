"""How often transactions that an application would write conflict although their data have nothing in common.

Twelve clients at three nodes. Each transaction reads one customer's orders with their items, by a join, a subquery or
what an ORM sends for it, then adds an item and changes the order's total. Each client has customers of its own. The
queue is different: all clients want the next job, and no job may be handed out twice.

    tools/bench joins                 # each way for 5 seconds
    tools/bench joins --seconds 10 join joinedload queue
    tools/bench joins --rounds 3 --beside ../v0.1.0 queue "queue, skip_locked"
"""

import argparse
import itertools
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from sqlalchemy import Column, ForeignKey, Integer, Text, create_engine, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Session, joinedload, relationship, selectinload, subqueryload

import bedrockish
from bedrockish.errors import ConflictError
from bedrockish.sqlalchemy import make_url
from tools.cluster import SOURCES, LocalCluster

CLIENTS, CUSTOMERS, ORDERS, ITEMS, JOBS = 12, 60, 5, 3, 20_000
SCHEMA = (
    "CREATE TABLE orders(id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, total INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX orders_customer ON orders(customer_id)",
    "CREATE TABLE products(id INTEGER PRIMARY KEY, name TEXT)",
    "CREATE TABLE items(id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL REFERENCES orders(id), product_id INTEGER, "
    "qty INTEGER)",
    "CREATE INDEX items_order ON items(order_id)",
    "CREATE TABLE lines(id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL, qty INTEGER)",
    "CREATE TRIGGER line_total AFTER INSERT ON lines BEGIN "
    "UPDATE orders SET total = total + new.qty WHERE id = new.order_id; END",
    "CREATE TABLE jobs(id INTEGER PRIMARY KEY, state TEXT NOT NULL, worker INTEGER)",
    "CREATE INDEX jobs_state ON jobs(state, id)",
)
ITEM = "INSERT INTO items(id, order_id, product_id, qty) VALUES (?, ?, ?, 1)"
TOTAL = "UPDATE orders SET total = total + 1 WHERE id = ?"
QUERIES = {
    "join": "SELECT o.id, i.qty FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer_id = ?",
    "subquery": "SELECT id, qty FROM items WHERE order_id IN (SELECT id FROM orders WHERE customer_id = ?)",
    "exists": "SELECT id FROM orders o WHERE customer_id = ? AND EXISTS (SELECT 1 FROM items WHERE order_id = o.id)",
    "left join": "SELECT o.id, p.name FROM orders o LEFT JOIN items i ON i.order_id = o.id "
    "LEFT JOIN products p ON p.id = i.product_id WHERE o.customer_id = ?",
    "three levels": "SELECT o.id, p.name FROM orders o JOIN items i ON i.order_id = o.id "
    "JOIN products p ON p.id = i.product_id WHERE o.customer_id = ?",
}
NEXT = "SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1"
UNLOCKING = ("queue, skip_locked", "queue, one request, skip_locked")
UNLOCKED = "SELECT id FROM jobs WHERE state = 'new' AND skip_locked('jobs', id) ORDER BY id LIMIT 1"


class Base(DeclarativeBase):
    """The models of SQLAlchemy."""


class Order(Base):
    """An order."""

    __tablename__ = "orders"
    id = Column(Integer, primary_key=True)
    customer_id = Column(Integer)
    total = Column(Integer)
    items = relationship("Item")


class Product(Base):
    """A product."""

    __tablename__ = "products"
    id = Column(Integer, primary_key=True)
    name = Column(Text)


class Item(Base):
    """An item of an order."""

    __tablename__ = "items"
    id = Column(Integer, primary_key=True)
    order_id = Column(Integer, ForeignKey("orders.id"))
    product_id = Column(Integer, ForeignKey("products.id"))
    qty = Column(Integer)
    product = relationship("Product")


LOADS = {
    "joinedload": lambda: joinedload(Order.items).joinedload(Item.product),
    "selectinload": lambda: selectinload(Order.items).selectinload(Item.product),
    "subqueryload": lambda: subqueryload(Order.items).subqueryload(Item.product),
}


@dataclass
class Tally:
    """What the clients have done, and how long processors worked for it at the nodes."""

    done: int = 0
    retries: int = 0
    nodes_s: float = 0.0
    waits: list[float] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


Attempt = Callable[[int], int | None]
"""Runs a transaction of a customer once; returns the job that it got, if any."""


class Bench:
    """A cluster with customers, orders, items and jobs."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(10**9)
        self._random = random.Random(1)
        with bedrockish.connect(cluster.url()) as db:
            for sql in SCHEMA:
                db.execute(sql)
            rows = list(_rows())
            for start in range(0, len(rows), 500):
                db.transact(rows[start : start + 500])

    def order(self, customer: int) -> int:
        """Return an order of a customer."""
        return customer * 10 + self._random.randrange(ORDERS)

    @contextmanager
    def client(self, mode: str, number: int) -> Iterator[Attempt]:
        """Yield what runs the transactions of one client."""
        url = self._cluster.url(number % 3)
        if mode in LOADS:
            engine = create_engine(make_url(url))
            try:
                yield lambda customer: self._by_model(Session(engine), mode, customer)
            finally:
                engine.dispose()
            return
        with bedrockish.connect(url) as db:
            if mode == "queue, one request":
                yield lambda _: _number(db.execute(f"UPDATE jobs SET state = 'taken' WHERE id = ({NEXT}) RETURNING id"))
            elif mode == "queue, one request, skip_locked":
                yield lambda _: _number(
                    db.execute(f"UPDATE jobs SET state = 'taken' WHERE id = ({UNLOCKED}) RETURNING id")
                )
            elif mode.startswith("queue"):
                yield lambda _: self._take(db, NEXT if mode == "queue" else UNLOCKED)
            else:
                yield lambda customer: self._by_text(db, mode, customer)

    def _take(self, db: Any, query: str) -> int | None:
        with db.transaction() as tx:
            job = _number(tx.execute(query))
            tx.execute("UPDATE jobs SET state = 'taken' WHERE id = ?", [job])
        return job

    def _by_text(self, db: Any, mode: str, customer: int) -> None:
        order, number = self.order(customer), next(self._numbers)
        with db.transaction() as tx:
            if mode == "trigger":
                tx.execute("INSERT INTO lines VALUES (?, ?, 1)", [number, order])
                return
            list(tx.execute(QUERIES[mode], [customer]))
            tx.execute(ITEM, [number, order, order])
            tx.execute(TOTAL, [order])

    def _by_model(self, session: Session, mode: str, customer: int) -> None:
        with session, session.begin():
            found = session.scalars(select(Order).where(Order.customer_id == customer).options(LOADS[mode]())).unique()
            order = self._random.choice(list(found))
            session.add(Item(id=next(self._numbers), order_id=order.id, product_id=order.id, qty=1))
            session.execute(update(Order).where(Order.id == order.id).values(total=Order.total + 1))

    def run(self, mode: str, seconds: float) -> Tally:
        """Let all clients work for some time."""
        tally, until = Tally(), time.monotonic() + seconds
        threads = [threading.Thread(target=self._work, args=(mode, number, until, tally)) for number in range(CLIENTS)]
        used_s = self._cluster.processor_s()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tally.nodes_s = self._cluster.processor_s() - used_s
        return tally

    def _work(self, mode: str, number: int, until: float, tally: Tally) -> None:
        luck = random.Random(number)
        with self.client(mode, number) as attempt:
            while time.monotonic() < until:
                customer = 1 + number + CLIENTS * luck.randrange(CUSTOMERS // CLIENTS)
                began, retries = time.monotonic(), 0
                while True:
                    try:
                        job = attempt(customer)
                    except (ConflictError, OperationalError) as error:
                        if (
                            isinstance(error, OperationalError)
                            and getattr(error.orig, "code", "") != ConflictError.code
                        ):
                            raise
                        retries += 1
                        continue
                    break
                with tally.lock:
                    tally.done += 1
                    tally.retries += retries
                    tally.waits.append(time.monotonic() - began)
                    tally.jobs += [] if job is None else [job]


def _number(found: Any) -> int:
    ((number,),) = list(found)
    return int(number)


def _rows() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for customer in range(1, CUSTOMERS + 1):
        for order in range(customer * 10, customer * 10 + ORDERS):
            yield "INSERT INTO products VALUES (?, 'p')", (order,)
            yield "INSERT INTO orders(id, customer_id) VALUES (?, ?)", (order, customer)
            for item in range(ITEMS):
                yield ITEM, (order * 10 + item, order, order)
    for job in range(1, JOBS + 1):
        yield "INSERT INTO jobs(id, state) VALUES (?, 'new')", (job,)


MODES = (*QUERIES, "trigger", *LOADS, "queue", "queue, one request", *UNLOCKING)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", choices=[*MODES, []], metavar="MODE", help="which ways; all by default")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1, help="how often each way, in turn")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another release, whose nodes are measured too")
    options = parser.parse_args()
    releases = {"": SOURCES, **({"then": (options.beside.resolve(),)} if options.beside else {})}
    tallies: dict[tuple[str, str], list[Tally]] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        benches = {
            name: Bench(stack.enter_context(nodes_of(Path(directory), name, releases[name]))) for name in releases
        }
        print(f"{'':36}{'per second':>12}{'retries each':>14}{'p50 ms':>10}{'p99 ms':>10}{'processor ms':>14}")
        for _ in range(options.rounds):
            for mode in options.modes or MODES:
                for name, bench in benches.items():
                    if name and mode in UNLOCKING:
                        continue
                    tally = bench.run(mode, options.seconds)
                    tallies.setdefault((mode, name), []).append(tally)
                    show(f"{mode} {name}", tally, options.seconds)
    if options.beside:
        compare(tallies)


@contextmanager
def nodes_of(directory: Path, name: str, sources: Sequence[Path]) -> Iterator[LocalCluster]:
    """Start three nodes of a release."""
    cluster = LocalCluster(directory / f"nodes{name}")
    cluster.write_files()
    try:
        for node in cluster.nodes:
            node.sources = sources
            node.start()
        for index in range(len(cluster.nodes)):
            trio.run(cluster.wait_ready, index)
        yield cluster
    finally:
        cluster.stop()


def show(title: str, tally: Tally, seconds: float) -> None:
    """Print what was counted; no job may have been handed out twice."""
    waits = sorted(tally.waits) or [0.0]
    assert len(set(tally.jobs)) == len(tally.jobs), "a job was handed out twice"
    print(
        f"{title:36}{tally.done / seconds:12.1f}{tally.retries / max(1, tally.done):14.3f}"
        f"{1e3 * waits[len(waits) // 2]:10.1f}{1e3 * waits[len(waits) * 99 // 100]:10.1f}"
        f"{1e3 * tally.nodes_s / max(1, tally.done):14.1f}",
        flush=True,
    )


def compare(tallies: Mapping[tuple[str, str], list[Tally]]) -> None:
    """Print how many times as much is done as by the other release: each queue with its own kind, from the medians."""
    for mode, name in tallies:
        then = tallies.get((mode.removesuffix(", skip_locked"), "then"))
        if name == "" and then is not None:
            done, before = (statistics.median(one.done for one in found) for found in (tallies[mode, ""], then))
            # On a busy machine this tells more: how many of them a processor can do in the same time.
            cost, cost_before = (
                sum(one.nodes_s for one in found) / max(1, sum(one.done for one in found))
                for found in (tallies[mode, ""], then)
            )
            print(
                f"{mode:36}{done / max(1, before):12.1f} times as many"
                f"{cost_before / cost:12.1f} times as many for the same processor time of the nodes"
            )


if __name__ == "__main__":
    main()

"""The transactions that ``tools.scenarios.orders`` measures, and the terminals that run them, some in one process.

A shop with branches. Each statement is a round trip of its own, as applications do it: what the next one asks depends
on what the last one told.
"""

import contextlib
import importlib
import json
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import bedrockish
from bedrockish.client.blocking import Connection
from bedrockish.client.blocking_transaction import BlockingTransaction
from tools.scenarios.galera import CONFLICTS

BRANCHES, DESKS, CUSTOMERS, ARTICLES = 4, 10, 30, 500  # desks of a branch, customers of a desk
ACCOUNTS, MONEY = 10_000, 1_000
LINES_MIN, LINES_MAX = 2, 10  # of an order
FILLED = 200  # rows that are filled in at a time
TRIES_MAX = 200

SCHEMA = (
    "CREATE TABLE branch(id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, takings INTEGER NOT NULL)",
    "CREATE TABLE desk(branch INTEGER, id INTEGER, takings INTEGER NOT NULL, next_order INTEGER NOT NULL, "
    "PRIMARY KEY(branch, id))",
    "CREATE TABLE customer(branch INTEGER, desk INTEGER, id INTEGER, name VARCHAR(20) NOT NULL, "
    "balance INTEGER NOT NULL, paid INTEGER NOT NULL, PRIMARY KEY(branch, desk, id))",
    "CREATE TABLE article(id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, price INTEGER NOT NULL)",
    "CREATE TABLE stock(branch INTEGER, article INTEGER, quantity INTEGER NOT NULL, sold INTEGER NOT NULL, "
    "PRIMARY KEY(branch, article))",
    "CREATE TABLE orders(branch INTEGER, desk INTEGER, id INTEGER, customer INTEGER NOT NULL, total INTEGER NOT NULL, "
    "delivered INTEGER NOT NULL, PRIMARY KEY(branch, desk, id))",
    "CREATE INDEX orders_of_customer ON orders(branch, desk, customer)",
    "CREATE TABLE line(branch INTEGER, desk INTEGER, order_id INTEGER, number INTEGER, article INTEGER NOT NULL, "
    "quantity INTEGER NOT NULL, price INTEGER NOT NULL, PRIMARY KEY(branch, desk, order_id, number))",
    "CREATE TABLE receipt(id BIGINT PRIMARY KEY, branch INTEGER NOT NULL, desk INTEGER NOT NULL, "
    "customer INTEGER NOT NULL, amount INTEGER NOT NULL)",
    "CREATE TABLE account(id INTEGER PRIMARY KEY, money INTEGER NOT NULL)",
)


def rows() -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Yield what the tables have to begin with: a text, and the rows for it."""
    branches, desks = range(1, BRANCHES + 1), range(1, DESKS + 1)
    yield "INSERT INTO branch VALUES (?, ?, 0)", [(one, f"branch {one}") for one in branches]
    yield "INSERT INTO desk VALUES (?, ?, 0, 1)", [(one, desk) for one in branches for desk in desks]
    customers = range(1, CUSTOMERS + 1)
    made = [(one, desk, who, f"customer {who}") for one in branches for desk in desks for who in customers]
    yield "INSERT INTO customer VALUES (?, ?, ?, ?, 0, 0)", made
    articles = range(1, ARTICLES + 1)
    yield "INSERT INTO article VALUES (?, ?, ?)", [(one, f"article {one}", 1 + one % 90) for one in articles]
    yield "INSERT INTO stock VALUES (?, ?, 1000, 0)", [(one, article) for one in branches for article in articles]
    yield f"INSERT INTO account VALUES (?, {MONEY})", [(one,) for one in range(1, ACCOUNTS + 1)]


LAWS = {
    "takings of branches and receipts": (
        "SELECT coalesce(sum(takings), 0) FROM branch",
        "SELECT coalesce(sum(amount), 0) FROM receipt",
    ),
    "takings of branches and desks": (
        "SELECT coalesce(sum(takings), 0) FROM branch",
        "SELECT coalesce(sum(takings), 0) FROM desk",
    ),
    "numbers given out and orders": ("SELECT sum(next_order - 1) FROM desk", "SELECT count(*) FROM orders"),
    "totals of orders and their lines": (
        "SELECT coalesce(sum(total), 0) FROM orders",
        "SELECT coalesce(sum(quantity * price), 0) FROM line",
    ),
    "what was sold and lines": (
        "SELECT coalesce(sum(sold), 0) FROM stock",
        "SELECT coalesce(sum(quantity), 0) FROM line",
    ),
    "money and accounts": ("SELECT sum(money) FROM account", f"SELECT {MONEY} * count(*) FROM account"),
}
"""Pairs of queries that give the same after any number of whole transactions."""


class Execute(Protocol):
    """Runs one statement of an open transaction."""

    def __call__(self, sql: str, *params: object) -> list[Any]:
        """Return its rows."""


class Work:
    """Draws the transactions of one terminal, kinds and parameters; a lost one is run again with the same
    parameters.
    """

    def __init__(self, kind: str, terminal: int) -> None:
        self._luck = random.Random(f"{kind} {terminal}")
        self._kind, self._terminal, self._count = kind, terminal, 0
        self._branch = 1 + terminal % BRANCHES

    def draw(self) -> tuple[str, Callable[[Execute], object]]:
        """Return the kind of the next transaction, and the function that runs its statements."""
        self._count += 1
        if self._kind == "transfer":
            one, other = self._luck.sample(range(1, ACCOUNTS + 1), 2)
            return "transfer", lambda execute: transfer(execute, one, other)
        luck, branch = self._luck, self._branch
        desk, customer, dice = luck.randint(1, DESKS), luck.randint(1, CUSTOMERS), luck.random()
        if dice < 0.45:
            articles = luck.sample(range(1, ARTICLES + 1), luck.randint(LINES_MIN, LINES_MAX))
            lines = [(article, luck.randint(1, 9)) for article in sorted(articles)]
            return "order", lambda execute: order(execute, branch, desk, customer, lines)
        if dice < 0.88:
            number, amount = self._terminal << 32 | self._count, luck.randint(1, 500)
            return "pay", lambda execute: pay(execute, branch, desk, customer, number, amount)
        if dice < 0.94:
            return "deliver", lambda execute: deliver(execute, branch, desk)
        return "look", lambda execute: look(execute, branch, desk, customer)


def transfer(execute: Execute, one: int, other: int) -> None:
    """Move a unit between two accounts of many: 4 statements."""
    for account in (one, other):
        execute("SELECT money FROM account WHERE id = ?", account)
    execute("UPDATE account SET money = money - 1 WHERE id = ?", one)
    execute("UPDATE account SET money = money + 1 WHERE id = ?", other)


def order(execute: Execute, branch: int, desk: int, customer: int, lines: list[tuple[int, int]]) -> None:
    """Enter an order: 5 statements, and 4 for each line."""
    execute(
        "SELECT c.name, c.balance, b.name FROM customer c JOIN branch b ON b.id = c.branch "
        "WHERE c.branch = ? AND c.desk = ? AND c.id = ?",
        branch,
        desk,
        customer,
    )
    number = execute("SELECT next_order FROM desk WHERE branch = ? AND id = ?", branch, desk)[0][0]
    execute("UPDATE desk SET next_order = next_order + 1 WHERE branch = ? AND id = ?", branch, desk)
    execute("INSERT INTO orders VALUES (?, ?, ?, ?, 0, 0)", branch, desk, number, customer)
    total = 0
    for place, (article, quantity) in enumerate(lines):
        price = execute("SELECT name, price FROM article WHERE id = ?", article)[0][1]
        stored = execute("SELECT quantity FROM stock WHERE branch = ? AND article = ?", branch, article)[0][0]
        left = stored - quantity if stored > quantity else stored + 1000 - quantity
        execute(
            "UPDATE stock SET quantity = ?, sold = sold + ? WHERE branch = ? AND article = ?",
            left,
            quantity,
            branch,
            article,
        )
        execute("INSERT INTO line VALUES (?, ?, ?, ?, ?, ?, ?)", branch, desk, number, place, article, quantity, price)
        total += price * quantity
    execute("UPDATE orders SET total = ? WHERE branch = ? AND desk = ? AND id = ?", total, branch, desk, number)


def pay(execute: Execute, branch: int, desk: int, customer: int, number: int, amount: int) -> None:
    """Take a customer's money: 10 statements; all desks of a branch meet at its row."""
    key = branch, desk, customer
    execute("SELECT name, balance FROM customer WHERE branch = ? AND desk = ? AND id = ?", *key)
    execute("SELECT id, total, delivered FROM orders WHERE branch = ? AND desk = ? AND customer = ?", *key)
    execute("SELECT name FROM branch WHERE id = ?", branch)
    execute("SELECT takings FROM desk WHERE branch = ? AND id = ?", branch, desk)
    execute(
        "UPDATE customer SET balance = balance - ?, paid = paid + 1 WHERE branch = ? AND desk = ? AND id = ?",
        amount,
        *key,
    )
    execute("INSERT INTO receipt VALUES (?, ?, ?, ?, ?)", number, *key, amount)
    execute("UPDATE desk SET takings = takings + ? WHERE branch = ? AND id = ?", amount, branch, desk)
    execute("UPDATE branch SET takings = takings + ? WHERE id = ?", amount, branch)
    execute("SELECT balance FROM customer WHERE branch = ? AND desk = ? AND id = ?", *key)
    execute("SELECT amount FROM receipt WHERE id = ?", number)


def deliver(execute: Execute, branch: int, desk: int) -> None:
    """Deliver a desk's oldest orders: 1 statement, and 4 for each of up to ten."""
    oldest = execute(
        "SELECT id, customer FROM orders WHERE branch = ? AND desk = ? AND delivered = 0 ORDER BY id LIMIT 10",
        branch,
        desk,
    )
    for number, customer in oldest:
        key = branch, desk, number
        execute("SELECT number, article, quantity FROM line WHERE branch = ? AND desk = ? AND order_id = ?", *key)
        cost = execute("SELECT total FROM orders WHERE branch = ? AND desk = ? AND id = ?", *key)[0][0]
        execute("UPDATE orders SET delivered = 1 WHERE branch = ? AND desk = ? AND id = ?", *key)
        execute(
            "UPDATE customer SET balance = balance + ? WHERE branch = ? AND desk = ? AND id = ?",
            cost,
            branch,
            desk,
            customer,
        )


def look(execute: Execute, branch: int, desk: int, customer: int) -> None:
    """Look at a customer's orders and at what there is of their articles: reads only, about 10 statements."""
    key = branch, desk, customer
    execute("SELECT name, balance FROM customer WHERE branch = ? AND desk = ? AND id = ?", *key)
    found = execute("SELECT id, total FROM orders WHERE branch = ? AND desk = ? AND customer = ?", *key)
    for number, _ in found[-3:]:
        execute(
            "SELECT l.article, a.name, l.quantity, s.quantity FROM line l JOIN article a ON a.id = l.article "
            "JOIN stock s ON s.branch = l.branch AND s.article = l.article "
            "WHERE l.branch = ? AND l.desk = ? AND l.order_id = ?",
            branch,
            desk,
            number,
        )
    for article in range(1, 7):
        execute("SELECT quantity FROM stock WHERE branch = ? AND article = ?", branch, 37 * article)


@dataclass
class Told:
    """The work of one process of terminals.

    Attributes:
        took: seconds from the first statement of a transaction's first try to its commit, of those that were counted.
        done: transactions; it and the following counts include the warm-up.
        lost: tries that were lost to another transaction.
        statements: those of lost tries as well, but no BEGIN and no COMMIT.
        busy_s: processor time of this process while its terminals worked.
    """

    took: list[float] = field(default_factory=list)
    done: int = 0
    lost: int = 0
    statements: int = 0
    busy_s: float = 0.0


class Terminal(Protocol):
    """A terminal with an open connection."""

    statements: int
    lost: int

    def run(self, function: Callable[[Execute], object]) -> None:
        """Run a transaction, again and again until it is committed."""

    def close(self) -> None:
        """Close it."""


class OurTerminal:
    """A connection of the blocking client."""

    def __init__(self, url: str, isolation: str) -> None:
        self._connection: Connection = bedrockish.connect(url)
        self._isolation = isolation
        self.statements, self.lost = 0, -1

    def run(self, function: Callable[[Execute], object]) -> None:
        """Run a transaction, again and again until it is committed."""
        self.lost -= 1

        def once(opened: BlockingTransaction) -> None:
            self.lost += 1

            def execute(sql: str, *params: object) -> list[Any]:
                self.statements += 1
                return list(opened.execute(sql, params))

            function(execute)

        self._connection.run_transaction(once, isolation=self._isolation, timeout=60)

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class TheirTerminal:
    """A connection of MariaDB's own client, in C."""

    def __init__(self, socket: str) -> None:
        self._driver = importlib.import_module("MySQLdb")
        self._db = self._driver.connect(unix_socket=socket, user="root", database="bench", autocommit=True)
        self._texts = dict[str, str]()
        self.statements = self.lost = 0

    def run(self, function: Callable[[Execute], object]) -> None:
        """Run a transaction, again and again until it is committed."""
        for _ in range(TRIES_MAX):
            try:
                self._db.query("BEGIN")
                function(self._execute)
                self._db.query("COMMIT")
            except self._driver.Error as error:
                if not error.args or error.args[0] not in CONFLICTS:
                    raise
                self.lost += 1
                with contextlib.suppress(self._driver.Error):
                    self._db.rollback()
            else:
                return
        raise RuntimeError(f"a transaction was lost {TRIES_MAX} times")

    def _execute(self, sql: str, *params: object) -> list[Any]:
        self.statements += 1
        if sql not in self._texts:
            self._texts[sql] = sql.replace("?", "%s")
        with self._db.cursor() as cursor:
            cursor.execute(self._texts[sql], params)
            return list(cursor.fetchall())

    def close(self) -> None:
        """Close it."""
        self._db.close()


def busy_s() -> float:
    """Return how much of a processor this process has used, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_terminals(
    places: list[str], numbers: list[int], kind: str, isolation: str, warm_up_s: float, seconds: float
) -> Told:
    """Let terminals work, each in a thread; begin when a line comes in.

    Args:
        places: where each of them connects to: a URL of ours, or else a socket of MariaDB's.
        numbers: of the terminals.
        kind: of work.
        isolation: of our transactions; MariaDB's are at its default, REPEATABLE READ.
        warm_up_s: what is not counted, in seconds.
        seconds: what is.
    """
    told, lock, go = Told(), threading.Lock(), threading.Event()
    failures: list[BaseException] = []
    opened: list[Terminal] = [OurTerminal(one, isolation) if "://" in one else TheirTerminal(one) for one in places]

    def work(terminal: Terminal, number: int) -> None:
        made, took, done = Work(kind, number), list[float](), 0
        go.wait()
        began = time.perf_counter()
        try:
            while (start := time.perf_counter()) - began < warm_up_s + seconds:
                terminal.run(made.draw()[1])
                end, done = time.perf_counter(), done + 1
                if start - began >= warm_up_s and end - began <= warm_up_s + seconds:
                    took.append(end - start)
        except BaseException as error:
            failures.append(error)
        with lock:
            told.took += took
            told.done += done
            told.lost += terminal.lost
            told.statements += terminal.statements

    threads = [threading.Thread(target=work, args=pair) for pair in zip(opened, numbers, strict=True)]
    for thread in threads:
        thread.start()
    for terminal in opened:
        terminal.lost = terminal.statements = 0
    print("ready", flush=True)
    sys.stdin.readline()
    used_s = busy_s()
    go.set()
    for thread in threads:
        thread.join()
    told.busy_s = busy_s() - used_s
    for terminal in opened:
        terminal.close()
    if failures:
        raise failures[0]
    return told


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(asdict(run_terminals(**asked))))

"""Commands and functions for the nodes of a test; they wait for files that the test puts next to the node's own."""

import time
from pathlib import Path

import apsw

from bedrockish.commands import CommandError, Rows, Transaction, command, query
from bedrockish.errors import ConstraintError

GO, STARTED = Path("go"), Path("started")
BOUND_S = 40.0


@command
def transfer(tx: Transaction, source: int, target: int, amount: int) -> int:
    took = tx.execute(
        "UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= ?", (amount, source, amount)
    )
    if not took.rowcount:
        raise CommandError("there is not enough on the account", reason="balance", account=source)
    tx.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (amount, target))
    left = tx.execute("SELECT balance FROM account WHERE id = ?", (source,)).value()
    assert isinstance(left, int)
    return left


@command
def bill(tx: Transaction, month: str) -> dict[str, object]:
    """Read everything, wait for the test, write one row."""
    total = tx.execute("SELECT sum(balance) FROM account").value()
    with STARTED.open("a") as file:
        file.write(f"{total}\n")
    until = time.monotonic() + BOUND_S
    while not GO.exists() and time.monotonic() < until:
        time.sleep(0.01)
    tx.execute("INSERT INTO bill VALUES (?, ?)", (month, total))
    return {"month": month, "total": total, "node": tx.node, "new": True}


@bill.peek
def billed(tx: Transaction, month: str) -> dict[str, object] | None:
    found = tx.execute("SELECT total FROM bill WHERE month = ?", (month,)).rows
    return {"month": month, "total": found[0][0], "new": False} if found else None


@command
def careful(tx: Transaction) -> list[object]:
    """A command can catch a failed statement, in a block or not; the statements before it stay."""
    tx.execute("INSERT INTO bill VALUES ('one', 1)")
    caught = 0
    try:
        tx.execute("INSERT INTO bill VALUES ('one', 2)")
    except ConstraintError:
        caught += 1
    try:
        with tx.savepoint():
            tx.execute("INSERT INTO bill VALUES ('two', 2)")
            tx.execute("INSERT INTO bill VALUES ('one', 3)")
    except ConstraintError:
        caught += 1
    return [caught, tx.execute("SELECT * FROM bill").rows, tx.command, tx.now > 1e9]


@query
def accounts(tx: Transaction, least: int = 0) -> Rows:
    return tx.execute("SELECT id, balance FROM account WHERE balance >= ? ORDER BY id", (least,))


@query
def sly(tx: Transaction) -> None:
    tx.execute("DELETE FROM account")


@command(name="echo")
def repeat(_tx: Transaction, *values: object, **named: object) -> object:
    return named or list(values)


@command
def broken(_tx: Transaction) -> float:
    return 1 / 0


@command
def wrong(_tx: Transaction) -> object:
    return {1, 2}


@command
def spin(_tx: Transaction) -> None:
    while True:
        pass


@command
def stubborn(_tx: Transaction) -> None:
    """Sleep in one long call, of which no Python code takes notice."""
    time.sleep(4)


@query
def endless(tx: Transaction) -> object:
    return tx.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n").value()


def shout(*values: object) -> str:
    return f"{values[0]}!".upper()


def backwards(left: str, right: str) -> int:
    return (left < right) - (left > right)


def register(connection: apsw.Connection) -> None:
    """Add a function and a collation."""
    connection.create_scalar_function("shout", shout, 1, deterministic=True)
    connection.create_collation("backwards", backwards)


@query
def wait_for(_tx: Transaction, name: str) -> str:
    """Take the place of a background worker until the test has made a file."""
    until = time.monotonic() + BOUND_S
    while not Path(name).exists() and time.monotonic() < until:
        time.sleep(0.01)
    return name


@command
def pay(tx: Transaction) -> object:
    tx.execute("INSERT INTO payment DEFAULT VALUES")
    return tx.execute("SELECT count(*) FROM payment").value()

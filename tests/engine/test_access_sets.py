"""The access set of one statement on a plain connection, and the imports of the access-set package."""

import subprocess
import sys

import apsw
import pytest

import bedrockish.access_sets
from bedrockish.access_sets import access_set_of
from bedrockish_journal.model.key_text import key_text

JOIN = "SELECT c.name, p.total FROM purchase p JOIN customer c ON c.id = p.customer WHERE p.id = ?"
MODULES_MAX = 300  # the number of modules that importing the engine's executor may load, Python's own included


@pytest.fixture
def shop() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute(
        "CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT);"
        "CREATE TABLE purchase(id INTEGER PRIMARY KEY, customer INTEGER, total INTEGER);"
        "CREATE INDEX by_customer ON purchase(customer);"
        "INSERT INTO customer VALUES (7, 'Ada'), (8, 'Bob');"
        "INSERT INTO purchase VALUES (1, 8, 30), (2, 7, 10), (3, 7, 5)"
    )
    return db


def shown(points: frozenset[bytes]) -> set[str]:
    return {f"{point.partition(bytes(1))[0].decode()} {key_text(point)}" for point in points}


def test_worked_example_matches_sqlite_and_the_analysis(shop: apsw.Connection) -> None:
    """The head of the package shows a program and a read set; the test computes both."""
    text = bedrockish.access_sets.__doc__ or ""
    program = [f"{row[1]} {row[2]}" for row in shop.execute("EXPLAIN " + JOIN, (2,))]
    for instruction in ("OpenRead 0", "OpenRead 1", "Variable 1", "SeekRowid 0", "Column 0", "SeekRowid 1"):
        assert instruction in program
        assert instruction.split()[0] in text
    found = access_set_of(shop, JOIN, (2,))
    assert shown(found.read_points) == {"t:purchase 2", "t:customer 7"}
    assert all(line in text for line in shown(found.read_points))
    assert not found.read_ranges
    assert not found.write_points


def test_access_set_of_a_write_has_the_row_and_its_index_entries(shop: apsw.Connection) -> None:
    found = access_set_of(shop, "UPDATE purchase SET customer = 8 WHERE id = ?", (3,))
    assert "t:purchase 3" in shown(found.write_points)
    assert {name.partition(" ")[0] for name in shown(found.write_points)} > {"t:purchase"}
    assert shop.execute("SELECT customer FROM purchase WHERE id = 3").fetchone() == (8,)
    shop.execute("DELETE FROM purchase")  # no hook is left on the connection


def test_delete_of_all_rows_reports_each_row(shop: apsw.Connection) -> None:
    """SQLite truncates a table without calling the hook if the statement was compiled before the hook existed."""
    shop.execute("BEGIN; DELETE FROM purchase; ROLLBACK")
    found = access_set_of(shop, "DELETE FROM purchase")
    assert {f"t:purchase {number}" for number in (1, 2, 3)} <= shown(found.write_points)


def test_importing_the_engine_starts_nothing_and_loads_few_modules() -> None:
    """Programs import the executor: neither trio nor a configuration is loaded, no thread started.

    Each module costs a program time: the 241 of now take as long as those of ``import trio``, 0.07 to 0.1 s.
    """
    code = (
        "import sys, threading; import bedrockish.engine.execution.workspace;"
        "print(threading.active_count(), *sys.modules)"
    )
    threads, *modules = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert threads == "1"
    assert not [name for name in modules if name.split(".")[0] in ("trio", "asyncio", "socket", "bedrockish_net")]
    assert not [name for name in modules if name.startswith(("bedrockish.node", "bedrockish.config"))]
    assert len(modules) < MODULES_MAX

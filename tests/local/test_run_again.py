"""Known statements of a transaction on a node's file, which run by their recipe from the second time on."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

import bedrockish
from bedrockish import dbapi
from bedrockish.local.transaction import LocalTransaction
from tools.cluster import LocalNode

SCHEMA = "CREATE TABLE {}(id INTEGER PRIMARY KEY, a TEXT UNIQUE, b)"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that notes of each call of ``run_again`` whether the text ran."""
    found: list[bool] = []
    original = LocalTransaction.run_again

    def noted(self: LocalTransaction, sql: str, values: tuple[Any, ...]) -> Any:
        result = original(self, sql, values)
        found.append(result is not None)
        return result

    monkeypatch.setattr(LocalTransaction, "run_again", noted)
    return found


def told(db: Any, table: str) -> list[Any]:
    """Run each text three times in one transaction; return the results of the DB-API."""
    said: list[Any] = []
    for number in range(3):
        for sql, values in (
            (f"INSERT INTO {table} VALUES (?, ?, ?)", (number + 1, f"x{number}", None)),
            (f"INSERT INTO {table} VALUES (?, ?, ?)", (number + 1, "taken", 1)),
            (f"SELECT a, b FROM {table} WHERE id = ?", (number + 1,)),
            (f"UPDATE {table} SET b = ? WHERE id = ?", (1.5 * number, number + 1)),
            (f"UPDATE {table} SET b = ? WHERE id = ?", (0, 99)),
            (f"SELECT count(*), sum(b) FROM {table}", ()),
            (f"SELECT id FROM {table} WHERE id BETWEEN ? AND ? ORDER BY id", (2, 3)),
            ("SELECT last_insert_rowid(), changes()", ()),
        ):
            try:
                cursor = db.execute(sql, values)
            except (sqlite3.IntegrityError, dbapi.IntegrityError):
                said.append("taken")
            else:
                said += [cursor.fetchall(), cursor.rowcount, db.total_changes, db.in_transaction]
                said.append(cursor.lastrowid if sql.startswith("INSERT") else None)
    return said


def test_known_statements_run_again_with_the_results_of_sqlite3(node: LocalNode, table: str, runs: list[bool]) -> None:
    with bedrockish.connect(node.database) as other:
        other.execute(SCHEMA.format(table))
        with closing(sqlite3.connect(":memory:")) as plain, closing(dbapi.connect(node.database)) as ours:
            plain.execute(SCHEMA.format(table))
            assert told(ours, table) == told(plain, table)
            ours.commit()
            plain.commit()
            # From the second time on: the INSERT, the read by key and the range twice, the UPDATE five times. A failed
            # INSERT, sum() and the session's values take the ordinary way.
            assert sum(runs) == 11
            rows = f"SELECT * FROM {table} ORDER BY id"
            assert other.execute(rows).rows == plain.execute(rows).fetchall()

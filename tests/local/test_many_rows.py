"""``executemany`` in a transaction on a node's file."""

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

import bedrockish
from bedrockish import dbapi
from bedrockish.client.blocking import Connection
from bedrockish.client.local_steps import LocalSteps
from bedrockish.local.transaction import LocalTransaction
from tools.cluster import LocalNode


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[Connection]:
    with bedrockish.connect(node.database) as db:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a TEXT UNIQUE, b)")
        yield db


def test_many_rows_of_one_text_run_at_once_with_ids_without_gaps(
    node: LocalNode, db: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike: list[int] = []
    original = LocalTransaction.run_alike

    def counted(self: LocalTransaction, statements: Any, first: int) -> Any:
        found = original(self, statements, first)
        alike.append(len(found[0]))
        return found

    monkeypatch.setattr(LocalTransaction, "run_alike", counted)
    with closing(dbapi.connect(node.database, autocommit=False)) as mine:
        first = mine.execute(f"INSERT INTO {table}(a, b) VALUES ('first', 0)").lastrowid
        insert = f"INSERT INTO {table}(a, b) VALUES (?, ?)"
        made = mine.executemany(insert, [(f"x{number}", number) for number in range(2_300)])
        assert made.rowcount == 2_300
        assert sum(alike) >= 2_200
        ids = [found for (found,) in mine.execute(f"SELECT id FROM {table} WHERE id >= ? ORDER BY id", (first,))]
        steps = {after - before for before, after in pairwise(ids)}
        assert len(ids) == 2_301
        assert len(steps) == 1, "no id of a lease is left out"
        mine.commit()
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 2_301


def test_failure_among_many_rows_keeps_the_rows_before_it(node: LocalNode, db: Connection, table: str) -> None:
    insert = f"INSERT INTO {table}(id, a, b) VALUES (?, ?, ?)"
    rows = [(number, f"y{number}", 1) for number in range(100, 180)]
    with closing(dbapi.connect(node.database, autocommit=False)) as mine:
        mine.execute(insert, (140, "before", 1))
        with pytest.raises(dbapi.IntegrityError):
            mine.executemany(insert, rows)
        assert mine.execute(f"SELECT count(*), max(id) FROM {table} WHERE id >= 100").fetchone() == (41, 140)
        mine.executemany(insert, rows[41:])
        mine.execute(f"CREATE INDEX {table}_b ON {table}(b)")  # repeats all statements at the node
        mine.commit()
    assert db.execute(f"SELECT count(*) FROM {table} INDEXED BY {table}_b WHERE b = 1").value() == 80


@pytest.mark.parametrize("rows", [64, 65, 2_500])
def test_statement_with_more_rows_than_a_lease_has_ids_leases_more(
    node: LocalNode, db: Connection, table: str, rows: int
) -> None:
    """With the ids of one lease only, the statement would be repeated until its transaction is 60 s old."""
    with closing(dbapi.connect(node.database, autocommit=False)) as mine:
        mine.execute(f"INSERT INTO {table}(a) VALUES ('first')")
        values = ", ".join(["(?)"] * rows)
        made = mine.execute(f"INSERT INTO {table}(a) VALUES {values} RETURNING id", [f"x{n}" for n in range(rows)])
        ids = [found for (found,) in made]
        assert len(ids) == rows
        assert len({after - before for before, after in pairwise(ids)}) == 1, "no id of a lease is left out"
        last = mine.execute(f"INSERT INTO {table}(a) VALUES ('last')").lastrowid
        mine.commit()
    assert last is not None
    assert last > ids[-1]
    assert db.execute(f"SELECT count(*) FROM {table}").value() == rows + 2


def test_values_of_a_multi_row_insert_are_evaluated_at_most_twice(
    node: LocalNode, table: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, the whole text is compiled again."""
    runs: list[str] = []
    original = LocalTransaction.run

    def counted(self: LocalTransaction, statement: Any, **more: Any) -> Any:
        runs.append(statement.sql[:6])
        return original(self, statement, **more)

    monkeypatch.setattr(LocalTransaction, "run", counted)
    with closing(dbapi.connect(node.database, autocommit=False)) as mine:
        mine.execute(f"INSERT INTO {table}(a) VALUES " + ", ".join(f"('x{n}')" for n in range(3_000)))
        assert len(runs) <= 2
        mine.commit()
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 3_000


def test_text_of_parentheses_leases_no_more_ids_than_another(
    node: LocalNode, table: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased: list[int] = []
    original = LocalSteps._lease

    async def counted(self: LocalSteps, name: str, above: int, count: int, timeout_s: float) -> int:
        leased.append(count)
        return await original(self, name, above, count, timeout_s)

    monkeypatch.setattr(LocalSteps, "_lease", counted)
    with closing(dbapi.connect(node.database, autocommit=False)) as mine:
        mine.execute(f"INSERT INTO {table}(a) VALUES ('{'(' * 50_000}')")
        mine.commit()
    assert leased == [64]
    assert db.execute(f"SELECT length(a) FROM {table}").value() == 50_000

"""Values of calls do not stay in a program's memory after the calls, also without the garbage collector."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import bedrockish
from bedrockish import dbapi
from bedrockish.client.blocking import Connection
from bedrockish.errors import BedrockishError
from tools.cluster import LocalCluster, LocalNode


def execute(db: Connection, sql: str, value: bytes) -> None:
    db.execute(sql, [value])


def in_transaction(db: Connection, sql: str, value: bytes) -> None:
    with db.transaction() as tx:
        tx.execute(sql, [value])


@pytest.fixture(params=["url", "path"])
def either(request: pytest.FixtureRequest, alone: LocalCluster, node: LocalNode) -> Iterator[Connection]:
    with bedrockish.connect(alone.url() if request.param == "url" else node.database) as made:
        yield made


@pytest.mark.parametrize("call", [execute, in_transaction])
def test_values_of_failed_calls_are_not_kept(
    either: Connection, table: str, call: Callable[[Connection, str, bytes], None]
) -> None:
    either.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
    either.execute(f"INSERT INTO {table} VALUES (1, 'one')")
    values = [bytes(100) for _ in range(4)]
    gc.collect()
    gc.disable()
    try:
        for value in values:
            with pytest.raises(BedrockishError) as failed:
                call(either, f"INSERT INTO {table} VALUES (1, ?)", value)
            del failed
            del value
        kept = [sys.getrefcount(value) for value in values]
    finally:
        gc.enable()
    # SQLite's statement still has the last value.
    assert kept[:-1] == [kept[0]] * (len(kept) - 1)
    alone = bytes(101)
    assert kept[0] == next(sys.getrefcount(one) for one in [alone]) - 1


@pytest.mark.parametrize("by", ["url", "path"])
def test_results_of_an_ended_transaction_are_not_kept(alone: LocalCluster, node: LocalNode, by: str) -> None:
    with closing(dbapi.connect(alone.url() if by == "url" else str(node.database), replay=True)) as db:
        session: Any = db._session
        for end in (db.commit, db.rollback):
            db.execute("BEGIN")
            db.execute("SELECT zeroblob(1000)").fetchall()
            assert session._open.log
            end()
            assert session._open is None

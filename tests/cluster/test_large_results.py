"""A large result is the same by every client: as SQLite has it, to the bit, by column and as lists of rows."""

import math
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import trio

import bedrockish
from bedrockish import dbapi, open_client
from bedrockish.api import requests
from bedrockish.api.column_blocks import rows_of_blocks
from bedrockish.client import driver, socket_driver
from tools.cluster import local_cluster

pytestmark = pytest.mark.cluster

COUNT = 3_000
TABLE = "CREATE TABLE wide(id INTEGER PRIMARY KEY, number, small INTEGER, amount REAL, text TEXT, mixed, data BLOB)"
READ = "SELECT * FROM wide ORDER BY id"
EDGES = (
    None,
    0,
    -(1 << 63),
    (1 << 63) - 1,
    -0.0,
    math.inf,
    -math.inf,
    5e-324,
    "",
    "a\0b",
    "ß\U0001f600",
    b"",
    b"\0x",
    "7",
)


def made_rows() -> list[tuple[Any, ...]]:
    """Return rows of which some columns have one type, some NULL, and one has every kind of value."""
    return [
        (n, n * (1 << 40), n % 1_000, n / 7, f"row {n} ü", EDGES[n % len(EDGES)], bytes(n % 3) if n % 5 else None)
        for n in range(COUNT)
    ]


def exact(rows: list[Any]) -> list[list[tuple[type, Any]]]:
    """Return rows in a form that is equal only for the same types and bits."""
    return [[(type(v), struct.pack("d", v) if isinstance(v, float) else v) for v in row] for row in rows]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with local_cluster(tmp_path_factory.mktemp("node") / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        with closing(dbapi.connect(cluster.url())) as made:
            made.execute(TABLE)
            made.executemany("INSERT INTO wide VALUES (?, ?, ?, ?, ?, ?, ?)", made_rows())
            made.commit()
        yield cluster.url()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[type, Any]]]:
    with closing(sqlite3.connect(tmp_path_factory.mktemp("plain") / "plain.sqlite")) as plain:
        plain.execute(TABLE)
        plain.executemany("INSERT INTO wide VALUES (?, ?, ?, ?, ?, ?, ?)", made_rows())
        return exact(plain.execute(READ).fetchall())


async def by_trio(url: str) -> list[tuple[str, list[Any]]]:
    found = []
    async with open_client(url) as client:
        found.append(("execute", (await client.execute(READ)).rows))
        found.append(("strict", (await client.execute(READ, read="strict")).rows))
        found.append(("transact", (await client.transact([READ, "SELECT 1", READ]))[2].rows))
        async with client.transaction() as tx:
            await tx.execute("INSERT INTO wide(id) VALUES (-1)")
            await tx.execute("DELETE FROM wide WHERE id = -1")
            found.append(("open transaction", (await tx.execute(READ)).rows))
        async with client.stream(READ) as rows:
            found.append(("stream", [row async for row in rows]))
    return found


def by_blocking(url: str) -> Iterator[tuple[str, list[Any]]]:
    with bedrockish.connect(url) as client:
        yield "blocking execute", client.execute(READ).rows
        with client.transaction() as tx:
            yield "blocking transaction", tx.execute(READ).rows
        with client.stream(READ) as rows:
            yield "blocking stream", list(rows)
    with closing(dbapi.connect(url)) as connection:
        yield "cursor", connection.execute(READ).fetchall()
        yield "streaming cursor", connection.cursor(dbapi.StreamingCursor).execute(READ).fetchall()
        connection.execute("INSERT INTO wide(id) VALUES (-1)")
        yield "cursor in a transaction", connection.execute(f"{READ} LIMIT -1 OFFSET 1").fetchall()
        connection.rollback()


@pytest.mark.parametrize("asks", [True, False])
def test_every_client_reads_large_results_to_the_bit(
    url: str, expected: list[list[tuple[type, Any]]], asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of an earlier release gets rows, not columns."""
    decoded: list[int] = []

    def counted(*arguments: Any) -> Any:
        decoded.append(1)
        return rows_of_blocks(*arguments)

    monkeypatch.setattr(requests, "rows_of_blocks", counted)
    if not asks:
        monkeypatch.setattr(driver, "BY_COLUMN", "another key")
        monkeypatch.setattr(socket_driver, "BY_COLUMN", "another key")
    for way, rows in by_blocking(url):
        assert exact(rows) == expected, way
        assert bool(decoded) is asks, way
        decoded.clear()
    for way, rows in trio.run(by_trio, url):
        assert exact(rows) == expected, way
    assert (len(decoded) >= 6) is asks

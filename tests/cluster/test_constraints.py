"""Constraints between nodes: no race of transactions breaks one, at whichever nodes they run."""

import sqlite3
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import ISOLATIONS, SERIALIZABLE, SNAPSHOT
from bedrockish.client.transaction import Transaction
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, ConflictError, ConstraintError, OutcomeUnknownError
from tests.cluster.story import PATIENT, judge_files, level, ready, rows
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

SCHEMA = [
    "CREATE TABLE one(id INTEGER PRIMARY KEY, name TEXT UNIQUE COLLATE NOCASE, n INTEGER)",
    "CREATE TABLE pair(a TEXT, b INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID",
    "CREATE TABLE some(id INTEGER PRIMARY KEY, kind TEXT, n INTEGER)",
    "CREATE UNIQUE INDEX only_first ON some(n) WHERE kind = 'first'",
    "CREATE UNIQUE INDEX per_length ON some(kind, length(kind) * n) WHERE kind <> 'first'",
    "CREATE TABLE parent(id INTEGER PRIMARY KEY, code TEXT UNIQUE)",
    "CREATE TABLE child(id INTEGER PRIMARY KEY, parent INTEGER NOT NULL REFERENCES parent(id))",
    "CREATE TABLE coded(id INTEGER PRIMARY KEY, code TEXT REFERENCES parent(code) ON UPDATE CASCADE ON DELETE CASCADE)",
    "CREATE TABLE late(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE account(id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, CHECK (a + b >= 0))",
    "CREATE TABLE total(id INTEGER PRIMARY KEY, amount INTEGER NOT NULL CHECK (amount >= 0))",
    "CREATE TRIGGER sums AFTER UPDATE ON account BEGIN "
    "UPDATE total SET amount = amount + new.a + new.b - old.a - old.b; END",
    "CREATE TABLE shift(name TEXT PRIMARY KEY, duty INTEGER)",
    "CREATE TRIGGER manned BEFORE UPDATE ON shift WHEN new.duty = 0 BEGIN "
    "SELECT RAISE(ABORT, 'nobody is left') WHERE (SELECT sum(duty) FROM shift) < 2; END",
    "CREATE TABLE log(id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT)",
    "CREATE TABLE noted(id INTEGER PRIMARY KEY, what TEXT)",
    "CREATE TRIGGER notes AFTER INSERT ON noted BEGIN INSERT INTO log(what) VALUES (new.what); END",
]
ROWS = [
    *(f"DELETE FROM {table}" for table in ("late", "coded", "child", "parent", "one", "pair", "some", "account")),
    *(f"DELETE FROM {table}" for table in ("total", "shift", "noted", "log")),
    "INSERT INTO one VALUES (1, 'here', 0)",
    "INSERT INTO parent VALUES (1, 'p'), (2, 'q')",
    "INSERT INTO account VALUES (1, 50, 0), (2, 50, 0)",
    "INSERT INTO total VALUES (1, 100)",
    "INSERT INTO shift VALUES ('Ada', 1), ('Bob', 1)",
]


@dataclass(frozen=True)
class Race:
    """A pair of transactions of which a constraint allows at most one."""

    name: str
    first: str
    second: str
    levels: tuple[str, ...] = ISOLATIONS


RACES = [
    Race("unique value", "INSERT INTO one VALUES (2, 'New', 0)", "INSERT INTO one VALUES (3, 'nEW', 0)"),
    Race("value given up", "UPDATE one SET name = 'other' WHERE id = 1", "UPDATE one SET name = 'x' WHERE id = 1"),
    Race("primary key", "INSERT INTO one VALUES (2, 'a', 0)", "INSERT INTO one VALUES (2, 'b', 0)"),
    Race("composite key", "INSERT INTO pair VALUES ('a', 1)", "INSERT INTO pair VALUES ('a', 1)"),
    Race("partial index", "INSERT INTO some VALUES (1, 'first', 5)", "INSERT INTO some VALUES (2, 'first', 5)"),
    Race("expression index", "INSERT INTO some VALUES (1, 'ab', 5)", "INSERT INTO some VALUES (2, 'ab', 5)"),
    Race("REPLACE and UPDATE", "REPLACE INTO one VALUES (2, 'HERE', 7)", "UPDATE one SET n = 1 WHERE id = 1"),
    Race("REPLACE twice", "REPLACE INTO one VALUES (2, 'here', 7)", "REPLACE INTO one VALUES (3, 'here', 8)"),
    Race("OR IGNORE", "INSERT OR IGNORE INTO one VALUES (2, 'y', 7)", "INSERT OR IGNORE INTO one VALUES (3, 'y', 8)"),
    Race("parent and child", "DELETE FROM parent WHERE id = 1", "INSERT INTO child VALUES (1, 1)"),
    Race("child and parent", "INSERT INTO child VALUES (1, 1)", "DELETE FROM parent WHERE id = 1"),
    Race("parent's key", "UPDATE parent SET id = 9 WHERE id = 1", "INSERT INTO child VALUES (1, 1)"),
    Race("cascade", "DELETE FROM parent WHERE id = 2", "INSERT INTO coded VALUES (1, 'q')"),
    Race("cascaded key", "UPDATE parent SET code = 'r' WHERE id = 2", "INSERT INTO coded VALUES (1, 'q')"),
    Race("deferred", "DELETE FROM parent WHERE id = 1", "INSERT INTO late VALUES (1, 1)"),
    Race("CHECK", "UPDATE account SET a = a - 40 WHERE id = 1", "UPDATE account SET b = b - 40 WHERE id = 1"),
    Race("CHECKed sum", "UPDATE account SET a = a - 60, b = 60 WHERE id = 1", "UPDATE account SET a = 0 WHERE id = 2"),
    # A trigger's SELECT is an ordinary read, which snapshot isolation does not certify.
    Race(
        "trigger",
        "UPDATE shift SET duty = 0 WHERE name = 'Ada'",
        "UPDATE shift SET duty = 0 WHERE name = 'Bob'",
        (SERIALIZABLE,),
    ),
]
NEVER = [
    "SELECT lower(name) FROM one GROUP BY 1 HAVING count(*) > 1",
    "SELECT n FROM some WHERE kind = 'first' GROUP BY 1 HAVING count(*) > 1",
    "SELECT 1 FROM pragma_foreign_key_check",
    "SELECT 1 FROM account WHERE a + b < 0",
    "SELECT 1 FROM total WHERE amount < 0 OR amount <> (SELECT sum(a + b) FROM account)",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("constraints") / "cluster") as running:
        yield running


@asynccontextmanager
async def at_each(cluster: LocalCluster) -> AsyncIterator[list[Client]]:
    async with (
        open_client(cluster.url(0, only=True, options=PATIENT)) as a,
        open_client(cluster.url(1, only=True, options=PATIENT)) as b,
        open_client(cluster.url(2, only=True, options=PATIENT)) as c,
    ):
        yield [a, b, c]


async def reset(clients: list[Client]) -> None:
    await clients[2].transact(ROWS)
    for client in clients:
        client.token = clients[2].token


async def attempt(what: Callable[[], Awaitable[object]], happened: list[int], number: int) -> None:
    """Execute a statement and record its success; ignore a lost conflict or a violated constraint."""
    try:
        await what()
    except (ConflictError, ConstraintError):
        return
    happened.append(number)


async def test_only_one_of_two_racing_transactions_commits(cluster: LocalCluster) -> None:
    """In open transactions at two nodes, the second fails if the first has committed; at the same time, at most one
    commits.
    """
    await ready(cluster)
    async with at_each(cluster) as clients:
        await clients[2].transact(SCHEMA)
        for race in RACES:
            for isolation in race.levels:
                for together in (False, True) if isolation == SERIALIZABLE else (False,):
                    await reset(clients)
                    happened = await _race(clients, race, isolation, together=together)
                    assert len(happened) < 2, (race, isolation)
                    assert together or happened == [0], (race, isolation)
                    clients[2].token = clients[happened[0] if happened else 0].token
                    for query in NEVER:
                        assert not (await clients[2].execute(query)).rows, (race, isolation, query)


COMPUTED = [
    "CREATE TABLE computed(id INTEGER PRIMARY KEY, name TEXT, low AS (lower(name)) VIRTUAL)",
    "CREATE UNIQUE INDEX by_expression ON computed(lower(name)) WHERE id < 1000",
    "CREATE UNIQUE INDEX by_column ON computed(low) WHERE id >= 1000",
]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("first_id", [0, 1000])
async def test_unique_value_on_an_expression_is_inserted_once_in_a_race(
    cluster: LocalCluster, isolation: str, first_id: int
) -> None:
    """Two nodes insert the value at the same moment, each by one request; inserts of other values do not conflict."""
    await ready(cluster)
    async with at_each(cluster) as clients:
        await clients[2].transact(["DROP TABLE IF EXISTS computed", *COMPUTED])
        for client in clients:
            client.token = clients[2].token
        for number in range(8):
            happened: list[int] = []
            async with trio.open_nursery() as nursery:
                for place, name in enumerate((f"Key{number}", f"kEY{number}", f"other{number}")):
                    sql = "INSERT INTO computed(id, name) VALUES (?, ?)"
                    values = [first_id + 3 * number + place, name]
                    what = partial(clients[place].execute, sql, values, isolation=isolation)
                    nursery.start_soon(attempt, what, happened, place)
            assert 2 in happened, "nobody else has that value"
            assert len(happened) == 2, happened
    await level(cluster)
    assert all(node.is_running for node in cluster.nodes)
    assert len({str(rows(node, "SELECT id, name FROM computed ORDER BY id")) for node in cluster.nodes}) == 1


async def _race(clients: list[Client], race: Race, isolation: str, *, together: bool) -> list[int]:
    players: list[Transaction] = [await client.begin(isolation=isolation) for client in clients[:2]]
    happened: list[int] = []
    for player, sql in zip(players, (race.first, race.second), strict=True):
        await player.execute(sql)
    if together:
        async with trio.open_nursery() as nursery:
            for number, player in enumerate(players):
                nursery.start_soon(attempt, player.commit, happened, number)
    else:
        for number, player in enumerate(players):
            await attempt(player.commit, happened, number)
    for player in players:
        await player.rollback()
    return happened


async def happens(client: Client, sql: str, isolation: str) -> bool:
    """Run a statement until it is known whether it has happened; False if its answer was lost, and it never will."""
    command = uuid.uuid4().hex
    try:
        await client.execute(sql, isolation=isolation, command=command, timeout=15)
    except OutcomeUnknownError:
        return await client.settle(command)
    except BedrockishError as error:
        if not error.retry:
            raise
        return False
    return True


async def test_constraints_hold_for_requests_that_race_at_all_nodes(cluster: LocalCluster) -> None:
    """Nodes run losers again: each unique value once, each sum right, each trigger once, children with parents only."""
    await ready(cluster)
    inserted: Counter[str] = Counter()
    errors: Counter[type[BedrockishError]] = Counter()

    async def run(client: Client, sql: str, name: str, isolation: str) -> None:
        try:
            for _ in range(20):
                if await happens(client, sql, isolation):
                    inserted[name] += 1
                    return
                await trio.sleep(0.01)  # a conflicting transaction is pending, and may take some milliseconds
            raise AssertionError(f"{sql} did not happen in 20 attempts")
        except ConstraintError as error:
            errors[type(error)] += 1

    async with at_each(cluster) as clients:
        for isolation in (SERIALIZABLE, SNAPSHOT):
            await reset(clients)
            inserted.clear()
            async with trio.open_nursery() as nursery:
                for number, client in enumerate(clients):
                    for value in range(4):
                        start = nursery.start_soon
                        start(run, client, f"INSERT INTO one(name) VALUES ('v{value}')", f"v{value}", isolation)
                        upsert = "INSERT INTO one VALUES (9, 'nine', 1) ON CONFLICT DO UPDATE SET n = n + 1"
                        start(run, client, upsert, "nine", isolation)
                        start(run, client, f"INSERT INTO noted(what) VALUES ('{number}.{value}')", "noted", isolation)
                        take = "UPDATE account SET a = a - 20 WHERE id = 1 + abs(random() % 2)"
                        start(run, client, take, "", isolation)
                        start(run, client, f"INSERT INTO child(parent) VALUES ({1 + value % 2})", "child", isolation)
                    if number:
                        nursery.start_soon(run, client, "DELETE FROM parent WHERE id = 1", "", isolation)
            assert all(inserted[f"v{value}"] == 1 for value in range(4))
            assert inserted["nine"] == inserted["noted"] == 12
            for client in clients:
                clients[2].token = client.token
            one = await clients[2].execute("SELECT n FROM one WHERE id = 9", read="strict")
            assert one.value() == 12
            noted = await clients[2].execute("SELECT what FROM noted EXCEPT SELECT what FROM log")
            assert not noted.rows
            assert (await clients[2].execute("SELECT count(*) FROM log")).value() == 12
            for query in NEVER:
                assert not (await clients[2].execute(query)).rows, query
    assert errors.keys() == {ConstraintError}
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        assert rows(node, "SELECT count(*) FROM log") == [(12,)]
        with closing(sqlite3.connect(node.database)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

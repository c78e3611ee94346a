"""A mixed load on several nodes, and schema changes during it."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError
from tools.cluster import LocalCluster

ACCOUNTS = 500
TABLES = (
    "CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance > -1000000), note TEXT)",
    "CREATE TABLE event(id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES account(id), kind TEXT)",
    "CREATE INDEX event_of ON event(account)",
)


@dataclass
class Load:
    """The load and its measurements.

    Attributes:
        phase: what is measured at the moment.
        took: seconds of each transaction, by phase.
        attempts: how often each that writes was executed, by phase.
        apart: each client has accounts of its own, so that only the changes of the schema can cause repetitions.
        failures: what transactions of clients failed with.
        token: that of the session that has made the tables.
    """

    cluster: LocalCluster
    phase: str = "quiet"
    took: dict[str, list[float]] = field(default_factory=dict)
    attempts: dict[str, list[int]] = field(default_factory=dict)
    failures: list[BedrockishError] = field(default_factory=list)
    apart: int = 0
    token: bytes | None = None
    stopping: bool = False

    async def prepare(self) -> None:
        """Make the tables."""
        async with open_client(self.cluster.url()) as client:
            await client.transact(list(TABLES))
            rows = "WITH RECURSIVE k(i) AS (SELECT 1 UNION SELECT i + 1 FROM k LIMIT ?) SELECT i, 100, '' FROM k"
            await client.execute(f"INSERT INTO account {rows}", [ACCOUNTS])
            self.token = client.token

    async def write(self, number: int) -> None:
        """Be a client: one transaction after the other at one node, until it is over."""
        luck = random.Random(number)
        node = number % len(self.cluster.nodes)
        async with open_client(self.cluster.url(node, only=True), token=self.token) as client:
            while not self.stopping:
                phase, began = self.phase, time.monotonic()
                try:
                    attempts = await self._one(client, luck, number)
                    self.attempts.setdefault(phase, []).extend([attempts] if attempts else [])
                except BedrockishError as error:
                    self.failures.append(error)
                self.took.setdefault(phase, []).append(time.monotonic() - began)

    async def _one(self, client: Client, luck: random.Random, number: int) -> int:
        """Run one transaction; return how often it was executed, if it writes, or 0."""
        own = range(1 + number, ACCOUNTS + 1, self.apart) if self.apart else range(1, ACCOUNTS + 1)
        one, two = luck.sample(own, 2)
        match luck.randrange(5):
            case 0:
                done = await client.execute("INSERT INTO event(account, kind) VALUES (?, ?)", [one, f"k{number}"])
            case 1:
                done = await client.execute("UPDATE account SET note = ? WHERE id = ?", [f"by {number}", one])
            case 2:
                await client.execute("SELECT balance, note FROM account WHERE id = ?", [one])
                return 0
            case 3:
                await client.execute("SELECT count(*) FROM event WHERE account = ?", [one], read="strict")
                return 0
            case _:
                done, _ = await client.transact(
                    [
                        ("UPDATE account SET balance = balance - 1 WHERE id = ?", [one]),
                        ("UPDATE account SET balance = balance + 1 WHERE id = ?", [two]),
                    ]
                )
        return done.attempts


def changes() -> Iterator[list[str]]:
    """Yield schema changes without end: most are an ALTER or an index; every table stays usable by the load."""
    for n in count():
        yield [f"ALTER TABLE account ADD COLUMN c{n} INTEGER DEFAULT {n}"]
        yield [f"CREATE INDEX account_c{n} ON account(c{n}, balance)"]
        yield [f"ALTER TABLE event ADD COLUMN e{n} TEXT"]
        yield [f"ALTER TABLE event RENAME COLUMN e{n} TO f{n}"]
        yield [f"CREATE TABLE extra{n}(id INTEGER PRIMARY KEY, x)", f"CREATE VIEW seen{n} AS SELECT * FROM extra{n}"]
        yield [
            f"CREATE TRIGGER audit{n} AFTER INSERT ON event BEGIN INSERT INTO extra{n} VALUES (new.id, new.kind); END",
            f"PRAGMA user_version = {n + 1}",
        ]
        yield [f"DROP INDEX account_c{n}", f"ALTER TABLE account DROP COLUMN c{n}"]
        yield [f"DROP TRIGGER audit{n}", f"DROP VIEW seen{n}", f"DROP TABLE extra{n}"]


async def change(cluster: LocalCluster, how_many: int) -> list[float]:
    """Make changes, one after the other at one node after the other; return the seconds that each took."""
    took: list[float] = []
    token = b""
    for place, statements in zip(range(how_many), changes(), strict=False):
        began = time.monotonic()
        async with open_client(cluster.url(place % len(cluster.nodes), only=True)) as client:
            if token:
                client.token = token
            await client.transact(list(statements))
            token = client.token
        took.append(time.monotonic() - began)
    return took


def offset_walls(cluster: LocalCluster, offsets_ms: list[int]) -> None:
    """Let nodes that are not started yet have wrong wall clocks."""
    for node, offset in zip(cluster.nodes, offsets_ms, strict=False):
        with node.config.open("a") as config:
            config.write(f"\n[clock]\nwall_offset_ms = {offset}\n")

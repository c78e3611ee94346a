"""Programs at all nodes run random transactions at once; their results are those of one after the other on SQLite.

The order is that of the transactions' clocks. The journal names it, and the order of commands that share a transaction.
"""

import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

import bedrockish
from bedrockish.client.blocking import Connection
from bedrockish.errors import BedrockishError, ConflictError, ConstraintError, OutcomeUnknownError, UnavailableError
from bedrockish_journal.model.transaction import decode_transaction
from tests.cluster.random_statements import SCHEMA, TABLES, Values, draw, plain
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

PROGRAMS = 9
EMPTY = b"\x82\x80\x80"  # the changes of a transaction without rows: a command that was settled never happens


@dataclass
class Record:
    """The statements of a transaction, each with its outcome, and the end as its program knows it."""

    steps: list[tuple[str, Values, str, list[Any]]] = field(default_factory=list)
    end: str = "open"


@dataclass
class Programs:
    """The threads of all programs, and their records by command id."""

    cluster: LocalCluster
    seed: int
    records: dict[str, Record] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        """Run transactions until ``over``: the even programs by path, the others by URL."""
        luck = random.Random(1_000 * self.seed + number)
        nodes = len(self.cluster.nodes)
        while not self.over.is_set():
            node = luck.randrange(nodes)
            where = str(self.cluster.nodes[node].database) if number % 2 == 0 else self.cluster.url(node)
            try:
                with bedrockish.connect(where) as db:
                    for _ in range(10):
                        if not self.over.is_set():
                            self._transact(db, luck)
            except (ConflictError, ConstraintError, UnavailableError, OutcomeUnknownError) as error:
                self.ends[error.code] += 1
            except Exception as error:
                self.wrong.append(f"program {number}: {error!r}")

    def _transact(self, db: Connection, luck: random.Random) -> None:
        transaction = db.begin()
        record = self.records[transaction.command] = Record()
        try:
            for _ in range(luck.randrange(1, 8)):
                sql, values = draw(luck)
                rows: list[Any] = []
                try:
                    rows, how = sorted(transaction.execute(sql, values).rows, key=repr), "done"
                except ConstraintError:
                    how = "constraint"
                except (ConflictError, UnavailableError):
                    raise
                except BedrockishError:
                    how = "error"
                record.steps.append((sql, values, how, rows))
                if not transaction.is_open:  # OR ROLLBACK, or RAISE(ROLLBACK)
                    record.end = "refused"
                    return
            record.end = "unknown"
            transaction.commit()
            record.end = "committed"
            self.ends["committed"] += 1
        except BedrockishError as error:
            if not isinstance(error, OutcomeUnknownError):
                record.end = "refused"
            with suppress(BedrockishError):
                transaction.rollback()
            if not isinstance(error, ConflictError | ConstraintError):
                raise
            self.ends[error.code] += 1

    def change_indexes(self) -> None:
        """Create and drop indexes until ``over``, so that statements get other plans, and read other keys."""
        luck = random.Random(self.seed)
        while not self.over.wait(luck.uniform(0.1, 0.5)):
            name, on = luck.choice((("q_v", "q(v)"), ("p_n", "p(n, code)"), ("strict_a", "strict(a) WHERE a > 2")))
            lost = suppress(ConflictError, UnavailableError, OutcomeUnknownError)
            with lost, bedrockish.connect(self.cluster.url(luck.randrange(3))) as db:
                db.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {on}")
                self.over.wait(luck.uniform(0.1, 1))
                db.execute(f"DROP INDEX IF EXISTS {name}")

    def strike(self) -> None:
        """Kill, stop and continue nodes until ``over``; at the end all run."""
        luck = random.Random(self.seed + 1)
        while not self.over.wait(luck.uniform(1, 4)):
            node = luck.choice(self.cluster.nodes)
            assert node.process is not None
            if luck.random() < 0.5:
                node.process.send_signal(signal.SIGSTOP)
                time.sleep(luck.uniform(0.1, 3))
                node.process.send_signal(signal.SIGCONT)
            else:
                node.kill()
                node.start()


def replay(database: Path, records: dict[str, Record]) -> apsw.Connection:
    """Run the transactions of a node's journal on SQLite in the order of their clocks, and compare all outcomes."""
    sqlite = plain()
    with closing(sqlite3.connect(database)) as db:
        bodies = db.execute("SELECT body FROM bedrockish_journal WHERE NOT repeat ORDER BY clock, origin").fetchall()
    committed = set[str]()
    for (body,) in bodies:
        transaction = decode_transaction(body)
        for command in transaction.commands:
            record = records.get(command)
            if record is None or (record.end != "committed" and transaction.changes == EMPTY):
                continue
            assert record.end in ("committed", "unknown"), f"{command} was {record.end} and is committed: {record}"
            committed.add(command)
            sqlite.execute("BEGIN")
            for place, (sql, values, how, rows) in enumerate(record.steps):
                assert _outcome(sqlite, sql, values) == (how, rows), (command, place, record)
            sqlite.execute("COMMIT")
    ours = {command for command, record in records.items() if record.end == "committed"}
    only_read = {one for one in ours - committed if all(row[0].startswith("SELECT") for row in records[one].steps)}
    assert len(committed) > len(ours - committed - only_read), "most transactions have changed rows"
    return sqlite


def _outcome(sqlite: apsw.Connection, sql: str, values: Values) -> tuple[str, list[Any]]:
    try:
        return "done", sorted(sqlite.execute(sql, values).fetchall(), key=repr)
    except apsw.ConstraintError:
        return "constraint", []
    except apsw.Error:
        return "error", []


@pytest.mark.parametrize(
    ("seed", "seconds", "has_faults"),
    [(1, 6, False), *(pytest.param(seed, 40, seed % 2 == 0, marks=pytest.mark.slow) for seed in range(2, 8))],
)
def test_transactions_have_the_results_of_their_order(
    tmp_path: Path, seed: int, seconds: float, has_faults: bool
) -> None:
    with local_cluster(tmp_path / "cluster") as cluster:
        trio.run(cluster.wait_all_ready)
        with bedrockish.connect(cluster.url()) as db:
            for sql in SCHEMA:
                db.execute(sql)
        programs = Programs(cluster, seed)
        targets: list[Any] = [programs.change_indexes, *([programs.strike] if has_faults else [])]
        threads = [threading.Thread(target=target) for target in targets]
        threads += [threading.Thread(target=programs.run, args=(number,)) for number in range(PROGRAMS)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 60
        while time.monotonic() < end and programs.ends["committed"] < 10 * seconds:
            time.sleep(seconds / 2)
        programs.over.set()
        for thread in threads:
            thread.join()
        assert not programs.wrong
        assert not trio.run(cluster.wait_level, 60)
        with bedrockish.connect(cluster.url()) as db:
            final = {table: sorted(db.execute(f"SELECT * FROM {table}").rows, key=repr) for table in TABLES}
    with closing(replay(cluster.nodes[0].database, programs.records)) as sqlite:
        for table in TABLES:
            assert sorted(sqlite.execute(f"SELECT * FROM {table}").fetchall(), key=repr) == final[table], table

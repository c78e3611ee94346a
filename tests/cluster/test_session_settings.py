"""The settings of sessions on three nodes: each statement gives the rows that SQLite gives, and all nodes keep them."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import trio

import bedrockish.dbapi
from tests.cluster.story import ready
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, n TEXT COLLATE NOCASE, c TEXT UNIQUE, d INT)",
    "CREATE INDEX by_n ON t(n)",
    "CREATE TABLE said(id INTEGER PRIMARY KEY, what)",
    "CREATE VIEW few AS SELECT id, c FROM t WHERE n LIKE 'A%'",
    """CREATE TRIGGER gone AFTER DELETE ON t BEGIN
           INSERT INTO said VALUES ((SELECT count(*) FROM said), old.c);
           DELETE FROM t WHERE d = old.d - 1 AND n LIKE old.n || '%';
       END""",
    """CREATE TRIGGER moved AFTER UPDATE OF d ON t WHEN new.d > 0 BEGIN
           UPDATE t SET d = d - 2 WHERE id = new.id;
       END""",
)
TABLES = ("SELECT * FROM t ORDER BY id", "SELECT * FROM said ORDER BY id")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("settings") / "three", ("A", "B", "C")) as made:
        trio.run(ready, made)
        yield made


def statement(luck: random.Random) -> tuple[str, tuple[Any, ...]]:
    number, word, size = luck.randrange(12), luck.choice(("a", "A", "ab", "aB", "B", "b")), luck.randrange(5)
    pattern = luck.choice(("a%", "A%", "_b", "%B", "b"))
    return luck.choice(
        (
            ("REPLACE INTO t VALUES (?, ?, ?, ?)", (number, word, f"{word}{number % 5}", size)),
            ("INSERT OR IGNORE INTO t VALUES (?, ?, ?, ?)", (number, word, f"{word}{number % 7}", size)),
            ("UPDATE t SET d = ? WHERE n LIKE ?", (size, pattern)),
            ("DELETE FROM t WHERE c LIKE ? AND id < ?", (pattern, number)),
            ("SELECT id, n LIKE ? FROM t WHERE c LIKE ? ORDER BY id", (pattern, pattern)),
            ("SELECT * FROM few WHERE c NOT LIKE ? ESCAPE '_' ORDER BY id", ("_%",)),
            ("PRAGMA case_sensitive_like = 1", ()),
            ("PRAGMA case_sensitive_like = 0", ()),
            ("PRAGMA recursive_triggers = 1", ()),
            ("PRAGMA recursive_triggers = 0", ()),
            ("PRAGMA recursive_triggers", ()),
        )
    )


def rows(run: Any, sql: str, params: tuple[Any, ...]) -> Any:
    try:
        return [tuple(row) for row in run(sql, params).fetchall()]
    except (bedrockish.dbapi.IntegrityError, sqlite3.IntegrityError, bedrockish.dbapi.OperationalError) as error:
        return str(error)[:20].lower()
    except sqlite3.OperationalError as error:
        return str(error)[:20].lower()


@pytest.mark.parametrize("seed", range(2))
def test_each_session_has_its_own_settings_at_any_node(cluster: LocalCluster, seed: int) -> None:
    """The sessions use the socket of each node, and the path of one node's file."""
    luck = random.Random(seed)
    places = [cluster.url(one) for one in range(3)] + [str(cluster.nodes[0].database)]
    with ExitStack() as stack:
        plain = stack.enter_context(closing(sqlite3.connect(":memory:", isolation_level=None)))
        interfaces = [bedrockish.dbapi.connect(place, isolation_level=None, read="strict") for place in places]
        for one in interfaces:
            stack.callback(one.close)
        for sql in ("DROP VIEW IF EXISTS few", "DROP TABLE IF EXISTS t", "DROP TABLE IF EXISTS said", *SCHEMA):
            interfaces[0].execute(sql)
            plain.execute(sql)
        settings = [{"case_sensitive_like": 0, "recursive_triggers": 0} for _ in interfaces]
        for _ in range(120):
            place = luck.randrange(len(interfaces))
            sql, params = statement(luck)
            name, equals, value = sql.removeprefix("PRAGMA ").partition(" = ")
            if sql.startswith("PRAGMA") and equals:
                settings[place][name] = int(value)
            for name, is_on in settings[place].items():
                plain.execute(f"PRAGMA {name} = {is_on}")
            wanted = rows(plain.execute, sql, params)
            assert rows(interfaces[place].execute, sql, params) == wanted, (places[place], sql, params, settings[place])
        expected = [plain.execute(sql).fetchall() for sql in TABLES]
        for one in interfaces:
            assert [one.execute(sql).fetchall() for sql in TABLES] == expected

"""The same statements at every interface: the same rows and errors, or a refusal that names the interface's limit.

Each sequence is run on tables of its own by each interface: statement by statement, or as one script or batch where
the interface has no other way. The test compares the answers, and the rows that are left in the tables.
"""

import json
import random
import sqlite3
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy
import trio

import bedrockish.dbapi
from bedrockish import connect
from bedrockish.errors import BedrockishError
from bedrockish.sqltext.statement_kinds import SCHEMA, kind_of
from tests.cluster.story import ready
from tests.forked import program
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

Outcome = list[Any]  # the rows or "error" of each statement; some interfaces return only the last ones
LIMITED = "limit"  # the interface refuses the sequence, and says so


@dataclass(frozen=True)
class World:
    """Reaches one node through each of its interfaces."""

    cluster: LocalCluster

    @property
    def url(self) -> str:
        return self.cluster.url()

    def hrana(self, *asked: dict[str, Any]) -> list[dict[str, Any]]:
        body = json.dumps({"baton": None, "requests": [*asked, {"type": "close"}]}).encode()
        where = f"http://127.0.0.1:{self.cluster.nodes[0].http_port}/v2/pipeline"
        request = urllib.request.Request(where, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            found: list[dict[str, Any]] = json.load(reply)["results"]
        return found

    def post(self, path: str, body: object) -> Any:
        where = f"http://127.0.0.1:{self.cluster.nodes[0].http_port}{path}"
        request = urllib.request.Request(where, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    cluster = LocalCluster(tmp_path_factory.mktemp("interfaces") / "one", ("A",))
    cluster.add_http()
    cluster.write_files()
    try:
        cluster.nodes[0].start()
        trio.run(ready, cluster)
        yield World(cluster)
    finally:
        cluster.stop()


def plain(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(row) for row in rows]


# -- interfaces --------------------------------------------------------------------------------------------------------


def native(world: World, texts: list[str]) -> Outcome:
    found: Outcome = []
    with connect(world.url) as db:
        for sql in texts:
            try:
                found.append(plain(db.execute(sql).rows))
            except BedrockishError as error:
                if "PRAGMA foreign_keys = OFF is for transactions" in error.message:
                    return [LIMITED]
                found.append("error")
    return found


def dbapi(world: World, texts: list[str]) -> Outcome:
    found: Outcome = []
    db = bedrockish.dbapi.connect(world.url, isolation_level=None)
    try:
        for sql in texts:
            try:
                found.append(plain(db.execute(sql).fetchall()))
            except bedrockish.dbapi.Error:
                found.append("error")
    finally:
        db.close()
    return found


def alchemy(world: World, texts: list[str]) -> Outcome:
    found: Outcome = []
    engine = sqlalchemy.create_engine(world.url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for sql in texts:
                try:
                    result = connection.exec_driver_sql(sql)
                    found.append(plain(result.fetchall()) if result.returns_rows else [])
                except sqlalchemy.exc.DBAPIError:
                    found.append("error")
    finally:
        engine.dispose()
    return found


def http(world: World, texts: list[str]) -> Outcome:
    """Stop at the first statement that fails, as the interface does."""
    answer = world.post("/db/execute", texts)
    if "results" in answer:
        return [one["rows"] for one in answer["results"]]
    if "leave out BEGIN, COMMIT" in answer["message"] or "PRAGMA foreign_keys = OFF is for" in answer["message"]:
        return [LIMITED]
    return ["error"]


def _value(value: dict[str, Any]) -> Any:
    return int(value["value"]) if value["type"] == "integer" else value.get("value")


def _rows(result: dict[str, Any]) -> list[list[Any]]:
    return [[_value(value) for value in row] for row in result["rows"]]


def libsql_execute(world: World, texts: list[str]) -> Outcome:
    """Run statements on one stream, as a transaction of @libsql/client does."""
    answers = world.hrana(*({"type": "execute", "stmt": {"sql": sql}} for sql in texts))[:-1]
    if any("would end with this call" in one.get("error", {}).get("message", "") for one in answers):
        return [LIMITED]
    return [_rows(one["response"]["result"]) if one["type"] == "ok" else "error" for one in answers]


def libsql_batch(world: World, texts: list[str]) -> Outcome:
    batch = {"steps": [{"stmt": {"sql": sql}} for sql in texts]}
    (answer, _) = world.hrana({"type": "batch", "batch": batch})
    result = answer["response"]["result"]
    if any(error and "would end with this call" in error["message"] for error in result["step_errors"]):
        return [LIMITED]
    pairs = zip(result["step_results"], result["step_errors"], strict=True)
    return ["error" if error else _rows(found) for found, error in pairs]


def libsql_sequence(world: World, texts: list[str]) -> Outcome:
    """Run a script, which stops at its first error; the interface reports only the success of all statements."""
    (answer, _) = world.hrana({"type": "sequence", "sql": "\n;\n".join(texts)})
    return [] if answer["type"] == "ok" else ["error"]


def dbapi_script(world: World, texts: list[str]) -> Outcome:
    db = bedrockish.dbapi.connect(world.url)
    try:
        db.executescript("\n;\n".join(texts))
    except bedrockish.dbapi.Error:
        return ["error"]
    finally:
        db.close()
    return []


def shell(world: World, texts: list[str]) -> Outcome:
    done = program("sql", world.url, stdin="\n;\n".join(texts) + ";\n")
    assert "Traceback" not in done.stderr
    if "PRAGMA foreign_keys = OFF is for transactions" in done.stderr and "BEGIN" not in texts:
        return [LIMITED]
    return ["error"] if done.returncode else []


STEPWISE: dict[str, Callable[[World, list[str]], Outcome]] = {
    one.__name__: one for one in (native, dbapi, alchemy, libsql_execute, libsql_batch)
}
SCRIPTED: dict[str, Callable[[World, list[str]], Outcome]] = {
    one.__name__: one for one in (http, libsql_sequence, dbapi_script, shell)
}

# -- sequences ---------------------------------------------------------------------------------------------------------

BEFORE = [
    "CREATE TABLE p_{n}(id INTEGER PRIMARY KEY, v TEXT)",
    "CREATE TABLE c_{n}(id INTEGER PRIMARY KEY, p INT REFERENCES p_{n}(id) ON DELETE CASCADE)",
    "INSERT INTO p_{n} VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO c_{n} VALUES (10, 1), (20, 2)",
]
LEFT = ["SELECT * FROM p_{n} ORDER BY id", "SELECT * FROM c_{n} ORDER BY id"]
PLAIN = [
    "SELECT v FROM p_{n} ORDER BY id",
    "INSERT INTO p_{n} VALUES (3, 'c') RETURNING id",
    "INSERT INTO p_{n} VALUES (1, 'twice')",
    "INSERT INTO c_{n} VALUES (30, 99)",
    "UPDATE p_{n} SET v = v || '!' WHERE id < 3",
    "DELETE FROM p_{n} WHERE id = 2",
    "SELECT last_insert_rowid(), changes(), total_changes()",
    "SELECT last_insert_rowid()",
    "INSERT INTO c_{n} VALUES (40, last_insert_rowid())",
    "SELECT nothing FROM nowhere",
    "PRAGMA foreign_keys",
    "SELECT name FROM sqlite_schema WHERE name LIKE '%e%_{n}' OR name LIKE 'bed%' ORDER BY name",
    "SELECT count(*) FROM main.sqlite_master m WHERE m.name LIKE 'bed%'",
    "PRAGMA recursive_triggers = ON",
    "PRAGMA journal_mode = WAL",
    "; SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1 -- the end",
    "VACUUM",
    "PRAGMA writable_schema = ON",
]
REDEFINE = [
    "CREATE TABLE new_{n}(id INTEGER PRIMARY KEY, v TEXT NOT NULL)",
    "INSERT INTO new_{n} SELECT * FROM p_{n}",
    "DROP TABLE p_{n}",
    "ALTER TABLE new_{n} RENAME TO p_{n}",
]
OFF, ON = "PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = ON"
LEGACY = ["PRAGMA legacy_alter_table = ON", "PRAGMA legacy_alter_table"]
NO_LEGACY = ["PRAGMA legacy_alter_table = OFF", "PRAGMA legacy_alter_table"]
DEFER = "PRAGMA defer_foreign_keys = ON"
BROKEN = ["INSERT INTO c_{n} VALUES (60 + (SELECT count(*) FROM c_{n}), 9)", "SELECT max(id) FROM c_{n}"]
MANY = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1500)"
    " INSERT INTO c_{n} SELECT 9000 + i, 9 FROM n"
)
FIXED = {
    "keys off around": [OFF, *REDEFINE, ON],
    "keys off inside": ["BEGIN", OFF, *REDEFINE, "COMMIT"],
    "keys off before BEGIN": [OFF, "BEGIN", *REDEFINE, "COMMIT", ON],
    "keys off after a read": ["BEGIN", "SELECT count(*) FROM p_{n}", OFF, *REDEFINE, ON, "COMMIT"],
    "keys off and deferred": ["BEGIN", "PRAGMA defer_foreign_keys = ON", OFF, *REDEFINE, ON, "COMMIT"],
    "settings, deferred rows": [
        "BEGIN",
        DEFER,
        DEFER[:-5],
        *BROKEN,
        "INSERT INTO p_{n} VALUES (9, 'z')",
        "COMMIT",
        DEFER[:-5],
    ],
    "settings, deferred by many rows": ["BEGIN", DEFER, MANY, *BROKEN, "INSERT INTO p_{n} VALUES (9, 'z')", "COMMIT"],
    "settings, deferred before a definition": [
        "BEGIN",
        DEFER,
        *BROKEN,
        "CREATE TABLE u_{n}(a)",
        "DELETE FROM c_{n}",
        "COMMIT",
    ],
    "deferred and broken": ["BEGIN", DEFER, *BROKEN, "COMMIT", "ROLLBACK"],
    "deferred no longer": ["BEGIN", DEFER, *BROKEN, "PRAGMA defer_foreign_keys = OFF", *BROKEN, "ROLLBACK"],
    "keys off for rows alone": [OFF, "DELETE FROM p_{n}", ON],
    "keys off, spelled otherwise": ["pragma main.FOREIGN_KEYS('off')", "REPLACE INTO p_{n} VALUES (1, 'z')", ON],
    "keys off for harmless rows": [OFF, "INSERT INTO c_{n} VALUES (50, 1)", "DELETE FROM c_{n} WHERE id = 10", ON],
    "keys off for rows": ["BEGIN", OFF, "DELETE FROM p_{n}", "COMMIT"],
    "rolled back": ["BEGIN", "DELETE FROM c_{n}", "ROLLBACK", "SELECT count(*) FROM c_{n}"],
    "settings": [
        "PRAGMA recursive_triggers",
        "PRAGMA case_sensitive_like = ON",
        "PRAGMA recursive_triggers = ON",
        "PRAGMA recursive_triggers",
        "SELECT v FROM p_{n} WHERE v LIKE 'A%'",
        "CREATE TRIGGER r_{n} AFTER DELETE ON p_{n} BEGIN INSERT INTO c_{n} VALUES (old.id + 50, NULL); END",
        "REPLACE INTO p_{n} VALUES (1, 'Z')",
        "UPDATE p_{n} SET v = v || '?' WHERE v LIKE 'z' OR v LIKE 'b'",
        "PRAGMA case_sensitive_like(0)",
        "SELECT v FROM p_{n} WHERE v LIKE 'z%'",
        "pragma main.RECURSIVE_TRIGGERS = 'off';",
        "REPLACE INTO p_{n} VALUES (2, 'Y')",
        "PRAGMA recursive_triggers",
    ],
    "settings in a transaction": [
        "BEGIN",
        "SELECT 'a' LIKE 'A'",
        "PRAGMA case_sensitive_like = ON",
        "SELECT 'a' LIKE 'A'",
        "INSERT INTO p_{n} SELECT id + 10, v FROM p_{n} WHERE v LIKE 'A' OR v LIKE 'b'",
        "ROLLBACK",
        "SELECT v LIKE 'A' FROM p_{n}",
    ],
    "legacy renaming": ["BEGIN", OFF, *REDEFINE[:3], *LEGACY, REDEFINE[3], *NO_LEGACY, "COMMIT", *NO_LEGACY],
    "a savepoint": ["BEGIN", "SAVEPOINT a", "DELETE FROM c_{n}", "ROLLBACK TO a", "RELEASE a", "COMMIT"],
}


def rolled(seed: int) -> list[str]:
    luck = random.Random(seed)
    texts = [luck.choice(PLAIN) for _ in range(luck.randrange(2, 7))]
    if luck.random() < 0.5:
        at = luck.randrange(len(texts))
        texts = [*texts[:at], "BEGIN", *texts[at:], luck.choice(["COMMIT", "ROLLBACK"])]
    return texts


SEQUENCES = {**FIXED, **{f"seed {seed}": rolled(seed) for seed in range(25)}}
_number = iter(range(1_000_000))


def outcome(
    world: World, interface: Callable[[World, list[str]], Outcome], texts: list[str]
) -> tuple[Outcome, Outcome]:
    """Return the answers of an interface, and the rows that are left in the tables."""
    n = next(_number)
    with connect(world.url) as db:
        for sql in BEFORE:
            db.execute(sql.format(n=n))
        told = interface(world, [sql.format(n=n) for sql in texts])
        left: Outcome = []
        for sql in LEFT:
            try:
                left.append(plain(db.execute(sql.format(n=n)).rows))
            except BedrockishError:
                left.append("gone")
    return told, left


def up_to_error(texts: list[str], told: Outcome) -> list[str] | None:
    """Return the statements before the first error of a script; None if all succeed."""
    return texts[: told.index("error")] if "error" in told else None


@pytest.mark.parametrize("name", SEQUENCES)
def test_interfaces_that_continue_after_an_error_have_the_same_outcome(world: World, name: str) -> None:
    texts = SEQUENCES[name]
    found = {interface: outcome(world, run, texts) for interface, run in STEPWISE.items()}
    expected = found["dbapi"]
    for interface, (told, left) in found.items():
        if told != [LIMITED]:
            assert (told, left) == expected, (interface, texts, found)


@pytest.mark.parametrize("name", [name for name in SEQUENCES if name.startswith("settings")])
def test_settings_of_a_session_have_the_effect_of_sqlite(world: World, name: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        found: list[Outcome] = []
        for texts in (["PRAGMA foreign_keys = ON", *BEFORE], SEQUENCES[name], LEFT):
            found.append([plain(db.execute(sql.format(n=0)).fetchall()) for sql in texts])
    for interface in (native, dbapi, alchemy, libsql_execute, libsql_batch):
        assert outcome(world, interface, SEQUENCES[name]) == tuple(found[1:]), interface


@pytest.mark.parametrize("name", SEQUENCES)
def test_interfaces_that_stop_at_an_error_leave_the_same_rows(world: World, name: str) -> None:
    texts = [sql for sql in SEQUENCES[name] if not sql.startswith((";", "SELECT 1; "))]  # a script's are two statements
    told, left = outcome(world, dbapi, texts)
    failed = "error" in told
    if failed:  # a script that stops also rolls back its open transaction
        _, left = outcome(world, dbapi, texts[: told.index("error")])
    for interface, run in SCRIPTED.items():
        said, there = outcome(world, run, texts)
        if said == [LIMITED]:
            continue
        is_section = texts[0] == OFF and "BEGIN" not in texts and any(kind_of(sql) == SCHEMA for sql in texts)
        assert ("error" in said) == (failed and not is_section), (interface, texts, told, said)
        if interface == "shell" and failed:
            continue  # the shell reads a whole script, and sends a transaction as one
        assert is_section or there == left, (interface, texts, left, there)

"""After a schema change only the changed tables are described again, and the result equals a full description."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.access_sets import catalog, definitions, table_layout
from bedrockish.access_sets.catalog import Schema, read_schema
from bedrockish.access_sets.definitions import Definitions, folded
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import decode_results
from bedrockish.engine.execution.committed_reads import CommittedReads
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.import_check import misfits
from bedrockish.errors import UnsupportedError
from bedrockish_journal.storage.table_layout import quote
from tests.engine.nodes import TestNode, request

NAMES = ["a", "B", "c", "child", "Ünit", "ünit", "x y", "sqlitex", "bedrock"]
COLUMNS = ["id", "n", "Name", "other", "v"]


@pytest.fixture
def db() -> Iterator[apsw.Connection]:
    made = apsw.Connection(":memory:")
    made.pragma("foreign_keys", 1)
    yield made
    made.close()


def table_facts(tables: Tables) -> dict[str, Any]:
    """Return all facts about the tables, but for the definitions, which are compared by content."""
    return {
        **{name: value for name, value in vars(tables).items() if name != "definitions"},
        **{
            name: sorted(value) if isinstance(value, list) else value
            for name, value in vars(tables.definitions).items()
            if name != "_since"
        },
    }


def schema_facts(schema: Schema) -> Any:
    """Return all facts about a schema, and the children of each parent in some order."""
    children = {name: sorted(map(repr, foreign)) for name, foreign in schema.children.items()}
    return schema, children


def check(db: apsw.Connection, known: Tables, schema: Schema) -> tuple[Tables, Schema]:
    tables, whole = Tables(db, known), Tables(db)
    assert table_facts(tables) == table_facts(whole)
    found = read_schema(db, schema, tables.definitions)
    assert schema_facts(found) == schema_facts(read_schema(db))
    assert schema_facts(read_schema(db, schema)) == schema_facts(found)
    return tables, found


def _table(some: random.Random) -> str:
    name = some.choice(NAMES)
    columns = ["id INTEGER PRIMARY KEY" + some.choice(["", " AUTOINCREMENT", " DESC"]), "n REAL", "Name TEXT"]
    end = ""
    if some.random() < 0.3:
        columns[0], end = "id TEXT PRIMARY KEY", some.choice([" WITHOUT ROWID", " WITHOUT ROWID", ""])
    if some.random() < 0.3:
        columns.append(f"v {some.choice(['AS (n + 1)', 'AS (n + 1) STORED', 'UNIQUE', 'CHECK (v > 0)'])}")
    if some.random() < 0.5:
        parent = quote(some.choice([*NAMES, *(name.upper() for name in NAMES)]))
        columns.append(f"other REFERENCES {parent}{some.choice(['', '(id)', '(n)'])}")
    return f"CREATE TABLE {quote(name)}({', '.join(columns)}){end}"


def statement(some: random.Random) -> str:
    """Return a random statement that may change the schema."""
    name, other = quote(some.choice(NAMES)), quote(some.choice(NAMES))
    shouted = name.upper() if name.isascii() else name
    column, number = some.choice(COLUMNS), some.randrange(6)
    return some.choice(
        [
            _table(some),
            _table(some),
            _table(some),
            f"DROP TABLE {name}",
            f"ALTER TABLE {name} RENAME TO {other}",
            f"ALTER TABLE {name} RENAME TO {shouted}",
            f"ALTER TABLE {name} RENAME COLUMN {column} TO {some.choice(COLUMNS)}",
            f"ALTER TABLE {name} ADD COLUMN {column} REFERENCES {other}",
            f"ALTER TABLE {name} ADD COLUMN {column} TEXT",
            f"ALTER TABLE {name} DROP COLUMN {column}",
            f"CREATE {some.choice(['', 'UNIQUE'])} INDEX i{number} ON {shouted}({column} {some.choice(['', 'DESC'])})",
            f"CREATE INDEX i{number} ON {name}(lower({column})) WHERE {column} > 3",
            f"DROP INDEX i{number}",
            f"CREATE TRIGGER t{number} AFTER INSERT ON {shouted} BEGIN DELETE FROM {other}; END",
            f"DROP TRIGGER t{number}",
            f"CREATE VIEW w{number} AS SELECT * FROM {name}",
            f"CREATE TRIGGER t{number} INSTEAD OF INSERT ON w{some.randrange(6)} BEGIN DELETE FROM {other}; END",
            f"DROP VIEW w{number}",
        ]
    )


def with_virtual(some: random.Random) -> str:
    """Return a random statement that may change virtual tables, or tables with names of their shadow tables."""
    name, other = some.choice(NAMES), some.choice(NAMES)
    shadow = quote(name + some.choice(["_content", "_data", "_DATA", "_node", "_x"]))
    options = some.choice(["", "", ", content=''", f", content={quote(other)}"])
    return some.choice(
        [
            f"CREATE VIRTUAL TABLE {quote(name)} USING fts5(n, Name{options})",
            f"CREATE VIRTUAL TABLE {quote(name)} USING rtree(id, low, high)",
            f"CREATE TABLE {shadow}(id INTEGER PRIMARY KEY, other REFERENCES {quote(other)})",
            f"DROP TABLE {shadow}",
            f"DROP TABLE {quote(name)}",
            f"ALTER TABLE {shadow} RENAME TO {quote(other)}",
        ]
    )


def run_supported(db: apsw.Connection, sql: str) -> None:
    """Run a statement, and roll it back if a node would refuse its result."""
    with db:
        db.execute("SAVEPOINT refused")
        db.execute(sql)
        try:
            Tables(db).check_supported(db)
        except UnsupportedError:
            db.execute("ROLLBACK TO refused")


@pytest.mark.parametrize("virtual", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(12))
def test_incremental_description_equals_a_full_one(db: apsw.Connection, seed: int, virtual: float) -> None:
    some = random.Random(seed)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)  # as at a node: shadow tables cannot be dropped alone
    known, schema = Tables(db), read_schema(db)
    marks = done = 0
    for _ in range(500):
        step = some.random()
        if step < 0.06:
            db.execute("SAVEPOINT s")
            marks += 1
        elif step < 0.12 and marks:
            db.execute("ROLLBACK TO s")
            db.execute("RELEASE s")
            marks -= 1
        elif step < 0.14 and marks:
            db.execute("ROLLBACK")
            marks = 0
        else:
            with suppress(apsw.SQLError, apsw.ConstraintError):
                run_supported(db, with_virtual(some) if some.random() < virtual else statement(some))
                done += 1
        if some.random() < 0.7:  # otherwise several changes at once
            known, schema = check(db, known, schema)
    assert done > 80
    assert len(known.by_name) > 0


def test_connections_share_descriptions_of_unchanged_tables(tmp_path: Path) -> None:
    one, other = apsw.Connection(str(tmp_path / "x.db")), apsw.Connection(str(tmp_path / "x.db"))
    one.execute("CREATE TABLE p(id INTEGER PRIMARY KEY); CREATE TABLE c(p REFERENCES p)")
    known, schema = Tables(one), read_schema(one)
    check(other, known, schema)
    one.execute("DROP TABLE c; CREATE TABLE d(x, y UNIQUE, p REFERENCES P)")
    check(other, known, schema)
    one.close()
    other.close()


def test_reused_and_moved_root_pages_are_reported(tmp_path: Path) -> None:
    for vacuum in (0, 1):
        db = apsw.Connection(str(tmp_path / f"{vacuum}.db"))
        db.pragma("auto_vacuum", vacuum)
        for name in "abcdef":
            db.execute(f"CREATE TABLE {name}(x, y); CREATE INDEX {name}_x ON {name}(x)")
        known, schema = Tables(db), read_schema(db)
        db.execute("DROP TABLE b; DROP TABLE d; CREATE TABLE g(z UNIQUE); CREATE INDEX e_y ON e(y)")
        check(db, known, schema)
        db.close()


def test_virtual_table_may_become_the_shadow_table_of_another(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE g_content(id INTEGER PRIMARY KEY, c0); CREATE TABLE t(x)")
    known, schema = Tables(db), read_schema(db)
    db.execute("CREATE VIRTUAL TABLE g USING fts5(x, content='')")
    known, schema = check(db, known, schema)
    assert known.definitions.virtual == {"g"}
    db.execute("DROP TABLE g")
    known, schema = check(db, known, schema)
    assert known.definitions.virtual == set()


def test_only_ascii_letters_are_folded(db: apsw.Connection) -> None:
    assert folded("ÜniT") == "Ünit"
    db.execute("CREATE TABLE Ü(x); CREATE TABLE ü(x)")
    known, schema = Tables(db), read_schema(db)
    db.execute("CREATE TABLE c(p REFERENCES Ü)")
    known, _ = check(db, known, schema)
    assert [known.by_name[name].active for name in ("Ü", "ü", "c")] == [True, False, True]


def test_creating_or_dropping_a_parent_changes_the_facts_of_its_children(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE c(p REFERENCES P)")
    known, schema = Tables(db), read_schema(db)
    db.execute("CREATE TABLE p(x, id INTEGER PRIMARY KEY)")
    known, schema = check(db, known, schema)
    assert schema.tables["c"].foreign_keys[0].parent_columns == (1,)
    db.execute("DROP TABLE p; CREATE TABLE p(id INTEGER PRIMARY KEY)")
    known, schema = check(db, known, schema)
    assert schema.tables["c"].foreign_keys[0].parent_columns == (0,)
    db.execute("DROP TABLE c")
    known, schema = check(db, known, schema)
    assert not known.by_name["p"].active


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tables that are described."""
    names: list[str] = []

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(db: apsw.Connection, name: str, *arguments: Any, **named: Any) -> Any:
            names.append(name)
            return function(db, name, *arguments, **named)

        return noted

    monkeypatch.setattr(table_layout, "_describe", noting(table_layout._describe))
    monkeypatch.setattr(catalog, "_read_table", noting(catalog._read_table))
    return names


def test_schema_change_describes_only_its_tables(node: TestNode, described: list[str]) -> None:
    node.run(*(f"CREATE TABLE t{number}(id INTEGER PRIMARY KEY)" for number in range(50)))
    described.clear()
    node.run("CREATE TABLE c(p REFERENCES t7)")
    node.run("CREATE INDEX t8_id ON t8(id)")
    assert set(described) == {"c", "t8"}


def test_schema_change_in_a_database_with_virtual_tables_describes_only_its_tables(
    node: TestNode, described: list[str]
) -> None:
    """A virtual table makes other tables its own; only a change of the virtual table changes them."""
    node.run(*(f"CREATE TABLE t{number}(id INTEGER PRIMARY KEY)" for number in range(50)))
    node.run("CREATE VIRTUAL TABLE docs USING fts5(body)", "CREATE VIRTUAL TABLE notes USING fts5(id, content='t9')")
    described.clear()
    node.run("CREATE TABLE c(p REFERENCES t7)")
    assert set(described) - {"docs"} == {"c"}
    described.clear()
    node.run("DROP TABLE docs")
    assert not {f"t{number}" for number in range(50)} & set(described)


def test_workspace_describes_only_tables_that_the_writer_does_not_know(node: TestNode, described: list[str]) -> None:
    node.run(*(f"CREATE TABLE t{number}(id INTEGER PRIMARY KEY)" for number in range(50)))
    node.save()
    described.clear()
    workspace, engine = Workspace(node.engine.connector()), node.engine
    workspace.take_snapshot(engine.flushed, engine.file_state())
    assert workspace.execute(request("CREATE TABLE c(p REFERENCES t7)")).changes
    assert set(described) == {"c"}
    workspace.end()
    workspace.close()


def test_rolled_back_schema_change_leaves_no_facts(node: TestNode) -> None:
    node.prepare("CREATE TABLE gone(id INTEGER PRIMARY KEY)")
    assert "gone" not in node.engine.tables.by_name
    node.run("CREATE TABLE kept(id INTEGER PRIMARY KEY, gone)")
    assert table_facts(node.engine.tables) == table_facts(Tables(node.engine._db))


def test_change_among_many_tables_is_tried_in_a_worker(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback in the loop would make SQLite read the whole schema again there."""
    in_loop, db = node.engine._limits.budget_s, node.engine._db
    create = request("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    node.save()
    monkeypatch.setattr(definitions, "_MANY", 3)
    with pytest.raises(TakesLongError):
        node.engine.execute(create, in_loop)
    assert db.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)[0] > 0
    assert node.engine.execute(create).changes
    assert db.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)[0] == 0
    monkeypatch.setattr(definitions, "_MANY", 3_000)
    assert node.engine.execute(create, in_loop).changes


def test_uncommitted_schema_is_read_again_after_each_request(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, look = node.engine, request("SELECT 1 FROM t")
    assert not engine.is_slow_to_roll_back
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    for _ in range(2):
        engine.execute(look)
        assert engine._db.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)[0] == 0
    assert not engine.is_slow_to_roll_back  # a small schema
    monkeypatch.setattr(definitions, "_MANY", 3)
    assert engine.is_slow_to_roll_back
    node.save()
    assert not engine.is_slow_to_roll_back
    engine.execute(look)
    assert engine._db.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)[0] > 0


def test_a_workspace_reads_the_schema_in_its_thread(node: TestNode) -> None:
    """The loop only begins the workspace's transaction, which fixes its snapshot."""
    engine = node.engine
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    node.run("INSERT INTO t VALUES (1)")
    node.save()
    workspace, explain = Workspace(engine.connector()), request("EXPLAIN PRAGMA integrity_check")
    for number in (1, 2):
        before = workspace._reader.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)[0]
        workspace.take_snapshot(engine.flushed, engine.file_state())
        assert workspace._reader.status(apsw.SQLITE_DBSTATUS_SCHEMA_USED)[0] == before
        node.run(f"INSERT INTO t VALUES ({number + 1})")
        node.run(f"CREATE TABLE later{number}(id INTEGER PRIMARY KEY, a NOT NULL)")
        node.save()
        assert decode_results(workspace.execute(request("SELECT count(*) FROM t")).result)[0].rows == [(number,)]
        told = str(decode_results(workspace.execute(explain).result)[0].rows)
        assert [f"later{one}" in told for one in (1, 2)] == [number > 1, False]
        workspace.end()
    workspace.close()


def test_a_schema_to_be_imported_is_described_once(described: list[str]) -> None:
    texts = [(f"t{number}", f"CREATE TABLE t{number}(id INTEGER PRIMARY KEY CHECK (id > 0))") for number in range(30)]
    assert misfits(texts) == []
    assert len(described) == 30


def test_definitions_name_the_tables_and_views_whose_schema_changed(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE a(x); CREATE TABLE B(x); CREATE VIEW w AS SELECT 1")
    known = Definitions(db)
    db.execute("CREATE INDEX i ON b(x); DROP VIEW w")
    found = Definitions(db, known)
    assert found.changed_since(known) == Definitions(db).changed_since(known) == {"b", "w"}
    assert found.changed_since(found) == set()
    assert replace(read_schema(db), definitions=None) == read_schema(db)


def test_schema_of_a_further_connection_is_that_of_one_moment(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several statements read it, and the writer may commit an index between two of them."""
    known, read, late = node.engine.connector().known(), definitions.listed, ["CREATE INDEX by_x ON t(x)"]
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
    node.save()

    def listed(*arguments: Any) -> Any:
        while late:
            node.run(late.pop())
            node.save()
        return read(*arguments)

    monkeypatch.setattr(catalog, "listed", listed)
    reads = CommittedReads(replace(node.engine.connector(), known=lambda: known))
    reads.learn()
    reads.close()
    assert not late

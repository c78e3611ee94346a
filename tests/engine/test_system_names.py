"""The node's own tables share the file with the user's tables, and no statement of a client can change them."""

import stat
from pathlib import Path

import apsw
import pytest

from bedrockish.engine.engine import Engine
from bedrockish.engine.statements.import_check import misfits
from bedrockish.engine.storage.database_file import Founding, others_may_read
from bedrockish.errors import BedrockishError, ConfigError
from tests.engine.nodes import MEMBERSHIP, TestNode

ATTACKS = """
CREATE TABLE x(a REFERENCES bedrockish_meta(key) ON DELETE RESTRICT)
CREATE TABLE x(a REFERENCES "Bedrockish_Meta"(key) ON DELETE CASCADE)
CREATE TABLE x(a, b, FOREIGN KEY (a, b) REFERENCES bedrockish_vote(clock, leader))
CREATE TABLE x(a REFERENCES bedrockish_journal(seq))
CREATE TABLE x(a REFERENCES bedrockish_later(key))
CREATE TABLE x(a REFERENCES sqlite_schema(name))
ALTER TABLE t ADD COLUMN r REFERENCES bedrockish_joined(command)
CREATE VIEW v AS SELECT * FROM bedrockish_meta
CREATE VIEW v AS SELECT * FROM [bedrockish_vote]
CREATE VIEW v AS SELECT * FROM 'bedrockish_later'
CREATE VIEW v AS SELECT (SELECT value FROM main . `bedrockish_later`)
CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM bedrockish_vote; END
CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM bedrockish_later; END
CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT bedrockish_id('t'); END
CREATE TRIGGER g AFTER INSERT ON t WHEN (SELECT 1 FROM "bedrockish_later") BEGIN SELECT 1; END
CREATE TRIGGER g INSTEAD OF DELETE ON bedrockish_changes BEGIN SELECT 1; END
CREATE TABLE x(a CHECK (bedrockish_id('t') > 0))
CREATE TABLE x(a, b AS (bedrockish_id('t')))
CREATE INDEX i ON t(bedrockish_id('t'))
CREATE TABLE Bedrockish_Mine(a)
SELECT * FROM bedrockish_vote
SELECT count(*) FROM bedrockish_vote
SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM "bedrockish_vote")
WITH bedrockish_vote AS (SELECT 1) SELECT * FROM bedrockish_vote
WITH bedrockish_rows AS (SELECT 7) INSERT INTO t(v) SELECT * FROM bedrockish_rows
INSERT INTO t(v) SELECT body FROM bedrockish_vote
UPDATE t SET v = (SELECT body FROM bedrockish_vote WHERE clock = 1)
DELETE FROM bedrockish_journal
UPDATE bedrockish_schema SET state = 'x'
INSERT INTO bedrockish_joined VALUES ('a', 1) ON CONFLICT DO NOTHING
REPLACE INTO bedrockish_meta VALUES ('node', 'B')
"""


@pytest.mark.parametrize("sql", ATTACKS.strip().splitlines())
def test_no_statement_names_references_watches_or_shadows_a_system_table(node: TestNode, sql: str) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    before = node.rows("SELECT name, sql FROM sqlite_schema ORDER BY name")
    for statements in ((sql,), ("INSERT INTO t VALUES (1, 1)", sql), ("CREATE TABLE y(a)", sql)):
        with pytest.raises(BedrockishError) as caught:
            node.run(*statements)
        assert caught.value.code in ("unsupported", "sql"), caught.value
    assert node.rows("SELECT name, sql FROM sqlite_schema ORDER BY name") == before


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM bedrockish_changes",
        "SELECT max(tick) FROM bedrockish_journal",
        "SELECT value FROM bedrockish_meta WHERE key = 'safe'",
        "SELECT * FROM bedrockish_joined, bedrockish_pruned, bedrockish_schema",
        "CREATE VIEW v AS SELECT op FROM bedrockish_changes JOIN bedrockish_schema USING (clock)",
        "INSERT INTO t(v) SELECT 'bedrockish_meta' || count(*) FROM bedrockish_changes",
    ],
)
def test_documented_system_tables_can_be_read(node: TestNode, sql: str) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    node.run(sql)


def test_file_that_refers_to_system_tables_is_refused(tmp_path: Path) -> None:
    for number, sql in enumerate(ATTACKS.strip().splitlines()[:11]):
        path = tmp_path / f"{number}.db"
        db = apsw.Connection(str(path))
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
        try:
            db.execute(sql)
        except apsw.SQLError:
            continue  # SQLite itself does not know the table yet
        finally:
            db.close()
        with pytest.raises(ConfigError, match="belongs to the database itself"):
            Engine.open(path, founding=Founding("A", MEMBERSHIP, "store"))
    found = misfits(
        [
            ("a table", "CREATE TABLE x(a REFERENCES bedrockish_meta(key))"),
            ("a view", "CREATE VIEW v AS SELECT * FROM 'bedrockish_later'"),
            ("a table", "CREATE TABLE fine(a)"),
        ]
    )
    assert [one.split(":")[0] for one in found] == ["a table", "a view"]


def test_files_of_a_node_are_private_to_their_owner(node: TestNode, tmp_path: Path) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    node.engine.flush()
    node.engine.background.snapshot_to(tmp_path / "copy.db")
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {"A.db", "A.db-wal", "A.db-shm", "A.db.lock", "copy.db"} <= set(names)
    assert set(names.values()) == {0o600}
    assert not others_may_read(tmp_path / "A.db")
    (tmp_path / "A.db").chmod(0o640)
    assert others_may_read(tmp_path / "A.db")

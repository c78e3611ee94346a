"""The tables that a client finds in the catalogue: the user's, and the node's if they are named."""

import apsw
import pytest

from bedrockish.engine.statements.catalogue import with_users_tables


@pytest.fixture
def db() -> apsw.Connection:
    found = apsw.Connection(":memory:")
    found.execute("CREATE TABLE bedrockish_x(a PRIMARY KEY); CREATE TABLE t(a); CREATE INDEX i ON t(a)")
    found.execute("CREATE TEMP VIEW bedrockish_y AS SELECT 1; CREATE TEMP TABLE mine(a)")
    return found


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT name FROM sqlite_master", ["t", "i"]),
        ("SELECT name FROM sqlite_schema;", ["t", "i"]),
        ('SELECT "name" FROM main."sqlite_master" ORDER BY rowid DESC', ["i", "t"]),
        ("SELECT main.sqlite_master.name FROM main.sqlite_master WHERE type = 'table'", ["t"]),
        ("WITH RECURSIVE a AS (SELECT name FROM SQLITE_MASTER) SELECT * FROM a", ["t", "i"]),
        ("SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) p", ["t"]),
        ("SELECT name FROM sqlite_temp_master", ["mine"]),
        ("SELECT s.name FROM temp.sqlite_temp_schema s ORDER BY rowid", ["mine"]),
        ("SELECT m.name FROM temp.sqlite_master AS m", ["mine"]),
        ("SELECT name FROM temp.sqlite_schema", ["mine"]),
        ("SELECT name FROM sqlite_temp_master UNION ALL SELECT name FROM sqlite_master", ["mine", "t", "i"]),
        ("SELECT name FROM pragma_table_list WHERE name NOT LIKE 'sqlite%' ORDER BY 1", ["mine", "t"]),
        ("SELECT name FROM main.pragma_table_list WHERE name NOT LIKE 'sqlite%' ORDER BY 1", ["mine", "t"]),
        ("SELECT p.name FROM pragma_table_list() p WHERE p.name NOT LIKE 'sqlite%' ORDER BY 1", ["mine", "t"]),
        ('SELECT name FROM main . "PRAGMA_table_list" ( /**/ ) WHERE ncol = 1 ORDER BY 1', ["mine", "t"]),
        ("SELECT name FROM pragma_table_list('t')", ["t"]),
        ("SELECT count(*) FROM sqlite_master", [2]),
        ("SELECT name FROM sqlite_master WHERE name = 'bedrockish_x'", ["bedrockish_x"]),
        ("SELECT 'sqlite_master'", ["sqlite_master"]),
    ],
)
def test_the_catalogue_lists_the_user_s_tables(db: apsw.Connection, sql: str, rows: list[object]) -> None:
    assert [value for (value,) in db.execute(with_users_tables(sql))] == rows


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO seen SELECT name FROM sqlite_master RETURNING n",
        "REPLACE INTO seen SELECT name FROM main.sqlite_schema RETURNING n",
        "WITH a(b) AS (SELECT name FROM sqlite_master) INSERT INTO seen SELECT b FROM a RETURNING n",
        "UPDATE seen SET n = m.name FROM sqlite_master AS m WHERE m.tbl_name = 't' AND seen.n = m.type RETURNING n",
        "DELETE FROM seen WHERE n IN (SELECT type FROM sqlite_master) RETURNING substr(n, -2) = 'ex'",
        "VALUES ((SELECT name FROM sqlite_master LIMIT 1)), ((SELECT max(name) FROM sqlite_temp_master))",
    ],
)
def test_a_statement_that_writes_finds_the_user_s_tables(db: apsw.Connection, sql: str) -> None:
    db.execute("CREATE TEMP TABLE seen(n); INSERT INTO seen VALUES ('table'), ('index'), ('view')")
    found = [value for (value,) in db.execute(with_users_tables(sql))]
    assert found == {"VALUES": ["t", "seen"], "DELETE": [0, 1]}.get(sql[:6], ["t", "i"])


def test_the_catalogue_is_not_writable_by_a_rewritten_statement(db: apsw.Connection) -> None:
    for sql in (
        "DELETE FROM sqlite_master",
        "UPDATE main.sqlite_schema SET sql = ''",
        "INSERT INTO sqlite_schema VALUES (1)",
    ):
        with pytest.raises(apsw.SQLError, match="may not be modified"):
            db.execute(with_users_tables(sql))


def test_pragma_table_list_keeps_its_columns(db: apsw.Connection) -> None:
    for sql in ("PRAGMA table_list", "pragma main.table_list;", "PRAGMA temp.table_list"):
        plain, ours = db.execute(sql), db.execute(with_users_tables(sql))
        assert [one[0] for one in plain.description] == [one[0] for one in ours.description]
        assert sorted(ours) == sorted(row for row in plain if not row[1].startswith("bedrockish_"))


@pytest.mark.parametrize(
    "sql",
    ["SELECT rowid, * FROM sqlite_master", "SELECT 1; SELECT * FROM sqlite_master", "'", "SELECT pragma_table_list ("],
)
def test_statement_that_names_no_catalogue_table_is_not_rewritten(sql: str) -> None:
    assert with_users_tables(sql) == sql

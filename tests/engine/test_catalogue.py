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
        ("SELECT count(*) FROM sqlite_master", [2]),
        ("SELECT name FROM sqlite_master WHERE name = 'bedrockish_x'", ["bedrockish_x"]),
        ("SELECT 'sqlite_master'", ["sqlite_master"]),
    ],
)
def test_the_catalogue_lists_the_user_s_tables(db: apsw.Connection, sql: str, rows: list[object]) -> None:
    assert [value for (value,) in db.execute(with_users_tables(sql))] == rows


def test_pragma_table_list_keeps_its_columns(db: apsw.Connection) -> None:
    for sql in ("PRAGMA table_list", "pragma main.table_list;", "PRAGMA temp.table_list"):
        plain, ours = db.execute(sql), db.execute(with_users_tables(sql))
        assert [one[0] for one in plain.description] == [one[0] for one in ours.description]
        assert sorted(ours) == sorted(row for row in plain if not row[1].startswith("bedrockish_"))


@pytest.mark.parametrize("sql", ["SELECT rowid, * FROM sqlite_master", "SELECT 1; SELECT * FROM sqlite_master", "'"])
def test_statement_that_names_no_catalogue_table_is_not_rewritten(sql: str) -> None:
    assert with_users_tables(sql) == sql

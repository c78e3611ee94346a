"""INSERTs of random shapes: the result of the node compared with that of plain SQLite for the same text."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from bedrockish.api.requests import Request, Statement, decode_results
from bedrockish.errors import BedrockishError
from tests.engine.nodes import TestNode, ids_like_sqlite

SCHEMA = """
CREATE TABLE t(name TEXT UNIQUE, id INTEGER PRIMARY KEY, v AS (name || n), n INT DEFAULT 7);
CREATE TABLE h(name, n DEFAULT 'x');
CREATE TABLE watched(id INTEGER PRIMARY KEY, name UNIQUE, n);
CREATE TRIGGER watch BEFORE INSERT ON watched BEGIN SELECT raise(IGNORE) WHERE new.name = 'three'; END;
CREATE TRIGGER look AFTER INSERT ON watched BEGIN UPDATE watched SET n = n || '!' WHERE id = new.id; END;
"""
ROWS = "INSERT INTO t(name, id, n) VALUES ('one', 1, 1), ('two', 2, 2); INSERT INTO watched VALUES (1, 'one', 1)"
NAMES = ("'one'", "'two'", "'three'", "'it''s, (four'", "NULL", ":name", "(SELECT 'six')", "lower('SEVEN')")
IDS = ("NULL", "NULL", ":none", ":id", "-5", "nullif(1, 1)", "(SELECT NULL /* ) */)", "1000")
COLUMNS = {"t": ("name", "id", "n"), "h": ("name", "n"), "watched": ("id", "name", "n")}
VERBS = ("INSERT", "insert", "INSERT OR ABORT", "INSERT OR IGNORE", "INSERT OR REPLACE", "REPLACE", "INSERT OR FAIL")
PARAMS = {"name": "five", "none": None, "id": 40}


@st.composite
def insert(draw: st.DrawFn) -> tuple[str, str]:
    """Draw an INSERT and its table."""
    table = draw(st.sampled_from(sorted(COLUMNS)))
    columns = COLUMNS[table]
    listed = draw(st.booleans())
    chosen = draw(st.permutations(columns)) if listed else columns
    chosen = chosen[: draw(st.integers(1, len(chosen)))] if listed else chosen
    target = draw(st.sampled_from([table, f'"{table}"', f"main.{table}", f"[{table}] AS other", f"/* x( */ {table}\n"]))
    rows = draw(st.lists(st.tuples(*(_value(column) for column in chosen)), min_size=1, max_size=3))
    text = draw(st.sampled_from(VERBS)) + f" INTO {target}" + (f"({', '.join(chosen)})" if listed else "")
    kind = draw(st.sampled_from(["values", "values", "select", "union", "with", "default"]))
    before, after = "", ""
    if kind == "default":
        text = text.partition("(name")[0] if not listed else text[: text.rindex("(")]
        text += " DEFAULT VALUES"
    elif kind == "values":
        text += " VALUES " + ",".join(f"({', '.join(row)})" for row in rows)
    elif kind == "select":
        text += f" SELECT {', '.join(rows[0])} FROM t AS source WHERE true ORDER BY source.id DESC"
        text += draw(st.sampled_from(["", " LIMIT 1"]))
    elif kind == "union":
        text += " " + " UNION ALL ".join(f"SELECT {', '.join(row)} WHERE true" for row in rows)
    else:
        before = f"WITH source AS (VALUES ({', '.join(rows[0])})) "
        text += " SELECT * FROM source WHERE true"
    if kind != "default" and "name" in chosen and table != "h":
        after = draw(st.sampled_from(["", "", " ON CONFLICT DO NOTHING", " ON CONFLICT(name) DO UPDATE SET n = 9"]))
    returning = draw(
        st.sampled_from(["", "", " RETURNING name, n", " RETURNING *;", " -- nothing", " RETURNING rowid + 0"])
    )
    return before + text + after + returning, table


def _value(column: str) -> st.SearchStrategy[str]:
    return st.sampled_from({"name": NAMES, "id": IDS}.get(column, ("1", "'x'", "NULL", "random() * 0")))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestNode, sqlite3.Connection]]:
    node = ids_like_sqlite(TestNode(tmp_path_factory.mktemp("random") / "a.db"))
    alone = sqlite3.connect(":memory:", isolation_level=None)
    alone.executescript(SCHEMA + ROWS)
    node.run(SCHEMA)
    node.run(ROWS)
    yield node, alone
    node.engine.close()
    alone.close()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=insert())
def test_random_inserts_match_plain_sqlite(both: tuple[TestNode, sqlite3.Connection], drawn: tuple[str, str]) -> None:
    node, alone = both
    sql, table = drawn
    # A row that is ignored or replaced may have its id for nothing, and then those after it get others.
    exact = not any(word in sql.upper() for word in ("IGNORE", "REPLACE", "ON CONFLICT")) and table != "watched"
    what = "*, rowid" if exact else "name, n"
    look = f"SELECT {what} FROM {table} ORDER BY name, n, rowid"
    with_id = "RETURNING *" in sql or "RETURNING rowid" in sql

    alone.execute("BEGIN")
    expected: Any
    try:
        # One text has all parameters, used or not: the standard library takes them by name.
        rows = alone.execute(sql, PARAMS).fetchall()
        expected = (rows if exact or not with_id else len(rows), alone.execute(look).fetchall())
    except sqlite3.Error as error:
        expected = str(error)
    alone.execute("ROLLBACK")

    found: Any
    try:
        prepared = node.engine.execute(Request("c", (Statement(sql, PARAMS), Statement(look))))
        first, second = decode_results(prepared.result)
        found = (first.rows if exact or not with_id else len(first.rows), second.rows)
    except BedrockishError as error:
        found = error.message
    event("an error" if isinstance(found, str) else "rewritten" if _rewritten(node, sql) else "left alone")
    assert found == expected


def _rewritten(node: TestNode, sql: str) -> bool:
    (piece,) = node.engine._executor.texts._all.texts[sql]
    return piece.with_ids is not None

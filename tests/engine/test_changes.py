"""``bedrockish_changes``: the journal as a table, with filters that are looked up instead of scanned."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bedrockish.engine.statements import changes_vtab as changes
from bedrockish_journal.feed import change_feed as feed
from tests.engine.nodes import TestNode, request
from tests.engine.test_versions import decide


@pytest.fixture
def shop(node: TestNode) -> TestNode:
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, name, price REAL)", "CREATE TABLE note(text)")
    node.run("CREATE TABLE pair(left, right, PRIMARY KEY(left, right)) WITHOUT ROWID")
    node.run("INSERT INTO item VALUES (7, 'cup', 2.5), (8, x'00ff', 9e999)", "INSERT INTO note VALUES ('hello')")
    node.run("UPDATE item SET price = 3 WHERE id = 7")
    node.run("INSERT INTO pair VALUES ('a', 1)", "DELETE FROM item WHERE id = 8", "UPDATE item SET id = 9 WHERE id = 7")
    return node


def decoded(shop: TestNode, monkeypatch: pytest.MonkeyPatch, sql: str, params: Any = None) -> tuple[list[Any], int]:
    """Return the rows, and how many entries of the journal were decoded for them."""
    count = 0
    real = feed.committed

    def counting(*arguments: Any) -> feed.Committed:
        nonlocal count
        count += 1
        return real(*arguments)

    monkeypatch.setattr("bedrockish.engine.statements.changes_vtab.committed", counting)
    return shop.rows(sql, params), count


def test_each_change_is_a_row_in_the_order_of_the_clock(shop: TestNode) -> None:
    found = shop.rows("SELECT clock, leader, seq, transaction_id, op, table_name, row_key FROM bedrockish_changes")
    assert found == [
        (1, "A", 0, "A1", None, None, None),
        (1, "A", 1, "A1", None, None, None),
        (2, "A", 0, "A2", None, None, None),
        (3, "A", 0, "A3", "INSERT", "item", 7),
        (3, "A", 1, "A3", "INSERT", "item", 8),
        (3, "A", 2, "A3", "INSERT", "note", 1),
        (4, "A", 0, "A4", "UPDATE", "item", 7),
        (5, "A", 0, "A5", "INSERT", "pair", '["a", 1]'),
        (5, "A", 1, "A5", "DELETE", "item", 8),
        (5, "A", 2, "A5", "UPDATE", "item", 9),
    ]


def test_changes_table_has_row_images_statements_and_places(shop: TestNode) -> None:
    before, after = shop.rows(
        "SELECT row_before, row_after FROM bedrockish_changes WHERE op = 'UPDATE' AND row_key = 7"
    )[0]
    assert json.loads(before) == {"id": 7, "name": "cup", "price": 2.5}
    assert json.loads(after) == {"id": 7, "name": "cup", "price": 3.0}
    odd = shop.rows("SELECT row_before, row_after FROM bedrockish_changes WHERE op = 'DELETE'")[0]
    assert json.loads(odd[0]) == {"id": 8, "name": {"base64": "AP8="}, "price": {"float": "inf"}}
    assert odd[1] is None
    kinds = shop.rows("SELECT DISTINCT kind, timeline, tick, at FROM bedrockish_changes WHERE clock = 1")
    assert kinds == [("schema", "A", 1, "1970-01-01 00:00:00.000")]
    assert (
        "CREATE TABLE note" in shop.rows("SELECT statement FROM bedrockish_changes WHERE clock = 1 AND seq = 1")[0][0]
    )


@pytest.mark.parametrize(
    ("where", "params", "most"),
    [
        ("clock > 3", None, 2),
        ("clock BETWEEN 2 AND 3", None, 2),
        ("clock = 4", None, 1),
        ("clock >= ? AND clock < 5", [3], 2),
        ("transaction_id = 'A4'", None, 1),
        ("transaction_id IN ('A4', 'A5')", None, 2),
        ("table_name = 'pair'", None, 1),
        ("table_name = 'note' AND clock >= 3", None, 1),
        ("table_name = ? AND row_key = ?", ["item", 8], 3),
        ("table_name = 'nothing'", None, 0),
        ("clock > 99", None, 0),
        ("table_name = 'ITEM' COLLATE NOCASE", None, 5),
        ("op = 'DELETE'", None, 5),
        ("table_name = NULL", None, 0),
        ("clock > '3'", None, 5),
    ],
)
def test_filters_on_changes_are_looked_up(
    shop: TestNode, monkeypatch: pytest.MonkeyPatch, where: str, params: Any, most: int
) -> None:
    """Filters return the same rows as a scan, without decoding the whole journal."""
    shop.run("CREATE TABLE copied(clock INTEGER, transaction_id TEXT, op TEXT, table_name TEXT, row_key)")
    columns = "clock, transaction_id, op, table_name, row_key"
    everything = shop.rows(f"SELECT {columns} FROM bedrockish_changes WHERE clock < 6")
    shop.run(*[("INSERT INTO copied VALUES (?, ?, ?, ?, ?)", row) for row in everything])
    expected = shop.rows(f"SELECT * FROM copied WHERE ({where}) AND clock < 6", params)
    found, count = decoded(
        shop, monkeypatch, f"SELECT {columns} FROM bedrockish_changes WHERE ({where}) AND clock < 6", params
    )
    assert found == expected
    assert count <= most


OF_COMMAND = "SELECT row_key, joined FROM bedrockish_changes WHERE transaction_id = ?1"


def test_a_command_that_shares_a_transaction_is_found_by_its_id(
    shop: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = "INSERT INTO note(rowid) VALUES ({})"
    whose = {20: "ann", 21: "", 22: "bob"}
    requests = [replace(request(insert.format(n), command=f"c{n}"), user=user) for n, user in whose.items()]
    prepared = shop.engine.execute_together(requests, 3600.0)
    shop.apply(shop.entry(prepared, shared=True))  # A6 is both the transaction and the id of its first command
    assert shop.rows("SELECT count(*) FROM bedrockish_changes WHERE joined IS NOT NULL") == [(3,)]
    of = "SELECT transaction_id FROM bedrockish_changes WHERE joined IS NOT NULL"
    assert shop.rows(of) == [("A6",), ("c21",), ("c22",)]
    users = "SELECT row_key, user_name FROM bedrockish_changes WHERE joined IS NOT NULL"
    assert shop.rows(users) == [(20, "ann"), (21, None), (22, "bob")]
    assert shop.rows("SELECT DISTINCT user_name FROM bedrockish_changes WHERE joined IS NULL") == [(None,)]
    for number, command in ((20, "A6"), (21, "c21"), (22, "c22")):
        found, count = decoded(shop, monkeypatch, OF_COMMAND, [command])
        assert found == [(number, '["c21", "c22"]')]
        assert count == 1, "it is looked up"
    assert shop.rows(OF_COMMAND, ["A5"]) == [('["a", 1]', None), (8, None), (9, None)]
    assert shop.rows(OF_COMMAND, ["c99"]) == []


def test_changes_table_is_read_in_clock_order_without_sorting(shop: TestNode) -> None:
    plan = shop.rows("EXPLAIN QUERY PLAN SELECT * FROM bedrockish_changes ORDER BY clock, leader, seq")
    assert not [row for row in plan if "B-TREE" in str(row)]
    plan = shop.rows("EXPLAIN QUERY PLAN SELECT * FROM bedrockish_changes ORDER BY clock DESC")
    assert [row for row in plan if "B-TREE" in str(row)]
    clocks = [row[0] for row in shop.rows("SELECT clock FROM bedrockish_changes ORDER BY clock DESC")]
    assert clocks == sorted(clocks, reverse=True)


def test_table_of_changes_can_be_joined_grouped_and_limited(shop: TestNode) -> None:
    found = shop.rows(
        "SELECT i.id, count(*) FROM item AS i JOIN bedrockish_changes AS c "
        "ON c.table_name = 'item' AND c.row_key = i.id GROUP BY i.id"
    )
    assert found == [(9, 1)]
    assert shop.rows("SELECT clock FROM bedrockish_changes LIMIT 1") == [(1,)]
    shop.run("INSERT INTO note SELECT op || ' ' || row_key FROM bedrockish_changes WHERE table_name = 'item'")
    assert shop.rows("SELECT count(*) FROM note")[0][0] == 6
    assert shop.rows("SELECT count(*) FROM bedrockish_changes WHERE transaction_id = 'A6'") == [(5,)]


def test_table_of_changes_is_not_in_the_schema_and_cannot_be_written(shop: TestNode) -> None:
    shop.rows("SELECT * FROM bedrockish_changes")
    assert not shop.rows("SELECT * FROM sqlite_schema WHERE name = 'bedrockish_changes'")
    with pytest.raises(Exception, match=r"can only be read|may not be modified"):
        shop.run("DELETE FROM bedrockish_changes")
    with pytest.raises(Exception, match="choose another name"):
        shop.run("CREATE TABLE bedrockish_changes(a)")
    shop.run("CREATE VIEW events AS SELECT table_name, row_key, op FROM bedrockish_changes ORDER BY clock")
    assert len(shop.rows("SELECT * FROM events WHERE table_name = 'item'")) == 5


def test_changes_table_lists_a_schema_change_at_its_activation(shop: TestNode) -> None:
    """The change comes after the commits between its decision and that moment; a change that the data forbade is left
    out.
    """
    entry = decide(shop, "CREATE TABLE made(x)", "INSERT INTO made SELECT count(*) FROM item", after=1)
    shop.run("INSERT INTO note VALUES ('between')")
    query = "SELECT kind, op, table_name, statement FROM bedrockish_changes WHERE clock > ? ORDER BY clock, leader, seq"
    assert shop.rows(query, [entry.txid.clock - 1]) == [("rows", "INSERT", "note", None)]
    shop.engine.versions.activate(entry.txid)
    failing = decide(shop, "CREATE UNIQUE INDEX one ON item(1)", after=1)
    shop.run("INSERT INTO item VALUES (20, 'x', 1), (21, 'y', 2)")
    assert shop.engine.versions.activate(failing.txid)
    assert shop.rows(query, [entry.txid.clock - 1]) == [
        ("rows", "INSERT", "note", None),
        ("schema", None, None, "CREATE TABLE made(x)"),
        ("schema", None, None, "INSERT INTO made SELECT count(*) FROM item"),
        ("rows", "INSERT", "item", None),
        ("rows", "INSERT", "item", None),
        ("schema", None, None, None),
    ]
    assert shop.rows("SELECT clock FROM bedrockish_changes WHERE statement LIKE '%made(x)'") == [
        (entry.txid.clock + 1,)
    ]
    plan = [row[3] for row in shop.rows(f"EXPLAIN QUERY PLAN {changes._QUERY.format('', '')}")]
    assert sum("TEMP B-TREE" in line for line in plan) == 1  # a sort of the few schema changes, not of the journal

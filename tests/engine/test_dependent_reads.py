"""Reads that depend on earlier rows: exactly the keys in these rows, or the whole object, and never less."""

from itertools import islice

import apsw
import pytest

from bedrockish.access_sets import sources
from bedrockish.access_sets.catalog import read_schema
from bedrockish.access_sets.dependent_reads import TOO_MANY
from bedrockish.access_sets.key_encoding import Spec, column_key, encode, table_key
from bedrockish.access_sets.loop_stops import _written
from bedrockish.access_sets.query_names import connection_query
from bedrockish.access_sets.readset import analyse, program_of
from bedrockish_journal.model.access_set import HIGH, Range, conflict, object_range
from bedrockish_journal.model.changes import INSERT, UPDATE, Change
from tests.engine.index_keys import index_prefix, prefix_range
from tests.engine.nodes import TestNode

DDL = """
CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER, total INTEGER DEFAULT 0);
CREATE INDEX by_customer ON orders(customer);
CREATE TABLE items(id INTEGER PRIMARY KEY, order_id INTEGER, product TEXT, qty INTEGER);
CREATE INDEX by_order ON items(order_id);
CREATE TABLE products(code TEXT PRIMARY KEY, maker INTEGER) WITHOUT ROWID;
CREATE TABLE folders(id INTEGER PRIMARY KEY, parent INTEGER);
CREATE INDEX by_parent ON folders(parent);
CREATE TABLE loose(k);
CREATE TABLE texts(k TEXT PRIMARY KEY);
CREATE TRIGGER sums AFTER INSERT ON items BEGIN
    UPDATE orders SET total = total + new.qty WHERE id = new.order_id;
END;
INSERT INTO customers VALUES (1, 'ann'), (2, 'bob');
INSERT INTO orders(id, customer) VALUES (10, 1), (11, 1), (20, 2), (30, 3);
INSERT INTO items VALUES (100, 10, 'p', 1), (101, 10, 'q', 2), (200, 20, 'r', 3);
INSERT INTO products VALUES ('p', 7), ('q', 7), ('r', 8);
INSERT INTO folders VALUES (1, NULL), (2, 1), (3, 2), (4, NULL);
"""


def row_key(table: str, rowid: int) -> bytes:
    """Return the key under which a row is read by its columns."""
    return b"u:" + table.encode() + b"\0" + encode(rowid)


@pytest.fixture
def db() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(DDL).fetchall()
    return connection


def reads(db: apsw.Connection, sql: str, *params: object) -> tuple[set[bytes], set[Range]]:
    plan = analyse(db, read_schema(db), sql, len(params))
    resolved = plan.resolve(params, connection_query(db))
    points, ranges = resolved.keys()
    assert {reason for reason, _ in resolved.fallbacks} <= {"Rewind with no bound"}
    return set(points), set(ranges)


def entries(index: str, *values: object) -> set[Range]:
    return {prefix_range(index_prefix(index, [value], (Spec(),))) for value in values}


def product(code: str) -> bytes:
    return b"t:products\0" + encode(code)


def test_join_reads_the_inner_table_at_the_keys_of_the_outer_rows(db: apsw.Connection) -> None:
    sql = "SELECT o.id, i.product FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = ?"
    assert reads(db, sql, 1) == (set(), entries("by_customer", 1) | entries("by_order", 10, 11))


def test_missing_row_of_a_join_counts_as_read(db: apsw.Connection) -> None:
    sql = "SELECT o.id, i.product FROM orders o LEFT JOIN items i ON i.order_id = o.id WHERE o.id = ?"
    assert reads(db, sql, 30) == ({row_key("orders", 30)}, entries("by_order", 30))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM items WHERE order_id IN (SELECT id FROM orders WHERE customer = ?)",
        "SELECT * FROM orders o WHERE customer = ? AND EXISTS (SELECT 1 FROM items WHERE order_id = o.id AND qty > 5)",
        "SELECT id, (SELECT count(*) FROM items WHERE order_id = o.id) FROM orders o WHERE customer = ?",
        "DELETE FROM items WHERE order_id IN (SELECT id FROM orders WHERE customer = ?)",
        "UPDATE items SET qty = 0 FROM orders o WHERE o.id = order_id AND o.customer = ?",
    ],
)
def test_subqueries_read_only_the_keys_that_they_look_up(db: apsw.Connection, sql: str) -> None:
    points, ranges = reads(db, sql, 1)
    assert ranges == entries("by_customer", 1) | entries("by_order", 10, 11)
    assert all(point.startswith(b"t:items\0") for point in points)


def test_between_two_columns_of_an_outer_row_reads_a_range_with_both_ends(db: apsw.Connection) -> None:
    sql = "SELECT i.id FROM orders o JOIN items i ON i.order_id BETWEEN o.customer AND o.id WHERE o.id = ?"
    low, high = index_prefix("by_order", [2], (Spec(),)), index_prefix("by_order", [20], (Spec(),)) + HIGH
    order = row_key("orders", 20)
    assert reads(db, sql, 20) == ({order, column_key(order, "customer")}, {(low, high)})


def test_rows_that_an_update_collects_first_are_in_its_read_set(db: apsw.Connection) -> None:
    db.execute("CREATE INDEX by_qty ON items(qty)")
    points, ranges = reads(db, "UPDATE items SET qty = qty + 1 WHERE qty = ?", 2)
    assert ranges == entries("by_qty", 2)
    assert points <= {b"t:items\0" + encode(None)}


def test_upsert_reads_no_row_whose_rowid_is_the_counter(db: apsw.Connection) -> None:
    """If the counter were taken for a rowid, the statement would conflict with the writers of unrelated rows."""
    db.execute("CREATE TABLE counted(id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER)")
    db.execute("INSERT INTO counted VALUES (1, 'a', 5), (5, 'b', 1), (6, 'c', 1)")
    sql = "INSERT INTO counted VALUES (77, ?, 5) ON CONFLICT(name) DO UPDATE SET n = n + 1"
    points, ranges = reads(db, sql, "a")
    assert (points, ranges) == (set(), entries("sqlite_autoindex_counted_1", "a"))


def test_joins_of_several_levels_are_followed(db: apsw.Connection) -> None:
    sql = (
        "SELECT * FROM customers c JOIN orders o ON o.customer = c.id JOIN items i ON i.order_id = o.id "
        "JOIN products p ON p.code = i.product WHERE c.id = ?"
    )
    points, ranges = reads(db, sql, 1)
    assert points == {table_key("customers", 1), product("p"), product("q")}
    assert ranges == entries("by_customer", 1) | entries("by_order", 10, 11)


def test_recursive_query_is_followed_to_its_end(db: apsw.Connection) -> None:
    sql = (
        "WITH RECURSIVE below(id) AS (SELECT ? UNION SELECT f.id FROM folders f JOIN below b ON f.parent = b.id) TABLE"
    )
    sql = sql.replace("TABLE", "SELECT * FROM below")
    assert reads(db, sql, 1) == (set(), entries("by_parent", 1, 2, 3))


def test_trigger_reads_at_the_keys_of_the_new_row(db: apsw.Connection) -> None:
    points, ranges = reads(db, "INSERT INTO items(id, order_id, qty) VALUES (?, ?, 1)", 300, 11)
    assert (points, ranges) == ({table_key("orders", 11)}, set())
    points, ranges = reads(db, "INSERT INTO items SELECT id + 1000, order_id, 'x', 1 FROM items WHERE order_id = ?", 10)
    assert table_key("orders", 10) in points
    assert not any(low.startswith(b"t:orders\0") for low, _ in ranges)


def test_lookup_of_a_number_in_texts_follows_the_affinity_of_sqlite(db: apsw.Connection) -> None:
    """As numbers, 1 and 1.0 are equal; as texts, they are not."""
    db.execute("INSERT INTO loose VALUES (1), (1.0)")
    _, ranges = reads(db, "SELECT * FROM loose l CROSS JOIN texts t ON t.k = +l.k")
    assert ranges >= entries("sqlite_autoindex_texts_1", "1", "1.0")


def test_dependent_read_of_too_many_keys_reads_the_whole_index(
    db: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "KEYS_MAX", 1)
    sql = "SELECT * FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = ?"
    plan = analyse(db, read_schema(db), sql, 1)
    resolved = plan.resolve((1,), connection_query(db))
    assert object_range("i:by_order") in resolved.keys()[1]
    assert set(resolved.fallbacks) == {(TOO_MANY, "i:by_order")}


def test_reads_include_the_intermediate_values_of_changed_rows(db: apsw.Connection) -> None:
    sql = "SELECT * FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = ?"
    resolved = analyse(db, read_schema(db), sql, 1).resolve((1,), connection_query(db))
    change = Change("orders", ("id", "customer", "total"), UPDATE, 20, 21, (20, 2, 0), (21, 1, 0))
    assert set(resolved.complete([change], [])[1]) >= entries("by_order", 10, 11, 20, 21)


def test_failed_auxiliary_query_counts_as_a_read_of_the_whole_index(db: apsw.Connection) -> None:
    def fails(_sql: str, _many: object) -> list[tuple[object, ...]]:
        raise apsw.InterruptError

    sql = "SELECT * FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = ?"
    resolved = analyse(db, read_schema(db), sql, 1).resolve((1,), fails)
    assert object_range("i:by_order") in resolved.keys()[1]


def test_join_conflicts_only_with_writes_of_joined_rows(node: TestNode) -> None:
    node.run(DDL.split("CREATE TRIGGER")[0])
    node.run("INSERT INTO orders(id, customer) VALUES (10, 1), (20, 2)")
    node.run("INSERT INTO items VALUES (100, 10, 'p', 1), (200, 20, 'r', 3)")
    joined = node.prepare("SELECT i.id FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = 1").access_set
    assert set(joined.read_ranges) == entries("by_customer", 1) | entries("by_order", 10)
    # Later statements of a request see the writes of earlier ones.
    later = node.prepare(
        "INSERT INTO orders(id, customer) VALUES (11, 1)",
        "SELECT i.id FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = 1",
    ).access_set
    assert set(later.read_ranges) >= entries("by_order", 10, 11)


QUEUE = """
CREATE TABLE jobs(id INTEGER PRIMARY KEY, state TEXT, due INTEGER, worker TEXT);
CREATE INDEX by_state ON jobs(state, id);
CREATE INDEX by_due ON jobs(due);
CREATE TABLE plain(id INTEGER PRIMARY KEY, state TEXT);
CREATE TABLE some(id INTEGER PRIMARY KEY, state TEXT);
CREATE INDEX new_ones ON some(id) WHERE state = 'new';
INSERT INTO jobs(id, state, due) VALUES (1, 'done', 10), (2, 'new', 30), (3, 'new', 20), (4, 'new', 40), (9, 'new', 50);
INSERT INTO plain SELECT id, state FROM jobs;
INSERT INTO some SELECT id, state FROM jobs;
"""
NEW = Spec(), Spec(), Spec()


def job(number: int) -> bytes:
    return index_prefix("by_state", ["new", number, number], NEW)


@pytest.fixture
def queue() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(QUEUE).fetchall()
    return connection


FIRST_NEW = index_prefix("by_state", ["new"], NEW)


@pytest.mark.parametrize(
    ("sql", "params", "last"),
    [
        ("SELECT * FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1", (), 2),
        ("SELECT * FROM jobs WHERE state = ? ORDER BY id LIMIT ?", ("new", 2), 3),
        ("SELECT * FROM jobs WHERE state = ? ORDER BY id LIMIT ? OFFSET ?", ("new", 1, 2), 4),
        ("SELECT id FROM jobs WHERE state = ? AND due >= ? AND worker IS NULL ORDER BY id LIMIT 1", ("new", 35), 4),
        ("SELECT EXISTS (SELECT 1 FROM jobs INDEXED BY by_state WHERE state = 'new' AND due = 20)", (), 3),
        ("SELECT min(id) FROM jobs WHERE state = 'new'", (), 2),
        ("DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 2)", (), 3),
        (
            "UPDATE jobs SET state = 'taken' WHERE id = (SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1) "
            "RETURNING id",
            (),
            2,
        ),
    ],
)
def test_a_loop_reads_up_to_the_row_with_which_it_ends(
    queue: apsw.Connection, sql: str, params: tuple[object, ...], last: int
) -> None:
    points, ranges = reads(queue, sql, *params)
    assert ranges == {(FIRST_NEW, job(last) + HIGH)}
    assert points <= {b"t:jobs\0" + encode(None)}  # the result of the subquery when no row matches


def test_loop_without_an_index_reads_up_to_its_last_row(queue: apsw.Connection) -> None:
    _, ranges = reads(queue, "SELECT id FROM plain WHERE state = 'new' ORDER BY id LIMIT 1")
    assert ranges == {(b"t:plain\0", table_key("plain", 2) + HIGH)}
    _, ranges = reads(queue, "SELECT max(id) FROM plain")
    assert ranges == {(table_key("plain", 9), b"t:plain\0" + HIGH)}
    _, ranges = reads(queue, "SELECT id FROM some WHERE state = 'new' ORDER BY id LIMIT 1")
    assert ranges == {(b"i:new_ones\0", index_prefix("new_ones", [2, 2], NEW) + HIGH)}


def test_descending_loop_reads_down_to_its_last_row(queue: apsw.Connection) -> None:
    _, ranges = reads(queue, "SELECT id FROM jobs WHERE state = 'new' ORDER BY id DESC LIMIT 2")
    assert ranges == {(job(4), FIRST_NEW + HIGH)}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 5",  # there are only four rows
        "SELECT id FROM jobs WHERE state = 'new' AND due % 7 = 5 ORDER BY id LIMIT 1",  # not understood
        "SELECT id FROM jobs WHERE state = 'new' AND (due = 20 OR due = 30) ORDER BY id LIMIT 1",
        # SQLite sorts all rows first
        "SELECT id FROM jobs INDEXED BY by_state WHERE state = 'new' ORDER BY due LIMIT 1",
        "UPDATE jobs SET due = (SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1) WHERE state = 'new'",
    ],
)
def test_loop_with_unknown_end_reads_its_whole_range(queue: apsw.Connection, sql: str) -> None:
    _, ranges = reads(queue, sql)
    assert (FIRST_NEW, FIRST_NEW + HIGH) in ranges


def test_register_number_is_not_taken_for_a_jump_address() -> None:
    """In this statement BeginSubrtn clears a register whose number is the address of an instruction in the loop."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE jobs(id INTEGER PRIMARY KEY, state TEXT NOT NULL, worker INTEGER)")
    db.execute("CREATE INDEX by_state ON jobs(state, id)")
    db.execute("INSERT INTO jobs VALUES (1, 'done', NULL), (2, 'new', NULL), (3, 'new', NULL)")
    first = "(SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1)"
    _, ranges = reads(db, f"UPDATE jobs SET state = 'taken' WHERE id = {first} RETURNING id")
    assert ranges == {(FIRST_NEW, index_prefix("by_state", ["new", 2, 2], NEW) + HIGH)}


ORDERS = """
CREATE INDEX by_total ON orders(total, id);
INSERT INTO orders VALUES (40, 9, 5), (41, 1, 5), (42, NULL, 5), (43, 2, 5), (44, 1, 5);
"""


@pytest.mark.parametrize(
    ("sql", "last", "customers"),
    [
        # orders 40 and 42 have no customer
        ("SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer WHERE o.total = 5 ORDER BY o.id "
         "LIMIT 2", 43, {9, 1, 2}),
        ("SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer WHERE o.total = 5 ORDER BY o.id "
         "LIMIT 2", 41, {9, 1}),
        ("SELECT q.id, c.name FROM (SELECT id, customer FROM orders WHERE total = 5 ORDER BY id LIMIT 2) q "
         "LEFT JOIN customers c ON c.id = q.customer", 41, {9, 1}),
        ("SELECT o.id, c.name, d.name FROM orders o LEFT JOIN customers c ON c.id = o.customer "
         "LEFT JOIN customers d ON d.id = c.id WHERE o.total = 5 ORDER BY o.id LIMIT 1", 40, {9}),
    ],
)  # fmt: skip
def test_a_join_reads_up_to_the_row_with_which_it_ends(
    db: apsw.Connection, sql: str, last: int, customers: set[int]
) -> None:
    db.execute(ORDERS)
    points, ranges = reads(db, sql)
    specs = Spec(), Spec(), Spec()
    end = index_prefix("by_total", [5, last, last], specs) + HIGH
    assert ranges == {(index_prefix("by_total", [5], specs), end)}
    assert points - {b"t:customers\0" + encode(None)} == {table_key("customers", number) for number in customers}


def test_join_with_unindexed_conditions_reads_its_whole_range(db: apsw.Connection) -> None:
    db.execute(ORDERS)
    for more in ("AND c.name || '' <> 'x'", "AND length(o.id) > 1", "AND c.name <> o.id"):
        sql = f"SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer WHERE o.total = 5 {more} LIMIT 1"
        assert prefix_range(index_prefix("by_total", [5], (Spec(),))) in reads(db, sql)[1]


@pytest.mark.parametrize(
    ("more", "last"),
    [
        ("c.name = 'bob'", 43),
        ("c.name <> 'bob' AND o.id > 1", 41),
        ("c.name IS NOT NULL", 41),
        ("c.name > 'ann' AND c.id >= 2", 43),
    ],
)
def test_join_with_indexed_conditions_reads_up_to_the_last_match(db: apsw.Connection, more: str, last: int) -> None:
    db.execute(ORDERS)
    sql = f"SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer WHERE o.total = 5 AND {more} ORDER BY o.id"
    specs = Spec(), Spec(), Spec()
    end = index_prefix("by_total", [5, last, last], specs) + HIGH
    assert {high for _, high in reads(db, sql + " LIMIT 1")[1]} == {end}


def test_loop_stop_includes_conditions_on_a_second_joined_row(db: apsw.Connection) -> None:
    """The auxiliary query renames a table; a table that already has that name has no effect."""
    db.execute("ALTER TABLE customers RENAME TO rp0")
    db.execute("ALTER TABLE orders RENAME TO r")
    sql = (
        "SELECT i.id FROM items i JOIN r ON r.id = i.order_id JOIN rp0 c ON c.id = r.customer "
        "WHERE c.name = 'bob' ORDER BY i.id LIMIT 1"
    )
    db.execute("INSERT INTO items VALUES (300, 20, 's', 1)")
    points, ranges = reads(db, sql)
    assert {high for _, high in ranges} == {table_key("items", 200) + HIGH}
    orders = {row_key("r", 10), row_key("r", 20)}
    needed = {column_key(one, "customer") for one in orders}
    assert points == {table_key("rp0", 1), table_key("rp0", 2)} | orders | needed


def test_each_term_of_an_or_is_read_in_its_own_index(db: apsw.Connection) -> None:
    db.execute("CREATE INDEX by_qty ON items(qty)")
    _, ranges = reads(db, "SELECT * FROM items WHERE order_id = ? OR qty = ? OR order_id = 11", 20, 9)
    assert ranges == entries("by_order", 20, 11) | entries("by_qty", 9)
    sql = "SELECT i.id FROM orders o JOIN items i ON (i.order_id = o.id OR i.qty = o.total) WHERE o.customer = ?"
    _, ranges = reads(db, sql, 1)
    assert ranges == entries("by_customer", 1) | entries("by_order", 10, 11) | entries("by_qty", 0, 3)


def test_many_terms_of_an_or_are_looked_at_one_after_the_other(db: apsw.Connection) -> None:
    db.execute("CREATE INDEX by_qty ON items(qty)")
    terms = " OR ".join(f"(order_id = {n} AND product = 'p')" if n % 2 else f"qty = {n}" for n in range(400))
    plan = analyse(db, read_schema(db), f"SELECT * FROM items WHERE {terms}", 0)
    assert len(plan.bind(())[1]) == 400
    assert plan.fallbacks == ()


def test_maximum_of_a_column_reads_only_the_highest_entry(db: apsw.Connection) -> None:
    sql = "SELECT * FROM items WHERE order_id = (SELECT max(id) FROM orders WHERE customer = ?)"
    _, ranges = reads(db, sql, 1)
    assert ranges >= entries("by_order", 11)
    assert not ranges & {object_range("i:by_order"), object_range("t:items")}
    db.execute("CREATE INDEX by_qty ON items(qty, id)")
    points, _ = reads(db, "UPDATE items SET qty = 9 WHERE id = (SELECT min(id) FROM items WHERE qty = ?)", 2)
    assert points <= {b"t:items\0" + encode(None), table_key("items", 101)}


def test_trigger_on_a_view_reads_rows_by_the_views_values(db: apsw.Connection) -> None:
    db.execute("CREATE VIEW bills AS SELECT o.id, c.name, total FROM orders o JOIN customers c ON c.id = o.customer")
    change = "UPDATE orders SET total = new.total WHERE id = old.id"
    db.execute(f"CREATE TRIGGER billed INSTEAD OF UPDATE ON bills BEGIN {change}; END")
    points, ranges = reads(db, "UPDATE bills SET total = 5 WHERE id = ?", 20)
    assert points == {table_key("orders", 20), table_key("customers", 2)}
    assert ranges == set()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, 1.5 FROM orders LIMIT 1",
        "SELECT id, 12345678901234 FROM orders WHERE customer = 1 LIMIT 1",
        "SELECT total FROM orders WHERE total < 1e300 ORDER BY id LIMIT 2",
    ],
)
def test_constant_of_64_bits_is_not_read_as_register_numbers(db: apsw.Connection, sql: str) -> None:
    """One half of the constant is in the field where other instructions have the number of a register."""
    for op in program_of(db, sql, 0):
        assert len(list(islice(_written(op), 100))) < 100
    assert object_range("t:orders") not in reads(db, sql)[1]


def test_trigger_looks_up_by_the_assigned_id_of_its_row(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE notes(item INTEGER PRIMARY KEY, n INTEGER)")
    db.execute("CREATE TRIGGER noted AFTER INSERT ON items BEGIN UPDATE notes SET n = n + 1 WHERE item = new.id; END")
    plan = analyse(db, read_schema(db), "INSERT INTO items(order_id, qty) VALUES (10, 1)", 0)
    assert object_range("t:notes") in plan.bind(())[1], "before it has run, nobody knows"
    row = Change("items", (), INSERT, None, 777, None, (None, 10, None, 1))
    points, ranges = plan.resolve((), connection_query(db)).complete([row], [])
    assert table_key("notes", 777) in points
    assert not ranges


def test_workers_of_a_queue_conflict_on_the_job_only(node: TestNode) -> None:
    node.run(QUEUE)
    take = (
        "UPDATE jobs SET state = 'taken' WHERE id = (SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1) "
        "RETURNING id"
    )
    taken = node.prepare(take).access_set
    assert conflict(taken, node.prepare(take).access_set) is not None
    assert conflict(taken, node.prepare("INSERT INTO jobs(id, state) VALUES (10, 'new')").access_set) is None
    assert conflict(taken, node.prepare("UPDATE jobs SET state = 'done' WHERE id = 3").access_set) is None
    assert conflict(taken, node.prepare("INSERT INTO jobs(id, state) VALUES (0, 'new')").access_set) is not None

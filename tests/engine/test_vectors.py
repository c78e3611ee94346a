"""Vectors: rows of vec0 and vec1 are replicated, and each node searches its own copy."""

import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.access_sets.change_capture import Capture
from bedrockish.engine.statements.guard import Guard
from bedrockish.errors import ConfigError, ConstraintError, SqlError, UnsupportedError
from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.storage import vector_modules
from bedrockish_journal.verify.replay import digest, replay
from tests.engine.nodes import TestNode
from tests.engine.virtual_pair import Pair
from tools.cluster import clean_environment

pytest.importorskip("sqlite_vec")

COLUMNS = "id INTEGER PRIMARY KEY, e float[4], place TEXT PARTITION KEY, n INTEGER, +note TEXT"
VEC0 = f"CREATE VIRTUAL TABLE v USING vec0({COLUMNS})"
VEC1 = "CREATE VIRTUAL TABLE v USING vec1(e, place, n)"
NEAREST = "SELECT id, distance FROM v WHERE e MATCH ? AND k = 3 AND place = 'a' AND n > 1 ORDER BY distance"


def packed(*values: float) -> bytes:
    """Return a vector as both modules keep it."""
    return struct.pack(f"{len(values)}f", *values)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def check(pair: Pair, tmp_path: Path) -> None:
    """Check that both nodes have the same rows, and that a replay of their journals makes them."""
    for node in pair.nodes:
        node.save()
    made = replay([node.path for node in pair.nodes], tmp_path / "made.db", draw=random.Random(3).random).digest
    assert made == digest(pair.nodes[0].path) == digest(pair.nodes[1].path)


def test_rows_of_vec0_are_replicated_in_every_form_of_change(pair: Pair, tmp_path: Path) -> None:
    pair.run(0, VEC0)
    pair.run(
        0, "INSERT INTO v(id, e, place, n, note) VALUES (1, '[1,2,3,4]', 'a', 3, 'x'), (2, '[4,3,2,1]', 'a', 2, NULL)"
    )
    pair.run(1, "INSERT INTO v(e, place, n) VALUES ('[0,0,0,1]', 'a', 7), ('[0,0,0,2]', 'b', 7)")
    query = (NEAREST, ("[0,0,0,1]",))
    assert pair.query(*query)[0][1] == 0
    pair.run(1, "UPDATE v SET e = '[9,9,9,9]' WHERE id = 1")
    pair.run(0, "UPDATE v SET n = 5, note = 'y' WHERE id = 2; UPDATE v SET note = 'z' WHERE id = 1")
    pair.run(0, "DELETE FROM v WHERE place = 'b'")
    pair.run(1, "DELETE FROM v WHERE id = 2; INSERT INTO v(id, e, place, n) VALUES (2, '[1,1,1,1]', 'other', 1)")
    rows = pair.query("SELECT id, vec_to_json(e), place, n, note FROM v WHERE id < 3 ORDER BY id")
    assert [(row[0], json.loads(row[1]), *row[2:]) for row in rows] == [
        (1, [9, 9, 9, 9], "a", 3, "z"),
        (2, [1, 1, 1, 1], "other", 1, None),
    ]
    check(pair, tmp_path)


def test_update_of_one_vector_writes_one_row_among_many(pair: Pair) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE v USING vec0(e float[4], is_new boolean, b bit[8])")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)"
    pair.run(
        0, f"{numbers} INSERT INTO v(rowid, e, is_new, b) SELECT i, '[' || i || ',0,0,0]', 1, vec_bit(x'0f') FROM n"
    )
    node = pair.nodes[0]
    for change in ("e = '[0,0,0,1]'", "is_new = 0"):
        changes = [*decode_changes(node.prepare(f"UPDATE v SET {change} WHERE rowid = 2041").changes)]
        assert [(one.op, one.rowid) for one in changes] == [("DELETE", 2041), ("INSERT", 2041)], change
    pair.run(1, "UPDATE v SET e = '[0,0,0,1]', is_new = 0 WHERE rowid = 7 OR rowid = 2041")
    found = pair.query("SELECT rowid, vec_to_json(e), is_new, hex(b) FROM v WHERE rowid IN (7, 8, 2041) ORDER BY rowid")
    assert [row[0] for row in found if row[1].startswith("[0.0")] == [7, 2041]
    assert [row[2:] for row in found] == [(0, "0F"), (1, "0F"), (0, "0F")]


def test_update_of_a_vector_is_lost_if_chunks_are_not_compared(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.run(0, VEC0)
    pair.run(0, "INSERT INTO v(id, e, place, n) VALUES (1, '[1,2,3,4]', 'a', 3)")
    monkeypatch.setattr(Capture, "_find_in_chunks", lambda *_: None)
    assert not [*decode_changes(pair.nodes[0].prepare("UPDATE v SET n = 4 WHERE id = 1").changes)]


AUXILIARY = "CREATE VIRTUAL TABLE v USING vec0(e float[2], +t TEXT, +i int, + f DOUBLE, +b blob)"
FITTING = {"t": "'x'", "i": "2", "f": "2.5", "b": "x'02'"}


@pytest.mark.parametrize("column", FITTING)
def test_update_of_an_auxiliary_column_with_another_type_is_refused(pair: Pair, tmp_path: Path, column: str) -> None:
    """vec0 itself accepts the UPDATE; no node could then insert the row, and each would end."""
    pair.run(0, AUXILIARY)
    pair.run(0, "INSERT INTO v(rowid, e, t, i, f, b) VALUES (1, '[1, 2]', 'a', 1, 1.5, x'01')")
    for other, value in FITTING.items():
        if other == column:
            pair.run(0, f"UPDATE v SET {column} = {value}")
            continue
        for before in ((), ("CREATE TABLE made(x)",)):
            with pytest.raises(SqlError, match=f"auxiliary column {column} of v takes values of the type"):
                pair.run(0, *before, f"UPDATE v SET {column} = {value}")
    for value in ("NULL", FITTING[column]):
        pair.run(0, f"UPDATE v SET {column} = {value}")
    pair.run(0, "CREATE TABLE made AS SELECT 1", f"UPDATE v SET {column} = NULL")
    check(pair, tmp_path)


def test_vec0_table_may_have_a_text_key(pair: Pair, tmp_path: Path) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE v USING vec0(name TEXT PRIMARY KEY, e int8[4] distance_metric=cosine)")
    pair.run(0, "INSERT INTO v(name, e) VALUES ('one', vec_int8('[1,2,3,4]'))")
    pair.run(1, "INSERT INTO v(name, e) VALUES ('two', vec_int8('[4,3,2,1]')), ('three', vec_int8('[1,1,1,1]'))")
    with pytest.raises((ConstraintError, SqlError), match="UNIQUE"):
        pair.run(1, "INSERT INTO v(name, e) VALUES ('one', vec_int8('[1,2,3,4]'))")
    pair.run(0, "DELETE FROM v WHERE name = 'two'; INSERT INTO v(name, e) VALUES ('two', vec_int8('[4,4,4,4]'))")
    pair.run(1, "DELETE FROM v WHERE name = 'three'")
    assert pair.query("SELECT name, vec_to_json(e) FROM v ORDER BY name") == [
        ("one", "[1,2,3,4]"),
        ("two", "[4,4,4,4]"),
    ]
    check(pair, tmp_path)


@pytest.mark.parametrize("mode", ["", '{"index": "flat", "distance": "cos"}', "model"])
def test_rows_of_vec1_are_replicated_and_found_exactly_or_nearly(pair: Pair, tmp_path: Path, mode: str) -> None:
    draw = random.Random(7)
    pair.run(0, VEC1)
    vectors = [packed(*[draw.random() for _ in range(16)]) for _ in range(1_200)]
    text = "INSERT INTO v(rowid, e, place, n) VALUES (?, ?, ?, ?)"
    for at in range(0, len(vectors), 300):
        pair.run(at % 2, *[(text, (i + 1, vectors[i], "ab"[i % 2], i % 7)) for i in range(at, at + 300)])
    arg: Any = mode
    if mode == "model":
        train = """SELECT vec1_train(e, '{"codesize": 8, "nbucket": 32}') FROM v"""
        arg = pair.nodes[0].engine._db.execute(train).get
    if mode:
        pair.run(1, ("INSERT INTO v(cmd, arg) VALUES ('rebuild', ?)", (arg,)))
    pair.run(0, ("UPDATE v SET e = ? WHERE rowid = 5", (vectors[9],)), "DELETE FROM v WHERE rowid = 10")
    pair.run(
        1, ("INSERT INTO v(e, place, n) VALUES (?, 'a', 3)", (vectors[2],)), "UPDATE v SET n = 100 WHERE rowid = 3"
    )
    query = """SELECT rowid FROM v(?, '{"k": 3, "nprobe": 1000}') WHERE place = 'a' AND n >= 100"""
    assert pair.query(query, (vectors[2],)) == [(3,)]
    near = pair.query('SELECT rowid FROM v(?, \'{"k": 40, "nprobe": 1000}\')', (vectors[9],))
    assert (5,) in near
    assert (10,) not in near
    for node in pair.nodes:
        assert node.engine._db.execute("PRAGMA integrity_check(v)").fetchall() == [("ok",)]
    check(pair, tmp_path)


def test_vec1_model_from_a_query_is_refused(pair: Pair) -> None:
    """Each node would run the query, and ``vec1_train`` begins with random vectors."""
    pair.run(0, VEC1)
    pair.run(0, *[("INSERT INTO v(e, place, n) VALUES (?, 'a', 1)", (packed(n, 1),)) for n in range(40)])
    for query in (
        "INSERT INTO v(cmd, arg) SELECT 'rebuild', vec1_train(e) FROM v",
        "INSERT INTO v(cmd, arg) VALUES ('rebuild', (SELECT vec1_train(e) FROM v))",
        "INSERT INTO v(arg, cmd) select vec1_train(e), 'rebuild' FROM v",
    ):
        with pytest.raises(UnsupportedError, match="gets its model as a value"):
            pair.run(0, query)


def test_training_accepts_a_bounded_number_of_vectors(pair: Pair) -> None:
    """The time of a training grows with the square of the number of vectors, and nothing can interrupt it."""
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT vec1_train({}) FROM n"
    assert pair.query(many.format(vector_modules.TRAINING_VECTORS, "zeroblob(16)"))
    for query in (
        many.format(vector_modules.TRAINING_VECTORS + 1, "zeroblob(16)"),
        many.format(9, "zeroblob(1 << 20)"),
    ):
        with pytest.raises(apsw.SQLError, match="train on a sample"):
            pair.query(query)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ('{"codesize": 31}', "takes 9677 vectors at most for codes of 31 bytes"),
        ('{"codesize": 1, "CODESIZE": 64}', "codes of 64 bytes"),
        ("{nthread: 128}", "takes no option 'nthread'"),
        ('{"opq": true}', "takes no option 'opq'"),
        ('{"quantizer": "opq"}', "takes no quantizer 'opq'"),
        ("[1, 2]", "as a JSON object"),
        ("7", "as a JSON object"),
        ("{", "malformed JSON"),
        ('{"codesize": 1e999}', "codesize"),
        ("[" * 5_000, "options of 1000 characters"),
    ],
)
def test_vec1_train_refuses_slow_options(pair: Pair, options: str, text: str) -> None:
    with pytest.raises(apsw.SQLError, match=text):
        pair.query(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) "
            "SELECT vec1_train(zeroblob(256), ?) FROM n",
            (options,),
        )


def test_vector_functions_work_without_a_virtual_table(pair: Pair) -> None:
    pair.run(0, "CREATE TABLE t(id INTEGER PRIMARY KEY, e BLOB)")
    pair.run(0, "INSERT INTO t VALUES (1, vec_f32('[1,0]')), (2, vec1_from_json('[0,1]'))")
    assert pair.query("SELECT id FROM t ORDER BY vec_distance_L2(e, '[0,1]')") == [(2,), (1,)]
    assert pair.query("SELECT id FROM t ORDER BY vec1_cos_distance(e, ?)", (packed(0, 1),)) == [(2,), (1,)]


@pytest.mark.parametrize("made", ["v USING vec1(e, place)", "v USING vec1", '"v ""x;" USING vec1(e)'])
def test_a_batch_may_make_and_drop_a_vec1_table(tmp_path: Path, made: str) -> None:
    node, name = TestNode(tmp_path / "a.db"), made.split(" USING")[0]
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    for _ in range(2):
        node.run(f"CREATE VIRTUAL TABLE {made}")
        node.run(f"DROP TABLE IF EXISTS main.{name} -- it never had a row")
    node.run("INSERT INTO t VALUES (1)")
    node.run(f"CREATE VIRTUAL TABLE {made}")
    node.run(f"INSERT INTO {name}(cmd, arg) VALUES ('rebuild', NULL)")
    node.run(f"DROP TABLE {name}")
    node.save()
    assert node.rows("SELECT id FROM t") == [(1,)]
    assert node.rows("SELECT name FROM sqlite_schema WHERE name GLOB 'v*'") == []
    assert replay([node.path], tmp_path / "made.db").digest == digest(node.path)
    node.engine.close()


def test_a_vec1_table_is_renamed_once_it_had_a_row(pair: Pair, tmp_path: Path) -> None:
    pair.run(0, VEC1)
    with pytest.raises(UnsupportedError, match="vec1 cannot be renamed before it had a row"):
        pair.run(0, "ALTER TABLE V RENAME TO w")
    pair.run(0, "INSERT INTO v(e, place) VALUES (vec_f32('[1,2]'), 'a')")
    pair.run(0, "ALTER TABLE v RENAME TO w")
    check(pair, tmp_path)


REFUSED = [
    ("DELETE FROM v_vector_chunks00", "storage of a virtual table"),
    ("ALTER TABLE v RENAME TO w", "vec0 cannot be renamed"),
    ("SELECT vec1_config('nthread', 4)", "one connection"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_refusal_of_a_vector_statement_names_an_alternative(pair: Pair, text: str, why: str) -> None:
    pair.run(0, VEC0)
    with pytest.raises(UnsupportedError, match=why):
        pair.run(0, text)
    pair.run(0, "INSERT INTO v(e, place, n) VALUES ('[1,2,3,4]', 'a', 3)")
    pair.run(0, "DROP TABLE v")
    assert pair.query("SELECT name FROM sqlite_schema WHERE name GLOB 'v*'") == []


def test_module_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = TestNode(tmp_path / "a.db")
    node.run(VEC0)
    node.save()
    node.engine.close()
    monkeypatch.setattr(vector_modules, "_libraries", dict)
    vector_modules.installed.cache_clear()
    try:
        with pytest.raises(ConfigError, match="install sqlite-vec"):
            TestNode(tmp_path / "a.db")
        other = TestNode(tmp_path / "b.db", "B")
        with pytest.raises(UnsupportedError, match="install sqlite-vec"):
            other.run(VEC0)
        other.engine.close()
    finally:
        vector_modules.installed.cache_clear()


SEARCHED = """
import apsw, os, random, sys, threading, time
from bedrockish.engine.statements.guard import Guard
from bedrockish_journal.storage.vector_modules import ModuleConnection
db = ModuleConnection(sys.argv[1])
db.execute("CREATE VIRTUAL TABLE v USING vec0(id INTEGER PRIMARY KEY, e float[2])")
db.execute("INSERT INTO v VALUES (1, '[1,2]')")
sql = "SELECT id, vec_to_json(e) FROM v"
"""


@pytest.mark.parametrize("end", ["apsw.SQLITE_DENY", "1 / 0"])
def test_vec0_survives_an_error_while_a_search_compiles_its_statement(end: str, tmp_path: Path) -> None:
    """The exception of a signal's handler may come in the authorizer, and would end the process."""
    code = f"""
guard = Guard(db)
guard.compile(sql)
db.authorizer = lambda action, first, *_: {end} if first == "v_rowids" else apsw.SQLITE_OK
try:
    db.execute(sql).fetchall()
except (apsw.Error, ZeroDivisionError):
    pass
guard.compile(sql)
print(db.execute(sql).fetchall())
"""
    assert ran(code, tmp_path) == "[(1, '[1.000000,2.000000]')]\n"


def test_exception_of_a_signal_leaves_no_connection_without_its_handlers() -> None:
    """Otherwise the program's progress handler could end no further statement."""
    db = vector_modules.ModuleConnection(":memory:")
    guard = Guard(db)
    db.authorizer, db.is_shielded = None, True
    guard.compile("SELECT 1")
    assert db.authorizer is not None
    assert not db.is_shielded


def test_vec0_survives_interrupts_at_any_moment_of_a_search(tmp_path: Path) -> None:
    code = """
sys.setswitchinterval(1e-6)
current = db
def interrupt():
    while True:
        for _ in range(random.randrange(3000)):
            pass
        current.interrupt()
threading.Thread(target=interrupt, daemon=True).start()
kept, until = [], time.monotonic() + 1.5
while time.monotonic() < until and len(kept) < 500:  # each has a file open
    kept.append(db := ModuleConnection(sys.argv[1]))
    current = db
    try:
        Guard(db).compile(sql)
        db.execute(sql).fetchall()
    except apsw.Error:
        pass
print("alive", flush=True)
os._exit(0)
"""
    assert ran(code, tmp_path) == "alive\n"


def ran(code: str, tmp_path: Path) -> str:
    """Run code after ``SEARCHED`` in a process of its own, and return what it printed."""
    command = [sys.executable, "-c", SEARCHED + code, str(tmp_path / "made.db")]
    ended = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60)
    assert ended.returncode == 0, f"{ended.returncode} {ended.stderr}"
    return ended.stdout


def test_connections_do_not_let_sql_load_extensions() -> None:
    db = vector_modules.ModuleConnection(":memory:")
    with pytest.raises(apsw.SQLError, match="not authorized"):
        db.execute("SELECT load_extension('x')")

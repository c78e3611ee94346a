"""An import brings each row once despite kills, or is refused as a whole; an export equals the imported file."""

import itertools
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import trio

from bedrockish.client.blocking import Connection, connect
from bedrockish.engine.statements.import_check import misfits
from bedrockish.transfer.load_database import batches, broken, parents_first, reference_cycles
from tests.client.test_shell import PROGRAM, run
from tools.cluster import LocalCluster, clean_environment, local_cluster

pytestmark = pytest.mark.cluster

ROWS = 40_000
WAIT_S = 60.0
USERS = (
    "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') "
    "AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'bedrockish%' ORDER BY rowid DESC"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("import"), ("A",)) as running:
        trio.run(running.wait_ready, 0)
        yield running


@pytest.fixture
def db(node: LocalCluster) -> Iterator[Connection]:
    with connect(node.url()) as connection:
        yield connection
        connection.transact([f'DROP {kind} "{name}"' for kind, name in connection.execute(USERS)] or ["SELECT 1"])


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, str]]:
    """Yield a session at a node of its own, and the URL."""
    with local_cluster(tmp_path_factory.mktemp("own"), ("A",)) as running:
        trio.run(running.wait_ready, 0)
        with connect(running.url()) as connection:
            yield connection, running.url()


def kill_midway(db: Connection, table: str, *arguments: str) -> int:
    """Start a program, kill it when some rows of a table are there, and return how many were."""
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=clean_environment()
    )
    try:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and process.poll() is None:
            if list(db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", [table])) and list(
                db.execute(f"SELECT 1 FROM {table} LIMIT 1")
            ):
                break
    finally:
        process.kill()
        process.communicate()
    count: int = db.execute(f"SELECT count(*) FROM {table}").value()
    return count


def write_csv(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("id,text\n")
        file.writelines(f'{number},"row ""{number}"", é\nof two lines"\n' for number in range(rows))


def test_killed_import_of_a_csv_continues_and_has_each_row_once(
    node: LocalCluster, db: Connection, tmp_path: Path
) -> None:
    """The table has no key, so that a row that came twice would be there twice."""
    write_csv(tmp_path / "big.csv", ROWS)
    words = ("sql", node.url(), f".import {tmp_path}/big.csv big")
    before = kill_midway(db, "big", *words)
    assert 0 < before < ROWS
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    found = list(db.execute("SELECT id, count(*), max(text) FROM big GROUP BY id ORDER BY CAST(id AS INTEGER)"))
    assert found == [(f"{n}", 1, f'row "{n}", é\nof two lines') for n in range(ROWS)]
    db.execute("CREATE TABLE kept AS SELECT * FROM big")
    db.execute("DELETE FROM big")
    for mode in ("box", "csv"):  # a script, too, gets the message that no row was added
        again = run("sql", node.url(), "--mode", mode, words[2])
        assert "were not repeated" in again.stdout
    assert db.execute("SELECT count(*) FROM big").value() == 0
    db.execute("INSERT INTO big SELECT * FROM kept")
    assert db.execute("SELECT count(*) FROM big").value() == ROWS
    added = run("sql", node.url(), f".import --again --skip 1 {tmp_path}/big.csv big")
    assert added.returncode == 0, added.stderr
    assert db.execute("SELECT count(*) FROM big").value() == 2 * ROWS


def test_rows_of_a_csv_are_added_to_an_existing_table(node: LocalCluster, db: Connection, tmp_path: Path) -> None:
    """Values take the types of the columns; rows that are too short or too long are counted."""
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, price REAL, note TEXT, twice AS (id * 2))")
    (tmp_path / "t.tsv").write_text("1\t2.50\tfig\n\n2\t3\n3\t4\tx\ty\n")
    done = run("sql", node.url(), f".import --tabs {tmp_path}/t.tsv t")
    assert "3 rows" in done.stdout
    assert "1 had too few values" in done.stdout
    assert "1 had too many" in done.stdout
    assert list(db.execute("SELECT * FROM t")) == [(1, 2.5, "fig", 2), (2, 3.0, None, 4), (3, 4.0, "x", 6)]
    (tmp_path / "clash.csv").write_text("7,1,a\n1,1,b\n")
    clash = run("sql", node.url(), f".import {tmp_path}/clash.csv t")
    assert clash.returncode == 2
    assert "rows 1 to 2 (line 2): UNIQUE constraint failed" in clash.stderr
    assert "the 0 rows before are in the table" in clash.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a,a\n1,2\n", "the name 'a' twice"),
        (b"a,,c\n", "without a gap"),
        (b"", "should name the columns"),
        (b"a,b\n\xff,1\n", "not UTF-8 text"),
        (b'a,b\n"x"y,1\n', "this is not CSV"),
    ],
)
def test_import_refuses_malformed_csv(
    node: LocalCluster, db: Connection, tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    done = run("sql", node.url(), f".import {tmp_path}/x.csv x")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def make_source(path: Path, rows: int = 20_000) -> None:
    """Write a database with most features of SQLite."""
    with closing(sqlite3.connect(path)) as source:
        source.executescript(
            "CREATE TABLE line(id INTEGER PRIMARY KEY AUTOINCREMENT, item REFERENCES Item(id), n REAL, "
            "  doubled AS (n * 2));"
            "CREATE TABLE item(id TEXT PRIMARY KEY, part_of REFERENCES item(id)) WITHOUT ROWID;"
            "CREATE TABLE hen(id INTEGER PRIMARY KEY, egg REFERENCES egg(id));"
            "CREATE TABLE egg(id INTEGER PRIMARY KEY, hen REFERENCES hen(id));"
            'CREATE TABLE "odd ""name"(a, b BLOB, "c d" STRICT_TEXT);'
            "CREATE UNIQUE INDEX line_item ON line(item, id) WHERE n > 0;"
            "CREATE VIEW totals AS SELECT item, sum(n) AS total FROM line GROUP BY item;"
            "CREATE TRIGGER no_more AFTER INSERT ON line BEGIN DELETE FROM line WHERE id = NEW.id; END;"
            "DROP TRIGGER no_more;"
            "PRAGMA user_version = 7;"
        )
        source.executemany("INSERT INTO item VALUES (?, ?)", [("a", "z"), ("b", "a"), ("z", None)])
        source.executemany("INSERT INTO hen VALUES (?, ?)", [(1, 2), (2, 1)])
        source.executemany("INSERT INTO egg VALUES (?, ?)", [(1, 1), (2, 2)])
        source.executemany("INSERT INTO line(item, n) VALUES (?, ?)", (("a", n / 4) for n in range(rows)))
        source.execute("""INSERT INTO "odd ""name" VALUES (?, ?, ?)""", ("a\0b", b"\0\xff", 1e999))
        source.execute("CREATE TRIGGER no_more AFTER INSERT ON line BEGIN DELETE FROM line WHERE id = NEW.id; END")
        source.commit()


def content(path: Path) -> dict[str, object]:
    with closing(sqlite3.connect(path)) as found:
        names = found.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
        tables = [name.replace('"', '""') for kind, name, _ in names if kind == "table"]
        rows = {name: sorted(found.execute(f'SELECT * FROM "{name}"'), key=repr) for name in tables}
        return {"schema": sorted(names), "version": found.execute("PRAGMA user_version").fetchone(), "rows": rows}


def test_killed_import_of_a_database_continues_and_is_exported_unchanged(
    own: tuple[Connection, str], tmp_path: Path
) -> None:
    db, url = own
    make_source(tmp_path / "source.db")
    words = ("import", url, str(tmp_path / "source.db"))
    assert 0 < kill_midway(db, "line", *words) < 20_000
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "line: 20000 rows" in done.stdout
    assert "they were not repeated" in done.stdout
    exported = run("export", url, str(tmp_path / "out.db"))
    assert exported.returncode == 0, exported.stderr
    assert "as of [" in exported.stdout
    assert content(tmp_path / "out.db") == content(tmp_path / "source.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.db", "source.db"]
    assert "exists already" in run("export", url, str(tmp_path / "out.db")).stderr
    make_source(tmp_path / "other.db", 5)
    assert "the cluster is not empty" in run("import", url, str(tmp_path / "other.db")).stderr
    clash = run("import", "--add", url, str(tmp_path / "other.db")).stderr
    assert "the cluster has item, line, " in clash
    with closing(sqlite3.connect(tmp_path / "small.db")) as small:
        small.executescript("CREATE TABLE small(x); INSERT INTO small VALUES (1);")
    assert run("import", "--add", url, str(tmp_path / "small.db")).returncode == 0
    assert db.execute("SELECT count(*) FROM small").value() == 1


def test_import_of_a_file_whose_tables_were_dropped_since_names_the_option(
    own: tuple[Connection, str], tmp_path: Path
) -> None:
    """The rows count as imported, so without --again a run would load nothing."""
    db, url = own
    with closing(sqlite3.connect(tmp_path / "two.db")) as two:
        two.executescript("CREATE TABLE a(x); CREATE TABLE b(x); INSERT INTO a VALUES (1);")
    words = ("import", "--add", url, str(tmp_path / "two.db"))
    assert run(*words).returncode == 0
    assert "were not repeated" in run(*words).stdout
    db.execute("DROP TABLE a")
    said = run(*words)
    assert (said.returncode, said.stdout) == (2, "")
    assert "two.db was imported before, and a dropped since; nothing was imported: drop its other tables" in said.stderr
    db.execute("DROP TABLE b")
    assert "and a, b dropped since; nothing was imported: import it with --again" in run(*words).stderr
    assert run(*words, "--again").returncode == 0
    assert db.execute("SELECT count(*) FROM a").value() == 1


def test_csv_is_loaded_from_a_pipe(node: LocalCluster, db: Connection, tmp_path: Path) -> None:
    """A load reads its file three times, so the content of a pipe is copied first."""
    db.execute("CREATE TABLE piped(a, b)")
    words = ("sql", node.url(), ".import /dev/stdin piped")
    with subprocess.Popen(
        [*PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=clean_environment()
    ) as loading:
        loading.communicate(b"1,2\n3,4\n")
    assert loading.returncode == 0
    assert list(db.execute("SELECT * FROM piped")) == [("1", "2"), ("3", "4")]
    os.mkfifo(tmp_path / "pipe.db")
    assert "pipe.db is not a file; give the path" in run("import", node.url(), str(tmp_path / "pipe.db")).stderr


def test_import_of_a_csv_whose_table_was_dropped_since_names_the_option(
    node: LocalCluster, db: Connection, tmp_path: Path
) -> None:
    write_csv(tmp_path / "gone.csv", 3)
    words = ("sql", node.url(), f".import {tmp_path}/gone.csv gone")
    assert run(*words).returncode == 0
    db.execute("DROP TABLE gone")
    said = run(*words)
    assert (said.returncode, said.stdout) == (2, "")
    assert "gone.csv was imported before, and gone dropped since; --again imports it once more" in said.stderr
    assert run("sql", node.url(), f".import --again {tmp_path}/gone.csv gone").returncode == 0
    assert db.execute("SELECT count(*) FROM gone").value() == 3


def test_backup_of_one_cluster_is_imported_into_another(
    node: LocalCluster, db: Connection, own: tuple[Connection, str], tmp_path: Path
) -> None:
    """The import takes the tables and indexes of the copy, and leaves out the cluster's own tables."""
    db.execute("CREATE TABLE pet(id INTEGER PRIMARY KEY, name TEXT, born REAL)")
    db.execute("CREATE INDEX pet_name ON pet(name)")
    db.execute("INSERT INTO pet VALUES (1, 'Rex', 1.5), (2, NULL, NULL)")
    copy = str(tmp_path / "copy.db")
    assert run("backup", node.url(), copy).returncode == 0
    assert "exists already" in run("backup", node.url(), copy).stderr
    other, url = own
    imported = run("import", url, copy)
    assert imported.returncode == 0, imported.stderr
    assert list(other.execute("SELECT * FROM pet")) == [(1, "Rex", 1.5), (2, None, None)]
    assert other.execute("SELECT name FROM sqlite_schema WHERE type = 'index'").value() == "pet_name"


def test_check_of_rows_waits_for_a_program_that_writes_the_file(tmp_path: Path) -> None:
    """Otherwise the import would begin, and stop at the rows that break the constraint."""
    path = tmp_path / "busy.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE t(a CHECK (a > 0)); PRAGMA ignore_check_constraints = ON; INSERT INTO t VALUES (-1)")
        db.execute("BEGIN EXCLUSIVE")
        end = threading.Timer(0.3, db.execute, ["ROLLBACK"])
        end.start()
        assert broken(path) == ["CHECK constraint failed in t"]
        end.join()


def test_import_lists_unsupported_tables_before_it_writes(node: LocalCluster, db: Connection, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "bad.db")) as bad:
        bad.executescript(
            "CREATE TABLE fine(x);"
            "CREATE TABLE bedrockish_mine(x);"
            "CREATE TABLE hidden(rowid, oid, _rowid_);"
            "CREATE TABLE computed(a PRIMARY KEY, b AS (a + 1)) WITHOUT ROWID;"
        )
    done = run("import", node.url(), str(tmp_path / "bad.db"))
    assert done.returncode == 2
    for word in ("bedrockish_mine", "hidden", "computed", "nothing was"):
        assert word in done.stderr
    with closing(sqlite3.connect(tmp_path / "orphan.db")) as orphan:
        orphan.executescript(
            "CREATE TABLE p(id PRIMARY KEY); CREATE TABLE c(p REFERENCES p); INSERT INTO c VALUES (1);"
        )
    assert "refers to a row of p that does not exist" in run("import", node.url(), str(tmp_path / "orphan.db")).stderr
    with closing(sqlite3.connect(tmp_path / "broken.db")) as broken:
        broken.executescript(
            "PRAGMA ignore_check_constraints = ON; CREATE TABLE hidden(rowid, oid, _rowid_);"
            "CREATE TABLE positive(a CHECK (a > 0)); INSERT INTO positive VALUES (-1), (-2);"
            "CREATE TABLE t(a, b, c INT); INSERT INTO t VALUES (1, NULL, 'x');"
            "PRAGMA writable_schema = ON;"
            "UPDATE sqlite_schema SET sql = replace(sql, 'b,', 'b NOT NULL,') WHERE name = 't'"
        )
        broken.commit()
    stderr = run("import", node.url(), str(tmp_path / "broken.db")).stderr
    for text in ("table hidden:", "CHECK constraint failed in positive", "NULL value in t.b", "nothing was"):
        assert stderr.count(text) == 1, stderr
    with closing(sqlite3.connect(tmp_path / "vague.db")) as vague:
        vague.executescript("CREATE TABLE p(id); CREATE TABLE c(p REFERENCES p(id));")
    assert "foreign key mismatch" in run("import", node.url(), str(tmp_path / "vague.db")).stderr
    with closing(sqlite3.connect(tmp_path / "words.db")) as words:
        words.executescript("CREATE VIRTUAL TABLE words USING fts4(word); CREATE VIRTUAL TABLE more USING fts3(word)")
    stderr = run("import", node.url(), str(tmp_path / "words.db")).stderr
    assert "virtual table 'words'" in stderr
    assert "virtual table 'more'" in stderr
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked at" * 100)
    (tmp_path / "dump.sql").write_text("\nBEGIN TRANSACTION;\nCREATE TABLE t(a);\nCOMMIT;\n")
    assert (
        "; it is a dump: load it by 'sqlite3 new.db <" in run("import", node.url(), str(tmp_path / "dump.sql")).stderr
    )
    assert "cannot be read as a SQLite database" in run("import", node.url(), str(tmp_path / "text.db")).stderr
    assert "no such file" in run("import", node.url(), str(tmp_path / "missing.db")).stderr
    assert list(db.execute(USERS)) == []


def test_import_keeps_the_settings_of_fts5(own: tuple[Connection, str], tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "words.db")) as words:
        words.executescript(
            "CREATE TABLE note(id INTEGER PRIMARY KEY, words);"
            "CREATE VIRTUAL TABLE own USING fts5(title, words);"
            "CREATE VIRTUAL TABLE shown USING fts5(words, content='note', content_rowid='id');"
            "INSERT INTO own VALUES ('cat', 'dog'), ('dog', 'cat and cat');"
            "INSERT INTO own(own, rank) VALUES ('rank', 'bm25(100.0, 1.0)'), ('automerge', 3);"
            "INSERT INTO shown(shown, rank) VALUES ('usermerge', 8);"
        )
    db, url = own
    done = run("import", url, str(tmp_path / "words.db"))
    assert done.returncode == 0, done.stderr
    assert db.execute("SELECT k, v FROM own_config ORDER BY k").rows[:2] == [
        ("automerge", 3),
        ("rank", "bm25(100.0, 1.0)"),
    ]
    assert ("usermerge", 8) in db.execute("SELECT k, v FROM shown_config").rows
    assert db.execute("SELECT title FROM own WHERE own MATCH 'cat' ORDER BY rank").rows == [("cat",), ("dog",)]


def test_export_with_vectors_and_polygons_is_imported(own: tuple[Connection, str], tmp_path: Path) -> None:
    pytest.importorskip("sqlite_vec")
    db, url = own
    made = (
        "CREATE VIRTUAL TABLE near USING vec0(id INTEGER PRIMARY KEY, e float[2], s int8[4], shop TEXT, +note TEXT)",
        "CREATE VIRTUAL TABLE bare USING vec0(b bit[8])",
        "CREATE VIRTUAL TABLE plain USING vec1(e, shop)",
        "CREATE VIRTUAL TABLE place USING geopoly(name)",
    )
    for sql in made:
        db.execute(sql)
    db.transact(
        [
            "INSERT INTO near VALUES (7, '[1, 2]', vec_int8('[1, 2, 3, 4]'), 'a', 'x')",
            "INSERT INTO bare(rowid, b) VALUES (5, vec_bit(X'0f'))",
            "INSERT INTO plain(rowid, e, shop) VALUES (3, vec_f32('[1, 2]'), 'b')",
            "INSERT INTO place(_shape, name) VALUES ('[[0,0],[1,0],[1,1],[0,0]]', 'here')",
        ]
    )
    queries = ["SELECT * FROM near", *(f"SELECT rowid, * FROM {name}" for name in ("bare", "plain", "place"))]
    before = [db.execute(sql).rows for sql in queries]
    assert run("export", url, str(tmp_path / "made.db")).returncode == 0
    db.transact([f"DROP TABLE {name}" for name in ("near", "bare", "plain", "place")])
    done = run("import", url, str(tmp_path / "made.db"))
    assert done.returncode == 0, done.stderr
    assert [db.execute(sql).rows for sql in queries] == before
    assert db.execute("SELECT note FROM near WHERE e MATCH '[1, 2]' AND k = 1").rows == [("x",)]


def test_import_names_the_table_with_a_text_that_is_not_utf_8(own: tuple[Connection, str], tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "latin.db")) as latin:
        latin.executescript("CREATE TABLE t(a); INSERT INTO t VALUES ('fine'), (CAST(X'FF41' AS TEXT));")
    done = run("import", own[1], str(tmp_path / "latin.db"))
    assert done.returncode == 2
    assert "table t: after 1 rows: a text that is not UTF-8" in done.stderr


def test_import_orders_tables_after_those_that_they_refer_to() -> None:
    references = {"a": {"b"}, "b": {"c"}, "c": set[str](), "x": {"y"}, "y": {"x", "c"}, "s": {"s"}}
    for names in itertools.permutations(references):
        ordered = parents_first(names, references)
        assert ordered.index("c") < ordered.index("b") < ordered.index("a")
        assert max(map(ordered.index, "xy")) > ordered.index("c")
    assert reference_cycles(references) == {"x": {"x", "y"}, "y": {"x", "y"}, "s": {"s"}}


def test_import_batches_have_every_row_in_order() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t(x, y)")
        db.executemany("INSERT INTO t VALUES (?, ?)", ((n, "x" * (n % 7) * 40_000) for n in range(1_000)))
        found = [
            value
            for statements in batches(db, "t")
            for _, params in statements
            for value in (params if isinstance(params, tuple) else ())[::2]
        ]
    assert found == list(range(1_000))


def test_supported_schema_has_no_misfits() -> None:
    assert misfits([("table t", "CREATE TABLE t(a, b AS (a))"), ("index i", "CREATE INDEX i ON t(a)")]) == []
    assert "fts" in misfits([("table v", "CREATE VIRTUAL TABLE v USING fts4(x)")])[0]

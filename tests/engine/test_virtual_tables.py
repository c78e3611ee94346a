"""Virtual tables: rows of FTS5, R*Tree and geopoly are replicated, and indexes on tables' rows follow these."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw
import pytest

from bedrockish.errors import ConstraintError, UnsupportedError
from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.storage.virtual_tables import parse_virtual
from bedrockish_journal.verify.replay import digest, replay
from tests.engine.nodes import TestNode
from tests.engine.virtual_pair import Pair, check_virtual

DOCS = "CREATE TABLE docs(id INTEGER PRIMARY KEY, title, body, n)"
INDEX = "CREATE VIRTUAL TABLE found USING fts5(title, body, content='docs', content_rowid='id')"
TRIGGERS = (
    "CREATE TRIGGER docs_ai AFTER INSERT ON docs BEGIN "
    "INSERT INTO found(rowid, title, body) VALUES (new.id, new.title, new.body); END",
    "CREATE TRIGGER docs_ad AFTER DELETE ON docs BEGIN "
    "INSERT INTO found(found, rowid, title, body) VALUES ('delete', old.id, old.title, old.body); END",
    "CREATE TRIGGER docs_au AFTER UPDATE ON docs BEGIN "
    "INSERT INTO found(found, rowid, title, body) VALUES ('delete', old.id, old.title, old.body); "
    "INSERT INTO found(rowid, title, body) VALUES (new.id, new.title, new.body); END",
)
MATCH = "SELECT rowid FROM found WHERE found MATCH ? ORDER BY rowid"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.check()
    made.close()


@pytest.mark.parametrize("triggers", [(), TRIGGERS])
def test_index_follows_its_content_table_with_and_without_triggers(pair: Pair, triggers: tuple[str, ...]) -> None:
    pair.run(0, DOCS)
    pair.run(0, "INSERT INTO docs VALUES (1, 'alpha', 'beta', 0)")
    pair.run(1, INDEX, *triggers)
    assert pair.query(MATCH, ("alpha",)) == [(1,)]  # built from the rows that are there
    pair.run(0, "INSERT INTO docs VALUES (2, 'gamma', 'alpha', 0)")
    pair.run(1, "UPDATE docs SET body = 'delta' WHERE id = 1")
    assert pair.query(MATCH, ("alpha",)) == [(1,), (2,)]
    assert pair.query(MATCH, ("beta",)) == []
    pair.run(1, "UPDATE docs SET id = 20 WHERE id = 2; DELETE FROM docs WHERE id = 1")
    assert pair.query(MATCH, ("alpha OR delta",)) == [(20,)]


@pytest.mark.parametrize("count", [1, 30, 1_500])
def test_search_index_is_updated_by_few_many_and_staged_rows(pair: Pair, count: int) -> None:
    pair.run(0, DOCS, INDEX, *TRIGGERS)
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    pair.run(0, f"{numbers} INSERT INTO docs SELECT i, 'alpha', 'beta' || i, 0 FROM n")
    assert pair.query("SELECT count(*) FROM found WHERE found MATCH 'alpha'") == [(count,)]
    pair.run(1, "UPDATE docs SET title = 'gamma' WHERE id > 0")
    assert pair.query("SELECT count(*) FROM found WHERE found MATCH 'alpha'") == [(0,)]
    assert pair.query("SELECT count(*) FROM found WHERE found MATCH 'gamma'") == [(count,)]
    pair.check()
    pair.run(0, "UPDATE docs SET n = 1")  # the index does not have this column
    pair.run(0, "DELETE FROM docs WHERE id > 0")
    assert pair.query("SELECT count(*) FROM found WHERE found MATCH 'gamma'") == [(0,)]


def test_search_in_a_transaction_finds_its_own_rows_until_it_is_rolled_back(pair: Pair) -> None:
    pair.run(0, DOCS, INDEX, *TRIGGERS)
    text = "INSERT INTO docs(title) VALUES ('alpha')"
    assert len(pair.run(0, text, "SELECT * FROM found WHERE found MATCH 'alpha'")[1]) == 1
    pair.nodes[0].prepare(text)
    assert len(pair.query(MATCH, ("alpha",))) == 1


def test_search_shows_highlights_snippets_and_ranks(pair: Pair) -> None:
    pair.run(0, DOCS, INDEX, "CREATE VIRTUAL TABLE words USING fts5vocab('found', 'row')")
    pair.run(0, "INSERT INTO docs VALUES (1, 'alpha beta', 'gamma', 0), (2, 'beta', 'beta beta', 0)")
    query = "SELECT highlight(found, 0, '<', '>'), snippet(found, 1, '<', '>', '…', 4) FROM found('beta') ORDER BY rank"
    assert pair.query(query) == [("<beta>", "<beta> <beta>"), ("alpha <beta>", "gamma")]
    assert pair.query("SELECT term, doc, cnt FROM words") == [("alpha", 1, 1), ("beta", 2, 4), ("gamma", 1, 1)]


def test_index_on_generated_columns_follows_them(pair: Pair) -> None:
    pair.run(
        0, "CREATE TABLE docs(id INTEGER PRIMARY KEY, a, title AS (a || ' beta'), body AS (upper(a)) STORED)", INDEX
    )
    pair.run(0, "INSERT INTO docs(id, a) VALUES (1, 'alpha'), (2, 'gamma')")
    pair.run(1, "UPDATE docs SET a = 'delta' WHERE id = 1; UPDATE docs SET a = 'alpha' WHERE id = 1")
    pair.run(1, "UPDATE docs SET a = 'delta' WHERE id = 2")
    assert pair.query(MATCH, ("title : beta",)) == [(1,), (2,)]
    assert pair.query(MATCH, ("body : alpha",)) == [(1,)]


def test_index_is_rebuilt_after_its_table_was_replaced(pair: Pair) -> None:
    pair.run(0, DOCS, INDEX)
    pair.run(0, "INSERT INTO docs VALUES (1, 'alpha', 'beta', 0)")
    pair.run(
        1,
        "CREATE TABLE new_docs(id INTEGER PRIMARY KEY, title, body)",
        "INSERT INTO new_docs SELECT id, 'gamma', body FROM docs",
        "DROP TABLE docs",
        "ALTER TABLE new_docs RENAME TO docs",
    )
    assert pair.query(MATCH, ("gamma",)) == [(1,)]
    assert pair.query(MATCH, ("alpha",)) == []
    pair.run(0, "ALTER TABLE docs ADD COLUMN n", "UPDATE docs SET title = 'delta'")
    assert pair.query(MATCH, ("delta",)) == [(1,)]
    pair.run(0, "ALTER TABLE docs DROP COLUMN n")
    pair.run(0, "DROP TABLE docs", DOCS)
    assert pair.query(MATCH, ("delta",)) == []
    pair.run(0, "ALTER TABLE found RENAME TO sought")
    pair.run(0, "INSERT INTO docs VALUES (1, 'alpha', 'beta', 0)")
    assert pair.query("SELECT rowid FROM sought('alpha')") == [(1,)]


REFUSED = [
    ("DROP TABLE docs", "content table docs is not there; drop found first"),
    ("ALTER TABLE docs RENAME TO other", "content table docs is not there"),
    ("ALTER TABLE docs RENAME COLUMN body TO text", "has no column body"),
    ("ALTER TABLE docs DROP COLUMN body", "has no column body"),
    ("CREATE VIRTUAL TABLE u USING fts5(x, content='')", "could delete a row"),
    ("CREATE VIRTUAL TABLE u USING fts5(x, locale=1)", "locale"),
    ("CREATE VIEW v AS SELECT 1 AS id, 'x' AS x; CREATE VIRTUAL TABLE u USING fts5(x, content='v')", "is a view"),
    ("CREATE TABLE w(x PRIMARY KEY) WITHOUT ROWID; CREATE VIRTUAL TABLE u USING fts5(x, content=w)", "WITHOUT ROWID"),
    ("CREATE VIRTUAL TABLE u USING fts5(title, content='docs', content_rowid='n')", "not the rowid of docs"),
    ("CREATE TABLE u_content(x); CREATE VIRTUAL TABLE u USING fts5(x, content='u_content')", "name of a table of u"),
    ("CREATE TABLE u_content(x); CREATE VIRTUAL TABLE u USING fts5(title, content='docs')", "shadow tables; rename"),
    ("CREATE VIRTUAL TABLE u USING fts4(x)", "fts4 are not replicated"),
    ("CREATE VIRTUAL TABLE u USING dbstat", "dbstat are not replicated"),
    ("CREATE VIRTUAL TABLE u USING fts5vocab('docs', 'row')", "no FTS5 table"),
    ("CREATE VIRTUAL TABLE temp.u USING fts5(x)", "temporary"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_refusal_of_a_virtual_table_names_the_table_and_an_alternative(pair: Pair, text: str, why: str) -> None:
    pair.run(0, DOCS, INDEX)
    with pytest.raises(UnsupportedError, match=why):
        pair.run(0, text)
    pair.run(0, "INSERT INTO docs(title) VALUES ('alpha')")


def test_rows_of_a_table_with_its_own_content_are_replicated(pair: Pair) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE notes USING fts5(title, body UNINDEXED, tokenize = 'porter')")
    pair.run(0, "INSERT INTO notes VALUES ('alpha', 'x'), ('beta', 'y')")
    pair.run(1, "INSERT INTO notes(rowid, title) VALUES (7, 'gammas')")
    pair.run(1, "UPDATE notes SET title = 'delta' WHERE notes MATCH 'beta'")
    pair.run(
        0, "UPDATE notes SET rowid = 8 WHERE rowid = 7; INSERT OR REPLACE INTO notes(rowid, title) VALUES (8, 'z')"
    )
    assert pair.query("SELECT title FROM notes ORDER BY title") == [("alpha",), ("delta",), ("z",)]
    with pytest.raises(ConstraintError):
        pair.run(0, "INSERT INTO notes(rowid, title) VALUES (8, 'again')")
    pair.run(0, "INSERT OR IGNORE INTO notes(rowid, title) VALUES (8, 'again')")
    pair.run(0, "DELETE FROM notes WHERE notes MATCH 'delta'")
    assert pair.query("SELECT title FROM notes ORDER BY title") == [("alpha",), ("z",)]


def test_many_rows_of_a_virtual_table_are_replicated(pair: Pair) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE notes USING fts5(title)")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
    pair.run(0, f"{numbers} INSERT INTO notes(title) SELECT 'alpha' || i FROM n")
    pair.run(1, "UPDATE notes SET title = 'beta' WHERE title < 'alpha3'")
    pair.run(0, "DELETE FROM notes WHERE title > 'alpha4'")
    left = [f"alpha{i}" for i in range(1, 2001) if "alpha3" <= f"alpha{i}" <= "alpha4"]
    assert pair.query("SELECT count(*) FROM notes") == [(len(left),)]


def test_rtree_rows_are_replicated_with_their_rounded_coordinates(pair: Pair) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1, y0, y1, +name, +data)")
    pair.run(0, "INSERT INTO boxes VALUES (1, 0.1, 0.2, 0.3, 0.4, 'one', x'00ff')")
    pair.run(0, "INSERT INTO boxes(x0, x1, y0, y1) VALUES (1e300, 1e308, -0.7, 123456789.123)")
    many = ", ".join(
        f"(NULL, {i / 7}, {i / 7 + 1}, 0, 1, 'n{i}', NULL)" for i in range(200)
    )  # so many rows split nodes of the tree
    pair.run(1, f"INSERT INTO boxes VALUES {many}")
    pair.run(1, "UPDATE boxes SET x1 = 0.25, name = 'two' WHERE id = 1")
    pair.run(0, "UPDATE boxes SET id = 5000 WHERE id = 1; DELETE FROM boxes WHERE x0 > 20")
    assert pair.query("SELECT id, name FROM boxes WHERE x1 < 0.3") == [(5000, "two")]
    for node in pair.nodes:
        assert node.engine._db.execute("SELECT rtreecheck('boxes')").fetchall() == [("ok",)]


def test_boxes_of_integers_and_polygons_are_replicated(pair: Pair) -> None:
    pair.run(
        0, "CREATE VIRTUAL TABLE spans USING rtree_i32(id, low, high)", "CREATE VIRTUAL TABLE areas USING geopoly(name)"
    )
    pair.run(0, "INSERT INTO spans VALUES (1, 5, 9), (2, -7, 2147483647)")
    pair.run(1, "INSERT INTO areas(_shape, name) VALUES ('[[0,0],[1,0],[1,1],[0,0]]', 'a')")
    pair.run(0, "UPDATE areas SET name = 'b'; UPDATE spans SET high = 6 WHERE id = 1")
    pair.run(1, "UPDATE areas SET _shape = '[[0,0],[2,0],[2,2],[0,0]]'")
    assert pair.query("SELECT geopoly_json(_shape), name FROM areas") == [
        ("[[0.0,0.0],[2.0,0.0],[2.0,2.0],[0.0,0.0]]", "b")
    ]
    assert pair.query("SELECT id FROM spans WHERE high < 10") == [(1,)]


def test_rtree_box_moved_by_a_split_is_not_captured_as_changed(pair: Pair) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1)")
    pair.run(0, "INSERT INTO boxes VALUES " + ", ".join(f"({i}, {i}, {i})" for i in range(1, 51)))
    prepared = pair.nodes[0].prepare(
        "INSERT INTO boxes VALUES " + ", ".join(f"({i}, {i}, {i})" for i in range(51, 120))
    )
    assert {change.op for change in decode_changes(prepared.changes)} == {"INSERT"}
    assert not prepared.access_set.write_ranges


def test_command_that_configures_an_index_reaches_every_node(pair: Pair) -> None:
    pair.run(0, DOCS, INDEX)
    pair.run(1, "INSERT INTO found(found, rank) VALUES ('rank', 'bm25(10.0, 1.0)')")
    assert ("rank", "bm25(10.0, 1.0)") in pair.query("SELECT * FROM found_config")
    for number, (sql, values) in enumerate(
        [
            ("INSERT INTO found(found, rank) VALUES (?, ?)", ("rank", "bm25(1.0)")),
            ("INSERT INTO main.found AS f(found, rank) VALUES ('rank', ?)", ("bm25(2.0)",)),
            ("INSERT INTO found(rank, found) VALUES (:value, :name)", {"name": "rank", "value": "bm25(3.0)"}),
            ("INSERT INTO found(rank, found) VALUES ('bm25(4.0)', 'rank')", ()),
            ("INSERT INTO found(rank, found) VALUES (4, 'usermerge'), ('bm25(5.0)', 'rank')", ()),
        ],
        start=1,
    ):
        pair.run(0, (sql, values))
        assert ("rank", f"bm25({number}.0)") in pair.query("SELECT * FROM found_config"), sql
    pair.run(0, ("INSERT INTO found(found, rank) VALUES (?, ?)", ("merge", 500)))
    for refused in (
        ("INSERT INTO found(found, rank) VALUES (?, ?)", ("integrity-check", 1)),
        "INSERT INTO found(found, rank) VALUES (('rank'), 'bm25()')",
    ):
        with pytest.raises(UnsupportedError, match="write the command's name into the text"):
            pair.run(0, refused)
    with pytest.raises(UnsupportedError, match="not a query"):  # it would change nothing, and say nothing
        pair.run(0, "INSERT INTO found(found, rank) SELECT 'rank', 'bm25()'")
    for command in ("rebuild", "optimize", "integrity-check"):
        pair.run(0, f"INSERT INTO found(found) VALUES ('{command}')")
        pair.run(0, ("INSERT INTO found(found) VALUES (?)", (command,)))
    pair.run(0, "INSERT INTO docs(title) VALUES ('alpha')")
    pair.run(0, "INSERT INTO found(found) VALUES ('delete-all')")  # it is rolled back, and changes no row
    assert len(pair.query(MATCH, ("alpha",))) == 1


def test_upkeep_commands_leave_a_current_index_unchanged(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild of a million rows takes a minute. One that follows a write indexes the rows of its own transaction."""
    pair.run(0, DOCS, INDEX, "CREATE VIRTUAL TABLE notes USING fts5(body)")
    request = ("INSERT INTO docs(title) VALUES ('alpha')", "INSERT INTO found(found) VALUES ('rebuild')")
    assert len(pair.run(0, *request, "SELECT * FROM found WHERE found MATCH 'alpha'")[2]) == 1
    assert len(pair.query(MATCH, ("alpha",))) == 1
    monkeypatch.setattr(pair.nodes[0].engine._executor, "run_piece", None)
    for sql in (
        "INSERT INTO found(found) VALUES ('rebuild')",
        'INSERT INTO "notes" ("notes") VALUES ("optimize");',
        "INSERT INTO main.found(found, rank) VALUES ('merge', 500)",
    ):
        (result,) = pair.nodes[0].run(sql)
        assert (result.rows, result.rowcount) == ([], 1)
    monkeypatch.undo()


def test_corrupt_index_is_rebuilt_when_a_row_changes(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.run(0, DOCS, INDEX)
    pair.run(0, "INSERT INTO docs VALUES (1, 'alpha', 'beta', 0)")
    second = pair.nodes[1]
    second.save()
    second.engine.close()
    db = apsw.Connection(str(second.path))
    db.execute("UPDATE found_data SET block = x'0000'")
    db.close()
    pair.nodes[1] = TestNode(second.path, "B")
    pair.run(0, "UPDATE docs SET title = 'gamma'")
    assert pair.query(MATCH, ("gamma",)) == [(1,)]
    assert "found is corrupt" in caplog.text


def test_replay_makes_the_same_rows_and_indexes(pair: Pair, tmp_path: Path) -> None:
    pair.run(0, DOCS, INDEX, *TRIGGERS, "CREATE VIRTUAL TABLE notes USING fts5(title)")
    pair.run(0, "CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1, +name)")
    pair.run(0, "INSERT INTO docs VALUES (1, 'alpha', 'beta', 0); INSERT INTO notes VALUES ('alpha'), ('beta')")
    pair.run(1, "INSERT INTO boxes VALUES (1, 0.1, 0.2, 'n'); UPDATE boxes SET x0 = 0.05; UPDATE notes SET title = 'z'")
    pair.run(1, "UPDATE docs SET title = 'gamma'; DELETE FROM notes WHERE rowid = 1")
    for node in pair.nodes:
        node.save()
    made = replay([node.path for node in pair.nodes], tmp_path / "made.db", draw=Random(3).random).digest
    assert made == digest(pair.nodes[0].path) == digest(pair.nodes[1].path) == digest(tmp_path / "made.db")
    db = apsw.Connection(str(tmp_path / "made.db"))
    assert db.execute(MATCH, ("gamma",)).fetchall() == [(1,)]
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_digest_detects_a_changed_row_of_a_virtual_table(pair: Pair) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE notes USING fts5(title)")
    pair.run(0, "INSERT INTO notes VALUES ('alpha')")
    before = digest(pair.nodes[0].engine._db)
    pair.run(0, "UPDATE notes SET title = 'beta'")
    assert digest(pair.nodes[0].engine._db) != before


@pytest.mark.parametrize(
    ("sql", "content", "rowid", "owns"),
    [
        ("CREATE VIRTUAL TABLE f USING fts5(a, \"b c\", content='d''s', content_rowid=id)", "d's", "id", False),
        (
            'create virtual table [a using b] using "fts5"(t unindexed, cont=docs, content_r="i d")',
            "docs",
            "i d",
            False,
        ),
        (
            "CREATE VIRTUAL TABLE f USING fts5 ( a , content = [x y] , tokenize = \"unicode61 tokenchars '-_'\")",
            "x y",
            "rowid",
            False,
        ),
        ("CREATE VIRTUAL TABLE f USING fts5(content)", "", "rowid", True),
        ("CREATE VIRTUAL TABLE r USING RTree(id, x0, x1, +name text DEFAULT (1, 2))", "", "rowid", True),
    ],
)
def test_parsed_fts5_options_are_those_of_sqlite(sql: str, content: str, rowid: str, owns: bool) -> None:
    found = parse_virtual("f", sql)
    assert (found.content, found.content_rowid, found.owns_rows) == (content, rowid, owns)


def test_search_reads_the_content_table_of_its_index(pair: Pair) -> None:
    pair.run(0, DOCS, INDEX, *TRIGGERS, "CREATE VIRTUAL TABLE notes USING fts5(title)", "CREATE TABLE other(x)")
    pair.run(0, "CREATE VIRTUAL TABLE words USING fts5vocab('found', 'row')", "CREATE VIEW seen AS SELECT * FROM found")

    def ranges(text: str) -> set[bytes]:
        return {low for low, _ in pair.nodes[0].prepare(text).access_set.read_ranges}

    docs, notes = {b"t:docs\0"}, {b"t:notes\0"}
    for text in ("SELECT * FROM found('x')", "SELECT * FROM words", "SELECT count(*) FROM seen"):
        assert ranges(text) == docs, text
    assert ranges("SELECT * FROM found_data") >= docs
    assert ranges("SELECT title FROM notes WHERE notes MATCH 'x'") == ranges("DELETE FROM notes") == notes
    assert ranges("UPDATE notes SET title = 'y' WHERE rowid = 5") == notes
    assert ranges("SELECT * FROM notes_content") >= notes
    assert ranges("INSERT INTO docs(title) SELECT value FROM json_each('[1]')") == set()
    assert ranges("INSERT INTO notes(title) VALUES ('x')") == set()
    assert ranges("INSERT OR IGNORE INTO notes(rowid, title) VALUES (1, 'x')") == notes
    assert ranges("INSERT INTO other SELECT rowid FROM notes('x')") == notes


def test_failed_insert_into_a_virtual_table_rests_on_a_read_of_that_table(pair: Pair) -> None:
    pair.run(0, "CREATE VIRTUAL TABLE notes USING fts5(title)")
    pair.run(0, "INSERT INTO notes(rowid, title) VALUES (1, 'alpha')")
    with pytest.raises(ConstraintError) as caught:
        pair.run(0, "INSERT INTO notes(rowid, title) VALUES (1, 'beta')")
    assert caught.value.rests_on is not None
    assert any(low.startswith(b"t:notes") for low, _ in caught.value.rests_on.access_set.read_ranges)


def test_stale_index_is_rebuilt_when_the_file_becomes_a_nodes(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "A.db"))
    for sql in (DOCS, INDEX, "INSERT INTO docs VALUES (1, 'alpha', 'beta', 0)"):
        db.execute(sql)
    db.close()
    node = TestNode(tmp_path / "A.db")
    assert node.rows(MATCH, ("alpha",)) == [(1,)]
    node.run("DELETE FROM docs")
    check_virtual(node.engine._db)
    node.engine.close()

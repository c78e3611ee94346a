"""Statements with expensive steps: the loop gives them up in time, and no change of them is left."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from bedrockish.api.requests import Statement
from bedrockish.engine.engine import Limits
from bedrockish.engine.execution.cursor import Batches, compile_read
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.sqlite.watchdog import Interrupter
from bedrockish.errors import StatementTimeoutError, TooLargeError
from tests.engine.conftest import MakeNode
from tests.engine.nodes import Sql, TestNode, request
from tests.engine.test_interactive import Desk
from tests.processor import at_most

ROWS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000)"
LINE = " + ".join(f"length(hex(zeroblob(400000 + i + {number})))" for number in range(300))
DEAR: dict[str, Sql] = {
    "a long value for each row": f"{ROWS} SELECT sum(length(hex(randomblob(30000000)))) FROM n",
    "half of what the loop takes, for each row": f"{ROWS} SELECT sum(length(hex(randomblob(500000)))) FROM n",
    "many calls between two jumps": f"{ROWS} SELECT {LINE} FROM n",
    "printf": f"{ROWS} SELECT sum(length(printf('%.*c', 900000 + i, 'x'))) FROM n",
    "replace": f"{ROWS} SELECT sum(length(replace(hex(zeroblob(300000 + i)), printf('%.*c', 200000, '0') || 'b', '')))"
    " FROM n",
    "trim": "SELECT trim(hex(zeroblob(120000)), printf('%.*c', 120000, 'x') || '0')",
    "unhex": "SELECT unhex(hex(zeroblob(120000)), printf('%.*c', 120000, 'x'))",
    "LIKE with a long pattern": ("SELECT printf('%.*c', 200000, 'a') LIKE ?", ["%" + "a" * 900 + "b"]),
    "GLOB": ("SELECT printf('%.*c', 900000, 'a') GLOB ?", ["*" + "[b-za]" * 40 + "b"]),
    "a growing text": "WITH RECURSIVE n(i, t) AS (SELECT 1, 'x' UNION ALL SELECT i + 1, t || t FROM n LIMIT 26)"
    " SELECT sum(length(t)), sum(hex(t) > t) FROM n",
    "JSON": f"{ROWS} SELECT sum(json_array_length('[' || printf('%.*c', i, ' ') || replace(hex(zeroblob(200000)),"
    " '00', '1,') || '1]')) FROM n",
    "json_each": f"{ROWS} SELECT count(*) FROM n, json_each('[' || printf('%.*c', i, ' ') ||"
    " replace(hex(zeroblob(200000)), '00', '1,') || '1]')",
    "a pattern for each row": (
        f"{ROWS} SELECT count(*) FROM n CROSS JOIN page WHERE text GLOB ?",
        ["*" + "[b-za]" * 40 + "b"],
    ),
    "JSON for each row": f"{ROWS} SELECT count(*) FROM n CROSS JOIN doc WHERE json_valid(text) AND i",
    "rows that are there": "SELECT count(*) FROM book a, book b WHERE a.text || a.id LIKE b.text || b.id",
    "a write": f"INSERT INTO t {ROWS} SELECT i, length(hex(randomblob(15000000))) FROM n",
    "a write of rows that are there": "UPDATE t SET v = (SELECT sum(length(hex(text))) FROM book)",
    "a trigger": f"INSERT INTO watched(id) {ROWS} SELECT i FROM n",
    "a CHECK": f"INSERT INTO checked(id) {ROWS} SELECT i FROM n",
    "an index": "CREATE INDEX dear ON book(length(hex(text) || hex(text)))",
}


def fill(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", "CREATE TABLE book(id INTEGER PRIMARY KEY, text)")
    node.run("CREATE TABLE watched(id INTEGER PRIMARY KEY)")
    node.run(
        "CREATE TRIGGER dear AFTER INSERT ON watched BEGIN "
        "INSERT INTO t VALUES (new.id, length(hex(randomblob(500000)))); END"
    )
    node.run("CREATE VIRTUAL TABLE found USING fts5(body)")
    node.run("CREATE TABLE checked(id INTEGER PRIMARY KEY CHECK (length(hex(zeroblob(500000 + id))) > 1))")
    for number in range(8, 14):
        node.run(("INSERT INTO book VALUES (?, ?)", (number, f"{number}" * 300_000)))
    node.run("CREATE TABLE page(text)", "CREATE TABLE doc(text)", "INSERT INTO t VALUES (-1, 1)")
    node.run(
        ("INSERT INTO page VALUES (?)", ("a" * 60_000,)), ("INSERT INTO doc VALUES (?)", (f"[{'1,' * 500_000}1]",))
    )


@pytest.mark.parametrize("sql", DEAR.values(), ids=DEAR)
def test_loop_gives_up_expensive_statements_in_time(make_node: MakeNode, sql: Sql) -> None:
    node = make_node()
    fill(node)
    node.engine.set_meta("clock_ceiling", 17)  # a write in the batch, which SQLite rolls back with an interrupted write
    # without the watchdog and the limits of lengths it takes a second to minutes
    with at_most(0.5), pytest.raises(TakesLongError):
        node.engine.execute(request(sql), 0.01)
    assert node.engine.get_meta("clock_ceiling") == {"clock_ceiling": 17}
    assert node.rows("SELECT * FROM t") == [(-1, 1)]
    node.run("INSERT INTO t VALUES (-2, 2)")
    node.save()
    assert node.rows("SELECT count(*), sum(v) FROM t") == [(2, 3)]


@pytest.mark.parametrize("sql", ["JSON for each row", "a pattern for each row", "a write"])
def test_an_open_transaction_leaves_the_loop_in_time(tmp_path: Path, sql: str) -> None:
    """The transaction moves to a worker on its snapshot, with its own writes, and goes on there."""
    desk = Desk(tmp_path / "A.db")
    fill(desk.node)
    desk.node.save()
    session = desk.begin()
    desk.run(session, "SELECT count(*) FROM page")
    for number in range(2):
        (piece, params), *_ = desk.interactive.pieces(session, request(DEAR[sql]).statements[0])
        with at_most(0.5), pytest.raises(TakesLongError):
            desk.interactive.run(session, piece, params, 1 << 20, 0.01)
        desk.run(session, ("INSERT INTO t VALUES (?, 1)", (-10 - number,)))
    desk.commit(session)
    assert desk.node.rows("SELECT id FROM t") == [(-11,), (-10,), (-1,)]
    desk.close()


@pytest.mark.parametrize("sql", ["JSON for each row", "a pattern for each row", "a write"])
def test_statement_of_expensive_steps_is_interrupted_in_a_worker(make_node: MakeNode, sql: str) -> None:
    node = make_node(limits=Limits(statement_s=0.3))
    fill(node)
    node.save()
    workspace = Workspace(node.engine.connector())
    workspace.take_snapshot(node.engine.flushed, node.engine.file_state())
    with at_most(1.0), pytest.raises(StatementTimeoutError):
        workspace.execute(request(DEAR[sql]))
    workspace.end()
    workspace.close()


def test_time_limit_holds_for_each_row_of_a_stream(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "A.db", statement_s=0.3)
    fill(desk.node)
    desk.node.engine.flush()
    interactive = desk.interactive
    text = f"{ROWS} SELECT count(*) FROM n CROSS JOIN page WHERE text GLOB '*{'[b-za]' * 40}b'"
    piece, params, plan = compile_read(interactive.parts.executor, Statement(text))
    rows = Batches(interactive.readers.take_snapshot(), piece, params, plan.lengths)
    with at_most(1.0), pytest.raises(TooLargeError, match="no further row"):
        rows.next_batch()
    rows.close()
    desk.close()


def ladder(rungs: int, above: int) -> str:
    """Return a polygon whose edges nearly all cross one vertical line, so that each is compared with all others."""
    points = [[number if number + 1 & 2 else -number, above + number // 2] for number in range(2 * rungs)]
    return json.dumps([*points, [-2 * rungs, above + rungs], [-2 * rungs, above], points[0]], separators=(",", ":"))


SUMS = ", ".join("+".join(f"max(v + {n + 900 * number})" for n in range(900)) for number in range(2))
NAMES = [f"c{number}" for number in range(100)]
UNIQUE = [f"UNIQUE({one}, {other})" for one in NAMES[:30] for other in NAMES]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        (("SELECT instr(?, 'b')", ["a" * 3_000_000]), r"instr\(\) in a statement .* at most 655360 bytes"),
        (("SELECT trim(?, 'ab')", ["c" * 300_000]), r"trim\(\) .* at most 65536"),
        (("INSERT INTO t SELECT 7, replace(?, 'a', 'b')", ["c" * 3_000_000]), r"replace\(\)"),
        (("SELECT 'a' LIKE ?", ["%a" * 600]), "a pattern of LIKE or GLOB may have 1000 bytes"),
        (("SELECT ? LIKE ?", ["a" * 5_000_000, "%" + "a" * 990 + "b%"]), "may have values of at most 1073741 bytes"),
        (("SELECT ? GLOB '*" + "[ab]" * 40 + "c*'", ["a" * 7_000_000]), "patterns of up to 171 bytes, may have values"),
        (("SELECT ? LIKE text FROM page", ["a" * 20_000_000]), "may have values of at most 16777216 bytes"),
        (("SELECT ? LIKE hex(zeroblob(40)) || text FROM page", ["a"]), "64 here as the value of a column"),
        (("SELECT 'a' LIKE hex(zeroblob(?))", [40]), "and 16 here as the value of a column or an expression"),
        (("SELECT json_patch(?, ?)", ['{"a":1}' + " " * 400_000, '{"b":1}']), r"json_patch\(\) .* at most 163840"),
        (("SELECT jsonb_patch(?, ?)", ['{"a":1}' + " " * 400_000, '{"b":1}']), r"jsonb_patch\(\)"),
        (
            ("SELECT geopoly_overlap(?, ?)", [ladder(12_000, 0), ladder(12_000, 90_000)]),
            r"geopoly_overlap\(\) .* 131072",
        ),
        (("SELECT geopoly_within(?, ?)", [ladder(12_000, 0), ladder(12_000, 90_000)]), r"geopoly_within\(\) .* 131072"),
        (("SELECT count(*) FROM found WHERE found MATCH ?", ["a " * 40_000]), "text of a MATCH may have 65536 bytes"),
        (
            (
                "SELECT count(*) FROM found WHERE found MATCH '\"' || replace(?, 'a', ?) || '\"'",
                ["a " * 400, "b" * 200],
            ),
            "text of a MATCH may have",
        ),
        ("SELECT count(*) FROM page, found WHERE found MATCH hex(page.text)", "text of a MATCH may have"),
        (
            f"SELECT {' + '.join(f'sum(id + {n})' for n in range(900))}" + f", {SUMS} FROM t",
            "2700 aggregates, and at most",
        ),
        (f"CREATE TABLE u({', '.join(NAMES)}, {', '.join(UNIQUE)})", "constraints, and at most 2000"),
        ("CREATE INDEX i ON doc(trim(text, '[1,'))", r"trim\(\)"),
    ],
)
def test_uninterruptible_statement_is_refused_in_a_worker(make_node: MakeNode, sql: Sql, text: str) -> None:
    node = make_node()
    fill(node)
    node.save()
    workspace = Workspace(node.engine.connector())
    for _ in range(2):
        workspace.take_snapshot(node.engine.flushed, node.engine.file_state())
        with pytest.raises(TooLargeError, match=text):
            workspace.execute(request(sql))
        workspace.end()
        workspace.take_snapshot(node.engine.flushed, node.engine.file_state())
        workspace.execute(
            request("SELECT hex(zeroblob(4000000)), 'a' LIKE '%a%'", "SELECT instr('ab', 'b'), trim('abc', 'a')")
        )
        workspace.end()
    workspace.close()


def test_long_cheap_statement_needs_no_thread(make_node: MakeNode) -> None:
    """The limits of lengths do not send everyday statements to a worker."""
    node = make_node()
    node.run("CREATE TABLE note(id INTEGER PRIMARY KEY, title, body, at DEFAULT (datetime('now')))")
    body = "words and words " * 3_000
    texts: list[Sql] = [
        ("INSERT INTO note(title, body) VALUES (?, ?)", ("a", body)),
        ("SELECT id, upper(title), substr(body, 1, 80), length(body) FROM note WHERE body LIKE ?", ("%and w%",)),
        ("UPDATE note SET body = replace(body, ?, ?) WHERE id = 1", ("and", "or")),
        ("INSERT INTO note(title, body) VALUES (?, ?)", ("a", "x" * 900_000)),
        "SELECT json_group_array(title), max(length(body)), trim(max(title), ' .') FROM note WHERE id < 10",
    ]
    for sql in texts:
        node.engine.execute(request(sql), 0.01)


def test_watchdog_interrupts_only_the_late_statement(make_node: MakeNode) -> None:
    """The watchdog interrupts neither between two statements nor a statement of the node's own."""
    node = make_node()
    fill(node)
    for number in range(200):
        with suppress(TakesLongError):
            node.engine.execute(request(f"{ROWS} SELECT sum(i), {number} FROM n"), 0.0001)
        node.engine.set_meta("clock_ceiling", number)
        if number % 20 == 0:
            assert node.engine.flush()
    assert node.engine.get_meta("clock_ceiling") == {"clock_ceiling": 199}


BRIEF: tuple[Sql, ...] = (
    ("INSERT INTO t VALUES (?, ?)", (5, 6)),
    "INSERT INTO t(v) VALUES (7)",
    ("INSERT INTO t VALUES (?, ?) ON CONFLICT(id) DO UPDATE SET v = excluded.v", (5, 7)),
    ("UPDATE t SET v = v + ? WHERE id = ?", (1, 5)),
    ("SELECT v FROM t WHERE id = ?", (5,)),
    ("DELETE FROM t WHERE id = ?", (5,)),
    ("INSERT INTO t VALUES (?, ?) RETURNING id, v + 1, 'x'", (5, 6)),
    ("INSERT INTO t VALUES (?, ?) ON CONFLICT(id) DO UPDATE SET v = excluded.v RETURNING v", (5, 7)),
    ("UPDATE t SET v = v + ? WHERE id = ? RETURNING *", (1, 5)),
    "DELETE FROM t WHERE id = 5 RETURNING v",
)
WATCHED: tuple[Sql, ...] = (
    "SELECT count(*) FROM t",
    "SELECT max(v) FROM t",
    "SELECT id FROM t WHERE v = 1",
    "DELETE FROM t",
    "UPDATE t SET v = 1",
    "INSERT INTO t SELECT id + 100, v FROM t",
    "INSERT INTO watched(id) VALUES (9)",
    "UPDATE t SET v = upper(v) WHERE id = 5",
    "UPDATE t SET v = (SELECT sum(v) FROM t) WHERE id = 5",
    "SELECT v FROM t ORDER BY v",
    "UPDATE t SET v = 1 RETURNING id",
    "DELETE FROM t RETURNING id",
    "DELETE FROM t WHERE v = 1 RETURNING id",
    "INSERT INTO t VALUES (20, 1) RETURNING upper(v)",
    "INSERT INTO t VALUES (20, 1) RETURNING (SELECT max(v) FROM t)",
    "INSERT INTO t SELECT id + 100, v FROM t RETURNING id",
)


@pytest.mark.parametrize("sql", BRIEF + WATCHED)
def test_only_potentially_long_statements_are_watched(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    """Watching brief statements every five milliseconds would take a twentieth of a node's time."""
    node = make_node()
    fill(node)
    begin, begun = Interrupter.begin, list[apsw.Connection]()

    def noted(self: Interrupter, db: apsw.Connection) -> None:
        begun.append(db)
        begin(self, db)

    monkeypatch.setattr(Interrupter, "begin", noted)
    node.engine.execute(request(sql), 0.01)
    assert bool(begun) == (sql in WATCHED)


def members(prefix: str) -> str:
    return "{" + ",".join(f'"{prefix}{number:07d}":1' for number in range(11_900)) + "}"


NESTED = ", ".join(f"x ->> '$.a{number}'" for number in range(100))
ADVERSE: list[tuple[str, list[object]]] = [
    ("SELECT instr(?, ?)", ["a" * (640 << 10), "a" * (320 << 10) + "b"]),
    ("SELECT replace(?, ?, '')", ["a" * (640 << 10), "a" * (320 << 10) + "b"]),
    ("SELECT trim(?, ?)", ["z" * (64 << 10), "".join(chr(0x100 + n % 0x5000) for n in range(21 << 10)) + "z"]),
    ("SELECT unhex(?, ?)", ["-" * (64 << 10), "+" * ((64 << 10) - 1) + "-"]),
    ("SELECT length(json_patch(?, ?))", [members("a"), members("b")]),
    ("SELECT geopoly_overlap(?, ?)", [ladder(4_700, 0), ladder(4_700, 10_000)]),
    ("SELECT count(*) FROM found WHERE found MATCH ?", ["a " * (31 << 10)]),
    ("SELECT ? LIKE ?", ["a" * (60 << 20), "%" + "a" * 60 + "b%"]),
    ("SELECT ? GLOB ?", ["a" * (60 << 20), "*" + "[ab]" * 14 + "c*"]),
    ("SELECT ? LIKE ?", ["a" * (16 << 20), "%" + "a" * 52 + "b%"]),
    ("SELECT ? LIKE ?", ["a" * (1 << 20), "%" + "a" * 900 + "b%"]),
    ("SELECT ? GLOB ?", ["a" * (1 << 20), "*" + ("[" + "b" * 60 + "a]") * 14 + "c*"]),
    ("SELECT " + " + ".join(f"(?1 || '{n}' LIKE ?2)" for n in range(50)), ["a" * (1 << 20), "%" + "a" * 9 + "b%"]),
    ("SELECT " + " + ".join(f"length(upper(?1 || '{n}'))" for n in range(300)), ["a" * (110 << 10)]),
    (f"SELECT {NESTED} FROM (SELECT ? AS x)", ["[" + "1," * 15_000_000 + "1]"]),
    (f"SELECT length(json_insert(?{', ?, 1' * 60}))", ["[" + "1," * 2_000_000 + "1]", *["$[#]"] * 60]),
]


@pytest.mark.parametrize("sql", ADVERSE)
def test_longest_taken_call_ends_in_seconds(make_node: MakeNode, sql: Sql) -> None:
    """A call that nothing can interrupt takes at most about as long as a node takes to stop."""
    node = make_node()
    node.run("CREATE VIRTUAL TABLE found USING fts5(body)")
    node.save()
    workspace = Workspace(node.engine.connector())
    workspace.take_snapshot(node.engine.flushed, node.engine.file_state())
    with at_most(8), suppress(TooLargeError):  # about 2 on the machine where the limits were measured
        workspace.execute(request(sql))
    workspace.end()
    workspace.close()


BIG = "a" * (30 << 20)
GREEDY: dict[str, Sql] = {
    "a parameter in each column": (f"SELECT {', '.join(['?1'] * 2_000)}", [BIG]),
    "a value in each column": f"SELECT {', '.join(['text'] * 2_000)} FROM long",
    "a row for each column": "SELECT " + ", ".join(f"(SELECT text FROM long WHERE id = {n})" for n in (7,) * 400),
    "many tables": f"SELECT * FROM {', '.join(f'long l{number}' for number in range(60))}",
    "calls in one expression": ("SELECT " + " + ".join(f"length(upper(?1 || '{n}'))" for n in range(300)), [BIG]),
    "calls in one row": "SELECT " + ", ".join(f"hex(zeroblob(15000000 + {number}))" for number in range(1_000)),
    "concatenations": ("SELECT " + ", ".join(f"length(?1 || '{number}')" for number in range(800)), [BIG]),
    "changed columns": f"UPDATE wide SET {', '.join(f'c{n} = (SELECT text FROM long)' for n in range(300))}",
    "a trigger's columns": ("INSERT INTO noted VALUES (?)", [BIG]),
    "returned columns": f"UPDATE long SET id = 8 RETURNING {', '.join(['text'] * 1_000)}",
    "json_quote": ("SELECT length(json_quote(?))", [BIG + "\x01" * (20 << 20)]),
    "json_pretty": ("SELECT json_pretty(?)", ["[" * 900 + "1," * 100_000 + "1" + "]" * 900]),
    "json_pretty with long steps": ("SELECT json_pretty(?, ?)", ["[" * 900 + "1" + "]" * 900, BIG]),
}


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestNode]:
    """Return a node that all expensive statements share, because they change nothing."""
    node = TestNode(tmp_path_factory.mktemp("greedy") / "A.db")
    node.run("CREATE TABLE long(id INTEGER PRIMARY KEY, text)", ("INSERT INTO long VALUES (7, ?)", (BIG,)))
    node.run(
        f"CREATE TABLE wide({', '.join(f'c{number}' for number in range(300))})", "INSERT INTO wide(c0) VALUES (1)"
    )
    node.run("CREATE TABLE noted(text)")
    values = ", ".join(f"new.text || '{number}'" for number in range(300))
    node.run(f"CREATE TRIGGER many AFTER INSERT ON noted BEGIN INSERT INTO wide VALUES ({values}); END")
    node.save()
    yield node
    node.engine.close()


@pytest.mark.parametrize("sql", GREEDY.values(), ids=GREEDY)
def test_memory_of_a_row_is_bounded_before_it_is_made(greedy: TestNode, sql: Sql) -> None:
    """SQLite builds a row in one step, without an interrupt or a memory limit; a row could take gigabytes."""
    node = greedy
    workspace = Workspace(node.engine.connector())
    workspace.take_snapshot(node.engine.flushed, node.engine.file_state())
    apsw.memory_high_water(True)
    before = apsw.memory_used()
    with at_most(5), pytest.raises(TooLargeError, match=r"makes or copies|json_pretty"):
        workspace.execute(request(sql))
    assert apsw.memory_high_water() - before < 300 << 20
    workspace.end()
    workspace.close()


def test_ordinary_statements_accept_values_of_many_megabytes(make_node: MakeNode) -> None:
    node = make_node()
    columns = ", ".join(f"c{number}" for number in range(20))
    node.run(f"CREATE TABLE doc(id INTEGER PRIMARY KEY, {columns})", "CREATE INDEX by_c3 ON doc(c3, c4)")
    node.save()
    document = '{"a": 1, "b": "' + "x" * (9 << 20) + '"}'
    updated = ", ".join(f"c{number} = excluded.c{number}" for number in range(20))
    texts: list[Sql] = [
        (f"INSERT INTO doc VALUES ({', '.join('?' * 21)})", [1, document, *range(19)]),
        (
            f"INSERT INTO doc VALUES ({', '.join('?' * 21)}) ON CONFLICT (id) DO UPDATE SET {updated} RETURNING id, c0",
            [1, document, *range(19)],
        ),
        ("UPDATE doc SET c0 = json_set(c0, '$.a', ?) WHERE id = 1", [2]),
        ("SELECT * FROM doc WHERE c0 LIKE ?", ["%xxx%"]),
        ("SELECT c0 ->> '$.a', json_extract(c0, '$.a', '$.c'), length(c0), upper(c1), c2 FROM doc", []),
    ]
    for sql in texts:
        workspace = Workspace(node.engine.connector())
        workspace.take_snapshot(node.engine.flushed, node.engine.file_state())
        workspace.execute(request(sql))
        workspace.end()
        workspace.close()
        node.run(sql)
        node.save()


def test_ordinary_searches_are_not_limited_by_long_documents(make_node: MakeNode) -> None:
    node = make_node()
    node.run("CREATE VIRTUAL TABLE found USING fts5(title, body)")
    body = "a word and another " * 30_000
    node.run(("INSERT INTO found VALUES (?, ?)", ("title", body)))
    node.save()
    texts: list[Sql] = [
        ("SELECT body FROM found WHERE found MATCH ?", ["another"]),
        ("SELECT body FROM found WHERE body MATCH ? || '*' AND rowid = ?", ["anoth", 1]),
        ("SELECT body FROM found WHERE found MATCH '\"' || replace(lower(?), '\"', '\"\"') || '\"'", ["ANOTHER"]),
        ("SELECT body, bm25(found) FROM found(?) ORDER BY rank", ["word another"]),
    ]
    for sql in texts:
        assert node.run(sql)[0].rows[0][0] == body


@pytest.mark.parametrize("name", ["own", "docs"])
def test_text_that_fts5_cuts_into_words_is_bounded_for_a_transaction(make_node: MakeNode, name: str) -> None:
    node = make_node()
    node.run("CREATE VIRTUAL TABLE own USING fts5(body, note)", "CREATE TABLE docs(id INTEGER PRIMARY KEY, body, note)")
    node.run("CREATE VIRTUAL TABLE by_body USING fts5(body, content='docs', content_rowid='id')")
    node.run((f"INSERT INTO {name}(body, note) VALUES (?, ?)", ("word " * 1_200_000, "")))
    with pytest.raises(TooLargeError, match="bytes to be indexed by FTS5"):
        node.run(
            (f"INSERT INTO {name}(body, note) VALUES (?, ?), (?, ?)", ("word " * 900_000, "", "word " * 900_000, ""))
        )
    if name == "docs":
        node.run((f"UPDATE {name} SET note = ?", ("x" * (9 << 20),)))
        with pytest.raises(TooLargeError, match="bytes to be indexed by FTS5"):
            node.run(f"UPDATE {name} SET body = body || 'x'")
    node.run(f"UPDATE {name} SET body = 'short'")
    found = node.run("SELECT rowid FROM own('short')", "SELECT rowid FROM by_body('short')")
    assert [one.rows for one in found] == ([[(1,)], []] if name == "own" else [[], [(1,)]])

"""The shell at a real node: in a terminal, as a user sees it, and in pipes, as programs use it."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest
import trio

from bedrockish import dbapi
from bedrockish.cli.shell import prompt
from bedrockish.cli.shell.script import ScriptCommand, ScriptStatement, Unit, group, items
from bedrockish.client.blocking import Connection, connect
from bedrockish.errors import UsageError
from tests.forked import program
from tools.cluster import ROOT, LocalCluster, clean_environment, local_cluster

pytestmark = pytest.mark.cluster

PROGRAM = [sys.executable, "-m", "bedrockish.cli.main"]
WAIT_S = 60
# a prompt switches this mode on when it begins, and off when it has the text
ASKED, TAKEN = "\x1b[?2004h", "\x1b[?2004l"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("shell"), ("A",)) as running:
        trio.run(running.wait_ready, 0)
        yield running


@pytest.fixture
def db(node: LocalCluster) -> Iterator[Connection]:
    """A session at an empty node."""
    with connect(node.url()) as connection:
        yield connection
        kinds = connection.execute(
            "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') "
            "AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'bedrockish%' ORDER BY rowid DESC"
        )
        for kind, name in kinds:
            connection.execute(f'DROP {kind} "{name}"')


def run(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return program(*arguments, stdin=stdin, cwd=cwd, timeout=WAIT_S)


def script(node: LocalCluster, text: str, cwd: Path | None = None) -> str:
    done = run("sql", node.url(), stdin=text, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(node: LocalCluster, text: str, status: int = 2) -> str:
    done = run("sql", node.url(), stdin=text)
    assert done.returncode == status, done
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def interruptible() -> None:
    """Ctrl-C works as in a terminal, even if these tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Terminal:
    """A person at the prompt."""

    def __init__(self, node: LocalCluster, home: Path) -> None:
        environment = {**clean_environment(), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "HOME": str(home)}
        self.child: Any = pexpect.spawn(
            PROGRAM[0],
            [*PROGRAM[1:], "sql", node.url()],
            env=environment,
            cwd=str(ROOT),
            timeout=WAIT_S,
            dimensions=(40, 120),
            encoding="utf-8",
            preexec_fn=interruptible,
        )
        self.is_asked("bedrockish>")

    def types(self, text: str, *sees: str, sign: str = "bedrockish>") -> None:
        """Type a statement; wait for its output, and for the next prompt."""
        self.child.send(text + "\r")
        self.child.expect_exact(TAKEN)
        for one in sees:
            self.sees(one)
        self.is_asked(sign)

    def begins(self, text: str) -> None:
        """Type a line that does not end a statement."""
        self.child.send(text + "\r")
        self.sees("...>")

    def completes(self, text: str, rest: str) -> None:
        """Type the beginning of a name and Tab; wait for the rest of it."""
        self.child.send(text + "\t")
        self.sees(rest)

    def sees(self, text: str) -> None:
        # The prompt draws typed text in steps, with escape sequences in between.
        self.child.expect(r"(?:\x1b\[[0-9;?]*[a-zA-Z])*".join(map(re.escape, text)))

    def is_asked(self, sign: str) -> None:
        self.child.expect_exact(ASKED)
        self.sees(sign)

    def leaves(self) -> int:
        self.child.send("\x04")
        self.child.expect(pexpect.EOF)
        self.child.close()
        status: int = self.child.exitstatus
        return status


@pytest.fixture
def terminal(node: LocalCluster, db: Connection, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(node, tmp_path)
    yield opened
    opened.child.close(force=True)


def test_history_of_a_user_without_a_home_is_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run programs as users without an entry in /etc/passwd."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv(prompt.HISTORY_VARIABLE, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert type(prompt._history()).__name__ == "InMemoryHistory"


def test_prompt_takes_statements_of_several_lines_modes_and_errors(terminal: Terminal, db: Connection) -> None:
    terminal.begins("CREATE TABLE fruit(")
    terminal.types("  name TEXT, price);", "done (A")
    terminal.types("INSERT INTO fruit VALUES ('fig', 3);", "1 row changed (A")
    terminal.types("SELECT * FROM fruit;", "│ fig  │ 3     │")
    terminal.types(".mode json")
    terminal.types("SELECT * FROM fruit;", '[{"name":"fig","price":3}]')
    terminal.types("SELECT * FROM vegetable;", "error: no such table: vegetable")
    terminal.types(".tabels", "error: there is no .tabels; did you mean .tables?")
    terminal.types(".tables", "fruit")
    assert terminal.leaves() == 0
    assert list(db.execute("SELECT * FROM fruit")) == [("fig", 3)]


def test_shell_completes_names_of_tables_and_columns(terminal: Terminal) -> None:
    terminal.types("CREATE TABLE remarkable(curiosity);", "done")
    terminal.types(".mode plain")
    terminal.completes("INSERT INTO rema", "rkable")
    terminal.types(" VALUES (41 + 1);")
    terminal.completes("SELECT curio", "sity")
    terminal.completes(" FROM rema", "rkable")
    terminal.types(";", "42")
    terminal.completes(".tab", "les")
    terminal.types("", "remarkable")
    assert terminal.leaves() == 0


def test_shell_keeps_a_transaction_open_between_lines(terminal: Terminal, db: Connection) -> None:
    db.execute("CREATE TABLE t(x)")
    terminal.types("BEGIN;", sign="begin>")
    terminal.types("INSERT INTO t VALUES (1);", "1 row changed", sign="begin>")
    terminal.types("SELECT x + 100 FROM t;", "101", sign="begin>")
    assert list(db.execute("SELECT * FROM t")) == []
    terminal.types("COMMIT;", "done (A")
    assert list(db.execute("SELECT * FROM t")) == [(1,)]
    terminal.types("BEGIN;", sign="begin>")
    terminal.types("DELETE FROM t;", "1 row changed", sign="begin>")
    terminal.child.send("\x04")
    terminal.sees("the open transaction was rolled back")
    terminal.child.expect(pexpect.EOF)
    assert list(db.execute("SELECT * FROM t")) == [(1,)]


def test_control_c_discards_typed_text(terminal: Terminal) -> None:
    terminal.begins("SELECT 'half")
    terminal.child.send("\x03")
    terminal.is_asked("bedrockish>")
    terminal.types(".mode plain")
    terminal.types("SELECT 'who' || 'le';", "whole\r\n")
    assert terminal.leaves() == 0


def test_control_c_rolls_back_the_open_transaction(terminal: Terminal, db: Connection) -> None:
    db.execute("CREATE TABLE t(x)")
    terminal.types("BEGIN;", sign="begin>")
    terminal.types("INSERT INTO t VALUES (1);", "1 row changed", sign="begin>")
    counts = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    terminal.child.send(f"SELECT 'go' || 'ing'; {counts};\r")
    terminal.sees("going")
    terminal.child.send("\x03")
    terminal.sees("the open transaction was rolled back")
    terminal.is_asked("bedrockish>")
    assert terminal.leaves() == 0
    assert list(db.execute("SELECT * FROM t")) == []


def test_shell_recalls_statements_of_an_earlier_session(terminal: Terminal, node: LocalCluster, tmp_path: Path) -> None:
    terminal.types("SELECT 'remember ' || 'me';", "remember me")
    assert terminal.leaves() == 0
    assert "'remember ' || 'me'" in (tmp_path / ".bedrockish_history").read_text()
    again = Terminal(node, tmp_path)
    again.child.send("\x1b[A")
    again.types("", "remember me")
    assert again.leaves() == 0


def test_shell_scripts_may_contain_dot_commands(node: LocalCluster, db: Connection, tmp_path: Path) -> None:
    text = """
        CREATE TABLE a(id INTEGER PRIMARY KEY, b TEXT, c BLOB);
        CREATE INDEX a_b ON a(b);
        CREATE TRIGGER a_t AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;
        INSERT INTO a VALUES (1, 'it''s
.no command', x'00ff'), (2, NULL, 1.5);
.tables
.indexes a
.schema a_b
.headers on
.mode csv
.nullvalue none
SELECT b FROM a WHERE id = 2;
.mode list
.headers off
SELECT id, b FROM a WHERE id = 2;
.mode insert copy
SELECT id, c FROM a;
.output out.txt
SELECT 7;
.output
.mode plain
.read-level strict
.read-level
.quit
SELECT 'never';
"""
    out = script(node, text, tmp_path)
    assert out.splitlines() == [
        "a",
        "a_b",
        "CREATE INDEX a_b ON a(b);",
        "b",
        "none",
        "2|none",
        "INSERT INTO copy VALUES(1,X'00ff');",
        "INSERT INTO copy VALUES(2,1.5);",
        "strict",
    ]
    assert (tmp_path / "out.txt").read_text() == "INSERT INTO copy VALUES(7);\n"


def test_help_lists_commands_and_timer_prints_times(node: LocalCluster) -> None:
    assert ".read-level [LEVEL]" in script(node, ".help")
    assert re.search(r"Run Time: real \d", script(node, ".timer on\nSELECT 1;"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT 1;\n\n.tabels", "stdin:3: there is no .tabels; did you mean .tables?"),
        ("SELECT\n x FROM nowhere;", "stdin:1: no such table: nowhere"),
        (".mode", None),
        (".mode xml", "there is no mode 'xml'; there is box, column"),
        (".headers maybe", "write on or off"),
        (".import", "write .import [--csv|--tabs]"),
        (".import --fast a b", "has no option --fast"),
        (".import no/such.csv t", "no/such.csv: there is no such file"),
        (".read no/such.sql", "no/such.sql: No such file"),
        (".output no/such/file", "no/such/file: No such file"),
        (".dump nowhere", "there is no table 'nowhere'"),
        (".mode box --wrap many", "write a number from 0"),
        (".schema 'half", "no closing quotation"),
        (".read-level best", "there is no read level 'best'"),
        ("BEGIN;\n.quit", "stdin:1: BEGIN without COMMIT"),
        ("COMMIT;", "stdin:1: COMMIT without BEGIN"),
    ],
)
def test_mistake_in_a_dot_command_is_reported_in_one_line(node: LocalCluster, text: str, says: str | None) -> None:
    if says is None:
        assert script(node, text) == "mode plain\n"
    else:
        assert says in refused(node, text)


def test_statements_that_need_a_transaction_open_one(node: LocalCluster, db: Connection) -> None:
    db.execute("CREATE TABLE t(x)")
    out = script(
        node,
        "BEGIN; INSERT INTO t VALUES (1); SELECT 'a', count(*) FROM t; ROLLBACK;"
        "BEGIN; INSERT INTO t VALUES (2); SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; COMMIT;\n"
        "BEGIN; INSERT INTO t VALUES (3);\n.mode csv\nSELECT count(*) AS n FROM t; COMMIT;",
    )
    assert out == "a\t1\nn\r\n2\r\n" or out == "a\t1\nn\n2\n"
    assert sorted(db.execute("SELECT * FROM t")) == [(2,), (3,)]
    refused(node, "BEGIN; INSERT INTO t VALUES (4); SAVEPOINT s; SELECT * FROM nowhere; COMMIT;")
    assert sorted(db.execute("SELECT * FROM t")) == [(2,), (3,)]


def test_shell_script_may_read_another_script(node: LocalCluster, db: Connection, tmp_path: Path) -> None:
    (tmp_path / "b.sql").write_text("CREATE TABLE t(x);\nINSERT INTO t VALUES (1);\nSELECT x + 1 FROM t;\n")
    assert script(node, f".read {tmp_path}/b.sql\nSELECT 'end';") == "2\nend\n"
    (tmp_path / "a.sql").write_text(f"SELECT 1;\n.read {tmp_path}/a.sql\n")
    assert "does one read itself?" in refused(node, f".read {tmp_path}/a.sql")


def test_a_dump_is_read_by_sqlite_and_by_the_shell(node: LocalCluster, db: Connection) -> None:
    """The dump has text with quotes and zeros, infinite numbers, and tables that refer to themselves and each other."""
    db.execute("CREATE TABLE child(id INTEGER PRIMARY KEY, up REFERENCES parent(id), v)")
    db.execute("CREATE TABLE parent(id INTEGER PRIMARY KEY, boss REFERENCES parent(id), twice AS (id * 2))")
    db.execute("CREATE VIEW pairs AS SELECT * FROM child JOIN parent ON up = parent.id")
    db.execute("CREATE TRIGGER late AFTER INSERT ON child BEGIN UPDATE child SET v = 'wrong' WHERE id = NEW.id; END")
    db.transact(["PRAGMA defer_foreign_keys = ON", "INSERT INTO parent(id, boss) VALUES (1, 2), (2, 2)"])
    values = ["it's", "a\0b", 1e308 * 10, -7, b"\0\xff", None, "né\n;"]
    db.execute("DROP TRIGGER late")
    db.transact([("INSERT INTO child VALUES (?, 1, ?)", (n, v)) for n, v in enumerate(values)])
    db.execute("CREATE TRIGGER late AFTER INSERT ON child BEGIN UPDATE child SET v = 'wrong' WHERE id = NEW.id; END")
    dumped = script(node, ".dump")
    expected = list(db.execute("SELECT * FROM child ORDER BY id"))
    with sqlite3.connect(":memory:") as plain:
        plain.executescript(dumped)
        assert plain.execute("SELECT * FROM child ORDER BY id").fetchall() == expected
        assert plain.execute("SELECT * FROM parent").fetchall() == [(1, 2, 2), (2, 2, 4)]
    plain.close()
    for statement in ("DROP VIEW pairs", "DROP TABLE child", "DROP TABLE parent"):
        db.execute(statement)
    script(node, dumped)
    assert list(db.execute("SELECT * FROM child ORDER BY id")) == expected
    assert script(node, ".dump") == dumped
    assert "CREATE VIEW" not in script(node, ".dump parent")


def test_a_dump_with_vectors_is_read_again(node: LocalCluster, db: Connection) -> None:
    pytest.importorskip("sqlite_vec")
    made = (
        "CREATE VIRTUAL TABLE near USING vec0(id INTEGER PRIMARY KEY, e float[2], s int8[4], shop TEXT, +note TEXT)",
        "CREATE VIRTUAL TABLE bare USING vec0(b bit[8])",
        "CREATE VIRTUAL TABLE plain USING vec1(e, shop)",
    )
    for sql in made:
        db.execute(sql)
    rows = (
        "INSERT INTO near VALUES (7, '[1, 2]', vec_int8('[1, 2, 3, 4]'), 'a', 'x')",
        "INSERT INTO bare(rowid, b) VALUES (5, vec_bit(X'0f'))",
        "INSERT INTO plain(rowid, e, shop) VALUES (3, vec_f32('[1, 2]'), 'b')",
    )
    db.transact(list(rows))
    names = ("near", "bare", "plain")
    before = [db.execute(f"SELECT * FROM {name}").rows for name in names]
    dumped = script(node, ".dump")
    with closing(dbapi.connect(node.url())) as program:
        texts = list(program.iterdump())
    assert not [line for line in [*dumped.splitlines(), *texts] if line.startswith("CREATE TABLE")]
    for again in (dumped, "\n".join(texts[1:-1])):
        for name in names:
            db.execute(f"DROP TABLE {name}")
        script(node, again)
        assert [db.execute(f"SELECT * FROM {name}").rows for name in names] == before
    assert script(node, ".dump") == dumped
    for name in names:
        db.execute(f"DROP TABLE {name}")


def test_script_is_split_into_statements_and_dot_commands() -> None:
    found = list(items("SELECT 1; SELECT 2;\n.mode csv\n-- note\n.tables\nSELECT '\n.x';", "f"))
    assert found == [
        ScriptStatement("SELECT 1;", "f:1"),
        ScriptStatement("SELECT 2;", "f:1"),
        ScriptCommand(".mode csv", "f:2"),
        ScriptCommand(".tables", "f:4"),
        ScriptStatement("SELECT '\n.x';", "f:5"),
    ]
    assert [type(one) for one in group(items("BEGIN;\nX;\nCOMMIT;\nY;", "f"))] == [Unit, Unit]
    assert [type(one) for one in group(items("BEGIN;\nX;\n.mode csv\nCOMMIT;", "f"))] == [
        ScriptStatement,
        ScriptStatement,
        ScriptCommand,
        ScriptStatement,
    ]
    with pytest.raises(UsageError, match="f:1: BEGIN without COMMIT"):
        list(group(items("BEGIN;\nSELECT 1;", "f")))

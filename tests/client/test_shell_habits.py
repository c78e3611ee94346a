"""Habits from sqlite3's shell, at a real node: parameters, files, a narrow terminal, Ctrl-C, broken pipes."""

import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from bedrockish.client.blocking import Connection, connect
from tests.client.test_shell import PROGRAM, Terminal, interruptible, refused, run, script
from tools.cluster import LocalCluster, clean_environment, local_cluster

pytestmark = pytest.mark.cluster

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("habits"), ("A",)) as running:
        trio.run(running.wait_ready, 0)
        yield running


@pytest.fixture
def db(node: LocalCluster) -> Iterator[Connection]:
    with connect(node.url()) as connection:
        yield connection
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' "
            "AND name NOT LIKE 'bedrockish%'"
        ):
            connection.execute('DROP TABLE "' + str(name).replace('"', '""') + '"')


def on_terminal(*arguments: str, columns: int = 80) -> str:
    """Run the program on a terminal of that width, and return its output."""
    ours, theirs = pty.openpty()
    environment = {**clean_environment(), "TERM": "dumb", "COLUMNS": str(columns), "NO_COLOR": "1"}
    done = subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said = b""
    until = time.monotonic() + 60
    try:
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    piece = os.read(ours, 1 << 16)
                except OSError:  # the other end is closed
                    break
                if not piece:
                    break
                said += piece
    finally:
        done.kill()
        done.wait()
        os.close(ours)
    return said.decode().replace("\r\n", "\n")


def test_shell_parameters_are_bound_to_statements(node: LocalCluster, db: Connection) -> None:
    out = script(
        node,
        ".parameter init\n.parameter set :x \"'a; b'\"\n.parameter set @n 40+2\n.parameter list\n"
        "SELECT :x, @n, $unset;\nBEGIN; CREATE TABLE t(a); COMMIT;\n"
        "BEGIN; INSERT INTO t VALUES (:x); INSERT INTO t VALUES (@n); COMMIT;\n"
        ".parameter unset :x\nSELECT :x;\n.parameter clear\n.parameter list\nSELECT a FROM t;",
    )
    assert out.splitlines() == [":x 'a; b'", "@n 42", "a; b\t42\tNULL", "NULL", "a; b", "42"]
    assert "parameter's name begins" in refused(node, ".parameter set x 1")
    assert "write .parameter set" in refused(node, ".parameter what")


def test_dot_once_writes_only_the_next_result_to_a_file(node: LocalCluster, tmp_path: Path) -> None:
    out = script(node, ".once one.txt\n.mode csv\nSELECT 1 AS a;\nSELECT 2 AS a;", tmp_path)
    assert (tmp_path / "one.txt").read_bytes() == b"a\r\n1\r\n"
    assert out.split() == ["a", "2"]
    for wrong in (".once |cat", ".output |cat"):
        assert "output goes to a file" in refused(node, wrong)
    assert "no/such/place" in refused(node, ".once no/such/place")
    said = refused(node, f".once {tmp_path}/two.txt\nSELECT missing;")
    assert "no such column" in said


def test_dot_databases_prints_the_node(node: LocalCluster) -> None:
    assert script(node, ".databases") == "main: cluster bedrockish at node A r/w\n"


def test_a_wrong_line_of_a_csv_is_named_by_its_number(node: LocalCluster, db: Connection, tmp_path: Path) -> None:
    """The number is that of the line in the file, also after rows of several lines; the rows before it are there."""
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v CHECK(v <> 'bad'))")
    rows = [f'{n},"of two\nlines"' for n in range(1, 1501)] + ["1501,bad", "1502,good"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    said = refused(node, f".import {tmp_path}/t.csv t")
    assert "(line 3001): CHECK constraint failed" in said
    assert "the 1000 rows before are in the table" in said
    assert db.execute("SELECT count(*) FROM t").value() == 1000


@pytest.mark.parametrize("what", [("nodes",), ("status",)])
def test_status_and_nodes_fit_into_eighty_columns(node: LocalCluster, what: tuple[str, ...]) -> None:
    """No line is longer than the terminal, and all facts are there; a pipe gets one line for each node."""
    command = (what[0], node.url(), *what[1:])
    said = on_terminal(*command, columns=80)
    assert max(map(len, said.splitlines())) <= 80, said
    for fact in ("address", "role", "voter", "applied", "silent_ms"):
        assert fact in said
    (line,) = (line for line in run(*command).stdout.splitlines() if re.match(r" *A .* voter", line))
    assert len(line) > 80


def test_box_is_folded_to_the_width_of_a_narrow_terminal(node: LocalCluster) -> None:
    said = on_terminal("sql", node.url(), "SELECT 'word' AS a, printf('%0300d', 7) AS b", columns=40)
    assert max(map(len, said.splitlines())) <= 40
    assert said.count("0") >= 299


def test_shell_escapes_control_characters_in_all_output(node: LocalCluster, db: Connection) -> None:
    """The shell prints names of tables and columns, values, error texts, and the SQL of the schema."""
    db.execute(f'CREATE TABLE "t{EVIL}"("c{EVIL}")')
    db.execute(f'CREATE INDEX "i{EVIL}" ON "t{EVIL}"("c{EVIL}")')
    db.execute(f'INSERT INTO "t{EVIL}" VALUES (?)', [EVIL])
    commands = [".tables", ".indexes", ".schema", ".dump", f'SELECT * FROM "t{EVIL}"', f'SELECT * FROM "no{EVIL}"']
    commands += [f".{EVIL}", f".mode {EVIL}"]
    for command in commands:
        said = on_terminal("sql", node.url(), command)
        assert said.strip()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said), (command, said)
    with closing(sqlite3.connect(":memory:")) as plain:  # a file gets it exactly
        plain.executescript(script(node, ".dump"))
        assert plain.execute(f'SELECT * FROM "t{EVIL}"').fetchall() == [(EVIL,)]


def test_closed_output_pipe_is_not_an_error(node: LocalCluster, db: Connection) -> None:
    db.execute("CREATE TABLE t(a)")
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000)"
    db.execute(f"INSERT INTO t {many} SELECT printf('%0100d', i) FROM n")
    for command in ("SELECT * FROM t", ".dump", ".mode box\nSELECT * FROM t;"):
        process = subprocess.Popen(
            [*PROGRAM, "sql", node.url()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(command.encode())
        process.stdin.close()
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(60) in (0, 1)


def until_running(node: LocalCluster, count: int) -> None:
    """Wait until a node runs this number of long statements."""
    until = time.monotonic() + 60
    with connect(node.url()) as db:
        while db.status()["workers"]["running"] != count:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_control_c_ends_the_statement_and_not_the_shell(node: LocalCluster, tmp_path: Path) -> None:
    terminal = Terminal(node, tmp_path)
    try:
        for _ in range(2):
            until_running(node, 0)  # the node may still be ending the statement before
            terminal.child.send(ENDLESS + ";\r")
            until_running(node, 1)
            terminal.child.send("\x03")
            terminal.sees("interrupted")
            terminal.is_asked("bedrockish>")
        terminal.types("SELECT 40 + 2 AS answer;", "answer", "42")
        terminal.types("SELECT NULL AS missing;", "│ NULL    │")
        assert terminal.leaves() == 0
    finally:
        terminal.child.close(force=True)


def test_control_c_ends_a_script_with_130(node: LocalCluster) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "sql", node.url(), "SELECT 1", ENDLESS, "SELECT 2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        preexec_fn=interruptible,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err

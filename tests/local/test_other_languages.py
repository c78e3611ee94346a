"""A node's file read by other SQLite libraries: the example of docs/local.md, the shell, and the traps."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish.client.blocking import Connection
from bedrockish.errors import BedrockishError
from tests.local.conftest import stopped_node
from tests.test_tidy import ROOT
from tools.cluster import LocalCluster, LocalNode, local_cluster

PAGE = (ROOT / "docs" / "local.md").read_text()
IMMUTABLE = """
import sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?immutable=1", uri=True, isolation_level=None)
print(db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'item'").fetchone()[0])
"""


def example() -> str:
    """Return the program of the section."""
    section = PAGE.split("## From other languages")[1].split("\n## ")[0]
    return section.split("```python\n")[1].split("```")[0]


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A node whose write-ahead log no other test fills."""
    with local_cluster(tmp_path_factory.mktemp("languages") / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        yield cluster


@pytest.fixture
def db(alone: LocalCluster) -> Connection:
    with bedrockish.connect(alone.url()) as made:
        made.execute("DROP TABLE IF EXISTS item")
        made.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, a)")
        return made


def test_example_reads_commit_of_given_place(db: Connection, alone: LocalCluster, node: LocalNode) -> None:
    with bedrockish.connect(alone.url()) as writer:
        for number in range(1, 6):
            place = writer.execute("INSERT INTO item VALUES (?, 'x')", (number,)).place
            assert place is not None
            told = run(example(), str(node.database), place[0], str(place[1]))
            assert told.stdout == f"{[(one, 'x') for one in range(1, number + 1)]}\n", told.stderr


def test_example_refuses_a_node_that_has_stopped(tmp_path: Path) -> None:
    with stopped_node(tmp_path / "one") as node:
        told = run(example(), str(node.database), "A", "1")
        assert "does not serve its file now" in told.stderr


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the shell of SQLite is not installed")
def test_documented_sqlite3_command_prints_the_applied_vector(db: Connection, node: LocalNode) -> None:
    (command,) = re.findall(r"^(sqlite3 .*)$", PAGE, flags=re.MULTILINE)
    command = command.replace("/var/lib/app/A.sqlite", str(node.database))
    told = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=30)
    assert re.fullmatch(r'\{"A":\d+\}\n', told.stdout), (told.stdout, told.stderr)


def test_reader_with_immutable_misses_rows(db: Connection, node: LocalNode) -> None:
    """Such a reader ignores the WAL, so docs/local.md forbids it."""
    assert run(IMMUTABLE, str(node.database)).stdout != "1\n"
    plain = run(IMMUTABLE.replace("immutable=1", "mode=ro"), str(node.database))
    assert plain.stdout == "1\n", plain.stderr


def test_reader_of_another_library_leaves_the_wal_alone(db: Connection, alone: LocalCluster, node: LocalNode) -> None:
    wal = node.directory / "A.sqlite-wal"
    before = wal.stat()
    run(IMMUTABLE.replace("immutable=1", "mode=ro"), str(node.database))
    after = wal.stat()  # the node may have written in between
    assert after.st_ino == before.st_ino
    assert after.st_size >= before.st_size
    with bedrockish.connect(alone.url()) as writer:
        writer.execute("INSERT INTO item VALUES (100, 'y')")


READ_ONLY = """
import sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
print(db.execute("SELECT count(*) FROM item").fetchone()[0])
"""
WRITER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
until = time.monotonic() + 30
while time.monotonic() < until:
    try:
        db.execute("INSERT INTO item VALUES (-1, 'by another program')")
    except sqlite3.OperationalError as error:
        if sys.argv[2] == "once":
            print(error)
            break
    else:
        print("written")
        break
"""


def write_all(db: Connection, numbers: Iterator[int]) -> None:
    for number in numbers:
        db.execute("INSERT INTO item VALUES (?, 'x')", (number,), timeout=10)


def test_plain_writer_ends_the_node_and_readers_do_not_notice(tmp_path: Path) -> None:
    """docs/local.md warns of this: the node cannot know the written rows, and SQLite does not know the node."""
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        path = str(node.database)
        with bedrockish.connect(cluster.url()) as db:
            db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, a)")
            assert run(READ_ONLY, path).stdout == "0\n"
            assert run(WRITER, path, "once").stdout == "database is locked\n"
            # The file is unlocked only between two batches of the node, for a moment; this program waits for one.
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, path, "often"], stdout=subprocess.PIPE, text=True
            ) as it:
                numbers = iter(range(100_000))
                with pytest.raises(BedrockishError):
                    write_all(db, numbers)
                assert next(numbers, None) is not None
                assert it.communicate()[0] == "written\n"
        assert node.process is not None
        assert node.process.wait(60) != 0
        assert "another program has written to the node's file" in node.log.read_text()
        assert int(run(READ_ONLY, path).stdout) > 0, "nothing but the page tells that the node has ended"


@pytest.mark.slow
def test_javascript_reads_its_own_write(tmp_path: Path) -> None:
    """``better-sqlite3`` from npm, which is compiled where it is installed."""
    if shutil.which("npm") is None or shutil.which("g++") is None:
        pytest.skip("no npm or no compiler here: the JavaScript example is not tried")
    npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "better-sqlite3@12"]
    made = subprocess.run(npm, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1200)
    assert made.returncode == 0, made.stderr[-1000:]
    shutil.copy(ROOT / "examples" / "local.mjs", tmp_path)
    with local_cluster(tmp_path / "one", ("A",), http=True) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        with bedrockish.connect(cluster.url()) as db:
            db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, a)")
        expected = []
        command = ["node", "local.mjs", str(node.database), f"http://127.0.0.1:{node.http_port}"]
        for number in range(1, 6):
            told = subprocess.run(
                [*command, str(number)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
            )
            expected.append({"id": number, "a": "from JavaScript"})
            assert told.returncode == 0, told.stderr
            assert json.loads(told.stdout) == expected
        node.kill()
        told = subprocess.run([*command, "9"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert told.returncode != 0, "it is silent, and nobody takes the write"

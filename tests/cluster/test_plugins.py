"""Plugins of three real nodes: functions and collations for SQLite, nodes that differ, and refused modules."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from bedrockish import dbapi, open_client
from bedrockish.errors import BedrockishError, ConfigError
from bedrockish.node.plugins import Plugins
from tests.cluster import functions
from tests.cluster.story import PATIENT, level, ready
from tools.cluster import LocalCluster, clean_environment

pytestmark = pytest.mark.cluster

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


@contextmanager
def with_plugins(directory: Path, plugins: str = functions.__name__, names: str = "ABC") -> Iterator[LocalCluster]:
    """Return three nodes, of which the named ones have the module."""
    cluster = LocalCluster(directory)
    cluster.write_files()
    for node in cluster.nodes:
        if node.name in names:
            node.config.write_text(f'plugins = ["{plugins}"]\n' + node.config.read_text())
    try:
        for node in cluster.nodes:
            node.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with with_plugins(tmp_path_factory.mktemp("plugins") / "cluster") as running:
        yield running


async def test_plugins_page_works_and_different_plugins_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of docs/plugins.md as it stands there; the status and the log name a node without the module."""
    blocks = {block.split("\n", 1)[0]: block for block in blocks_of(PAGE)}
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "words.py").write_text(blocks["# words.py"])
    monkeypatch.setenv("PYTHONPATH", str(folder))

    with with_plugins(tmp_path / "cluster", "words", names="AB") as cluster:
        await ready(cluster)
        async with open_client(cluster.url(options=PATIENT)) as client:
            assert (await client.execute("SELECT initials('Ada Byron')")).value() == "AB"
            found = (await client.status())["plugins"]
            assert found["differ"] == {"C": "C has no words"}
            assert list(found["modules"]) == ["words"]
        async with open_client(cluster.url(2, only=True, options=PATIENT)) as client:
            with pytest.raises(BedrockishError, match="no such function: initials"):
                await client.execute("SELECT initials('Ada Byron')")
        assert "plugins differ: C has no words" in cluster.nodes[0].log.read_text()


REPLACING = """
def register(connection):
    connection.create_scalar_function("upper", lambda text: str(text).upper(), 1, deterministic=True)
    connection.create_scalar_function("slug", lambda text: text.replace(" ", "-"), 1, deterministic=True)
    connection.create_collation("Backwards", lambda left, right: (left < right) - (left > right))
"""


def test_program_on_a_file_uses_the_functions_of_plugins_also_in_place_of_sqlites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that SQLite's function, or one of the program, had made would not fit the nodes' tables."""
    (tmp_path / "replacing.py").write_text(REPLACING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with with_plugins(tmp_path / "cluster", "replacing") as cluster:
        trio.run(ready, cluster)
        db = dbapi.connect(cluster.nodes[0].database, isolation_level=None)
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a CHECK (upper(a) <> 'Ü'), g AS (upper(a)) STORED UNIQUE)")
        db.execute("CREATE TABLE s(id INTEGER PRIMARY KEY, a COLLATE backwards)")
        db.execute("CREATE UNIQUE INDEX by_slug ON s(slug(a))")
        db.execute("INSERT INTO t VALUES (1, 'Ö')")
        db.execute("INSERT INTO s VALUES (1, 'a b')")
        db.create_function("slug", 1, lambda text: text)
        db.create_collation("BACKWARDS", lambda left, right: (left > right) - (left < right))
        for refused in ("t VALUES (2, 'ö')", "t VALUES (3, 'ü')", "s VALUES (2, 'a-b')"):
            db.execute("BEGIN")
            with pytest.raises(dbapi.IntegrityError):
                db.execute(f"INSERT INTO {refused}")
            db.execute("ROLLBACK")
        db.execute("BEGIN")
        db.execute("INSERT INTO t VALUES (4, 'ä')")
        db.executemany("INSERT INTO s VALUES (?, ?)", [(5, "b"), (6, "c")])
        for _ in range(2):  # in the transaction, and after it
            assert db.execute("SELECT g, upper(a), slug('x y') FROM t WHERE id = 4").fetchall() == [("Ä", "Ä", "x-y")]
            assert db.execute("SELECT id FROM s WHERE a > 'c' ORDER BY a").fetchall() == [(5,), (1,)]
            db.commit()
        db.close()


async def test_functions_and_collations_of_a_plugin_work_at_every_node(cluster: LocalCluster) -> None:
    """Statements, expression indexes and UNIQUE columns call a plugin's functions, also in transactions and workers."""
    await ready(cluster)
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE word(w TEXT COLLATE backwards UNIQUE, CHECK (shout(w) <> 'NO!'))")
        await client.execute("CREATE INDEX loud ON word(shout(w))")
        await client.execute("INSERT INTO word VALUES ('a'), ('c'), ('b')")
        ordered = "SELECT group_concat(w, '') FROM (SELECT w FROM word ORDER BY w)"
        assert (await client.execute(ordered)).value() == "cba"
        async with client.transaction() as tx:
            assert (await tx.execute("SELECT w FROM word WHERE shout(w) = 'B!'")).rows == [("b",)]
            await tx.execute("INSERT INTO word VALUES ('d')")
        with pytest.raises(BedrockishError, match="CHECK"):
            await client.execute("INSERT INTO word VALUES ('no')")
        with pytest.raises(BedrockishError, match="UNIQUE"):
            await client.execute("INSERT INTO word VALUES ('d')")
        long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT max(i) FROM n"
        assert (await client.execute(f"{ordered} WHERE ({long}) > 0")).value() == "dcba"
    await level(cluster)


def test_broken_plugin_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line, which names the module and its fault."""
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    (tmp_path / "empty_plugin.py").write_text("x = 1\n")
    (tmp_path / "failing_plugin.py").write_text("def register(connection):\n    connection.nothing()\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (
        ("nowhere_at_all", "nowhere_at_all cannot be imported: ModuleNotFoundError"),
        ("broken_plugin", "broken_plugin cannot be imported: ZeroDivisionError"),
        ("empty_plugin", "empty_plugin has no function register"),
    ):
        with pytest.raises(ConfigError, match=text):
            Plugins([name])
    command = [sys.executable, "-m", "bedrockish.cli.main", "serve", "--node", "A", "--set", "plugins=failing_plugin"]
    command += ["--database", str(tmp_path / "A.sqlite"), "--listen", "127.0.0.1:0"]
    environment = clean_environment()
    environment["PYTHONPATH"] += f":{tmp_path}"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "failing_plugin: register failed: AttributeError" in done.stderr
    assert "Traceback" not in done.stderr


def blocks_of(page: str) -> list[str]:
    return [part.partition("```")[0] for part in page.split("```python\n")[1:]]

"""Journals with changes of virtual tables are read from a file as from the node."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from bedrockish.client.blocking import connect
from bedrockish_journal.arrow import read_journal
from bedrockish_journal.model.errors import FileUnreadableError
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.source.declared import DefinitionRunner
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.json_rows import parse_row
from bedrockish_journal.storage import vector_modules
from bedrockish_journal.storage.vector_modules import VEC1
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster
pytest.importorskip("sqlite_vec")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("modules"), ("A",)) as running:
        trio.run(running.wait_ready, 0)
        with connect(running.url()) as db:
            db.execute("CREATE VIRTUAL TABLE near USING vec0(id INTEGER PRIMARY KEY, e float[2], shop TEXT)")
            db.execute("CREATE VIRTUAL TABLE plain USING vec1(e)")
            db.execute("CREATE VIRTUAL TABLE words USING fts5(title, body)")
            db.execute("INSERT INTO near(id, e, shop) VALUES (1, '[1, 2]', 'a'), (2, '[3, 4]', 'b')")
            db.execute("INSERT INTO plain(rowid, e) VALUES (1, vec_f32('[1,2,3,4]'))")
            db.execute("INSERT INTO words VALUES ('cat', 'dog')")
            db.execute("DELETE FROM near WHERE id = 2")
            db.execute("DROP TABLE words")
        yield running


def rows(source: str | Path, **options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_journal(source, **options).read_all().to_pylist()
    return found


def test_changes_of_vectors_are_read_from_a_file_as_from_its_node(node: LocalCluster) -> None:
    file = node.nodes[0].database
    assert [row["pk"] for row in rows(file, table="changes", tables="near")] == ['{"id":1}', '{"id":2}', '{"id":2}']
    assert len(rows(file, table="changes", tables="plain")) == 1
    for options in ({"table": "changes"}, {"rows": "near"}, {"rows": "plain"}):
        assert rows(file, **options) == rows(node.url(), **options)
    assert [(row["shop"], row["_change_type"]) for row in rows(file, rows="near")] == [
        ("a", "insert"),
        ("b", "insert"),
        ("b", "delete"),
    ]
    assert parse_row(rows(file, rows="near")[0]["_other"])["id"] == 1


def test_a_journal_with_vectors_is_exported(node: LocalCluster, tmp_path: Path) -> None:
    with open_feed(str(node.nodes[0].database)) as feed:
        export(feed, str(tmp_path / "journals"))
    assert len(list((tmp_path / "journals" / "changes").rglob("*.parquet"))) == 1


def test_a_dropped_search_table_has_typed_rows(node: LocalCluster) -> None:
    (row,) = rows(node.nodes[0].database, rows="words")
    assert (row["title"], row["body"]) == ("cat", "dog")


def test_missing_module_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch, node: LocalCluster) -> None:
    libraries = vector_modules._libraries()
    monkeypatch.setattr(vector_modules, "_libraries", lambda: {VEC1: libraries[VEC1]})
    with pytest.raises(FileUnreadableError, match=r"no such module: vec0\); pip install sqlite-vec"):
        rows(node.nodes[0].database, table="changes", tables="near")


def test_only_the_first_statement_of_a_definition_runs(tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with closing(DefinitionRunner()) as db:
        db.run(f"CREATE TABLE t(a); VACUUM INTO '{copy}'; CREATE TABLE u(a)")
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",)]
        with pytest.raises(apsw.SQLError, match="attached"):
            db.run(f"VACUUM INTO '{copy}'")
    assert not copy.exists()

"""A file with new indexes has all rows of the old one, each under its rowid; or the old file is unchanged."""

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.storage import scratch_files
from bedrockish.engine.storage.rebuild_indexes import rebuild_in_place
from bedrockish.errors import ConfigError, DamagedError, UnavailableError
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.verify.replay import digest

FOUNDING = Founding("A", Membership(0, {"A": Member("A", "h:1")}, "id"), "store")


class EndError(Exception):
    """The node is to end."""


TABLES = """
CREATE TABLE keyless(a, b TEXT COLLATE nocase);
CREATE INDEX by_b ON keyless(b);
CREATE INDEX by_made ON keyless(lower(b), a DESC) WHERE a > 5;
CREATE UNIQUE INDEX by_a ON keyless(a);
CREATE VIEW seen AS SELECT count(*) FROM keyless;
CREATE TRIGGER told AFTER INSERT ON keyless BEGIN SELECT 1; END;
WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 3000)
  INSERT INTO keyless SELECT i, 'B' || i FROM s;
DELETE FROM keyless WHERE a % 3 = 0;
CREATE TABLE parent(id INTEGER PRIMARY KEY, v UNIQUE);
INSERT INTO parent VALUES (7, 'x'), (9, x'00');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    Engine.open(path, founding=FOUNDING).close()
    with closing(apsw.Connection(str(path))) as db:
        db.execute(TABLES).fetchall()
        db.execute("INSERT INTO bedrockish_vote VALUES (5, 'A', 1, 2, NULL, NULL, NULL)")
    return path


def facts(path: Path) -> tuple[object, ...]:
    """Return the whole content of a file, without the layout of its pages."""
    with closing(apsw.Connection(str(path))) as db:
        schema = set(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"))
        rowids = db.execute("SELECT rowid, a FROM keyless NOT INDEXED ORDER BY 1").fetchall()
        kept = [db.execute(f"SELECT * FROM bedrockish_{name}").fetchall() for name in ("meta", "vote")]
        return schema, digest(db), rowids, kept, db.pragma("auto_vacuum"), db.pragma("page_size"), path.stat().st_mode


def spoil(path: Path, name: str) -> None:
    """Make each page of a table or an index that is a leaf be of no kind that there is."""
    with closing(apsw.Connection(str(path))) as db:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        size = int(db.pragma("page_size"))
        found = [
            page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (name,))
        ]
    with path.open("r+b") as file:
        for page in found:
            file.seek((page - 1) * size)
            file.write(b"\x55")


def rebuild(path: Path) -> None:
    rebuild_in_place(path, lambda _: None, lambda: None)


@pytest.mark.parametrize("name", ["by_b", "by_made", "by_a", "bedrockish_journal_command"])
def test_unreadable_index_is_rebuilt(path: Path, name: str) -> None:
    before = facts(path)
    spoil(path, name)
    rebuild(path)
    assert facts(path) == before
    with closing(apsw.Connection(str(path))) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert sorted(one.name for one in path.parent.iterdir()) == ["a.db", "a.db.lock"]
    Engine.open(path, founding=FOUNDING).close()


@pytest.mark.parametrize(
    "name", ["keyless", "parent", "bedrockish_vote", "bedrockish_meta", "sqlite_autoindex_parent_1"]
)
def test_damage_beyond_an_index_is_left_unchanged(path: Path, name: str) -> None:
    spoil(path, name)
    before = path.read_bytes()
    with pytest.raises(DamagedError):
        rebuild(path)
    assert path.read_bytes() == before
    assert not [one for one in path.parent.iterdir() if one.name.startswith("a.db.refill")]


def test_rows_that_break_a_unique_index_are_damage(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.pragma("writable_schema", 1)
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'UNIQUE INDEX', 'INDEX') WHERE name = 'by_a'")
    with closing(apsw.Connection(str(path))) as db:
        db.execute("INSERT INTO keyless VALUES (4, 'twice')")
        db.pragma("writable_schema", 1)
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'INDEX', 'UNIQUE INDEX') WHERE name = 'by_a'")
    before = path.read_bytes()
    with pytest.raises(DamagedError, match="UNIQUE constraint failed"):
        rebuild(path)
    assert path.read_bytes() == before


def test_rebuild_is_refused_under_a_node_without_room_and_when_the_node_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = facts(path)
    engine = Engine.open(path, founding=FOUNDING)
    with pytest.raises(ConfigError, match="in use by another node"):
        rebuild(path)
    engine.close()
    with monkeypatch.context() as patch:
        patch.setattr(scratch_files, "room_on_disk", lambda _: {"free_bytes": 1000, "total_bytes": 1 << 40})
        with pytest.raises(UnavailableError, match="MiB are needed"):
            rebuild(path)

    def end() -> None:
        raise EndError

    with pytest.raises(EndError):
        rebuild_in_place(path, lambda _: None, end)
    assert facts(path) == before
    assert not [one for one in path.parent.iterdir() if one.name.startswith("a.db.refill")]

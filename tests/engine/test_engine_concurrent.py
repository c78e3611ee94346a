"""Two transactions on one snapshot with disjoint access sets apply in either order, and plain SQLite, one after the
other, gives the same tables. This tests access sets, capture and application against each other.
"""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bedrockish.errors import ConstraintError, SqlError
from bedrockish_journal.model.access_set import conflict
from bedrockish_journal.verify.replay import digest, replay
from tests.engine.nodes import TestNode, contents, ids_like_sqlite
from tests.engine.test_engine_apply import SCHEMA, plain, run_plain, statement

SEED = (
    "INSERT INTO parent VALUES (1, 'a', 0), (2, 'b', 1.5), (3, NULL, 2)",
    "INSERT INTO child(k, n, parent) VALUES ('a', 1, 1), ('b', 2, 2), ('c', 3, NULL)",
    "INSERT INTO weak(rowid, code, x) VALUES (1, 'a', 1), (2, 'b', 2), (3, NULL, 3)",
    "INSERT INTO made(rowid, x, y) VALUES (1, 1, 1), (2, 'x', 'x'), (3, NULL, NULL)",
)
one = st.lists(statement, min_size=1, max_size=2)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes' files and one of plain SQLite, with the same rows."""
    place = tmp_path_factory.mktemp("seeded")
    left, right, alone = TestNode(place / "A.db"), TestNode(place / "B.db", "B"), plain(place / "plain.db")
    for statements in (SCHEMA, SEED):
        left.run(*statements)
        right.apply(left.entries[-1])
    assert run_plain(alone, [(text, ()) for text in SEED])
    for node in (left, right):
        node.save()
        node.engine.close()
    alone.close()
    return place


def in_turn(path: Path, *programs: list[tuple[str, tuple[Any, ...]]]) -> dict[str, list[Any]]:
    """Run programs on plain SQLite, one after the other; return its tables."""
    with closing(apsw.Connection(str(path))) as alone:
        alone.execute("PRAGMA foreign_keys = ON")
        for program in programs:
            assert run_plain(alone, program)
        return contents(alone)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=one, second=one)
def test_transactions_without_conflict_commute(
    tmp_path_factory: pytest.TempPathFactory,
    seeded: Path,
    first: list[tuple[str, tuple[Any, ...]]],
    second: list[tuple[str, tuple[Any, ...]]],
) -> None:
    place = tmp_path_factory.mktemp("commute")
    for name in ("A.db", "B.db", "plain.db"):
        shutil.copy(seeded / name, place / name)
    shutil.copy(seeded / "plain.db", place / "turned.db")
    left, right = ids_like_sqlite(TestNode(place / "A.db")), ids_like_sqlite(TestNode(place / "B.db", "B"))
    try:
        try:
            mine, yours = left.prepare(*first), right.prepare(*second)
        except (ConstraintError, SqlError):
            assume(False)
            return
        assume(not conflict(mine.access_set, yours.access_set))
        entries = [node.entry(made) for node, made in ((left, mine), (right, yours)) if not made.readonly]
        for entry in entries:
            left.apply(entry)
        for entry in reversed(entries):
            right.apply(entry)
        assert left.tables() == right.tables()
        # If one statement names a rowid and SQLite chooses the other's, only one of the two orders gives the same
        # tables.
        if left.tables() != in_turn(place / "plain.db", first, second):
            assert left.tables() == in_turn(place / "turned.db", second, first)
    finally:
        left.engine.close()
        right.engine.close()


def test_the_journal_alone_rebuilds_the_tables(node: TestNode, tmp_path_factory: pytest.TempPathFactory) -> None:
    node.run(*SCHEMA)
    node.run(*SEED)
    node.run(
        "DELETE FROM parent WHERE id = 2", "UPDATE made SET y = 7 WHERE rowid = 2", "REPLACE INTO made VALUES (9, 7, 1)"
    )
    node.run("ALTER TABLE made ADD COLUMN z DEFAULT 1.0")
    node.run("UPDATE made SET x = 2.0")
    node.save()

    target = tmp_path_factory.mktemp("replay") / "again.db"
    replay([node.path], target)

    rebuilt = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READONLY)
    assert digest(rebuilt) == node.digest()
    rebuilt.close()

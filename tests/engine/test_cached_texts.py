"""The texts that a node caches take a bounded number of bytes, for any lengths and number of texts."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bedrockish.access_sets import analysis
from bedrockish.access_sets.catalog import Table
from bedrockish.engine.execution import compiled_texts
from bedrockish.engine.statements.catalogue import with_users_tables
from bedrockish.engine.statements.rights import opened
from tests.engine.nodes import TestNode

TEXTS = {
    "long": lambda number: f"SELECT {number}, '{'x' * 3_000}'",
    "many statements": lambda number: f"SELECT {number}; SELECT 2; SELECT 3; SELECT 4",
    "many columns": lambda number: f"SELECT * FROM wide WHERE {number}",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_compiled_texts_take_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    node = TestNode(tmp_path / "A.db")
    node.run("CREATE VIEW wide AS SELECT " + ", ".join(f"1 AS c{at}" for at in range(40)))
    monkeypatch.setattr(compiled_texts, "TEXTS_BYTES", 200_000)
    texts = node.engine._executor.texts
    for number in range(60):
        node.run(TEXTS[kind](number))
        assert sum(piece.memory_bytes for pieces in texts._all.texts.values() for piece in pieces) <= 200_000
    assert 1 < len(texts._all.texts) < 40
    monkeypatch.setattr(compiled_texts, "TEXT_BYTES", 1_000)
    texts.forget()
    node.run(TEXTS[kind](0))
    assert not texts._all.texts, "one text would take a large part of the cache"


def test_plans_of_uncached_texts_take_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text with the word optimize is compiled at each run; the plan of even the shortest text takes a kilobyte."""
    node = TestNode(tmp_path / "A.db")
    monkeypatch.setattr(analysis, "PLANS_BYTES", 100_000)
    known = node.engine._executor.texts._analysis
    for number in range(200):
        node.run(f"SELECT {number}, 'optimize'")
    assert not node.engine._executor.texts._all.texts
    assert 0 < len(known._plans) + len(known._lengths) <= 100


@pytest.mark.parametrize("function", [with_users_tables, opened])
def test_long_text_is_not_kept_after_its_compilation(function: Callable[[str], str]) -> None:
    text = "SELECT '" + "x" * 5_000 + "'"
    before = sys.getrefcount(text)
    assert function(text) == text
    assert sys.getrefcount(text) == before


def test_tables_of_earlier_schemas_are_not_kept(tmp_path: Path) -> None:
    def kept() -> int:
        gc.collect()
        # Not ``isinstance``, which asks lazy objects of other tests for their class, such as the settings of Django.
        return sum(type(one) is Table and one.name == "remembered" for one in gc.get_objects())

    node = TestNode(tmp_path / "A.db")
    node.run("CREATE TABLE remembered(id INTEGER PRIMARY KEY, a TEXT)")
    node.run("CREATE INDEX remembered_a ON remembered(lower(a))")
    node.run("INSERT INTO remembered VALUES (1, 'a')")
    before = kept()
    for number in range(8):
        node.run(f"ALTER TABLE remembered ADD COLUMN c{number}")
        node.run(f"SELECT a FROM remembered WHERE lower(a) = 'a' AND c{number} IS NULL")
        node.run(f"UPDATE remembered SET c{number} = 1 WHERE lower(a) = 'a'")
    assert kept() <= before + 1

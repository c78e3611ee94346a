"""The bounds of the lengths of a statement's values, which a read needs without the plan of its reads."""

from pathlib import Path

import pytest

from bedrockish.access_sets.analysis import Analysis
from bedrockish.engine.execution.executor import Executor
from tests.engine.nodes import Sql, TestNode, request
from tests.engine.test_dear_statements import BRIEF, DEAR, WATCHED, fill

STATEMENTS: list[Sql] = [
    *[sql for name, sql in DEAR.items() if name != "an index"],
    *BRIEF,
    *WATCHED,
    "EXPLAIN SELECT upper(v) FROM t",
    "SELECT x'ff00', hex(x'c3') || v FROM t",
    "SELECT count(*) FROM t WHERE id IN (1, 2, 3) AND v LIKE 'a%'",
]


@pytest.fixture
def executor(tmp_path: Path) -> Executor:
    node = TestNode(tmp_path / "A.sqlite")
    fill(node)
    return node.engine._executor


@pytest.mark.parametrize("sql", STATEMENTS)
def test_lengths_of_a_statement_are_the_same_without_its_plan(executor: Executor, sql: Sql) -> None:
    text = sql if isinstance(sql, str) else sql[0]
    piece, _ = executor.texts.compiled(text)
    fresh = Analysis(executor.analysis._db, lambda _: None, executor.analysis.schema)
    lengths = fresh.lengths(piece)
    assert not fresh._plans
    assert lengths == fresh.plan(piece).lengths
    assert fresh.lengths(piece) is fresh.plan(piece).lengths


def test_read_without_a_read_set_makes_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan for a list of 500 values would take 36 ms of the node's loop, and then as long in a worker."""
    node = TestNode(tmp_path / "A.sqlite")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (7)")
    node.engine.flush()
    node.engine._executor.analysis_s = 10.0  # a slow machine is not a reason for a plan
    values = ", ".join(map(str, range(500)))

    def refuse(*_: object) -> None:
        raise AssertionError("a plan is made")

    with monkeypatch.context() as patched:
        patched.setattr(Analysis, "plan", refuse)
        assert node.engine.read(request(f"SELECT id FROM t WHERE id IN ({values})"), 1.0) is not None
        with pytest.raises(AssertionError, match="a plan is made"):
            node.engine.execute(request(f"SELECT id FROM t WHERE id IN ({values}, 501)"))

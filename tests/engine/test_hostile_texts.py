"""Statements that cost a node more than SQLite are interrupted, get coarse keys, or move to a worker."""

from dataclasses import replace

import pytest

from bedrockish.access_sets import analysis as analysis_module
from bedrockish.access_sets.analysis import RANGES_MAX, Analysis, access_set
from bedrockish.access_sets.effort import unlimited
from bedrockish.access_sets.readset import TOO_COSTLY
from bedrockish.api.requests import decode_results
from bedrockish.engine.engine import Limits
from bedrockish.engine.execution import executor as executor_module
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.errors import SqlError
from bedrockish.sqltext.session_settings import first_setting
from bedrockish.sqltext.statement_kinds import query_only_of, switch_of
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, request
from tests.processor import at_most

WINDOW = "SELECT row_number() OVER (ORDER BY a) AS n, * FROM t -- {}"
FEED = (
    "WITH x AS MATERIALIZED (SELECT row_number() OVER (ORDER BY a) AS n, * FROM t), p(n) AS (SELECT 0 UNION ALL "
    "SELECT x.n FROM p JOIN x ON x.n = p.n + 1) SELECT * FROM p -- {}"
)


class Interrupting:
    """A thread's clock that exceeds the budget at its n-th reading."""

    def __init__(self) -> None:
        self.looks, self.last = 0, 1 << 60

    def busy(self) -> float:
        self.looks += 1
        return 1.0 if self.looks > self.last else 0.0


@pytest.mark.parametrize("text", [WINDOW, FEED])
def test_interrupted_window_function_moves_to_a_worker(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(executor_module, "STEPS", 1)
    clock = Interrupting()
    node = make_node(limits=replace(Limits(), busy=clock.busy, busy_of=lambda _: 0.0))
    node.run("CREATE TABLE t(a, b, c)", "INSERT INTO t VALUES (1, 2, 3)")
    ended = set[str]()
    for number in range(1, 400):
        clock.looks, clock.last = 0, number
        try:
            prepared = node.engine.execute(request(text.format(number)), 0.01)
        except TakesLongError:
            ended.add("moved")
        else:
            assert decode_results(prepared.result)[0].rows
            ended.add("answered")
    assert "moved" in ended
    clock.last = 1 << 60
    with pytest.raises(SqlError, match="no such column"):  # the statement's own error is still reported
        node.engine.execute(request("SELECT missing FROM t"), 0.01)


SUBQUERIES = "SELECT " + ",".join(f"(SELECT a FROM t WHERE a > '{n}' AND n = 3 LIMIT 1)" for n in range(400))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM t WHERE id IN ({})".format(",".join(map(str, range(6_000)))),
        SUBQUERIES,
        "UPDATE t SET a = CASE id {} END WHERE id = 1".format(" ".join(f"WHEN {n} THEN {n}" for n in range(1_200))),
    ],
)
def test_analysis_in_the_loop_ends_with_the_budget(node: TestNode, sql: str) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a, n)", "CREATE INDEX ta ON t(a)")
    with at_most(0.2), pytest.raises(TakesLongError):
        node.engine.execute(request(sql), 0.01)


def test_statement_whose_long_in_list_costs_too_much_reads_the_whole_table(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)", "CREATE INDEX ta ON t(a)", "CREATE TABLE u(id INTEGER)")
    node.run("CREATE TRIGGER r AFTER DELETE ON t BEGIN UPDATE u SET id = old.id WHERE id = 7; END")
    executor = node.engine._executor
    executor.analysis_s = 0.0
    ids = ",".join(map(str, range(5_000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis_module, "PLANS_BYTES", 1_000_000)
        prepared = node.prepare(f"DELETE FROM t WHERE id IN ({ids}) AND a IN ({ids})")
        found = {low.partition(b"\0")[0] for low, _ in prepared.access_set.read_ranges}
        assert {b"t:t", b"t:u"} <= found <= {b"t:t", b"i:ta", b"t:u"}
        told = node.engine.explain(request(f"SELECT 1 FROM t WHERE id IN ({ids})").statements[0])
        assert told[0]["wider"] == [["table t", TOO_COSTLY]]
    executor.analysis_s = 10.0
    executor.analysis.forget()
    exact = node.prepare(f"DELETE FROM t WHERE id IN ({ids})").access_set
    assert len(exact.read_points) == 5_000


def test_cached_plans_are_dropped_by_size(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    monkeypatch.setattr(analysis_module, "PLANS_BYTES", 3_000_000)
    analysis: Analysis = node.engine._executor.analysis
    # without time left the plans would be small and coarse
    monkeypatch.setattr(analysis, "patience", lambda _sql: unlimited)
    for number in range(20):
        # with an exponent, because lists of plain values share a plan
        node.prepare(f"SELECT a FROM t WHERE id IN ({','.join(f'{one}e0' for one in range(number, 1_000 + number))})")
        assert 0 < analysis._weight <= 3_000_000
    assert len(analysis._plans) < 20


@pytest.mark.parametrize("name", ["recursive_triggers", "foreign_keys", "query_only"])
def test_blanks_in_a_pragma_are_parsed_once(name: str) -> None:
    """A pattern whose parts all match blanks would take 20 s of the loop for 1,600 blanks; this text has 100,000."""
    blanks = " " * 100_000
    for sql in (f"PRAGMA {name}={blanks}(", f"PRAGMA {name}({blanks}(", f"{blanks}PRAGMA {name}{blanks}x"):
        assert first_setting(sql) is None
        assert switch_of(sql) is None
        assert query_only_of(sql) is None


def test_comments_after_as_are_parsed_once(node: TestNode) -> None:
    """Each of forty comments could end at its own end or at a later one's, which gave 2 to the 40th ways to match."""
    with pytest.raises(SqlError, match="syntax error"):
        node.prepare(f"SELECT 1 AS {'/**/' * 40} ?x ?")
    assert node.rows(f"SELECT 1 AS {'/**/' * 40} n") == [(1,)]


def test_many_ranges_become_one_for_each_object() -> None:
    ranges = {(b"i:a\0%06d" % n, b"i:a\0%06d\xff" % n) for n in range(RANGES_MAX)} | {(b"i:b\0x", b"i:b\0y")}
    found = access_set(set(), ranges, set(), {(b"t:t\0a", b"t:t\0b")})
    assert found.read_ranges == ((b"i:a\x00000000", b"i:a\0%06d\xff" % (RANGES_MAX - 1)), (b"i:b\0x", b"i:b\0y"))
    assert found.write_ranges == ((b"t:t\0a", b"t:t\0b"),)

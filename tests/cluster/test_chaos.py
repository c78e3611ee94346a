"""A slice of chaos: clients on all nodes, nodes killed, stopped and cut off, and the checker over what clients saw.

Longer runs: ``python -m tools.chaos``.
"""

import os
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
import trio

from bedrockish.local.page import SERVING, Page
from tests.engine.nodes import TestNode
from tools.chaos.cluster import proxied_cluster
from tools.chaos.faults import FAULTS, MEMBER, Faults
from tools.chaos.power import lose_unsynced
from tools.chaos.run import Plan, run
from tools.chaos.visitors import SCHEMA, check_file, judge, read_events

pytestmark = pytest.mark.cluster
lasting = pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.slow)])


async def chaos(plan: Plan, directory: Path, operations: int) -> None:
    """Run a plan, for longer on a busy machine: until so many transactions that write were acknowledged."""
    verdict = await run(replace(plan, updates=operations + 1), directory)
    assert not verdict.wrong, "\n".join([*verdict.wrong, f"seed {plan.seed}, files in {directory}"])
    assert verdict.counts["update ok"] > operations


@lasting
async def test_reads_of_three_nodes_have_no_anomaly_under_all_faults(tmp_path: Path, seconds: float) -> None:
    await chaos(Plan(nodes=3, seconds=seconds, seed=3), tmp_path, 30)


@lasting
async def test_programs_on_the_files_of_nodes_have_no_anomaly_under_all_faults(tmp_path: Path, seconds: float) -> None:
    await chaos(Plan(nodes=3, seconds=seconds, seed=4, by_file=True), tmp_path, 30)


def test_power_cut_takes_only_batches_that_were_not_synced(tmp_path: Path) -> None:
    """Each cut loses other bytes of the batch, or none: a disk may have written some."""
    node, database = TestNode(tmp_path / "A.sqlite"), tmp_path / "A.sqlite"
    node.run("CREATE TABLE t(a)")
    node.engine.flush()
    node.engine.sync()
    page = Page(str(database), node.engine.batch.number, 32 << 20)
    node.engine.publication.use_page(page, node.engine.batch.number, node.engine.schema_version)
    page.beat(SERVING, 0)
    for number in range(6):
        node.run(f"INSERT INTO t VALUES ({number})")
        node.engine.flush()
        if number < 3:
            node.engine.sync()
    left = set[int]()
    for seed in range(30):
        copy = tmp_path / f"{seed}" / database.name
        copy.parent.mkdir()
        for suffix in ("", "-wal", "-node"):
            shutil.copy(f"{database}{suffix}", f"{copy}{suffix}")
        lose_unsynced(copy, os.getpid(), random.Random(seed))
        with closing(sqlite3.connect(copy)) as db:
            found = [row for (row,) in db.execute("SELECT a FROM t ORDER BY a")]
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert found == list(range(len(found)))
        left.add(len(found))
    assert min(left) == 3
    assert max(left) > 3
    assert lose_unsynced(database, os.getpid() + 1, random.Random(1)) == 0, "the page of another process says nothing"
    node.engine.close()


@lasting
async def test_programs_on_files_see_no_anomaly_while_nodes_join_and_leave(tmp_path: Path, seconds: float) -> None:
    faults = (*(fault for fault in FAULTS if fault != "partition"), MEMBER, MEMBER)
    await chaos(Plan(nodes=3, seconds=seconds, seed=5, faults=faults, by_file=True), tmp_path, 30)


@lasting
async def test_programs_on_the_file_of_a_learner_have_no_anomaly_under_faults(tmp_path: Path, seconds: float) -> None:
    faults = tuple(fault for fault in FAULTS if fault != "partition")
    await chaos(Plan(nodes=3, seconds=seconds, seed=6, faults=faults, by_file=True, learner=True), tmp_path, 30)


async def test_node_whose_file_is_being_damaged_at_the_end_is_started_and_no_death_is_recorded(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path, ["A"]) as cluster:
        node = cluster.nodes[0]
        faults = Faults(cluster, random.Random(176), kinds=("flip",))  # this seed draws a flip at once
        async with trio.open_nursery() as nursery:
            nursery.start_soon(faults.run)
            with trio.fail_after(60):
                while node.is_running:  # a thread changes the file as soon as the node is killed
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert node.is_running
        assert faults.deaths == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
async def test_reads_of_five_nodes_have_no_anomaly_under_all_faults(seed: int, tmp_path: Path) -> None:
    await chaos(Plan(nodes=5, seconds=60, seed=seed), tmp_path, 100)


@pytest.mark.slow
async def test_nodes_repair_flipped_bits_in_their_files(tmp_path: Path) -> None:
    """Bits change in the files of killed nodes; in the end no file differs, because the nodes have repaired theirs."""
    verdict = await run(Plan(nodes=3, seconds=40, seed=3, faults=("kill", "flip")), tmp_path)
    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert verdict.counts["flipped bits"] > 0
    assert verdict.counts["times that a node was filled again"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "pause", "partition"])
async def test_reads_have_no_anomaly_under_one_kind_of_fault(fault: str, tmp_path: Path) -> None:
    await chaos(Plan(nodes=3, seconds=60, seed=7, faults=(fault,)), tmp_path, 100)


def test_visits_that_are_lost_doubled_or_refused_are_found(tmp_path: Path) -> None:
    first, second = tmp_path / "visits-A.jsonl", tmp_path / "visits-B.jsonl"
    first.write_text(
        '["sent", "a", 1]\n["acknowledged", "a", 1]\n["sent", "a", 2]\n["refused", "a", 2]\n["sent", "a", 3]\n["ackno'
    )
    second.write_text('["sent", "b", 1]\n["visits", "stream"]\n["errors of visits", "conflict"]\n')
    events = read_events([first, second, tmp_path / "visits-C.jsonl"])
    assert (events.sent, events.acknowledged) == ({("a", 1), ("a", 3), ("b", 1)}, {("a", 1)})
    assert dict(events.counts) == {"visits: stream": 1, "errors of visits: conflict": 1}
    assert judge(events, [("a", 1)], {"a": 1}) == []
    assert judge(events, [("a", 1), ("b", 1)], {"a": 1, "b": 1}) == []
    assert "are lost" in judge(events, [], {})[0]
    assert "twice" in judge(events, [("a", 1), ("a", 1)], {"a": 2})[0]
    assert "although they were refused" in judge(events, [("a", 1), ("a", 2)], {"a": 2})[0]
    assert "counters differ" in judge(events, [("a", 1)], {"a": 2})[0]


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("pairs", "UPDATE pairs SET n = 7 WHERE id = 3"),
        ("pairs", "DELETE FROM pairs WHERE id = 3"),
        ("totals", "UPDATE customers SET total = 1 WHERE id = 2"),
        ("orphans", "DELETE FROM customers WHERE id = 1"),
        ("orphans", "INSERT INTO lines VALUES ('none', 1)"),
        ("lines", "DELETE FROM lines WHERE number = 1"),
        ("visits", "INSERT INTO visits(who, number) VALUES ('a', 2)"),
        ("word oak", "INSERT INTO pages VALUES (2, 'oak')"),
        ("word ash", "UPDATE pages SET body = 'elm'"),
    ],
)
def test_state_that_no_moment_contains_is_found(name: str, sql: str, tmp_path: Path) -> None:
    path = tmp_path / "A.sqlite"
    with closing(apsw.Connection(str(path))) as db:
        for text in SCHEMA:
            db.execute(text)
        db.execute(
            "INSERT INTO orders VALUES (1, 5, 'a 1', 1); INSERT INTO lines VALUES ('a 1', 1), ('a 1', 2), ('a 1', 3)"
        )
        db.execute("INSERT INTO pages VALUES (1, 'ash elm'); INSERT INTO words(rowid, body) VALUES (1, 'ash elm')")
        db.execute("INSERT INTO visits(who, number) VALUES ('a', 1); INSERT INTO visitors VALUES ('a', 1)")
        assert check_file(path) == []
        db.execute(sql)
    assert f"({name})" in check_file(path)[0]

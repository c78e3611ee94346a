"""The questions answer rightly: what a table held, what a row went through, who met whom."""

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, encode_changes
from bedrockish_journal.spark.analysis import questions
from bedrockish_journal.spark.source.inputs import find_inputs, read_table
from tests.spark import worlds
from tests.spark.worlds import NODES, START_MS, World, touching

pytestmark = pytest.mark.spark
COLUMNS = ("id", "n")


class Story:
    """Random inserts, updates, key changes and deletes of one table, at all nodes, with the state after each commit."""

    def __init__(self, commits: int) -> None:
        self.world, luck = World(), random.Random(3)
        self.states: list[tuple[int, dict[str, int], dict[int, int]]] = []
        rows: dict[int, int] = {}
        for number in range(commits):
            rows = dict(rows)
            leader = luck.choice(NODES)
            draft = self.world.commit(leader, touching("all"), changes=encode_changes(self._change(rows, number, luck)))
            assert draft is not None
            self.world.settle()
            self.states.append((draft.txid.clock, self.world.applied("A"), rows))

    @staticmethod
    def _change(rows: dict[int, int], number: int, luck: random.Random) -> list[Change]:
        key = luck.choice(sorted(rows)) if rows and luck.random() < 0.6 else number + 100
        if key not in rows:
            rows[key] = number
            return [Change("accounts", COLUMNS, INSERT, key, key, None, (key, number))]
        before = (key, rows.pop(key))
        if luck.random() < 0.3:
            return [Change("accounts", COLUMNS, DELETE, key, key, before, None)]
        after = (number + 100 if luck.random() < 0.3 else key, number)
        rows[after[0]] = number
        return [Change("accounts", COLUMNS, UPDATE, key, after[0], before, after)]


@pytest.fixture(scope="module")
def story() -> Story:
    return Story(40)


@pytest.fixture(scope="module")
def tables(story: Story, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    paths = story.world.write(tmp_path_factory.mktemp("story"))
    inputs = find_inputs([str(paths[0])])
    return {name: read_table(spark, inputs, name).cache() for name in ("commits", "changes", "footprints")}


def test_a_rows_history_follows_its_key(story: Story, tables: dict[str, DataFrame]) -> None:
    moved = tables["changes"].where("pk <> pk_after").first()
    assert moved is not None
    for text in (moved["pk"], moved["pk_after"]):
        found = questions.row_history(tables["changes"], "accounts", json.loads(text)).collect()
        assert moved["txid"] in [row["txid"] for row in found]
        assert [row["committed_at"] for row in found] == sorted(row["committed_at"] for row in found)


def test_changed_since_returns_net_changes(story: Story, tables: dict[str, DataFrame]) -> None:
    clock = story.states[22][0]
    moment = F.timestamp_millis(F.lit((clock >> 22) + 1))
    found = questions.changed_since(tables["changes"], moment).collect()
    before, after = story.states[22][2], story.states[-1][2]
    net = {json.loads(row["key"])["id"]: (row["before"], row["after"]) for row in found}
    for key in net.keys() | before.keys() | after.keys():
        first, last = (json.loads(text)["n"] if text else None for text in net.get(key, (None, None)))
        assert key not in net or (first, last) == (before.get(key), after.get(key))
        assert key in net or before[key] == after[key]


def test_hot_keys_and_meetings_count_neighbours(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    for leader, name in (("A", "hot"), ("B", "hot"), ("A", "hot"), ("C", "cold"), ("B", "hot")):
        assert world.commit(leader, touching(name))
        world.settle()
    inputs = find_inputs([str(world.write(tmp_path)[0])])
    access_sets = read_table(spark, inputs, "footprints")
    hottest = questions.hot_keys(access_sets).collect()
    shown = questions.hot_keys(access_sets).limit(1).select(questions.readable_key("key")).collect()
    assert [row[0] for row in shown] == [str(worlds.number("hot"))]
    assert [(row["key"], row["writes"], row["writers"]) for row in hottest] == [
        (worlds.key("hot"), 4, ["A", "B"]),
        (worlds.key("cold"), 1, ["C"]),
    ]
    met = {(row["first"], row["then"]): row["meetings"] for row in questions.meetings(access_sets).collect()}
    assert met == {("A", "B"): 2, ("B", "A"): 1}
    graph = questions.causes(read_table(spark, inputs, "commits"), START_MS << 22, (START_MS + 10**6) << 22)
    assert {tuple(row) for row in graph.collect()} == {
        ("A", 1, "B", 1),
        ("B", 1, "A", 2),
        ("A", 2, "C", 1),
        ("C", 1, "B", 2),
    }


def test_the_window_that_tells_most(tables: dict[str, DataFrame]) -> None:
    """Of all runs of so many commits it has most leaders, and most adopted commits of those that have as many."""
    commits = tables["commits"]
    every = sorted((row["clock"], row["leader"], row["adopted_from"]) for row in commits.collect())
    for count in (2, 5, 12):
        chosen = sorted(
            (row["clock"], row["leader"], row["adopted_from"])
            for row in questions.telling_window(commits, count).collect()
        )
        first = every.index(chosen[0])
        assert chosen == every[first : first + count]
        best = max(
            (len({one[1] for one in part}), sum(one[2] is not None for one in part))
            for part in (every[at : at + count] for at in range(len(every)))
        )
        assert (len({one[1] for one in chosen}), sum(one[2] is not None for one in chosen)) == best


def test_counts_by_time_latency_and_approvers(story: Story, tables: dict[str, DataFrame]) -> None:
    commits = tables["commits"]
    counted = questions.commits_over_time(commits, "2 milliseconds").collect()
    assert sum(row["commits"] for row in counted) == 40
    assert len({row["begin"] for row in counted}) > 4
    assert {row["applied_on"] for row in questions.latency(commits).collect()} == {"A"}
    given = questions.approvers(commits).collect()
    assert [row["leader"] for row in given] == list(NODES)
    assert all(row[row["leader"]] == row["commits"] for row in given)

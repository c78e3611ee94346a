"""Writes docs/questions.md: the questions of ``bedrockish_journal.spark.analysis``, asked of a real small cluster.

``python -m tools.questions`` starts three nodes, lets clients move money between accounts while one node is killed and
started again, and asks their journals. The answers differ from run to run; a test holds the rest of the page, and the
columns of the answers, against this file.
"""

import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from bedrockish_journal.spark.session import quiet_session
from bedrockish_journal.spark.source.inputs import find_inputs, read_table
from tools.cluster import ROOT, LocalCluster, local_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = ROOT / "docs" / "questions.md"
NOTE = "<!-- Written by `python -m tools.questions`; do not edit. -->"
ACCOUNTS, CLIENTS, TRANSFERS = 12, 6, 80
KILLS, DIES = 4, 1
ROWS_MAX, CHARACTERS_MAX = 8, 44
INTRODUCTION = """\
Frequent questions to a journal, and the queries for them.
Each function takes tables of the [data source](spark.md) or of an export and returns a DataFrame.
Nothing is brought to your machine before you show it.

The answers below are those of three nodes on one machine.
Six clients move money between twelve accounts, while B is killed and started again several times.

```python
from pyspark.sql import functions as F
from bedrockish_journal.spark.analysis import questions
from bedrockish_journal.spark.source.inputs import find_inputs, read_table
from bedrockish_journal.spark.session import quiet_session

spark = quiet_session()
inputs = find_inputs(["a.sqlite", "b.sqlite", "c.sqlite"])      # or exports
everyones = read_table(spark, inputs, "commits")
commits = questions.one_node(everyones, "A")
changes = questions.one_node(read_table(spark, inputs, "changes"), "A")
access_sets = questions.one_node(read_table(spark, inputs, "footprints"), "A")
```"""


@dataclass(frozen=True)
class Question:
    """One section: what is asked, and how. The code leaves a DataFrame in ``answer``."""

    title: str
    prose: str
    code: str


QUESTIONS = [
    Question(
        "What happened to a row?",
        "Every change of it, by the clock, which is the same order on every node.",
        'answer = questions.row_history(changes, "accounts", {"id": 7})',
    ),
    Question(
        "What changed in the last hour?",
        "The net of it: each row once, before and after. Rows that came and went in between are left out.",
        'hour_ago = F.current_timestamp() - F.expr("INTERVAL 1 HOUR")\n'
        "answer = questions.changed_since(changes, hour_ago)",
    ),
    Question(
        "Which keys are hot?",
        "Where several leaders write the same key, they wait for each other.",
        'answer = questions.hot_keys(access_sets).limit(8).withColumn("key", questions.readable_key("key"))',
    ),
    Question(
        "Who meets whom?",
        "How often a transaction of one leader used a key that one of another leader had just written, or the reverse. "
        "High counts between two leaders mean: send related data to one node.",
        "answer = questions.meetings(access_sets, within_ms=1000)",
    ),
    Question(
        "Who committed how much, and when?",
        "By the leader that began a transaction; `adopted` of them were finished by another node.",
        'answer = questions.commits_over_time(commits, "250 milliseconds")',
    ),
    Question(
        "How long do approvals take?",
        "From the beginning of a transaction until a node had applied it: on its leader, the wait for approvals. "
        "The journals of all nodes are asked.",
        "answer = questions.latency(everyones)",
    ),
    Question(
        "Who approves whose commits?",
        "A column for each approver. A node that approves seldom is far, slow, or was away.",
        "answer = questions.approvers(commits)",
    ),
    Question(
        "What follows what?",
        "The causal graph of the window in which most leaders meet: a row for each commit and each of those that it "
        "directly follows. Commits without a path between them are concurrent.",
        "window = questions.telling_window(commits, 24)\n"
        'low, high = window.agg(F.min("clock"), F.max("clock")).first()\n'
        "answer = questions.causes(commits, low, high)",
    ),
]


def ask(question: Question, tables: "dict[str, DataFrame]") -> "DataFrame":
    """Run the code of a question and return its answer."""
    from pyspark.sql import functions as F  # noqa: N812

    from bedrockish_journal.spark.analysis import questions

    names: dict[str, Any] = {"F": F, "questions": questions, **tables}
    exec(question.code, names)
    answer: DataFrame = names["answer"]
    return answer


def tables_of(spark: "SparkSession", paths: list[Path]) -> "dict[str, DataFrame]":
    """Return what the introduction of the page makes of nodes' files; the first one's journal is asked."""
    from bedrockish_journal.spark.analysis import questions

    inputs = find_inputs([str(path) for path in paths])
    everyones = read_table(spark, inputs, "commits")
    named = {name: questions.one_node(read_table(spark, inputs, name), "A") for name in ("changes", "footprints")}
    return {**named, "everyones": everyones, "commits": questions.one_node(everyones, "A")}


def show(answer: "DataFrame") -> str:
    """Return the first rows of an answer as text in columns, with a header."""
    rows = answer.limit(ROWS_MAX + 1).collect()
    lines = [[_cell(value) for value in row] for row in rows[:ROWS_MAX]]
    widths = [max(map(len, column)) for column in zip(answer.columns, *lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in [answer.columns, *lines]
    ]
    more = ["…"] if len(rows) > ROWS_MAX else []
    return "\n".join(line.rstrip() for line in [*text, *more])


def _cell(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        text = bytes(value).partition(b"\0")[2].hex() or bytes(value).decode(errors="replace").strip("\0")
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        text = "NULL" if value is None else str(value)
    return text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 1] + "…"


def render(answers: list[str]) -> str:
    """Return the page with these answers."""
    parts = ["# Questions to a journal", NOTE, INTRODUCTION]
    for question, answer in zip(QUESTIONS, answers, strict=True):
        parts += [f"## {question.title}", question.prose, f"```python\n{question.code}\n```", f"```text\n{answer}\n```"]
    return "\n\n".join(parts) + "\n"


async def live(cluster: LocalCluster) -> None:
    """Let clients move money, while B dies and comes back, several times: so others adopt a commit of its, or some."""
    for index in range(len(cluster.nodes)):
        await cluster.wait_ready(index)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE accounts(id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER NOT NULL)")
        owners = ["Ada", "Ben", "Cyd", "Dee", "Eli", "Fay", "Gus", "Hal", "Ivy", "Jon", "Kim", "Lou"]
        rows = [("INSERT INTO accounts VALUES (?, ?, 100)", [number, owner]) for number, owner in enumerate(owners, 1)]
        await client.transact(rows)
    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(_move_money, cluster, number)
        for _ in range(KILLS):
            await trio.sleep(0.4)
            cluster.nodes[DIES].kill()
            await trio.sleep(0.7)
            cluster.nodes[DIES].start()
            await cluster.wait_ready(DIES)
    await trio.sleep(2.0)


async def _move_money(cluster: LocalCluster, number: int) -> None:
    luck = Random(number)
    async with open_client(cluster.url(number % len(cluster.nodes))) as client:
        for _ in range(TRANSFERS if number % len(cluster.nodes) != DIES else 4 * TRANSFERS):
            # Two of three clients have accounts of their own; the third takes any, and meets the others.
            mine = range(1 + 2 * number, 3 + 2 * number) if number % 3 else range(1, ACCOUNTS + 1)
            one, other = luck.sample(list(mine), 2)
            pay = "UPDATE accounts SET balance = balance + ? WHERE id = ?"
            with suppress(BedrockishError):  # B was killed: whether this happened is in the journal
                await client.transact([(pay, [-5, one]), (pay, [5, other])], timeout=10)
            if number % len(cluster.nodes) != DIES:  # there is always something under way where a node is killed
                await trio.sleep(luck.uniform(0, 0.05))


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory(prefix="bedrockish-questions-") as place:
        with local_cluster(Path(place, "nodes")) as cluster:
            trio.run(partial(live, cluster))
        spark = quiet_session("questions")
        tables = tables_of(spark, [node.database for node in cluster.nodes])
        answers = []
        for question in QUESTIONS:
            answers.append(show(ask(question, tables)))
            print(f"{question.title}\n{answers[-1]}\n", file=sys.stderr)
        spark.stop()
    PAGE.write_text(render(answers))


if __name__ == "__main__":
    main()

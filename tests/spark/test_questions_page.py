"""docs/questions.md shows what the functions answer: its code is the tool's, and so are the columns of its answers."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.worlds import honest
from tools.questions import PAGE, QUESTIONS, ask, render, show, tables_of


def answers() -> list[str]:
    return re.findall(r"^```text\n(.*?)\n```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_page_is_current_but_for_its_answers() -> None:
    """Run ``python -m tools.questions`` after changing the questions."""
    assert PAGE.read_text() == render(answers())


@pytest.mark.spark
@pytest.mark.slow
def test_the_answers_have_the_columns_that_the_page_shows(spark: SparkSession, tmp_path: Path) -> None:
    tables = tables_of(spark, honest(30).write(tmp_path))
    for question, answer in zip(QUESTIONS, answers(), strict=True):
        header = show(ask(question, tables)).split("\n")[0].split()
        # The columns of a user's table, and the nodes that approve, are those of the cluster that was asked.
        assert header == answer.split("\n")[0].split(), question.title

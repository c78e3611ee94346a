"""The export as a Spark job: in this machine's session, and submitted to a cluster of worker processes."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import bedrockish_journal.spark.export.job
from bedrockish_journal.spark.export.job import export_with_spark
from bedrockish_journal.spark.source.tables import TABLES
from tests.spark.test_export import exported, held, run
from tests.spark.worlds import honest, touching
from tools.cluster import SOURCES, clean_environment

pytestmark = pytest.mark.spark


def test_the_job_and_the_command_take_turns(spark: SparkSession, tmp_path: Path) -> None:
    world = honest(40)
    paths = world.write(tmp_path / "first")
    out = tmp_path / "out"
    told = export_with_spark(spark, str(paths[0].parent), str(out), step=10)
    assert [(one.node, one.entries) for one in told] == [(node, len(world.drafts)) for node in "ABC"]
    assert exported(out, "changes") == held(paths, "changes")
    assert world.commit("A", touching("later"))
    world.settle()
    paths = world.write(tmp_path / "second")
    assert run(paths[0], out)[-1].entries == 1
    assert [one.entries for one in export_with_spark(spark, str(paths[0].parent), str(out))] == [0, 1, 1]
    for table in TABLES:
        assert exported(out, table) == held(paths, table), table


@pytest.mark.slow
def test_the_job_runs_on_a_cluster_of_workers(tmp_path: Path) -> None:
    paths = honest(40).write(tmp_path)
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local-cluster[2,1,512]", "--conf", "spark.ui.enabled=false"),
        *("--conf", f"spark.executorEnv.PYTHONPATH={os.pathsep.join(map(str, SOURCES))}"),
        *("--conf", "spark.executor.memory=512m"),
        *(bedrockish_journal.spark.export.job.__file__, *map(str, paths), "--to", str(tmp_path / "out")),
    ]  # fmt: skip
    environment = {**clean_environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.startswith("A: ")
    for table in TABLES:
        assert exported(tmp_path / "out", table) == held(paths, table), table

"""The audit by Spark, which runs the same queries on the same tables as DuckDB does in ``duck``."""

import os
import re
from collections.abc import Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING

from bedrockish_journal.audit.facts import FACTS, facts_of
from bedrockish_journal.audit.reading import TABLES, Reader
from bedrockish_journal.audit.report import AuditResult, results
from bedrockish_journal.audit.views import SPARK, views
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.export.manifest import files_of
from bedrockish_journal.spark.session import quiet_session
from bedrockish_journal.spark.source.columns import ddl
from bedrockish_journal.spark.source.inputs import Inputs, find_inputs
from bedrockish_journal.spark.source.tables import TABLES as SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BRIEF_BYTES = 100 << 20  # with fewer bytes in all files, an audit ends before Spark's compilation would pay off
TINY_BYTES = 20 << 20  # with fewer bytes in all files, planning is most of an audit's cost
_OURS = re.compile(r"\bbedrockish\w*\.[\w.]*Error: (.+)")  # an error of this package in the traceback of a worker
_STORED = "node leader origin txid command kind seq tick clock repeat prev hash label body"


def run_audits(paths: list[str], limit: int) -> Iterator[AuditResult]:
    """Start Spark on this machine, yield the ``results`` of an audit, and stop Spark.

    Args:
        paths: the journal of each node, from its file, an export or its URL.
        limit: the greatest number of findings of each law.

    Raises:
        SparkUnavailableError: Spark cannot be started.
        JournalError: a journal cannot be read, or Spark failed.
    """
    inputs = find_inputs(paths)
    spark = quiet_session("bedrockish audit", brief=inputs.size < BRIEF_BYTES)
    try:
        yield from ask_spark(spark, inputs, limit)
    except JournalError:
        raise
    except Exception as error:  # pyspark and py4j raise many kinds; each of them means a failed query
        text = str(error).strip()
        ours = _OURS.findall(text)
        raise JournalError(ours[-1] if ours else f"Spark failed: {text[:2000]}") from error
    finally:
        spark.stop()


def ask_spark(spark: "SparkSession", inputs: Inputs, limit: int) -> Iterator[AuditResult]:
    """Yield the results of ``run_audits``, in a session that stays open."""
    reader = Reader(inputs)
    kept = _load(spark, inputs, reader)
    try:
        yield from results(reader, lambda query: spark.sql(query).collect(), SPARK, limit)
    finally:
        for frame in kept:
            frame.unpersist()


def _load(spark: "SparkSession", inputs: Inputs, reader: Reader) -> "list[DataFrame]":
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    kept: list[DataFrame] = []
    keep = _checkpoint if inputs.size < TINY_BYTES else partial(_persist, kept)
    reader.read_records()
    stored = _commits(spark, inputs)
    digest = F.unhex(F.sha2(F.concat("prev", "label", "body"), 256)).alias("digest")
    lengths = (F.shiftleft(F.length("prev").cast("bigint"), 40) + F.length("label")).alias("lengths")
    whole = stored.select("*", digest, lengths).withColumnRenamed("repeat", "again")
    held = keep(whole.drop("label", "body"))
    once = whole.groupBy("digest", "lengths").agg(F.first("label").alias("label"), F.first("body").alias("body"))
    facts = keep(once.mapInArrow(facts_of, from_arrow_schema(FACTS)))
    held.createOrReplaceTempView("held")
    facts.createOrReplaceTempView("facts")
    held.count()  # reads the journals now: the ends of the nodes' own timelines must be read after them
    reader.read_ends()
    for name, schema in TABLES.items():
        rows = spark.createDataFrame(reader.records.rows[name], from_arrow_schema(schema))
        rows.createOrReplaceTempView(name)
    for view in views(SPARK):
        frame = spark.sql(view.sql)
        (keep(frame) if view.is_table else frame).createOrReplaceTempView(view.name)
    return kept


def _commits(spark: "SparkSession", inputs: Inputs) -> "DataFrame":
    """Return the rows of all journals."""
    wanted, schema = _STORED.split(), ddl(SOURCE["commits"].columns)
    parts = []
    for directory in sorted(set(inputs.exports.values())):
        nodes = sorted(node for node, place in inputs.exports.items() if place == directory)
        files = [path for node in nodes for path in files_of(directory, "commits", node)]
        if files:
            base = os.path.join(directory, "commits")
            parts.append(spark.read.schema(schema).option("basePath", base).parquet(*files).select(wanted))
    if inputs.files:
        reader = spark.read.format("bedrockish").option("columns", ",".join(wanted))
        parts.append(reader.load(",".join(inputs.files.values())))
    if not parts:  # exports of journals without entries
        return spark.createDataFrame([], schema).select(wanted)
    return reduce(lambda one, other: one.unionByName(other), parts)


def _persist(kept: "list[DataFrame]", frame: "DataFrame") -> "DataFrame":
    """Cache the rows, so that Spark knows their number, and return the frame.

    Rows that are lost with a worker are computed again.
    """
    kept.append(frame.persist())
    return frame


def _checkpoint(frame: "DataFrame") -> "DataFrame":
    """Return the frame as a local checkpoint, without its lineage, which Spark would plan again for each query.

    Spark frees the rows when the frame is no longer referenced.
    """
    return frame.localCheckpoint(eager=False)

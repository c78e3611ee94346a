"""The audit on many machines: Spark runs the same queries on the same tables as DuckDB does in ``duck``."""

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from bedrockish_journal.audit.facts import FACTS, facts_of
from bedrockish_journal.audit.naming import named
from bedrockish_journal.audit.queries import QUERIES, question
from bedrockish_journal.audit.reading import TABLES, Reader
from bedrockish_journal.audit.report import AuditExtent, LawOutcome, ReportedFinding, UncheckedLaws, counted, finding
from bedrockish_journal.audit.views import SPARK, views
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.laws import LAWS
from bedrockish_journal.spark.session import quiet_session
from bedrockish_journal.spark.source.inputs import Inputs, find_inputs, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BRIEF_BYTES = 100 << 20  # with fewer bytes in all files, an audit ends before Spark's compilation would pay off
TINY_BYTES = 20 << 20  # with fewer bytes in all files, planning is most of an audit's cost
_OURS = re.compile(r"\bbedrockish\w*\.[\w.]*Error: (.+)")  # an error of this package in the traceback of a worker
_STORED = "node leader origin txid command kind seq tick clock repeat prev hash label body"


def run_audits(paths: list[str], limit: int) -> Iterator[AuditExtent | LawOutcome | UncheckedLaws]:
    """Yield the counts of the input, then the outcome of each law, then the laws that were not checked.

    Spark is stopped at the end.

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


def ask_spark(spark: "SparkSession", inputs: Inputs, limit: int) -> Iterator[AuditExtent | LawOutcome | UncheckedLaws]:
    """Yield the results of ``run_audits``, in a session that stays open."""
    reader = Reader(inputs)
    kept = _load(spark, inputs, reader)
    try:
        rows = spark.sql("SELECT leader, max(tick), count(*) FROM held GROUP BY leader ORDER BY leader").collect()
        ((transactions,),) = spark.sql("SELECT count(DISTINCT txid) FROM held").collect()
        heads = {leader: tick for leader, tick, _ in rows}
        reader.leaders.update(heads)
        entries = sum(count for *_, count in rows)
        yield AuditExtent(inputs.nodes, entries, transactions, heads, reader.kept.removed)
        for law in LAWS:
            if law.name in QUERIES:
                found, counts = _ask(spark, law.name, limit)
                yield LawOutcome(law.name, law.brief, named(inputs, found), counts)
    finally:
        for frame in kept:
            frame.unpersist()
    yield UncheckedLaws(reader.unseen)


def _load(spark: "SparkSession", inputs: Inputs, reader: Reader) -> "list[DataFrame]":
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    kept: list[DataFrame] = []
    keep = _checkpoint if inputs.size < TINY_BYTES else partial(_persist, kept)
    reader.begin()
    stored = read_table(spark, inputs, "commits", _STORED.split())
    own = F.unhex(F.sha2(F.concat("prev", "label", "body"), 256)).alias("own")
    cut = (F.shiftleft(F.length("prev").cast("bigint"), 40) + F.length("label")).alias("cut")
    whole = stored.select("*", own, cut).withColumnRenamed("repeat", "again")
    held = keep(whole.drop("label", "body"))
    once = whole.groupBy("own", "cut").agg(F.first("label").alias("label"), F.first("body").alias("body"))
    facts = keep(once.mapInArrow(facts_of, from_arrow_schema(FACTS)))
    held.createOrReplaceTempView("held")
    facts.createOrReplaceTempView("facts")
    held.count()  # reads the journals now: the ends of the nodes' own timelines must be read after them
    reader.end()
    for name, schema in TABLES.items():
        rows = spark.createDataFrame(reader.kept.rows[name], from_arrow_schema(schema))
        rows.createOrReplaceTempView(name)
    for view in views(SPARK):
        frame = spark.sql(view.sql)
        (keep(frame) if view.kept else frame).createOrReplaceTempView(view.name)
    return kept


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


def _ask(spark: "SparkSession", law: str, limit: int) -> tuple[list[ReportedFinding], dict[str, int]]:
    rows = spark.sql(question(law, SPARK.names, limit)).collect()
    return [finding(law, row) for row in rows], counted(rows)

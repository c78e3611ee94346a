"""Questions to a journal as functions from DataFrames to DataFrames; docs/questions.md shows each at work.

The arguments are tables of the data source or of an export, with all their columns. Give the journal of one node
(``one_node``), or each row comes once for each node. Everything is done by Spark: nothing is brought to the driver.

A table as of a moment comes from a lake (``bedrockish_journal.spark.lake``), which knows the schema of that moment.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from bedrockish_journal.model.changes import Value
from bedrockish_journal.model.clock import BEND, BEND_MS, COUNTER_BITS, LATER_BITS
from bedrockish_journal.model.key_text import key_text as key_text_of
from bedrockish_journal.spark.source.json_rows import row_text

ORDER = ("clock", "origin", "seq_in_txn")


def one_node(frame: DataFrame, node: str) -> DataFrame:
    """Return the rows of one node's journal."""
    return frame.where(F.col("node") == node)


def key_text(pk: Mapping[str, Value]) -> str:
    """Return a primary key as it is in the column ``pk``: ``{"id":7}``.

    Args:
        pk: the columns of the key, in the key's order.
    """
    text = row_text(tuple(pk), tuple(pk.values()))
    assert text is not None
    return text


def clock_of(moment: str | Column) -> Column:
    """Return the lowest clock of a moment: a timestamp column, or a text such as ``2026-11-21 10:00:00``."""
    at = F.lit(moment).cast("timestamp") if isinstance(moment, str) else moment
    millis = F.unix_millis(at)
    later = F.shiftleft(millis - BEND_MS, LATER_BITS) + BEND
    return F.when(millis < BEND_MS, F.shiftleft(millis, COUNTER_BITS)).otherwise(later)


def millis_of(clock: str) -> Column:
    """Return the Unix milliseconds of a column of clocks."""
    later = F.shiftright(F.col(clock) - BEND, LATER_BITS) + BEND_MS
    return F.when(F.col(clock) < BEND, F.shiftright(F.col(clock), COUNTER_BITS)).otherwise(later)


def row_history(changes: DataFrame, table: str, pk: Mapping[str, Value]) -> DataFrame:
    """Return everything that happened to a row, oldest first, also when its key was another before or after.

    Args:
        changes: the table ``changes``.
        table: its table.
        pk: its primary key.
    """
    key = key_text(pk)
    found = changes.where((F.col("table") == table) & ((F.col("pk") == key) | (F.col("pk_after") == key)))
    return found.select("committed_at", "leader", "tick", "txid", "_change_type", "before", "after").orderBy(*ORDER)


def _steps(changes: DataFrame) -> DataFrame:
    """Return what happened at each ``key``: the row that was there (``old``) and that is there afterwards (``new``).

    A row that gets another key leaves its old place and comes to its new one.
    """
    before, after = (
        F.coalesce(pk, F.col(rowid).cast("string")) for pk, rowid in (("pk", "rowid"), ("pk_after", "rowid_after"))
    )
    nothing = F.lit(None).cast("string")
    kind = F.col("_change_type")
    stays = (kind == "update") & (before == after)

    def step(key: Column, old: Column, new: Column) -> Column:
        return F.struct(key.alias("key"), old.alias("old"), new.alias("new"))

    leaves = F.when(stays, step(before, F.col("before"), F.col("after"))).when(
        kind != "insert", step(before, F.col("before"), nothing)
    )
    comes = F.when(~stays & (kind != "delete"), step(after, nothing, F.col("after")))
    each = changes.withColumn("step", F.explode(F.array_compact(F.array(leaves, comes))))
    return each.select(*ORDER, "committed_at", "leader", "tick", "txid", "table", "step.*")


def _moment() -> Column:
    """Return what the steps at one key are ordered by; a row may leave a place and come back in one change."""
    return F.struct(*ORDER, F.col("new").isNotNull())


def changed_since(changes: DataFrame, moment: str | Column) -> DataFrame:
    """Return what changed since a moment: each row once, as it was before and as it is after all that happened to it.

    Rows that came and went in the meantime, or are what they were, are left out.

    Args:
        changes: the table ``changes``.
        moment: a timestamp, such as ``F.current_timestamp() - F.expr("INTERVAL 1 HOUR")``.
    """
    steps = _steps(changes.where(F.col("clock") >= clock_of(moment)))
    net = steps.groupBy("table", "key").agg(
        F.count("*").alias("changes"),
        # In structs, because max_by passes over NULLs.
        F.min_by(F.struct("old"), _moment()).alias("first"),
        F.max_by(F.struct("new", "txid", "committed_at"), _moment()).alias("last"),
    )
    found = net.select(
        *("table", "key", "changes", F.col("first.old").alias("before"), F.col("last.new").alias("after")),
        *("last.txid", F.col("last.committed_at").alias("last_at")),
    )
    return found.where("NOT before <=> after").orderBy("last_at", "table", "key")


def hot_keys(access_sets: DataFrame) -> DataFrame:
    """Return the keys that were written most, with their writers; leaders that share a key wait or abort.

    Args:
        access_sets: the table ``footprints``.
    """
    touched = access_sets.where("key IS NOT NULL").groupBy("object", "key")
    counted = touched.agg(
        F.count_if(F.col("access") == "write").alias("writes"),
        F.count_if(F.col("access") == "read").alias("reads"),
        F.sort_array(F.collect_set(F.when(F.col("access") == "write", F.col("origin")))).alias("writers"),
    )
    return counted.where("writes > 0").orderBy(F.desc("writes"), "object", "key")


def readable_key(key: str | Column) -> Column:
    """Return the engine's bytes of a key as people read them: ``7``, or ``'Ada', 3``.

    It runs in Python, in Spark's workers: use it on answers, not on whole journals.
    """
    return F.udf(key_text_of, useArrow=False)(key)


def meetings(access_sets: DataFrame, within_ms: int = 1000) -> DataFrame:
    """Return how often transactions of two leaders met at a key that at least one of them wrote.

    Only neighbours in the order of a key are counted, so a key that every leader writes costs no more than others.

    Args:
        access_sets: the table ``footprints``.
        within_ms: how close to each other the two must have begun.
    """
    uses = access_sets.where("key IS NOT NULL").groupBy("object", "key", "clock", "origin")
    each = uses.agg(F.max(F.col("access") == "write").alias("writes"))
    before = Window.partitionBy("key").orderBy("clock", "origin")
    pairs = each.withColumn("earlier", F.lag(F.struct("clock", "origin", "writes")).over(before))
    gap = millis_of("clock") - millis_of("earlier.clock")
    met = pairs.where(F.col("writes") | F.col("earlier.writes")).where(gap <= within_ms)
    found = met.groupBy(F.col("earlier.origin").alias("first"), F.col("origin").alias("then")).agg(
        F.count("*").alias("meetings"), F.percentile_approx(gap, 0.5).alias("median_gap_ms")
    )
    return found.orderBy("first", "then")


def commits_over_time(commits: DataFrame, every: str = "1 minute") -> DataFrame:
    """Return how many transactions each leader committed, by time; an adopted one counts for its origin.

    Args:
        commits: the table ``commits``.
        every: the width of a column of the histogram, as Spark writes durations.
    """
    once = commits.where("NOT repeat").groupBy(F.window("committed_at", every).alias("during"), "origin")
    counted = once.agg(F.count("*").alias("commits"), F.count("adopted_from").alias("adopted"))
    return counted.select(
        F.col("during.start").alias("begin"), F.col("origin").alias("leader"), "commits", "adopted"
    ).orderBy("begin", "leader")


def latency(commits: DataFrame) -> DataFrame:
    """Return how long it took from the beginning of a transaction until a node had applied it, in milliseconds.

    On its own leader this is how long the approvals took; on the others, the way there comes on top. Give the journals
    of all nodes. Both times are the nodes' wall clocks, so differences between those are in the numbers.

    Args:
        commits: the table ``commits``, of several nodes.
    """
    took = F.unix_millis("applied_at") - millis_of("clock")
    quartiles = F.percentile_approx(took, [0.5, 0.9, 0.99])
    found = commits.where("NOT repeat").groupBy(F.col("origin").alias("leader"), F.col("node").alias("applied_on"))
    return (
        found.agg(F.count("*").alias("commits"), quartiles.alias("q"), F.max(took).alias("max_ms"))
        .select(
            "leader",
            "applied_on",
            "commits",
            *(F.col("q")[at].alias(f"p{name}_ms") for at, name in enumerate((50, 90, 99))),
            "max_ms",
        )
        .orderBy("leader", "applied_on")
    )


def approvers(commits: DataFrame) -> DataFrame:
    """Return who approves whose commits, and how many approvals a commit shows.

    Args:
        commits: the table ``commits``.
    """
    given = commits.where("NOT repeat").select(F.col("leader"), F.explode("quorum").alias("approver", "at"))
    counted = given.groupBy("leader").pivot("approver").agg(F.count("at"))
    total = commits.where("NOT repeat").groupBy("leader").agg(F.count("*").alias("commits"))
    return total.join(counted, "leader").na.fill(0).orderBy("leader")


def telling_window(commits: DataFrame, count: int) -> DataFrame:
    """Return those commits, one after the other by their clocks, in which most leaders meet; for a picture.

    Of several with as many leaders it is the one with most adopted commits, then the one in which the leader changes
    most often from commit to commit, then the first.

    Args:
        commits: the table ``commits`` of one node; all of it is put in order.
        count: how many commits at most.
    """
    in_order = Window.orderBy("clock", "leader", "tick")
    ahead = in_order.rowsBetween(Window.currentRow, count - 1)
    turns = F.col("leader") != F.coalesce(F.lag("leader").over(in_order), F.col("leader"))
    placed = commits.withColumn("place", F.row_number().over(in_order)).withColumn("turns", turns.cast("int"))
    found = placed.select(
        "place",
        F.size(F.collect_set("leader").over(ahead)).alias("leaders"),
        F.count("adopted_from").over(ahead).alias("adopted"),
        F.sum("turns").over(ahead).alias("turns"),
    )
    order = (F.desc("leaders"), F.desc("adopted"), F.desc("turns"), "place")
    best = found.orderBy(*order).limit(1).select(F.col("place").alias("first"))
    chosen = placed.join(F.broadcast(best), F.col("place").between(F.col("first"), F.col("first") + count - 1))
    return chosen.drop("place", "first", "turns")


def causes(commits: DataFrame, low: int, high: int) -> DataFrame:
    """Return the causal graph of a window of clocks: which commit directly follows which (``leader``, ``tick``).

    A commit follows the last one that it had seen of each timeline, unless another of these follows that in turn.

    Args:
        commits: the table ``commits``.
        low: lowest clock of the window.
        high: highest clock of the window.
    """
    within = commits.where(F.col("clock").between(low, high))
    ends = within.select("leader", "tick", "clock", F.explode("after").alias("from_leader", "from_tick"), "after")
    others = within.select(
        F.col("leader").alias("from_leader"), F.col("tick").alias("from_tick"), F.col("after").alias("seen")
    )
    edges = ends.join(others, ["from_leader", "from_tick"])
    covered = edges.groupBy("leader", "tick").agg(F.collect_list("seen").alias("all_seen"))
    joined = edges.join(covered, ["leader", "tick"])
    seen = F.exists(
        "all_seen",
        lambda other: F.coalesce(F.try_element_at(other, F.col("from_leader")), F.lit(0)) >= F.col("from_tick"),
    )
    return (
        joined.where(~seen)
        .select("from_leader", "from_tick", "leader", "tick")
        .orderBy("leader", "tick", "from_leader")
    )

"""No two concurrent commits may touch the same key: what everything else rests on, looked for in the whole journal.

Commits are judged over all files together, because two halves of a cluster that both went on would each look right
alone. In the order (clock, origin) a commit can only follow earlier ones, so for each key it is enough that every
access has seen the last write before it, and that every write has seen the accesses since. That is linear also for a
key that everybody writes, and finds one witness for each break, not all pairs. It is sound when ``causality`` is
silent: then "has seen" is transitive.

Ranges are compared only between commits that are concurrent, which are few: for each commit the ticks that it had not
seen of each timeline are known from its ``after``.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from bedrockish_journal.spark.audit.findings import findings, place, say

CHECK = "conflicts"


def seen(after: Column, labels: Column) -> Column:
    """Whether a commit with this ``after`` has seen a transaction that has these labels; any of them will do."""
    return F.exists(
        labels, lambda label: F.coalesce(F.try_element_at(after, label["leader"]), F.lit(0)) >= label["tick"]
    )


def transactions(commits: DataFrame) -> DataFrame:
    """Return one row for each transaction over all files: clock, origin, txid, kind, after, labels.

    ``after`` is the whole past, the timelines among it that are retired (``prepare``).
    """
    good = commits.where("malformed IS NULL")
    labels = good.groupBy("clock", "origin").agg(
        F.sort_array(F.collect_set(F.struct("leader", "tick"))).alias("labels")
    )
    bodies = good.groupBy("clock", "origin", "txid", "kind", "body_digest").agg(F.first("past").alias("after"))
    return bodies.join(labels, ["clock", "origin"]).drop("body_digest")


def points(footprints: DataFrame) -> DataFrame:
    """Return the keys that each transaction touched, once each: clock, origin, key, writes."""
    touched = footprints.where("key IS NOT NULL").groupBy("clock", "origin", "key")
    return touched.agg(F.max(F.col("access") == "write").alias("writes"))


def ranges(footprints: DataFrame) -> DataFrame:
    """Return the ranges of each transaction, once each: clock, origin, access, low, high."""
    return footprints.where("key IS NULL").select("clock", "origin", "access", "low", "high").distinct()


def conflicts(commits: DataFrame, known: DataFrame, touched: DataFrame, spans: DataFrame) -> DataFrame:
    """Return the findings of commits that are concurrent and meet at a key, in a range or in the membership.

    Args:
        commits: what ``audits.prepare`` gave.
        known: what ``transactions`` gave; read many times, so best kept in Spark's cache, as are the next two.
        touched: what ``points`` gave.
        spans: what ``ranges`` gave.
    """
    met = _on_points(known, touched).unionByName(_on_ranges(commits, known, touched, spans))
    pairs = met.groupBy("later", "earlier").agg(F.min("key").alias("key"), F.count("*").alias("keys"))
    rest = F.when(F.col("keys") > 1, say(" (and %d more keys)", F.col("keys") - 1)).otherwise("")
    # A key is the name of its object, a zero byte, and the encoded columns; only the name is text.
    text_key = F.lower(F.hex("key"))
    object_name = F.unhex(F.regexp_extract(text_key, "^((?:..)*?)(?:00|$)", 1)).cast("string")
    found = findings(
        pairs,
        CHECK,
        F.concat(_both(), F.lit(", and both touch "), object_name, rest),
        leader=F.col("later.labels")[0]["leader"],
        tick=F.col("later.labels")[0]["tick"],
        txid="later.txid",
        table=object_name,
        key=text_key,
    )
    return found.unionByName(_memberships(known))


def _both() -> Column:
    later, earlier = F.col("later.labels")[0], F.col("earlier.labels")[0]
    return say(
        "%s and %s are both committed, neither after the other",
        place(later["leader"], later["tick"]),
        place(earlier["leader"], earlier["tick"]),
    )


def _name() -> Column:
    return F.struct("txid", "labels")


def _on_points(known: DataFrame, touched: DataFrame) -> DataFrame:
    written = touched.where("writes").select("key").distinct()
    accesses = touched.join(written, "key", "left_semi").join(known, ["clock", "origin"])
    write = F.when(F.col("writes"), F.struct("txid", "labels", "after"))
    before = Window.partitionBy("key").rowsBetween(Window.unboundedPreceding, -1)
    ordered = accesses.withColumn(
        "last_write", F.last(write, ignorenulls=True).over(before.orderBy("clock", "origin"))
    ).withColumn(
        # The next write is the last one of the reverse order: a frame that looks ahead costs Spark quadratic time.
        "next_write",
        F.last(write, ignorenulls=True).over(before.orderBy(F.desc("clock"), F.desc("origin"))),
    )
    missed = ordered.where(
        (F.col("last_write.txid") != F.col("txid")) & ~seen(F.col("after"), F.col("last_write.labels"))
    ).select(_name().alias("later"), F.struct("last_write.txid", "last_write.labels").alias("earlier"), "key")
    overwritten = ordered.where(
        ~F.col("writes")
        & (F.col("next_write.txid") != F.col("txid"))
        & ~seen(F.col("next_write.after"), F.col("labels"))
    ).select(F.struct("next_write.txid", "next_write.labels").alias("later"), _name().alias("earlier"), "key")
    return missed.unionByName(overwritten)


def _concurrent(commits: DataFrame, known: DataFrame, ranged: DataFrame) -> DataFrame:
    """Return the pairs (later, earlier) of concurrent transactions of which at least one has a range."""
    flagged = ranged.withColumn("ranged", F.lit(True))
    timelines = commits.where("malformed IS NULL").select("leader", "tick", "clock", "origin").distinct()
    timelines = timelines.join(flagged, ["clock", "origin"], "left")
    leaders = F.broadcast(timelines.select("leader").distinct())
    had = F.coalesce(F.try_element_at("after", F.col("leader")), F.lit(0))
    asking = known.join(flagged, ["clock", "origin"], "left").crossJoin(leaders)
    asks = asking.select("leader", "clock", "origin", "ranged", had.alias("had"), F.lit(None).alias("tick"))
    steps = timelines.select("leader", "clock", "origin", "ranged", F.lit(None).cast("bigint").alias("had"), "tick")
    so_far = Window.partitionBy("leader").orderBy("clock", "origin").rowsBetween(Window.unboundedPreceding, -1)
    missing = (
        asks.unionByName(steps)
        .withColumn("upto", F.max("tick").over(so_far))
        .withColumn("last_ranged", F.max(F.when(F.col("ranged"), F.col("tick"))).over(so_far))
        .where("had IS NOT NULL AND upto > had AND (ranged OR last_ranged > had)")
        .select("leader", "clock", "origin", "ranged", F.explode(F.sequence(F.col("had") + 1, "upto")).alias("tick"))
        .withColumnsRenamed({"clock": "later_clock", "origin": "later_origin", "ranged": "later_ranged"})
    )
    # Most pairs have no range at all: they go before anything is joined to them.
    pairs = missing.join(timelines, ["leader", "tick"]).where("later_ranged OR ranged")
    packed = F.struct("clock", "origin", "txid", "labels", "after")
    later = known.select(
        F.col("clock").alias("later_clock"), F.col("origin").alias("later_origin"), packed.alias("later")
    )
    pairs = pairs.join(known.select("clock", "origin", packed.alias("earlier")), ["clock", "origin"])
    pairs = pairs.join(later, ["later_clock", "later_origin"])
    order = F.struct("earlier.clock", "earlier.origin") < F.struct("later.clock", "later.origin")
    return pairs.where(order & ~seen(F.col("later.after"), F.col("earlier.labels"))).select("later", "earlier")


def _on_ranges(commits: DataFrame, known: DataFrame, touched: DataFrame, spans: DataFrame) -> DataFrame:
    pairs = _concurrent(commits, known, spans.select("clock", "origin").distinct())
    both = F.expr("explode(array(struct(later AS own, earlier AS other), struct(earlier AS own, later AS other)))")
    sides = pairs.select("later", "earlier", both.alias("side"))
    owned = sides.select(
        *(F.struct(f"{side}.txid", f"{side}.labels").alias(side) for side in ("later", "earlier")),
        *(F.col("side.own.clock").alias("clock"), F.col("side.own.origin").alias("origin")),
        *(F.col("side.other.clock").alias("clock2"), F.col("side.other.origin").alias("origin2")),
    ).join(spans, ["clock", "origin"])
    # A key is the range from itself to its successor, so that keys and ranges are met in one join.
    successor = F.concat("key", F.lit(b"\0"))
    others = touched.select("clock", "origin", "writes", F.col("key").alias("low2"), successor.alias("high2")).unionAll(
        spans.select("clock", "origin", F.col("access") == "write", "low", "high")
    )
    others = others.withColumnsRenamed({"clock": "clock2", "origin": "origin2"})
    met = owned.join(others, ["clock2", "origin2"]).where(
        "low < high2 AND low2 < high AND (writes OR access = 'write')"
    )
    return met.select("later", "earlier", F.greatest("low", "low2").alias("key")).distinct()


def _memberships(known: DataFrame) -> DataFrame:
    """Return the findings of membership changes that are concurrent with anything at all."""
    packed = F.struct("clock", "origin", "txid", "labels", "after")
    changes = known.where("kind = 'members'").select(packed.alias("change"))
    pairs = known.select(packed.alias("other")).join(F.broadcast(changes), F.expr("other.txid != change.txid"))
    first = F.expr("struct(change.clock, change.origin) < struct(other.clock, other.origin)")
    pairs = pairs.select(
        F.when(first, F.col("other")).otherwise(F.col("change")).alias("later"),
        F.when(first, F.col("change")).otherwise(F.col("other")).alias("earlier"),
    ).where(~seen(F.col("later.after"), F.col("earlier.labels")))
    return findings(
        pairs,
        CHECK,
        F.concat(_both(), F.lit(", and one of them changes the membership")),
        leader=F.col("later.labels")[0]["leader"],
        tick=F.col("later.labels")[0]["tick"],
        txid="later.txid",
    )

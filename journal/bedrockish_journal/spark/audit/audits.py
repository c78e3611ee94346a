"""What honest journals obey, as questions to Spark: each audit returns what breaks its law, no rows if nothing does.

All work stays in the JVM and all audits are linear in the journal but for sorting; nothing reaches the driver except
findings and the names of the timelines. Give them what ``read_journals`` returns: the journal of each node, from its
file or from an export.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import WindowSpec

from bedrockish_journal.model.entry import GENESIS
from bedrockish_journal.spark.audit.conflicts import conflicts, points, ranges, transactions
from bedrockish_journal.spark.audit.findings import INFORMATION, findings, place, say
from bedrockish_journal.spark.audit.inputs import find_inputs, read_table
from bedrockish_journal.spark.audit.quorums import quorums
from bedrockish_journal.spark.source.plans import HIGHEST


@dataclass(frozen=True, slots=True)
class Journals:
    """The journals of some nodes, ready to be audited.

    Attributes:
        nodes: the nodes whose journals these are, sorted.
        commits: what ``prepare`` gave. This and the rest is kept in Spark's cache.
        transactions: what ``conflicts.transactions`` gave.
        points: what ``conflicts.points`` gave.
        ranges: what ``conflicts.ranges`` gave.
        members: the table ``members``.
        pruned: the table ``pruned``; the hash is text.
        removed: for each node and timeline the last tick that the node has removed.
    """

    nodes: list[str]
    commits: DataFrame
    transactions: DataFrame
    points: DataFrame
    ranges: DataFrame
    members: DataFrame
    pruned: DataFrame
    removed: dict[str, dict[str, int]]

    @property
    def frames(self) -> tuple[DataFrame, ...]:
        """What is kept in Spark's cache."""
        return self.commits, self.transactions, self.points, self.ranges, self.members, self.pruned

    def unpersist(self) -> None:
        """Let Spark forget what it keeps; the journals can be audited again, but more slowly."""
        for frame in self.frames:
            frame.unpersist()


def read_journals(spark: SparkSession, paths: Sequence[str]) -> Journals:
    """Read the journals of nodes; the data source must be registered.

    Args:
        spark: the session.
        paths: nodes' files, directories of them, and exports; the journal of each node once.

    Raises:
        JournalError: one is missing or is neither, or two have the journal of the same node.
    """
    inputs = find_inputs(paths)

    def table(name: str, columns: str = "") -> DataFrame:
        return read_table(spark, inputs, name, columns.split())

    members = table("members", "node leader tick version member voter retired").persist()
    commits = prepare(table("commits"), find_retired(members)).persist()
    pruned = table("pruned").withColumn("hash", F.lower(F.hex("hash"))).persist()
    marks = pruned.collect()  # nodes times leaders
    removed: dict[str, dict[str, int]] = {}
    for mark in marks:
        removed.setdefault(mark["node"], {})[mark["leader"]] = mark["tick"]
    known = transactions(commits).where(F.col("clock") > _horizon(commits, marks)) if marks else transactions(commits)
    footprints = table("footprints", "clock origin access key low high")
    return Journals(
        inputs.nodes,
        commits,
        known.persist(),
        points(footprints).persist(),
        ranges(footprints).persist(),
        members,
        pruned,
        removed,
    )


def _horizon(commits: DataFrame, marks: Sequence[Row]) -> int:
    """Return a clock above which all labels of all transactions are in one of the journals.

    A transaction that was adopted has two labels. Where one of them was removed from every journal, nobody can tell any
    more who had seen it, so conflicts are judged among later transactions only.
    """
    clocks = {(mark["node"], mark["leader"]): int(mark["clock"]) for mark in marks}
    held = commits.select("node", "leader").distinct().collect()
    least: dict[str, int] = {}
    for node, leader in held:
        clock = clocks.get((node, leader), 0)
        least[leader] = min(clock, least.get(leader, clock))
    return max(least.values(), default=0)


def find_retired(members: DataFrame) -> dict[str, int]:
    """Return the timelines that vectors do not name any more, with the version of the membership from which on."""
    every = members.select(F.explode("retired").alias("leader", "since")).groupBy("leader").agg(F.min("since"))
    return {row[0]: row[1] for row in every.collect()}  # one row for each node that ever left


def prepare(commits: DataFrame, retired: Mapping[str, int]) -> DataFrame:
    """Return the table ``commits`` with label and body replaced by digests, small enough to be cached.

    ``own`` is the hash that the entry should have, ``body_digest`` that of the body alone; all hashes become text.
    ``past`` is ``after`` with what goes without saying: the whole of each timeline that was retired when it began.
    """
    return commits.withColumn("past", _past(retired)).select(
        *("node", "leader", "tick", "txid", "clock", "origin", "seq", "command", "kind", "repeat", "adopted_from"),
        *("after", "past", "quorum", "config", "malformed", "joined"),
        F.lower(F.hex("prev")).alias("prev"),
        F.lower(F.hex("hash")).alias("hash"),
        F.sha2(F.concat("prev", "label", "body"), 256).alias("own"),
        F.sha2(F.col("body"), 256).alias("body_digest"),
    )


def _past(retired: Mapping[str, int]) -> Column:
    if not retired:
        return F.col("after")
    every = F.array([F.struct(F.lit(leader).alias("leader"), F.lit(at).alias("at")) for leader, at in retired.items()])
    unsaid = F.filter(every, lambda one: (one["at"] <= F.col("config")) & ~F.map_contains_key("after", one["leader"]))
    whole = F.transform(unsaid, lambda one: F.struct(one["leader"], F.lit(HIGHEST)))
    return F.map_concat("after", F.map_from_entries(whole))


def readable(journals: Journals) -> DataFrame:
    """Find entries whose bytes cannot be decoded, or say something else than the row that they stand in."""
    bad = journals.commits.where("malformed IS NOT NULL")
    return findings(bad, "readable", F.concat(place("leader", "tick"), F.lit(": "), F.col("malformed")))


def ticks(journals: Journals) -> DataFrame:
    """Find gaps and doubles: the ticks of a timeline are 1, 2, 3, …, from the first that its node has not removed."""
    last = F.coalesce(F.lag("tick").over(_timeline()), F.col("mark.tick"), F.lit(0))
    odd = _marked(journals).withColumn("last", last).where("tick <> last + 1")
    missing = F.col("tick") > F.col("last")
    first, final = place("leader", F.col("last") + 1), place("leader", F.col("tick") - 1)
    text = (
        F.when(~missing, say("%s is there twice", place("leader", "tick")))
        .when(F.col("tick") == F.col("last") + 2, say("%s is missing", first))
        .otherwise(say("%s to %s are missing", first, final))
    )
    at = F.when(missing, F.col("last") + 1).otherwise(F.col("tick"))
    return findings(odd, "ticks", text, tick=at, txid=F.when(~missing, F.col("txid")))


def chains(journals: Journals) -> DataFrame:
    """Find entries that were altered: not of their own hash, or not continuing the entry before them."""
    label = place("leader", "tick")
    altered = findings(
        journals.commits.where("own <> hash"),
        "chains",
        say("%s is not what was hashed: its bytes have %s…, not %s…", label, _short("own"), _short("hash")),
    )
    before = F.lag(F.struct("tick", "hash")).over(_timeline())
    mark = F.when(F.col("mark.tick") == F.col("tick") - 1, F.struct("mark.tick", "mark.hash"))
    linked = _marked(journals).withColumn("before", F.coalesce(before, mark))
    linked = linked.withColumn(
        "expected", F.when(F.col("tick") == 1, F.lit(GENESIS.hex())).otherwise(F.col("before.hash"))
    )
    broken = findings(
        linked.where("prev <> expected AND (tick = 1 OR before.tick = tick - 1)"),
        "chains",
        say("%s continues %s…, but the entry before it is %s…", label, _short("prev"), _short("expected")),
    )
    return altered.unionByName(broken)


def _marked(journals: Journals) -> DataFrame:
    """Return the commits with the mark of their timeline, if their node has removed its beginning."""
    marks = journals.pruned.select("node", "leader", F.struct("tick", "hash", "clock").alias("mark"))
    return journals.commits.join(F.broadcast(marks), ["node", "leader"], "left")


def _short(hash_column: str) -> Column:
    return F.substring(hash_column, 1, 12)


def _timeline() -> WindowSpec:
    return Window.partitionBy("node", "leader").orderBy("tick")


def equal_journals(journals: Journals) -> DataFrame:
    """Find the first place of each timeline at which nodes hold different entries, and nodes that end before others.

    A node that is merely behind is information: its file may have been copied earlier than the others.
    """
    held = journals.commits.groupBy("leader", "tick").agg(
        F.count_distinct("hash").alias("kinds"),
        F.concat_ws(", ", F.sort_array(F.collect_list(F.concat_ws(" ", "node", _short("hash"))))).alias("holders"),
    )
    first = (
        held.where("kinds > 1")
        .groupBy("leader")
        .agg(F.min_by("holders", "tick").alias("holders"), F.min("tick").alias("tick"), F.count("*").alias("ticks"))
    )
    text = say(
        "nodes hold different entries as %s (%s); %d places of the timeline differ",
        *(place("leader", "tick"), "holders", "ticks"),
    )
    different = findings(first, "equal", text, node=F.lit(", ".join(sorted(journals.nodes))))
    others = journals.commits.select("leader", "tick", F.col("hash").alias("held"), F.col("node").alias("holder"))
    others = others.unionByName(
        journals.pruned.select("leader", "tick", F.col("hash").alias("held"), F.col("node").alias("holder"))
    )
    said = say(
        "%s says that it removed %s as %s…, and %s has it as %s…",
        *("node", place("leader", "tick"), _short("hash"), "holder", _short("held")),
    )
    forged = journals.pruned.join(others, ["leader", "tick"]).where("hash <> held AND node <> holder")
    forged = forged.groupBy("node", "leader", "tick", "hash").agg(
        F.min_by("held", "holder").alias("held"), F.min("holder").alias("holder")
    )
    heads = journals.commits.groupBy("node", "leader").agg(F.max("tick").alias("head"))
    longest = heads.groupBy("leader").agg(F.max("head").alias("tick"), F.max_by("node", "head").alias("holder"))
    everyone = journals.commits.select("node").distinct()
    behind = (
        everyone.crossJoin(longest)
        .join(heads, ["node", "leader"], "left")
        .withColumn("head", F.coalesce("head", F.lit(0)))
        .where("head < tick")
    )
    text = say("%s ends at tick %d of timeline %s; %s goes on to %d", "node", "head", "leader", "holder", "tick")
    return different.unionByName(findings(forged, "equal", said)).unionByName(
        findings(behind, "equal", text, level=INFORMATION, tick=F.col("head") + 1)
    )


def causality(journals: Journals) -> DataFrame:
    """Find entries that do not come after what they follow: absent, applied later, not lower by clock, or not closed.

    For an entry X and a component (N, t) of its ``after``: N's timeline reaches t in that node's file, was applied
    there before X up to t, holds up to t only lower clocks, and follows nothing that X does not follow.
    """
    commits = journals.commits
    names = sorted(row.leader for row in commits.select("leader").distinct().collect())
    up_to = _timeline().rowsBetween(Window.unboundedPreceding, 0)
    prefix = commits.select(
        "node",
        F.col("leader").alias("dep_leader"),
        F.col("tick").alias("dep_tick"),
        F.max("seq").over(up_to).alias("dep_seq"),
        F.max("clock").over(up_to).alias("dep_clock"),
        *(
            F.max(F.coalesce(F.try_element_at("after", F.lit(name)), F.lit(0))).over(up_to).alias(f"dep_{place_}")
            for place_, name in enumerate(names)
        ),
    )
    needs = commits.where("malformed IS NULL").select(
        *("node", "leader", "tick", "txid", "clock", "seq", "past"),
        F.explode("after").alias("dep_leader", "dep_tick"),
    )
    marks = journals.pruned.select(
        "node",
        F.col("leader").alias("dep_leader"),
        F.col("tick").alias("mark_tick"),
        F.col("clock").alias("mark_clock"),
    )
    joined = needs.join(prefix, ["node", "dep_leader", "dep_tick"], "left")
    joined = joined.join(F.broadcast(marks), ["node", "dep_leader"], "left")
    joined = joined.where("mark_tick IS NULL OR dep_tick > mark_tick")  # what was removed, nobody can judge
    joined = joined.withColumn("dep_clock", F.greatest("dep_clock", "mark_clock"))
    label, dep = place("leader", "tick"), place("dep_leader", "dep_tick")
    unseen = [
        F.when(
            F.col(f"dep_{place_}") > F.coalesce(F.try_element_at("past", F.lit(name)), F.lit(0)),
            say(f"%s follows %s and so {name}%d, but does not say so", label, dep, f"dep_{place_}"),
        )
        for place_, name in enumerate(names)
    ]
    text = (
        F.when(F.col("dep_seq").isNull(), say("%s follows %s, which is not in this journal", label, dep))
        .when(F.col("dep_seq") >= F.col("seq"), say("%s was applied before %s, which it follows", label, dep))
        .when(F.col("dep_clock") >= F.col("clock"), say("%s has a clock not above all up to %s", label, dep))
        .otherwise(F.coalesce(*unseen) if unseen else F.lit(None))
    )
    wrong = joined.withColumn("text", text).where("text IS NOT NULL")
    return findings(wrong, "causality", F.col("text"))


def commands(journals: Journals) -> DataFrame:
    """Find commands that were applied twice, and repeats of what was never applied or was something else."""
    commits = journals.commits
    applied = commits.where("NOT repeat")
    none = F.array().cast("array<string>")  # in exports of earlier versions the column is not there
    shared = applied.withColumn("commands", F.concat(F.array("command"), F.coalesce("joined", none)))
    doubled = (
        shared.withColumn("command", F.explode("commands"))
        .groupBy("command")
        .agg(F.sort_array(F.collect_set("txid")).alias("txids"), F.max(F.struct("clock", "leader", "tick")).alias("at"))
        .where("size(txids) > 1")
    )
    text = say("the command %s was applied as %s", "command", F.concat_ws(" and as ", "txids"))
    found = findings(doubled, "commands", text, leader="at.leader", tick="at.tick", txid=F.col("txids")[1])
    within = shared.where("size(array_distinct(commands)) < size(commands)")
    again = findings(within, "commands", say("%s has a command twice", "txid"))
    once = applied.groupBy("node", "txid").agg(F.count("*").alias("times"), F.max("tick").alias("tick"))
    twice = findings(once.where("times > 1"), "commands", say("%s was applied %d times", "txid", "times"), tick="tick")
    firsts = applied.groupBy("node", "txid").agg(F.min("seq").alias("first_seq"))
    horizons = journals.pruned.groupBy("node").agg(F.max("clock").alias("horizon"))
    repeats = commits.where("repeat").join(firsts, ["node", "txid"], "left").join(horizons, "node", "left")
    repeats = repeats.where("first_seq >= seq OR (first_seq IS NULL AND clock > coalesce(horizon, 0))")
    text = say("%s repeats %s, which was not applied before it", place("leader", "tick"), "txid")
    unfounded = findings(repeats, "commands", text)
    bodies = commits.groupBy("txid").agg(F.count_distinct("body_digest").alias("kinds")).where("kinds > 1")
    varied = findings(bodies, "commands", say("%s stands for %d different transactions", "txid", "kinds"))
    return found.unionByName(again).unionByName(twice).unionByName(unfounded).unionByName(varied)


AUDITS: dict[str, tuple[str, Callable[[Journals], DataFrame]]] = {
    "readable": ("entries can be decoded and are what their rows say", readable),
    "ticks": ("timelines have no gaps", ticks),
    "chains": ("hashes are right and linked", chains),
    "equal": ("nodes hold the same entries", equal_journals),
    "causality": ("entries follow what they say they follow", causality),
    "quorums": ("every commit has its approvals", lambda journals: quorums(journals.commits, journals.members)),
    "commands": ("every command was applied once", commands),
    "conflicts": (
        "no two concurrent commits touch the same key",
        lambda held: conflicts(held.commits, held.transactions, held.points, held.ranges),
    ),
}

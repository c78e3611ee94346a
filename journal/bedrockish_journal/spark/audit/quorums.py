"""Every commit must show enough approvals, counted by the membership that was in force where it began.

The approval quorum of n voters is q(n) = max(n//2 + 1, (n + f)//2) with f = (n-1)//2; a commit that another node
adopted shows the majority that held it. Memberships are the founding one in each file and those of commits of the kind
``members``, numbered by version; a commit names its version as ``config``.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bedrockish_journal.spark.audit.findings import INFORMATION, findings, place, say

CHECK = "quorums"


def needed(voters: Column, adopted: Column) -> Column:
    """Return how many approvals a commit needs."""
    half = F.floor(voters / 2) + 1
    survived = F.floor((voters - 1) / 2)
    return F.when(adopted, half).otherwise(F.greatest(half, F.floor((voters + survived) / 2)))


def quorums(commits: DataFrame, members: DataFrame) -> DataFrame:
    """Return the findings of commits that lack approvals, or count them by a membership that was not in force.

    Args:
        commits: what ``audits.prepare`` gave.
        members: the table ``members``.
    """
    in_file = members.groupBy("node", "version").agg(
        F.sort_array(F.collect_set(F.when(F.col("voter"), F.col("member")))).alias("voters")
    )
    versions = in_file.groupBy("version").agg(
        F.min("voters").alias("voters"), F.count_distinct("voters").alias("kinds"), F.max("node").alias("node")
    )
    text = say("the files do not agree on who voted in membership version %d", "version")
    found = findings(versions.where("kinds > 1"), CHECK, text)
    good = commits.where("malformed IS NULL")
    counted = good.join(F.broadcast(versions.select(F.col("version").alias("config"), "voters")), "config", "left")
    found = found.unionByName(_counts(counted))
    found = found.unionByName(_in_force(good, members))
    return found.unionByName(_approvers(good))


def _counts(counted: DataFrame) -> DataFrame:
    label, approvers = place("leader", "tick"), F.map_keys("quorum")
    adopted = F.col("adopted_from").isNotNull()
    voters = F.size("voters")
    wanted = needed(voters, adopted)
    votes = F.size(F.array_intersect(approvers, F.col("voters")))
    strangers = F.array_except(approvers, F.col("voters"))
    names = F.concat_ws(", ", F.sort_array(approvers))
    text = (
        F.when(
            F.col("voters").isNull(),
            say("%s counts by membership version %d, which no given journal holds", label, "config"),
        )
        .when(
            votes < wanted,
            say("%s shows approvals of %d of %d voters (%s) and needs %d", label, votes, voters, names, wanted),
        )
        .when(
            F.size(strangers) > 0,
            say("%s counts %s, no voter of its membership", label, F.concat_ws(", ", strangers)),
        )
        .when(
            ~adopted & ~F.coalesce(F.try_element_at("quorum", F.col("leader")) == F.col("tick"), F.lit(False)),
            say("%s lacks the approval of its own leader at tick %d", label, "tick"),
        )
    )
    wrong = counted.withColumn("text", text).where("text IS NOT NULL")
    return findings(wrong, CHECK, F.col("text"))


def _in_force(good: DataFrame, members: DataFrame) -> DataFrame:
    """Return the findings of commits that count by another membership than the last one that they follow."""
    changes = members.where("tick IS NOT NULL").select("leader", "tick", "version").distinct()
    changes = changes.withColumnsRenamed({"leader": "change_leader", "tick": "change_tick"})
    pairs = good.crossJoin(F.broadcast(changes))
    follows = F.coalesce(F.try_element_at("after", F.col("change_leader")), F.lit(0)) >= F.col("change_tick")
    label, change = place("leader", "tick"), place("change_leader", "change_tick")
    late = pairs.where(follows & (F.col("config") < F.col("version")))
    text = say("%s follows %s but counts by membership version %d, not %d", label, change, "config", "version")
    early = (
        pairs.where(F.col("config") == F.col("version"))
        .groupBy("node", "leader", "tick", "txid", "version")
        .agg(F.max(follows).alias("follows"))
        .where("NOT follows")
    )
    early_text = say("%s counts by membership version %d without following its change", label, "version")
    return findings(late, CHECK, text).unionByName(findings(early, CHECK, early_text))


def _approvers(good: DataFrame) -> DataFrame:
    """Return approvals given at a tick that the approver's own file does not reach: it may be an older copy."""
    heads = good.where("node = leader").groupBy("leader").agg(F.max("tick").alias("head"))
    heads = heads.withColumnRenamed("leader", "approver")
    given = good.select("node", "leader", "tick", "txid", F.explode("quorum").alias("approver", "at"))
    wrong = given.join(F.broadcast(heads), "approver").where("at > head")
    text = say(
        "%s approved %s at its tick %d, but its own file ends at %d", "approver", place("leader", "tick"), "at", "head"
    )
    return findings(wrong, CHECK, text, level=INFORMATION)

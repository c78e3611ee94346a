"""Runs all audits over nodes' files in a session of its own, one after the other, handing out each outcome at once."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import functions as F  # noqa: N812

from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.audit.audits import AUDITS, Journals, read_journals
from bedrockish_journal.spark.audit.findings import Finding, collect
from bedrockish_journal.spark.audit.inputs import find_inputs
from bedrockish_journal.spark.audit.naming import named
from bedrockish_journal.spark.session import quiet_session

BRIEF_BYTES = 100 << 20  # files smaller than this together are audited before compiling would pay
_OURS = re.compile(r"(?:journal|bedrockish)\.errors\.\w+: (.+)")


@dataclass(frozen=True, slots=True)
class Counts:
    """What is being audited.

    Attributes:
        nodes: whose journals.
        entries: in all of them together.
        transactions: different ones.
        heads: the last tick of each timeline.
        removed: for each node and timeline the last tick that was removed from its journal; that is not judged.
    """

    nodes: list[str]
    entries: int
    transactions: int
    heads: dict[str, int]
    removed: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one audit found.

    Attributes:
        check: its name.
        says: the law, in words.
        findings: the first ones.
        counts: how many there are of each level.
    """

    check: str
    says: str
    findings: list[Finding]
    counts: dict[str, int]


def run_audits(paths: list[str], limit: int) -> Iterator[Counts | Outcome]:
    """Yield what is audited, then the outcome of each audit. Spark is stopped at the end.

    Args:
        paths: the journal of each node, from its file or an export.
        limit: findings of each audit to hand out at most.

    Raises:
        SparkUnavailableError: Spark cannot be started.
        JournalError: a file cannot be read, or Spark failed.
    """
    inputs = find_inputs(paths)
    brief = inputs.size < BRIEF_BYTES
    spark = quiet_session("bedrockish audit", brief=brief)
    try:
        journals = read_journals(spark, paths)
        yield _count(journals)
        for check, (says, make) in AUDITS.items():
            found, counts = collect(make(journals), limit)
            yield Outcome(check, says, named(inputs, found), counts)
    except JournalError:
        raise
    except Exception as error:  # pyspark and py4j raise many kinds; each of them means that there is no answer
        text = str(error).strip()
        ours = _OURS.findall(text)
        raise JournalError(ours[-1] if ours else f"Spark failed: {text[:2000]}") from error
    finally:
        spark.stop()


def _count(journals: Journals) -> Counts:
    rows = journals.commits.groupBy("leader").agg(F.count("*").alias("entries"), F.max("tick").alias("head")).collect()
    return Counts(
        journals.nodes,
        sum(row["entries"] for row in rows),
        journals.commits.select("txid").distinct().count(),
        {row["leader"]: row["head"] for row in sorted(rows)},
        journals.removed,
    )

"""The form in which every audit answers: a DataFrame of findings, one row for each thing that is not as it must be."""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name that every Spark program uses)

FAULT, INFORMATION = "fault", "information"

COLUMNS = ("check", "level", "node", "leader", "tick", "txid", "table", "key", "text")


class Finding(NamedTuple):
    """One finding, as it is printed.

    Attributes:
        check: the audit that found it.
        level: ``fault``, or ``information`` for what honest journals can show as well.
        node: in whose files, comma separated.
        leader: timeline of the entry that it is about; with ``tick`` its place.
        tick: see ``leader``.
        txid: the transaction.
        table: the object of a conflict.
        key: the key of a conflict, in hexadecimal.
        text: what is wrong, in a sentence.
    """

    check: str
    level: str
    node: str | None
    leader: str | None
    tick: int | None
    txid: str | None
    table: str | None
    key: str | None
    text: str


def say(form: str, *columns: str | Column) -> Column:
    """Return a sentence with columns in it; ``%s`` for text, ``%d`` for numbers."""
    return F.format_string(form, *columns)


def place(leader: str | Column, tick: str | Column) -> Column:
    """Return a label as it is printed: A7."""
    return F.format_string("%s%d", leader, tick)


def findings(frame: DataFrame, check: str, text: Column, *, level: str = FAULT, **columns: str | Column) -> DataFrame:
    """Turn rows into findings. The columns node, leader, tick and txid are taken from the frame where it has them.

    Args:
        frame: one row for each finding.
        check: the audit.
        text: what is wrong.
        level: ``fault`` or ``information``.
        columns: what else to use for a column of a finding.
    """
    chosen: list[Column] = []
    for name in COLUMNS:
        kind = "bigint" if name == "tick" else "string"
        if name in ("check", "level"):
            value = F.lit(check if name == "check" else level)
        elif name == "text":
            value = text
        elif name in columns:
            given = columns[name]
            value = F.col(given) if isinstance(given, str) else given
        elif name in ("node", "leader", "tick", "txid") and name in frame.columns:
            value = F.col(name)
        else:
            value = F.lit(None)
        chosen.append(value.cast(kind).alias(name))
    return frame.select(*chosen)


def merge(frame: DataFrame) -> DataFrame:
    """Join equal findings in the files of several nodes into one that names them all."""
    rest = [name for name in COLUMNS if name != "node"]
    merged = frame.groupBy(*rest).agg(F.concat_ws(", ", F.sort_array(F.collect_set("node"))).alias("node"))
    return merged.select(*COLUMNS)


def collect(frame: DataFrame, limit: int) -> tuple[list[Finding], dict[str, int]]:
    """Return the first findings by timeline and tick, and how many there are of each level.

    Args:
        frame: findings.
        limit: how many to bring to the driver at most.
    """
    merged = merge(frame)
    rows = [Finding(*row) for row in merged.orderBy("level", "leader", "tick", "text").limit(limit + 1).collect()]
    if len(rows) <= limit:
        return rows, {level: sum(row.level == level for row in rows) for level in (FAULT, INFORMATION)}
    counted = {row["level"]: row["count"] for row in merged.groupBy("level").count().collect()}
    return rows[:limit], {level: counted.get(level, 0) for level in (FAULT, INFORMATION)}

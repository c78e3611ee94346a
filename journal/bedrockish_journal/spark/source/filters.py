"""Translates the conditions of a ``where``, which Spark passes to a data source, into limits on the entries to read.

A condition that is not understood here only costs time: more is read, and Spark applies the condition afterwards.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from bedrockish_journal.model.clock import pack
from bedrockish_journal.spark.source.plans import HIGHEST, LOWEST, NO_LIMITS, Between, Limits

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def limits_of(condition: Filter, told: Mapping[str, str]) -> tuple[Limits, bool]:
    """Return the limits that a condition sets on the wanted entries, and whether they express the whole condition.

    Args:
        condition: Spark's condition.
        told: the columns that can limit the read, each with its meaning: leader, tick, clock, committed_at or table.
    """
    if not isinstance(
        condition, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | In
    ):
        return NO_LIMITS, False
    column, value = told.get(".".join(condition.attribute)), condition.value
    if column in ("leader", "table"):
        names = _names(condition, value)
        if names is None:
            return NO_LIMITS, False
        return (Limits(leaders=names) if column == "leader" else Limits(tables=names)), True
    if column in ("clock", "tick"):
        between = _between(condition, value)
        if between is None:
            return NO_LIMITS, False
        exact = not isinstance(condition, In)  # only the least and the greatest value of a list are used
        return (Limits(clocks=between) if column == "clock" else Limits(ticks=between)), exact
    if column == "committed_at" and not isinstance(condition, In):
        return _within(condition, value), False  # a clock is more precise than its time
    return NO_LIMITS, False


def _names(condition: Filter, value: Any) -> frozenset[str] | None:
    values = value if isinstance(condition, In) else (value,)
    if not isinstance(condition, In | EqualTo | EqualNullSafe) or not all(isinstance(one, str) for one in values):
        return None
    return frozenset(values)


def _between(condition: Filter, value: Any) -> Between | None:
    values = value if isinstance(condition, In) else (value,)
    if not values or not all(type(one) is int for one in values):
        return None
    match condition:
        case GreaterThan():
            return value + 1, HIGHEST
        case GreaterThanOrEqual():
            return value, HIGHEST
        case LessThan():
            return LOWEST, value - 1
        case LessThanOrEqual():
            return LOWEST, value
        case _:
            return min(values), max(values)


def _within(condition: Filter, value: Any) -> Limits:
    """Return the limits on clocks for a condition on a time, rounded outwards to a clock's milliseconds."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return NO_LIMITS
    millisecond: int = (value - _EPOCH) // _MICROSECOND // 1000
    low = min(max(pack(millisecond), LOWEST), HIGHEST)
    high = min(max(pack(millisecond + 1) - 1, LOWEST), HIGHEST)
    match condition:
        case GreaterThan() | GreaterThanOrEqual():
            return Limits(clocks=(low, HIGHEST))
        case LessThan() | LessThanOrEqual():
            return Limits(clocks=(LOWEST, high))
        case _:
            return Limits(clocks=(low, high))

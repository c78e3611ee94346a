"""Ranges of a journal as Arrow batches of one table: what batch reads, streams and exports have in common."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from bedrockish_journal.spark.source.columns import batch
from bedrockish_journal.spark.source.feeds import Feed
from bedrockish_journal.spark.source.options import Options
from bedrockish_journal.spark.source.plans import NO_LIMITS, Limits, Span, Wanted
from bedrockish_journal.spark.source.tables import TABLES, Context, Table
from bedrockish_journal.storage.row import Stored

BATCH_ROWS = 4096


def batches(
    feed: Feed,
    spans: tuple[Span, ...],
    options: Options,
    limits: Limits,
    columns: dict[str, str],
    *,
    before: bool,
    whole: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one table that some ranges of ticks make.

    Args:
        feed: the journal.
        spans: the ranges.
        options: the table, and what to do with what cannot be decoded.
        limits: which entries and changes are wanted; the ranges have been made by them.
        columns: name and Spark type of the columns wanted.
        before: whether the rows of the time before the journal are to be among them.
        whole: whether each tick of the ranges must be there.

    Raises:
        JournalPrunedError: the beginning of a range was removed from the journal.
        JournalError: ticks are missing that must be there, or an entry cannot be decoded.
    """
    table, context = TABLES[options.table], feed.context
    context.skip, context.tables, context.columns = options.skip_malformed, limits.tables, frozenset(columns)
    wanted = Wanted(limits.clocks, table.kind, not table.bare.issuperset(columns), whole)
    places = [list(table.columns).index(name) for name in columns]
    with closing(feed.scan(spans, wanted)) as stored:
        rows = rows_of(context, table, stored)
        if before:
            rows = chain(rows_before(context, table, limits), rows)
        while chunk := list(islice(rows, BATCH_ROWS)):
            yield batch(columns, chunk, places)


def rows_of(context: Context, table: Table, stored: Iterable[Stored]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that stored entries make, as tuples of all columns of the table."""
    if table.make is not None:
        for row in stored:
            yield from table.make(context, row)


def rows_before(context: Context, table: Table, limits: Limits = NO_LIMITS) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that are of no entry, but of the time before the journal."""
    if table.before is not None:
        leader, tick, clock = (list(table.columns).index(name) for name in ("leader", "tick", "clock"))
        for row in table.before(context):
            if limits.meet(row[leader], row[tick], row[clock]):
                yield row

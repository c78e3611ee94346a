"""Ranges of a journal as Arrow batches of one table: what batch reads, streams and exports have in common."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa

from journal.spark.feeds import Feed
from journal.spark.options import Options
from journal.spark.plans import Limits, Span, Wanted
from journal.spark.tables import TABLES, Context, Table, batch, founding_members
from journal.stored import Stored

BATCH_ROWS = 4096


def batches(
    feed: Feed,
    spans: tuple[Span, ...],
    options: Options,
    limits: Limits,
    columns: dict[str, str],
    *,
    founding: bool,
    whole: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one table that some ranges of ticks make.

    Args:
        feed: the journal.
        spans: the ranges.
        options: the table, and what to do with what cannot be decoded.
        limits: which entries and changes are wanted; the ranges have been made by them.
        columns: name and Spark type of the columns wanted.
        founding: whether the founding membership is to be among the rows of ``members``.
        whole: whether each tick of the ranges must be there.

    Raises:
        JournalPrunedError: the beginning of a range was removed from the journal.
        JournalError: ticks are missing that must be there, or an entry cannot be decoded.
    """
    table, context = TABLES[options.table], feed.context
    context.skip, context.tables = options.skip_malformed, limits.tables
    wanted = Wanted(limits.clocks, table.kind, not table.bare.issuperset(columns), whole)
    with closing(feed.scan(spans, wanted)) as stored:
        yield from made(context, table, columns, stored, founding=founding and not limits.of_entries)


def made(
    context: Context, table: Table, columns: dict[str, str], stored: Iterable[Stored], *, founding: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that stored entries make, in batches."""
    context.columns = frozenset(columns)
    names = list(table.columns)
    places = [names.index(name) for name in columns]
    rows = rows_of(context, table, stored, founding=founding)
    while chunk := list(islice(rows, BATCH_ROWS)):
        yield batch(columns, chunk, places)


def rows_of(context: Context, table: Table, stored: Iterable[Stored], *, founding: bool) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that stored entries make, as tuples of all columns of the table."""
    if founding:
        yield from founding_members(context)
    for row in stored:
        yield from table.make(context, row)

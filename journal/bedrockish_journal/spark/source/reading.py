"""Reads ranges of a journal as Arrow batches of one table, for batch reads, streams and exports."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.spark.source.columns import BATCH_ROWS, batch
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.feeds import OpenJournal, check_same, expand, is_url, nodes_of, open_feed
from bedrockish_journal.spark.source.options import PARTITION_ROWS, ReadOptions
from bedrockish_journal.spark.source.plans import NO_LIMITS, BatchLimits, Span, WantedEntries, plan
from bedrockish_journal.spark.source.tables import SourceTable


@dataclass(frozen=True, slots=True)
class ReadPart:
    """The input of one task: ranges of ticks of one journal, and perhaps the records from before the journal."""

    path: str
    spans: tuple[Span, ...]
    before: bool
    node: str
    cluster: str


def parts(options: ReadOptions, table: SourceTable) -> list[ReadPart]:
    """Return the parts to read, which fix the entries that the reader will see.

    Raises:
        JournalError: a file is missing, is not a database or has no journal; or two are of one node or of two clusters.
        BedrockishError: a node cannot be reached.
    """
    found: list[ReadPart] = []
    for path in nodes_of(expand(options.path), options.access, newest=options.newest).values():
        rows = options.partition_rows or (None if is_url(path) else PARTITION_ROWS)
        with open_feed(path, options.access) as feed:
            groups = plan(feed.ask, options.limits, rows) if table.build else []
            node, cluster = feed.context.node, feed.context.cluster
        before = table.before is not None
        for group in groups or ([()] if before else []):
            found.append(ReadPart(path, group, before, node, cluster))
            before = False
    return found


def read_part(
    part: ReadPart, options: ReadOptions, table: SourceTable, columns: dict[str, str], *, whole: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part as Arrow batches; with ``whole``, each tick of the part must exist.

    Raises:
        JournalPrunedError: entries were removed from the journal after the read was planned.
        JournalError: the journal was replaced or can no longer be read, or an entry cannot be decoded.
    """
    with open_feed(part.path, options.access) as feed:
        check_same(feed.context, part.node, part.cluster)
        yield from batches(feed, table, part.spans, options, columns, before=part.before, whole=whole)


def batches(
    feed: OpenJournal,
    table: SourceTable,
    spans: tuple[Span, ...],
    # The conditions on wanted entries and changes, by which the ranges were planned, and whether to skip entries that
    # cannot be decoded.
    options: ReadOptions,
    columns: dict[str, str],  # name and Spark type of the columns wanted
    *,
    before: bool,  # whether to include the rows of the time before the journal
    whole: bool = False,  # whether each tick of the ranges must exist
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one table for some ranges of ticks.

    Raises:
        JournalPrunedError: the beginning of a range was removed from the journal.
        JournalError: the end of a range or required ticks are missing, or an entry cannot be decoded.
    """
    context = feed.context
    context.skip, context.columns = options.skip_malformed, frozenset(columns)
    limits, context.named = options.limits, options.limits.named
    wanted = WantedEntries(limits.clocks, table.kind, not table.bare.issuperset(columns), whole)
    if before and (rows := list(rows_before(context, table, limits))):
        yield batch(table.columns, columns, rows)
    if table.build is None:
        return
    builder = table.build(context, columns)
    with closing(feed.scan(spans, wanted)) as stored:
        for row in stored:
            if not row.is_well_typed:  # a column of Arrow has one type
                if context.skip and "malformed" not in table.columns:
                    continue
                raise EntryMalformedError(
                    f"row {row.seq} of the journal in {context.path} has values of types that a journal never has; run "
                    "`bedrockish journal verify` on it"
                )
            builder.add(row)
            if builder.is_full:
                yield from _pieces(builder.take())
    if builder.count:
        yield from _pieces(builder.take())


def _pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return a batch in pieces, because a single entry may have any number of rows."""
    pieces: list[pa.RecordBatch] = pa.Table.from_batches([batch]).to_batches(max_chunksize=BATCH_ROWS)
    return pieces


def rows_before(context: Context, table: SourceTable, limits: BatchLimits = NO_LIMITS) -> Iterator[tuple[Any, ...]]:
    """Yield the rows without an entry, from the time before the journal."""
    if table.before is not None:
        leader, clock = (list(table.columns).index(name) for name in ("leader", "clock"))
        for row in table.before(context):
            if limits.meet(row[leader], row[clock]):
                yield row

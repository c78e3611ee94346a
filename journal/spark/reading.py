"""Ranges of a journal as Arrow batches of one table: what batch reads, streams and exports have in common."""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from journal.spark.files import Span, Stored, meta, node_of, primary_key, scan
from journal.spark.options import Options
from journal.spark.tables import TABLES, Context, Table, batch, founding_members

BATCH_ROWS = 4096


def context_of(db: sqlite3.Connection, path: str, *, skip: bool) -> Context:
    """Return what the rows of an open file have in common."""
    return Context(node_of(db, path), path, skip, lambda table: primary_key(db, table), meta(db, "bootstrap"))


def batches(
    db: sqlite3.Connection,
    path: str,
    spans: tuple[Span, ...],
    options: Options,
    columns: dict[str, str],
    founding: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one table that some ranges of ticks make.

    Args:
        db: a connection of ``files.open_file``.
        path: the file, for errors.
        spans: the ranges.
        options: the table, and bounds.
        columns: name and Spark type of the columns wanted.
        founding: whether the founding membership is to be among the rows of ``members``.

    Raises:
        JournalError: an entry cannot be decoded.
    """
    table = TABLES[options.table]
    context = context_of(db, path, skip=options.skip_malformed)
    bounded = options.leader is not None or options.clock_from is not None
    stored = scan(
        db,
        spans,
        clock_from=options.clock_from,
        clock_to=options.clock_to,
        where=table.where,
        blobs=not table.bare.issuperset(columns),
    )
    yield from made(context, table, columns, stored, founding=founding and not bounded)


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

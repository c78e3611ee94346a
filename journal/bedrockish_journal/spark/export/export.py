"""Exports journals to Parquet with pyarrow alone. An export is incremental, and may be killed at any moment.

A run exports the missing entries in steps. Each step is a causally closed part of the journal, in the order in which
the node applied it. Its files are written under temporary names, renamed, and then included by a new manifest. The
manifest has the hash of the last exported entry, so that a journal that does not continue the export is refused.
"""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bedrockish_journal.model.entry import GENESIS
from bedrockish_journal.model.errors import ChainBrokenError, JournalError
from bedrockish_journal.spark.export.manifest import (
    Manifest,
    clear,
    file_of,
    locked,
    partial,
    read_manifest,
    write_manifest,
)
from bedrockish_journal.spark.source.columns import Builder, batch
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.feeds import OpenJournal
from bedrockish_journal.spark.source.plans import Span, WantedEntries, advance, cut, spans_between
from bedrockish_journal.spark.source.reading import rows_before
from bedrockish_journal.spark.source.tables import TABLES
from bedrockish_journal.storage.row import JournalRow
from bedrockish_journal.storage.segment import sync_folder

STEP = 20_000  # the greatest number of entries between two manifests, and in a file
BUFFER_ROWS = 32_768  # rows of a row group of a file
ENTRIES_AT_ONCE = 2_048


class WrittenRange(NamedTuple):
    """A range of ticks whose files have temporary names."""

    span: Span  # the timeline, and its first and last tick in the range
    tables: list[str]  # the tables that have rows of the range
    prev: bytes  # the ``prev`` of the first entry of the range
    hash: bytes  # the hash of the last entry of the range


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """The progress of a run."""

    node: str  # the node whose journal is exported
    entries: int  # the number of entries that this run has exported
    expected: int  # the number of entries that were missing when the run began
    vector: dict[str, int]  # the vector up to which this node's journal is exported


def export(
    feed: OpenJournal,
    # The export's directory, which is created if it does not exist. Several nodes may share a directory.
    directory: str,
    progress: Callable[[ExportProgress], None] | None = None,  # called after each step
    step: int = STEP,  # the number of entries in a step
    *,
    # Begin a new export at the oldest entry that the journal still has, instead of requiring the first one.
    oldest: bool = False,
) -> ExportProgress:
    """Export one node's journal up to its end at the time of the call, and return the progress.

    Raises:
        ExportError: the directory is not an export, or is in use.
        ChainBrokenError: the journal does not continue the export.
        JournalError: the journal cannot be read, or no longer has the next entries.
    """
    node = feed.context.node
    with locked(directory):
        manifest = read_manifest(directory)
        clear(directory, manifest)
        done = begin(manifest, feed.context, oldest=oldest)
        end = advance(feed.ask, feed.context.path, done)
        expected = sum(high - low + 1 for _, low, high in spans_between(done, end))
        so_far = ExportProgress(node, 0, expected, done)
        while so_far.vector != end or node not in manifest.vectors:
            upto = advance(feed.ask, feed.context.path, so_far.vector, end, step)
            spans = [span for group in cut(spans_between(so_far.vector, upto), step) for span in group]
            written = [write_aside(feed, span, directory) for span in spans]
            publish(directory, manifest, feed.context, upto, written)
            taken = sum(high - low + 1 for _, low, high in spans)
            so_far = ExportProgress(node, so_far.entries + taken, expected, upto)
            if progress is not None:
                progress(so_far)
    return so_far


def begin(manifest: Manifest, context: Context, *, oldest: bool) -> dict[str, int]:
    """Return the vector up to which a node is exported, or after which a new export begins."""
    node, marks = context.node, context.beginning.marks if oldest else ()
    if node in manifest.vectors:
        return manifest.vectors[node]
    manifest.hashes[node] = {mark.leader: mark.hash.hex() for mark in marks}
    return {mark.leader: mark.tick for mark in marks}


def write_aside(feed: OpenJournal, span: Span, directory: str) -> WrittenRange:
    """Write the rows of a range of ticks into files with temporary names, for all tables, and return the range.

    Raises:
        ChainBrokenError: an entry does not continue the entry before it.
        JournalError: the journal cannot be read, or has a gap.
    """
    leader, low, high = span
    feed.context.skip = True  # an entry that cannot be decoded has only a row of commits, with the reason
    tables = _Tables(feed.context, span, directory)
    last: JournalRow | None = None
    first_prev = GENESIS
    try:
        with closing(feed.scan([span], WantedEntries(whole=True))) as rows:
            while chunk := list(islice(rows, ENTRIES_AT_ONCE)):
                for row in chunk:
                    if last is None:
                        first_prev = row.prev
                    elif row.prev != last.hash:
                        raise ChainBrokenError(leader, row.tick, last.hash, row.prev)
                    last = row
                tables.add(chunk)
    finally:
        tables.close()
    if last is None or last.tick != high:
        raise JournalError(f"{feed.context.path} lost entries of {leader}{low} to {leader}{high} while they were read")
    return WrittenRange(span, tables.names, first_prev, last.hash)


def publish(
    directory: str, manifest: Manifest, context: Context, upto: dict[str, int], written: list[WrittenRange]
) -> None:
    """Rename the files of some ranges to their final names, and include the ranges in the manifest.

    Raises:
        ChainBrokenError: a range does not continue the export.
    """
    node = context.node
    hashes = dict(manifest.hashes.get(node, {}))
    for one in written:
        leader, low, _ = one.span
        expected = bytes.fromhex(hashes[leader]) if leader in hashes else GENESIS
        if one.prev != expected:
            raise ChainBrokenError(leader, low, expected, one.prev)
        hashes[leader] = one.hash.hex()
    for one in written:
        for table in one.tables:
            path = file_of(directory, table, node, one.span)
            partial(path).replace(path)
            sync_folder(path.parent)
    if node not in manifest.vectors:
        _write_before(directory, context)
    manifest.vectors[node], manifest.hashes[node] = upto, hashes
    write_manifest(directory, manifest)


def _write_before(directory: str, context: Context) -> None:
    """Write the rows without an entry: the founding membership, and the marks of removed entries."""
    for name, table in TABLES.items():
        rows = list(rows_before(context, table))
        if rows:
            path = file_of(directory, name, context.node, None)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_batches([batch(table.columns, _file_columns(name), rows)]), path)


def _file_columns(table: str) -> dict[str, str]:
    """Return the columns of a table's files, which have the node only in the name of their directory."""
    return {name: kind for name, kind in TABLES[table].columns.items() if name != "node"}


class _Tables:
    """The files of all tables for one range of ticks, each created for its first row."""

    def __init__(self, context: Context, span: Span, directory: str) -> None:
        self._node, self._span, self._directory = context.node, span, directory
        self._builders: dict[str, Builder] = {
            name: table.build(context, _file_columns(name)) for name, table in TABLES.items() if table.build is not None
        }
        self._batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in self._builders}
        self._writers: dict[str, pq.ParquetWriter] = {}

    @property
    def names(self) -> list[str]:
        """The tables that have rows."""
        return list(self._writers)

    def add(self, chunk: list[JournalRow]) -> None:
        """Add the rows of some entries."""
        for row in chunk:
            for name, builder in self._builders.items():
                kind = TABLES[name].kind
                if kind is None or (kind == row.kind and not row.repeat):
                    builder.add(row)
                    if builder.is_full:
                        self._batches[name].append(builder.take())
        for name, batches in self._batches.items():
            if sum(batch.num_rows for batch in batches) >= BUFFER_ROWS:
                self._write(name)

    def _write(self, name: str) -> None:
        made = pa.Table.from_batches(self._batches[name])
        self._batches[name] = []
        if name not in self._writers:
            path = file_of(self._directory, name, self._node, self._span)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[name] = pq.ParquetWriter(partial(path), made.schema, compression="zstd", version="2.6")
        self._writers[name].write_table(made, row_group_size=max(made.num_rows, 1))

    def close(self) -> None:
        """Write the remaining rows, and sync the files."""
        for name, builder in self._builders.items():
            if builder.count:
                self._batches[name].append(builder.take())
            if any(batch.num_rows for batch in self._batches[name]):
                self._write(name)
        for writer in self._writers.values():
            writer.close()
            with open(writer.where, "rb") as file:
                os.fsync(file.fileno())

"""Columns with their types in Spark and Arrow, and builders that make Arrow batches of stored entries.

A column's type is given once, by its Spark name; the Arrow type follows from it, and a test compares it with Spark's
own translation.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bedrockish_journal.storage.row import JournalRow

BATCH_ROWS = 1024  # with more rows, Python's garbage collector scans them so often that it costs a third of the time
BATCH_BYTES = 8 << 20  # bytes of entries at which a batch is full
Part = tuple[Sequence[int], Mapping[str, Any]]  # some rows: the number of each, for sorting; their columns by name
Types = Mapping[str, str]  # name and Spark type of some columns
ARROW = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "MAP<STRING, BIGINT>": pa.map_(pa.string(), pa.int64()),
}


def ddl(columns: Types) -> str:
    """Return columns as the DDL text of a Spark schema."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def schema_of(columns: Types) -> pa.Schema:
    """Return columns as an Arrow schema."""
    return pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])


def batch(table: Types, wanted: Types, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return the wanted columns of rows as an Arrow batch; the rows are tuples of all columns of the table."""
    places, schema = {name: place for place, name in enumerate(table)}, schema_of(wanted)
    arrays = [pa.array([row[places[field.name]] for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Builder(Protocol):
    """A builder of columns of one table."""

    @property
    def count(self) -> int:
        """The number of rows, or of row changes."""

    @property
    def is_full(self) -> bool:
        """Return whether the batch is large enough for ``take``."""

    def add(self, row: JournalRow) -> None:
        """Add the rows of an entry.

        Raises:
            EntryMalformedError: the entry cannot be decoded, and may not be skipped; none of its rows was added.
        """

    def take(self) -> pa.RecordBatch:
        """Return the rows, and start an empty batch."""


def arrow_batch(types: Types, parts: Sequence[Part]) -> pa.RecordBatch:
    """Return the rows of some parts as one Arrow batch, in the order of the rows' numbers.

    Args:
        parts: the rows, which may have further columns.
    """
    schema = schema_of(types)
    made = []
    for _, columns in parts:
        arrays = [pa.array(columns[field.name], type=field.type) for field in schema]
        made.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    if len(made) <= 1:
        return made[0] if made else pa.RecordBatch.from_pylist([], schema=schema)
    places = pa.array(list(chain.from_iterable(order for order, _ in parts)), type=pa.int64())
    table = pa.Table.from_batches(made, schema=schema).take(pc.sort_indices(places)).combine_chunks()
    (whole,) = table.to_batches()
    return whole

"""Columns that are built from stored entries, one after the other, and taken as Arrow batches."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bedrockish_journal.spark.source.columns import ARROW
from bedrockish_journal.storage.row import Stored

BATCH_ROWS = 1024  # with more, Python looks at what is held for garbage so often that it costs a third
BATCH_BYTES = 8 << 20  # of the entries held at once
Part = tuple[Sequence[int], Mapping[str, Any]]  # some rows: the place of each among all, and columns by name


class Builder(Protocol):
    """The columns of one table, as far as they are built."""

    @property
    def count(self) -> int:
        """How many rows there are, or changes of rows."""

    @property
    def is_full(self) -> bool:
        """Return whether the batch is large enough to be taken."""

    def add(self, row: Stored) -> None:
        """Add the rows that an entry makes.

        Raises:
            EntryMalformedError: it cannot be decoded, and may not be skipped; nothing of it was added.
        """

    def take(self) -> pa.RecordBatch:
        """Return the rows, and start an empty batch."""


def arrow_batch(types: Mapping[str, str], parts: Sequence[Part]) -> pa.RecordBatch:
    """Return columns as an Arrow batch.

    Args:
        types: name and Spark type of each.
        parts: the rows; their columns may be more.
    """
    schema = pa.schema([(name, ARROW[kind]) for name, kind in types.items()])
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


def in_pieces(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of so many rows at most: one entry may have any number of them."""
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

"""Builders of columns, to which stored entries are added and which return Arrow batches."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bedrockish_journal.spark.source.columns import Types, schema_of
from bedrockish_journal.storage.row import JournalRow

BATCH_ROWS = 1024  # with more rows, Python's garbage collector scans them so often that it costs a third of the time
BATCH_BYTES = 8 << 20  # bytes of entries at which a batch is full
Part = tuple[Sequence[int], Mapping[str, Any]]  # some rows: the number of each, for sorting; their columns by name


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

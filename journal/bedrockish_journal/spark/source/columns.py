"""Columns with their types in Spark and Arrow.

A column's type is given once, by its Spark name; the Arrow type follows from it, and a test compares it with Spark's
own translation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

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


def batch(columns: Types, rows: Sequence[tuple[Any, ...]], places: Sequence[int]) -> pa.RecordBatch:
    """Return rows as an Arrow batch.

    Args:
        rows: tuples of all columns of the table.
        places: the index of each wanted column in such a tuple.
    """
    types = [ARROW[kind] for kind in columns.values()]
    arrays = [pa.array([row[place] for row in rows], type=kind) for place, kind in zip(places, types, strict=True)]
    schema = pa.schema(list(zip(columns, types, strict=True)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

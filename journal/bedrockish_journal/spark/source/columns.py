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


def schema_of(columns: Types) -> pa.Schema:
    """Return columns as an Arrow schema."""
    return pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])


def batch(table: Types, wanted: Types, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return the wanted columns of rows as an Arrow batch; the rows are tuples of all columns of the table."""
    places, schema = {name: place for place, name in enumerate(table)}, schema_of(wanted)
    arrays = [pa.array([row[places[field.name]] for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

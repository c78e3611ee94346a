"""The values of a Parquet file, for example of an export."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_rows(path: Path) -> Iterator[Iterable[Any]]:
    """Yield each value of each column as a row: all values inside it.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with pq.ParquetFile(path) as file:
            for part in file.iter_batches(batch_size=4_096):
                for column in part.columns:
                    for value in column.to_pylist():
                        yield _leaves(value)
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the single values inside a value of lists, maps and structs."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        yield value

"""Journals as Arrow record batches, for pandas, Polars, DuckDB and other readers of Arrow. Needs pyarrow, not Java."""

import os
from collections.abc import Iterator

import pyarrow as pa

from bedrockish_journal.spark.source.columns import schema_of
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.reading import parts, read_part
from bedrockish_journal.spark.source.typed_rows import table_of


def read_journal(path: "str | os.PathLike[str]", **options: str | int) -> pa.RecordBatchReader:
    """Return a table of journals as Arrow record batches, which are read lazily.

    The call fixes the content of the batches: each journal's timelines up to their present ticks. One batch is in
    memory at a time, with a thousand rows or the rows of one transaction.

    Args:
        path: node files, globs, directories and URLs of running nodes, separated by commas.
        options: the options of the data source for Spark: ``table="changes"``, or ``rows="account"`` for typed columns,
            and ``columns``, ``leader``, ``clock_from``, ``clock_to``, ``tables``, ``malformed``, ``copies``, ``user`` …

    Raises:
        ValueError: an option is wrong.
        JournalError: a journal cannot be read, now or while batches are read.
        BedrockishError: a running node cannot be reached.
    """
    where = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(where, str):
        raise ValueError(
            f"the path should be one text, such as 'a.db,b.db', or a Path, not a {type(path).__name__}; join several "
            "paths by commas"
        )
    parsed = ReadOptions.parse({**{name: str(value) for name, value in options.items()}, "path": where})
    table = table_of(parsed)
    columns = table.chosen(parsed.name, parsed.columns)
    found = parts(parsed, table)

    def read() -> Iterator[pa.RecordBatch]:
        for part in found:
            yield from read_part(part, parsed, table, columns)

    return pa.RecordBatchReader.from_batches(schema_of(columns), read())

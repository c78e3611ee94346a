"""A stream into Parquet, each row exactly once, in a directory that any reader of Parquet understands.

Spark's own Parquet sink leaves files behind that only Spark knows to ignore. Here each batch has a directory named by
its number, written whole or written again: a batch that was cut short is repeated after the restart with the same rows,
because its offsets are in the checkpoint before it begins.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def parquet_batches(directory: str) -> "Callable[[DataFrame, int], None]":
    """Return a writer for ``foreachBatch`` that writes batch 7 to ``<directory>/batch=7``.

    A batch is whole once its directory has the file ``_SUCCESS``. A directory belongs to one checkpoint.

    Example::

        stream = spark.readStream.format("bedrockish").load("a.db")
        stream.writeStream.foreachBatch(parquet_batches("out")).option("checkpointLocation", "out.checkpoint").start()

    Args:
        directory: where to write; a path, or a URL that Spark can write to.
    """

    def write(rows: "DataFrame", number: int) -> None:
        rows.write.mode("overwrite").parquet(f"{directory.rstrip('/')}/batch={number}")

    return write

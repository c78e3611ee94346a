"""The journal in Spark: data source, stream, exports and audits.

``register(spark)`` makes ``spark.read.format("bedrockish")`` known, ``parquet_batches`` writes a stream. The rest is in
the modules ``source``, ``export`` and ``session``. Importing this package needs neither pyspark nor Java, so
that a missing one can be reported in plain words.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["parquet_batches", "register"]


def register(spark: "SparkSession") -> None:
    """Make ``spark.read.format("bedrockish")`` known to a session, if pip has not installed the package."""
    from bedrockish_journal.spark.source.source import BedrockishSource

    spark.dataSource.register(BedrockishSource)


def parquet_batches(directory: "str | os.PathLike[str]") -> "Callable[[DataFrame, int], None]":
    """Return a writer for ``foreachBatch`` that writes batch 7 to ``<directory>/batch=7``.

    Spark's own Parquet sink leaves files behind that only Spark knows to ignore. With this writer, an interrupted batch
    is written again after the restart with the same rows, because its offsets are in the checkpoint before it begins. A
    batch is complete when its directory has the file ``_SUCCESS``. A directory belongs to one checkpoint.

    Example::

        stream = spark.readStream.format("bedrockish").load("a.db")
        stream.writeStream.foreachBatch(parquet_batches("out")).option("checkpointLocation", "out.checkpoint").start()

    Args:
        directory: the target directory: a path, or a URL that Spark can write to.
    """
    target = os.fspath(directory).rstrip("/")

    def write(rows: "DataFrame", number: int) -> None:
        rows.write.mode("overwrite").parquet(f"{target}/batch={number}")

    return write

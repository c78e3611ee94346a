"""The journal in Spark: data source, stream, exports and audits.

``register(spark)`` makes ``spark.read.format("bedrockish")`` known, ``parquet_batches`` writes a stream. The rest is in
the modules ``source``, ``export``, ``lake`` and ``session``. Importing this package needs no pyspark and no Java, so
that both can be missed politely.
"""

from typing import TYPE_CHECKING

from bedrockish_journal.spark.export.sink import parquet_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["parquet_batches", "register"]


def register(spark: "SparkSession") -> None:
    """Make ``spark.read.format("bedrockish")`` known to a session."""
    from bedrockish_journal.spark.source.source import register as register_source

    register_source(spark)

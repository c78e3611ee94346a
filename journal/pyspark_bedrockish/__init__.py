"""Lets Spark find the data source ``bedrockish`` by itself.

When a session first meets an unknown format, Spark imports every top-level module whose name begins with ``pyspark_``
and takes its ``DefaultSource``. This package is installed at the top level for that purpose alone.
"""

from bedrockish_journal.spark.source.source import BedrockishSource as DefaultSource

__all__ = ["DefaultSource"]

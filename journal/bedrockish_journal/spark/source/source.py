"""The data source ``bedrockish``: the journals of nodes as Spark tables, read from their files or from the nodes.

The plan of a query fixes its input: each journal's timelines up to their ticks at that time. Nodes may commit while the
query runs; running the query again plans it again.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bedrockish_journal.spark.source.columns import ddl
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.reading import parts, read_part
from bedrockish_journal.spark.source.stream import BedrockishStreamReader, StreamTask
from bedrockish_journal.spark.source.tables import SourceTable
from bedrockish_journal.spark.source.typed_rows import table_of


class BedrockishSource(DataSource):
    """Journals of bedrockish nodes.

    Options:
        path: node files, comma separated, globs, directories, and URLs of running nodes. Required.
        table: commits (default), changes, approvals, footprints, schema_history, members or pruned.
        rows: a table of the user's, instead of ``table``: its changes, with typed columns.
        leader: only commits in these nodes' timelines, comma separated.
        clock_from, clock_to: only commits with a clock in these bounds, both included.
        tables: only ``changes`` of these tables, comma separated; names in upper or lower case.
        columns: only these columns, comma separated; with fewer columns, less is decoded.
        partition_rows: commits read by one task; 50000 by default, and all commits of a running node.
        malformed: ``fail`` (default) or ``skip``, for entries that cannot be decoded. The table commits shows them in
            any case, with the reason in its column ``malformed``.
        copies: ``fail`` (default) or ``newest``, for several copies of one node's journal.
        user, password, ca, cert, key: credentials for running nodes, as far as their URLs lack them.
        starting: the beginning of a stream without a checkpoint: ``beginning`` (default), ``oldest`` or ``now``.
        until: the end of a stream: ``applied`` (default) or ``safe``.
        max_commits: the greatest number of commits of each node in one batch of a stream.

    Example::

        from bedrockish_journal.spark import register
        register(spark)
        spark.read.format("bedrockish").option("table", "changes").load("a.db,b.db").show()
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "bedrockish"

    def schema(self) -> str:
        """Return the columns of the table, as DDL.

        Raises:
            ValueError: an option is wrong.
        """
        options = ReadOptions.parse(self.options)
        return ddl(table_of(options).chosen(options.name, options.columns))

    def reader(self, schema: StructType) -> "BedrockishReader":
        """Return the reader of the columns in ``schema``, which may be fewer than the table has.

        Raises:
            ValueError: an option is wrong, or the schema has a column that the table lacks or of another type.
        """
        options = ReadOptions.parse(self.options)
        table = table_of(options)
        return BedrockishReader(options, _columns(options, table, schema), table)

    def streamReader(self, schema: StructType) -> BedrockishStreamReader:  # noqa: N802  (Spark's name)
        """Return the stream of the columns in ``schema``. The errors are those of ``reader``."""
        options = ReadOptions.parse(self.options)
        table = table_of(options)
        return BedrockishStreamReader(options, _columns(options, table, schema), table)


def _columns(options: ReadOptions, table: SourceTable, schema: StructType) -> dict[str, str]:
    wanted = table.chosen(options.name, schema.fieldNames())
    for column in schema.fields:
        kind = wanted[column.name]
        if column.dataType.simpleString() != kind.lower().replace(", ", ","):
            raise ValueError(f"the column {column.name!r} is {kind}, not {column.dataType.simpleString()}")
    return wanted


class BedrockishReader(DataSourceReader):
    """The planner of a read, and the reader of its pieces in Spark's workers, without state between the two.

    Args:
        columns: name and Spark type of the columns wanted.
    """

    def __init__(self, options: ReadOptions, columns: dict[str, str], table: SourceTable) -> None:
        self.options = options
        self.table = table
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the pieces to read, which fix the entries that the query will see.

        Raises:
            JournalError: a file is missing, is not a database or has no journal; or two are of the same node.
            BedrockishError: a node cannot be reached.
        """
        found = parts(self.options, self.table)
        return [StreamTask(part) for part in found] or [StreamTask(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece as Arrow batches.

        Raises:
            JournalPrunedError: entries were removed from the journal after the read was planned.
            JournalError: the journal can no longer be read, or an entry cannot be decoded.
        """
        assert isinstance(partition, StreamTask)
        if partition.part is not None:
            yield from read_part(partition.part, self.options, self.table, self.columns)

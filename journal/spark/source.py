"""The data source ``bedrockish``: the journals of nodes as Spark tables, read from the nodes' SQLite files.

What is read is fixed when the query is planned: each file's timelines up to the ticks they had then. Nodes may go on
committing meanwhile; running the query again plans again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from journal.spark.files import Span, expand, open_file, plan
from journal.spark.options import Options, check_columns
from journal.spark.reading import batches
from journal.spark.stream import BedrockishStreamReader
from journal.spark.tables import TABLES, ddl


@dataclass
class Piece(InputPartition):
    """What one task reads: some ranges of ticks of one file, and perhaps the file's founding membership."""

    path: str
    spans: tuple[Span, ...]
    founding: bool = False


class BedrockishSource(DataSource):
    """Journals of bedrockish nodes.

    Options:
        path: node files; comma separated paths, globs and directories. Required.
        table: commits (default), changes, approvals, footprints, schema_history or members.
        leader: only commits that stand in this node's timeline.
        clock_from, clock_to: only commits with a clock in these bounds, both included.
        columns: only these columns, comma separated; the fewer, the less is decoded.
        partition_rows: commits read by one task; 50000 by default.
        malformed: ``fail`` (default) or ``skip``, for entries that cannot be decoded. The table commits shows them in
            any case, with the reason in its column ``malformed``.
        starting: where a stream without a checkpoint begins: ``beginning`` (default), ``oldest`` or ``now``.
        max_commits: how many commits of each file one batch of a stream takes at most.

    Example::

        from journal.spark import register
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
        options = Options.parse(self.options)
        columns = TABLES[options.table].columns
        return ddl({name: columns[name] for name in options.columns or columns})

    def reader(self, schema: StructType) -> "BedrockishReader":
        """Return the reader of the columns in ``schema``, which may be fewer than the table has.

        Raises:
            ValueError: an option is wrong, or the schema has a column that the table lacks or of another type.
        """
        return BedrockishReader(Options.parse(self.options), _columns(self.options, schema))

    def streamReader(self, schema: StructType) -> BedrockishStreamReader:  # noqa: N802  (Spark's name)
        """Return the stream of the columns in ``schema``.

        Raises:
            ValueError: as for ``reader``.
        """
        return BedrockishStreamReader(Options.parse(self.options), _columns(self.options, schema))


def _columns(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    options = Options.parse(given)
    table = TABLES[options.table]
    check_columns(table, options.table, tuple(schema.fieldNames()))
    wanted = {name: table.columns[name] for name in schema.fieldNames()}
    for column in schema.fields:
        kind = wanted[column.name]
        if column.dataType.simpleString() != kind.lower().replace(", ", ","):
            raise ValueError(f"the column {column.name!r} is {kind}, not {column.dataType.simpleString()}")
    return wanted


class BedrockishReader(DataSourceReader):
    """Plans a read, then reads pieces of it in Spark's workers. It keeps no state and no open file between the two."""

    def __init__(self, options: Options, columns: dict[str, str]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the pieces to read; this fixes what the query will see.

        Raises:
            JournalError: a file is missing, is no database or has no journal.
        """
        pieces: list[InputPartition] = []
        options = self.options
        for path in expand(options.path):
            with open_file(path) as db:
                groups = plan(db, options.partition_rows, options.leader)
            founding = options.table == "members"
            for group in groups or [()]:
                pieces.append(Piece(path, group, founding))
                founding = False
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece as Arrow batches.

        Raises:
            JournalError: the file cannot be read any more, or an entry of it cannot be decoded.
        """
        assert isinstance(partition, Piece)
        with open_file(partition.path) as db:
            yield from batches(db, partition.path, partition.spans, self.options, self.columns, partition.founding)


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("bedrockish")`` known to a session; needed where pip did not install the package."""
    spark.dataSource.register(BedrockishSource)

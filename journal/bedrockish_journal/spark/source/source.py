"""The data source ``bedrockish``: the journals of nodes as Spark tables, read from their files or from the nodes.

The plan of a query fixes its input: each journal's timelines up to the ticks they had then. Nodes may commit while the
query runs; running it again plans again.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bedrockish_journal.spark.source.columns import ddl
from bedrockish_journal.spark.source.filters import limits_of
from bedrockish_journal.spark.source.options import Options, check_columns
from bedrockish_journal.spark.source.reading import Part, parts, read_part
from bedrockish_journal.spark.source.stream import BedrockishStreamReader
from bedrockish_journal.spark.source.tables import Table
from bedrockish_journal.spark.source.typed_rows import table_of

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass
class Piece(InputPartition):
    """The input of one task; None if there is nothing to read, as Spark wants a task all the same."""

    part: Part | None


class BedrockishSource(DataSource):
    """Journals of bedrockish nodes.

    Options:
        path: node files, comma separated, globs, directories, and URLs of running nodes. Required.
        table: commits (default), changes, approvals, footprints, schema_history, members or pruned.
        rows: instead of ``table``, a table of the user's: its changes, with its columns typed.
        leader: only commits that stand in these nodes' timelines, comma separated.
        clock_from, clock_to: only commits with a clock in these bounds, both included.
        tables: of ``changes``, only those of these tables, comma separated; names in any case of letters.
        columns: only these columns, comma separated; the fewer, the less is decoded.
        partition_rows: commits read by one task; 50000 by default, and of a running node all by one task.
        malformed: ``fail`` (default) or ``skip``, for entries that cannot be decoded. The table commits shows them in
            any case, with the reason in its column ``malformed``.
        pushdown: ``no`` (default) or ``yes``: let Spark hand over the conditions of the query. For a DataFrame that is
            used in one query, once; up to 4.3 Spark mixes up the conditions of several.
        copies: ``fail`` (default) or ``newest``, for several copies of one node's journal.
        user, password, ca, cert, key: how running nodes let us in, as far as their URLs do not say it.
        starting: where a stream without a checkpoint begins: ``beginning`` (default), ``oldest`` or ``now``.
        until: how far a stream goes: ``applied`` (default) or ``safe``.
        max_commits: how many commits of each node one batch of a stream takes at most.

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
        options = Options.parse(self.options)
        table = table_of(options)
        check_columns(table, options.name, options.columns)
        return ddl({name: table.columns[name] for name in options.columns or table.columns})

    def reader(self, schema: StructType) -> "BedrockishReader":
        """Return the reader of the columns in ``schema``, which may be fewer than the table has.

        Raises:
            ValueError: an option is wrong, or the schema has a column that the table lacks or of another type.
        """
        options = Options.parse(self.options)
        table = table_of(options)
        # Spark refuses a reader that takes conditions where the session has not turned this on, so such a reader is
        # made only in the worker that Spark starts in order to hand conditions over. And only when it was asked for:
        # up to 4.3 Spark keeps what the conditions of one query left, also for later queries of the same DataFrame.
        made = PushingReader if options.pushdown and _PUSHING_WORKER in sys.modules else BedrockishReader
        return made(options, _columns(options, table, schema), table)

    def streamReader(self, schema: StructType) -> BedrockishStreamReader:  # noqa: N802  (Spark's name)
        """Return the stream of the columns in ``schema``.

        Raises:
            ValueError: as for ``reader``.
        """
        options = Options.parse(self.options)
        table = table_of(options)
        return BedrockishStreamReader(options, _columns(options, table, schema), table)


def _columns(options: Options, table: Table, schema: StructType) -> dict[str, str]:
    check_columns(table, options.name, tuple(schema.fieldNames()))
    wanted = {name: table.columns[name] for name in schema.fieldNames()}
    for column in schema.fields:
        kind = wanted[column.name]
        if column.dataType.simpleString() != kind.lower().replace(", ", ","):
            raise ValueError(f"the column {column.name!r} is {kind}, not {column.dataType.simpleString()}")
    return wanted


class BedrockishReader(DataSourceReader):
    """The planner of a read, and the reader of its pieces in Spark's workers. It keeps no state or open file between.

    Args:
        options: the journals and the limits.
        columns: name and Spark type of the columns wanted.
        table: what they are of.
    """

    def __init__(self, options: Options, columns: dict[str, str], table: Table) -> None:
        self.options = options
        self.table = table
        self.limits = options.limits
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the pieces to read; this fixes what the query will see.

        Raises:
            JournalError: a file is missing, is not a database or has no journal; or two are of the same node.
            BedrockishError: a node cannot be reached.
        """
        found = parts(self.options, self.table, self.limits)
        return [Piece(part) for part in found] or [Piece(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece as Arrow batches.

        Raises:
            JournalPrunedError: entries were removed from the journal after the read was planned.
            JournalError: the journal cannot be read any more, or an entry of it cannot be decoded.
        """
        assert isinstance(partition, Piece)
        if partition.part is not None:
            yield from read_part(partition.part, self.options, self.table, self.limits, self.columns)


class PushingReader(BedrockishReader):
    """A reader that Spark tells the conditions of a query, so that it need not read what they leave out."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Take conditions on leader, tick, clock, committed_at and table; return those that Spark must still apply."""
        for condition in filters:
            limits, exact = limits_of(condition, self.table.told)
            self.limits = self.limits.both(limits)
            if not exact:
                yield condition


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("bedrockish")`` known to a session; needed where pip did not install the package."""
    spark.dataSource.register(BedrockishSource)

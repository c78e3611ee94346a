"""The data source ``bedrockish``: the journals of nodes as Spark tables, read from their files or from the nodes.

What is read is fixed when the query is planned: each journal's timelines up to the ticks they had then. Nodes may go on
committing meanwhile; running the query again plans again.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bedrockish_journal.spark.source.columns import ddl
from bedrockish_journal.spark.source.feeds import both_of, expand, is_url, nodes_of, open_feed
from bedrockish_journal.spark.source.filters import limits_of
from bedrockish_journal.spark.source.options import PARTITION_ROWS, Options, check_columns
from bedrockish_journal.spark.source.plans import Span, plan
from bedrockish_journal.spark.source.reading import batches
from bedrockish_journal.spark.source.stream import BedrockishStreamReader
from bedrockish_journal.spark.source.tables import TABLES

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass
class Piece(InputPartition):
    """What one task reads: some ranges of ticks of one journal, and perhaps what was before the journal."""

    path: str
    spans: tuple[Span, ...]
    before: bool = False


class BedrockishSource(DataSource):
    """Journals of bedrockish nodes.

    Options:
        path: node files, comma separated, globs, directories, and URLs of running nodes. Required.
        table: commits (default), changes, approvals, footprints, schema_history, members or pruned.
        leader: only commits that stand in these nodes' timelines, comma separated.
        clock_from, clock_to: only commits with a clock in these bounds, both included.
        tables: of ``changes``, only those of these tables, comma separated.
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
        columns = TABLES[options.table].columns
        return ddl({name: columns[name] for name in options.columns or columns})

    def reader(self, schema: StructType) -> "BedrockishReader":
        """Return the reader of the columns in ``schema``, which may be fewer than the table has.

        Raises:
            ValueError: an option is wrong, or the schema has a column that the table lacks or of another type.
        """
        options = Options.parse(self.options)
        # Spark refuses a reader that takes conditions where the session has not turned this on, so such a reader is
        # made only in the worker that Spark starts in order to hand conditions over. And only when it was asked for:
        # up to 4.3 Spark keeps what the conditions of one query left, also for later queries of the same DataFrame.
        made = PushingReader if options.pushdown and _PUSHING_WORKER in sys.modules else BedrockishReader
        return made(options, _columns(self.options, schema))

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
        self.limits = options.limits
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the pieces to read; this fixes what the query will see.

        Raises:
            JournalError: a file is missing, is no database or has no journal; or two are of the same node.
            BedrockishError: a node cannot be reached.
        """
        pieces: list[InputPartition] = []
        seen: dict[str, str] = {}
        table = TABLES[self.options.table]
        access, paths = self.options.access, expand(self.options.path)
        for path in nodes_of(paths, access, newest=True).values() if self.options.newest else paths:
            rows = self.options.partition_rows or (None if is_url(path) else PARTITION_ROWS)
            with open_feed(path, access) as feed:
                groups, node = plan(feed.ask, self.limits, rows) if table.make else [], feed.context.node
            if node in seen:
                raise both_of(node, seen[node], path)
            seen[node] = path
            before = table.before is not None
            for group in groups or ([()] if before else []):
                pieces.append(Piece(path, group, before))
                before = False
        return pieces or [Piece("", ())]  # Spark wants one

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece as Arrow batches.

        Raises:
            JournalPrunedError: entries were removed from the journal after the read was planned.
            JournalError: the journal cannot be read any more, or an entry of it cannot be decoded.
        """
        assert isinstance(partition, Piece)
        if partition.path:
            with open_feed(partition.path, self.options.access) as feed:
                yield from batches(
                    feed, partition.spans, self.options, self.limits, self.columns, before=partition.before
                )


class PushingReader(BedrockishReader):
    """A reader that Spark tells the conditions of a query, so that it need not read what they leave out."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Take conditions on leader, tick, clock, committed_at and table; return those that Spark must still apply."""
        for condition in filters:
            limits, exact = limits_of(condition)
            self.limits = self.limits.both(limits)
            if not exact:
                yield condition


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("bedrockish")`` known to a session; needed where pip did not install the package."""
    spark.dataSource.register(BedrockishSource)

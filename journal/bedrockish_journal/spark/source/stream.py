"""The data source as a stream: every commit that a node has applied, once, in batches between two vectors.

An offset has the vector of each node: ``{"A": {"A": 76, "B": 36}}``, by node and then by leader. It also names the
cluster, ``{"cluster:9b96c59bff29d21e": {}}``, because another cluster may have nodes of the same names, and the table,
``{"table:changes": {}}``, because a checkpoint must not continue with another table. A batch has the entries that a
node applied next, in the order applied. So every offset is a causally closed prefix of the journal: no entry is read
before the entries that it follows. The entries between two offsets never change, so a batch that is read again after a
crash has the same rows.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from bedrockish_journal.model.errors import FileMissingError, JournalError
from bedrockish_journal.model.plain_names import folded
from bedrockish_journal.spark.source.feeds import OpenJournal, expand, nodes_of, open_feed, shown
from bedrockish_journal.spark.source.options import BEGINNING, OLDEST, PARTITION_ROWS, SAFE, ReadOptions
from bedrockish_journal.spark.source.plans import advance, bounds, cut, safe_prefix, spans_between
from bedrockish_journal.spark.source.reading import ReadPart, read_part
from bedrockish_journal.spark.source.tables import SourceTable

Offset = dict[str, dict[str, int]]
BEHIND_S = 60.0  # seconds for which a journal may lack entries that the stream has read: its node may be refilled
CLUSTER, TABLE = "cluster:", "table:"  # prefixes in an offset, which no node's name has


@dataclass
class StreamTask(InputPartition):
    """The input of one task; None for an empty read, because Spark needs at least one task."""

    part: ReadPart | None


class BedrockishStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that finds the files' ends, plans the batches between two offsets and reads them in Spark's workers."""

    def __init__(self, options: ReadOptions, columns: dict[str, str], table: SourceTable) -> None:
        self.options = options
        self.table = table
        self.columns = columns
        self._cluster = ""  # the cluster's id in the files that were last opened; empty if no file has it
        self._end: Offset | None = None  # the end of a run with the trigger ``availableNow``
        self._behind: dict[str, float] = {}  # node -> the time at which its journal was first found to be behind

    def initialOffset(self) -> Offset:  # noqa: N802  (the names of Spark's interface, here and below)
        """Return the offset at which a stream without a checkpoint begins.

        Raises:
            JournalError: a file cannot be read.
        """
        if self.options.starting == BEGINNING:
            return self._offset({node: {} for node in self._files()})
        if self.options.starting == OLDEST:
            return self._offset({node: self._removed(path) for node, path in self._files().items()})
        return self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch, by the option ``max_commits``."""
        return ReadAllAvailable() if self.options.max_commits is None else ReadMaxRows(self.options.max_commits)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run; later commits are left to the next run."""
        self._end = self._ends()

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the present ends of the files, for the progress that Spark reports."""
        return self._ends()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the batch that begins at ``start``.

        Raises:
            JournalPrunedError: a file no longer has the entries after ``start``.
            JournalError: a file cannot be read, is not of a node with which the stream began, or has lacked entries
                that the stream has read for ``BEHIND_S``; with the trigger ``availableNow``, for any time.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        files = self._files()
        self._check_start(start, files)
        end = {node: dict(vector) for node, vector in start.items()}
        for node, path in files.items():
            if self._end is not None and node not in self._end:
                continue
            with open_feed(path, self.options.access) as feed:
                self._check_has(feed, node, path, start.get(node, {}))
                upto = self._upto(feed) if self._end is None else self._end[node]
                end[node] = advance(feed.ask, path, end.get(node, {}), upto, most)
        return self._offset(end)

    def _check_start(self, start: Offset, files: Mapping[str, str]) -> None:
        """Check that a stream continues in the journals with which it began.

        Otherwise another cluster's commits would be skipped, or each commit would be read again.
        """
        self._check_origin(start, files)
        nodes = sorted(name for name in start if ":" not in name)
        if nodes and not any(node in files for node in nodes):
            raise JournalError(
                f"{_all_shown(files)} has the journal of node {', '.join(files)}, and the stream has read that of "
                f"{', '.join(nodes)}, with the same commits; {_AGAIN}"
            )

    def _check_has(self, feed: OpenJournal, node: str, path: str, read: Mapping[str, int]) -> None:
        """Check that a journal has the entries that the stream has read; an older copy would yield no rows for ever.

        Pruning never removes the last entry of a timeline, so a journal that was pruned further passes.
        """
        held = bounds(feed.ask)
        lacks = [(leader, tick) for leader, tick in sorted(read.items()) if held.get(leader, (0, 0))[1] < tick]
        if not lacks:
            self._behind.pop(node, None)
            return
        since = self._behind.setdefault(node, time.monotonic())
        if self._end is None and time.monotonic() - since < BEHIND_S:
            return
        (leader, tick), last = lacks[0], held.get(lacks[0][0], (0, 0))[1]
        raise JournalError(
            f"{shown(path)} goes up to {leader}{last}, and the stream has read it up to {leader}{tick}: it is an older "
            "copy of the journal, or was cut; give the node's own file, and keep the checkpoint"
        )

    def _check_origin(self, offset: Offset, files: Mapping[str, str]) -> None:
        """Check that an offset is of the cluster of these files, and of this table."""
        for kind, now in ((CLUSTER, self._cluster), (TABLE, self._table)):
            begun = [name.removeprefix(kind) for name in offset if name.startswith(kind)]
            if not now or not begun or begun == [now]:
                continue
            if kind == TABLE:
                raise JournalError(
                    f"the stream reads the table {now}, and its checkpoint is of a stream of the table {begun[0]}; "
                    "give each table a checkpoint and a directory of its own"
                )
            raise JournalError(
                f"{_all_shown(files)} is of the cluster {now}, and the stream has read the cluster {begun[0]}; {_AGAIN}"
            )

    @property
    def _table(self) -> str:
        """The name of the table in an offset."""
        rows = self.options.rows
        return self.options.table if rows is None else f"rows of {folded(rows)}"

    def _offset(self, vectors: Offset) -> Offset:
        """Return the offset of some vectors, with sorted keys, because Spark compares offsets as text."""
        cluster: Offset = {CLUSTER + self._cluster: {}} if self._cluster else {}
        offset = {**vectors, **cluster, TABLE + self._table: {}}
        return {node: dict(sorted(vector.items())) for node, vector in sorted(offset.items())}

    def _upto(self, feed: OpenJournal) -> dict[str, int] | None:
        """Return the vector up to which the stream may go; None for no limit."""
        return safe_prefix(feed.ask) if self.options.until == SAFE else None

    def _ends(self) -> Offset:
        found: Offset = {}
        for node, path in self._files().items():
            with open_feed(path, self.options.access) as feed:
                held = {leader: high for leader, (_, high) in bounds(feed.ask).items()}
                found[node] = held if (upto := self._upto(feed)) is None else upto
        return self._offset(found)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks for the entries between two offsets.

        Raises:
            JournalError: a file is missing, or is of another cluster; or the checkpoint is of another table.
        """
        files = self._files()
        self._check_origin(end, files)
        pieces: list[InputPartition] = []
        for node, vector in sorted(end.items()):
            before = start.get(node, {})
            spans = spans_between(before, vector)
            if not spans:
                continue
            if node not in files:
                raise FileMissingError(
                    self.options.path, f"{self.options.path}: the file of node {node} is gone; the stream began with it"
                )
            first = not before and self.table.before is not None
            leaders = self.options.limits.leaders
            for group in cut(spans, self.options.partition_rows or PARTITION_ROWS):
                if leaders is not None:
                    group = tuple(span for span in group if span[0] in leaders)
                pieces.append(StreamTask(ReadPart(files[node], group, first, node, self._cluster)))
                first = False
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task.

        Raises:
            JournalPrunedError: the file no longer has the entries of the task.
            JournalError: the file was replaced or cannot be read, or an entry cannot be decoded.
        """
        assert isinstance(partition, StreamTask)
        assert partition.part is not None
        yield from read_part(partition.part, self.options, self.table, self.columns, whole=True)

    def _files(self) -> dict[str, str]:
        clusters: dict[str, str] = {}
        options = self.options
        files = nodes_of(expand(options.path), options.access, newest=options.newest, clusters=clusters)
        self._cluster = next(iter(clusters), "")
        return files

    def _removed(self, path: str) -> dict[str, int]:
        """Return the last removed tick of each pruned timeline."""
        with open_feed(path, self.options.access) as feed:
            return {leader: low - 1 for leader, (low, _) in bounds(feed.ask).items() if low > 1}


_AGAIN = "continue with the former journal, or begin again with a new checkpoint"


def _all_shown(files: Mapping[str, str]) -> str:
    return ",".join(map(shown, files.values()))

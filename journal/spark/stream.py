"""The data source as a stream: every commit that a node has applied, once, in batches between two vectors.

An offset is the vector timestamp of each file: ``{"A": {"A": 76, "B": 36}}``, by node and then by leader. A batch takes
what a node applied next, in the order in which it did, so that every offset is a causally closed prefix of the journal:
nothing is read before what it follows. What lies between two offsets never changes, so a batch that is read again after
a crash has the same rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from journal.errors import FileMissingError
from journal.spark.files import Span, advance, bounds, check_whole, cut, expand, nodes_of, open_file, spans_between
from journal.spark.options import BEGINNING, OLDEST, Options
from journal.spark.reading import batches

Offset = dict[str, dict[str, int]]


@dataclass
class Range(InputPartition):
    """What one task reads: ranges of ticks that were all there when the batch was planned."""

    path: str
    spans: tuple[Span, ...]
    founding: bool


class BedrockishStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says how far the files go, plans the batches between two offsets, and reads them in Spark's workers."""

    def __init__(self, options: Options, columns: dict[str, str]) -> None:
        self.options = options
        self.columns = columns
        self._end: Offset | None = None  # of a run that takes what there is now and ends

    def initialOffset(self) -> Offset:  # noqa: N802  (the names of Spark's interface, here and below)
        """Return where a stream without a checkpoint begins.

        Raises:
            JournalError: a file cannot be read.
        """
        if self.options.starting == BEGINNING:
            return ordered({node: {} for node in self._files()})
        place = 0 if self.options.starting == OLDEST else 1
        return ordered({node: _ends(path, place) for node, path in self._files().items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much one batch takes, by the option ``max_commits``."""
        return ReadAllAvailable() if self.options.max_commits is None else ReadMaxRows(self.options.max_commits)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where this run ends: what is committed from now on is left to the next run."""
        self._end = ordered({node: _ends(path, 1) for node, path in self._files().items()})

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return how far the files go, for the progress that Spark reports."""
        return ordered({node: _ends(path, 1) for node, path in self._files().items()})

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return where the batch that begins at ``start`` ends.

        Raises:
            JournalPrunedError: a file no longer holds what comes after ``start``.
            JournalError: a file cannot be read.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = {node: dict(vector) for node, vector in start.items()}
        for node, path in self._files().items():
            if self._end is not None and node not in self._end:
                continue
            with open_file(path) as db:
                upto = None if self._end is None else self._end[node]
                db.execute("BEGIN")
                end[node] = advance(db.execute, path, end.get(node, {}), upto, most)
        return ordered(end)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut what lies between two offsets into tasks.

        Raises:
            JournalError: a file is gone.
        """
        files = self._files()
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
            founding = self.options.table == "members" and not before
            for group in cut(spans, self.options.partition_rows):
                if self.options.leader is not None:
                    group = tuple(span for span in group if span[0] == self.options.leader)
                pieces.append(Range(files[node], group, founding))
                founding = False
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task.

        Raises:
            JournalPrunedError: the file no longer holds what the batch was planned to read.
            JournalError: the file cannot be read, or an entry of it cannot be decoded.
        """
        assert isinstance(partition, Range)
        with open_file(partition.path) as db:
            db.execute("BEGIN")  # what is checked to be there is there when it is read
            check_whole(db, partition.path, partition.spans)
            yield from batches(db, partition.path, partition.spans, self.options, self.columns, partition.founding)

    def _files(self) -> dict[str, str]:
        return nodes_of(expand(self.options.path))


def ordered(offset: Mapping[str, Mapping[str, int]]) -> Offset:
    """Return an offset with its keys in order: Spark compares offsets as text."""
    return {node: dict(sorted(vector.items())) for node, vector in sorted(offset.items())}


def _ends(path: str, place: int) -> dict[str, int]:
    """Return the vector of all that a file holds (place 1), or of all that it no longer holds (place 0)."""
    with open_file(path) as db:
        found = {leader: ticks[place] - (place == 0) for leader, ticks in bounds(db.execute).items()}
    return {leader: tick for leader, tick in found.items() if tick > 0}

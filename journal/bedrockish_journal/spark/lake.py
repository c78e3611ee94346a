"""A lake of ``bedrockish lake`` in Spark: its changes, its rows as of a moment, and the history of each row.

The Parquet files of the tables are read directly, by the list of files that the package deltalake returns. So Spark
needs no Delta package, whose version would have to fit Spark's.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa

from bedrockish_journal.model.clock import milliseconds, pack
from bedrockish_journal.model.errors import FileMissingError, JournalError, MomentError
from bedrockish_journal.model.plain_names import plain_name
from bedrockish_journal.spark.source.columns import ARROW, ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COMMITS = "_commits"
CHANGES, HISTORY, AS_OF = "__changes", "__history", "__as_of"  # suffixes of the names of views and functions
_PLACE = ("_commit_clock", "_commit_origin", "_commit_seq")
_OF_THE_CHANGE = ("_change_type", "_commit_seq")  # columns that describe the change, and not the row
_THERE = "_change_type IN ('insert', 'update_postimage')"
_SPARK: Mapping[pa.DataType, str] = {kind: name for name, kind in ARROW.items()} | {
    pa.large_string(): "STRING",
    pa.large_binary(): "BINARY",
}


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns and files of a table.

    Attributes:
        columns: name and Spark type.
        files: paths of its Parquet files.
    """

    columns: Mapping[str, str]
    files: tuple[str, ...]


class Lake:
    """A snapshot of a lake, up to the last commit that was complete in all tables when this object was created.

    Args:
        spark: a session.
        directory: the directory of ``bedrockish lake``; every worker must see it under this path.

    Raises:
        FileMissingError: the directory has no lake, or the lake is empty.
        JournalError: the library for its format is not installed.
    """

    def __init__(self, spark: "SparkSession", directory: str | os.PathLike[str]) -> None:
        self._spark, self._directory = spark, os.path.abspath(directory)
        self._find, names = _delta(self._directory)
        if COMMITS not in names:
            raise FileMissingError(
                self._directory, f"{self._directory} is no lake, or has nothing yet; give what `bedrockish lake` writes"
            )
        self.tables = sorted(name for name in names if name != COMMITS)
        self._last, self._first = self._bounds()

    def _bounds(self) -> tuple[tuple[int, str], int]:
        """Return the last commit, and the clock of the copy that the lake begins with."""
        from pyspark.sql import functions as f

        last = f.max(f.struct("_commit_clock", "_commit_origin"))
        copied = f.min(f.when(f.col("_kind") == "copy", f.col("_commit_clock")))
        [found] = self._read(COMMITS).agg(last.alias("last"), copied.alias("copied")).collect()
        if found["last"] is None:
            raise FileMissingError(self._directory, f"the lake {self._directory} has nothing yet; fill it first")
        return (found["last"][0], found["last"][1]), found["copied"] or 0

    def commits(self) -> "DataFrame":
        """Return a row for each commit."""
        return self._whole(self._read(COMMITS))

    def changes(self, table: str) -> "DataFrame":
        """Return all changes of a table, with the table's columns and those of the lake.

        Args:
            table: its name in the database or in the lake.

        Raises:
            FileMissingError: the lake has no such table.
        """
        return self._whole(self._read(self._named(table)))

    def rows(self, table: str, as_of: int | datetime | None = None) -> "DataFrame":
        """Return the rows of a table as of a moment, each with the commit that wrote it.

        Args:
            table: its name.
            as_of: a clock or a time, inclusive; by default the last commit.

        Raises:
            FileMissingError: the lake has no such table.
            MomentError: the moment is before the lake begins, or is a time without a time zone.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        found = self.changes(table)
        if as_of is not None:
            found = found.where(f.col("_commit_clock") <= self._clock(as_of))
        latest = Window.partitionBy("_key").orderBy(*(f.col(name).desc() for name in _PLACE))
        found = found.withColumn("_latest", f.row_number().over(latest)).where("_latest = 1")
        return _there(found).drop("_latest", *_OF_THE_CHANGE)

    def history(self, table: str) -> "DataFrame":
        """Return every version of each row with its beginning and its end (a slowly changing dimension).

        ``_valid_from`` and ``_valid_to`` are times; ``_commit_clock`` and ``_clock_to`` are the same moments as clocks
        of the cluster. The present version has no end. A version with two equal clocks was replaced in its own commit.

        Raises:
            FileMissingError: the lake has no such table.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        then = Window.partitionBy("_key").orderBy(*_PLACE)
        found = self.changes(table).withColumn("_valid_from", f.col("_committed_at"))
        for name, end in (("_committed_at", "_valid_to"), ("_commit_clock", "_clock_to")):
            found = found.withColumn(end, f.lead(name).over(then))
        return _there(found).drop(*_OF_THE_CHANGE)

    def register(self, prefix: str = "", as_of: int | datetime | None = None) -> list[str]:
        """Create views for SQL: for each table its rows under its name, and ``…__changes`` and ``…__history``.

        The function ``…__as_of(moment TIMESTAMP)`` returns the rows as of a moment, for example
        ``SELECT * FROM account__as_of(TIMESTAMP '2026-11-24 12:00:00')``. It raises an error for a moment before the
        copy that the lake begins with. The function queries the view ``…__changes``, which must not be dropped.

        Args:
            prefix: the prefix of all names.
            as_of: a clock or a time, as of which the views of rows are; the other views have all commits.

        Returns:
            the names of all views and functions.

        Raises:
            JournalError: two views would have the same name.
            MomentError: ``as_of`` is before the lake begins, or is a time without a time zone.
        """
        views: dict[str, DataFrame] = {}
        functions: dict[str, str] = {}
        for table in self.tables:
            for name, found in (
                (table, self.rows(table, as_of)),
                (table + CHANGES, self.changes(table)),
                (table + HISTORY, self.history(table)),
            ):
                if views.setdefault((prefix + name).lower(), found) is not found:
                    raise JournalError(f"two views would be called {prefix + name}; register none, and use rows()")
            functions[(prefix + table + AS_OF).lower()] = self._as_of((prefix + table + CHANGES).lower())
        for name, found in views.items():
            found.createOrReplaceTempView(name)
        for name, query in functions.items():
            self._spark.sql(
                f"CREATE OR REPLACE TEMPORARY FUNCTION {_quoted(name)}(moment TIMESTAMP) RETURNS TABLE RETURN {query}"
            )
        return sorted([*views, *functions])

    def _as_of(self, changes: str) -> str:
        """Return the query for the rows of a table as of ``moment``, from the view of its changes."""
        then = f"{_quoted(changes)} WHERE _committed_at <= moment"
        if self._first:  # the moment is checked before any row is read, so that an empty table refuses it, too
            begin = f"timestamp_millis({milliseconds(self._first)})"
            text = f"concat(moment, ' is before the copy that the lake begins with (', {begin}, ')')"
            known = f"SELECT CASE WHEN moment < {begin} THEN raise_error({text}) ELSE moment END AS _moment"
            then = f"({known}) JOIN {_quoted(changes)} ON _committed_at <= _moment"
        latest = ", ".join(f"{name} DESC" for name in _PLACE)
        more = ", _moment" if self._first else ""
        return (
            f"SELECT * EXCEPT (_latest, {', '.join(_OF_THE_CHANGE)}{more}) FROM (SELECT *, row_number() OVER "
            f"(PARTITION BY _key ORDER BY {latest}) AS _latest FROM {then}) WHERE _latest = 1 AND {_THERE}"
        )

    def _clock(self, as_of: int | datetime) -> int:
        if isinstance(as_of, datetime):
            if as_of.tzinfo is None:
                raise MomentError(f"{as_of} is in no time zone; give it one, such as tzinfo=UTC")
            clock = pack(int(as_of.timestamp() * 1000) + 1) - 1
        else:
            clock = as_of
        if clock < self._first:
            raise MomentError(
                f"clock {clock} is before the copy that the lake {self._directory} begins with (clock {self._first}, "
                f"{milliseconds(self._first)} ms since 1970); what was before is not known here"
            )
        return clock

    def _whole(self, found: "DataFrame") -> "DataFrame":
        """Return the rows of commits that were complete when this object was created."""
        from pyspark.sql import functions as f

        clock, origin = self._last
        same: list[Column] = [f.col("_commit_clock") < clock]
        same.append((f.col("_commit_clock") == clock) & (f.col("_commit_origin") <= origin))
        return found.where(reduce(or_, same))

    def _named(self, table: str) -> str:
        for name in (plain_name(table), table):
            for known in self.tables:
                if known.lower() == name.lower():
                    return known
        raise FileMissingError(
            self._directory, f"the lake {self._directory} has no table {table!r}; it has {', '.join(self.tables)}"
        )

    def _read(self, table: str) -> "DataFrame":
        found: _Table = self._find(table)
        reader = self._spark.read.schema(ddl(dict(found.columns)))
        return (
            reader.parquet(*found.files) if found.files else self._spark.createDataFrame([], ddl(dict(found.columns)))
        )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _there(found: "DataFrame") -> "DataFrame":
    """Return the rows that exist after their change, without deleted ones."""
    return found.where(_THERE)


def _table(schema: pa.Schema, files: "list[str]") -> _Table:
    return _Table({one.name: _SPARK[one.type] for one in schema}, tuple(unquote(urlparse(file).path) for file in files))


def _missing(error: ImportError) -> JournalError:
    return JournalError(
        f"{error.name} is not installed, which knows the files of a lake; pip install 'bedrockish[lake]'"
    )


def _delta(directory: str) -> tuple[Any, set[str]]:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise _missing(error) from None

    def find(table: str) -> _Table:
        found = DeltaTable(os.path.join(directory, table))
        return _table(pa.schema(found.schema().to_arrow()), found.file_uris())

    folders = [str(one) for one in Path(directory).iterdir() if one.is_dir()] if os.path.isdir(directory) else []
    return find, {os.path.basename(one) for one in folders if DeltaTable.is_deltatable(one)}

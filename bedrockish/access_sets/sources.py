"""The rows on which later reads of a statement depend: which cursors have them, and which columns are needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bedrockish.access_sets.catalog import ROWID, Index, Schema, Table, stored_column
from bedrockish.access_sets.cursor_ranges import CursorId, KeyInterval, ProgramReads
from bedrockish.access_sets.key_values import Params
from bedrockish.access_sets.query_names import Query
from bedrockish_journal.model.access_set import Range

KEYS_MAX = 1_000
ROWS_MAX = 5_000

NeededValues = tuple[Any, ...]
"""The values of a row's columns that other accesses need."""


class TooManyError(Exception):
    """Raised when there are too many keys or rows to resolve."""


@dataclass(slots=True, eq=False)
class Source:
    """Rows that determine the keys of other accesses: those of a cursor, or those that the statement inserts."""

    place: int  # its position in ``Sources.all`` and in ``FoundRows.rows``
    table: Table
    feeders: list[KeyInterval]  # the accesses that position the cursor; empty for inserted rows
    columns: list[int]  # the numbers of the needed columns
    is_inserted: bool = False  # whether these are the rows that the statement inserts
    is_typed: bool = False  # whether 1 and 1.0 are different values, because they differ as texts

    def add(self, rows: dict[NeededValues, NeededValues], row: NeededValues) -> bool:
        """Add a row to those found before; return whether it is new."""
        before = len(rows)
        rows.setdefault((row, *map(type, row)) if self.is_typed else row, row)
        return len(rows) > before


class Sources:
    """The cursors of a statement's programs, and the sources that its dependent reads need."""

    def __init__(self, programs: Sequence[ProgramReads], schema: Schema) -> None:
        self.schema = schema
        self.all: list[Source] = []
        self._of_cursors: dict[CursorId, Source] = {}
        self._of_inserted: dict[str, Source] = {}  # by the table
        self._indexes = {one.object: one for one in schema.roots.values() if isinstance(one, Index)}
        self._rows: dict[CursorId, list[KeyInterval | CursorId]] = {}
        self._on: dict[CursorId, Table | Index] = {}
        for program in programs:
            self._rows.update(program.rows)
            self._on.update(program.on)

    def need(self, cursor: CursorId, column: int) -> tuple[Source, int]:
        """Add a column to those of a cursor's source; return the source, and the position of the column in its rows."""
        leader = self.leader(cursor)
        source = self._of_cursors.get(leader)
        if source is None:
            source = self._add(Source(len(self.all), self.table(leader), self.feeders(leader), []))
            self._of_cursors[leader] = source
        number = self.column(cursor, column)
        assert number is not None, "no access that depends on an expression is resolved"
        if number not in source.columns:
            source.columns.append(number)
        return source, source.columns.index(number)

    def need_inserted(self, table: str) -> tuple[Source, int]:
        """Return the source of the automatic ids of a table's new rows; ``Resolution.add_changes`` adds these rows."""
        source = self._of_inserted.get(table)
        if source is None:
            source = self._add(Source(len(self.all), self.schema.tables[table], [], [ROWID], is_inserted=True))
            self._of_inserted[table] = source
        return source, 0

    def _add(self, source: Source) -> Source:
        self.all.append(source)
        return source

    def leader(self, cursor: CursorId) -> CursorId:
        """Return the cursor that determines a cursor's rows: itself, or the cursor that it only follows."""
        seen = {cursor}
        while True:
            feeders = self._rows.get(cursor, [])
            if len(feeders) != 1 or isinstance(feeders[0], KeyInterval) or feeders[0] in seen:
                return cursor
            cursor = feeders[0]
            seen.add(cursor)

    def feeders(self, leader: CursorId) -> list[KeyInterval]:
        """Return every access that positions a cursor, or a cursor that it follows."""
        found: dict[KeyInterval, None] = {}
        seen: set[CursorId] = set()
        ahead = [leader]
        while ahead:
            cursor = ahead.pop()
            if cursor in seen:
                continue
            seen.add(cursor)
            for one in self._rows.get(cursor, ()):
                if isinstance(one, KeyInterval):
                    found[one] = None
                else:
                    ahead.append(one)
        return list(found)

    def table(self, cursor: CursorId) -> Table:
        """Return a cursor's table, or the table of its index."""
        on = self._on[cursor]
        return on if isinstance(on, Table) else self.schema.tables[on.table]

    def column(self, cursor: CursorId, column: int) -> int | None:
        """Return the table's number of a column of a cursor's object; None if the column is an expression."""
        on = self._on.get(cursor)
        return None if on is None else stored_column(on, column)

    def index(self, name: str) -> Index | None:
        """Return the index with an object's name; None for a rowid table."""
        return self._indexes.get(name)


class FoundRows:
    """The rows and keys that the dependent reads of one execution have found so far."""

    def __init__(self, sources: Sources, params: Params, query: Query) -> None:
        self.params, self.query = params, query
        self.points: set[bytes] = set()  # single keys that the execution reads
        self.ranges: set[Range] = set()  # ranges of keys that it reads
        self.rows: list[dict[NeededValues, NeededValues]] = [
            {} for _ in sources.all
        ]  # for each source, its distinct rows
        self.is_as_planned: bool | None = None  # the result of ``PlannedLoops.match``; None before the call
        self._rows_read = 0

    def count_keys(self, keys: int) -> None:
        """Raise ``TooManyError`` if there are too many keys."""
        if keys > KEYS_MAX:
            raise TooManyError

    def count_rows(self, rows: int) -> None:
        """Count rows read by auxiliary queries; raise ``TooManyError`` if there are too many."""
        self._rows_read += rows
        if self._rows_read > ROWS_MAX:
            raise TooManyError

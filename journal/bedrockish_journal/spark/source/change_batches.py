"""The row changes of some entries, grouped by table and stored by column, so that many are converted at once."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import is_
from typing import Any, NamedTuple

import pyarrow as pa

from bedrockish_journal.model.changes import DELETE, INSERT, INT64, UPDATE, ChangeColumns, Value
from bedrockish_journal.spark.source.columns import BATCH_BYTES, BATCH_ROWS, Part, Types, arrow_batch
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.storage.row import JournalRow

Image = list[Value] | None
_VALUES = frozenset({type(None), int, float, str, bytes})
_SHAPES = {(INSERT, True, False), (UPDATE, False, False), (DELETE, False, True)}  # op, no ``before``, no ``after``


class _Entry(NamedTuple):
    row: JournalRow
    found: ChangeColumns
    makers: Sequence[str | None]
    users: Sequence[str | None]


@dataclass(slots=True)
class TableChanges:
    """Changes of one table with the same columns.

    The lists ``rows`` and ``counts`` have an item for each entry, the other lists an item for each change.
    """

    name: str  # the table
    columns: tuple[str, ...]  # its columns
    rows: list[JournalRow] = field(default_factory=list)  # the entries
    counts: list[int] = field(default_factory=list)  # the number of changes of the table in each entry
    order: list[int] = field(default_factory=list)  # the index of each change among all changes of the batch
    numbers: list[int] = field(default_factory=list)  # the index of each change in its entry
    # ``makers`` and ``users``: the command behind each change, and the command's user; empty if not wanted.
    makers: list[str | None] = field(default_factory=list)
    users: list[str | None] = field(default_factory=list)
    # ``ops``, ``rowids``, ``rowids_after``, ``before`` and ``after``: as in ``Change``.
    ops: list[str] = field(default_factory=list)
    rowids: list[int | None] = field(default_factory=list)
    rowids_after: list[int | None] = field(default_factory=list)
    before: list[Image] = field(default_factory=list)
    after: list[Image] = field(default_factory=list)

    def of_entries(self, values: Sequence[Any]) -> list[Any]:
        """Return a list with each entry's value repeated for each of its changes."""
        if len(self.rows) == len(self.order):
            return list(values)
        return list(chain.from_iterable(map(repeat, values, self.counts)))

    def check(self) -> None:
        """Check that each change is a change of a row with these columns; one check of all is faster than many.

        Raises:
            ValueError: a change is not a change of a row with these columns.
        """
        if type(self.name) is not str or not {*map(type, self.columns)} <= {str}:
            raise ValueError("the name of a table or of a column is not a text")
        rowids = [rowid for rowid in chain(self.rowids, self.rowids_after) if rowid is not None]
        if not {*map(type, rowids)} <= {int} or (rowids and not -INT64 <= min(rowids) <= max(rowids) < INT64):
            raise ValueError("a rowid is not an integer of 64 bits")
        none = repeat(None)
        shapes = zip(self.ops, map(is_, self.before, none), map(is_, self.after, none), strict=False)
        if not {*shapes} <= _SHAPES:
            raise ValueError("a change is not an insert, update or delete with the rows that belong to it")
        images = [image for image in chain(self.before, self.after) if image is not None]
        if not {*map(type, images)} <= {list} or not {*map(len, images)} <= {len(self.columns)}:
            raise ValueError("a row has another number of values than its table has columns")
        if not _VALUES.issuperset(map(type, chain.from_iterable(images))):
            raise ValueError("a row has a value of a type that SQLite does not have")


class ChangeBuilder(ABC):
    """A builder that gathers the changes of entries into record batches; its subclasses define the columns.

    Args:
        makers: names of the columns that need the command behind each change.

    Attributes:
        count: the number of changes.
    """

    def __init__(self, context: Context, types: Types, makers: Iterable[str]) -> None:
        self._context, self._types = context, dict(types)
        self._makers = not self._types.keys().isdisjoint(makers)
        self._entries: list[_Entry] = []
        self.count = self._bytes = 0

    @abstractmethod
    def _wants(self, table: str) -> bool:
        """Return whether the reader wants the changes of a table."""

    @abstractmethod
    def _parts(self, one: TableChanges) -> Iterable[Part]:
        """Return the rows of some changes, in parts whose rows have the same columns."""

    @property
    def is_full(self) -> bool:
        """Return whether the batch is large enough for ``take``."""
        return self.count >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, row: JournalRow) -> None:
        """Add the changes of an entry; see ``Builder.add``."""
        found = self._context.changes(row)
        if found is None or not any(type(name) is not str or self._wants(name) for name, _ in found.heads):
            return
        count = len(found.places)
        self._entries.append(_Entry(row, found, *(self._context.makers(row, count) if self._makers else ((), ()))))
        self.count += count
        self._bytes += len(row.body)

    def take(self) -> pa.RecordBatch:
        """Return the rows, and start an empty batch.

        Raises:
            EntryMalformedError: an entry has impossible changes, and may not be skipped.
        """
        entries, self._entries, self.count, self._bytes = self._entries, [], 0, 0
        try:
            tables = self._tables(entries)
        except (ValueError, TypeError, IndexError, AttributeError):
            tables = self._tables([entry for entry in entries if self._is_valid(entry)])
        return arrow_batch(self._types, [part for one in tables for part in self._parts(one)])

    def _is_valid(self, entry: _Entry) -> bool:
        try:
            self._tables([entry])
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            if not self._context.skip:
                raise self._context.unreadable(entry.row, error) from error
            return False
        return True

    def _tables(self, entries: Sequence[_Entry]) -> list[TableChanges]:
        made: dict[tuple[str, tuple[str, ...]], TableChanges] = {}
        order = 0
        for row, found, makers, users in entries:
            count = len(found.places)
            if len(found.heads) == 1 and {*found.places} <= {0}:
                every: Sequence[tuple[int, Sequence[int]]] = ((0, range(count)),)
            else:
                every = _by_table(found)
            for place, numbers in every:
                head = found.heads[place]
                if not self._wants(head[0]):
                    continue
                into = made.get(head)
                if into is None:
                    into = made[head] = TableChanges(*head)
                columns: Sequence[Sequence[Any]] = (makers, users, *found[2:])
                if len(numbers) < count:
                    columns = [[column[number] for number in numbers] if column else () for column in columns]
                into.rows.append(row)
                into.counts.append(len(numbers))
                into.order += [order + number for number in numbers]
                into.numbers += numbers
                into.makers += columns[0]
                into.users += columns[1]
                into.ops += columns[2]
                into.rowids += columns[3]
                into.rowids_after += columns[4]
                into.before += columns[5]
                into.after += columns[6]
            order += count
        for one in made.values():
            one.check()
        return list(made.values())


def _by_table(found: ChangeColumns) -> list[tuple[int, list[int]]]:
    """Return the index of each changed table of an entry, with the indexes of the table's changes."""
    numbers: dict[int, list[int]] = {place: [] for place in range(len(found.heads))}
    for number, place in enumerate(found.places):
        if type(place) is not int or place not in numbers:
            raise ValueError("a change names no table")
        numbers[place].append(number)
    return [(place, some) for place, some in numbers.items() if some]

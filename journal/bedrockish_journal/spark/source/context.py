"""The common state of the rows of one journal; it decodes each entry once for all tables.

The worker decodes labels and bodies here, with the journal's own code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import cbor2

from bedrockish_journal.model.changes import ChangeColumns, decode_change_columns
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.spark.source.founding import FoundingRecords
from bedrockish_journal.storage.row import JournalRow, decode_bounded

# Indexes of fields in the encoded body, see ``bedrockish_journal.model.transaction``.
COMMAND, ACCESS_SET, CHANGES = 7, 10, 11
BARE = 14  # number of fields in a body with one command and without a user

_T = TypeVar("_T")


@dataclass(slots=True)
class Context:
    """The state that all rows of a journal share: node, wanted columns and tables, and the last decoded entry."""

    node: str  # the node that has the file
    path: str  # the file, for errors
    # Returns the columns of a table's declared primary key, by the node's present schema.
    look_up: Callable[[str], list[str]]
    beginning: FoundingRecords  # the node's records of the time before its journal
    # Leave out entries that cannot be decoded instead of failing; they still have a row in ``commits``.
    skip: bool = False
    # The columns wanted; values that only other columns need are not computed. None for all.
    columns: frozenset[str] | None = None
    named: frozenset[str] | None = None  # the tables whose ``changes`` are wanted, by their folded names; None for all
    cluster: str = ""  # the id of the cluster; empty if the journal does not tell it
    keys: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, ...], tuple[int, ...]]] = field(default_factory=dict)
    _row: JournalRow | None = None
    _decoded: Entry | EntryMalformedError | None = None
    _packed_row: JournalRow | None = None
    _packed: list[Any] = field(default_factory=list)

    def wants(self, *columns: str) -> bool:
        """Return whether the reader wants one of these columns."""
        return self.columns is None or not self.columns.isdisjoint(columns)

    def field(self, row: JournalRow, place: int) -> Any:
        """Return one field of a transaction's body, without checking the others.

        Return None if the body cannot be decoded and may be skipped.

        Raises:
            EntryMalformedError: the body cannot be decoded, and may not be skipped.
        """
        if self._packed_row is not row:  # cached, because several tables may ask for the same row in turn
            try:
                packed = cbor2.loads(row.body)
                if not isinstance(packed, list) or len(packed) < 14:
                    raise EntryMalformedError("its body is not a transaction")
            except (cbor2.CBORError, ValueError, TypeError, RecursionError, EntryMalformedError) as error:
                if self.skip:
                    return None
                raise self.unreadable(row, error) from error
            self._packed_row, self._packed = row, packed
        return self._packed[place]

    def decoded(self, row: JournalRow) -> Entry | EntryMalformedError:
        """Return a decoded entry, or the error; cached, because several tables may ask for the same row in turn."""
        if self._row is not row or self._decoded is None:
            self._row = row
            try:
                self._decoded = decode_bounded(row.prev, row.label, row.body)
            except EntryMalformedError as error:
                self._decoded = error
        return self._decoded

    def changes(self, row: JournalRow) -> ChangeColumns | None:
        """Return the row changes of an entry; None if the entry has none, or cannot be decoded and may be skipped.

        Raises:
            EntryMalformedError: the entry cannot be decoded, and may not be skipped.
        """
        if row.kind != ROWS or row.repeat or (row.clock, row.origin) in self.beginning.void:
            return None
        return self.unpack(row, decode_change_columns)

    def makers(self, row: JournalRow, count: int) -> tuple[Sequence[str | None], Sequence[str | None]]:
        """Return the commands behind an entry's changes, and the commands' users; None in places that are unknown."""
        self.field(row, CHANGES)
        if self._packed_row is row and len(self._packed) == BARE and type(self._packed[COMMAND]) is str:
            return (self._packed[COMMAND],) * count, (None,) * count  # a shortcut for one command without a user
        found = self.decoded(row)
        if isinstance(found, EntryMalformedError):
            return (None,) * count, (None,) * count
        makers = found.transaction.makers(count)
        whose = {command: found.transaction.user_of(command) for command in {*makers}}
        return makers, [whose[maker] for maker in makers]

    def unpack(self, row: JournalRow, decode: Callable[[bytes], _T]) -> _T | None:
        """Return the decoded changes of an entry, or None if they cannot be decoded and may be skipped.

        Raises:
            EntryMalformedError: the changes cannot be decoded, and may not be skipped.
        """
        packed = self.field(row, CHANGES)
        if packed is None:
            return None
        try:
            return decode(packed)
        except (EntryMalformedError, TypeError, RecursionError) as error:
            if self.skip:
                return None
            raise self.unreadable(row, error) from error

    def unreadable(self, row: JournalRow, error: Exception) -> EntryMalformedError:
        """Return the error for an entry that cannot be decoded."""
        return EntryMalformedError(
            f"{row.leader}{row.tick} in {self.path}: {error}; the table commits names all such entries, "
            "and the option malformed=skip leaves them out"
        )

    def key_columns(self, table: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names and the indexes of a change's columns that are the table's primary key; cached."""
        found = self.keys.get((table, columns))
        if found is None:
            names = tuple(name for name in self.look_up(table) if name in columns)
            found = self.keys[table, columns] = (names, tuple(columns.index(name) for name in names))
        return found


def head(context: Context, row: JournalRow) -> tuple[Any, ...]:
    """Return the values of the columns of ``HEAD``, which are the same in all rows of an entry."""
    txid = f"{row.origin}-{row.clock:x}"
    at = milliseconds(row.clock) * 1000
    return context.node, row.leader, row.tick, txid, row.clock, row.origin, at


HEAD = {
    "node": "STRING",
    "leader": "STRING",
    "tick": "BIGINT",
    "txid": "STRING",
    "clock": "BIGINT",
    "origin": "STRING",
    "committed_at": "TIMESTAMP",
}

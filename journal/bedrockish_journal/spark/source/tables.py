"""The tables of the data source: their columns, and the functions that make their rows from a stored entry."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from bedrockish_journal.model.access_set import AccessSet, object_of
from bedrockish_journal.model.changes import decode_statements
from bedrockish_journal.model.entry import Entry, decode_label, wrong_fields
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Txid
from bedrockish_journal.spark.source.change_rows import CHANGES, ChangeRows
from bedrockish_journal.spark.source.columns import BATCH_BYTES, BATCH_ROWS, Builder, Types, batch
from bedrockish_journal.spark.source.context import ACCESS_SET, HEAD, Context, head
from bedrockish_journal.spark.source.founding import decode_members
from bedrockish_journal.storage.row import JournalRow

Maker = Callable[[Context, JournalRow], Iterator[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the data source."""

    columns: dict[str, str]  # ``Types`` of all columns
    build: Callable[[Context, Types], Builder] | None  # returns a builder of some columns; None if entries have no rows
    # Yields the rows without an entry, from the time before the journal; None: the table has no such rows.
    before: Callable[["Context"], Iterator[tuple[Any, ...]]] | None = None
    kind: str | None = None  # the kind of entries that have rows, without second labels; None for all entries
    bare: frozenset[str] = frozenset()  # the columns that need neither label nor body

    def chosen(self, name: str, columns: Sequence[str] | None) -> dict[str, str]:
        """Return the names and types of wanted columns; None wants all. ``name`` is the table's name, for errors.

        Raises:
            ValueError: the table lacks a column, or a column is wanted twice.
        """
        wanted = list(self.columns) if columns is None else columns
        for column in wanted:
            if column not in self.columns:
                raise ValueError(f"the table {name} has no column {column!r}; it has {', '.join(self.columns)}")
            if wanted.count(column) > 1:
                raise ValueError(f"the column {column!r} is selected twice")
        return {column: self.columns[column] for column in wanted}


class MadeRows:
    """A builder of the columns of a table whose rows are made one by one.

    Args:
        all_columns: all columns of the table.
        make: yields the rows of an entry, as tuples of all columns.
    """

    def __init__(self, all_columns: Types, make: Maker, context: Context, types: Types) -> None:
        self._make, self._context, self._all, self._types = make, context, all_columns, dict(types)
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Return whether the batch is large enough for ``take``."""
        return len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, row: JournalRow) -> None:
        """Add the rows of an entry; see ``Builder.add``."""
        self._rows += self._make(self._context, row)
        self._bytes += len(row.body) if type(row.body) is bytes else 0

    def take(self) -> pa.RecordBatch:
        """Return the rows, and start an empty batch."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return batch(self._all, self._types, rows)


def _made(columns: dict[str, str], make: Maker, **more: Any) -> SourceTable:
    return SourceTable(columns, partial(MadeRows, columns, make), **more)


def _commits(context: Context, row: JournalRow) -> Iterator[tuple[Any, ...]]:
    adopted_from = after = quorum = config = isolation = joined = users = malformed = None
    if context.wants(*_DECODED):
        found = context.decoded(row)
        if isinstance(found, EntryMalformedError):
            malformed = str(found)
        else:
            transaction = found.transaction
            adopted_from, isolation, config = found.adopted_from, transaction.isolation, transaction.config
            after, quorum = list(found.after.items()), list(found.quorum.items())
            joined = list(transaction.commands[1:])
            users = [transaction.user_of(command) for command in transaction.commands]
            malformed = _disagreement(row, found)
    yield (
        *head(context, row),
        row.seq,
        row.applied_ms * 1000,
        row.command,
        row.kind,
        bool(row.repeat),
        adopted_from,
        after,
        quorum,
        config,
        isolation,
        joined,
        row.label,
        row.body,
        row.prev,
        row.hash,
        malformed,
        users,
    )


def _disagreement(row: JournalRow, entry: Entry) -> str | None:
    transaction = entry.transaction
    if entry.place != (row.leader, row.tick):
        return f"the row is of {row.leader}{row.tick}, but its label says {entry.leader}{entry.tick}"
    if entry.txid != (row.clock, row.origin):
        return f"the row is of {Txid(row.clock, row.origin)}, but its label says {entry.txid}"
    for name, said, hashed in (("command", row.command, transaction.command), ("kind", row.kind, transaction.kind)):
        if said != hashed:
            return f"the row's {name} is {said!r}, but its body says {hashed!r}"
    wrong = wrong_fields(transaction)
    if wrong is not None:
        return wrong
    origin = entry.leader if entry.adopted_from is None else entry.adopted_from
    if entry.txid.leader != origin:
        return f"its transaction was led by {entry.txid.leader}, not by {origin}"
    return None


def _approvals(context: Context, row: JournalRow) -> Iterator[tuple[Any, ...]]:
    try:
        quorum = decode_label(row.label).quorum  # only the label has the approvals
    except EntryMalformedError as error:
        if not context.skip:
            raise context.unreadable(row, error) from error
        return
    of_all = head(context, row)
    for approver, tick in quorum.items():
        yield *of_all, approver, tick


def _access_sets(context: Context, row: JournalRow) -> Iterator[tuple[Any, ...]]:
    packed = context.field(row, ACCESS_SET)
    if packed is None:
        return
    try:
        of_all, access_set = head(context, row), AccessSet.unpack(packed)
    except EntryMalformedError as error:
        if not context.skip:
            raise context.unreadable(row, error) from error
        return
    for access, points, ranges in (
        ("read", access_set.read_points, access_set.read_ranges),
        ("write", access_set.write_points, access_set.write_ranges),
    ):
        for key in points:
            yield *of_all, access, object_of(key), key, None, None
        for low, high in ranges:
            yield *of_all, access, object_of(low), None, low, high


def _schema_history(context: Context, row: JournalRow) -> Iterator[tuple[Any, ...]]:
    found = context.decoded(row)
    activates = (found.transaction.activates or None) if isinstance(found, Entry) else None
    for place, statement in enumerate(context.unpack(row, decode_statements) or ()):
        yield *head(context, row), place, statement, activates


def _members(context: Context, row: JournalRow) -> Iterator[tuple[Any, ...]]:
    for member in context.unpack(row, decode_members) or ():
        yield *head(context, row), *member


def _members_before(context: Context) -> Iterator[tuple[Any, ...]]:
    for leader, tick, member in context.beginning.members(context.path):
        yield context.node, leader, tick, None, None, None, None, *member


def _pruned(context: Context) -> Iterator[tuple[Any, ...]]:
    for mark in context.beginning.marks:
        yield context.node, *mark[:5]


_COMMITS = {
    **HEAD,
    "seq": "BIGINT",
    "applied_at": "TIMESTAMP",
    "command": "STRING",
    "kind": "STRING",
    "repeat": "BOOLEAN",
    "adopted_from": "STRING",
    "after": "MAP<STRING, BIGINT>",
    "quorum": "MAP<STRING, BIGINT>",
    "config": "BIGINT",
    "isolation": "STRING",
    "joined": "ARRAY<STRING>",
    "label": "BINARY",
    "body": "BINARY",
    "prev": "BINARY",
    "hash": "BINARY",
    "malformed": "STRING",
    "users": "ARRAY<STRING>",
}
_DECODED = ("adopted_from", "after", "quorum", "config", "isolation", "joined", "malformed", "users")

TABLES: dict[str, SourceTable] = {
    "commits": _made(_COMMITS, _commits, bare=frozenset(_COMMITS) - {*_DECODED, "label", "body"}),
    "changes": SourceTable(dict(CHANGES), ChangeRows, kind=ROWS),
    "approvals": _made({**HEAD, "approver": "STRING", "approver_tick": "BIGINT"}, _approvals),
    "footprints": _made(
        {**HEAD, "access": "STRING", "object": "STRING", "key": "BINARY", "low": "BINARY", "high": "BINARY"},
        _access_sets,
    ),
    "schema_history": _made(
        {**HEAD, "seq_in_txn": "INT", "statement": "STRING", "activates": "BIGINT"}, _schema_history, kind=SCHEMA
    ),
    "members": _made(
        {
            **HEAD,
            "version": "BIGINT",
            "member": "STRING",
            "address": "STRING",
            "voter": "BOOLEAN",
            "store": "STRING",
            "retired": "MAP<STRING, BIGINT>",
        },
        _members,
        before=_members_before,
        kind=MEMBERS,
    ),
    "pruned": SourceTable(
        {
            "node": "STRING",
            "leader": "STRING",
            "tick": "BIGINT",
            "hash": "BINARY",
            "clock": "BIGINT",
            "origin": "STRING",
        },
        None,
        _pruned,
    ),
}

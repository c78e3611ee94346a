"""The tables that the data source offers: their columns, and how one stored entry becomes rows of each.

Payloads are decoded here, in the worker, by the journal's own code.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import cbor2

from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Row, decode_changes, decode_statements
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.entry import Label, decode_label, wrong_shares
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.footprint import Footprint, object_of
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction, Txid, decode_transaction
from bedrockish_journal.spark.source.founding import Beginning, decode_members
from bedrockish_journal.spark.source.json_rows import row_text
from bedrockish_journal.storage.row import Stored

_INT64 = 1 << 63
FOOTPRINT, CHANGES = 10, 11  # places in the body of a transaction, see bedrockish_journal.model.transaction
_CHANGE_TYPES = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}

_T = TypeVar("_T")
Maker = Callable[["Context", Stored], Iterator[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the data source.

    Attributes:
        columns: name and Spark type of each column.
        make: yields the rows of one entry, as tuples of all columns; None if entries have none.
        before: yields the rows that are of no entry, but of the time before the journal; None if there are none.
        kind: only entries of this kind can have rows, and not their repeats; None for all entries.
        bare: the columns that can be had without label and body.
    """

    columns: dict[str, str]
    make: Maker | None
    before: Callable[["Context"], Iterator[tuple[Any, ...]]] | None = None
    kind: str | None = None
    bare: frozenset[str] = frozenset()


@dataclass(slots=True)
class Context:
    """What the rows of one file have in common.

    Attributes:
        node: whose file.
        path: the file, for errors.
        look_up: returns the columns of a table's declared primary key, by the schema that the node has now.
        beginning: what the node keeps of the time before its journal.
        skip: leave out entries that cannot be decoded (they are rows of ``commits`` all the same), instead of failing.
        columns: the columns wanted; what only others need may be left out. None for all.
        tables: of ``changes``, only those of these tables; None for all.
    """

    node: str
    path: str
    look_up: Callable[[str], list[str]]
    beginning: Beginning
    skip: bool = False
    columns: frozenset[str] | None = None
    tables: frozenset[str] | None = None
    keys: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, ...], tuple[int, ...]]] = field(default_factory=dict)
    _row: Stored | None = None
    _decoded: "Decoded | EntryMalformedError | None" = None
    _packed_row: Stored | None = None
    _packed: list[Any] = field(default_factory=list)

    def wants(self, *columns: str) -> bool:
        """Whether one of these columns is wanted."""
        return self.columns is None or not self.columns.isdisjoint(columns)

    def field(self, row: Stored, place: int) -> Any:
        """Return one field of a transaction's body without looking at the others, or None if it may be skipped.

        Raises:
            EntryMalformedError: the body cannot be decoded.
        """
        if self._packed_row is not row:  # several tables may ask for the same row in turn
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

    def decoded(self, row: Stored) -> "Decoded | EntryMalformedError":
        """Return what an entry says, or why it cannot be decoded; several tables may ask for the same row in turn."""
        if self._row is not row or self._decoded is None:
            self._row = row
            try:
                self._decoded = _decode(row)
            except EntryMalformedError as error:
                self._decoded = error
        return self._decoded

    def unpack(self, row: Stored, decode: Callable[[bytes], list[_T]]) -> list[_T]:
        """Return what an entry changed, or nothing if it cannot be decoded and may be skipped.

        Raises:
            EntryMalformedError: it cannot be decoded.
        """
        packed = self.field(row, CHANGES)
        if packed is None:
            return []
        try:
            return decode(packed)
        except (EntryMalformedError, TypeError, RecursionError) as error:
            if self.skip:
                return []
            raise self.unreadable(row, error) from error

    def unreadable(self, row: Stored, error: Exception) -> EntryMalformedError:
        """Return the error for an entry that cannot be decoded."""
        return EntryMalformedError(
            f"{row.leader}{row.tick} in {self.path}: {error}; the table commits names all such entries, "
            "and the option malformed=skip leaves them out"
        )

    def key_columns(self, table: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return which of a change's columns are the table's primary key, and where they are; looked up once."""
        found = self.keys.get((table, columns))
        if found is None:
            names = tuple(name for name in self.look_up(table) if name in columns)
            found = self.keys[table, columns] = (names, tuple(columns.index(name) for name in names))
        return found


class Decoded(NamedTuple):
    """What the bytes of an entry say. Its hash is not computed here: Spark does that, from the bytes."""

    label: Label
    transaction: Transaction


def _decode(row: Stored) -> Decoded:
    try:
        label, transaction = decode_label(row.label), decode_transaction(row.body)
        if label.txid != transaction.txid:
            raise EntryMalformedError(f"its label is of {label.txid}, and its body of {transaction.txid}")
        if type(row.prev) is not bytes or len(row.prev) != 32:
            raise EntryMalformedError("prev should be a hash of 32 bytes")
    except (RecursionError, OverflowError, TypeError, AttributeError) as error:
        raise EntryMalformedError(f"its bytes are not an entry: {error!r}") from error
    numbers = (*transaction.base.values(), *label.quorum.values(), transaction.config, transaction.activates)
    if max(numbers) >= _INT64:
        raise EntryMalformedError("it has a tick, a version or a clock beyond 2^63")
    return Decoded(label, transaction)


def _head(context: Context, row: Stored) -> tuple[Any, ...]:
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


def _commits(context: Context, row: Stored) -> Iterator[tuple[Any, ...]]:
    adopted_from = after = quorum = config = isolation = joined = users = malformed = None
    if context.wants(*_DECODED):
        found = context.decoded(row)
        if isinstance(found, EntryMalformedError):
            malformed = str(found)
        else:
            label, transaction = found
            adopted_from, isolation, config = label.adopted_from, transaction.isolation, transaction.config
            after, quorum = list(transaction.base.items()), list(label.quorum.items())
            joined = list(transaction.commands[1:])
            users = [transaction.user_of(command) for command in transaction.commands]
            malformed = _disagreement(row, label, transaction)
    yield (
        *_head(context, row),
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


def _disagreement(row: Stored, label: Label, transaction: Transaction) -> str | None:
    if (label.leader, label.tick) != (row.leader, row.tick):
        return f"the row stands at {row.leader}{row.tick}, but its label says {label.leader}{label.tick}"
    if label.txid != (row.clock, row.origin):
        return f"the row is of {Txid(row.clock, row.origin)}, but its label says {label.txid}"
    for name, said, hashed in (
        ("command", row.command, transaction.command),
        ("kind", row.kind, transaction.kind),
    ):
        if said != hashed:
            return f"the row's {name} is {said!r}, but its body says {hashed!r}"
    wrong = wrong_shares(transaction)
    if wrong is not None:
        return wrong
    stranger = label.leader if label.adopted_from is None else label.adopted_from
    if label.txid.leader != stranger:
        return f"its transaction was led by {label.txid.leader}, not by {stranger}"
    return None


def _changes(context: Context, row: Stored) -> Iterator[tuple[Any, ...]]:
    changes = context.unpack(row, decode_changes)
    head = _head(context, row)
    keys, before, after = context.wants("pk", "pk_after"), context.wants("before"), context.wants("after")
    makers: tuple[str | None, ...] = (None,) * len(changes)
    whose: dict[str | None, str | None] = {}
    if context.wants("command", "user_name"):
        found = context.decoded(row)
        if isinstance(found, Decoded):
            makers = found.transaction.makers(len(changes))
            whose = {command: found.transaction.user_of(command) for command in found.transaction.commands}
    for place, (change, maker) in enumerate(zip(changes, makers, strict=True)):
        if context.tables is not None and change.table not in context.tables:
            continue
        pk = pk_after = None
        if keys:
            columns, places = context.key_columns(change.table, change.columns)
            pk_after = row_text(columns, _key(places, change.after))
            pk = pk_after if change.before is None else row_text(columns, _key(places, change.before))
        yield (
            *head,
            place,
            change.table,
            change.rowid,
            change.rowid_after,
            pk,
            pk_after,
            _CHANGE_TYPES.get(change.op, change.op),
            row_text(change.columns, change.before) if before else None,
            row_text(change.columns, change.after) if after else None,
            maker,
            whose.get(maker),
        )


def _key(places: tuple[int, ...], row: Row | None) -> Row | None:
    return None if row is None or not places else tuple([row[place] for place in places])


def _approvals(context: Context, row: Stored) -> Iterator[tuple[Any, ...]]:
    try:
        quorum = decode_label(row.label).quorum  # the body says nothing of them
    except EntryMalformedError as error:
        if not context.skip:
            raise context.unreadable(row, error) from error
        return
    head = _head(context, row)
    for approver, tick in quorum.items():
        yield *head, approver, tick


def _footprints(context: Context, row: Stored) -> Iterator[tuple[Any, ...]]:
    packed = context.field(row, FOOTPRINT)
    if packed is None:
        return
    try:
        head, footprint = _head(context, row), Footprint.unpack(packed)
    except EntryMalformedError as error:
        if not context.skip:
            raise context.unreadable(row, error) from error
        return
    for access, points, ranges in (
        ("read", footprint.read_points, footprint.read_ranges),
        ("write", footprint.write_points, footprint.write_ranges),
    ):
        for key in points:
            yield *head, access, object_of(key), key, None, None
        for low, high in ranges:
            yield *head, access, object_of(low), None, low, high


def _schema_history(context: Context, row: Stored) -> Iterator[tuple[Any, ...]]:
    found = context.decoded(row)
    activates = (found.transaction.activates or None) if isinstance(found, Decoded) else None
    for place, statement in enumerate(context.unpack(row, decode_statements)):
        yield *_head(context, row), place, statement, activates


def _members(context: Context, row: Stored) -> Iterator[tuple[Any, ...]]:
    for member in context.unpack(row, decode_members):
        yield *_head(context, row), *member


def _members_before(context: Context) -> Iterator[tuple[Any, ...]]:
    for leader, tick, member in context.beginning.members(context.path):
        yield context.node, leader, tick, None, None, None, None, *member


def _pruned(context: Context) -> Iterator[tuple[Any, ...]]:
    for mark in context.beginning.marks:
        yield context.node, *mark


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

TABLES: dict[str, Table] = {
    "commits": Table(_COMMITS, _commits, bare=frozenset(_COMMITS) - {*_DECODED, "label", "body"}),
    "changes": Table(
        {
            **HEAD,
            "seq_in_txn": "INT",
            "table": "STRING",
            "rowid": "BIGINT",
            "rowid_after": "BIGINT",
            "pk": "STRING",
            "pk_after": "STRING",
            "_change_type": "STRING",
            "before": "STRING",
            "after": "STRING",
            "command": "STRING",
            "user_name": "STRING",
        },
        _changes,
        kind=ROWS,
    ),
    "approvals": Table({**HEAD, "approver": "STRING", "approver_tick": "BIGINT"}, _approvals),
    "footprints": Table(
        {**HEAD, "access": "STRING", "object": "STRING", "key": "BINARY", "low": "BINARY", "high": "BINARY"},
        _footprints,
    ),
    "schema_history": Table(
        {**HEAD, "seq_in_txn": "INT", "statement": "STRING", "activates": "BIGINT"}, _schema_history, kind=SCHEMA
    ),
    "members": Table(
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
        _members_before,
        kind=MEMBERS,
    ),
    "pruned": Table(
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

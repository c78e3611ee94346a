"""``skip_locked(table, key)``: the rows that are free of concurrent transactions, for queues of jobs.

All workers of a queue want its first job, so their serializable transactions conflict, although each worker would take
any early job. In PostgreSQL, ``FOR UPDATE SKIP LOCKED`` serves this purpose. The function returns whether a row is free
of other transactions, and locks a free row for the calling transaction until that transaction ends:

    SELECT id FROM jobs WHERE state = 'new' AND skip_locked('jobs', id) ORDER BY id LIMIT 1

A row is not free if another transaction that is open at this node has locked it, if a transaction that this node has
approved or led writes it, or if a commit that the calling transaction has not seen has written it. The result is only a
hint: this node cannot know the future writes of other nodes' clients, and the later of two transactions then gets a
conflict, as always. To make such conflicts rare, nodes whose transactions have conflicted at a table divide its rows
among themselves for a while.

In a statement that calls the function, only the rows that it has locked count as read of that table (see ``readset``).
All its changes are certified as always, so no row is handed out twice.
"""

from collections.abc import Callable, Mapping
from zlib import crc32

from bedrockish.access_sets.catalog import Schema, Table
from bedrockish.access_sets.key_encoding import apply_affinity, encoder, object_prefix, table_key
from bedrockish.errors import SqlError
from bedrockish_journal.model.changes import Value
from bedrockish_journal.storage.table_layout import SKIP_LOCKED

ROWS_MAX = 1_000  # rows that one transaction may lock
LEFT_MAX = 10_000  # most rows left to other nodes that a node remembers
LEFT_S = 3.0  # seconds for which a row is left to another node that may want it

Base = Mapping[str, int]


class ForeignTransactions:
    """A node's knowledge of transactions that are not open on it; this base class knows none."""

    def is_writing(self, key: bytes, base: Base | None) -> bool:  # noqa: ARG002
        """Return whether a transaction under way writes a key, or a commit outside ``base`` has written it.

        Without ``base``, commits are not searched.
        """
        return False

    def share(self, objects: tuple[str, ...]) -> tuple[int, int]:  # noqa: ARG002
        """Return this node's index among the nodes that have conflicted at a table or its indexes, and their number."""
        return 0, 1

    def seconds(self) -> float:
        """Return the time, in seconds."""
        return 0.0


class RowLocks:
    """The rows that transactions open at this node have locked; ``schema`` returns the present tables.

    Any thread may call the methods: each step is one operation of a dictionary.
    """

    def __init__(self, schema: Callable[[], Schema]) -> None:
        self._schema = schema
        self.others = ForeignTransactions()  # the node's knowledge of other transactions
        self._holders: dict[bytes, str] = {}  # key -> the command of the transaction that has locked it
        # The keys that each transaction has locked, by its command; usually empty.
        self.held: dict[str, list[bytes]] = {}
        self._left: dict[bytes, float] = {}  # key -> time from which the row is left to another node; oldest first

    def lock(self, command: str, base: Base | None, name: Value, values: tuple[Value, ...]) -> bytes | None:
        """Lock a row, and return its key; None if another transaction has the row.

        Args:
            base: the commits that the calling transaction has seen; None if unknown.

        Raises:
            SqlError: the table does not exist, the values do not fit its key, or the transaction has too many locks.
        """
        table = self._table(name)
        key = _key(table, values)
        if key is None or self._holders.get(key, command) != command:
            return None
        held = self.held.setdefault(command, [])
        if self._holders.get(key) == command:
            return key
        objects = (table.object, *(index.object for index in table.indexes))
        if self.others.is_writing(key, base) or self._is_left(key, objects):
            return None
        if len(held) >= ROWS_MAX:
            raise SqlError(
                f"{SKIP_LOCKED}() has locked {ROWS_MAX} rows of {table.name} for one transaction; use a LIMIT, and an "
                "index for the ORDER BY: without the index, all rows are locked before they are sorted"
            )
        if self._holders.setdefault(key, command) != command:
            return None  # another thread has locked the row first
        held.append(key)
        if self.held.get(command) is not held:  # released in the meantime; the next release has to find the key
            self.held.setdefault(command, []).append(key)
        return key

    def release(self, command: str) -> None:
        """Release the locks of a transaction that has ended; a second call does nothing."""
        for key in self.held.pop(command, ()):
            if self._holders.get(key) == command:
                self._holders.pop(key, None)

    def __len__(self) -> int:
        return len(self._holders)

    def _table(self, name: Value) -> Table:
        tables = self._schema().tables
        found = tables.get(name) if isinstance(name, str) else None
        if found is None and isinstance(name, str):
            found = next((table for table in tables.values() if table.name.lower() == name.lower()), None)
        if found is None:
            raise SqlError(f"{SKIP_LOCKED}() takes the name of a table and a row's key; there is no table {name!r:.80}")
        return found

    def _is_left(self, key: bytes, objects: tuple[str, ...]) -> bool:
        """Return whether a row is left, for ``LEFT_S`` seconds, to another node that has conflicted at its table."""
        place, count = self.others.share(objects)
        if count < 2 or crc32(key) % count == place:
            return False
        now = self.others.seconds()
        if len(self._left) >= LEFT_MAX and key not in self._left:
            self._left.clear()
        return now - self._left.setdefault(key, now) < LEFT_S


def _key(table: Table, values: tuple[Value, ...]) -> bytes | None:
    """Return the key of a row; None if a value is NULL, because no row has such a key."""
    width = 1 if table.key is None else len(table.key.columns)
    if len(values) != width:
        what = "its rowid" if table.key is None else f"the {width} columns of its primary key"
        raise SqlError(f"{SKIP_LOCKED}('{table.name}', …) names a row by {what}; it was given {len(values)} values")
    if any(value is None for value in values):
        return None
    if table.key is None:
        (rowid,) = values
        if type(rowid) is not int:
            raise SqlError(f"{SKIP_LOCKED}('{table.name}', …) names a row by its rowid, not by {rowid!r:.40}")
        return table_key(table.name, rowid)
    if table.key.opaque:
        raise SqlError(f"{SKIP_LOCKED}() cannot tell rows of {table.name} apart: its key has a collation of your own")
    found = object_prefix(table.object)
    for value, column, spec in zip(values, table.key.columns, table.key.specs, strict=False):
        found += encoder(spec)(apply_affinity(value, table.columns[column].affinity))
    return found

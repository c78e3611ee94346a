"""Prepared transactions and the conflict tests: the two calls that the gist asks SQLite for, on logical keys.

``test_conflict(a, b)`` tells whether two transactions conflict; ``prepare_commit(x)`` whether x conflicts with anything
that this node holds pending, or knows to be committed and x has not seen. A command's id, the membership and the schema
need no rules of their own: ``claim`` puts them into the footprint as keys.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import takewhile

from bedrockish.core.state.access_index import AccessIndex
from bedrockish.core.state.commit_window import CommitWindow, Conflict
from bedrockish_journal.model.footprint import Footprint, clock_key, clocks_from, conflict
from bedrockish_journal.model.transaction import MEMBERS, SCHEMA, Transaction, Txid
from bedrockish_journal.model.vector import Vector

__all__ = [
    "CommitWindow",
    "Conflict",
    "OwnEnds",
    "Pending",
    "claim",
    "command_key",
    "prepare_commit",
    "test_conflict",
]

EVERYTHING = (b"", b"\xff\xff")


def command_key(command: str) -> bytes:
    """Return the key that every transaction of a command writes."""
    return b"c:\0" + command.encode()


def claim(footprint: Footprint, commands: tuple[str, ...], kind: str, clock: int, activates: int = 0) -> Footprint:
    """Return the footprint with the keys of its commands, and the keys that put it before or after schema changes.

    A transaction reads its own clock. A schema change writes all clocks from its activation on, so that it conflicts
    with what has such a clock, with every other schema change, and with nothing else. A change of the membership writes
    every key.
    """
    write_points = footprint.write_points | {command_key(command) for command in commands}
    if kind == SCHEMA:
        return Footprint(
            footprint.read_points,
            footprint.read_ranges,
            write_points,
            (*footprint.write_ranges, clocks_from(activates)),
        )
    return Footprint(
        footprint.read_points | {clock_key(clock)},
        footprint.read_ranges,
        write_points,
        (*footprint.write_ranges, EVERYTHING) if kind == MEMBERS else footprint.write_ranges,
    )


def test_conflict(left: Transaction, right: Transaction) -> bytes | None:
    """Return a key on which two transactions conflict, or None if they commute."""
    return conflict(left.footprint, right.footprint)


class Pending:
    """Transactions that this node approved or holds, and whose outcome it does not know."""

    def __init__(self) -> None:
        self.transactions: dict[Txid, Transaction] = {}
        self.since: dict[Txid, float] = {}  # seconds; when it became pending here; oldest first
        self._index: AccessIndex[Txid] = AccessIndex()
        self._by_clock: list[Txid] = []  # a heap, also of some that have ended

    def __contains__(self, txid: object) -> bool:
        return txid in self.transactions

    def __len__(self) -> int:
        return len(self.transactions)

    def add(self, transaction: Transaction, seconds: float) -> None:
        """Hold a transaction."""
        txid = transaction.txid
        assert txid not in self.transactions
        self.transactions[txid] = transaction
        self.since[txid] = seconds
        self._index.add(txid, transaction.footprint)
        heapq.heappush(self._by_clock, txid)

    def since_before(self, seconds: float) -> list[Transaction]:
        """Return those that became pending here before a moment, oldest first."""
        return [self.transactions[txid] for txid in takewhile(lambda txid: self.since[txid] < seconds, self.since)]

    def renew(self, txid: Txid, seconds: float) -> None:
        """Take a transaction, which is here, as if it had come only now."""
        del self.since[txid]
        self.since[txid] = seconds

    def remove(self, txid: Txid) -> None:
        """Let go of a transaction, if it is here."""
        if self.transactions.pop(txid, None) is not None:
            del self.since[txid]
            self._index.remove(txid)
            while self._by_clock and self._by_clock[0] not in self.transactions:
                heapq.heappop(self._by_clock)

    def conflicts(self, footprint: Footprint, own: Txid | None = None) -> Iterator[Conflict]:
        """Yield every pending transaction that conflicts, once each, without ``own``."""
        return (Conflict(txid, key) for txid, key in self._index.conflicts(footprint, own))

    def is_writing(self, key: bytes) -> bool:
        """Whether a pending transaction writes a key as such."""
        return self._index.is_writing(key)

    def schema_change(self) -> Transaction | None:
        """Return a schema change that is pending, if there is one."""
        ranged = (self.transactions[txid] for txid in self._index.ranged())
        return next((one for one in ranged if one.kind == SCHEMA), None)

    def smallest_clock(self) -> int | None:
        """Return the smallest clock of anything pending."""
        return self._by_clock[0].clock if self._by_clock else None


class OwnEnds:
    """Transactions of this node that were rolled back, and when it learned that: clause V10 asks for them by key."""

    def __init__(self) -> None:
        self.latest = 0  # the greatest clock at which an end was learned
        self._ended: deque[tuple[int, Txid]] = deque()  # (clock at which it was learned, whose), oldest first
        self._at: dict[Txid, int] = {}
        self._index: AccessIndex[Txid] = AccessIndex()

    def __len__(self) -> int:
        return len(self._at)

    def add(self, transaction: Transaction, clock: int) -> None:
        """Note an end that was learned at a clock, which never goes back."""
        assert clock >= self.latest
        self.latest, self._at[transaction.txid] = clock, clock
        self._ended.append((clock, transaction.txid))
        self._index.add(transaction.txid, transaction.footprint)

    def vetoes(self, transaction: Transaction) -> Conflict | None:
        """Return one that conflicts and whose end was learned at or after a transaction's clock."""
        if self.latest < transaction.txid.clock:
            return None
        found = self._index.conflicts(transaction.footprint)
        return next((Conflict(txid, key) for txid, key in found if self._at[txid] >= transaction.txid.clock), None)

    def forget(self, closed: int) -> None:
        """Drop the ends that were learned up to a closed time: what is approved from now on has a later clock."""
        while self._ended and self._ended[0][0] <= closed:
            txid = self._ended.popleft()[1]
            del self._at[txid]
            self._index.remove(txid)


def prepare_commit(
    footprint: Footprint, base: Vector, recent: CommitWindow, pending: Pending, own: Txid | None = None
) -> Conflict | None:
    """Test a transaction against what is committed outside its base and what is pending; None if it may be approved."""
    found = next(recent.conflicts(footprint, base, own), None)
    return found or next(pending.conflicts(footprint, own), None)

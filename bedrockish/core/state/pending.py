"""The transactions that conflict tests search besides the commits: pending ones, and our own rolled-back ones."""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import starmap, takewhile

from bedrockish.core.state.access_index import AccessIndex, Conflict
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import SCHEMA, Transaction, Txid


class Pending:
    """The transactions that this node approved or holds, and whose outcome it does not know."""

    def __init__(self) -> None:
        self.transactions: dict[Txid, Transaction] = {}
        self.since: dict[Txid, float] = {}  # seconds at which each became pending here; oldest first
        self._index: AccessIndex[Txid] = AccessIndex()
        self._by_clock: list[Txid] = []  # a heap; some of its transactions have ended

    def __contains__(self, txid: object) -> bool:
        return txid in self.transactions

    def __len__(self) -> int:
        return len(self.transactions)

    def add(self, transaction: Transaction, seconds: float) -> None:
        """Add a transaction."""
        txid = transaction.txid
        assert txid not in self.transactions
        self.transactions[txid] = transaction
        self.since[txid] = seconds
        self._index.add(txid, transaction.access_set)
        # A Txid sorts by its clock first, then by its leader.
        heapq.heappush(self._by_clock, txid)

    def since_before(self, seconds: float) -> list[Transaction]:
        """Return the transactions that became pending here before a moment, oldest first."""
        return [self.transactions[txid] for txid in takewhile(lambda txid: self.since[txid] < seconds, self.since)]

    def renew(self, txid: Txid, seconds: float) -> None:
        """Restart the age of a pending transaction, as if it had become pending now: it becomes the newest."""
        assert txid in self.transactions
        # A dict keeps the order of insertion, so a key that is removed and inserted again is the last one.
        del self.since[txid]
        self.since[txid] = seconds

    def remove(self, txid: Txid) -> None:
        """Remove a transaction, if it is here."""
        if self.transactions.pop(txid, None) is not None:
            del self.since[txid]
            self._index.remove(txid)
            # Only the top of the heap is ever read, so ended transactions stay in the heap until they are the top.
            while self._by_clock and self._by_clock[0] not in self.transactions:
                heapq.heappop(self._by_clock)

    def conflicts(self, access_set: AccessSet, own: Txid | None = None) -> Iterator[Conflict]:
        """Yield every pending transaction that conflicts, once each, without ``own``."""
        return starmap(Conflict, self._index.conflicts(access_set, own))

    def is_writing(self, key: bytes) -> bool:
        """Return whether a pending transaction writes a key as a single key."""
        return self._index.is_writing(key)

    def schema_changes(self) -> list[Transaction]:
        """Return the pending schema changes, usually none."""
        ranged = (self.transactions[txid] for txid in self._index.ranged())
        return [one for one in ranged if one.kind == SCHEMA]

    def smallest_clock(self) -> int | None:
        """Return the smallest clock of a pending transaction; None if none is pending."""
        return self._by_clock[0].clock if self._by_clock else None


class OwnEnds:
    """Rolled-back transactions of this node, each with the clock at which it learned the rollback, for clause V10."""

    def __init__(self) -> None:
        self.latest = 0  # the greatest clock at which an end was learned
        self._ended: deque[tuple[int, Txid]] = deque()  # (clock at which the end was learned, txid), oldest first
        self._at: dict[Txid, int] = {}
        self._index: AccessIndex[Txid] = AccessIndex()

    def __len__(self) -> int:
        return len(self._at)

    def add(self, transaction: Transaction, clock: int) -> None:
        """Record the end of a transaction, and the clock at which this node learned it. These clocks never go back."""
        assert clock >= self.latest
        self.latest, self._at[transaction.txid] = clock, clock
        self._ended.append((clock, transaction.txid))
        self._index.add(transaction.txid, transaction.access_set)

    def vetoes(self, transaction: Transaction) -> Conflict | None:
        """Return a conflicting transaction whose end was learned at or after the clock of this transaction, or None."""
        # Nearly always every end was learned before this clock, and no key need be looked up.
        if self.latest < transaction.txid.clock:
            return None
        found = self._index.conflicts(transaction.access_set)
        return next((Conflict(txid, key) for txid, key in found if self._at[txid] >= transaction.txid.clock), None)

    def forget(self, closed: int) -> None:
        """Drop the ends that were learned up to a closed time.

        V13 refuses transactions with a clock up to closed time, so V10 no longer needs these ends.
        """
        while self._ended and self._ended[0][0] <= closed:
            txid = self._ended.popleft()[1]
            del self._at[txid]
            self._index.remove(txid)

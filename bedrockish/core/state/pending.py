"""Transactions that conflict tests compare besides the commits: pending ones, and our own that were rolled back."""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import starmap, takewhile

from bedrockish.core.state.access_index import AccessIndex, Conflict
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import SCHEMA, Transaction, Txid


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
        self._index.add(txid, transaction.access_set)
        # A Txid sorts by its clock first, then by its leader.
        heapq.heappush(self._by_clock, txid)

    def since_before(self, seconds: float) -> list[Transaction]:
        """Return those that became pending here before a moment, oldest first."""
        return [self.transactions[txid] for txid in takewhile(lambda txid: self.since[txid] < seconds, self.since)]

    def renew(self, txid: Txid, seconds: float) -> None:
        """Make a pending transaction the youngest, as if it had come only now."""
        assert txid in self.transactions
        # A dict keeps the order in which keys came: taken out and put in again, it is the youngest.
        del self.since[txid]
        self.since[txid] = seconds

    def remove(self, txid: Txid) -> None:
        """Remove a transaction, if it is here."""
        if self.transactions.pop(txid, None) is not None:
            del self.since[txid]
            self._index.remove(txid)
            # Only the top is ever read, so ended ones stay below it until they get there.
            while self._by_clock and self._by_clock[0] not in self.transactions:
                heapq.heappop(self._by_clock)

    def conflicts(self, access_set: AccessSet, own: Txid | None = None) -> Iterator[Conflict]:
        """Yield every pending transaction that conflicts, once each, without ``own``."""
        return starmap(Conflict, self._index.conflicts(access_set, own))

    def is_writing(self, key: bytes) -> bool:
        """Return whether a pending transaction writes a key as such."""
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
        self._index.add(transaction.txid, transaction.access_set)

    def vetoes(self, transaction: Transaction) -> Conflict | None:
        """Return one that conflicts and whose end was learned at or after a transaction's clock."""
        # Nearly always: no end was learned that late, and no key need be looked up.
        if self.latest < transaction.txid.clock:
            return None
        found = self._index.conflicts(transaction.access_set)
        return next((Conflict(txid, key) for txid, key in found if self._at[txid] >= transaction.txid.clock), None)

    def forget(self, closed: int) -> None:
        """Drop the ends that were learned up to a closed time: what is approved from now on has a later clock."""
        # V14 refuses transactions as old as that, so V10 cannot be asked about these ends any more.
        while self._ended and self._ended[0][0] <= closed:
            txid = self._ended.popleft()[1]
            del self._at[txid]
            self._index.remove(txid)

"""Prepared transactions and the conflict tests: the two calls that the gist asks SQLite for, on logical keys.

``test_conflict(a, b)`` tells whether two transactions conflict; ``prepare_commit(x)`` whether x conflicts with anything
that this node holds pending, or knows to be committed and x has not seen. A command's id, the membership and the schema
need no rules of their own: ``claim`` puts them into the footprint as keys.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from journal.footprint import Footprint, clock_key, clocks_from, conflict, is_clock, object_of
from journal.transaction import MEMBERS, SCHEMA, Transaction, Txid
from journal.vector import Vector

EVERYTHING = (b"", b"\xff\xff")


def claim(footprint: Footprint, commands: tuple[str, ...], kind: str, clock: int, activates: int = 0) -> Footprint:
    """Return the footprint with the keys of its commands, and the keys that put it before or after schema changes.

    A transaction reads its own clock. A schema change writes all clocks from its activation on, so that it conflicts
    with what has such a clock, with every other schema change, and with nothing else. A change of the membership writes
    every key.
    """
    write_points = footprint.write_points | {b"c:\0" + command.encode() for command in commands}
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


def _indexed(points: frozenset[bytes]) -> list[bytes]:
    """Return the points that others may write as points: clocks are only ever written as a range."""
    return [point for point in points if not is_clock(point)]


def test_conflict(left: Transaction, right: Transaction) -> bytes | None:
    """Return a key on which two transactions conflict, or None if they commute."""
    return conflict(left.footprint, right.footprint)


class Conflict(NamedTuple):
    """Whom a transaction met, and on which key."""

    other: Txid
    key: bytes

    @property
    def object(self) -> str:
        """The table or index of the key."""
        return object_of(self.key)


class Pending:
    """Transactions that this node approved or holds, and whose outcome it does not know.

    A dictionary from keys to transactions finds most conflicts; only ranges are compared one by one.
    """

    def __init__(self) -> None:
        self.transactions: dict[Txid, Transaction] = {}
        self.since: dict[Txid, float] = {}  # seconds; when it became pending here
        self._writers: dict[bytes, dict[Txid, None]] = {}  # in the order in which they came, not that of a hash
        self._readers: dict[bytes, dict[Txid, None]] = {}
        self._ranged: dict[Txid, Transaction] = {}

    def __contains__(self, txid: object) -> bool:
        return txid in self.transactions

    def __len__(self) -> int:
        return len(self.transactions)

    def add(self, transaction: Transaction, seconds: float) -> None:
        """Hold a transaction."""
        txid, footprint = transaction.txid, transaction.footprint
        assert txid not in self.transactions
        self.transactions[txid] = transaction
        self.since[txid] = seconds
        for point in footprint.write_points:
            self._writers.setdefault(point, {})[txid] = None
        for point in _indexed(footprint.read_points):
            self._readers.setdefault(point, {})[txid] = None
        if footprint.has_ranges:
            self._ranged[txid] = transaction

    def remove(self, txid: Txid) -> None:
        """Let go of a transaction, if it is here."""
        transaction = self.transactions.pop(txid, None)
        if transaction is None:
            return
        del self.since[txid]
        self._ranged.pop(txid, None)
        for index, points in (
            (self._writers, transaction.footprint.write_points),
            (self._readers, _indexed(transaction.footprint.read_points)),
        ):
            for point in points:
                holders = index[point]
                holders.pop(txid, None)
                if not holders:
                    del index[point]

    def conflicts(self, footprint: Footprint, own: Txid | None = None) -> Iterator[Conflict]:
        """Yield every pending transaction that conflicts, once each, without ``own``."""
        seen: set[Txid | None] = {own}
        for points, index in (
            (footprint.write_points, self._writers),
            (footprint.write_points, self._readers),
            (footprint.read_points, self._writers),
        ):
            met = points & index.keys() if len(points) > len(index) else [key for key in points if key in index]
            for point in sorted(met):
                for txid in index[point]:
                    if txid not in seen:
                        seen.add(txid)
                        yield Conflict(txid, point)
        for txid, transaction in (self.transactions if footprint.has_ranges else self._ranged).items():
            if txid not in seen:
                key = conflict(footprint, transaction.footprint)
                if key is not None:
                    seen.add(txid)
                    yield Conflict(txid, key)

    def schema_change(self) -> Transaction | None:
        """Return a schema change that is pending, if there is one."""
        return next((one for one in self._ranged.values() if one.kind == SCHEMA), None)

    def smallest_clock(self) -> int | None:
        """Return the smallest clock of anything pending."""
        return min(self.transactions).clock if self.transactions else None


class Known:
    """A committed transaction and the places it has: more than one if it was adopted and its own label turned up.

    Attributes:
        transaction: what was committed.
        places: where.
        kept: of these, the places at which it is still looked for.
        touched: the keys that it read or wrote.
        ranged: whether there is more than these keys.
    """

    __slots__ = ("kept", "places", "ranged", "touched", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.places: list[tuple[str, int]] = []
        self.kept = 0
        self.ranged = transaction.footprint.has_ranges
        self.touched = transaction.footprint.touched

    def is_in(self, base: Vector) -> bool:
        """Whether a base has seen it, under any of its places."""
        return any(base.get(leader, 0) >= tick for leader, tick in self.places)


class Recent:
    """Commits whose footprints are still needed: those that some snapshot in use may not have seen.

    A test compares with the commits outside a base one by one. They are few, what was under way meanwhile, but for an
    old snapshot; an index by key would cost more at every commit, and several times the memory.
    """

    def __init__(self) -> None:
        self.known: dict[Txid, Known] = {}
        self._timelines: dict[str, deque[tuple[int, Known]]] = {}
        self.floor: dict[str, int] = {}  # the last tick of each timeline that was dropped
        self._decided: dict[Txid, Known] = {}  # and without a place yet

    def decide(self, transaction: Transaction) -> None:
        """Note a commit that has no place yet."""
        if transaction.txid not in self.known:
            self._decided[transaction.txid] = Known(transaction)

    def add(self, place: tuple[str, int], transaction: Transaction) -> None:
        """Note a commit, or a further place of one."""
        leader, tick = place
        known = self.known.get(transaction.txid)
        if known is None:
            known = self._decided.pop(transaction.txid, None) or Known(transaction)
            self.known[transaction.txid] = known
        known.places.append(place)
        known.kept += 1
        self._timelines.setdefault(leader, deque()).append((tick, known))

    def reaches_back_to(self, applied: Vector) -> None:
        """After a restart: what of the timelines, up to ``applied``, was not added is not known here any more."""
        for leader, last in applied.items():
            ticks = {tick for tick, _ in self._timelines.get(leader, ())}
            self.floor[leader] = next((tick for tick in range(last, 0, -1) if tick not in ticks), 0)

    def conflicts(self, footprint: Footprint, base: Vector, own: Txid | None = None) -> Iterator[Conflict]:
        """Yield the commits that ``base`` has not seen under any of their places and that conflict, without ``own``."""
        for known in self._outside(footprint, base):
            key = conflict(footprint, known.transaction.footprint)
            if key is not None and known.transaction.txid != own:
                yield Conflict(known.transaction.txid, key)

    def _outside(self, footprint: Footprint, base: Vector) -> Iterator[Known]:
        """Yield the commits outside a base but for those that have no key in common with the footprint: nearly all."""
        apart, ranged = footprint.touched.isdisjoint, footprint.has_ranges
        yield from self._decided.values()
        for leader, timeline in self._timelines.items():
            seen = base.get(leader, 0)
            for tick, known in reversed(timeline):
                if tick <= seen:
                    break
                if apart(known.touched) and not (ranged or known.ranged):
                    continue
                if len(known.places) == 1 or not known.is_in(base):
                    yield known

    def forget(self, clock: int) -> None:
        """Drop the commits up to a clock, as far as they are at the old end of their timelines."""
        for leader, timeline in self._timelines.items():
            while timeline and timeline[0][1].transaction.txid.clock <= clock:
                tick, known = timeline.popleft()
                self.floor[leader] = tick
                known.kept -= 1  # but any of its places still shows that a base has seen it
                if not known.kept:
                    del self.known[known.transaction.txid]


def prepare_commit(
    footprint: Footprint, base: Vector, recent: Recent, pending: Pending, own: Txid | None = None
) -> Conflict | None:
    """Test a transaction against what is committed outside its base and what is pending; None if it may be approved."""
    found = next(recent.conflicts(footprint, base, own), None)
    return found or next(pending.conflicts(footprint, own), None)

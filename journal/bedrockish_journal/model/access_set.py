"""The reads and writes of a transaction as logical keys: the same on every node, never pages.

A key is ``<object> 0x00 <encoded columns>`` as one byte string, so every object is an interval of one ordered key
space, and a range is a pair (low, high) with low <= key < high. Objects are named

* ``t:NAME``  the rows of a table, by rowid or by primary key (WITHOUT ROWID),
* ``i:NAME``  an index, by its columns and then the rowid,
* ``u:NAME``  columns of the rows of a table: a rowid alone stands for the existence of the row, and a rowid with a
  name for one column of the row,
* ``e:``      clocks, eight bytes each. A transaction reads the point of its own clock, and a schema change writes all
  clocks from its activation on. So the two conflict exactly if the transaction belongs on the new schema.

``bedrockish.access_sets.key_encoding`` encodes columns, and ``key_text`` decodes them; all other code compares bytes.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import field
from itertools import chain, islice
from operator import lt
from typing import Any

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.value import value

Range = tuple[bytes, bytes]

HIGH = b"\xff"  # sorts after every encoded column
_CLOCKS, _CLOCKS_END = b"e:\0", b"e:\x01"
LAST_CLOCK = (1 << 64) - 1
READS, WRITES = "read_points", "write_points"
MANY = 1_000  # a set with more single keys caches them sorted, to find those in a range by bisection

PIECE = 5_000  # keys that ``_sorted_in_steps`` sorts in one step


def clock_key(clock: int) -> bytes:
    """Return the key that a transaction reads for its clock; a schema change in force at that clock writes it."""
    return _CLOCKS + clock.to_bytes(8)


def is_clock(key: bytes) -> bool:
    """Return whether a key stands for a clock."""
    return key.startswith(_CLOCKS)


def clocks_from(clock: int) -> Range:
    """Return the range that a schema change writes if it is in force from a clock on."""
    return clock_key(clock), _CLOCKS_END


def object_range(name: str) -> Range:
    """Return the range of all keys of an object such as ``t:accounts``."""
    prefix = name.encode() + b"\0"
    return prefix, prefix + HIGH


def object_of(key: bytes) -> str:
    """Return the object that a key, or the low end of a range, belongs to: ``t:accounts``."""
    return key.partition(b"\0")[0].decode(errors="replace")


@value
class AccessSet:
    """The reads and writes of one transaction."""

    read_points: frozenset[bytes] = frozenset()
    read_ranges: tuple[Range, ...] = ()
    write_points: frozenset[bytes] = frozenset()
    write_ranges: tuple[Range, ...] = ()
    _orders: dict[str, list[bytes]] | None = field(init=False, default=None, repr=False, compare=False)

    @property
    def has_ranges(self) -> bool:
        """Whether the transaction read or wrote any range of keys."""
        return bool(self.read_ranges or self.write_ranges)

    @property
    def touched(self) -> frozenset[bytes]:
        """The single keys that were read or written."""
        reads, writes = self.read_points, self.write_points
        return writes if reads <= writes else writes | reads

    def pack(self) -> list[Any]:
        """Return the canonical form: four sorted lists, which CBOR can encode."""
        reads, writes = [*map(list, sorted(self.read_ranges))], [*map(list, sorted(self.write_ranges))]
        return [self.ordered(READS), reads, self.ordered(WRITES), writes]

    def ordered(self, which: str) -> list[bytes]:
        """Return the single keys that were read (``READS``) or written (``WRITES``), sorted.

        The order of more than ``MANY`` keys is cached.
        """
        points: frozenset[bytes] = getattr(self, which)
        if len(points) <= MANY:
            return sorted(points)
        if self._orders is None:
            object.__setattr__(self, "_orders", {})
        assert self._orders is not None
        found = self._orders.get(which)
        if found is None:
            found = self._orders[which] = _sorted_in_steps(points)
        return found

    def extended(
        self, reads: Collection[bytes] = (), writes: Collection[bytes] = (), write_ranges: tuple[Range, ...] = ()
    ) -> "AccessSet":
        """Return an access set with a few more keys and ranges; a cached order is not sorted again."""
        read, written = self.read_points.union(reads), self.write_points.union(writes)
        found = AccessSet(read, self.read_ranges, written, (*self.write_ranges, *write_ranges))
        if len(self.read_points) > MANY or len(self.write_points) > MANY:
            orders = {}
            for which, keys in ((READS, reads), (WRITES, writes)):
                points: frozenset[bytes] = getattr(self, which)
                if len(points) > MANY:
                    orders[which] = [*self.ordered(which)]
                    for key in keys:
                        if key not in points:
                            insort(orders[which], key)
            object.__setattr__(found, "_orders", orders)
        return found

    def first(self, which: str, low: bytes, high: bytes) -> bytes | None:
        """Return the smallest single key read (``READS``) or written (``WRITES``) that lies in a range, or None."""
        points: frozenset[bytes] = getattr(self, which)
        if len(points) <= MANY:
            return min((point for point in points if low <= point < high), default=None)
        order = self.ordered(which)
        at = bisect_left(order, low)
        return order[at] if at < len(order) and order[at] < high else None

    def read_in(self, ranges: Iterable[Range]) -> bytes | None:
        """Return a key that was read and lies in one of ``ranges``, or None."""
        for low, high in ranges:
            found = self.first(READS, low, high)
            if found is not None:
                return found
            for first, last in self.read_ranges:
                if low < last and first < high:
                    return max(low, first)
        return None

    @classmethod
    def unpack(cls, packed: object) -> "AccessSet":
        """Return the access set of a canonical form.

        Raises:
            EntryMalformedError: ``packed`` is not the canonical form of an access set.
        """
        if not isinstance(packed, list) or [*map(type, packed)] != [list] * 4:
            raise EntryMalformedError("an access set should be four lists")
        read_points, read_ranges, write_points, write_ranges = packed
        for point in (*read_points, *write_points):
            if type(point) is not bytes:
                raise EntryMalformedError(f"a key should be bytes, not {type(point).__name__}")
        found = cls(
            frozenset(read_points),
            tuple(_ranges(read_ranges)) if read_ranges else (),
            frozenset(write_points),
            tuple(_ranges(write_ranges)) if write_ranges else (),
        )
        if len(read_points) > MANY or len(write_points) > MANY:
            many = {READS: read_points, WRITES: write_points}
            object.__setattr__(found, "_orders", {which: many[which] for which in many if _is_order(many[which])})
        return found


def _sorted_in_steps(points: Iterable[bytes]) -> list[bytes]:
    """Sort keys in pieces, because one sort of all keys would block all threads for a tenth of a second."""
    keys = list(points)
    pieces = (sorted(keys[first : first + PIECE]) for first in range(0, len(keys), PIECE))
    return sorted(chain.from_iterable(pieces))  # Timsort detects the sorted pieces, and only merges them


def _is_order(points: list[bytes]) -> bool:
    """Return whether a list has more than ``MANY`` keys in rising order, and so can be cached as a sorted list."""
    return len(points) > MANY and all(map(lt, points, islice(points, 1, None)))


def _ranges(packed: list[Any]) -> Iterator[Range]:
    for pair in packed:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is bytes and type(pair[1]) is bytes):
            raise EntryMalformedError("a range should be two byte strings")
        yield pair[0], pair[1]


def written_in(writer: AccessSet, other: AccessSet) -> bytes | None:
    """Return a key that ``writer`` writes and ``other`` reads or writes, or None."""
    if not writer.write_points.isdisjoint(other.write_points):
        return min(writer.write_points & other.write_points)
    if not writer.write_points.isdisjoint(other.read_points):
        return min(writer.write_points & other.read_points)
    if other.read_ranges or other.write_ranges:
        for low, high in (*other.read_ranges, *other.write_ranges):
            found = writer.first(WRITES, low, high)
            if found is not None:
                return found
    for low, high in writer.write_ranges:
        for which in (WRITES, READS):
            found = other.first(which, low, high)
            if found is not None:
                return found
        for other_low, other_high in (*other.read_ranges, *other.write_ranges):
            if low < other_high and other_low < high:
                return max(low, other_low)
    return None


def conflict(left: AccessSet, right: AccessSet) -> bytes | None:
    """Return a key on which two transactions conflict, or None if they commute.

    They conflict if one writes a key that the other reads or writes. If there are several such keys,
    ``conflict(right, left)`` may return another key.
    """
    if (
        left.write_points.isdisjoint(right.write_points)
        and left.write_points.isdisjoint(right.read_points)
        and left.read_points.isdisjoint(right.write_points)
        and not (left.read_ranges or left.write_ranges or right.read_ranges or right.write_ranges)
    ):
        return None  # nearly always
    found = written_in(left, right)  # may be the empty key, which is false and yet a conflict
    return written_in(right, left) if found is None else found

"""Access sets indexed by key, to find the transactions that read or write the keys of another one.

A dictionary holds the single keys, so the cost of a test does not grow with the number of transactions. A range is
looked up in the sorted keys, which are kept sorted only as long as there are range queries, and compared with the other
ranges one by one.

An access set of thousands of keys is not indexed by key but held whole: indexing would take longer than all comparisons
with it. A comparison looks up the few keys of another set among the many keys of this one.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from bedrockish_journal.model.access_set import MANY, AccessSet, Range, clocks_from, conflict, object_of
from bedrockish_journal.model.transaction import Txid

Name = TypeVar("Name", bound=Hashable)

LARGE = 4_000  # an access set with more keys than this is held whole
UNUSED_MAX = 1_000  # changes without a range query after which the sorted keys are dropped
_CLOCKS, _CLOCKS_END = clocks_from(0)
_CLOCK_PREFIX = _CLOCKS[:3]  # the prefix that ``is_clock`` tests; calling it for each key would dominate the cost


class Conflict(NamedTuple):
    """A transaction with which another one conflicts, and a key at which they conflict."""

    other: Txid
    key: bytes

    @property
    def object(self) -> str:
        """The table or index of the key."""
        return object_of(self.key)


class _One(dict[Name, None]):
    """A map with one holder, shared by all keys that only this holder has, and so never changed in place."""

    __slots__ = ()


class _Keys(Generic[Name]):
    """Keys, each with its holders."""

    def __init__(self) -> None:
        self.holders: dict[bytes, dict[Name, None]] = {}  # by key, the holders in the order of their arrival
        self._order: list[bytes] | None = None
        self._unused = 0

    def add(self, points: Collection[bytes], name: Name) -> None:
        """Add a new holder to keys, in a loop without calls: there may be a hundred thousand keys."""
        holders, one = self.holders, _One({name: None})
        if self._order is not None:
            self._insert([key for key in points if key not in holders])
        for key in points:
            held = holders.get(key)
            if held is None:
                holders[key] = one
            # All keys of a holder share this object, so it is replaced here and not changed.
            elif type(held) is _One:
                holders[key] = {**held, name: None}
            else:
                held[name] = None

    def remove(self, points: Collection[bytes], name: Name) -> None:
        """Remove a holder from keys."""
        holders = self.holders
        for key in points:
            held = holders[key]
            if type(held) is not _One:
                held.pop(name, None)
                if held:
                    continue
            del holders[key]
        if self._order is not None:
            self._delete([key for key in points if key not in holders])

    def _insert(self, new: list[bytes]) -> None:
        # Without range queries the keys are not kept sorted: the cost of an insertion grows with their number.
        self._change(len(new))
        if self._order is not None:
            for key in new:
                insort(self._order, key)

    def _delete(self, gone: list[bytes]) -> None:
        self._change(len(gone))
        if self._order is not None:
            for key in gone:
                del self._order[bisect_left(self._order, key)]

    def _change(self, count: int) -> None:
        self._unused += count
        # Sorting the keys again at the next query costs less than a thousand insertions.
        if self._unused > UNUSED_MAX:
            self._order = None

    def between(self, low: bytes, high: bytes) -> list[bytes]:
        """Return the keys of a range, in order."""
        if self._order is None:
            self._order = sorted(self.holders)
        # Keep the keys sorted for a while: more range queries usually follow.
        self._unused = 0
        return self._order[bisect_left(self._order, low) : bisect_left(self._order, high)]


class _Ranges(Generic[Name]):
    """Ranges by the object (table or index) that contains them, each range with its holders.

    A peer's access set may list a range several times.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, dict[Range, dict[Name, None]]] = {}  # under b"": ranges over several objects

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, ranges: Iterable[Range], name: Name) -> None:
        """Add a holder to ranges."""
        for one in dict.fromkeys(ranges):
            self._held.setdefault(_object(one), {}).setdefault(one, {})[name] = None

    def remove(self, ranges: Iterable[Range], name: Name) -> None:
        """Remove a holder from ranges."""
        for one in dict.fromkeys(ranges):
            held = self._held[_object(one)]
            holders = held[one]
            holders.pop(name, None)
            if not holders:
                del held[one]
                if not held:
                    del self._held[_object(one)]

    def touching(self, points: Iterable[bytes], ranges: Iterable[Range]) -> Iterator[Name]:
        """Yield the holders of ranges that overlap one of these keys and ranges, perhaps with repetitions."""
        held, nothing = self._held, dict[Range, dict[Name, None]]()
        # A range over several objects may contain keys of any object.
        wide = held.get(b"", nothing)
        for key in points:
            for some in (held.get(key[: key.find(b"\0")], nothing), wide):
                for (low, high), holders in some.items():
                    if low <= key < high:
                        yield from holders
        for one in ranges:
            name = _object(one)
            for some in (held.get(name, nothing), wide) if name else list(held.values()):
                for (low, high), holders in some.items():
                    if low < one[1] and one[0] < high:
                        yield from holders


def _object(one: Range) -> bytes:
    """Return the object (table or index) that contains a range; empty if the range goes beyond one object."""
    low, high = one
    prefix = low[: low.find(b"\0") + 1]
    return prefix[:-1] if prefix and high.startswith(prefix) else b""


class AccessIndex(Generic[Name]):
    """Access sets by the name of their holder, such as a transaction."""

    def __init__(self) -> None:
        self.sets: dict[Name, AccessSet] = {}
        self._writers: _Keys[Name] = _Keys()
        self._readers: _Keys[Name] = _Keys()  # without the readers of a key that also write it
        self._large: dict[Name, AccessSet] = {}
        self._ranged: dict[Name, AccessSet] = {}
        self._read_ranges: _Ranges[Name] = _Ranges()
        self._write_ranges: _Ranges[Name] = _Ranges()

    def __contains__(self, name: object) -> bool:
        return name in self.sets

    def __len__(self) -> int:
        return len(self.sets)

    def add(self, name: Name, access_set: AccessSet) -> None:
        """Add an access set."""
        assert name not in self.sets
        self.sets[name] = access_set
        if is_large(access_set):
            self._large[name] = access_set
            return
        self._writers.add(access_set.write_points, name)
        self._readers.add(_only_read(access_set), name)
        if access_set.has_ranges:
            self._ranged[name] = access_set
            self._read_ranges.add(access_set.read_ranges, name)
            self._write_ranges.add(access_set.write_ranges, name)

    def remove(self, name: Name) -> None:
        """Remove an access set, if it is here."""
        access_set = self.sets.pop(name, None)
        if access_set is None or self._large.pop(name, None) is not None:
            return
        if self._ranged.pop(name, None) is not None:
            self._read_ranges.remove(access_set.read_ranges, name)
            self._write_ranges.remove(access_set.write_ranges, name)
        self._writers.remove(access_set.write_points, name)
        self._readers.remove(_only_read(access_set), name)

    def writers_of(self, key: bytes) -> list[Name]:
        """Return the holders that write a key as a single key, in the order of their arrival; the large ones last."""
        found = [*self._writers.holders.get(key, ())]
        if self._large:
            found += [name for name, one in self._large.items() if key in one.write_points]
        return found

    def is_writing(self, key: bytes) -> bool:
        """Return whether any access set here writes a key as a single key."""
        return key in self._writers.holders or any(key in one.write_points for one in self._large.values())

    def ranged(self) -> Iterator[Name]:
        """Yield the holders that read or write ranges."""
        yield from self._ranged
        yield from (name for name, one in self._large.items() if one.has_ranges)

    def has_ranges(self) -> bool:
        """Return whether any access set that is indexed by key has ranges."""
        return bool(self._ranged)

    def conflicts(self, access_set: AccessSet, own: Name | None = None) -> Iterator[tuple[Name, bytes]]:
        """Yield each holder, except ``own``, whose access set conflicts with this one, and a key; each holder once."""
        return iter(()) if self._is_apart(access_set) else self._conflicts(access_set, own)

    def _is_apart(self, access_set: AccessSet) -> bool:
        """Return whether a quick test of the single keys proves that no access set here conflicts with this one.

        The test succeeds for most transactions, and never if one of the access sets has ranges.
        """
        if self._ranged or self._large or access_set.read_ranges or access_set.write_ranges:
            return False
        writers, writes = self._writers.holders.keys(), access_set.write_points
        is_apart = writers.isdisjoint(writes) and writers.isdisjoint(access_set.read_points)
        return is_apart and self._readers.holders.keys().isdisjoint(writes)

    def _conflicts(self, access_set: AccessSet, own: Name | None) -> Iterator[tuple[Name, bytes]]:
        seen: set[Name | None] = {own}
        for key, holders in self._touching(access_set):
            for name in holders:
                if name not in seen:
                    seen.add(name)
                    yield name, key
        # Large sets one by one: each comparison looks up the few keys of this set among the many keys of the large one.
        for name, other in self._large.items():
            if name not in seen:
                found = conflict(access_set, other)
                if found is not None:
                    seen.add(name)
                    yield name, found
        # A schema change writes all clocks from its activation on, and the index does not have the clocks that
        # transactions read. So the change is compared with every set.
        compares_all = any(_has_clocks(each) for each in access_set.write_ranges)
        others = self.sets if compares_all else self._ranged
        if not others:
            return
        # First find the candidates by table or index: of a hundred ranges, few are in the tables that this set touches.
        candidates = None if compares_all else self._holders_of_ranges(access_set)
        if candidates is not None and candidates <= seen:
            return
        for name, other in others.items():
            if name not in seen and (candidates is None or name in candidates):
                found = conflict(access_set, other)
                if found is not None:
                    seen.add(name)
                    yield name, found

    def _holders_of_ranges(self, access_set: AccessSet) -> set[Name] | None:
        """Return the holders of ranges that conflict with this access set.

        Return None if the set has too many keys to look them up one by one.
        """
        reads, writes = access_set.read_points, access_set.write_points
        if len(reads) + len(writes) > MANY:
            return None
        read_ranges, write_ranges = access_set.read_ranges, access_set.write_ranges
        candidates = set(self._read_ranges.touching(writes, write_ranges))
        if self._write_ranges:
            candidates.update(self._write_ranges.touching(reads, read_ranges))
            candidates.update(self._write_ranges.touching(writes, write_ranges))
        return candidates

    def _touching(self, access_set: AccessSet) -> Iterator[tuple[bytes, dict[Name, None]]]:
        """Yield the single keys here that conflict with an access set, each with its holders."""
        writers, readers = self._writers, self._readers
        for points, keys in (
            (access_set.write_points, writers),
            (access_set.write_points, readers),
            (access_set.read_points, writers),
        ):
            held = keys.holders
            # Look up the keys of the smaller side in the larger one, which may have a hundred thousand keys.
            fewer, other = (held, points) if len(points) > len(held) else (points, held)
            for key in sorted([key for key in fewer if key in other]):
                yield key, held[key]
        for ranges, kinds in ((access_set.write_ranges, (writers, readers)), (access_set.read_ranges, (writers,))):
            for low, high in ranges:
                for keys in kinds:
                    for key in keys.between(low, high):
                        yield key, keys.holders[key]


def is_large(access_set: AccessSet) -> bool:
    """Return whether an access set has so many keys that it is held whole."""
    return count_keys(access_set) > LARGE


def count_keys(access_set: AccessSet) -> int:
    """Return the number of single keys in an access set; a key that is read and written counts twice."""
    return len(access_set.read_points) + len(access_set.write_points)


def _only_read(access_set: AccessSet) -> list[bytes]:
    """Return the single keys that are read and not written, without the clocks.

    A key that is read and written need not be among the readers: each test against the readers of a key also tests its
    writers. Nor need clocks be among them: transactions write clocks only as a range.
    """
    return [key for key in access_set.read_points - access_set.write_points if key[:3] != _CLOCK_PREFIX]


def _has_clocks(written: Range) -> bool:
    """Return whether a written range contains clocks; the index does not have the clocks that are read."""
    low, high = written
    return low < _CLOCKS_END and high > _CLOCKS

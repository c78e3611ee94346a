"""The two forms of a commit in the conflict window: a Python object, and a part of a packed segment for older ones.

A commit with ten keys takes less than 400 bytes in a segment of a few hundred commits, and ten times that as objects.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, chain
from zlib import crc32

from bedrockish.core.state.access_index import Conflict, is_large
from bedrockish_journal.model.access_set import MANY, READS, WRITES, AccessSet, Range, conflict
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import Vector, covers, merge

SEGMENT, SEGMENT_KEYS = 256, 4_000  # commits that are packed together, and keys after which a segment ends earlier
FILTER_BYTES = 4_096  # the size of a segment's filter (a Bloom filter with one false positive in ten)
_READ, _WRITE = 1, 2
Place = tuple[str, int]


class Retirement:
    """A change of the members that retired timelines.

    A base that has the change has all entries of these timelines, and does not name them.
    """

    __slots__ = ("later", "places")

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places  # the places of the change
        # The change that retired the timeline in which this change is; None if that timeline is not retired.
        self.later: Retirement | None = None

    def is_in(self, base: Vector) -> bool:
        """Return whether a base has the change, or a later one."""
        return _is_among(self.places, base) or (self.later is not None and self.later.is_in(base))

    def all_places(self) -> list[Place]:
        """Return the places of this retirement and of all later retirements."""
        return [*self.places, *(self.later.all_places() if self.later is not None else ())]

    def newest(self) -> Place:
        """Return the place of the last retirement among this and the later ones: every later base covers that place."""
        return self.places[0] if self.later is None else self.later.newest()


def _is_among(places: Iterable[Place], base: Vector) -> bool:
    return any(base.get(leader, 0) >= tick for leader, tick in places)


class RecentCommit:
    """A commit that is not packed: above safe time, or not long below it."""

    __slots__ = ("access_set", "command", "kind", "places", "retired_by", "txid")

    def __init__(self, transaction: Transaction) -> None:
        # ``kind``: ``rows``, ``schema`` or ``members``.
        # ``command``: its first command.
        self.txid, self.kind, self.command = transaction.txid, transaction.kind, transaction.command
        self.access_set = transaction.access_set
        # Its places in timelines; more than one if it was adopted and its leader's own commit arrived later.
        self.places: list[Place] = []
        # The change that retired the timeline of one of its places; None if none of these timelines is retired.
        self.retired_by: Retirement | None = None

    def is_in(self, base: Vector) -> bool:
        """Return whether a base has seen the commit, under any of its places."""
        return _is_among(self.places, base) or (self.retired_by is not None and self.retired_by.is_in(base))


class PackedKeys:
    """Packed keys; each takes a few bytes more than its own length."""

    __slots__ = ("_bytes", "_ends")

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._bytes = b"".join(keys)
        self._ends = array("I", accumulate(map(len, keys)))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        return self._bytes[self._ends[number - 1] if number else 0 : self._ends[number]]

    def __iter__(self) -> Iterator[bytes]:
        begin = 0
        for end in self._ends:
            yield self._bytes[begin:end]
            begin = end

    def bisect(self, key: bytes) -> int:
        """Return the index of the first packed key that is not smaller than a key; the packed keys are in order."""
        return bisect_left(range(len(self._ends)), key, key=self.__getitem__)

    def first_among(self, points: AbstractSet[bytes], ranges: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return a packed key that is among some keys or in some ranges, or None."""
        if len(points) > MANY:
            found = next((key for key in self if key in points), None)
            if found is not None:
                return found
            points = frozenset()
        for low, high in chain(((key, key + b"\0") for key in sorted(points)), ranges):
            index = self.bisect(low)
            if index < len(self._ends) and self[index] < high:
                return self[index]
        return None


class PackedSegment:
    """Packed access sets of a few hundred commits: all keys, each with its commit, and whether it was read or written.

    The first query sorts the keys, and makes a Bloom filter, which excludes most keys that no commit here has touched.
    Large access sets are kept separately.
    """

    __slots__ = (
        "_bits",
        "_clocks",
        "_is_sorted",
        "_keys",
        "_large",
        "_more",
        "_names",
        "_origins",
        "_owners",
        "_places",
        "_ranged",
        "covered",
        "last",
        "newest",
        "oldest",
    )

    _bits: bytes | None

    def __init__(self, commits: Sequence[RecentCommit]) -> None:
        assert len(commits) <= SEGMENT
        names = sorted({name for one in commits for name in (one.txid.leader, *(leader for leader, _ in one.places))})
        numbers = {name: number for number, name in enumerate(names)}
        self._names = names
        self._clocks = array("Q", [one.txid.clock for one in commits])
        self._origins = array("H", [numbers[one.txid.leader] for one in commits])
        first = [one.places[0] for one in commits]
        self._places = array("H", [numbers[leader] for leader, _ in first]), array("Q", [tick for _, tick in first])
        # Second places are rare, so a dictionary has the commits with more than one place.
        self._more = {owner: one.places[1:] for owner, one in enumerate(commits) if len(one.places) > 1}
        retired = {owner: one.retired_by for owner, one in enumerate(commits) if one.retired_by is not None}
        for owner, change in retired.items():
            self._more[owner] = [*self._more.get(owner, ()), *change.all_places()]
        self.last: Vector = _last_of(one.places[0] for one in commits)  # the vector of the first places
        # The vector of one place of each commit. For most bases, one comparison with it shows that the base has seen
        # all commits of the segment. A base that has a commit only under another place is compared commit by commit.
        self.covered: Vector = _last_of(
            retired[owner].newest() if owner in retired else one.places[0] for owner, one in enumerate(commits)
        )
        self.oldest, self.newest = min(self._clocks), max(self._clocks)
        self._ranged = {
            owner: AccessSet(read_ranges=one.access_set.read_ranges, write_ranges=one.access_set.write_ranges)
            for owner, one in enumerate(commits)
            if one.access_set.has_ranges
        }
        self._large = {
            owner: (PackedKeys(one.access_set.ordered(READS)), PackedKeys(one.access_set.ordered(WRITES)))
            for owner, one in enumerate(commits)
            if is_large(one.access_set)
        }
        self._pack(commits)

    def _pack(self, commits: Sequence[RecentCommit]) -> None:
        keys, owners = list[bytes](), array("H")
        for owner, one in enumerate(commits):
            # The keys of a large access set would be most of the segment; they are kept and compared separately.
            if owner in self._large:
                continue
            reads, writes = one.access_set.read_points, one.access_set.write_points
            # An item of 16 bits holds the number of the commit, below 256, and the two bits for read and written.
            for some, bits in ((writes - reads, _WRITE), (writes & reads, _WRITE | _READ), (reads - writes, _READ)):
                keys += some
                owners.extend([owner << 2 | bits] * len(some))
        self._keys, self._owners, self._is_sorted, self._bits = PackedKeys(keys), owners, False, None

    def _sort(self) -> None:
        """Sort the keys at the first search: most segments are never searched, because every base has seen them."""
        if not self._is_sorted:
            touched = sorted(zip(self._keys, self._owners, strict=True))
            self._keys = PackedKeys([key for key, _ in touched])
            self._owners = array("H", [owner for _, owner in touched])
            self._is_sorted = True

    def is_in(self, base: Vector) -> bool:
        """Return whether a base has seen each commit under its first place."""
        return covers(base, self.covered)

    def oldest_outside(self, base: Vector) -> int | None:
        """Return the smallest clock of the commits here that a base has not seen, or None."""
        clocks = enumerate(self._clocks)
        return min((clock for owner, clock in clocks if not self._owner_is_in(owner, base)), default=None)

    def owner_of(self, txid: Txid) -> int | None:
        """Return the number of a commit in this segment, None if it is not here."""
        # Without this test, the lookup for a commit's second place would search every segment.
        if not self.oldest <= txid.clock <= self.newest:
            return None
        clocks = enumerate(self._clocks)
        return next((owner for owner, clock in clocks if clock == txid.clock and self._txid(owner) == txid), None)

    def add_place(self, txid: Txid, place: Place) -> None:
        """Record a further place of a commit of this segment."""
        owner = self.owner_of(txid)
        assert owner is not None, f"{txid} is not in this segment"
        self._more.setdefault(owner, []).append(place)

    def retire(self, leaders: AbstractSet[str], change: Retirement) -> None:
        """Count the commits of these timelines as seen by each base that has the change that retired the timelines."""
        for owner in range(len(self._clocks)):
            if any(leader in leaders for leader, _ in self._places_of(owner)):
                self._more.setdefault(owner, []).extend(change.all_places())
        # A base with the change does not name these timelines any more.
        if leaders & self.covered.keys():
            kept = {leader: tick for leader, tick in self.covered.items() if leader not in leaders}
            self.covered = merge(kept, dict([change.newest()]))

    def conflicts(self, access_set: AccessSet, base: Vector, own: Txid | None) -> Iterator[Conflict]:
        """Yield the commits outside a base that conflict, once each."""
        seen: set[int] = set()
        for key, owner in self._touching(access_set):
            if owner not in seen:
                seen.add(owner)
                if not self._owner_is_in(owner, base) and self._txid(owner) != own:
                    yield Conflict(self._txid(owner), key)
        for owner in (*self._large, *self._ranged):
            if owner not in seen and not self._owner_is_in(owner, base) and self._txid(owner) != own:
                found = self._conflict_with(owner, access_set)
                if found is not None:
                    seen.add(owner)
                    yield Conflict(self._txid(owner), found)

    def readers(self, ranges: Sequence[Range], base: Vector) -> Iterator[Conflict]:
        """Yield the commits outside a base that have read in these ranges."""
        for low, high in ranges:
            for key, owner in self._between(low, high, _READ):
                if not self._owner_is_in(owner, base):
                    yield Conflict(self._txid(owner), key)
        for owner in (*self._large, *self._ranged):
            if not self._owner_is_in(owner, base):
                ranged = self._ranged.get(owner)
                found = ranged.read_in(ranges) if ranged is not None else None
                if found is None and owner in self._large:
                    found = self._large[owner][0].first_among(frozenset(), ranges)
                if found is not None:
                    yield Conflict(self._txid(owner), found)

    def _conflict_with(self, owner: int, access_set: AccessSet) -> bytes | None:
        """Return a key at which an access set conflicts with a commit: in its ranges, or in a large commit's keys."""
        ranged = self._ranged.get(owner)
        found = conflict(access_set, ranged) if ranged is not None else None
        if found is not None or owner not in self._large:
            return found
        reads, writes = self._large[owner]
        found = writes.first_among(access_set.write_points, access_set.write_ranges)
        if found is None:
            found = writes.first_among(access_set.read_points, access_set.read_ranges)
        return reads.first_among(access_set.write_points, access_set.write_ranges) if found is None else found

    def _touching(self, access_set: AccessSet) -> Iterator[tuple[bytes, int]]:
        """Yield the keys at which an access set conflicts, each with the number of its commit."""
        for points, wanted in ((access_set.write_points, _READ | _WRITE), (access_set.read_points, _WRITE)):
            for key in self._known_of(points):
                # ``key + b"\0"`` is the next possible key, so the range has this key alone.
                yield from self._between(key, key + b"\0", wanted)
        for ranges, wanted in ((access_set.write_ranges, _READ | _WRITE), (access_set.read_ranges, _WRITE)):
            for low, high in ranges:
                yield from self._between(low, high, wanted)

    def _known_of(self, points: AbstractSet[bytes]) -> list[bytes]:
        """Return the keys among ``points`` that may be here, in order."""
        if len(points) > len(self._keys):
            return sorted({key for key in self._keys if key in points})
        bits = self._bits
        if bits is None:
            bits = self._bits = self._filter()
        return sorted([key for key in points if bits[_bit(key) >> 3] & 1 << (_bit(key) & 7)])

    def _filter(self) -> bytes:
        """Return the filter: the bits of all keys.

        A lookup costs a search through the packed keys; the filter saves it for nine in ten absent keys.
        """
        bits = bytearray(FILTER_BYTES)
        for bit in map(_bit, self._keys):
            bits[bit >> 3] |= 1 << (bit & 7)
        return bytes(bits)

    def _between(self, low: bytes, high: bytes, wanted: int) -> Iterator[tuple[bytes, int]]:
        self._sort()
        for number in range(self._keys.bisect(low), len(self._keys)):
            key = self._keys[number]
            if key >= high:
                return
            if self._owners[number] & wanted:
                yield key, self._owners[number] >> 2

    def _txid(self, owner: int) -> Txid:
        return Txid(self._clocks[owner], self._names[self._origins[owner]])

    def _places_of(self, owner: int) -> Iterator[Place]:
        leaders, ticks = self._places
        yield self._names[leaders[owner]], ticks[owner]
        yield from self._more.get(owner, ())

    def _owner_is_in(self, owner: int, base: Vector) -> bool:
        # A commit counts as seen under any of its places: the base may have the leader's place, and this node the place
        # of the node that adopted the commit.
        return any(base.get(leader, 0) >= tick for leader, tick in self._places_of(owner))


def _last_of(places: Iterable[Place]) -> dict[str, int]:
    last: dict[str, int] = {}
    for leader, tick in places:
        last[leader] = max(tick, last.get(leader, 0))
    return last


def _bit(key: bytes) -> int:
    return crc32(key) & (8 * FILTER_BYTES - 1)

"""The conflict tests: the two calls that the gist asks SQLite for, on logical keys, and the commits they search.

``test_conflict(a, b)`` tells whether two transactions conflict; ``prepare_commit(x)`` whether x conflicts with anything
that this node holds pending, or knows to be committed and x has not seen. A command's id, the membership and the schema
need no rules of their own: ``claim`` puts them into the access set as keys.

Commits that some snapshot in use may not have seen are kept in a *window*. Every BEGIN is compared with the commits
above safe time, which are kept as they came, by key. Only long transactions ask for the commits below it, a minute back
and more: their access sets are packed, a few hundred at a time, into sorted *segments*. A commit with ten keys takes
less than 400 bytes there; as Python's own objects it would take ten times that.
"""

import heapq
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, chain, islice, starmap, takewhile
from typing import NamedTuple
from zlib import crc32

from bedrockish.core.state.access_index import AccessIndex, is_large
from bedrockish_journal.model.access_set import (
    MANY,
    READS,
    WRITES,
    AccessSet,
    Range,
    clock_key,
    clocks_from,
    conflict,
    object_of,
)
from bedrockish_journal.model.transaction import MEMBERS, SCHEMA, Transaction, Txid
from bedrockish_journal.model.vector import Vector, covers, merge

EVERYTHING = (b"", b"\xff\xff")
SEGMENT = 256  # commits that are packed together
FILTER_BYTES = 4_096  # of a segment: one key in ten that is not there passes it
FEW = 32  # commits that are compared one by one, where some of them have ranges
LATEST = 128  # commits of each timeline that are found by their ticks
_READ, _WRITE = 1, 2


Place = tuple[str, int]


class Conflict(NamedTuple):
    """The transaction that another one conflicts with, and the key."""

    other: Txid
    key: bytes

    @property
    def object(self) -> str:
        """The table or index of the key."""
        return object_of(self.key)


def command_key(command: str) -> bytes:
    """Return the key that every transaction of a command writes."""
    return b"c:\0" + command.encode()


def claim(access_set: AccessSet, commands: tuple[str, ...], kind: str, clock: int, activates: int = 0) -> AccessSet:
    """Return the access set with the keys of its commands, and the keys that put it before or after schema changes.

    A transaction reads its own clock. A schema change writes all clocks from its activation on, so that it conflicts
    with the transactions of such a clock, with every other schema change, and with nothing else. A change of the
    membership writes every key.
    """
    # So that two runs of one command conflict, wherever they are led: the later one is told that it has happened.
    write_points = access_set.write_points.union(map(command_key, commands))
    if kind == SCHEMA:
        return AccessSet(
            access_set.read_points,
            access_set.read_ranges,
            write_points,
            (*access_set.write_ranges, clocks_from(activates)),
        )
    return AccessSet(
        access_set.read_points | {clock_key(clock)},
        access_set.read_ranges,
        write_points,
        (*access_set.write_ranges, EVERYTHING) if kind == MEMBERS else access_set.write_ranges,
    )


def test_conflict(left: Transaction, right: Transaction) -> bytes | None:
    """Return a key on which two transactions conflict, or None if they commute."""
    return conflict(left.access_set, right.access_set)


def prepare_commit(
    access_set: AccessSet, base: Vector, recent: "CommitWindow", pending: "Pending", own: Txid | None = None
) -> Conflict | None:
    """Return a conflict with a commit outside the base or with a pending transaction; None if it may be approved."""
    # The commits first: a conflict with a commit is final, one with a pending transaction may go away.
    found = next(recent.conflicts(access_set, base, own), None)
    return found or next(pending.conflicts(access_set, own), None)


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


class Known:
    """A commit above safe time.

    Attributes:
        txid: the transaction.
        kind: ``rows``, ``schema`` or ``members``.
        command: its first command.
        access_set: its access set.
        places: where: more than one if it was adopted and its own label turned up.
    """

    __slots__ = ("access_set", "command", "everywhere", "kind", "places", "txid")

    def __init__(self, transaction: Transaction) -> None:
        self.txid, self.kind, self.command = transaction.txid, transaction.kind, transaction.command
        self.access_set = transaction.access_set
        self.places: list[Place] = []
        self.everywhere = False  # it stands in a timeline that is retired: every base has seen it

    def is_in(self, base: Vector) -> bool:
        """Return whether a base has seen it, under any of its places."""
        return self.everywhere or any(base.get(leader, 0) >= tick for leader, tick in self.places)


class Keys:
    """Keys in order, packed: a few bytes more than they have themselves."""

    __slots__ = ("_bytes", "_ends")

    def __init__(self, ordered: Sequence[bytes]) -> None:
        self._bytes = b"".join(ordered)
        self._ends = array("I", accumulate(map(len, ordered)))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        return self._bytes[self._ends[number - 1] if number else 0 : self._ends[number]]

    def __iter__(self) -> Iterator[bytes]:
        begin = 0
        for end in self._ends:
            yield self._bytes[begin:end]
            begin = end

    def place(self, key: bytes) -> int:
        """Return the place of the first that is not smaller than a key."""
        return bisect_left(range(len(self._ends)), key, key=self.__getitem__)

    def first_among(self, points: AbstractSet[bytes], ranges: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return one of them that is among some keys or in some ranges, or None."""
        if len(points) > MANY:
            found = next((key for key in self if key in points), None)
            if found is not None:
                return found
            points = frozenset()
        for low, high in chain(((key, key + b"\0") for key in sorted(points)), ranges):
            place = self.place(low)
            if place < len(self._ends) and self[place] < high:
                return self[place]
        return None


class Segment:
    """Packed access sets of a few hundred commits: all keys in order, each with its commit and how that touched it.

    A filter of bits sorts out most keys that no commit here has touched. The keys of large access sets are kept apart.
    """

    __slots__ = (
        "_bits",
        "_clocks",
        "_keys",
        "_large",
        "_last",
        "_more",
        "_names",
        "_origins",
        "_owners",
        "_places",
        "_ranged",
        "newest",
        "oldest",
    )

    def __init__(self, commits: Sequence[Known]) -> None:
        assert len(commits) <= SEGMENT
        names = sorted({name for one in commits for name in (one.txid.leader, *(leader for leader, _ in one.places))})
        numbers = {name: number for number, name in enumerate(names)}
        self._names = names
        self._clocks = array("Q", [one.txid.clock for one in commits])
        self._origins = array("H", [numbers[one.txid.leader] for one in commits])
        self._places = (
            array("H", [numbers[one.places[0][0]] for one in commits]),
            array("Q", [one.places[0][1] for one in commits]),
        )
        # Second places are rare: a dictionary of those that have one.
        self._more = {owner: one.places[1:] for owner, one in enumerate(commits) if len(one.places) > 1}
        self._last: dict[str, int] = {}
        # One comparison for a few hundred commits tells most bases that they have seen all of it. First places are
        # enough: a base that has another place alone is compared commit by commit.
        for one in commits:
            leader, tick = one.places[0]
            self._last[leader] = max(tick, self._last.get(leader, 0))
        self.oldest, self.newest = min(self._clocks), max(self._clocks)
        self._ranged = {
            owner: AccessSet(read_ranges=one.access_set.read_ranges, write_ranges=one.access_set.write_ranges)
            for owner, one in enumerate(commits)
            if one.access_set.has_ranges
        }
        self._large = {
            owner: (Keys(one.access_set.ordered(READS)), Keys(one.access_set.ordered(WRITES)))
            for owner, one in enumerate(commits)
            if is_large(one.access_set)
        }
        self._pack(commits)

    def _pack(self, commits: Sequence[Known]) -> None:
        touched: list[tuple[bytes, int]] = []
        for owner, one in enumerate(commits):
            # Its keys would be most of the segment, and are compared by themselves.
            if owner in self._large:
                continue
            reads, writes = one.access_set.read_points, one.access_set.write_points
            # The number of one of 256 commits and two bits: that fits into the 16 of an array's item.
            touched += [(key, owner << 2 | _WRITE | _READ * (key in reads)) for key in writes]
            touched += [(key, owner << 2 | _READ) for key in reads - writes]
        touched.sort()
        self._keys = Keys([key for key, _ in touched])
        self._owners = array("H", [owner for _, owner in touched])
        # A lookup costs a search through packed keys; of keys that are not there, the filter sorts nine in ten out.
        bits = bytearray(FILTER_BYTES)
        for key, _ in touched:
            bit = _bit(key)
            bits[bit >> 3] |= 1 << (bit & 7)
        self._bits = bytes(bits)

    @property
    def last(self) -> Vector:
        """The last tick of each timeline among the first places."""
        return self._last

    def is_in(self, base: Vector) -> bool:
        """Return whether a base has seen each commit under its first place."""
        return all(base.get(leader, 0) >= tick for leader, tick in self._last.items())

    def oldest_outside(self, base: Vector) -> int | None:
        """Return the smallest clock of the commits here that a base has not seen, or None."""
        clocks = enumerate(self._clocks)
        return min((clock for owner, clock in clocks if not self._owner_is_in(owner, base)), default=None)

    def owner_of(self, txid: Txid) -> int | None:
        """Return the number of a commit in this segment, None if it is not here."""
        # Clocks are in no order inside: without this every late place would be looked for in every segment.
        if not self.oldest <= txid.clock <= self.newest:
            return None
        clocks = enumerate(self._clocks)
        return next((owner for owner, clock in clocks if clock == txid.clock and self._txid(owner) == txid), None)

    def add_place(self, txid: Txid, place: Place) -> None:
        """Note a further place of a commit of this segment."""
        owner = self.owner_of(txid)
        assert owner is not None, f"{txid} is not in this segment"
        self._more.setdefault(owner, []).append(place)

    def retire(self, leaders: AbstractSet[str]) -> None:
        """Mark the commits of these timelines as seen by every base."""
        firsts, ticks = self._places
        for owner, first in enumerate(firsts):
            if self._names[first] in leaders or any(leader in leaders for leader, _ in self._more.get(owner, ())):
                # Every base has seen tick 0 of any timeline.
                ticks[owner] = 0
        # No base names them any more, so they may not stand in a comparison with one.
        for leader in leaders:
            self._last.pop(leader, None)

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
        """Return a key at which an access set conflicts with the ranges of a commit, or the keys of a large one."""
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
        """Yield the keys that were touched in a way that conflicts, each with the number of its commit."""
        for points, wanted in ((access_set.write_points, _READ | _WRITE), (access_set.read_points, _WRITE)):
            for key in self._known_of(points):
                # The next key after it in order: so the range holds this key alone.
                yield from self._between(key, key + b"\0", wanted)
        for ranges, wanted in ((access_set.write_ranges, _READ | _WRITE), (access_set.read_ranges, _WRITE)):
            for low, high in ranges:
                yield from self._between(low, high, wanted)

    def _known_of(self, points: AbstractSet[bytes]) -> list[bytes]:
        """Return those of some keys that may be here, in order."""
        if len(points) > len(self._keys):
            return sorted({key for key in self._keys if key in points})
        return sorted([key for key in points if self._bits[_bit(key) >> 3] & 1 << (_bit(key) & 7)])

    def _between(self, low: bytes, high: bytes, wanted: int) -> Iterator[tuple[bytes, int]]:
        for number in range(self._keys.place(low), len(self._keys)):
            key = self._keys[number]
            if key >= high:
                return
            if self._owners[number] & wanted:
                yield key, self._owners[number] >> 2

    def _txid(self, owner: int) -> Txid:
        return Txid(self._clocks[owner], self._names[self._origins[owner]])

    def _owner_is_in(self, owner: int, base: Vector) -> bool:
        leaders, ticks = self._places
        # Under any of its places it counts as seen: a base may have it by its first label, and we by the adopted one.
        if base.get(self._names[leaders[owner]], 0) >= ticks[owner]:
            return True
        return any(base.get(leader, 0) >= tick for leader, tick in self._more.get(owner, ()))


def _bit(key: bytes) -> int:
    return crc32(key) & (8 * FILTER_BYTES - 1)


class _Line:
    """The last commits of one timeline, one after the other: the first of them has the tick ``first``."""

    __slots__ = ("commits", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.commits: deque[Known] = deque()

    @property
    def next(self) -> int:
        """The tick after the last commit of the line."""
        return self.first + len(self.commits)

    def add(self, known: Known) -> None:
        """Add the next one."""
        self.commits.append(known)
        # The base of a frequent reader or writer lacks a few commits; one that lacks more is tested by key.
        if len(self.commits) > LATEST:
            self._drop()

    def let_go(self, known: Container[Txid]) -> None:
        """Drop the first ones that are packed: they shall not be kept as they came."""
        while self.commits and self.commits[0].txid not in known:
            self._drop()

    def let_go_up_to(self, txid: Txid) -> None:
        """Drop a commit if it is here, with all before it: of its places, it does not know the last one."""
        if any(known.txid == txid for known in self.commits):
            while self.commits[0].txid != txid:
                self._drop()
            self._drop()

    def _drop(self) -> None:
        self.commits.popleft()
        self.first += 1


MEMBER_CHANGES_MAX = 100


class CommitWindow:
    """The commits of the conflict window.

    Args:
        recovered: the last tick of each timeline that was applied before the start.

    Attributes:
        known: the commits that are not settled, and up to a few hundred settled ones.
        floor: the last tick of each timeline that is the first place of a dropped commit.
        member_changes: the last changes of the members, each with whether open transactions go on over it.
    """

    def __init__(self, recovered: Vector | None = None) -> None:
        self.member_changes: dict[Txid, bool] = {}
        self.known: dict[Txid, Known] = {}
        self.floor: dict[str, int] = {}
        self._index: AccessIndex[Txid] = AccessIndex()
        self._by_clock: list[Txid] = []  # a heap of those that may not be settled
        self._below: list[Txid] = []  # those that are, and are not packed yet
        self._segments: deque[Segment] = deque()
        self._packed: dict[str, int] = {}  # the last tick of each timeline in any segment
        self._packed_newest = -1  # the greatest clock in any segment
        self._retired: set[str] = set()
        self._recovered = recovered or {}
        self._lines = {leader: _Line(tick + 1) for leader, tick in self._recovered.items()}

    def retire(self, leaders: AbstractSet[str]) -> None:
        """Mark the commits of these timelines as seen by every base, which has all of them and names them no more.

        A transaction with an older base conflicts with the change of the membership, which is here as well.
        """
        self._retired |= leaders
        for known in self.known.values():
            known.everywhere = known.everywhere or any(leader in leaders for leader, _ in known.places)
        for segment in self._segments:
            segment.retire(leaders)
        self._sum_up()
        for leader in leaders:
            self.floor.pop(leader, None)
            self._lines.pop(leader, None)

    def note_member_change(self, txid: Txid, *, harmless: bool) -> None:
        """Note a change of the members.

        It is harmless if it retires no timeline and leaves users and the release level as they are: then a transaction
        that lacks it reads and writes the same after it, and can be certified again on a base that has it.
        """
        self.member_changes[txid] = harmless
        if len(self.member_changes) > MEMBER_CHANGES_MAX:
            del self.member_changes[next(iter(self.member_changes))]

    def _sum_up(self) -> None:
        """Note what holds for all segments, after one has changed: hardly any commit or base needs to ask each."""
        self._packed = merge(*(segment.last for segment in self._segments))
        self._packed_newest = max((segment.newest for segment in self._segments), default=-1)

    def pass_over(self, place: Place, txid: Txid, *, is_repeat: bool = False) -> bool:
        """Leave out a commit that would be dropped at once; return False if it is here under another place.

        A repeat is left out as well if its first place was dropped: under its second place alone it would look as if a
        base with the first one lacked it. It needs no floor, for the floor of its first place stands for it.
        """
        if txid in self.known or self._packed_in(txid) is not None:
            return False
        if not is_repeat:
            self._drop(place)
        self._restart_line(place)
        return True

    def add(self, place: Place, transaction: Transaction) -> None:
        """Note a commit, or a further place of one that is here."""
        txid = transaction.txid
        known = self.known.get(txid)
        if known is None:
            segment = self._packed_in(txid)
            if segment is not None:
                self._add_packed_place(segment, txid, place)
                return
            known = self.known[txid] = Known(transaction)
            self._index.add(txid, known.access_set)
            heapq.heappush(self._by_clock, txid)
        known.places.append(place)
        if place[0] in self._retired:  # read again after a restart; no base names this timeline
            known.everywhere = True
        else:
            self._extend_line(place, known)

    def _extend_line(self, place: Place, known: Known) -> None:
        leader, tick = place
        if tick <= self._recovered.get(leader, 0):
            return  # of before the restart, which reads only some
        line = self._lines.setdefault(leader, _Line(tick))
        # By its length a line tells how many commits a base lacks: neither a gap nor an older tick may get into it.
        assert tick == line.next, f"{leader}{tick} comes after {leader}{line.next - 1}"
        line.add(known)

    def _restart_line(self, place: Place) -> None:
        """Begin the line of a timeline after a commit that is not among those kept one by one."""
        leader, tick = place
        if leader not in self._retired and tick > self._recovered.get(leader, 0):
            self._lines[leader] = _Line(tick + 1)

    def _packed_in(self, txid: Txid) -> Segment | None:
        """Return the segment that has a commit, or None."""
        if txid.clock > self._packed_newest:
            return None
        return next((segment for segment in self._segments if segment.owner_of(txid) is not None), None)

    def _add_packed_place(self, segment: Segment, txid: Txid, place: Place) -> None:
        """Note a further place of a commit that is packed."""
        segment.add_place(txid, place)
        if place[0] in self._retired:
            segment.retire({place[0]})
        for line in self._lines.values():
            line.let_go_up_to(txid)  # one that is needed for its outcome has kept it there
        self._restart_line(place)

    def newer_than(self, base: Vector) -> list[Known] | None:
        """Return the commits that a base has not seen; None if a search by key is quicker.

        The base of a frequent reader or writer is hardly older than the newest commits: its list is short or empty.
        """
        found: list[Known] = []
        for leader, line in self._lines.items():
            seen = base.get(leader, 0) + 1 - line.first
            # The line begins later than the next commit that this base lacks, so it does not have all newer ones.
            if seen < 0:
                return None
            if seen < len(line.commits):
                found += [known for known in islice(line.commits, seen, None) if not known.is_in(base)]
        return found

    def oldest_outside(self, base: Vector) -> int | None:
        """Return the smallest clock of the commits that a base has not seen; None if it has seen all."""
        newer = self.newer_than(base)
        if newer is None:
            newer = [known for known in self.known.values() if not known.is_in(base)]
            packed = [segment.oldest_outside(base) for segment in self._segments if not segment.is_in(base)]
        else:
            packed = []
        return min((*(known.txid.clock for known in newer), *filter(None, packed)), default=None)

    def reaches_back_to(self, applied: Vector, ticks: Iterable[Place]) -> None:
        """Set the floor after a restart: of the timelines, up to ``applied``, only these ticks were added here."""
        found: dict[str, set[int]] = {}
        for leader, tick in ticks:
            found.setdefault(leader, set()).add(tick)
        for leader, last in applied.items():
            known = found.get(leader, set())
            if leader not in self._retired:
                # From the end backwards to the first gap: a base below it may lack commits that are not known here.
                self.floor[leader] = next((tick for tick in range(last, 0, -1) if tick not in known), 0)

    def conflicts(self, access_set: AccessSet, base: Vector, own: Txid | None = None) -> Iterator[Conflict]:
        """Yield the commits that ``base`` has not seen under any of their places and that conflict, without ``own``."""
        # Queue workloads scan ranges full of deleted keys. If the base lacks only a few commits, compare with those
        # directly instead of looking up the commit of every key.
        newer = self.newer_than(base) if access_set.has_ranges or self._index.has_ranges() else None
        if newer is not None and len(newer) <= FEW:
            for known in dict.fromkeys(newer):  # one that was adopted stands in two timelines
                key = None if known.txid == own else conflict(access_set, known.access_set)
                if key is not None:
                    yield Conflict(known.txid, key)
            return
        for txid, key in self._index.conflicts(access_set, own):
            if not self.known[txid].is_in(base):
                yield Conflict(txid, key)
        if covers(base, self._packed):
            return  # nearly always: it has seen all that is packed
        # The newest first: a base that is a little old has not seen these.
        for segment in reversed(self._segments):
            if not segment.is_in(base):
                yield from segment.conflicts(access_set, base, own)

    def readers(self, ranges: Sequence[Range], base: Vector) -> Iterator[Conflict]:
        """Yield the commits that ``base`` has not seen and that have read in these ranges; compare one by one, for this
        is seldom called.
        """
        for txid, known in self.known.items():
            found = None if known.is_in(base) else known.access_set.read_in(ranges)
            if found is not None:
                yield Conflict(txid, found)
        for segment in self._segments:
            if not segment.is_in(base):
                yield from segment.readers(ranges, base)

    def any_conflicts(self, access_set: AccessSet, above: int) -> Iterator[Txid]:
        """Yield the commits with a clock above ``above``, safe time or more, that conflict, seen or not."""
        for txid, _ in self._index.conflicts(access_set):
            if txid.clock > above:
                yield txid

    def writers_of(self, key: bytes) -> list[Txid]:
        """Return the commits that write a key as such, of those that are not packed yet."""
        return self._index.writers_of(key)

    def pack(self, settled: int, needed: Container[Txid]) -> None:
        """Pack the settled commits, except those whose outcome is still ``needed``."""
        kept: list[Txid] = []
        while self._by_clock and self._by_clock[0].clock <= settled:
            txid = heapq.heappop(self._by_clock)
            # Taken and not applied yet, or ended in this very step: its place is still asked for.
            (kept if txid in needed else self._below).append(txid)
        for txid in kept:
            heapq.heappush(self._by_clock, txid)
        while len(self._below) >= SEGMENT:
            packed, self._below = self._below[:SEGMENT], self._below[SEGMENT:]
            segment = Segment([self._take(txid) for txid in packed])
            # Packed after the retirement, its commits still have the places of before.
            segment.retire(self._retired)
            self._segments.append(segment)
            self._sum_up()
            for line in self._lines.values():
                line.let_go(self.known)

    def _take(self, txid: Txid) -> Known:
        self._index.remove(txid)
        return self.known.pop(txid)

    def forget(self, clock: int) -> None:
        """Drop the commits up to a clock that is settled: at once or with those that were packed with them."""
        before = len(self._segments)
        while self._segments and self._segments[0].newest <= clock:
            for place in self._segments.popleft().last.items():
                self._drop(place)
        if len(self._segments) < before:
            self._sum_up()
        gone = [txid for txid in self._below if txid.clock <= clock]
        if gone:
            self._below = [txid for txid in self._below if txid.clock > clock]
            for txid in gone:
                self._drop(self._take(txid).places[0])

    def _drop(self, place: Place) -> None:
        """Raise the floor to the first place of a commit; the journal judges a base that has another place alone."""
        leader, tick = place
        # A base names no retired timeline, and would look as if it lacked all of it.
        if leader not in self._retired:
            self.floor[leader] = max(tick, self.floor.get(leader, 0))

"""The conflict window: the commits that some snapshot in use may not have seen.

Every BEGIN is compared with the commits above safe time, which are indexed by key. Only long transactions are compared
with the commits below safe time, down to the age of a minute; the access sets of these commits are packed to save
memory (``packed_commits``).
"""

import heapq
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from bedrockish.core.state import packed_commits
from bedrockish.core.state.access_index import AccessIndex, Conflict, count_keys
from bedrockish.core.state.packed_commits import PackedSegment, Place, RecentCommit, Retirement
from bedrockish_journal.model.access_set import AccessSet, Range, conflict
from bedrockish_journal.model.clock import CLOCK_LIMIT
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import Vector, covers, merge

EVERYWHERE: list[Place] = [("", 0)]  # a place that every base covers
# If a base lacks at most this many commits, a conflict test with ranges compares with each of them; if the base lacks
# more, the test looks up the keys.
FEW = 32
FEWER = 2  # the same bound for a test without ranges: a lookup of the keys costs as much as two comparisons
LATEST = 128  # how many of the newest commits of each timeline are found by their ticks
KEYS_AT_ONCE = 8_000  # keys that are packed in one step, about 10 ms of work
MEMBER_CHANGES_MAX = 100
NEVER = 1 << 62  # greater than any version of the membership


class _Tail:
    """The newest commits of one timeline, without a gap; the first of them has the tick ``first``."""

    __slots__ = ("commits", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.commits: deque[RecentCommit] = deque()

    def add(self, known: RecentCommit) -> None:
        """Add the next commit."""
        self.commits.append(known)
        # The base of a frequent reader or writer lacks a few commits; a base that lacks more is tested by key.
        if len(self.commits) > LATEST:
            self._drop()

    def drop_packed(self, known: Container[Txid]) -> None:
        """Drop the commits at the start of the tail that are packed, so that each commit is kept once."""
        while self.commits and self.commits[0].txid not in known:
            self._drop()

    def drop_up_to(self, txid: Txid) -> None:
        """Drop a commit, and all before it, if the tail has the commit.

        The commit's packed form has a further place, which the object in the tail lacks.
        """
        if any(known.txid == txid for known in self.commits):
            while self.commits[0].txid != txid:
                self._drop()
            self._drop()

    def _drop(self) -> None:
        self.commits.popleft()
        self.first += 1


class CommitWindow:
    """The commits of the conflict window.

    Args:
        recovered: the last tick of each timeline that was applied before the start.
    """

    def __init__(self, recovered: Vector | None = None) -> None:
        self.member_changes: dict[Txid, int] = {}  # the last changes of the members, see ``note_member_change``
        self.known: dict[
            Txid, RecentCommit
        ] = {}  # the commits that are not settled, and up to a few hundred settled ones
        # By timeline, the greatest tick that is the first place of a dropped commit; see also ``_retired_floor``.
        self.floor: dict[str, int] = {}
        self._index: AccessIndex[Txid] = AccessIndex()
        self._by_clock: list[Txid] = []  # a heap of the commits that are neither in ``_unpacked_settled`` nor packed
        self._unpacked_settled: list[Txid] = []  # the settled commits that are not packed yet
        self._oldest_settled = CLOCK_LIMIT  # at most the smallest clock in ``_unpacked_settled``
        self._segments: deque[PackedSegment] = deque()
        self._packed: dict[str, int] = {}  # the vector that a base has to cover to have seen all packed commits
        self._packed_newest = -1  # the greatest clock in any segment
        self._retired: dict[str, Retirement] = {}
        self._retired_floor: dict[str, int] = {}
        self._retiring: set[Txid] = set()  # the changes that retired timelines since the start
        self._recovered = recovered or {}
        self._tails = {leader: _Tail(tick + 1) for leader, tick in self._recovered.items()}

    def retire(self, leaders: AbstractSet[str], txid: Txid | None = None) -> None:
        """Count the commits of retired timelines as seen by each base that has the membership change that retired them.

        Such a base does not name the timelines any more. A base without the change still names them.

        Args:
            leaders: the leaders of the timelines.
            txid: the membership change; None: a change from before the start, which all bases have.
        """
        found = self.known.get(txid) if txid is not None else None
        # A change that is not in the window was dropped from it: a base without the change is below the floor anyway.
        change = Retirement(EVERYWHERE if found is None else found.places)
        if found is not None:
            self._retiring.add(found.txid)
        for known in self.known.values():
            if any(leader in leaders for leader, _ in known.places):
                known.retired_by = change
        for earlier in self._retired.values():
            if any(leader in leaders for leader, _ in earlier.places):
                earlier.later = change
        self._retired.update(dict.fromkeys(leaders, change))
        for segment in self._segments:
            segment.retire(leaders, change)
        self._sum_up()
        for leader in leaders:
            self._retired_floor[leader] = self.floor.pop(leader, 0)
            self._tails.pop(leader, None)

    def has_dropped(self, base: Vector) -> bool:
        """Return whether the window has dropped a commit that a base has not seen; the base is given in full."""
        floors = (*self.floor.items(), *self._retired_floor.items())
        return any(base.get(leader, 0) < tick for leader, tick in floors)

    def note_member_change(self, txid: Txid, config: int) -> None:
        """Record a change of the members, which is not always a conflict (``revalidation``).

        A transaction without the change in its base, and without any other conflict, reads and writes the same after
        the change. So it may move up to a base with the change, if its user's rights are checked by the membership of
        version ``config`` or a later one. ``config`` is 0 if the change leaves the users as they are, and ``NEVER`` if
        it raises the release level.
        """
        self.member_changes[txid] = config
        if len(self.member_changes) > MEMBER_CHANGES_MAX:
            del self.member_changes[next(iter(self.member_changes))]

    def _sum_up(self) -> None:
        """Recompute the totals of all segments after a change of one; most conflict tests need only the totals."""
        self._packed = merge(*(segment.covered for segment in self._segments))
        self._packed_newest = max((segment.newest for segment in self._segments), default=-1)

    def pass_over(self, place: Place, txid: Txid, *, is_repeat: bool = False) -> bool:
        """Leave out a commit that would be dropped at once, but raise the floor to it.

        Return False, without any effect, if the commit is here under another place: then ``add`` adds the new place.

        A repeat whose first place was dropped is left out as well: added with its second place alone, it would seem
        unseen by each base that has only the first. Such a repeat raises no floor: its first place has.
        """
        if txid in self.known or self._packed_in(txid) is not None:
            return False
        if not is_repeat:
            self._drop(place)
        self._restart_tail(place)
        return True

    def add(self, place: Place, transaction: Transaction) -> None:
        """Record a commit, or a further place of a commit that is here."""
        txid = transaction.txid
        known = self.known.get(txid)
        if known is None:
            segment = self._packed_in(txid) if txid.clock <= self._packed_newest else None
            if segment is not None:
                self._add_packed_place(segment, txid, place)
                return
            known = self.known[txid] = RecentCommit(transaction)
            self._index.add(txid, known.access_set)
            heapq.heappush(self._by_clock, txid)
        known.places.append(place)
        if place[0] in self._retired:  # an entry read after a restart; no base names its timeline
            known.retired_by = self._retired[place[0]]
        else:
            self._extend_tail(place, known)

    def _extend_tail(self, place: Place, known: RecentCommit) -> None:
        leader, tick = place
        if tick <= self._recovered.get(leader, 0):
            return  # a restart reads only some of the older entries: a tail of them would have gaps
        tail = self._tails.setdefault(leader, _Tail(tick))
        # The length of a tail tells how many commits a base lacks, so a tail must have no gap and no older tick.
        assert tick == tail.first + len(tail.commits), f"{leader}{tick} is not the next of its tail"
        tail.add(known)

    def _restart_tail(self, place: Place) -> None:
        """Replace a timeline's tail by an empty one after a commit that is packed or left out: gaps are not allowed."""
        leader, tick = place
        if leader not in self._retired and tick > self._recovered.get(leader, 0):
            self._tails[leader] = _Tail(tick + 1)

    def _packed_in(self, txid: Txid) -> PackedSegment | None:
        if txid.clock > self._packed_newest:
            return None
        return next((segment for segment in self._segments if segment.owner_of(txid) is not None), None)

    def _add_packed_place(self, segment: PackedSegment, txid: Txid, place: Place) -> None:
        segment.add_place(txid, place)
        if place[0] in self._retired:
            segment.retire({place[0]}, self._retired[place[0]])
        for tail in self._tails.values():
            tail.drop_up_to(txid)  # a packed commit stays in its tail while an earlier one is not packed
        self._restart_tail(place)

    def newer_than(self, base: Vector, most: int = NEVER) -> list[RecentCommit] | None:
        """Return the commits that a base has not seen; None if a search by key is quicker, or if they exceed ``most``.

        The base of a frequent reader or writer is nearly up to date, so its list is short or empty.
        """
        found: list[RecentCommit] = []
        for leader, tail in self._tails.items():
            seen = base.get(leader, 0) + 1 - tail.first
            # The tail begins after the first commit that this base lacks, so it does not have all newer commits.
            if seen < 0:
                return None
            if seen < len(tail.commits):
                most -= len(tail.commits) - seen
                if most < 0:
                    return None
                found += [known for known in islice(tail.commits, seen, None) if not known.is_in(base)]
        # A base that is older than a retirement may lack commits of a retired timeline, which has no tail here.
        if self._retiring and any(known.txid in self._retiring for known in found):
            return None
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

    def set_floor(self, applied: Vector, ticks: Iterable[Place]) -> None:
        """Set the floor after a restart, which has added only those commits up to ``applied`` that are at ``ticks``."""
        found: dict[str, set[int]] = {}
        for leader, tick in ticks:
            found.setdefault(leader, set()).add(tick)
        for leader, last in applied.items():
            known = found.get(leader, set())
            if leader not in self._retired:
                # The floor is the last tick that is unknown here: a base below it may lack unknown commits.
                self.floor[leader] = next((tick for tick in range(last, 0, -1) if tick not in known), 0)

    def conflicts(self, access_set: AccessSet, base: Vector, own: Txid | None = None) -> Iterator[Conflict]:
        """Yield the commits that ``base`` has not seen under any of their places and that conflict, without ``own``."""
        # Tables that serve as queues are scanned over ranges full of deleted keys, and looking up each key would be
        # slow. If the base lacks only a few commits, compare with each of them instead.
        newer = self.newer_than(base, FEW if access_set.has_ranges or self._index.has_ranges() else FEWER)
        if newer is not None:
            for known in dict.fromkeys(newer):  # without duplicates: an adopted commit may be in two timelines
                key = None if known.txid == own else conflict(access_set, known.access_set)
                if key is not None:
                    yield Conflict(known.txid, key)
            return
        for txid, key in self._index.conflicts(access_set, own):
            if not self.known[txid].is_in(base):
                yield Conflict(txid, key)
        if covers(base, self._packed):
            return  # nearly always: the base has seen all packed commits
        # The newest segments first: a base that is a little old lacks commits of these alone.
        for segment in reversed(self._segments):
            if not segment.is_in(base):
                yield from segment.conflicts(access_set, base, own)

    def readers(self, ranges: Sequence[Range], base: Vector) -> Iterator[Conflict]:
        """Yield the commits that ``base`` has not seen and that have read in these ranges.

        The commits are compared one by one, because this is seldom called.
        """
        for txid, known in self.known.items():
            found = None if known.is_in(base) else known.access_set.read_in(ranges)
            if found is not None:
                yield Conflict(txid, found)
        for segment in self._segments:
            if not segment.is_in(base):
                yield from segment.readers(ranges, base)

    def any_conflicts(self, access_set: AccessSet, above: int) -> Iterator[Txid]:
        """Yield the conflicting commits with a clock above ``above``, seen or not; ``above`` is safe time or later."""
        for txid, _ in self._index.conflicts(access_set):
            if txid.clock > above:
                yield txid

    def writers_of(self, key: bytes) -> list[Txid]:
        """Return the commits, of those that are not packed yet, that write a key as a single key."""
        return self._index.writers_of(key)

    def pack(self, settled: int, needed: Container[Txid]) -> None:
        """Pack the settled commits, except those whose outcome is still ``needed``; many of them in several calls."""
        kept: list[Txid] = []
        while self._by_clock and self._by_clock[0].clock <= settled:
            txid = heapq.heappop(self._by_clock)
            # A needed commit is not applied yet, or ended in this step: its place is still looked up in ``known``.
            if txid in needed:
                kept.append(txid)
            else:
                self._unpacked_settled.append(txid)
                self._oldest_settled = min(self._oldest_settled, txid.clock)
        for txid in kept:
            heapq.heappush(self._by_clock, txid)
        # Packing all commits of a second at once would block the loop. At least an eighth of them keeps up with any
        # load.
        keys, most = 0, len(self._unpacked_settled) - len(self._unpacked_settled) // 8
        while keys < KEYS_AT_ONCE or len(self._unpacked_settled) > most:
            full, more = self._next_segment()
            if not full:
                break
            keys += more
            self._pack_oldest(full)

    def _next_segment(self) -> tuple[list[Txid], int]:
        """Return the oldest settled commits, and the number of their keys, if they fill a segment."""
        keys = 0
        for count, txid in enumerate(islice(self._unpacked_settled, packed_commits.SEGMENT), 1):
            keys += count_keys(self.known[txid].access_set)
            if count == packed_commits.SEGMENT or keys >= packed_commits.SEGMENT_KEYS:
                return self._unpacked_settled[:count], keys
        return [], keys

    def _pack_oldest(self, full: list[Txid]) -> None:
        del self._unpacked_settled[: len(full)]
        segment = PackedSegment([self._remove(txid) for txid in full])
        self._segments.append(segment)
        self._packed = merge(self._packed, segment.covered)
        self._packed_newest = max(self._packed_newest, segment.newest)
        for tail in self._tails.values():
            tail.drop_packed(self.known)

    def _remove(self, txid: Txid) -> RecentCommit:
        self._index.remove(txid)
        return self.known.pop(txid)

    def forget(self, clock: int) -> None:
        """Drop the commits up to a settled clock; a packed commit is dropped with its whole segment."""
        before = len(self._segments)
        while self._segments and self._segments[0].newest <= clock:
            for place in self._segments.popleft().last.items():
                self._drop(place)
        if len(self._segments) < before:
            self._sum_up()
        if self._oldest_settled > clock:
            return
        gone = [txid for txid in self._unpacked_settled if txid.clock <= clock]
        self._unpacked_settled = [txid for txid in self._unpacked_settled if txid.clock > clock]
        self._oldest_settled = min((txid.clock for txid in self._unpacked_settled), default=CLOCK_LIMIT)
        for txid in gone:
            self._drop(self._remove(txid).places[0])

    def _drop(self, place: Place) -> None:
        """Raise the floor to the first place of a dropped commit.

        A base that has the commit only under another place then counts as below the floor, and is compared with the
        journal.
        """
        leader, tick = place
        # Retired timelines have their own floor: a later base does not name them, and would seem to lack their commits.
        floor = self._retired_floor if leader in self._retired else self.floor
        floor[leader] = max(tick, floor.get(leader, 0))

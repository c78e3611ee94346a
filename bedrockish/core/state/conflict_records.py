"""Counts of conflicts by table and index, and the leaders that competed recently.

A conflict at a ``key`` is a true conflict: two transactions use the same row. A conflict in a ``range`` may be one. A
conflict in the ``whole`` table or index means that a statement reads more than it needs: ``bedrockish explain`` names
the statement, and the reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from bedrockish_journal.model.access_set import AccessSet, object_of, object_range

OBJECTS_MAX = 1_000  # the most counters, and the most tables and indexes with remembered rivals
MEMORY_S = 10.0  # how long a rival, or a key with a conflict of two leaders, is remembered
KEYS_MAX = 1_000  # most remembered keys at which transactions of two leaders have conflicted
_PREFIX = "conflict "
_OTHERS = "others"


class ConflictCount(NamedTuple):
    """The number of conflicts of one kind at one table or index."""

    object: str  # ``t:NAME``, ``i:NAME``, or ``others``
    exact: str  # ``key``, ``range`` or ``whole``
    times: int


def exactness(access_set: AccessSet, key: bytes) -> str:
    """Return whether an access set contains a key as a ``key``, in a ``range``, or in the ``whole`` object."""
    if key in access_set.touched:
        return "key"
    low, high = object_range(object_of(key))
    for first, last in (*access_set.read_ranges, *access_set.write_ranges):
        if first <= key < last and first <= low and last >= high:
            return "whole"
    return "range"


def note_conflict(counts: Counter[str], access_set: AccessSet, key: bytes) -> None:
    """Count a conflict of a transaction with this access set."""
    # The name of a counter is one text, because counts are shown as plain names and numbers.
    name = f"{_PREFIX}{exactness(access_set, key)} {object_of(key)}"
    if name not in counts and len(counts) > OBJECTS_MAX:
        name = f"{_PREFIX}{exactness(access_set, key)} {_OTHERS}"
    counts[name] += 1


def conflict_counts(counts: Mapping[str, int]) -> Iterator[ConflictCount]:
    """Yield the conflicts counted, the most frequent first."""
    for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if name.startswith(_PREFIX):
            exact, _, found = name.removeprefix(_PREFIX).partition(" ")
            yield ConflictCount(found, exact, count)


def other_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of a node that do not count conflicts."""
    return {name: count for name, count in counts.items() if not name.startswith(_PREFIX)}


class Contests:
    """The leaders that competed recently.

    For each table or index, and each other leader, this has the seconds of the last conflict with one of our
    transactions. It also has the keys at which transactions of any two leaders have conflicted recently.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, float]] = {}
        self._keys: dict[bytes, float] = {}  # key -> seconds of the last conflict, the oldest first

    def note_key(self, key: bytes, seconds: float) -> None:
        """Record that transactions of two leaders have conflicted at a key."""
        self._keys.pop(key, None)
        self._keys[key] = seconds
        if len(self._keys) > KEYS_MAX:
            del self._keys[next(iter(self._keys))]

    def is_contended(self, access_set: AccessSet, seconds: float) -> bool:
        """Return whether two leaders conflicted recently on a key of an access set; for ranges, on any key."""
        met = self._keys
        while met and seconds - met[next(iter(met))] >= MEMORY_S:
            del met[next(iter(met))]
        if not met or access_set.has_ranges:
            return bool(met)
        return not (met.keys().isdisjoint(access_set.write_points) and met.keys().isdisjoint(access_set.read_points))

    def note_loss(self, name: str, leader: str, seconds: float) -> None:
        """Record that, at a table or index, a transaction of this node has lost to one of another leader."""
        if name not in self._last and len(self._last) >= OBJECTS_MAX:
            # The memory is bounded: a forgotten rival costs one conflict at most.
            self._last.clear()
        self._last.setdefault(name, {})[leader] = seconds

    def rivals(self, names: Iterable[str], seconds: float) -> set[str]:
        """Return the leaders with which our transactions recently conflicted at these tables and indexes."""
        last = (pair for name in names for pair in self._last.get(name, {}).items())
        # A rival that has stopped must not slow us down; a rival that only pauses soon conflicts again.
        return {leader for leader, at in last if seconds - at < MEMORY_S}

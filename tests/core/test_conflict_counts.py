"""The counters of conflicts: the table of each, and whether the loser's reads were exact keys."""

from collections import Counter

from bedrockish.core.state import conflict_records as counted
from bedrockish.core.state.conflict_records import conflict_counts, note_conflict, other_counts
from bedrockish_journal.model.access_set import HIGH, AccessSet, object_range

KEY = b"t:jobs\0\x10seven"


def test_conflicts_are_counted_by_the_kind_of_their_key() -> None:
    counts: Counter[str] = Counter(given_up=3)
    note_conflict(counts, AccessSet(read_points=frozenset({KEY})), KEY)
    note_conflict(counts, AccessSet(write_points=frozenset({KEY})), KEY)
    note_conflict(counts, AccessSet(read_ranges=((b"t:jobs\0\x10", b"t:jobs\0\x10" + HIGH),)), KEY)
    note_conflict(counts, AccessSet(read_ranges=(object_range("t:jobs"),)), KEY)
    note_conflict(counts, AccessSet(read_ranges=((b"t:", b"t;"),)), KEY)
    note_conflict(counts, AccessSet(write_ranges=(object_range("t:jobs"),)), KEY)
    assert [tuple(one) for one in conflict_counts(counts)] == [
        ("t:jobs", "whole", 3),
        ("t:jobs", "key", 2),
        ("t:jobs", "range", 1),
    ]
    assert other_counts(counts) == {"given_up": 3}


def test_conflict_counts_have_a_bounded_number_of_names() -> None:
    counts: Counter[str] = Counter()
    for number in range(counted.OBJECTS_MAX + 500):
        note_conflict(counts, AccessSet(), b"t:%d\0" % number)
    assert len(counts) <= counted.OBJECTS_MAX + 2
    assert sum(one.times for one in conflict_counts(counts)) == counted.OBJECTS_MAX + 500

"""Large transactions: what they may take together, and keys of theirs by the range instead of one by one.

Every voter holds a footprint until its transaction is decided, and for the conflict window after that. That of a bulk
load would be larger than its rows. So where single keys of an object are many, the range from the first to the last
stands for them: other databases call that lock escalation.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import TooLargeError
from bedrockish_journal.model.changes import Change
from bedrockish_journal.model.footprint import HIGH, Footprint, Range

ROWS_MAX = 100_000  # rows that a statement or a request changes in one table, above which it writes the whole table
POINTS_MAX = 100_000  # single keys of a transaction, above which ...
GROUP_MAX = 10_000  # ... those of an object become a range if they are more than this
BYTES_MAX = 40 << 20  # a transaction travels in one frame, and beside it there is room for others on the link


def tables_in_bulk(changes: Sequence[Change]) -> frozenset[str]:
    """Return the tables of which so many rows change that their keys are not worth being made one by one."""
    if len(changes) <= ROWS_MAX:
        return frozenset()
    counts = Counter(change.table for change in changes)
    return frozenset(table for table, count in counts.items() if count > ROWS_MAX)


def footprint(reads: Set[bytes], read_ranges: Set[Range], writes: Set[bytes], write_ranges: Set[Range]) -> Footprint:
    """Return what a transaction read and wrote."""
    if len(reads) > POINTS_MAX:
        reads, read_ranges = _ranged(reads, read_ranges)
    if len(writes) > POINTS_MAX:
        writes, write_ranges = _ranged(writes, write_ranges)
    return Footprint(frozenset(reads), tuple(sorted(read_ranges)), frozenset(writes), tuple(sorted(write_ranges)))


def _ranged(points: Set[bytes], ranges: Iterable[Range]) -> tuple[set[bytes], set[Range]]:
    groups: dict[bytes, list[bytes]] = {}
    for point in points:
        groups.setdefault(point.partition(b"\0")[0], []).append(point)
    single: set[bytes] = set()
    found = set(ranges)
    for group in groups.values():
        if len(group) > GROUP_MAX:
            found.add((min(group), max(group) + HIGH))
        else:
            single.update(group)
    return single, found


def check_size(prepared: Prepared) -> None:
    """Check that a transaction, or what a read has to ask about, can travel.

    Raises:
        TooLargeError: it cannot.
    """
    keys = prepared.footprint
    size = 0 if prepared.readonly else len(prepared.changes) + len(prepared.result)
    size += sum(len(result) for _, result in prepared.joined)
    size += sum(map(len, keys.read_points)) + sum(map(len, keys.write_points))
    for low, high in (*keys.read_ranges, *keys.write_ranges):
        size += len(low) + len(high)
    if size > BYTES_MAX:
        raise TooLargeError(
            f"the transaction takes {size} bytes with its rows, its results and their keys, and at most {BYTES_MAX} "
            "can be sent to the other nodes; split it into several",
            limit=BYTES_MAX,
        )

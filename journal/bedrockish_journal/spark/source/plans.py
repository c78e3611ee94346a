"""The ranges of ticks that a reader reads: all of a journal, or the ticks between two vectors, narrowed by the
conditions of a query. Pure, except for the queries on a journal, which may be remote.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bedrockish_journal.model.errors import JournalError, JournalPrunedError
from bedrockish_journal.storage.file_claims import Ask
from bedrockish_journal.storage.row import COLUMNS
from bedrockish_journal.storage.store import LEADERS

Span = tuple[str, int, int]  # a timeline and its ticks low..high, both included
Between = tuple[int, int]  # the least and the greatest value, both included

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
ALL: Between = (LOWEST, HIGHEST)
NARROW_MOST = 200_000  # with more entries between two clocks, ranges are not shortened to these entries
ORDER_PAGE = 10_000
HELD = """SELECT (SELECT min(tick) FROM bedrockish_journal WHERE leader = ?1),
  (SELECT max(tick) FROM bedrockish_journal WHERE leader = ?1)"""
PRIMARY_KEY = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk"
_BOUNDS = f"""{LEADERS}
  SELECT leader, (SELECT min(tick) FROM bedrockish_journal AS j WHERE j.leader = leaders.leader),
    (SELECT max(tick) FROM bedrockish_journal AS j WHERE j.leader = leaders.leader)
  FROM leaders WHERE leader IS NOT NULL ORDER BY leader"""
_SEQ = "SELECT min(seq) FROM bedrockish_journal WHERE leader = ? AND tick = ?"
_ORDER = "SELECT seq, leader, tick FROM bedrockish_journal WHERE seq >= ? ORDER BY seq LIMIT ?"
# Two subqueries, because with one query for both SQLite would scan the whole table.
_ENTRIES = "SELECT (SELECT max(seq) FROM bedrockish_journal) - (SELECT min(seq) FROM bedrockish_journal) + 1"
# The constants repeat = 0 and repeat = 1 let SQLite use the two partial indexes on the clock.
_WITHIN = "clock BETWEEN ?1 AND ?2 AND repeat"
_MANY = f"""SELECT (SELECT count(*) FROM (SELECT 1 FROM bedrockish_journal WHERE {_WITHIN} = 0 LIMIT ?3))
  + (SELECT count(*) FROM (SELECT 1 FROM bedrockish_journal WHERE {_WITHIN} = 1 LIMIT ?3))"""
_NARROW = f"""SELECT leader, min(tick), max(tick) FROM (
    SELECT leader, tick FROM bedrockish_journal WHERE {_WITHIN} = 0
    UNION ALL SELECT leader, tick FROM bedrockish_journal WHERE {_WITHIN} = 1) GROUP BY leader"""
_CUTS = """SELECT leader, tick FROM (SELECT leader, tick, row_number() OVER (ORDER BY leader, tick) AS place
    FROM bedrockish_journal) WHERE place % ? = 0 ORDER BY leader, tick"""
_SAFE = "coalesce((SELECT value FROM bedrockish_meta WHERE key = 'safe'), 0)"
_UNSAFE = f"""SELECT leader, min(tick) FROM (
    SELECT leader, tick FROM bedrockish_journal WHERE clock > {_SAFE} AND repeat = 0
    UNION ALL SELECT leader, tick FROM bedrockish_journal WHERE clock > {_SAFE} AND repeat = 1) GROUP BY leader"""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The conditions of a query on entries, all of which an entry has to meet."""

    leaders: frozenset[str] | None = None  # the timelines of the entries; None for all
    clocks: Between = ALL  # the least and the greatest clock
    named: frozenset[str] | None = None  # the tables whose ``changes`` are wanted, by their folded names; None for all

    def meet(self, leader: str | None, clock: int | None) -> bool:
        """Return whether a row is within the limits; as in SQL, None does not meet a limit."""
        return (self.leaders is None or leader in self.leaders) and (
            self.clocks == ALL or (clock is not None and self.clocks[0] <= clock <= self.clocks[1])
        )


NO_LIMITS = BatchLimits()


@dataclass(frozen=True, slots=True)
class WantedEntries:
    """The wanted entries of a range of ticks, and their wanted columns."""

    clocks: Between = ALL  # the least and the greatest clock
    # The kind of the entries, without second labels, which change nothing; None for all entries.
    kind: str | None = None
    blobs: bool = True  # whether label and body are wanted; without them SQLite does not read their pages
    whole: bool = False  # whether each tick of the range must exist

    @property
    def query(self) -> tuple[str, tuple[object, ...]]:
        """The query for the rows of a range; see ``select``."""
        return self.select(COLUMNS if self.blobs else COLUMNS.replace("label, body", "x'', x''"))

    def select(self, columns: str) -> tuple[str, tuple[object, ...]]:
        """Return the query for columns of a range, and its parameters after the timeline, the first and last tick."""
        sql = f"SELECT {columns} FROM bedrockish_journal WHERE leader = ? AND tick BETWEEN ? AND ?"
        values: tuple[object, ...] = ()
        if self.clocks != ALL:
            sql, values = f"{sql} AND clock BETWEEN ? AND ?", self.clocks
        if self.kind is not None:
            sql, values = f"{sql} AND kind = ? AND repeat = 0", (*values, self.kind)
        return f"{sql} ORDER BY tick", values


def bounds(ask: Ask) -> dict[str, Between]:
    """Return the first and the last tick of each timeline in the journal.

    Raises:
        JournalError: the journal has a tick that is not a number.
    """
    found: dict[str, Between] = {}
    for leader, low, high in ask(_BOUNDS, ()):
        if type(low) is not int or type(high) is not int:
            raise JournalError(f"timeline {leader} has a tick that is not a number; run `bedrockish journal verify`")
        found[leader] = (low, high)
    return found


def plan(ask: Ask, limits: BatchLimits, rows: int | None) -> list[tuple[Span, ...]]:
    """Return the ranges that contain the wanted entries of the present journal, in groups of ``rows`` entries.

    This takes a few seeks for each timeline, however long the journal is. The ranges may also contain other entries.

    Args:
        rows: the greatest number of entries in a group; None for a single group.

    Raises:
        JournalError: the journal has a tick that is not a number.
    """
    held = bounds(ask)
    spans = [(leader, *found) for leader, found in held.items() if limits.leaders is None or leader in limits.leaders]
    spans = _narrow(ask, spans, limits.clocks)
    if not spans:
        return []
    if rows is None:
        return [tuple(spans)]
    ((entries,),) = ask(_ENTRIES, ())
    if sum(high - low + 1 for low, high in held.values()) > 2 * entries:
        return _cut_by_count(ask, spans, rows)
    return cut(spans, rows)


def _narrow(ask: Ask, spans: list[Span], clocks: Between) -> list[Span]:
    """Return ranges shortened to the entries between two clocks, if these are few.

    The entries have to be searched, because a timeline is not in the order of clocks.
    """
    if clocks == ALL or not spans:
        return spans
    ((many,),) = ask(_MANY, (*clocks, NARROW_MOST))
    if many >= NARROW_MOST:
        return spans
    found = {leader: (low, high) for leader, low, high in ask(_NARROW, clocks)}
    held = ((leader, low, high, *found[leader]) for leader, low, high in spans if leader in found)
    return [(leader, max(low, first), min(high, last)) for leader, low, high, first, last in held]


def _cut_by_count(ask: Ask, spans: Sequence[Span], rows: int) -> list[tuple[Span, ...]]:
    """Return ranges cut into groups by counting entries in the index, because altered ticks may be any numbers."""
    cuts = list(ask(_CUTS, (rows,)))
    groups: list[tuple[Span, ...]] = []
    group: list[Span] = []
    for leader, low, high in spans:
        for name, tick in cuts:
            if name == leader and low <= tick <= high:
                groups.append((*group, (leader, low, tick)))
                group, low = [], tick + 1
        if low <= high:
            group.append((leader, low, high))
    return [*groups, tuple(group)] if group else groups


def cut(spans: Sequence[Span], rows: int) -> list[tuple[Span, ...]]:
    """Return ranges of ticks in groups of ``rows`` ticks: a small journal is one task, a large one many."""
    groups: list[tuple[Span, ...]] = []
    group: list[Span] = []
    room = rows
    for leader, low, high in spans:
        while low <= high:
            last = min(high, low + room - 1)
            group.append((leader, low, last))
            room -= last - low + 1
            low = last + 1
            if room == 0:
                groups.append(tuple(group))
                group, room = [], rows
    return [*groups, tuple(group)] if group else groups


def check_held(path: str, span: Span, held: Iterable[Sequence[Any]]) -> None:
    """Check that a journal still has the two ends of a range that was planned.

    Args:
        held: the answer to ``HELD`` for its timeline.

    Raises:
        JournalPrunedError: the beginning of the range was removed.
        JournalError: the end of the range is missing.
    """
    leader, low, high = span
    for first, last in held:
        if first is not None and first > low:
            raise JournalPrunedError(path, leader, low, first)
        if last is None or last < high:
            ends = "has no entry" if last is None else f"ends at {leader}{last}"
            raise JournalError(
                f"{path}: its timeline {leader} {ends}, and had {leader}{high} when the read was planned; an older "
                "copy has replaced the file, or it was cut: read the node's own file, or read again"
            )


def spans_between(start: Mapping[str, int], end: Mapping[str, int]) -> list[Span]:
    """Return the ranges of ticks that the vector ``end`` covers and ``start`` does not."""
    spans = [(leader, start.get(leader, 0) + 1, tick) for leader, tick in sorted(end.items())]
    return [span for span in spans if span[1] <= span[2]]


def safe_prefix(ask: Ask) -> dict[str, int]:
    """Return the last tick of each timeline before the first entry with a clock above safe time.

    An entry follows only entries with smaller clocks, so the vector is causally closed. Only the entries above safe
    time are read, which are few.
    """
    found = {leader: high for leader, (_, high) in bounds(ask).items()}
    found |= {leader: first - 1 for leader, first in ask(_UNSAFE, ())}
    return {leader: tick for leader, tick in found.items() if tick > 0}


def advance(
    ask: Ask, path: str, start: Mapping[str, int], upto: Mapping[str, int] | None = None, most: int | None = None
) -> dict[str, int]:
    """Return the vector after the next ``most`` entries, in the order in which the node applied them.

    Args:
        start: the vector to begin after.
        upto: the vector to end at; None for the end of the journal.
        most: the number of entries; None for all.

    Raises:
        JournalPrunedError: the journal no longer has the next entries.
    """
    wanted: dict[str, int] = {}
    for leader, (first, last) in bounds(ask).items():
        done = start.get(leader, 0)
        last = last if upto is None else min(last, upto.get(leader, 0))
        if last > done:
            if first > done + 1:
                raise JournalPrunedError(path, leader, done + 1, first)
            wanted[leader] = last
    if most is None or not wanted:
        return {**start, **wanted}
    begins = [row[0] for leader in wanted for row in ask(_SEQ, (leader, start.get(leader, 0) + 1))]
    seq = min((one for one in begins if one is not None), default=0)
    reached = dict(start)
    while page := list(ask(_ORDER, (seq, ORDER_PAGE))):
        for _, leader, tick in page:
            if start.get(leader, 0) < tick <= wanted.get(leader, 0):
                reached[leader] = max(tick, reached.get(leader, 0))
                most -= 1
                if most == 0:
                    return reached
        seq = page[-1][0] + 1
    return reached

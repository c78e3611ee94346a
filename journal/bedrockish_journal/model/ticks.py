"""The ticks of a timeline that a node has, as ranges, while it fetches entries from several peers at once.

A timeline is dense from tick 1, so only the range that begins there can be applied; entries beyond a gap wait.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from bedrockish_journal.model.vector import Vector

Span = tuple[int, int]  # first and last tick, both included


class Ticks:
    """A set of ticks of one timeline, kept as ordered spans that neither overlap nor touch."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for first, last in spans:
            self.add(first, last)

    def add(self, first: int, last: int | None = None) -> None:
        """Add the ticks from ``first`` to ``last``, both included; one tick if ``last`` is left out."""
        last = first if last is None else last
        assert 1 <= first <= last, f"ticks begin at 1 and run upwards, not from {first} to {last}"
        spans = self._spans
        low = bisect_right(spans, first, key=_first)
        if low and spans[low - 1][1] >= first - 1:
            low -= 1
        high = low
        while high < len(spans) and spans[high][0] <= last + 1:
            first, last = min(first, spans[high][0]), max(last, spans[high][1])
            high += 1
        spans[low:high] = [(first, last)]

    def __contains__(self, tick: object) -> bool:
        assert isinstance(tick, int)
        place = bisect_right(self._spans, tick, key=_first)
        return place > 0 and self._spans[place - 1][1] >= tick

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ticks) and self._spans == other._spans

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return "Ticks(" + ", ".join(f"{first}-{last}" for first, last in self._spans) + ")"

    @property
    def last(self) -> int:
        """The highest tick, even above a gap; 0 without any tick."""
        return self._spans[-1][1] if self._spans else 0

    def gaps(self, last: int) -> list[Span]:
        """Return the spans that are missing from tick 1 to ``last``, both included."""
        assert last >= 0, f"a timeline cannot end at tick {last}"
        missing: list[Span] = []
        wanted = 1
        for start, end in self._spans:
            if start > last:
                break
            if start > wanted:
                missing.append((wanted, start - 1))
            wanted = end + 1
        if wanted <= last:
            missing.append((wanted, last))
        return missing


def _first(span: Span) -> int:
    return span[0]


def gaps(held: Mapping[str, Ticks], wanted: Vector) -> dict[str, list[Span]]:
    """Return the spans of each timeline that must be fetched to have every entry that ``wanted`` covers."""
    found = {leader: held.get(leader, Ticks()).gaps(tick) for leader, tick in sorted(wanted.items())}
    return {leader: spans for leader, spans in found.items() if spans}

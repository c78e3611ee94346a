"""All causally valid orders of a few entries, and the gist's form of vectors."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.order import PlacedEntry, may_apply, replay_order
from bedrockish_journal.model.vector import Vector

P = TypeVar("P", bound=PlacedEntry)


def next_applicable(entries: Iterable[P], applied: Vector) -> list[P]:
    """Return those of ``entries`` that may be applied next, in the order given."""
    return [entry for entry in entries if may_apply(entry, applied)]


def all_orders(entries: Iterable[P]) -> Iterator[list[P]]:
    """Yield every causally valid order of a few entries.

    Their number grows like a factorial.

    Raises:
        ReplayBlockedError: some of them can never be applied, in any order; nothing has been yielded.
    """
    pool = list(replay_order(entries, lambda: 0.0))
    yield from _orders(pool, {})


def _orders(pool: list[P], applied: dict[str, int]) -> Iterator[list[P]]:
    if not pool:
        yield []
    for entry in next_applicable(pool, applied):
        leader, tick = entry.place
        rest = [other for other in pool if other is not entry]
        for order in _orders(rest, {**applied, leader: tick}):
            yield [entry, *order]


def parse_vector(text: str, nodes: Sequence[str]) -> dict[str, int]:
    """Read the gist's form; a ``*`` leaves the component out, a 0 is kept.

    Raises:
        EntryMalformedError: the text is not a bracketed list of as many components as there are nodes.
    """
    parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    if not (text.strip().startswith("[") and text.strip().endswith("]")) or len(parts) != len(nodes):
        raise EntryMalformedError(f"{text!r} is not a vector of the nodes {', '.join(nodes)}")
    found: dict[str, int] = {}
    for node, part in zip(nodes, parts, strict=True):
        if part == "*":
            continue
        if not part.isdecimal():
            raise EntryMalformedError(f"{part!r} in {text!r} is neither a tick nor '*'")
        found[node] = int(part)
    return found

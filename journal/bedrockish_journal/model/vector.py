"""Vectors: for each leader, the last tick seen.

A vector is a plain mapping from node to tick. A missing component is 0, and zeros are never stored, so equal vectors
are equal mappings. The bracket form of the gist, ``[4, *, 0, *, 0]``, can be printed only with the list of the nodes. A
``*`` in a partial vector is a component that is unknown, which differs from 0.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter

from bedrockish_journal.model.errors import EntryMalformedError

Vector = Mapping[str, int]

EMPTY: Vector = {}
_tick = itemgetter(1)  # the tick of a component


def covers(vector: Vector, other: Vector) -> bool:
    """Return whether ``vector`` has seen everything that ``other`` has seen."""
    for node, tick in other.items():  # noqa: SIM110  all() of a generator takes three times as long
        if vector.get(node, 0) < tick:
            return False
    return True


def merge(*vectors: Vector) -> dict[str, int]:
    """Return the smallest vector that covers all the given ones."""
    merged: dict[str, int] = {}
    for vector in vectors:
        for node, tick in vector.items():
            if tick > merged.get(node, 0):
                merged[node] = tick
    return merged


def canonical(vector: Vector) -> dict[str, int]:
    """Return the vector without zeros and in the order of its node names, as it is encoded and hashed."""
    return dict(sorted(filter(_tick, vector.items())))


def check(value: object, *, zeros: bool = False) -> dict[str, int]:
    """Return ``value`` if it is a vector.

    Args:
        value: decoded data of a peer or a file.
        zeros: whether a component may be 0, as in the partial vector of an entry's approvals.

    Raises:
        EntryMalformedError: ``value`` is not a map from node names to ticks.
    """
    if not isinstance(value, dict):
        raise EntryMalformedError(f"a vector should be a map, not {type(value).__name__}")
    for node, tick in value.items():
        if not isinstance(node, str) or type(tick) is not int or tick < (0 if zeros else 1):
            raise EntryMalformedError(f"a vector cannot have the component {node!r}: {tick!r}")
    return value


def format_vector(vector: Vector, nodes: Sequence[str]) -> str:
    """Return a vector in the gist's form, ``[4, *, 0, *, 0]``, with a ``*`` for each absent component."""
    return "[" + ", ".join(str(vector[node]) if node in vector else "*" for node in nodes) + "]"

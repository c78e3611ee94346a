"""Closed, cut and safe, as a function of the voters' reports alone (section 6 of the protocol)."""

from collections.abc import Iterable
from typing import NamedTuple


class Times(NamedTuple):
    """The three clocks of one node."""

    closed: int  # the node approves no transaction at or below this clock
    # A majority has closed time up to this clock, and everything that these voters had applied then is applied at the
    # node. The cut is durable before it is announced.
    cut: int
    # A majority has its cut at this clock or later, and everything that these voters had applied then is applied at the
    # node.
    safe: int


def times(
    own: Times,  # the present times of the node, which never go back
    # For each other voter, closed and cut of its last report whose applied vector is covered here.
    reports: Iterable[tuple[int, int]],
    majority: int,  # how many voters are a majority; this node may be one of them
    closable: int,  # the clock up to which this node may close time now
    lowest: int | None,  # the lowest clock of a transaction that may still be applied here, or None
    *,
    counts: bool,  # whether this node is a voter whose own times count
    moves_cut: bool = True,  # whether to move the cut, which costs a sync
) -> Times:
    """Return the times of a node after it has closed time as far as it can."""
    others = list(reports)
    below = closable if lowest is None else min(closable, lowest - 1)
    closed = max(own.closed, below)  # T1: transactions that are pending here, or decided and not applied, stay open
    cut = own.cut
    if moves_cut:
        # T2: neither a majority nor this node approves a transaction at or below this clock any more.
        most = min(reached([others_closed for others_closed, _ in others], closed, majority, counts=counts), closed)
        # The cut stays below the clocks of open transactions: our vote must not let one of them commit below a cut on
        # which another node relies.
        cut = max(cut, most if lowest is None else min(most, lowest - 1))
    # T4: a majority would answer NEVER to any recovery of a transaction that is not applied there.
    safe = max(own.safe, reached([others_cut for _, others_cut in others], cut, majority, counts=counts))
    return Times(closed, cut, safe)


def reached(others: list[int], own: int, majority: int, *, counts: bool) -> int:
    """Return the largest clock that a majority has reached; 0 if fewer than a majority have reported.

    Args:
        others: the clocks of the other voters.
        majority, counts: as for ``times``.
    """
    clocks = sorted([*others, own] if counts else others, reverse=True)
    return clocks[majority - 1] if len(clocks) >= majority else 0

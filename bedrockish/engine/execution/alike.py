"""Successive statements of a request with the same text, which run at once as a batch."""

from collections.abc import Sequence
from typing import NamedTuple

from bedrockish.access_sets.readset import ReadPlan
from bedrockish.api.requests import Statement
from bedrockish.engine.statements.classify import Piece


class Recipe(NamedTuple):
    """A statement that writes rows and calls no function, and the plan of its reads, which do not depend on rows."""

    piece: Piece
    plan: ReadPlan


ALIKE_MIN, ALIKE_MAX = 4, 250  # statements of one text that run at once: more of them would hold up other clients


def count_alike(statements: Sequence[Statement], first: int) -> int:
    """Return how many statements from a place on have the same text, at most ``ALIKE_MAX``."""
    sql, end = statements[first].sql, min(len(statements), first + ALIKE_MAX)
    for place in range(first + 1, end):
        if statements[place].sql != sql:
            return place - first
    return end - first

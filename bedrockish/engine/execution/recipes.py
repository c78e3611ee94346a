"""Recipes of known statements: for successive ones with one text, and for one that runs again in a transaction."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import apsw

from bedrockish.access_sets.call_costs import BRIEF, LOOPING
from bedrockish.access_sets.readset import ReadPlan
from bedrockish.api.requests import Statement
from bedrockish.engine.derived.commands import with_values
from bedrockish.engine.execution.snapshot import fetch
from bedrockish.engine.sqlite.bind import Binder
from bedrockish.engine.sqlite.limits import MANY_PARAMETERS, Limits
from bedrockish.engine.statements.classify import READ, WRITE, Piece
from bedrockish.errors import BedrockishError


class Recipe(NamedTuple):
    """A statement that calls no function, and the plan of its reads, which do not depend on rows."""

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


def recipe_alike(piece: Piece, plan_of: Callable[[Piece], ReadPlan]) -> Recipe | None:
    """Return the recipe to run a statement in a batch of the same text; None unless it is a plain write."""
    if piece.kind != WRITE or piece.columns or piece.setting or len(piece.names) > MANY_PARAMETERS:
        return None
    if piece.settings:  # settings that are in force for one statement
        return None
    plan = plan_of(piece)
    return None if plan.dependents is not None or plan.lengths.has_calls else Recipe(piece, plan)


def recipe_again(piece: Piece, plan_of: Callable[[Piece], ReadPlan]) -> Recipe | None:
    """Return the recipe to run a statement again in a transaction; None if it must run like any other.

    Its reads follow from its parameters alone, and it calls no function. One that writes ends within a moment, whatever
    the tables hold.
    """
    if piece.kind not in (READ, WRITE) or (piece.kind == WRITE and piece.columns):
        return None
    if piece.setting or piece.settings or piece.is_command or piece.is_dear or not piece.can_cache:
        return None
    if piece.looks_behind or piece.reads_system or piece.checks_keys:
        return None
    plan = plan_of(piece)
    is_short = plan.lengths is BRIEF or (piece.kind == READ and plan.lengths is LOOPING)
    return Recipe(piece, plan) if is_short and plan.dependents is None else None


def read_brief(
    db: apsw.Connection, recipe: Recipe, values: tuple[Any, ...], limits: Limits, room: int
) -> list[tuple[Any, ...]] | None:
    """Return the rows of a brief read; None if it fails, and ``Executor.run_piece`` must find the error."""
    try:
        return fetch(db.execute(recipe.piece.sql, values), limits, 0, room)[0]
    except (apsw.Error, BedrockishError, UnicodeDecodeError):
        return None


def with_params(piece: Piece, binder: Binder) -> tuple[Piece, tuple[Any, ...]]:
    """Return a statement with the values of its parameters."""
    values = binder.take(piece.names)
    if not piece.is_command:
        return piece, values
    return replace(piece, sql=with_values(piece.sql, piece.names, values), names=()), ()

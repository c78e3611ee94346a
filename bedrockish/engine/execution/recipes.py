"""Shorter ways to run statements whose texts have run before: lookups and recipes.

Most requests of a node are lookups: reads by known texts that are fast whatever rows the tables have. A lookup needs no
budget, no number in the memory account and no search for its plan. Its result is the same as that of ``Executor.read``.

A recipe runs successive statements with one text, or a statement again that has run before in the transaction.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import apsw

from bedrockish.access_sets.call_costs import BRIEF, LOOPING, Lengths
from bedrockish.access_sets.readset import ReadPlan
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.large_results import LARGE_BYTES, encode_in_steps
from bedrockish.api.requests import Result, Statement, encode_read, head_of_read
from bedrockish.engine.derived.commands import check_command, with_values
from bedrockish.engine.execution.snapshot import fetch
from bedrockish.engine.sqlite.bind import Binder, bind_one
from bedrockish.engine.sqlite.limits import MANY_PARAMETERS, Limits
from bedrockish.engine.statements.compiled import READ, WRITE, Compiled
from bedrockish.errors import BedrockishError


class Recipe(NamedTuple):
    """A statement that calls no function, and the plan of its reads, which do not depend on rows."""

    piece: Compiled
    plan: ReadPlan
    # Whether the preupdate hook shows all rows that the statement changes: then no savepoint is needed to find them.
    is_shown: bool = False

    @property
    def is_brief(self) -> bool:
        """Whether the statement takes some microseconds, whatever rows the tables have."""
        return self.plan.lengths.is_brief


ALIKE_MIN, ALIKE_MAX = 4, 250  # statements of one text that run at once: more of them would delay other clients


def find_alike(
    statements: Sequence[Statement], first: int, recipe_of: Callable[[str], Recipe | None]
) -> tuple[Recipe | None, int]:
    """Return the recipe of the statements that have the same text from index ``first`` on, and their number.

    The recipe is None if they are too few, or must run one by one. ``recipe_of`` returns the recipe of a text.
    """
    sql, end = statements[first].sql, min(len(statements), first + ALIKE_MAX)
    if first + 1 == len(statements) or statements[first + 1].sql != sql:
        return None, 1
    recipe = recipe_of(sql)
    if recipe is None:
        return None, 1
    count = next((place for place in range(first + 1, end) if statements[place].sql != sql), end) - first
    return (recipe, count) if count >= ALIKE_MIN else (None, count)


def recipe_alike(piece: Compiled, plan_of: Callable[[Compiled], ReadPlan]) -> Recipe | None:
    """Return the recipe to run a statement in a batch of the same text; None unless it is a plain write."""
    if piece.kind != WRITE or piece.columns or piece.setting or len(piece.names) > MANY_PARAMETERS:
        return None
    if piece.settings:  # the settings are switched around each single statement
        return None
    plan = plan_of(piece)
    return None if plan.dependents is not None or plan.lengths.has_calls else Recipe(piece, plan)


def recipe_again(piece: Compiled, plan_of: Callable[[Compiled], ReadPlan], tables: Tables) -> Recipe | None:
    """Return the recipe for further runs of a statement in a transaction; None if it must run like any other.

    A statement with a recipe calls no function, and its reads follow from its parameters alone; if it writes, it is
    quick whatever rows the tables have.
    """
    if piece.kind not in (READ, WRITE):
        return None
    if piece.setting or piece.settings or piece.is_command or piece.is_uninterruptible or not piece.can_cache:
        return None
    if piece.reads_without_keys or piece.reads_system or piece.checks_keys:
        return None
    plan = plan_of(piece)
    is_short = plan.lengths is BRIEF or (piece.kind == READ and plan.lengths is LOOPING)
    if not is_short or plan.dependents is not None:
        return None
    return Recipe(
        piece,
        plan,
        is_shown=all(table in tables.by_name and not tables.by_name[table].virtual for table in piece.writes),
    )


def read_brief(
    db: apsw.Connection, recipe: Recipe, values: tuple[Any, ...], limits: Limits, room: int
) -> list[tuple[Any, ...]] | None:
    """Return the rows of a brief read; None if it fails, so that ``Executor.run_piece`` must find the error."""
    try:
        return fetch(db.execute(recipe.piece.sql, values), limits, 0, room)[0]
    except (apsw.Error, BedrockishError, UnicodeError):
        return None


def with_params(piece: Compiled, binder: Binder) -> tuple[Compiled, tuple[Any, ...]]:
    """Return a statement with the values of its parameters."""
    values = binder.bind_next(piece.names)
    if not piece.is_command:
        return piece, values
    made = with_values(piece.sql, piece.names, values)
    if "rank" in piece.sql.lower():  # a command of FTS5; those of vec1 may have values of megabytes
        check_command(made)
    return replace(piece, sql=made, names=()), ()


class Lookup(NamedTuple):
    """A compiled read by a known text, which is fast whatever the tables hold."""

    piece: Compiled  # the statement, which calls no function and has no settings
    most: int  # the bytes that a value may have when the lookup runs in the node's loop
    head: bytes  # the encoded result up to the rows

    def run(self, db: apsw.Connection, statement: Statement, limits: Limits) -> bytes | None:
        """Return the encoded result of a statement with this text; None if the caller has to run it to find an error.

        Raises:
            apsw.Error, BedrockishError: the statement fails.
        """
        piece = self.piece
        values = bind_one(piece.names, statement.params)
        db.limit(apsw.SQLITE_LIMIT_LENGTH, self.most)
        try:
            cursor = db.execute(piece.sql, values, can_cache=piece.can_cache)
            rows, size = fetch(cursor, limits, 0, limits.result_bytes)
        except UnicodeDecodeError:
            return None
        finally:
            db.limit(apsw.SQLITE_LIMIT_LENGTH, limits.length_bytes)
        if size < LARGE_BYTES:
            return encode_read(self.head, rows)
        return encode_in_steps([Result(piece.columns, rows, -1, None)], size)


class KnownTexts:
    """The compiled texts that some users may run, and the lookups among them."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[Compiled, ...]] = {}
        self._lookups: dict[str, Lookup | None] = {}

    def clear(self) -> None:
        """Forget all texts."""
        self.texts.clear()
        self._lookups.clear()

    def find(self, sql: str, lengths: Callable[[Compiled], Lengths]) -> Lookup | None:
        """Return the lookup for a text; None if the text has not run before or is not a lookup."""
        try:
            return self._lookups[sql]
        except KeyError:
            pieces = self.texts.get(sql)
            if pieces is None:
                return None
            lookup = self._lookups[sql] = _lookup_of(pieces, lengths)
            return lookup


def _lookup_of(pieces: tuple[Compiled, ...], lengths_of: Callable[[Compiled], Lengths]) -> Lookup | None:
    piece = pieces[0]
    if len(pieces) > 1 or piece.kind != READ or not piece.columns or piece.setting or piece.settings:
        return None
    if piece.is_command or piece.is_uninterruptible:
        return None
    lengths = lengths_of(piece)
    if not lengths.is_brief or lengths.has_calls or lengths.has_patterns or lengths.searches is not None:
        return None
    return Lookup(piece, lengths.loop, head_of_read(piece.columns))

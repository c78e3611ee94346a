"""Deliberate faults, each of which ``tools.applicable`` must find."""

from typing import Any

from bedrockish.access_sets import computed_columns, writeset
from bedrockish.engine.storage import row_applier
from tools.soundness.case_search import Patch, faults_of


def computed_by_row() -> list[Patch]:
    """A UNIQUE index on an expression or a VIRTUAL column is keyed by row only."""
    add = writeset._TableKeys._add_index

    def by_row(self: Any, index: Any, identity: Any) -> None:
        add(self, index, identity)
        if index.opaque:
            self._untold = []

    told = computed_columns.told_columns
    rows_only = lambda index, table: 0 if index.opaque else told(index, table)  # noqa: E731
    return [(writeset, "told_columns", rows_only), (writeset._TableKeys, "_add_index", by_row)]


def foreign_by_row() -> list[Patch]:
    """A UNIQUE index with a collation that is not SQLite's own is keyed by row only."""
    return [(writeset._TableKeys, "_untold_ranges", lambda *_: iter(()))]


def no_unique_points() -> list[Patch]:
    """Rows with the same UNIQUE value do not conflict."""
    return [(writeset, "_no_null", lambda *_: False)]


def no_parents() -> list[Patch]:
    """A child does not read its parent."""
    return [(writeset._TableKeys, "reads", lambda *_: ([], []))]


def triggers_again() -> list[Patch]:
    """Triggers and foreign-key actions run where rows are applied, too."""
    return [(row_applier.RowApplier, "_hush", lambda *_: None)]


def partial_as_left() -> list[Patch]:
    """An UPDATE that does not change a UNIQUE value of a partial index does not write it."""
    points = writeset._TableKeys._points

    def without(self: Any, old: Any, new: Any) -> Any:
        uniques = self._uniques
        self._uniques = [(join, places, False) for join, places, _ in uniques]
        try:
            return points(self, old, new)
        finally:
            self._uniques = uniques

    return [(writeset._TableKeys, "_points", without)]


def any_value_taken() -> list[Patch]:
    """Report a value of a UNIQUE index as taken by a span of keys."""
    return [(writeset._TableKeys, "takes", lambda *_: False)]


def rows_as_spans() -> list[Patch]:
    """Rows themselves are taken for spans as well."""
    return [(writeset.WriteKeys, "spans", lambda _self, ranges, _changes: tuple(ranges))]


FAULTS = faults_of(globals())

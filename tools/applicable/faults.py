"""Deliberate faults, each of which ``tools.applicable`` must find."""

from bedrockish.access_sets.writeset import WriteKeys, _TableKeys
from bedrockish.engine.storage.row_applier import RowApplier
from tools.editing import Fault, fault
from tools.soundness.faults import NO_PARENTS, NO_UNIQUE_POINTS

FAULTS: dict[str, Fault] = {
    "computed-by-row": fault(
        "A UNIQUE index on an expression or a VIRTUAL column is keyed by row only.",
        (_TableKeys, "_add_index", "count = told", "count = 0 if index.opaque else told"),
        (
            _TableKeys,
            "_add_index",
            "index.unique:\n            columns",
            "index.unique and count:\n            columns",
        ),
    ),
    "foreign-by-row": fault(
        "A UNIQUE index with a collation that is not SQLite's own is keyed by row only.",
        (_TableKeys, "_untold_ranges", "in self._untold:", "in ():"),
    ),
    "no-unique-points": NO_UNIQUE_POINTS,
    "no-parents": NO_PARENTS,
    "triggers-again": fault(
        "Triggers and foreign-key actions run where rows are applied, too.",
        (RowApplier, "_hush", "if table.active:", "return\n    if table.active:"),
    ),
    "partial-as-left": fault(
        "An UPDATE that does not change a UNIQUE value of a partial index does not write it.",
        (_TableKeys, "_points", "if partial and _no_null", "if False and _no_null"),
        (_TableKeys, "_points", "if before == after and not partial:", "if before == after:"),
    ),
    "any-value-taken": fault(
        "Report a value of a UNIQUE index as taken by a span of keys.",
        (_TableKeys, "takes", "columns = index.columns[: index.declared]", "return False"),
    ),
    "rows-as-spans": fault(
        "Rows themselves are taken for spans as well.",
        (WriteKeys, "spans", "found: list[Range] = []", "return tuple(ranges)"),
    ),
}

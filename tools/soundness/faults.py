"""Deliberate faults of the read-set analysis: each is a plausible mistake that the search must find."""

from bedrockish.access_sets import (
    analysis,
    constraint_probes,
    cursor_lives,
    cursor_ranges,
    dependent_reads,
    key_encoding,
    key_values,
    loop_stops,
    readset,
    register_values,
    writeset,
)
from tools.editing import Fault, fault

_Reader, _Registers, _LoopReader = cursor_ranges._Reader, register_values.Registers, loop_stops.LoopReader
_Job, _Resolution, _TableKeys = dependent_reads._Job, dependent_reads.Resolution, writeset._TableKeys
_WHOLE = "access = Access(found.object)"
_UNASKED = "access = Access('nothing like it' if {!r} in reason else found.object)"
_FIRST_OPEN = (
    "first = {}\n    return [op._replace(p2=first.setdefault(op.p1, op).p2) "
    "if op.name in ('OpenRead', 'ReopenIdx') else op for op in program]"
)
_COUNTED = "Counter(name for reader in readers for name in reader.tables_of_cursors())"
_RESULTS = (
    "results = {at for op in self._program if op.name == 'ResultRow' for at in range(op.p1, op.p1 + op.p2)}\n"
    "        ops = [op for op in self._program if (op.name != 'Column' or op.p3 in results) and"
)

NO_UNIQUE_POINTS = fault(
    "Rows with the same UNIQUE value do not conflict.", (writeset, "_no_null", "return True", "return False")
)
NO_PARENTS = fault(
    "A child does not read its parent.", (_TableKeys, "reads", "if new_row is None or not self._parents:", "if True:")
)
FAULTS: dict[str, Fault] = {
    "no-sub-programs": fault(
        "Reads of triggers are forgotten.",
        (readset, "_explain", "return programs, is_whole", "return programs[:1], is_whole"),
    ),
    "settings-are-forgotten": fault(
        "A statement is explained without the settings of its session.",
        (analysis, "plan_of", "in_force(db, piece.settings)", "in_force(db, frozenset())"),
    ),
    "dynamic-is-nothing": fault(
        "A lookup by a value from another row, where the row cannot be asked for, reads nothing.",
        (cursor_ranges, "_whole", _WHOLE, _UNASKED.format("another row")),
    ),
    "opaque-is-nothing": fault(
        "An index on an expression reads nothing.", (cursor_ranges, "_whole", _WHOLE, _UNASKED.format("expression"))
    ),
    "computed-by-row": fault(
        "The entries of an index on an expression are written by row, and read by value.",
        (_TableKeys, "_add_index", "count = told", "count = 0 if index.opaque else told"),
    ),
    "given-ids-are-nothing": fault(
        "Omit the reads of a trigger that looks up rows by an automatic id.",
        (_Resolution, "_add_images", "(is_given and change.before is not None)", "is_given"),
    ),
    "cursors-stay-where-they-were": fault(
        "A cursor that is opened on one index after another is taken to be on the first.",
        (cursor_lives, "lives_apart", "if not several:\n        return program", _FIRST_OPEN),
    ),
    "max-is-null": fault(
        "Do not follow the choice of max() and min().",
        (_Registers, "_step", "self._copy(op.p2, op.p3)", "self._copy(op.p3, op.p3)"),
    ),
    "partners-need-only-be-there": fault(
        "Ignore the conditions of a join on the looked-up row when its LIMIT is counted.",
        (loop_stops._Row, "told_partners", "tuple(row.filters)", "()"),
    ),
    "temporary-rows-are-its-own": fault(
        "A TEMP table has the rows that the statement puts into it, and no others.",
        (_Reader, "__init__", "self._private, self._temporary)", "self._private, set())"),
    ),
    "records-are-nothing": fault(
        "The rows of a view that are about to be changed have no values.",
        (register_values.PrivateRecords, "_fill", "(maker,), ()", "(), ()"),
        (register_values.PrivateRecords, "_fill", "tuple(made), tuple", "(), tuple"),
    ),
    "ends-are-converted": fault(
        "An end of a range is compared with a column as SQL does it, which may convert it first.",
        (_Job, "_is_end", " and len(closure(value, affinity)) == 1", ""),
    ),
    "partners-are-always-there": fault(
        "Every row of a join counts for its LIMIT, whether the other table has a row for it or not.",
        (_LoopReader, "stop", "body.row.told_partners()", "()"),
    ),
    "every-stop-counts": fault(
        "Any comparison after a seek is taken as the end of its loop, also where rows come by it another way.",
        (_Reader, "_guards", "steps = self._steps.get(seek.p1, [])", "return True"),
    ),
    "count-is-nothing": fault("count(*) reads nothing.", (_Reader, "run", " and op.name not in WHOLE", "")),
    "no-prefix-end": fault(
        "The end of a range leaves out the entries that begin with it.", (readset, "_end", "HIGH if after else", "")
    ),
    "no-affinity": fault(
        "Values are compared as the client gave them.",
        (key_values, "closure", "apply_affinity(form, affinity)", "form"),
    ),
    "no-collation": fault(
        "Text is compared byte by byte whatever the collation.",
        (key_encoding, "encoder", "_ASCENDING[spec.collation]", "_ASCENDING['BINARY']"),
    ),
    "no-descending": fault(
        "A descending column is encoded as an ascending one.",
        (key_encoding, "encoder", "if not spec.descending:", "if True:"),
    ),
    "one-value-a-register": fault(
        "Only one of several possible values of a register counts.",
        (_Registers, "values", "found.items()", "sorted(found.items(), key=repr)[:1]"),
    ),
    "no-old-keys": fault(
        "A changed row writes its new keys, and not its old ones.",
        (_TableKeys, "writes", "None if old_row is None else", "None if old_row is None or new_row is not None else"),
    ),
    "no-index-keys": fault(
        "A changed row writes its place in the table only.",
        (_TableKeys, "__init__", "for index in table.indexes:", "for index in ():"),
    ),
    "no-unique-points": NO_UNIQUE_POINTS,
    "no-parents": NO_PARENTS,
    "all-probes-enforce": fault(
        "Every lookup in a unique index counts as a constraint check, also under OR IGNORE.",
        (constraint_probes, "_ends_in_unique_halt", "    for op in", "    return True\n    for op in"),
    ),
    "failures-read-less": fault(
        "A failed statement does not count the lookups of its constraint checks.",
        (readset.ReadPlan, "bind_failed", "points + more_points, ranges + more_ranges", "points, ranges"),
    ),
    "dependents-are-nothing": fault(
        "A read that depends on rows reads nothing.", (_Job, "_record", "if self._is_point:", "return\n    if True:")
    ),
    "one-row-is-enough": fault(
        "Only the first of the rows on which others depend is read.", (_Job, "_fetch", "ROWS_MAX + 1", "1")
    ),
    "one-level-is-enough": fault(
        "Rows that are found by a read which depends on rows are not looked at.",
        (
            _Job,
            "_fetch",
            "    has_low = has_high =",
            "    if self.access.cells: return False\n    has_low = has_high =",
        ),
    ),
    "once-round-a-circle": fault(
        "A recursive query is asked once.",
        (_Job, "run", "*self._only_column)", "*self._only_column) and False"),
        (_Job, "run", "low_value, high_value)", "low_value, high_value) and False"),
    ),
    "own-rows-are-as-before": fault(
        "A statement that writes finds its rows as they were before it.",
        (_Resolution, "wrote", "plan = self._plan", "return"),
    ),
    "columns-by-number": fault(
        "A column of an index is taken for the column of its table with that number.",
        (
            dependent_reads.DependentReads,
            "column",
            "None if on is None else stored_column(on, column)",
            "max(column, -1)",
        ),
    ),
    "missed-rows-are-nothing": fault(
        "Omit the NULLs of rows that an outer join misses.",
        (_Registers, "_of_row", "if cursor in self._nulls:", "if False:"),
    ),
    "values-of-the-caller-are-forgotten": fault(
        "new.x and old.x have no values but those of the first program that fires a trigger.",
        (_Registers, "_pass_parameters", "in calls:", "in calls[:1]:"),
    ),
    "ends-are-the-same": fault(
        "Both ends of a range in one register are one value, also where it changes in between.",
        (_Registers, "steady", "return not any", "return True or any"),
    ),
    "every-row-counts-for-limit": fault(
        "A loop ends after so many rows, whether they meet its conditions or not.",
        (_LoopReader, "stop", "tuple(body.row.filters)", "()"),
    ),
    "offset-is-nothing": fault(
        "Rows passed over by OFFSET are not looked for.",
        (_LoopReader, "stop", "body.offset, backward", "_ZERO, backward"),
    ),
    "loops-go-forward": fault(
        "A backward loop ends where a forward loop would.",
        (_LoopReader, "stop", "body.offset, backward", "body.offset, False"),
    ),
    "loops-end-a-row-early": fault(
        "A loop is taken to end one row too early.",
        (
            _LoopReader,
            "stop",
            "body.limit, body.offset, backward",
            "Atom('const', ('int', body.limit.payload[1] - 1)) if body.limit.kind == 'const' else body.limit, "
            "body.offset, backward",
        ),
    ),
    "own-writes-come-later": fault(
        "A loop that counts is taken to run before the statement writes anything.",
        (_LoopReader, "_is_unchanged", "if not ahead:", "if True:"),
    ),
    "loops-end-in-triggers": fault(
        "A loop in a trigger is taken to run once.", (_Reader, "__init__", "with_stops and number == 0", "with_stops")
    ),
    "nothing-is-looked-for-by-null": fault(
        "Every seek is taken to be skipped for NULL.", (_Reader, "_not_null", "return found", "return set(range(1000))")
    ),
    "columns-are-forgotten": fault(
        "One of the needed columns of a row is not read.",
        (_Reader, "columns", "yield found.name, names", "yield found.name, frozenset(sorted(names)[1:])"),
    ),
    "filters-need-no-columns": fault(
        "Only the columns in the result of a statement count as needed.",
        (_Reader, "columns", "ops = [op for op in self._program if", _RESULTS),
    ),
    "rows-are-there": fault(
        "Omit the read of a row's existence when its columns are read.", (cursor_ranges, "points_of", '[b"", *(', "[*(")
    ),
    "one-cursor-tells-of-all": fault(
        "The columns that one cursor needs are all that is needed of a row, also where others are on its table.",
        (cursor_ranges, "statement_reads", _COUNTED, f"dict.fromkeys({_COUNTED}, 1)"),
    ),
    "columns-do-not-change": fault(
        "An update writes no columns.", (_TableKeys, "_changed_columns", "in self._columns", "in ()")
    ),
    "equal-columns-are-the-same": fault(
        "A column that becomes 1.0 and was 1 does not change.",
        (_TableKeys, "_changed_columns", "not same_value(old[place], new[place])", "old[place] != new[place]"),
    ),
    "keys-change-alone": fault(
        "An update that changes a column of an index changes no other.",
        (_TableKeys, "_changed_columns", "return [", "return [] if any(old[p] != new[p] for p in self._places) else ["),
    ),
    "rows-come-and-go": fault(
        "The insert or delete of a row does not conflict with reads of its columns.",
        (_TableKeys, "__init__", "self._uniques.append((self._columns_of, (), False))", "pass"),
    ),
    "computed-columns-stay": fault(
        "A stored generated column does not change with its sources.",
        (_TableKeys, "__init__", "if one.place is not None and", "if one.place is not None and not one.generated and"),
    ),
}

"""Deliberate faults of the read-set analysis: each is a plausible mistake that the search must find.

A fault is a function without arguments that returns the replacement and its target.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

from bedrockish.access_sets import (
    analysis,
    computed_columns,
    dependent_reads,
    key_values,
    loop_stops,
    readset,
    writeset,
)
from bedrockish.access_sets import cursor_ranges as seeks
from bedrockish.access_sets import key_encoding as keys
from bedrockish.access_sets import register_values as registers
from bedrockish.access_sets.opcodes import Op
from tools.soundness.case_search import Patch, faults_of


def no_sub_programs() -> list[Patch]:
    """Reads of triggers are forgotten."""
    explain = readset._explain

    def main_only(*args: Any) -> Any:
        programs, is_whole = explain(*args)
        return programs[:1], is_whole

    return [(readset, "_explain", main_only)]


def settings_are_forgotten() -> list[Patch]:
    """A statement is explained without the settings of its session."""
    return [(analysis, "in_force", lambda *_: nullcontext())]


def dynamic_is_nothing() -> list[Patch]:
    """A lookup by a value from another row, where the row cannot be asked for, reads nothing."""
    return [(seeks, "_whole", _forgetting("another row"))]


def opaque_is_nothing() -> list[Patch]:
    """An index on an expression reads nothing."""
    return [(seeks, "_whole", _forgetting("expression"))]


def computed_by_row() -> list[Patch]:
    """The entries of an index on an expression are written by row, and read by value."""
    told = computed_columns.told_columns
    return [(writeset, "told_columns", lambda index, table: 0 if index.opaque else told(index, table))]


def given_ids_are_nothing() -> list[Patch]:
    """Omit the reads of a trigger that looks up rows by an automatic id."""
    add = dependent_reads.Resolution._add_images

    def less(self: Any, place: int, *args: Any) -> Any:
        return False if self._plan.is_given(self._plan.sources[place]) else add(self, place, *args)

    return [(dependent_reads.Resolution, "_add_images", less)]


def cursors_stay_where_they_were() -> list[Patch]:
    """A cursor that is opened on one index after another is taken to be on the first."""

    def stay(program: list[Op], _check: object = None) -> list[Op]:
        first: dict[int, Op] = {}
        return [
            op._replace(p2=first.setdefault(op.p1, op).p2) if op.name in ("OpenRead", "ReopenIdx") else op
            for op in program
        ]

    return [(seeks, "lives_apart", stay)]


def max_is_null() -> list[Patch]:
    """Do not follow the choice of max() and min()."""
    step = registers.Registers._step

    def less(self: Any, op: Op, program: list[Op]) -> None:
        step(self, op._replace(p2=op.p3) if op.name == "AggStep" and op.p4 in registers._CHOOSE else op, program)

    return [(registers.Registers, "_step", less)]


def partners_need_only_be_there() -> list[Patch]:
    """Ignore the conditions of a join on the looked-up row when its LIMIT is counted."""
    told = loop_stops._Row.told_partners
    return [(loop_stops._Row, "told_partners", lambda self: tuple(replace(one, filters=()) for one in told(self)))]


def temporary_rows_are_its_own() -> list[Patch]:
    """A TEMP table has the rows that the statement puts into it, and no others."""
    made = registers.Program
    return [(seeks, "Program", lambda ops, cursors, private, _temporary: made(ops, cursors, private, set()))]


def records_are_nothing() -> list[Patch]:
    """The rows of a view that are about to be changed have no values."""
    fill = registers.PrivateRecords._fill

    def less(self: Any, *args: Any) -> Any:
        return fill(self, *args)._replace(made=())

    return [(registers.PrivateRecords, "_fill", less)]


def ends_are_converted() -> list[Patch]:
    """An end of a range is compared with a column as SQL does it, which may convert it first."""
    return [(dependent_reads._Job, "_is_end", lambda _, value: value is not None)]


def partners_are_always_there() -> list[Patch]:
    """Every row of a join counts for its LIMIT, whether the other table has a row for it or not."""
    return _stop_without(partners=())


def _forgetting(word: str) -> Callable[[Any, str], Any]:
    """Return a replacement of ``_whole`` that reads nothing for some reasons."""
    whole = seeks._whole

    def less(found: Any, reason: str) -> Any:
        if word not in reason:
            return whole(found, reason)
        low = (seeks.FieldValues(frozenset({registers.constant(b"nothing like it")}), keys.ROWID_SPEC),)
        return seeks._plain(seeks.Access(found.object, low, True, low, False))

    return less


def every_stop_counts() -> list[Patch]:
    """Any comparison after a seek is taken as the end of its loop, also where rows come by it another way."""
    return [(seeks._Reader, "_guards", lambda *_: True)]


def count_is_nothing() -> list[Patch]:
    """count(*) reads nothing."""
    return [(seeks, "WHOLE", frozenset())]


def no_prefix_end() -> list[Patch]:
    """The end of a range leaves out the entries that begin with it."""
    end = readset._end
    return [(readset, "_end", lambda name, fields, _, pick: end(name, fields, False, pick))]


def no_affinity() -> list[Patch]:
    """Values are compared as the client gave them."""
    return [(key_values, "apply_affinity", lambda value, _: value)]


def no_collation() -> list[Patch]:
    """Text is compared byte by byte whatever the collation."""
    patches: list[Patch] = []
    for module in (readset, dependent_reads, writeset):
        encoder = module.encoder
        plain = lambda spec, encoder=encoder: encoder(keys.Spec("BINARY", spec.descending))  # noqa: E731
        patches.append((module, "encoder", plain))
    return patches


def no_descending() -> list[Patch]:
    """A descending column is encoded as an ascending one."""
    patches: list[Patch] = []
    for module in (readset, dependent_reads, writeset):
        encoder = module.encoder
        plain = lambda spec, encoder=encoder: encoder(keys.Spec(spec.collation, False))  # noqa: E731
        patches.append((module, "encoder", plain))
    return patches


def one_value_a_register() -> list[Patch]:
    """Only one of several possible values of a register counts."""
    values = registers.Registers.values

    def one(self: Any, program: int, register: int) -> Any:
        atoms = values(self, program, register)
        return frozenset(sorted(atoms, key=repr)[:1]) if atoms else atoms

    return [(registers.Registers, "values", one)]


def no_old_keys() -> list[Patch]:
    """A changed row writes its new keys, and not its old ones."""
    writes = writeset._TableKeys.writes

    def new_only(self: Any, old_id: Any, new_id: Any, old: Any, new: Any) -> Any:
        return writes(self, old_id, new_id, None if new is not None else old, new)

    return [(writeset._TableKeys, "writes", new_only)]


def no_index_keys() -> list[Patch]:
    """A changed row writes its place in the table only."""
    return [(writeset._TableKeys, "_add_index", lambda *_: None)]


def no_unique_points() -> list[Patch]:
    """Rows with the same UNIQUE value do not conflict."""
    return [(writeset, "_no_null", lambda *_: False)]


def no_parents() -> list[Patch]:
    """A child does not read its parent."""
    return [(writeset._TableKeys, "reads", lambda *_: ([], []))]


def all_probes_enforce() -> list[Patch]:
    """Every lookup in a unique index counts as a constraint check, also under OR IGNORE."""
    return [("bedrockish.access_sets.constraint_probes", "_ends_in_unique_halt", lambda *_: True)]


def failures_read_less() -> list[Patch]:
    """A failed statement does not count the lookups of its constraint checks."""
    return [(readset.ReadPlan, "bind_failed", readset.ReadPlan.bind)]


def dependents_are_nothing() -> list[Patch]:
    """A read that depends on rows reads nothing."""
    return [(dependent_reads._Job, "_record", lambda *_: None)]


def one_row_is_enough() -> list[Patch]:
    """Only the first of the rows on which others depend is read."""
    return [(dependent_reads, "islice", lambda rows, _: islice(rows, 1))]


def one_level_is_enough() -> list[Patch]:
    """Rows that are found by a read which depends on rows are not looked at."""
    fetch = dependent_reads._Job._fetch

    def flat(self: Any, *args: Any) -> bool:
        return bool(not self.access.cells and fetch(self, *args))

    return [(dependent_reads._Job, "_fetch", flat)]


def once_round_a_circle() -> list[Patch]:
    """A recursive query is asked once."""
    run = dependent_reads._Job.run

    def once(self: Any, state: Any, done: set[bytes]) -> bool:
        return run(self, state, done) and False

    return [(dependent_reads._Job, "run", once)]


def own_rows_are_as_before() -> list[Patch]:
    """A statement that writes finds its rows as they were before it."""
    return [(dependent_reads.Resolution, "wrote", lambda *_: None)]


def columns_by_number() -> list[Patch]:
    """A column of an index is taken for the column of its table with that number."""
    return [(dependent_reads.DependentReads, "column", lambda _self, _cursor, column: max(column, -1))]


def missed_rows_are_nothing() -> list[Patch]:
    """Omit the NULLs of rows that an outer join misses."""
    step = registers.Registers._of_row

    def of_row(self: Any, cursor: int, column: int, register: int) -> None:
        self._nulls = set()
        step(self, cursor, column, register)

    return [(registers.Registers, "_of_row", of_row)]


def values_of_the_caller_are_forgotten() -> list[Patch]:
    """new.x and old.x have no values but those of the first program that fires a trigger."""
    pass_on = registers.Registers._pass_parameters

    def less(self: Any) -> None:
        before = dict(self._edges)
        pass_on(self)
        extra = [edge for edge in self._edges if edge not in before]
        seen: set[Any] = set()
        for edge in extra:
            if edge[1] in seen:
                del self._edges[edge]
            seen.add(edge[1])

    return [(registers.Registers, "_pass_parameters", less)]


def ends_are_the_same() -> list[Patch]:
    """Both ends of a range in one register are one value, also where it changes in between."""
    return [(registers.Registers, "steady", lambda *_: True)]


def _stop_without(**parts: Any) -> list[Patch]:
    """Return the search for the ends of loops, without some of its parts."""
    stop = loop_stops.LoopReader.stop

    def less(self: Any, *args: Any) -> Any:
        found = stop(self, *args)
        return found and replace(found, **parts)

    return [(loop_stops.LoopReader, "stop", less)]


def every_row_counts_for_limit() -> list[Patch]:
    """A loop ends after so many rows, whether they meet its conditions or not."""
    return _stop_without(filters=())


def offset_is_nothing() -> list[Patch]:
    """Rows passed over by OFFSET are not looked for."""
    return _stop_without(offset=loop_stops._ZERO)


def loops_go_forward() -> list[Patch]:
    """A backward loop ends where a forward loop would."""
    return _stop_without(backward=False)


def loops_end_a_row_early() -> list[Patch]:
    """A loop is taken to end one row too early."""
    stop = loop_stops.LoopReader.stop

    def less(self: Any, *args: Any) -> Any:
        found = stop(self, *args)
        if found is None or found.limit.kind != "const":
            return found
        return replace(found, limit=registers.constant(found.limit.payload[1] - 1))

    return [(loop_stops.LoopReader, "stop", less)]


def own_writes_come_later() -> list[Patch]:
    """A loop that counts is taken to run before the statement writes anything."""
    return [(loop_stops.LoopReader, "_is_unchanged", lambda *_: True)]


def loops_end_in_triggers() -> list[Patch]:
    """A loop in a trigger is taken to run once."""
    init = seeks._Reader.__init__

    def also(self: Any, *args: Any, with_stops: bool, named: Any) -> None:
        init(self, *args, with_stops=with_stops, named=named)
        self._with_stops = with_stops

    return [(seeks._Reader, "__init__", also)]


def nothing_is_looked_for_by_null() -> list[Patch]:
    """Every seek is taken to be skipped for NULL."""
    return [(seeks._Reader, "_not_null", lambda *_: set(range(1000)))]


def columns_are_forgotten() -> list[Patch]:
    """One of the needed columns of a row is not read."""
    columns = seeks._Reader.columns

    def less(self: Any) -> Any:
        return [(name, frozenset(sorted(needed)[1:])) for name, needed in columns(self)]

    return [(seeks._Reader, "columns", less)]


def filters_need_no_columns() -> list[Patch]:
    """Only the columns in the result of a statement count as needed."""
    columns = seeks._Reader.columns

    def less(self: Any) -> Any:
        results = {number for op in self._program if op.name == "ResultRow" for number in range(op.p1, op.p1 + op.p2)}
        self._program = [op for op in self._program if op.name != "Column" or op.p3 in results]
        return list(columns(self))

    return [(seeks._Reader, "columns", less)]


def rows_are_there() -> list[Patch]:
    """Omit the read of a row's existence when its columns are read."""
    points_of = seeks.points_of

    def less(access: Any) -> Any:
        found = points_of(access)
        return found and (lambda rows: [key for key in found(rows) if b"\x01" in key[key.index(b"\0") + 12 :]])

    return [(module, "points_of", less) for module in (readset, dependent_reads)]


def one_cursor_tells_of_all() -> list[Patch]:
    """The columns that one cursor needs are all that is needed of a row, also where others are on its table."""
    return [(seeks, "Counter", lambda names: dict.fromkeys(names, 1))]


def columns_do_not_change() -> list[Patch]:
    """An update writes no columns."""
    return [(writeset._TableKeys, "_changed_columns", lambda *_: [])]


def equal_columns_are_the_same() -> list[Patch]:
    """A column that becomes 1.0 and was 1 does not change."""
    return [(writeset, "same_value", lambda old, new: old == new)]


def keys_change_alone() -> list[Patch]:
    """An update that changes a column of an index changes no other."""
    changed = writeset._TableKeys._changed_columns

    def less(self: Any, row: bytes, old: Any, new: Any) -> list[bytes]:
        return [] if any(old[place] != new[place] for place in self._places) else changed(self, row, old, new)

    return [(writeset._TableKeys, "_changed_columns", less)]


def rows_come_and_go() -> list[Patch]:
    """The insert or delete of a row does not conflict with reads of its columns."""
    init = writeset._TableKeys.__init__

    def less(self: Any, *args: Any) -> None:
        init(self, *args)
        self._uniques = [one for one in self._uniques if one[0] is not self._columns_of]

    return [(writeset._TableKeys, "__init__", less)]


def computed_columns_stay() -> list[Patch]:
    """A stored generated column does not change with its sources."""
    init = writeset._TableKeys.__init__

    def less(self: Any, table: Any, *args: Any) -> None:
        init(self, table, *args)
        computed = {column.place for column in table.columns if column.generated}
        self._columns = [one for one in self._columns if one[0] not in computed]

    return [(writeset._TableKeys, "__init__", less)]


FAULTS = faults_of(globals())

"""Finds where a loop ends before the end of its range, because of LIMIT, max() or EXISTS.

A loop that counts the rows that pass its conditions, and exits after a number of them, has read nothing beyond the last
counted row. An auxiliary query with the same range, order, conditions and number finds that row. So every condition
must be understood: if the query let more rows pass than the statement does, it would stop too early. If a loop is not
understood, its whole range counts as read.

The stop is valid only for the plan that SQLite runs: with another plan, "the first three rows" are other rows. If
SQLite's choice of the plan may depend on the values of parameters, the plan is compared again at each execution
(``Stop.is_fixed``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

from bedrockish.access_sets.catalog import ROWID, Index, Schema, Table, stored_column
from bedrockish.access_sets.key_encoding import AFFINITY_INTEGER, BINARY, KNOWN_COLLATIONS
from bedrockish.access_sets.opcodes import (
    BY_ROWID,
    CHANGES,
    COMPARISONS,
    INDEX_STOPS,
    LOADS,
    OPENS,
    OPENS_PRIVATE,
    POSITIONS,
    STEPS,
    WRITES,
    Op,
    may_jump,
)
from bedrockish.access_sets.register_values import Atom

_NULL_EQUAL = 0x80  # P5 of a comparison: NULL is equal to NULL, as for IS
_AFFINITY = 0x47  # P5 of a comparison: the affinity that it applies
_NO_AFFINITY, _NUMERIC = "\0@A", "CDEF"

# By the opcode of a comparison that jumps if a row does not pass: the operator between column and value that holds for
# the rows that pass. The first operator is for a column in P3, and the second for a column in P1.
_PASSES = {
    "Eq": ("<>", "<>"), "Ne": ("=", "="), "Lt": (">=", "<="), "Le": (">", "<"), "Gt": ("<=", ">="), "Ge": ("<", ">"),
}  # fmt: skip
_RESULTS = frozenset({"ResultRow", "AggStep", "IdxInsert", "Insert", "MakeRecord"})
_HARMLESS = LOADS | _RESULTS | {"RealAffinity", "Blob", "String", "DeferredSeek", "Column", "Rowid", "IdxRowid"}


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition that a row must meet to be counted."""

    column: int  # number of the column in its table; ``ROWID`` for the rowid
    operator: str  # ``=``, ``<``, ``IS NOT`` and similar ones
    value: Atom | None  # the value with which the column is compared; None for NULL
    collation: str = BINARY  # the collation of the comparison
    as_stored: bool = False  # whether the comparison leaves out the column's affinity


@dataclass(frozen=True, slots=True)
class Partner:
    """A join that decides whether a row counts: another table must have a row whose rowid is a column of the row."""

    column: int  # number of the column in the row's table; ``ROWID`` for the rowid
    table: str  # name of the other table
    filters: tuple[Filter, ...] = ()  # conditions on the row of the other table
    partners: tuple["Partner", ...] = ()  # further rows that must exist for the row of the other table


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a loop: it exits after ``offset`` plus ``limit`` counted rows."""

    filters: tuple[Filter, ...]  # conditions; a row is counted if it meets all of them
    limit: Atom  # the number of counted rows after the skipped ones
    offset: Atom  # the number of counted rows that are skipped at the beginning
    backward: bool  # whether the loop goes from the end of its range to the beginning
    is_fixed: bool  # whether the plan does not depend on parameters
    partners: tuple[Partner, ...] = ()  # rows of other tables that must exist for a row to be counted


def condition_values(of: Stop | Partner) -> Iterator[Atom]:
    """Yield the values of the conditions, in the order of their ``?`` in the query."""
    yield from (one.value for one in of.filters if one.value is not None)
    for partner in of.partners:
        yield from condition_values(partner)


_PLAN = OPENS | OPENS_PRIVATE | POSITIONS | STEPS | INDEX_STOPS | {"DeferredSeek", "DecrJumpZero", "SorterSort", "Sort"}


def skeleton(ops: Sequence[Op]) -> list[tuple[object, ...]]:
    """Return the parts of a program that identify its plan: loops, their objects, order and numbers of columns."""
    return [
        (op.name, op.p1 if op.name != "DecrJumpZero" else 0, op.p2 if op.name in OPENS else 0, op.p4)
        for op in ops
        if op.name in _PLAN
    ]


Values = Callable[[int], frozenset[Atom] | None]
ChangedAt = Callable[[int], Set[int]]


class LoopReader:
    """Finds the ends of loops in one program."""

    def __init__(
        self,
        ops: list[Op],
        schema: Schema,  # the schema for which the program was compiled
        values: Values,  # returns the possible values of a register
        changed_at: ChangedAt,  # returns the addresses at which a register may change
        is_private: Callable[[int], bool],  # returns whether a cursor is on an ephemeral table of the statement
        # Returns the rowid table of a cursor; None if it is not always on one rowid table.
        table_of: Callable[[int], Table | None] = lambda _: None,
    ) -> None:
        self._ops, self._schema, self._values = ops, schema, values
        self.rowid_table = table_of
        self._changed_at, self._is_private = changed_at, is_private

    def stop(self, seek: Op, on: Table | Index, guard: int, steps: Sequence[Op]) -> Stop | None:
        """Return the stop of the loop that begins with a seek; None if the loop has none, or is not understood.

        Args:
            on: the table or index of its cursor.
            guard: address of the check that ends its range; without a check, of the seek.
            steps: the instructions that move its cursor to another row.
        """
        if len(steps) != 1 or not seek.address < steps[0].p2 <= guard + 1 or steps[0].address <= guard:
            return None
        last = steps[0].address
        end, misses = self._outer_joins(guard, last)
        body = _Body(self, seek, on, last, misses)
        for op in islice(self._ops, guard + 1, end):
            if not body.add(op):
                return None
        if body.limit is None or not self._is_unchanged(seek.address):
            return None
        if any(
            not seek.address <= op.address <= last and self._jumps_into(op, seek.address + 1, last) for op in self._ops
        ):
            return None
        # If LIMIT is a parameter, SQLite may choose another plan for its value.
        is_fixed = self._plan_is_fixed(on) and body.limit.kind == body.offset.kind == "const"
        backward = steps[0].name == "Prev"
        return Stop(tuple(body.row.filters), body.limit, body.offset, backward, is_fixed, body.row.as_partners())

    def _outer_joins(self, guard: int, last: int) -> tuple[int, dict[int, int]]:
        """Find the instructions at the end of a loop that produce rows of NULLs for outer joins.

        For each outer join, innermost first, these instructions check whether the join has found a row; if not, they
        run the loop's body with NULLs.

        Return the address of the first of these instructions, and by cursor the address of each join's check.
        """
        found: dict[int, int] = {}
        end = last
        while end - 3 > guard:
            check, null, back = self._ops[end - 3 : end]
            names = (check.name, null.name, back.name)
            if names != ("IfPos", "NullRow", "Goto") or check.p2 != end or not guard < back.p2 < check.address:
                break
            seek = self._ops[back.p2 - 1]
            if seek.name not in BY_ROWID or seek.p1 != null.p1 or seek.p2 != check.address or null.p1 in found:
                break
            end = check.address
            found[null.p1] = end
        return end, found

    def _plan_is_fixed(self, on: Table | Index) -> bool:
        """Return whether SQLite's plan for a loop on a table is the same for all values of the parameters."""
        if any(name.startswith("sqlite_stat") for name in self._schema.tables):
            return False
        has_parameters = any(op.name == "Variable" for op in self._ops)
        return not has_parameters or not any(index.partial for index in self.table(on).indexes)

    def _jumps_into(self, op: Op, first: int, last: int) -> bool:
        return may_jump(op) and any(first <= target <= last for target in (op.p2, *_more_targets(op)))

    def table(self, on: Table | Index) -> Table:
        """Return a table itself, or the table of an index."""
        return on if isinstance(on, Table) else self._schema.tables[on.table]

    def value(self, register: int) -> Atom | None:
        """Return the only possible value of a register if it does not depend on rows; else None."""
        atoms = self._values(register)
        if atoms is None or len(atoms) != 1:
            return None
        (atom,) = atoms
        return atom if atom.kind in ("const", "param") else None

    def limit(self, register: int, first: int, counts_at: int) -> Atom | None:
        """Return the value to which a counter is set right before each run of the loop; None if that is not certain."""
        changes = self._changed_at(register) - {counts_at}
        starts = [op for op in self._ops if op.address in changes and op.name in ("Integer", "Variable")]
        if len(starts) != 1 or any(op.address in changes and op.name not in _SETS_LIMIT for op in self._ops):
            return None
        start = starts[0]
        # No jump enters between the two addresses, so that the counter is set before each run.
        if start.address > first or any(
            not start.address <= op.address <= first and self._jumps_into(op, start.address + 1, first)
            for op in self._ops
        ):
            return None
        return Atom("const", ("int", start.p1)) if start.name == "Integer" else Atom("param", start.p1)

    def _is_unchanged(self, first: int) -> bool:
        """Return whether no write of the statement itself can come before the loop, which begins at ``first``."""
        changes = (op for op in self._ops if op.name in CHANGES and op.name != "ResultRow")
        ahead = [op.address for op in changes if op.name in ("Program", "Clear") or not self._is_private(op.p1)]
        if not ahead:
            return True
        if any(op.name in ("Yield", "InitCoroutine", "EndCoroutine") for op in self._ops):
            return False
        returns = [op.address + 1 for op in self._ops if op.name == "Gosub"]
        seen: set[int] = set()
        while ahead:
            address = ahead.pop()
            if address in seen or address >= len(self._ops):
                continue
            if address == first:
                return False
            seen.add(address)
            op = self._ops[address]
            if may_jump(op):
                ahead += [op.p2, *_more_targets(op)]
            if op.name == "Return":
                ahead += returns
            if op.name not in ("Goto", "Halt"):
                ahead.append(address + 1)
        return True


_SETS_LIMIT = ("Integer", "Variable", "MustBeInt")


def _more_targets(op: Op) -> tuple[int, ...]:
    return (op.p1, op.p3) if op.name == "Jump" else ()


def _written(op: Op) -> Iterable[int]:
    """Return the registers that an instruction changes; the instruction must have no other effect."""
    if op.name == "Null":
        return range(op.p2, max(op.p2, op.p3) + 1)
    if op.name == "Copy":
        return range(op.p2, op.p2 + op.p3 + 1)
    if op.name == "Affinity":
        return range(op.p1, op.p1 + op.p2)
    if op.name in LOADS and op.name not in WRITES:  # P3 of Int64 is half of the value, not a register
        return (op.p2,)
    return [getattr(op, operand) for operand in WRITES.get(op.name, ())]


_ZERO = Atom("const", ("int", 0))


@dataclass
class _Row:
    """The row of a cursor: the loop's own row, or a row of another table that is looked up for it."""

    table: Table  # the row's table
    filters: list[Filter] = field(default_factory=list)  # the conditions on the row
    # Pairs of a column and the row that is looked up by it.
    partners: list[tuple[int, "_Row"]] = field(default_factory=list)

    def as_partners(self) -> tuple[Partner, ...]:
        return tuple(
            Partner(column, row.table.name, tuple(row.filters), row.as_partners()) for column, row in self.partners
        )


class _Body:
    """The instructions between the check of a range and the step to the next row."""

    def __init__(self, reader: LoopReader, seek: Op, on: Table | Index, last: int, misses: Mapping[int, int]) -> None:
        self._reader, self._seek, self._last, self._misses = reader, seek, last, misses
        self._joined: set[int] = set()
        self.row = _Row(reader.table(on))
        self._on: dict[int, tuple[_Row, Table | Index]] = {seek.p1: (self.row, on)}
        self._columns: dict[int, tuple[_Row, int] | None] = {}  # register -> the row and column whose value it holds
        self._has_result = False
        self.limit: Atom | None = None
        self.offset = _ZERO

    def add(self, op: Op) -> bool:
        """Process an instruction; return whether it is understood."""
        if self.limit is not None:
            return False  # the loop has an instruction after its exit, which is not understood
        if op.name in COMPARISONS:
            return self._add_comparison(op)
        if op.name in BY_ROWID:
            return self._add_join(op)
        if op.name == "Yield":  # a subquery passes its row to the rest of the statement, and is resumed for the next
            self._has_result = True
            return op.p2 == 0
        if op.name in ("IsNull", "NotNull"):
            column = self._columns.get(op.p1)
            if op.p2 != self._last or self._has_result or column is None:
                return False
            row, number = column
            row.filters.append(Filter(number, "IS NOT" if op.name == "IsNull" else "IS", None))
            return True
        if op.name == "DecrJumpZero":
            self.limit = self._reader.limit(op.p1, self._seek.address, op.address) if op.p2 > self._last else None
            return self.limit is not None
        if op.name == "IfPos":
            offset = self._reader.limit(op.p1, self._seek.address, op.address)
            if op.p2 != self._last or op.p3 != 1 or self._has_result or self.offset != _ZERO or offset is None:
                return False
            self.offset, self._has_result = offset, True  # OFFSET has counted: a condition after it is not understood
            return True
        if op.name == "Goto":
            self.limit = Atom("const", ("int", 1)) if op.p2 > self._last else None
            return self.limit is not None
        if op.name not in _HARMLESS or (may_jump(op) and op.name not in _RESULTS):
            return False
        self._add_load(op)
        return True

    def _add_join(self, op: Op) -> bool:
        """Process the lookup of a row by its rowid in another table; return whether it is understood."""
        table = self._reader.rowid_table(op.p1)
        if table is None or op.p1 in self._on or op.p1 in self._joined or self._has_result:
            return False
        self._joined.add(op.p1)
        if op.p1 in self._misses:  # an outer join always produces one row, perhaps of NULLs
            return op.p2 == self._misses[op.p1]
        column = self._columns.get(op.p3)
        if column is None or op.p2 != self._last:
            return False
        row, number = column
        partner = _Row(table)
        row.partners.append((number, partner))
        self._on[op.p1] = (partner, table)
        return True

    def _add_load(self, op: Op) -> None:
        self._has_result = self._has_result or op.name in _RESULTS
        if op.name == "DeferredSeek" and op.p1 == self._seek.p1:
            self._on[op.p3] = (self.row, self.row.table)
        elif op.name == "Column":
            row, on = self._on.get(op.p1, (None, None))
            number = None if on is None else stored_column(on, op.p2)
            self._columns[op.p3] = None if row is None or number is None else (row, number)
        elif op.name in ("Rowid", "IdxRowid"):
            found = self._on.get(op.p1)
            self._columns[op.p2] = None if found is None else (found[0], ROWID)
        elif op.name != "RealAffinity":
            for register in _written(op):
                self._columns.pop(register, None)

    def _add_comparison(self, op: Op) -> bool:
        if op.p2 != self._last or self._has_result:
            return False
        is_third = self._columns.get(op.p3) is not None
        held = self._columns.get(op.p3 if is_third else op.p1)
        other = op.p1 if is_third else op.p3
        value = None if other in self._columns else self._reader.value(other)
        collation = (op.p4 or BINARY).rpartition("-")[0] or BINARY
        if held is None or value is None or collation not in KNOWN_COLLATIONS:
            return False
        row, column = held
        if column == ROWID or column == row.table.rowid_column:
            own = AFFINITY_INTEGER
        else:
            own = row.table.columns[column].affinity
        applied = chr(op.p5 & _AFFINITY)
        as_stored = applied in _NO_AFFINITY
        if as_stored and value.affinities:
            return False  # an earlier instruction has converted the value in its register
        if not as_stored and applied != own and not (applied in _NUMERIC and own in _NUMERIC):
            return False
        operator = _PASSES[op.name][0 if is_third else 1]
        if op.p5 & _NULL_EQUAL:
            operator = {"=": "IS", "<>": "IS NOT"}.get(operator, "")
        if not operator:
            return False
        row.filters.append(Filter(column, operator, value, collation, as_stored and own not in _NO_AFFINITY))
        return True

"""The possible values of the registers of a bytecode program: constants, parameters, and columns of rows read before.

The analysis ignores the order of instructions: a register has the set of all values that any instruction of the program
puts into it, or its values are unknown. A key made from the register lies between the smallest and the largest of these
values, so the result holds on every path.

A statement's own program and those of its triggers are analysed together, because a trigger takes ``new.x`` and
``old.x`` from the registers of the program that fires it. Tables that only the statement can see (sorters, materialized
subqueries, automatic indexes) are followed column by column.
"""

from struct import Struct
from typing import Any, Literal, NamedTuple

from bedrockish.access_sets.catalog import ROWID, Schema, Table
from bedrockish.access_sets.effort import Check, checked, unlimited
from bedrockish.access_sets.opcodes import COMPARISONS, OPENS, OPENS_PRIVATE, WRITES, Op, jump_targets

_words = Struct(">iI")
_double = Struct(">d")


class Atom(NamedTuple):
    """A value that a register may hold."""

    # ``const`` (a constant: ``payload`` is a pair of the type's name and the value), ``param`` (its number, from 1),
    # ``column`` (a ``Cell``: a column of the rows of a cursor), or ``new`` (the rowid of a row that is being inserted
    # into table ``payload``).
    kind: Literal["const", "param", "column", "new"]
    payload: Any
    affinities: frozenset[str] = frozenset()  # the affinities that may have been applied to it, in any order


class Cell(NamedTuple):
    """A column of the rows of a cursor."""

    program: int  # number of the program; 0 for the statement's own, others for those of its triggers
    cursor: int  # number of the cursor in that program
    column: int  # number of the column in the cursor's table or index, as stored there; ``ROWID`` for the rowid


class BytecodeProgram(NamedTuple):
    """A program and the objects of its cursors."""

    ops: list[Op]
    cursors: dict[int, set[int]]  # cursor -> root pages of the tables and indexes on which it is opened
    private: set[int]  # cursors on objects that only this statement, or only its connection, can see
    temporary: set[int]  # cursors on TEMP tables and in attached files, which have rows from before the statement


Slot = int | tuple[str, int] | tuple[str, int, int]
"""The name of a set of values: a register; the one column of a list of values (``in``) or of a row set
(``rowset``), by its cursor; or a column of a private table (``record``), by its cursor and number. The numbers of
registers and cursors are made unique over all programs."""

_STRIDE = 1 << 20  # more registers and cursors than one program can have

Key = tuple[str, Any]
"""Kind and payload of an atom."""

_CHOOSE = frozenset({"min(1)", "max(1)"})
"""Aggregates whose value is one of their inputs, or NULL without input."""

NO_VALUE = Atom("const", ("NoneType", None))


def constant(value: Any) -> Atom:
    """Return the atom of a constant with its type, because 1 and 1.0 differ as text."""
    return Atom("const", (type(value).__name__, value))


class Registers:
    """The possible values of the registers of a statement's programs."""

    def __init__(self, programs: list[BytecodeProgram], schema: Schema, check: Check = unlimited) -> None:
        self._schema, self._programs, self._check = schema, programs, check
        # For each program, the cursors of private one-column tables that are filled from values only, as for
        # ``x IN (1, ?, 3)``.
        self.lists = [_value_lists(program.ops) for program in programs]
        # A map from kind and payload to affinities, so that adding a value does not search thousands of others.
        self._values: dict[Slot, dict[Key, frozenset[str]] | None] = {}
        self._edges: dict[tuple[Slot, Slot, str], None] = {}  # a dict, because the values of an IN list add equal edges
        self._writers: dict[Slot, set[Slot]] = {}
        self._changed_at: dict[int, list[int]] = {}  # register -> addresses at which it may change
        for number, program in enumerate(programs):
            self._number, self._base, self._address = number, number * _STRIDE, 0
            self._cursors, self._private = program.cursors, program.private
            self._nulls = {op.p1 for op in program.ops if op.name == "NullRow"}
            filled_here = program.private - set(program.cursors) - program.temporary
            self._records = PrivateRecords(program.ops, filled_here, check)
            for op in checked(program.ops, check):
                self._address = op.address
                self._step(op, program.ops)
            for column, register, affinity in self._records.edges():
                self._edge(register, column, affinity)
        self._pass_parameters()
        self._propagate()

    def values(self, program: int, register: int) -> frozenset[Atom] | None:
        """Return the possible values of a register of a program, or None if they are unknown."""
        found = self._values.get(program * _STRIDE + register)
        return frozenset(Atom(*key, affinities) for key, affinities in found.items()) if found else None  # type: ignore[arg-type]

    def from_list(self, program: int, register: int) -> bool:
        """Return whether the register only holds the values of one IN list, one after the other."""
        writers = self._writers.get(program * _STRIDE + register, set())
        return len(writers) == 1 and isinstance(next(iter(writers)), tuple)

    def steady(self, program: int, register: int, first: int, last: int) -> bool:
        """Return whether no instruction after ``first``, up to ``last``, can change a register."""
        return not any(first < at <= last for at in self._changed_at.get(program * _STRIDE + register, ()))

    def changed_at(self, program: int, register: int) -> frozenset[int]:
        """Return the addresses of the instructions that may change a register."""
        return frozenset(self._changed_at.get(program * _STRIDE + register, ()))

    def _slot(self, slot: Slot) -> Slot:
        if isinstance(slot, int):
            return slot + self._base
        if len(slot) == 2:
            return slot[0], slot[1] + self._base
        return slot[0], slot[1] + self._base, slot[2]

    def _changes(self, register: int) -> None:
        self._changed_at.setdefault(register + self._base, []).append(self._address)

    def _unknown(self, slot: Slot) -> None:
        self._values[self._slot(slot)] = None

    def _add(self, slot: Slot, atom: Atom) -> None:
        held = self._values.setdefault(self._slot(slot), {})
        if held is not None:
            held[atom[:2]] = held.get(atom[:2], frozenset()) | atom.affinities

    def _written(self, register: int, source: Slot = 0) -> None:
        self._writers.setdefault(self._slot(register), set()).add(source)
        self._changes(register)

    def _set(self, register: int, atom: Atom) -> None:
        self._add(register, atom)
        self._written(register)

    def _copy(self, source: int, target: int) -> None:
        self._edge(source, target, "")
        self._written(target)

    def _convert(self, first: int, affinities: str) -> None:
        for offset, affinity in enumerate(affinities):
            if affinity not in "@A":
                self._edge(first + offset, first + offset, affinity)
                self._changes(first + offset)

    def _step(self, op: Op, program: list[Op]) -> None:
        match op.name:
            case "Integer":
                self._set(op.p2, constant(op.p1))
            case "Int64" | "Real":
                self._set_wide(op)
            case "String8":
                if op.p4 is None:
                    self._unknown(op.p2)
                else:
                    self._set(op.p2, constant(op.p4))
            case "Variable":
                self._set(op.p2, Atom("param", op.p1))
            case "Null" | "BeginSubrtn":
                for register in range(op.p2, max(op.p2, op.p3 if op.name == "Null" else 0) + 1):
                    self._set(register, NO_VALUE)
            case "SoftNull":
                self._set(op.p1, NO_VALUE)
            case "SCopy" | "IntCopy":
                self._copy(op.p1, op.p2)
            case "Copy":
                for offset in range(op.p3 + 1):
                    self._copy(op.p1 + offset, op.p2 + offset)
            case "Move":
                for offset in range(op.p3):
                    self._copy(op.p1 + offset, op.p2 + offset)
                    self._set(op.p1 + offset, NO_VALUE)
            case "Affinity":
                self._convert(op.p1, (op.p4 or "")[: op.p2])
            case "MustBeInt":
                self._convert(op.p1, "C")
            case "RealAffinity":
                self._convert(op.p1, "E")
            case "TypeCheck":
                self._check_types(op)
            case "MakeRecord":
                self._make_record(op, program)
            case "RowSetAdd":
                self._edge(op.p2, ("rowset", op.p1), "")
            case "RowSetRead":
                self._edge(("rowset", op.p1), op.p3, "")
                self._written(op.p3)
            case "RowSetTest":
                self._edge(op.p3, ("rowset", op.p1), "")
            case "Rowid" | "IdxRowid" | "NewRowid":
                self._rowid(op)
            case "Column" if op.p1 in self.lists[self._number]:
                self._edge(("in", op.p1), op.p3, "")
                self._written(op.p3, ("in", op.p1))
            case "Column":
                self._column(op)
            case "IfNullRow":
                self._set(op.p3, NO_VALUE)
            case "Param":
                self._written(op.p2)  # the values of the register are added by ``_pass_parameters``
            case "AggStep" | "AggStep1" if op.p4 in _CHOOSE:
                self._copy(op.p2, op.p3)
            case "AggFinal" if op.p4 in _CHOOSE:
                self._set(op.p1, NO_VALUE)
            case name if name in COMPARISONS:
                self._compare(op)
            case "CollSeq" | "OpenEphemeral":
                register = op.p1 if op.name == "CollSeq" else op.p3
                if register:
                    self._invalidate(register)
            case _:
                for operand in WRITES.get(op.name, ()):
                    self._invalidate(getattr(op, operand))

    def _invalidate(self, register: int) -> None:
        self._unknown(register)
        self._written(register)

    def _set_wide(self, op: Op) -> None:
        """Set a constant of 64 bits from the two words of EXPLAIN, because its text may be rounded."""
        if op.p4 is not None:
            if op.name == "Real":
                self._invalidate(op.p2)
            else:
                self._set(op.p2, constant(int(op.p4)))
            return
        words = _words.pack(op.p3, op.p1 & 0xFFFFFFFF)
        value = int.from_bytes(words, signed=True) if op.name == "Int64" else _double.unpack(words)[0]
        self._set(op.p2, constant(value))

    def _check_types(self, op: Op) -> None:
        table = self._schema.tables.get(op.p4 or "")
        affinities = table.stored_affinities if table else ""
        if len(affinities) == op.p2:
            self._convert(op.p1, affinities)
            return
        for register in range(op.p1, op.p1 + op.p2):
            self._invalidate(register)

    def _make_record(self, op: Op, program: list[Op]) -> None:
        self._invalidate(op.p3)
        if op.p4:
            self._convert(op.p1, op.p4[: op.p2])
        following = program[op.address + 1] if op.address + 1 < len(program) else None
        if following and following.name == "IdxInsert" and following.p1 in self.lists[self._number]:
            self._edge(op.p1, ("in", following.p1), (op.p4 or "")[:1].strip("@A"))

    def _rowid(self, op: Op) -> None:
        roots = self._cursors.get(op.p1, set())
        if op.name == "NewRowid" and op.p3:
            self._invalidate(op.p3)  # the new value, the highest id that AUTOINCREMENT has given out, is unknown
        found = self._schema.roots.get(next(iter(roots))) if len(roots) == 1 and op.p1 not in self._private else None
        if found is None and op.name != "NewRowid":
            self._record_column(op.p1, ROWID, op.p2)
        elif found is None:
            self._invalidate(op.p2)
        elif op.name == "NewRowid":
            self._set(op.p2, Atom("new", found.name if isinstance(found, Table) else found.table))
        else:
            self._set_column(op.p1, ROWID, op.p2)

    def _column(self, op: Op) -> None:
        if op.p1 in self._private:
            self._record_column(op.p1, op.p2, op.p3)
        elif len(self._cursors.get(op.p1, ())) != 1:
            self._invalidate(op.p3)
        else:
            self._set_column(op.p1, op.p2, op.p3)

    def _record_column(self, cursor: int, column: int, register: int) -> None:
        """Follow a column of a private table into a register."""
        found = self._records.column(cursor, column) if cursor not in self._cursors else None
        if found is None:
            self._invalidate(register)
            return
        self._edge(found, register, "")
        self._written(register)
        if cursor in self._nulls:
            self._set(register, NO_VALUE)

    def _set_column(self, cursor: int, column: int, register: int) -> None:
        self._set(register, Atom("column", Cell(self._number, cursor, column)))
        if cursor in self._nulls:  # the value may be NULL, too: an outer join may have no matching row
            self._set(register, NO_VALUE)

    def _pass_parameters(self) -> None:
        """Pass the register values of the firing programs to the triggers.

        EXPLAIN does not show which program fires which trigger, so each trigger gets the values of all programs.
        """
        calls = [(number, op.p1) for number, one in enumerate(self._programs) for op in one.ops if op.name == "Program"]
        for number, program in enumerate(self._programs):
            for op in checked(program.ops, self._check):
                if op.name == "Param":
                    target = number * _STRIDE + op.p2
                    for caller, first in calls:
                        self._edges[caller * _STRIDE + first + op.p1, target, ""] = None

    def _compare(self, op: Op) -> None:
        """Apply the affinity of a comparison, which may convert its operands in place."""
        affinity = chr(op.p5 & 0x47)
        if affinity >= "C":
            self._convert(op.p1, "C")
            self._convert(op.p3, "C")
        elif affinity == "B":
            self._convert(op.p1, "B")
            self._convert(op.p3, "B")

    def _edge(self, source: Slot, target: Slot, affinity: str) -> None:
        self._edges[self._slot(source), self._slot(target), affinity] = None

    def _propagate(self) -> None:
        """Propagate values along the edges until nothing changes; follow an edge again when its source has changed."""
        leaving: dict[Slot, list[tuple[Slot, str]]] = {}
        for source, target, affinity in checked(self._edges, self._check):
            leaving.setdefault(source, []).append((target, affinity))
        ahead = dict.fromkeys(leaving)
        while ahead:
            source = next(iter(ahead))
            del ahead[source]
            for target, affinity in checked(leaving[source], self._check):
                if self._flow(source, target, frozenset(affinity)) and target in leaving:
                    ahead[target] = None

    def _flow(self, source: Slot, target: Slot, affinity: frozenset[str]) -> bool:
        """Add the values of one slot to another; return whether the other has changed."""
        given, held = self._values.get(source, {}), self._values.setdefault(target, {})
        if held is None:
            return False
        if given is None:
            self._values[target] = None
            return True
        changed = False
        for key, affinities in tuple(given.items()):
            wanted, had = affinities | affinity, held.get(key)
            if had is None or not had >= wanted:
                held[key] = wanted if had is None else had | wanted
                changed = True
        return changed


class _Fill(NamedTuple):
    """The instructions and cursors that rows of a private table come from."""

    is_known: bool  # whether ``made`` and ``copied`` have all sources
    made: tuple[Op, ...]  # the MakeRecord instructions of the rows
    copied: tuple[int, ...]  # cursors whose rows are copied whole


_LEAVES_RECORD = frozenset({"NewRowid", "SCopy", "IntCopy", "Sequence", "Rowid", "IdxRowid", "Integer"})


class PrivateRecords:
    """The sources of the columns of private tables, in one program.

    A table counts as known if each of its rows is made by MakeRecord, or copied whole from a known table.
    """

    def __init__(self, ops: list[Op], private: set[int], check: Check) -> None:
        self._ops, self._targets = ops, jump_targets(ops)
        self._made: dict[int, list[Op]] = {}
        self._copied: dict[int, list[int]] = {}  # register -> cursors whose row is copied into it
        self._filled: dict[int, list[_Fill]] = {}  # cursor -> the sources of its rows
        self._ids: dict[int, set[int]] = {}  # cursor -> registers of its rows' rowids
        self._same: dict[int, int] = {}  # a second cursor on a private table -> the first
        self._others = _written_otherwise(ops)
        for op in ops:
            if op.name == "MakeRecord":
                self._made.setdefault(op.p3, []).append(op)
            elif op.name in ("SorterData", "RowData"):
                self._copied.setdefault(op.p2, []).append(op.p1)
        for op in checked(ops, check):
            if op.name in ("IdxInsert", "Insert", "SorterInsert"):
                self._filled.setdefault(op.p1, []).append(self._fill(op.p2, op.address))
                if op.name == "Insert":
                    self._ids.setdefault(op.p1, set()).add(op.p3)
            elif op.name == "OpenPseudo":
                self._filled.setdefault(op.p1, []).append(self._fill(op.p2, None))
            elif op.name == "OpenDup":
                self._same[op.p1] = op.p2
        self._known = dict.fromkeys(private, True)
        changed = True
        while changed:
            changed = False
            for cursor in checked(private, check):
                if self._known[cursor] and not self._is_known(cursor):
                    self._known[cursor], changed = False, True
        self._asked: dict[tuple[int, int], None] = {}

    def _fill(self, register: int, address: int | None) -> "_Fill":
        """Return the instructions and cursors that can be the source of the record in a register.

        With an address, return only the possible sources when the instruction at that address runs.
        """
        if address is not None:
            maker = self._maker(register, address)
            if maker is not None:
                return _Fill(True, (maker,), ())
        made, copied = self._made.get(register, ()), self._copied.get(register, ())
        return _Fill(bool(made or copied) and register not in self._others, tuple(made), tuple(copied))

    def _maker(self, register: int, address: int) -> Op | None:
        """Return the MakeRecord that has filled the register when the program is at an address; None if not certain."""
        while address not in self._targets and address > 0:
            address -= 1
            op = self._ops[address]
            if op.name == "MakeRecord" and op.p3 == register:
                return op
            if op.name not in _LEAVES_RECORD or register in _written_otherwise([op]):
                return None
        return None

    def _is_known(self, cursor: int) -> bool:
        original = self._same.get(cursor)
        if original is not None and not self._known.get(original, False):
            return False
        for fill in self._filled.get(cursor, ()):
            if not fill.is_known or not all(self._known.get(other, False) for other in fill.copied):
                return False
        # A second cursor on the same table may insert rows as well.
        return all(
            self._known[other] for other, first in self._same.items() if first == cursor and other in self._known
        )

    def column(self, cursor: int, column: int) -> Slot | None:
        """Return the slot of a column and record it for ``edges``; None if its values are unknown."""
        if column == ROWID:
            has_copies = cursor in self._same or cursor in self._same.values()
            if cursor not in self._known or cursor not in self._ids or has_copies:
                return None
        elif not self._known.get(cursor, False):
            return None
        self._asked[cursor, column] = None
        return "record", cursor, column

    def edges(self) -> list[tuple[Slot, Slot, str]]:
        """Return the sources of the recorded columns: the column's slot, the source's slot and an affinity."""
        found: list[tuple[Slot, Slot, str]] = []
        ahead = list(self._asked)
        for cursor, column in ahead:
            into: Slot = ("record", cursor, column)
            others = [self._same[cursor]] if cursor in self._same else []
            others += [other for other, first in self._same.items() if first == cursor]
            if column == ROWID:
                found += [(into, register, "") for register in self._ids.get(cursor, ())]
            for fill in self._filled.get(cursor, ()) if column != ROWID else ():
                others += fill.copied
                for op in fill.made:
                    if column < op.p2:
                        found.append((into, op.p1 + column, (op.p4 or "")[column : column + 1].strip("@A")))
            for other in others:
                found.append((into, ("record", other, column), ""))
                if (other, column) not in self._asked:
                    self._asked[other, column] = None
                    ahead.append((other, column))
        return found


def _written_otherwise(ops: list[Op]) -> set[int]:
    """Return the registers into which instructions may put values other than whole records."""
    found: set[int] = set()
    for op in ops:
        if op.name in ("MakeRecord", "SorterData", "RowData"):
            continue
        if op.name in ("Copy", "Move"):
            found.update(range(op.p2, op.p2 + max(op.p3, 0) + 1))
        elif op.name in ("SCopy", "IntCopy", "Integer", "Int64", "Real", "String8", "Variable", "Param", "Blob"):
            found.add(op.p2)
        else:
            found.update(getattr(op, operand) for operand in WRITES.get(op.name, ()))
    return found


def _value_lists(program: list[Op]) -> set[int]:
    """Return the cursors of one-column ephemeral tables that only get rows by IdxInserts right after a MakeRecord."""
    lists: dict[int, bool] = {}
    for op in program:
        if op.name == "OpenEphemeral":
            lists[op.p1] = op.p2 == 1 and op.p1 not in lists
    for op in program:
        if op.p1 not in lists:
            continue
        if op.name in ("SorterInsert", "Insert") or (op.name in OPENS | OPENS_PRIVATE and op.name != "OpenEphemeral"):
            lists[op.p1] = False
        elif op.name == "IdxInsert":
            made = program[op.address - 1]
            if made.name != "MakeRecord" or made.p3 != op.p2 or made.p2 != 1:
                lists[op.p1] = False
    return {cursor for cursor, good in lists.items() if good}

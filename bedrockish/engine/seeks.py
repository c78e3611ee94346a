"""Where the cursors of a bytecode program go: each move of a cursor as an interval of the keys of a table or index.

A seek gives one end of the interval. The other is given by the check that ends its loop, if every row passes it before
anything else sees the row. What cannot be shown to be bounded is the whole object.
"""

from dataclasses import dataclass, field

from bedrockish.engine.constraints import constraint_probes
from bedrockish.engine.keys import ROWID_SPEC, Spec
from bedrockish.engine.opcodes import (
    BY_ROWID,
    EXACT,
    INDEX_STOPS,
    KNOWN,
    LOADS,
    OPENS,
    OPENS_PRIVATE,
    POSITIONS,
    SEEKS,
    STEPS,
    WHOLE,
    Op,
)
from bedrockish.engine.registers import Atom, Registers
from bedrockish.engine.schema import Index, Schema, Table

_REGISTER_ROOT = 0x10  # P5 of OpenRead and OpenWrite: the root page is in a register

# How every AUTOINCREMENT insert begins and ends.
_SEQUENCE_READ = ("String8", "Null", "Rewind", "Column", "Ne", "Rowid", "Column", "AddImm", "Copy", "Goto", "Next")
_SEQUENCE_WRITE = ("NotNull", "NewRowid", "MakeRecord", "Insert", "Close")


@dataclass(frozen=True, slots=True)
class FieldValues:
    """One column of a key: all values it can have, and how it is compared."""

    atoms: frozenset[Atom]
    spec: Spec


Fields = tuple[FieldValues, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """One interval of the keys of an object.

    Attributes:
        object: ``t:NAME`` or ``i:NAME``.
        low: columns of its low end; none is the beginning of the object.
        low_after: it begins after all keys that begin with ``low``.
        high: columns of its high end; none is the end of the object.
        high_after: it includes all keys that begin with ``high``.
        exact: only keys that begin with one combination of the values of ``low`` are looked at, not those between.
    """

    object: str
    low: Fields = ()
    low_after: bool = False
    high: Fields = ()
    high_after: bool = True
    exact: bool = False


@dataclass
class ProgramReads:
    """What one program reads.

    Attributes:
        probes: reads that count only if the statement failed.
        tables: names of the tables touched.
        fallbacks: why something became a read of a whole object, and which.
        everything: something is not understood well enough to say even which objects are read.
    """

    reads: list[Access] = field(default_factory=list)
    probes: list[Access] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)
    fallbacks: list[tuple[str, str]] = field(default_factory=list)
    everything: bool = False


def program_reads(program: list[Op], schema: Schema, *, main: bool) -> ProgramReads:
    """Find what one program reads: the statement's own (``main``), or that of a trigger or foreign-key action."""
    return _Reader(program, schema, main).run()


class _Reader:
    def __init__(self, program: list[Op], schema: Schema, main: bool) -> None:
        self._program, self._schema = program, schema
        self._out = ProgramReads()
        self._cursors: dict[int, set[int]] = {}
        self._private: set[int] = set()
        self._unknown: str | None = None
        self._sequences: set[int] = set()
        self._survey()
        self._registers = Registers(program, schema, self._cursors, self._private)
        self._constraints = constraint_probes(program, main=main)

    def _survey(self) -> None:
        for op in self._program:
            if op.name in OPENS:
                if self._keeps_sequence(op):
                    continue
                if op.p3 != 0 or op.p5 & _REGISTER_ROOT or op.p2 not in self._schema.roots:
                    self._give_up(f"{op.name} of an unknown table")
                    continue
                self._cursors.setdefault(op.p1, set()).add(op.p2)
                found = self._schema.roots[op.p2]
                self._out.tables.add(found.name if isinstance(found, Table) else found.table)
            elif op.name in OPENS_PRIVATE:
                self._private.add(op.p1)
            elif op.name == "VOpen" and self._schema.virtual:
                self._give_up("virtual table")
            elif op.name == "Clear" and op.p2 == 0 and op.p1 in self._schema.roots:
                self._whole(self._schema.roots[op.p1], "Clear", self._out.reads)
            elif op.name not in KNOWN:
                self._give_up(f"opcode {op.name}")

    def _keeps_sequence(self, op: Op) -> bool:
        """Whether an AUTOINCREMENT insert opens sqlite_sequence here, to look up its table's row or to write it back.

        It only chooses an id by it, and any id that is free is right. The cursor is the one of the table itself.
        """
        found = self._schema.roots.get(op.p2)
        if not isinstance(found, Table) or found.name != "sqlite_sequence":
            return False
        shape = _SEQUENCE_READ if op.name == "OpenRead" else _SEQUENCE_WRITE
        following = self._program[op.address + 1 : op.address + 1 + len(shape)]
        if tuple(one.name for one in following) != shape:
            return False
        self._sequences |= {one.address for one in following if one.name == "Rewind"}
        return True

    def _give_up(self, reason: str) -> None:
        self._unknown = reason
        self._out.everything = True
        self._out.fallbacks.append((reason, "everything"))

    def run(self) -> ProgramReads:
        for op in self._program:
            if (op.name not in POSITIONS and op.name not in WHOLE) or op.address in self._sequences:
                continue
            if op.p1 in self._private and op.p1 not in self._cursors:
                continue
            probe = op.address in self._constraints and not self._opaque(op.p1)
            into = self._out.probes if probe else self._out.reads
            fallbacks = len(self._out.fallbacks)
            self._position(op, into)
            if probe:
                del self._out.fallbacks[fallbacks:]
        return self._out

    def _opaque(self, cursor: int) -> bool:
        """Such an index has no keys by value that could stand for the probe."""
        found = [self._schema.roots[root] for root in self._cursors.get(cursor, ())]
        return any(isinstance(one, Index) and one.opaque for one in found)

    def _whole(self, found: Table | Index, reason: str, into: list[Access]) -> None:
        name = found.object
        into.append(Access(name))
        self._out.fallbacks.append((reason, name))

    def _position(self, op: Op, into: list[Access]) -> None:
        found = [self._schema.roots[root] for root in sorted(self._cursors.get(op.p1, ()))]
        if not found and not self._out.everything:
            self._give_up(f"{op.name} of a cursor opened elsewhere")
        reason = None
        if op.name in WHOLE:
            reason = op.name
        elif len(found) != 1 or op.p1 in self._private:
            reason = f"{op.name} of a cursor with several uses"
        elif isinstance(found[0], Index) and found[0].opaque:
            reason = "index on an expression, a generated column or a collation of the application"
        if reason is not None:
            for one in found:
                self._whole(one, reason, into)
        elif op.name in EXACT:
            self._exact(op, found[0], into)
        else:
            self._range(op, found[0], into)

    # ------------------------------------------------------------------ one row, or all rows with equal columns

    def _exact(self, op: Op, found: Table | Index, into: list[Access]) -> None:
        registers = self._probe_registers(op)
        name = found.object
        fields = self._fields(registers, found)
        if not fields:
            if isinstance(found, Table) and registers and self._only_known_rows(registers[0], found, into):
                return
            self._whole(found, f"{op.name} by a value from another row", into)
            return
        if len(registers) == 1 and self._registers.from_list(registers[0]):
            self._each(name, fields, into)
            return
        if len(fields) < len(registers):
            self._out.fallbacks.append((f"{op.name} partly by values from another row", name))
        into.append(Access(name, fields, False, fields, True, exact=True))

    def _probe_registers(self, op: Op) -> list[int]:
        if op.name in BY_ROWID:
            return [op.p3]
        count = int(op.p4 or 0)
        if count:
            return list(range(op.p3, op.p3 + count))
        made = [other for other in self._program if other.name == "MakeRecord" and other.p3 == op.p3]
        return list(range(made[0].p1, made[0].p1 + made[0].p2)) if len(made) == 1 else []

    def _only_known_rows(self, register: int, table: Table, into: list[Access]) -> bool:
        """Rowids of rows of this very table were found by reads already noted; whatever changes them meets those."""
        atoms = self._registers.values(register)
        if atoms is None or any(atom.kind == "row" and atom.payload != table.name for atom in atoms):
            return False
        for atom in atoms:
            if atom.kind != "row":
                one = (FieldValues(frozenset({_as_rowid(atom)}), ROWID_SPEC),)
                into.append(Access(table.object, one, False, one, True, exact=True))
        return True

    def _each(self, name: str, fields: Fields, into: list[Access]) -> None:
        """One access for each value of the IN list that the last column runs through."""
        for atom in sorted(fields[-1].atoms, key=repr):
            one = (*fields[:-1], FieldValues(frozenset({atom}), fields[-1].spec))
            into.append(Access(name, one, False, one, True, exact=True))

    def _fields(self, registers: list[int], found: Table | Index) -> Fields:
        """Return the leading columns whose values are known."""
        specs = (ROWID_SPEC,) if isinstance(found, Table) else found.specs
        fields: list[FieldValues] = []
        for register, spec in zip(registers, specs, strict=False):
            atoms = self._registers.values(register) if self._unknown is None else None
            if atoms is None or any(atom.kind == "row" for atom in atoms):
                break
            if isinstance(found, Table):
                atoms = frozenset(_as_rowid(atom) for atom in atoms)
            fields.append(FieldValues(atoms, spec))
        return tuple(fields)

    # ------------------------------------------------------------------ ranges

    def _range(self, op: Op, found: Table | Index, into: list[Access]) -> None:
        low: Fields = ()
        high: Fields = ()
        low_after, high_after = False, True
        registers: list[int] = []
        if op.name in SEEKS:
            registers = [op.p3] if isinstance(found, Table) else list(range(op.p3, op.p3 + int(op.p4 or 0)))
            fields = self._fields(registers, found)
            complete = len(fields) == len(registers)
            if op.name in ("SeekGE", "SeekGT"):
                low, low_after = fields, op.name == "SeekGT" and complete
            else:
                high, high_after = fields, not (op.name == "SeekLT" and complete)
        stop = self._stop(op, found)
        if stop is not None:
            at, kind = stop
            fields = self._fields(at, found)
            complete = len(fields) == len(at)
            if kind in ("IdxGT", "IdxGE", "Gt", "Ge"):
                high, high_after = fields, kind in ("IdxGT", "Gt") or not complete
            else:
                low, low_after = fields, kind in ("IdxLE", "Le") and complete
            same = op.name == "SeekGE" and kind == "IdxGT" and registers == at and complete
            if same and registers and self._registers.from_list(registers[-1]):
                self._each(found.object, low, into)
                return
        name = found.object
        if not low and not high:
            self._out.fallbacks.append((f"{op.name} with no bound", name))
        elif not low or not high:
            self._out.fallbacks.append((f"{op.name} with one bound", name))
        into.append(Access(name, low, low_after, high, high_after))

    def _stop(self, op: Op, found: Table | Index) -> tuple[list[int], str] | None:
        """Find the check that ends the loop which begins here: the registers it compares with, and its opcode."""
        program = self._program
        first = op.address + 1
        while first < len(program) and program[first].name in LOADS:
            first += 1
        at = first
        if at >= len(program):
            return None
        check = program[at]
        if check.name in INDEX_STOPS and check.p1 == op.p1:
            registers = list(range(check.p3, check.p3 + int(check.p4 or 0)))
        elif check.name == "Rowid" and check.p1 == op.p1 and isinstance(found, Table) and at + 1 < len(program):
            rowid, at = check.p2, at + 1
            check = program[at]
            if check.name not in ("Gt", "Ge", "Lt", "Le") or check.p3 != rowid:
                return None
            registers = [check.p1]
        else:
            return None
        return (registers, check.name) if self._guards(op, first, at, check.p2) else None

    def _guards(self, seek: Op, first: int, stop: int, target: int) -> bool:
        """Tell whether every row that this loop comes to passes the check before anything else."""
        program = self._program
        end = next(
            (op.address for op in program[stop + 1 :] if op.name in POSITIONS and op.p1 == seek.p1), len(program)
        )
        steps = [op for op in program if op.name in STEPS and op.p1 == seek.p1]
        if any(first < op.p2 <= end for op in steps):
            return False  # a step that goes on after the check
        return not any(stop < target <= op.address for op in steps if seek.address < op.p2 <= first)


def _as_rowid(atom: Atom) -> Atom:
    return atom._replace(affinities=atom.affinities | {"C"})

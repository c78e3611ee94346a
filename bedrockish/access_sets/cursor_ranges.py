"""Derives the reads of a bytecode program: each move of a cursor as an interval of the keys of a table or index.

A seek gives one end of the interval. The check that ends its loop gives the other end, if every row passes the check
before any other instruction uses the row. A move without a provable bound reads the whole table or index.

If a cursor is positioned by a column of another cursor's rows, as in a join, the read has two intervals: one from the
text and the parameters alone (``Dependent.coarse``), and one that also uses those rows (``Dependent.fine``).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from bedrockish.access_sets.catalog import ROWID, Index, Schema, Table, columns_object, stored_column
from bedrockish.access_sets.computed_columns import comparable_columns
from bedrockish.access_sets.constraint_probes import constraint_probes
from bedrockish.access_sets.cursor_lives import other_cursors, split_cursors
from bedrockish.access_sets.effort import EVERY, Check, checked, unlimited
from bedrockish.access_sets.key_encoding import ROWID_SPEC, Spec, column_key, object_prefix
from bedrockish.access_sets.loop_stops import LoopReader, Stop
from bedrockish.access_sets.opcodes import (
    BY_ROWID,
    CURSORS,
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
    jump_targets,
)
from bedrockish.access_sets.register_values import Atom, BytecodeProgram, Cell, Registers
from bedrockish.access_sets.virtual_layout import VIRTUAL, virtual_reads
from bedrockish_journal.storage.table_layout import SKIP_LOCKED

_NOT_COMPARABLE = "index on a collation of the application, or on an expression that is not understood"
_BEFORE_SEEK = frozenset({"IsNull", "Affinity", "Column", "Rowid", "IdxRowid", "SCopy", "Copy", "Variable", "Integer"})
TEMPORARY = 1  # P3 of OpenRead and OpenWrite for TEMP tables; higher numbers are attached files
REGISTER_ROOT = 0x10  # P5 of OpenRead and OpenWrite: the root page is in a register

COLUMNS_MAX = 9  # a read of this many columns of a row, or more, is a read of the whole row
_OF_COLUMNS = (
    POSITIONS - EXACT
    | STEPS
    | BY_ROWID
    | {"OpenRead", "Column", "Rowid", "NullRow", "IfNullRow", "Close", "ColumnsUsed"}
)
"""Opcodes that depend only on the id of the cursor's row and on the column that they name, not on the whole row."""

_SKIP_LOCKED = f"{SKIP_LOCKED}("  # the beginning of P4 in a call of ``skip_locked``

# The instructions with which every AUTOINCREMENT insert begins and ends.
_SEQUENCE_READ = ("String8", "Null", "Rewind", "Column", "Ne", "Rowid", "Column", "AddImm", "Copy", "Goto", "Next")
_SEQUENCE_WRITE = ("NotNull", "NewRowid", "MakeRecord", "Insert", "Close")


@dataclass(frozen=True, slots=True)
class FieldValues:
    """One column of a key: all values that it can have, and how it is compared."""

    atoms: frozenset[Atom]
    spec: Spec
    not_null: bool = False  # whether the program skips the seek if the value is NULL


Fields = tuple[FieldValues, ...]


@dataclass(frozen=True, slots=True)
class KeyInterval:
    """An interval of the keys of a table or index."""

    object: str  # ``t:NAME`` or ``i:NAME``
    low: Fields = ()  # columns of the low end; empty for the beginning of the object
    low_after: bool = False  # whether the interval leaves out the keys that begin with ``low``
    high: Fields = ()  # columns of the high end; empty for the end of the object
    high_after: bool = True  # whether the interval includes the keys that begin with ``high``
    # Whether only keys that begin with a combination of the values of ``low`` are read, and none in between.
    exact: bool = False
    equal: int = 0  # number of leading columns that always have the same value at both ends
    stop: Stop | None = None  # what may end the loop over the interval early, such as a LIMIT
    # The columns of the row on which the statement can depend, if the read is of one row; None for all.
    columns: frozenset[str] | None = None

    @property
    def cells(self) -> frozenset[Cell]:
        """The columns of other cursors' rows on which the ends of the interval depend."""
        return frozenset(atom.payload for one in (*self.low, *self.high) for atom in one.atoms if atom.kind == "column")

    @property
    def id_tables(self) -> frozenset[str]:
        """The tables whose automatic ids, given to new rows, determine the ends of the interval."""
        return frozenset(atom.payload for one in (*self.low, *self.high) for atom in one.atoms if atom.kind == "new")

    @property
    def is_dynamic(self) -> bool:
        """Return whether the ends of the interval depend on rows."""
        return any(atom.kind in ("column", "new") for one in (*self.low, *self.high) for atom in one.atoms)


@dataclass(frozen=True, slots=True)
class Dependent:
    """A read that depends on rows read before."""

    coarse: KeyInterval  # an interval that contains the read, whatever the rows read before
    fine: KeyInterval  # the narrower interval, with ends that use columns of the rows read before
    reasons: tuple[tuple[str, str], ...]  # why ``coarse`` may be too wide, each with the object


def points_of(access: KeyInterval) -> Callable[[Iterable[bytes]], list[bytes]] | None:
    """Return the function from the row keys of an access to its column keys; None if it reads whole rows."""
    if access.columns is None:
        return None
    size = len(object_prefix(access.object))
    prefix = object_prefix(columns_object(access.object))
    suffixes = [b"", *(column_key(b"", name) for name in sorted(access.columns))]
    return lambda rows: [prefix + row[size:] + suffix for row in rows for suffix in suffixes]


CursorId = tuple[int, int]
"""The number of a program and that of a cursor in it."""


@dataclass
class ProgramReads:
    """The reads of one bytecode program, as intervals of the keys of tables and indexes."""

    reads: list[KeyInterval] = field(default_factory=list)
    dependents: list[Dependent] = field(default_factory=list)  # reads that depend on columns of rows read by any cursor
    # Cursor -> the sources of its rows: its own accesses, and other cursors that it follows to their rows.
    rows: dict[CursorId, list[KeyInterval | CursorId]] = field(default_factory=dict)
    # Cursor -> its table or index, if it is always on the same one.
    on: dict[CursorId, Table | Index] = field(default_factory=dict)
    probes: list[KeyInterval] = field(default_factory=list)  # reads that count only if the statement failed
    tables: set[str] = field(default_factory=set)  # names of the tables that the program opens
    # Pairs of a reason and an object that is read as a whole for that reason.
    fallbacks: list[tuple[str, str]] = field(default_factory=list)
    everything: bool = False  # whether the program counts as reading the whole database, because it is not understood
    locking: set[str] = field(default_factory=set)  # names of the tables for which the program calls ``skip_locked()``

    @property
    def by_column(self) -> bool:
        """Return whether the program reads only some columns of some rows."""
        return any(one.columns is not None for one in (*self.reads, *(one.fine for one in self.dependents)))

    def narrowed(self, columns: Mapping[str, frozenset[str]]) -> "ProgramReads":
        """Return these reads, with exact reads narrowed to the needed columns; ``columns`` gives these by object."""

        def narrow(access: KeyInterval) -> KeyInterval:
            needed = columns.get(access.object)
            return replace(access, columns=needed) if needed is not None and access.exact else access

        return replace(
            self,
            reads=[narrow(access) for access in self.reads],
            dependents=[replace(one, coarse=narrow(one.coarse), fine=narrow(one.fine)) for one in self.dependents],
            rows={
                cursor: [narrow(one) if isinstance(one, KeyInterval) else one for one in rows]
                for cursor, rows in self.rows.items()
            },
        )

    def relaxed(self, schema: Schema) -> "ProgramReads":
        """Return these reads without those of tables in ``locking``, of which only the locked rows count as read."""
        names = {name.lower() for name in self.locking}
        tables = [table for table in schema.tables.values() if table.name.lower() in names]
        objects = {table.object for table in tables} | {index.object for table in tables for index in table.indexes}
        return replace(
            self,
            reads=[access for access in self.reads if access.object not in objects],
            dependents=[one for one in self.dependents if one.coarse.object not in objects],
            probes=[access for access in self.probes if access.object not in objects],
            fallbacks=[(reason, name) for reason, name in self.fallbacks if name not in objects],
        )


def statement_reads(
    programs: list[list[Op]],  # the programs, in the form of EXPLAIN
    schema: Schema,  # the schema for which the programs were compiled
    check: Check = unlimited,  # raises an error when the analysis has used up its time
    *,
    # Whether to find the loops that end before their range does; only if exactly this program is going to run.
    with_stops: bool = True,
    # The tables that the statement names; ``-NAME`` for an INSERT into it. None if unknown: a virtual table then counts
    # as a read of everything.
    accessed_tables: Set[str] | None = None,
) -> list[ProgramReads]:
    """Return the reads of a statement's programs: first its own, then those of triggers and key actions."""
    readers = [
        _Reader(ops, schema, number, check, with_stops=with_stops, accessed_tables=accessed_tables)
        for number, ops in enumerate(programs)
    ]
    registers = Registers([reader.program for reader in readers], schema, check)
    found = [reader.run(registers) for reader in readers]
    tables = Counter(name for reader in readers for name in reader.tables_of_cursors())
    needed = {name: columns for reader in readers for name, columns in reader.columns() if tables[name] == 1}
    return [reads.narrowed({schema.tables[name].object: needed[name] for name in needed}) for reads in found]


class _Reader:
    """Derives the ranges of the cursors of one program.

    Why so large: The tables of facts about a program are built once, and the handling of each kind of instruction needs
    most of them.
    """

    def __init__(
        self,
        ops: list[Op],
        schema: Schema,
        number: int,
        check: Check,
        *,
        with_stops: bool,
        accessed_tables: Set[str] | None,
    ) -> None:
        ops = split_cursors(ops, check)
        self._named = accessed_tables
        self._program, self._schema, self._number = ops, schema, number
        self._check = check if len(ops) > EVERY else unlimited
        self._with_stops = with_stops and number == 0  # a trigger has no stops: it may run again after a change
        self._found = ProgramReads()
        self._cursors: dict[int, set[int]] = {}
        self._private: set[int] = set()
        self._temporary: set[int] = set()
        self._why_unknown: str | None = None
        self._sequences: set[int] = set()
        self._survey()
        self._with_stops = self._with_stops and not self._temporary  # the auxiliary query could not read TEMP tables
        self.program = BytecodeProgram(ops, self._cursors, self._private, self._temporary)
        self._constraints = constraint_probes(ops, check, main=number == 0)
        self._targets = jump_targets(ops)
        self._steps: dict[int, list[Op]] = {}  # cursor -> the instructions that move it to another row
        self._positions: dict[int, list[Op]] = {}
        self._made: dict[int, list[Op]] = {}  # register -> the instructions that make a record in it
        for op in checked(ops, check):
            if op.name in STEPS:
                self._steps.setdefault(op.p1, []).append(op)
            elif op.name in POSITIONS:
                self._positions.setdefault(op.p1, []).append(op)
            elif op.name == "MakeRecord":
                self._made.setdefault(op.p3, []).append(op)
        self._registers: Registers

    def _survey(self) -> None:
        virtual = virtual_reads(self._program, self._schema.virtual, self._named or ())
        self._found.reads += [KeyInterval(name) for name in virtual.objects]
        self._found.fallbacks += [(VIRTUAL, name) for name in virtual.objects]
        self._found.probes += [KeyInterval(name) for name in virtual.probes]
        for op in self._program:
            if op.name in OPENS:
                if self._is_autoincrement(op):
                    continue
                if op.p3 >= TEMPORARY and not op.p5 & REGISTER_ROOT:
                    self._temporary.add(op.p1)
                    self._private.add(op.p1)
                    continue
                if op.p3 != 0 or op.p5 & REGISTER_ROOT or op.p2 not in self._schema.roots:
                    self._give_up(f"{op.name} of an unknown table")
                    continue
                self._cursors.setdefault(op.p1, set()).add(op.p2)
                found = self._schema.roots[op.p2]
                name = found.name if isinstance(found, Table) else found.table
                self._found.tables.add(name)
                if name in self._schema.virtual.shadows:
                    self._found.reads += map(KeyInterval, self._schema.virtual.objects_of(name))
            elif op.name in OPENS_PRIVATE:
                self._private.add(op.p1)
            elif op.name == "VOpen" and self._schema.virtual.tables and self._named is None:
                self._give_up(VIRTUAL)
            elif op.name == "Clear" and op.p2 == 0 and op.p1 in self._schema.roots:
                read = _whole(self._schema.roots[op.p1], "Clear")
                self._found.reads.append(read.coarse)
                self._found.fallbacks += read.reasons
            elif op.name not in KNOWN:
                self._give_up(f"opcode {op.name}")

    def _is_autoincrement(self, op: Op) -> bool:
        """Return whether an AUTOINCREMENT insert opens sqlite_sequence here, to read its row or to write it back.

        The read of that row need not be certified, because it only determines the new id, and any free id is right.
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
        self._why_unknown = reason
        self._found.everything = True
        self._found.fallbacks.append((reason, "everything"))

    def run(self, registers: Registers) -> ProgramReads:
        self._registers = registers
        for cursor, roots in self._cursors.items():
            if len(roots) == 1 and cursor not in self._private:
                self._found.on[self._number, cursor] = self._schema.roots[next(iter(roots))]
        for op in checked(self._program, self._check):
            if op.name == "Function" and (op.p4 or "").startswith(_SKIP_LOCKED):
                self._found.locking |= self._names_of(op.p2)
            if op.name == "DeferredSeek":
                self._add_rows(op.p3, (self._number, op.p1))
            if (op.name not in POSITIONS and op.name not in WHOLE) or op.address in self._sequences:
                continue
            if op.p1 in self._private and op.p1 not in self._cursors:
                continue
            if op.name == "IfEmpty" and self._is_positioned(op.p1):
                continue
            self._position(op, is_probe=op.address in self._constraints)
        return self._found

    def tables_of_cursors(self) -> Iterator[str]:
        """Yield the table of each cursor that is on a table or an index, once for each."""
        for roots in self._cursors.values():
            for root in roots:
                found = self._schema.roots[root]
                yield found.name if isinstance(found, Table) else found.table

    def columns(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield, for each cursor that reads only some columns of its rows, its table and these columns."""
        for (_, cursor), found in self._found.on.items():
            self._check()
            if not isinstance(found, Table) or not found.has_column_keys:
                continue
            ops = [
                op for op in self._program if (op.name in CURSORS and op.p1 == cursor) or cursor in other_cursors(op)
            ]
            numbers = {stored_column(found, op.p2) for op in ops if op.name == "Column"}
            names = frozenset(found.columns[number].name for number in numbers if number is not None)
            # A read of nearly all columns counts as a read of the row: column keys would cost more than they gain.
            rest = len(found.columns) - (found.rowid_column is not None)
            is_plain = all(op.name in _OF_COLUMNS for op in ops) and None not in numbers
            if is_plain and len(names) < min(rest, COLUMNS_MAX):
                yield found.name, names

    def _names_of(self, register: int) -> set[str]:
        """Return the text in a register, if the register can hold only one constant text; else an empty set."""
        atoms = self._registers.values(self._number, register) or ()
        values = [atom.payload[1] if atom.kind == "const" else None for atom in atoms]
        return {value for value in values if isinstance(value, str)} if len(values) == 1 else set()

    def _is_positioned(self, cursor: int) -> bool:
        """Return whether an instruction other than the test for an empty table positions this cursor.

        If so, the test adds no read: its only effect is to skip lookups, whose reads are recorded anyway.
        """
        return any(
            (op.name in POSITIONS and op.p1 == cursor) or (op.name == "DeferredSeek" and op.p3 == cursor)
            for op in self._program
        )

    def _add_rows(self, cursor: int, rows: KeyInterval | CursorId) -> None:
        self._found.rows.setdefault((self._number, cursor), []).append(rows)

    def _position(self, op: Op, *, is_probe: bool) -> None:
        self._check()
        found = [self._schema.roots[root] for root in sorted(self._cursors.get(op.p1, ()))]
        if not found and not self._found.everything:
            self._give_up(f"{op.name} of a cursor opened elsewhere")
        reason = None
        if op.name in WHOLE:
            reason = op.name
        elif len(found) != 1 or op.p1 in self._private:
            reason = f"{op.name} of a cursor with several uses"
        elif not self._specs(found[0]):
            reason = _NOT_COMPARABLE
        reads: list[Dependent]
        if reason is not None:
            reads = [_whole(one, reason) for one in found]
        elif op.name in EXACT:
            reads = self._exact(op, found[0])
        else:
            reads = self._range(op, found[0])
        if is_probe:  # only an error depends on the row that the probe finds
            self._found.probes += [read.coarse for read in reads]
            if self._number:  # a foreign-key action changes the row that it finds, and may fire triggers for it
                for read in reads:
                    self._add_rows(op.p1, read.fine)
            return
        for read in reads:
            self._add_rows(op.p1, read.fine)
            if read.fine != read.coarse:
                self._found.dependents.append(read)
            else:
                self._found.reads.append(read.coarse)
                self._found.fallbacks += read.reasons

    # ------------------------------------------------------------------ one row, or all rows with equal columns

    def _exact(self, op: Op, found: Table | Index) -> list[Dependent]:
        registers = self._probe_registers(op)
        name = found.object
        fields = self._fields(registers, found)
        more = self._fields(registers, found, by_rows=True, not_null=self._not_null(op))
        if not fields:
            if isinstance(found, Table) and registers:
                known = self._only_known_rows(op, registers[0], found)
                if known is not None:
                    return known
            read = _whole(found, f"{op.name} by a value from another row")
        elif len(registers) == 1 and len(more) == 1 and self._registers.from_list(self._number, registers[0]):
            return [_plain(access) for access in _point_each(name, fields)]
        else:
            partly = [(f"{op.name} partly by values from another row", name)] if len(fields) < len(registers) else []
            access = KeyInterval(name, fields, False, fields, True, exact=True, equal=len(fields))
            read = Dependent(access, access, tuple(partly))
        if len(more) > len(fields):
            fine = KeyInterval(name, more, False, more, True, exact=True, equal=len(more))
            read = Dependent(read.coarse, fine, read.reasons)
        return [read]

    def _specs(self, found: Table | Index) -> tuple[Spec, ...]:
        """Return how each leading column of a key is compared, as far as these columns have comparable key bytes."""
        if isinstance(found, Table):
            return (ROWID_SPEC,)
        return found.specs[: comparable_columns(found, self._schema.tables[found.table])]

    def _probe_registers(self, op: Op) -> list[int]:
        if op.name in BY_ROWID:
            return [op.p3]
        count = int(op.p4 or 0)
        if count:
            return list(range(op.p3, op.p3 + count))
        made = self._made.get(op.p3, [])
        return list(range(made[0].p1, made[0].p1 + made[0].p2)) if len(made) == 1 else []

    def _only_known_rows(self, op: Op, register: int, table: Table) -> list[Dependent] | None:
        """Return the reads of a seek by rowid; None if the rowid may have an unknown source.

        A rowid that comes from a row of the same table adds no read, because that row was read already.
        """
        atoms = self._fetched_rowid(op, table) or self._registers.values(self._number, register)
        if atoms is None:
            return None
        others: list[CursorId] = []
        reads: list[Dependent] = []
        for atom in atoms:
            if atom.kind == "new" and atom.payload == table.name:
                continue
            if atom.kind == "column" and self._is_rowid_of(atom.payload, table):
                others.append((atom.payload.program, atom.payload.cursor))
            elif atom.kind in ("const", "param"):
                one = (FieldValues(frozenset({_as_rowid(atom)}), ROWID_SPEC),)
                reads.append(_plain(KeyInterval(table.object, one, False, one, True, exact=True, equal=1)))
            else:
                return None
        for other in others:
            self._add_rows(op.p1, other)
        return reads

    def _fetched_rowid(self, seek: Op, table: Table) -> frozenset[Atom]:
        """Return the rowid that the instruction right before a seek reads from a row of the table; empty without one.

        Later instructions do not count: an upsert puts a column's values into the same register.
        """
        before = self._program[seek.address - 1]
        cell = Cell(self._number, before.p1, ROWID)
        if seek.address in self._targets or before.name not in ("IdxRowid", "Rowid") or before.p2 != seek.p3:
            return frozenset()
        return frozenset({Atom("column", cell)}) if self._is_rowid_of(cell, table) else frozenset()

    def _is_rowid_of(self, cell: Cell, table: Table) -> bool:
        if cell.column != ROWID or cell.program != self._number:
            return False
        found = self._found.on.get((cell.program, cell.cursor))
        return found is table or (isinstance(found, Index) and found.table == table.name)

    def _fields(
        self, registers: list[int], found: Table | Index, *, by_rows: bool = False, not_null: Set[int] = frozenset()
    ) -> Fields:
        """Return the leading key columns with known values; with ``by_rows``, also values from rows read before."""
        specs = self._specs(found)
        known = ("const", "param", "column", "new") if by_rows else ("const", "param")
        fields: list[FieldValues] = []
        for register, spec in zip(registers, specs, strict=False):
            atoms = self._registers.values(self._number, register) if self._why_unknown is None else None
            if atoms is None or any(atom.kind not in known for atom in atoms):
                break
            if isinstance(found, Table):
                atoms = frozenset(_as_rowid(atom) for atom in atoms)
            fields.append(FieldValues(atoms, spec, register in not_null))
        return tuple(fields)

    def _not_null(self, seek: Op) -> Set[int]:
        """Return the registers that are tested for NULL right before a seek, which is skipped if they are NULL."""
        found: set[int] = set()
        written: set[int] = set()
        for op in reversed(self._program[: seek.address]):
            if op.address + 1 in self._targets or op.name not in _BEFORE_SEEK:
                break  # the seek can be reached on another path
            if op.name == "IsNull" and op.p1 not in written:
                found.add(op.p1)
            written |= {op.p2, op.p3} if op.name not in ("IsNull", "Affinity") else set()
        return found

    # ------------------------------------------------------------------ ranges

    def _range(self, op: Op, found: Table | Index) -> list[Dependent]:
        coarse, same = self._interval(op, found, by_rows=False)
        fine, _ = self._interval(op, found, by_rows=True)
        if same and not fine.is_dynamic and self._registers.from_list(self._number, same[-1]):
            return [_plain(access) for access in _point_each(found.object, coarse.low)]
        reasons = []
        if not coarse.low and not coarse.high:
            reasons.append((f"{op.name} with no bound", found.object))
        elif not coarse.low or not coarse.high:
            reasons.append((f"{op.name} with one bound", found.object))
        if self._with_stops and not fine.is_dynamic and not (isinstance(found, Index) and found.opaque):
            fine = replace(fine, stop=self._loop_stop(op, found))
        return [Dependent(coarse, fine if fine.is_dynamic or fine.stop else coarse, tuple(reasons))]

    def _loop_stop(self, op: Op, found: Table | Index) -> Stop | None:
        guard = self._stop(op, found)
        loops = LoopReader(
            self._program,
            self._schema,
            lambda register: self._registers.values(self._number, register),
            lambda register: self._registers.changed_at(self._number, register),
            lambda cursor: cursor in self._private and cursor not in self._cursors,
            self._rowid_table,
        )
        steps = self._steps.get(op.p1, ())
        return loops.stop(op, found, op.address if guard is None else guard[2], steps)

    def _rowid_table(self, cursor: int) -> Table | None:
        found = self._found.on.get((self._number, cursor))
        return found if isinstance(found, Table) and found.key is None else None

    def _interval(self, op: Op, found: Table | Index, *, by_rows: bool) -> tuple[KeyInterval, list[int]]:
        """Return the interval of a loop, and the registers of the columns that have a given value in all its rows."""
        low: Fields = ()
        high: Fields = ()
        low_after, high_after = False, True
        registers: list[int] = []
        same: list[int] = []
        equal = 0
        not_null = self._not_null(op) if by_rows else frozenset()
        if op.name in SEEKS:
            registers = [op.p3] if isinstance(found, Table) else list(range(op.p3, op.p3 + int(op.p4 or 0)))
            fields = self._fields(registers, found, by_rows=by_rows, not_null=not_null)
            complete = len(fields) == len(registers)
            if op.name in ("SeekGE", "SeekGT"):
                low, low_after = fields, op.name == "SeekGT" and complete
            else:
                high, high_after = fields, not (op.name == "SeekLT" and complete)
        stop = self._stop(op, found)
        if stop is not None:
            at, kind, _ = stop
            fields = self._fields(at, found, by_rows=by_rows, not_null=not_null)
            complete = len(fields) == len(at)
            if kind in ("IdxGT", "IdxGE", "Gt", "Ge"):
                high, high_after = fields, kind in ("IdxGT", "Gt") or not complete
            else:
                low, low_after = fields, kind in ("IdxLE", "Le") and complete
            equal = min(self._equal(op, registers, at), len(low), len(high))
            if op.name == "SeekGE" and kind == "IdxGT" and registers == at and complete:
                same = registers
        return KeyInterval(found.object, low, low_after, high, high_after, equal=equal), same

    def _equal(self, op: Op, registers: list[int], stop: list[int]) -> int:
        """Return the number of leading columns that have the seek's values in all rows of the loop."""
        last = max((one.address for one in self._steps.get(op.p1, ())), default=0)
        last = max(last, len(self._program) if last < op.address else last)
        count = 0
        for register, other in zip(registers, stop, strict=False):
            if register != other or not self._registers.steady(self._number, register, op.address, last):
                break
            count += 1
        return count

    def _stop(self, op: Op, found: Table | Index) -> tuple[list[int], str, int] | None:
        """Return the check that ends the loop begun by ``op``: its registers, opcode and address; else None."""
        program = self._program
        first = op.address + 1
        while first < len(program) and (
            program[first].name in LOADS or (program[first].name == "Column" and program[first].p1 != op.p1)
        ):
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
        return (registers, check.name, at) if self._checks_every_row(op, first, at, check.p2) else None

    def _checks_every_row(self, seek: Op, first: int, stop: int, target: int) -> bool:
        """Return whether each row of this loop passes the check before any other instruction uses the row."""
        steps = self._steps.get(seek.p1, [])
        later = (op.address for op in self._positions[seek.p1] if op.address > stop)
        end = next(later, len(self._program))
        if any(first < op.p2 <= end for op in steps):
            return False  # a step continues after the check, so that rows skip it
        return not any(stop < target <= op.address for op in steps if seek.address < op.p2 <= first)


def _plain(access: KeyInterval) -> Dependent:
    return Dependent(access, access, ())


def _whole(found: Table | Index, reason: str) -> Dependent:
    access = KeyInterval(found.object)
    return Dependent(access, access, ((reason, found.object),))


def _point_each(name: str, fields: Fields) -> list[KeyInterval]:
    """Return one access for each value of the IN list with which the last column is compared."""
    found = []
    for atom in sorted(fields[-1].atoms, key=repr):
        one = (*fields[:-1], FieldValues(frozenset({atom}), fields[-1].spec))
        found.append(KeyInterval(name, one, False, one, True, exact=True, equal=len(one)))
    return found


def _as_rowid(atom: Atom) -> Atom:
    return atom._replace(affinities=atom.affinities | {"C"})

"""Which values a register of a bytecode program can hold, as far as they follow from the SQL text and its parameters.

Flow does not matter here: a register has the set of all values ever put into it anywhere in the program, or is unknown.
A key made from it lies between the smallest and the largest of them, so the answer holds on every path.
"""

from struct import Struct
from typing import Any, Literal, NamedTuple

from bedrockish.engine.opcodes import COMPARISONS, OPENS, OPENS_PRIVATE, WRITES, Op
from bedrockish.engine.schema import Schema, Table

_words = Struct(">iI")
_double = Struct(">d")


class Atom(NamedTuple):
    """One value that a register may hold.

    Attributes:
        kind: ``const`` (``payload`` is a pair of the type's name and the value), ``param`` (its number, from 1), or
            ``row``: the rowid of a row of table ``payload`` that the program came to through a recorded read.
        affinities: those that may have been applied to it, in any order.
    """

    kind: Literal["const", "param", "row"]
    payload: Any
    affinities: frozenset[str] = frozenset()


Slot = int | tuple[str, int]
"""A register, or the one column of a private table (``in``) or row set (``rowset``) by its cursor."""

Key = tuple[str, Any]
"""Kind and payload of an atom."""

NO_VALUE = Atom("const", ("NoneType", None))


def constant(value: Any) -> Atom:
    """Return the atom of a constant; its type counts, since 1 and 1.0 differ as text."""
    return Atom("const", (type(value).__name__, value))


class Registers:
    """The value sets of one program.

    Attributes:
        lists: cursors of private tables of one column that are filled from values only, as for ``x IN (1, ?, 3)``.
    """

    def __init__(self, program: list[Op], schema: Schema, cursors: dict[int, set[int]], private: set[int]) -> None:
        self._schema, self._cursors, self._private = schema, cursors, private
        self.lists = _value_lists(program)
        # By kind and payload, with the affinities: a list of thousands of values must not be searched for each of them.
        self._values: dict[Slot, dict[Key, frozenset[str]] | None] = {}
        self._edges: dict[tuple[Slot, Slot, str], None] = {}  # once each: an IN list makes the same one for each value
        self._writers: dict[int, set[Slot]] = {}
        for op in program:
            self._step(op, program)
        self._spread()

    def values(self, register: int) -> frozenset[Atom] | None:
        """Return what the register may hold, or None when that is unknown."""
        found = self._values.get(register)
        return frozenset(Atom(*key, affinities) for key, affinities in found.items()) if found else None  # type: ignore[arg-type]

    def from_list(self, register: int) -> bool:
        """Tell whether all the register ever holds are the values of one IN list, one after the other."""
        writers = self._writers.get(register, set())
        return len(writers) == 1 and isinstance(next(iter(writers)), tuple)

    def _unknown(self, slot: Slot) -> None:
        self._values[slot] = None

    def _add(self, slot: Slot, atom: Atom) -> None:
        held = self._values.setdefault(slot, {})
        if held is not None:
            held[atom[:2]] = held.get(atom[:2], frozenset()) | atom.affinities

    def _written(self, register: int, source: Slot = 0) -> None:
        self._writers.setdefault(register, set()).add(source)

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

    def _step(self, op: Op, program: list[Op]) -> None:
        match op.name:
            case "Integer":
                self._set(op.p2, constant(op.p1))
            case "Int64" | "Real":
                self._wide(op)
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
            case "Column" if op.p1 in self.lists:
                self._edge(("in", op.p1), op.p3, "")
                self._written(op.p3, ("in", op.p1))
            case name if name in COMPARISONS:
                self._compare(op)
            case "CollSeq" | "OpenEphemeral":
                register = op.p1 if op.name == "CollSeq" else op.p3
                if register:
                    self._lose(register)
            case _:
                for operand in WRITES.get(op.name, ()):
                    self._lose(getattr(op, operand))

    def _lose(self, register: int) -> None:
        self._unknown(register)
        self._written(register)

    def _wide(self, op: Op) -> None:
        """Take a constant of 64 bits, which EXPLAIN gives as two words; as text it would be rounded."""
        if op.p4 is not None:
            if op.name == "Real":
                self._lose(op.p2)
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
            self._lose(register)

    def _make_record(self, op: Op, program: list[Op]) -> None:
        self._lose(op.p3)
        if op.p4:
            self._convert(op.p1, op.p4[: op.p2])
        following = program[op.address + 1] if op.address + 1 < len(program) else None
        if following and following.name == "IdxInsert" and following.p1 in self.lists:
            self._edge(op.p1, ("in", following.p1), (op.p4 or "")[:1].strip("@A"))

    def _rowid(self, op: Op) -> None:
        roots = self._cursors.get(op.p1, set())
        if op.name == "NewRowid" and op.p3:
            self._lose(op.p3)  # the highest id that AUTOINCREMENT ever gave
        if op.p1 in self._private or len(roots) != 1:
            for operand in WRITES[op.name]:
                if operand == "p2" or op.p3:
                    self._lose(getattr(op, operand))
            return
        found = self._schema.roots.get(next(iter(roots)))
        if found is None:
            self._lose(op.p2)
        else:
            self._set(op.p2, Atom("row", found.name if isinstance(found, Table) else found.table))

    def _compare(self, op: Op) -> None:
        """A comparison may convert what it compares, where it is."""
        affinity = chr(op.p5 & 0x47)
        if affinity >= "C":
            self._convert(op.p1, "C")
            self._convert(op.p3, "C")
        elif affinity == "B":
            self._convert(op.p1, "B")
            self._convert(op.p3, "B")

    def _edge(self, source: Slot, target: Slot, affinity: str) -> None:
        self._edges[source, target, affinity] = None

    def _spread(self) -> None:
        """Let values flow along the edges until nothing changes; an edge is looked at when its source has changed."""
        leaving: dict[Slot, list[tuple[Slot, str]]] = {}
        for source, target, affinity in self._edges:
            leaving.setdefault(source, []).append((target, affinity))
        ahead = dict.fromkeys(leaving)
        while ahead:
            source = next(iter(ahead))
            del ahead[source]
            for target, affinity in leaving[source]:
                if self._flow(source, target, frozenset(affinity)) and target in leaving:
                    ahead[target] = None

    def _flow(self, source: Slot, target: Slot, affinity: frozenset[str]) -> bool:
        """Let the values of one slot flow into another; tell whether that changed it."""
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


def _value_lists(program: list[Op]) -> set[int]:
    """Find the private tables of one column whose every row is a record made right before it is inserted."""
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

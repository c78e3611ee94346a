"""What a statement reads, as points and ranges of keys, worked out from SQLite's bytecode before it runs.

``analyse`` looks at EXPLAIN once for a text and a schema version; ``ReadPlan.bind`` fills in the parameters of one
execution, which takes microseconds. What the bytecode does not say plainly becomes a read of a whole table or index,
and what it does not say at all a read of everything: a plan may name too much and never too little.

Any plan that SQLite may choose reads a set of rows that decides the statement's result, so it does not matter that the
plan explained without parameters may differ from the one that runs.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import apsw

from bedrockish.engine.keys import Spec, apply_affinity, encoder, object_prefix
from bedrockish.engine.opcodes import Op
from bedrockish.engine.registers import Atom
from bedrockish.engine.schema import Schema, Table
from bedrockish.engine.seeks import Access, Fields, FieldValues, program_reads
from journal.footprint import HIGH, Range, object_range

Params = Sequence[Any]
Reads = tuple[list[bytes], list[Range]]

EVERYTHING: tuple[Range, ...] = ((b"i:", b"i;"), (b"t:", b"t;"))

_Encode = Callable[[Params], bytes]
_Pick = Callable[..., bytes]  # min or max
_UNENCODABLE = (TypeError, OverflowError, IndexError)  # parameters that SQLite will refuse itself, better than we can

# Table functions that show the schema or the file, which no key stands for.
_LOOKS_BEHIND = re.compile(r"\b(pragma_\w+|dbstat|sqlite_dbpage|bytecode|tables_used|sqlite_stmt)\b", re.IGNORECASE)
_BLOB = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|(?<![\w$])[xX]'([0-9a-fA-F]*)'""", re.DOTALL
)
_EXPLAIN = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*explain\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What one statement reads, for any parameters.

    Attributes:
        readonly: it changes nothing in the file.
        tables: names of the tables touched, also by its triggers; their definitions are read too.
        fallbacks: pairs of a reason and an object: what was taken for more than it may be, and why.
    """

    readonly: bool
    tables: frozenset[str]
    fallbacks: tuple[tuple[str, str], ...]
    _reads: "_Binder"
    _probes: "_Binder"

    def bind(self, params: Params) -> Reads:
        """Return the points and ranges that an execution with these parameters reads.

        Lookups that only enforced a constraint are left to the keys of the rows that the statement changed.
        """
        return self._reads(params)

    def bind_failed(self, params: Params) -> Reads:
        """Return the same for an execution that ended in an error, with all that it may have looked up."""
        points, ranges = self._reads(params)
        more_points, more_ranges = self._probes(params)
        return points + more_points, ranges + more_ranges


def analyse(db: apsw.Connection, schema: Schema, sql: str, nparams: int) -> ReadPlan:
    """Work out what a statement reads; ``schema`` must be that of ``db`` now.

    ``nparams`` is the number of parameters as SQLite numbers them; ``bind`` takes them in that order.

    Raises:
        apsw.Error: SQLite cannot prepare it; the caller's own attempt to run it would say the same.
    """
    if _EXPLAIN.match(sql):
        return ReadPlan(True, frozenset(), (("EXPLAIN", "everything"),), _Binder([], schema, True), _Binder([], schema))
    programs, is_whole = _explain(db, sql, nparams)
    if not is_whole:
        programs, is_whole = _explain(db, _BLOB.sub(_readable, sql), nparams)
    reads: list[Access] = []
    probes: list[Access] = []
    tables: set[str] = set()
    fallbacks: dict[tuple[str, str], None] = {}
    everything = not is_whole
    if everything:
        fallbacks["blob in a definition", "everything"] = None
    for number, program in enumerate(programs):
        found = program_reads(program, schema, main=number == 0)
        reads += found.reads
        probes += found.probes
        tables |= found.tables
        fallbacks.update(dict.fromkeys(found.fallbacks))
        everything = everything or found.everything
        if any(op.name == "VOpen" for op in program) and _LOOKS_BEHIND.search(sql):
            everything = True
            fallbacks["table function that shows the schema or the file", "everything"] = None
    readonly = not any(op.name == "Transaction" and op.p2 for program in programs for op in program)
    return ReadPlan(
        readonly, frozenset(tables), tuple(fallbacks), _Binder(reads, schema, everything), _Binder(probes, schema)
    )


def _explain(db: apsw.Connection, sql: str, nparams: int) -> tuple[list[list[Op]], bool]:
    """Return the statement's program, then those of its triggers and foreign-key actions; and whether that is all.

    SQLite prints a blob as if it were text, and when it is none, its instruction cannot be read. The others can.
    """
    cursor = db.cursor()
    cursor.row_trace = None
    cursor.exec_trace = None
    programs: list[list[Op]] = []
    is_whole = True
    # Not from the cache: EXPLAIN never looks whether the schema has changed since it was compiled, and on a connection
    # that learns of changes from others it would print from memory that is no longer there.
    cursor.execute("EXPLAIN " + sql, (None,) * nparams, can_cache=False)
    while True:
        try:
            row = next(cursor, None)
        except UnicodeDecodeError:
            is_whole = False
            continue
        if row is None:
            return programs, is_whole
        if row[0] == 0:
            programs.append([])
        programs[-1].append(Op(*row[:7]))


def _readable(literal: re.Match[str]) -> str:
    """Return a blob that can be printed instead of one in a statement: equal ones stay equal, and others different.

    Its value does not matter: what comes out of a blob's instruction is never taken for known.
    """
    if literal[1] is None:
        return literal[0]
    return f"x'{sha256(literal[1].lower().encode()).hexdigest().encode().hex()}'"


class _Binder:
    """Accesses compiled to functions of the parameters."""

    def __init__(self, accesses: list[Access], schema: Schema, everything: bool = False) -> None:
        self._points: list[tuple[Callable[[Params], list[bytes]], str]] = []
        self._ranges: list[tuple[_Encode, _Encode, bool, str]] = []
        fixed: dict[Range, None] = dict.fromkeys(EVERYTHING if everything else ())
        whole = {access.object for access in accesses if not access.low and not access.high}
        fixed.update(dict.fromkeys(object_range(name) for name in sorted(whole)))
        self._fixed = list(fixed)
        if everything:
            return
        for access in dict.fromkeys(accesses):
            if access.object not in whole:
                self._compile(access, schema)

    def _compile(self, access: Access, schema: Schema) -> None:
        table = schema.tables[access.object[2:]] if access.object.startswith("t:") else None
        width = 0 if table is None else len(table.key.columns) if table.key else 1
        complete = table is not None and len(access.low) == len(access.high) == width
        if complete and access.exact:
            assert table is not None
            self._points.append((_point(access, table), access.object))
            return
        low = _end(access.object, access.low, access.low_after, min)
        high = _end(access.object, access.high, access.high_after, max)
        self._ranges.append((low, high, complete, access.object))

    def __call__(self, params: Params) -> Reads:
        points: list[bytes] = []
        ranges = self._fixed.copy()
        for find, name in self._points:
            try:
                points += find(params)
            except _UNENCODABLE:
                ranges.append(object_range(name))
        for low_of, high_of, complete, name in self._ranges:
            try:
                low, high = low_of(params), high_of(params)
            except _UNENCODABLE:
                ranges.append(object_range(name))
                continue
            if complete and high == low + HIGH:
                points.append(low)  # no other key can begin with a whole key
            elif low < high:
                ranges.append((low, high))
        return points, ranges


def _point(access: Access, table: Table) -> Callable[[Params], list[bytes]]:
    """Return the function that gives the key of the one row whose key columns have these values."""
    prefix = object_prefix(access.object)
    if table.key is None:
        return _rowid_points(prefix, access.low[0])
    makers = [_candidates(one) for one in access.low]

    def points(params: Params) -> list[bytes]:
        keys = [prefix]
        for make in makers:
            keys = [key + part for key in keys for part in make(params)]
        return keys

    return points


def _rowid_points(prefix: bytes, values: FieldValues) -> Callable[[Params], list[bytes]]:
    make = _candidates(values)
    encode = encoder(values.spec)
    if len(values.atoms) == 1:
        (atom,) = values.atoms
        if atom.kind == "param" and atom.affinities <= {"C", "D"}:
            number = atom.payload - 1

            def point(params: Params) -> list[bytes]:
                value = params[number]
                if type(value) is int:
                    return [prefix + encode(value)]
                return [prefix + part for part in make(params)]

            return point
    return lambda params: [prefix + part for part in make(params)]


def _end(name: str, fields: Fields, after: bool, pick: _Pick) -> _Encode:
    """Return the function that gives one end of a range."""
    prefix = object_prefix(name)
    suffix = HIGH if after else b""
    if not fields:
        edge = prefix if pick is min else prefix + HIGH
        return lambda _: edge
    makers = [(_candidates(one), _single(one)) for one in fields]
    if len(makers) == 1:
        only, encode_one = makers[0]
        if encode_one is not None:
            number, affinity, encode = encode_one

            def quick(params: Params) -> bytes:
                value = params[number]
                if type(value) is affinity:
                    return prefix + encode(value) + suffix
                return prefix + pick(only(params)) + suffix

            return quick
        return lambda params: prefix + pick(only(params)) + suffix
    return lambda params: prefix + b"".join([pick(make(params)) for make, _ in makers]) + suffix


_UNCHANGED = {"": None, "B": str, "C": int, "D": int}


def _single(values: FieldValues) -> tuple[int, type, Callable[[Any], bytes]] | None:
    """For one parameter: its place, and the type that its affinities leave alone, with the encoder."""
    if len(values.atoms) != 1:
        return None
    (atom,) = values.atoms
    kinds = {_UNCHANGED.get(affinity) for affinity in atom.affinities}
    if atom.kind != "param" or len(kinds) != 1 or None in kinds:
        return None
    kind = kinds.pop()
    assert kind is not None
    return atom.payload - 1, kind, encoder(values.spec)


def _candidates(values: FieldValues) -> Callable[[Params], list[bytes]]:
    """Return the function that gives the bytes of every value that a column may have."""
    makers = [_atom_candidates(atom, values.spec) for atom in sorted(values.atoms, key=repr)]
    if len(makers) == 1:
        return makers[0]
    return lambda params: [part for make in makers for part in make(params)]


def _atom_candidates(atom: Atom, spec: Spec) -> Callable[[Params], list[bytes]]:
    encode = encoder(spec)
    affinities = tuple(sorted(atom.affinities))
    if atom.kind == "const":
        fixed = sorted({encode(value) for value in _closure(atom.payload[1], affinities)})
        return lambda _: fixed
    assert atom.kind == "param"
    number = atom.payload - 1
    if not affinities:
        return lambda params: [encode(params[number])]
    return lambda params: [encode(value) for value in _closure(params[number], affinities)]


def _closure(value: Any, affinities: tuple[str, ...]) -> list[Any]:
    """Return a value with every form that these affinities can bring it into, in any order."""
    if isinstance(value, bool):
        value = int(value)
    found = [value]
    for form in found:
        for affinity in affinities:
            other = apply_affinity(form, affinity)
            if other is not form and not any(type(other) is type(one) and other == one for one in found):
                found.append(other)
    return found

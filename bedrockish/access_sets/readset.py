"""The reads of a statement, as points and ranges of keys, derived from SQLite's bytecode before it runs.

``analyse`` interprets EXPLAIN once for a text and a schema version; ``ReadPlan.bind`` fills in the parameters of one
execution, which takes microseconds. A read that the bytecode does not show clearly counts as a read of the whole table
or index; if even these are unknown, as a read of everything. A plan may contain too many keys, never too few.

For reads that depend on rows read before, as in a join, ``bind`` returns whole tables and indexes. ``ReadPlan.resolve``
looks the rows up and returns the exact keys (see ``dependent_reads``).

If a statement calls ``skip_locked('t', …)``, its reads of that table do not count; its caller adds the keys of the rows
that the statement has locked. The reads of its triggers do count.

Each query plan that SQLite may choose reads rows that determine the statement's result. So the reads are right even if
the plan that EXPLAIN shows without parameters is not the plan that runs.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import apsw

from bedrockish.access_sets.call_costs import COSTLY, OF_SCHEMA, Lengths, lengths
from bedrockish.access_sets.catalog import Schema, Table
from bedrockish.access_sets.cursor_ranges import (
    REGISTER_ROOT,
    TEMPORARY,
    Fields,
    FieldValues,
    KeyInterval,
    points_of,
    statement_reads,
)
from bedrockish.access_sets.dependent_reads import DependentReads, Resolution
from bedrockish.access_sets.effort import Check, checked, unlimited
from bedrockish.access_sets.key_encoding import Spec, encoder, object_prefix
from bedrockish.access_sets.key_values import UNENCODABLE, Params, closure
from bedrockish.access_sets.opcodes import OPENS as ALL_OPENS
from bedrockish.access_sets.opcodes import Op, rows_of
from bedrockish.access_sets.query_names import Query
from bedrockish.access_sets.register_values import Atom
from bedrockish.sqltext.statement_ends import first_word
from bedrockish_journal.model.access_set import HIGH, Range, object_range
from bedrockish_journal.model.changes import Change
from bedrockish_journal.model.value import value

Reads = tuple[list[bytes], list[Range]]
ReadKeys = tuple[Collection[bytes], Collection[Range]]

TOO_COSTLY = "statement too long to analyse, so that only the tables it opens are known"
EVERYTHING: tuple[Range, ...] = ((b"i:", b"i;"), (b"t:", b"t;"))

_Encode = Callable[[Params], bytes]
_Pick = Callable[..., bytes]  # min for the low end of a range, max for its high end

# Table functions that show the schema or the file, whose content has no keys.
_WITHOUT_KEYS = re.compile(r"\b(pragma_\w+|dbstat|sqlite_dbpage|bytecode|tables_used|sqlite_stmt)\b", re.IGNORECASE)
_BLOB = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|(?<![\w$])[xX]'([0-9a-fA-F]*)'""", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads of one statement, for any parameters."""

    readonly: bool  # whether the statement leaves the file unchanged
    tables: frozenset[str]  # tables that the statement and its triggers open: their definitions are read, too
    fallbacks: tuple[tuple[str, str], ...]  # overestimated reads: pairs of a reason and an object
    dependents: DependentReads | None  # the reads that ``resolve`` determines exactly; None if the plan lacks them
    # Like ``fallbacks``, for the dependent reads of an execution that cannot resolve them.
    dependent_fallbacks: tuple[tuple[str, str], ...]
    lengths: Lengths  # the allowed lengths of the statement's values
    reads_nothing: bool  # whether the statement reads nothing, for any parameters
    by_column: bool  # whether the statement reads only some columns of some rows
    _reads: "_Binder"  # the reads that do not depend on rows read before
    _coarse: "_Binder"  # the other reads, overestimated: whole tables and indexes, or wide ranges
    _probes: "_Binder"  # the lookups that only enforce constraints
    resolves: bool = True  # whether ``resolve`` may look rows up; otherwise it returns the same as ``bind``
    # Makes the parameters of the analysed text from those of the statement; None if the texts are the same.
    convert: Callable[[Params], Params] | None = None

    @property
    def size(self) -> int:
        """Number of points and ranges, without dependent reads."""
        return self._reads.size + self._coarse.size + self._probes.size

    def bind(self, params: Params) -> Reads:
        """Return the points and ranges that an execution with these parameters may read, for any content of the tables.

        Lookups that only enforce a constraint are left out, because the keys of the changed rows stand for them.
        """
        return self.bind_converted(params if self.convert is None else self.convert(params))

    def bind_converted(self, params: Params) -> Reads:
        """Return the same as ``bind``, for parameters of the analysed text."""
        points, ranges = self._reads(params)
        if self.dependents is None:
            return points, ranges
        more_points, more_ranges = self._coarse(params)
        return points + more_points, ranges + more_ranges

    def resolve(self, params: Params, query: Query) -> "ResolvedReads":
        """Return the exact reads of the execution that is about to start; ``query`` sees the same data."""
        params = params if self.convert is None else self.convert(params)
        dependents = self.dependents if self.resolves else None
        found = None if dependents is None else Resolution(dependents, params, query)
        return ResolvedReads(self, params, found)

    def bind_failed(self, params: Params) -> Reads:
        """Return the reads of an execution that failed, including the keys that constraints may have looked up."""
        params = params if self.convert is None else self.convert(params)
        points, ranges = self.bind_converted(params)
        more_points, more_ranges = self._probes(params)
        return points + more_points, ranges + more_ranges


@value
class ResolvedReads:
    """The reads of one execution of a statement."""

    plan: ReadPlan
    params: Params  # of the analysed text
    # The dependent reads; None if the plan lacks them. If the statement writes, call ``Resolution.add_changes`` before
    # ``keys``.
    resolution: Resolution | None

    def complete(self, changes: Sequence[Change], hidden: Iterable[str]) -> ReadKeys:
        """Return the points and ranges once the statement has run; see ``Resolution.add_changes``."""
        if self.resolution is not None:
            self.resolution.add_changes(changes, hidden)
        return self.keys()

    def keys(self) -> ReadKeys:
        """Return the points and ranges that the execution reads."""
        if self.resolution is None or self.resolution.failure:
            return self.plan.bind_converted(self.params)
        points, ranges = self.plan._reads(self.params)
        more_points, more_ranges = self.resolution.points, self.resolution.ranges
        return [*points, *more_points] if points else more_points, [*ranges, *more_ranges] if ranges else more_ranges

    @property
    def fallbacks(self) -> tuple[tuple[str, str], ...]:
        """The overestimated reads: pairs of a reason and an object."""
        if self.resolution is None or not self.resolution.failure:
            return self.plan.fallbacks
        failure = self.resolution.failure
        return self.plan.fallbacks + tuple((failure, name) for _, name in self.plan.dependent_fallbacks)


def analyse(
    db: apsw.Connection,
    schema: Schema,
    sql: str,
    nparams: int,
    check: Check = unlimited,
    *,
    is_what_runs: bool = True,
    accessed_tables: frozenset[str] | None = None,
) -> ReadPlan:
    """Return the plan of a statement's reads; ``schema`` must be the present schema of ``db``.

    ``nparams`` is the number of parameters in SQLite's numbering; ``bind`` takes them in that order. ``is_what_runs``
    is False if an equivalent text may run instead, whose loops may end elsewhere. ``accessed_tables`` is the argument
    of ``virtual_reads``; None if unknown.

    Raises:
        apsw.Error: SQLite cannot prepare the statement; running it would raise the same error.
        Exception: the error of ``check``, when the analysis has used up its time.
    """
    if first_word(sql) == "EXPLAIN":
        return _of_explain(schema)
    programs, is_complete = _programs(db, sql, nparams, check)
    fallbacks: dict[tuple[str, str], None] = {}
    everything = not is_complete
    if everything:
        fallbacks["blob in a definition", "everything"] = None
    found = statement_reads(programs, schema, check, with_stops=is_what_runs, accessed_tables=accessed_tables)
    if found and found[0].locking:
        found[0] = found[0].relaxed(schema)
    for program, reads in zip(programs, found, strict=True):
        fallbacks.update(dict.fromkeys(reads.fallbacks))
        everything = everything or reads.everything
        if any(op.name == "VOpen" for op in program) and _WITHOUT_KEYS.search(sql):
            everything = True
            fallbacks["table function that shows the schema or the file", "everything"] = None
    dependents = DependentReads([] if everything else found, schema, sql, [op for ops in programs for op in ops], check)
    unresolved = [one for reads in found for one in reads.dependents] if everything else dependents.unresolved
    for one in unresolved:
        fallbacks.update(dict.fromkeys(one.reasons))
    fixed = [access for reads in found for access in reads.reads] + [one.coarse for one in unresolved]
    always = _Binder(fixed, schema, everything)
    return ReadPlan(
        readonly=not any(op.name == "Transaction" and op.p2 for program in programs for op in program),
        tables=frozenset(name for reads in found for name in reads.tables),
        fallbacks=tuple(fallbacks),
        dependents=dependents if dependents.resolved else None,
        dependent_fallbacks=tuple(dict.fromkeys(reason for one in dependents.resolved for reason in one.reasons)),
        lengths=_lengths(programs, is_complete=is_complete),
        reads_nothing=always.is_empty and not dependents.resolved,
        by_column=any(reads.by_column for reads in found),
        _reads=always,
        _coarse=_Binder([one.coarse for one in dependents.resolved], schema),
        _probes=_Binder([access for reads in found for access in reads.probes], schema),
    )


def lengths_of(db: apsw.Connection, sql: str, nparams: int, check: Check = unlimited) -> Lengths:
    """Return the ``lengths`` of a statement's plan in a tenth of the time of ``analyse``; same arguments and errors."""
    if first_word(sql) == "EXPLAIN":
        return lengths(())
    programs, is_complete = _programs(db, sql, nparams, check)
    return _lengths(programs, is_complete=is_complete)


def _lengths(programs: list[list[Op]], *, is_complete: bool) -> Lengths:
    return lengths(programs) if is_complete else replace(lengths(programs), is_brief=False)


def _of_explain(schema: Schema) -> ReadPlan:
    """Return the plan of an EXPLAIN: it reads the schema, which counts as a read of everything."""
    whole, nothing = _Binder([], schema, True), _Binder([], schema)
    why = (("EXPLAIN", "everything"),)
    return ReadPlan(True, frozenset(), why, None, (), lengths(()), False, False, whole, nothing, nothing)


def analyse_coarsely(db: apsw.Connection, schema: Schema, sql: str, nparams: int) -> ReadPlan:
    """Return a plan that reads each table and index that a statement opens as a whole; arguments as for ``analyse``.

    This takes only one pass over the program, and does not follow the values in its registers.

    Raises:
        apsw.Error: SQLite cannot prepare the statement.
    """
    cursor = db.cursor()
    cursor.row_trace = cursor.exec_trace = None
    cursor.execute("EXPLAIN " + sql, (None,) * nparams, can_cache=False)
    opened: dict[str, None] = {}
    tables: set[str] = set()
    calls: list[Op] = []
    readonly, everything = True, False
    for row in filter(None, rows_of(cursor)):
        name = row[1]
        if name in ALL_OPENS and row[4] >= TEMPORARY and not row[6] & REGISTER_ROOT:
            continue
        if name in ALL_OPENS or name == "Clear":
            found = schema.roots.get(row[2 if name == "Clear" else 3])
            if name != "Clear" and (found is None or row[4] != 0 or row[6] & REGISTER_ROOT):
                everything = True
            elif found is None:
                continue
            else:
                opened[found.object] = None
                tables.add(found.name if isinstance(found, Table) else found.table)
        elif name in COSTLY:
            calls.append(Op(*row[:7]))
        elif name in ("VOpen", "VUpdate"):
            everything = True
            calls.append(Op(*row[:7]))
        elif name == "Transaction" and row[3]:
            readonly = False
    accesses = [KeyInterval(name) for name in opened]
    why = tuple((TOO_COSTLY, name) for name in (["everything"] if everything else opened))
    nothing = _Binder([], schema)
    return ReadPlan(
        readonly, frozenset(tables), why, None, (), lengths([calls, []]), False, False,
        _Binder(accesses, schema, everything), nothing, nothing,
    )  # fmt: skip


def program_of(db: apsw.Connection, sql: str, nparams: int) -> list[Op]:
    """Return the instructions of a statement and its triggers, except those that EXPLAIN cannot print."""
    return [op for ops in _explain(db, sql, nparams)[0] for op in ops]


def schema_lengths(db: apsw.Connection, sql: str) -> Lengths:
    """Return the allowed lengths of values for a schema statement, which may call functions for all rows of a table."""
    try:
        found = lengths(_explain(db, sql, 0)[0])
    except apsw.Error:  # running the statement raises the same error
        return OF_SCHEMA
    return replace(found, loop=min(found.loop, OF_SCHEMA.loop), has_patterns=True, is_brief=False)


def _programs(db: apsw.Connection, sql: str, nparams: int, check: Check) -> tuple[list[list[Op]], bool]:
    """Return the result of ``_explain``; if a blob hides an instruction, explain the statement with other blobs."""
    programs, is_complete = _explain(db, sql, nparams, check)
    return (programs, is_complete) if is_complete else _explain(db, _BLOB.sub(_readable, sql), nparams, check)


def _explain(db: apsw.Connection, sql: str, nparams: int, check: Check = unlimited) -> tuple[list[list[Op]], bool]:
    """Return the programs of the statement, its triggers and foreign-key actions; and whether they are complete.

    EXPLAIN prints a blob as if it were text. If the blob is not valid text, only its instruction is missing.
    """
    cursor = db.cursor()
    cursor.row_trace = None
    cursor.exec_trace = None
    programs: list[list[Op]] = []
    is_complete = True
    # Not from the statement cache: a compiled EXPLAIN does not check whether the schema has changed, and after a change
    # by another connection it would read freed memory.
    cursor.execute("EXPLAIN " + sql, (None,) * nparams, can_cache=False)
    try:
        for row in checked(rows_of(cursor), check):
            if row is None:
                is_complete = False
                continue
            if row[0] == 0:
                programs.append([])
            programs[-1].append(Op(*row[:7]))
    finally:
        cursor.close(True)  # a statement that is still open would keep the savepoint from being released
    return programs, is_complete


def _readable(literal: re.Match[str]) -> str:
    """Return a printable literal in place of a blob literal; different blobs get different literals.

    Its value does not matter, because the analysis treats the values of blobs as unknown.
    """
    if literal[1] is None:
        return literal[0]
    return f"x'{sha256(literal[1].lower().encode()).hexdigest().encode().hex()}'"


class _Binder:
    """Key intervals compiled to functions of the parameters; a call returns the points and ranges."""

    def __init__(self, accesses: list[KeyInterval], schema: Schema, everything: bool = False) -> None:
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

    def _compile(self, access: KeyInterval, schema: Schema) -> None:
        table = schema.tables[access.object[2:]] if access.object.startswith("t:") else None
        width = 0 if table is None else len(table.key.columns) if table.key else 1
        complete = table is not None and len(access.low) == len(access.high) == width
        if complete and access.exact:
            assert table is not None
            self._points.append((_columns(_point(access, table), access), access.object))
            return
        low = _end(access.object, access.low, access.low_after, min)
        high = _end(access.object, access.high, access.high_after, max)
        self._ranges.append((low, high, complete, access.object))

    @property
    def size(self) -> int:
        """Number of points and ranges."""
        return len(self._fixed) + len(self._points) + len(self._ranges)

    @property
    def is_empty(self) -> bool:
        """Return whether the plan reads nothing for any parameters."""
        return not (self._fixed or self._points or self._ranges)

    def __call__(self, params: Params) -> Reads:
        points: list[bytes] = []
        ranges = self._fixed.copy()
        for find, name in self._points:
            try:
                points += find(params)
            except UNENCODABLE:
                ranges.append(object_range(name))
        for low_of, high_of, complete, name in self._ranges:
            try:
                low, high = low_of(params), high_of(params)
            except UNENCODABLE:
                ranges.append(object_range(name))
                continue
            if complete and high == low + HIGH:
                points.append(low)  # a complete key: no other key begins with it
            elif low < high:
                ranges.append((low, high))
        return points, ranges


def _columns(find: Callable[[Params], list[bytes]], access: KeyInterval) -> Callable[[Params], list[bytes]]:
    """Extend ``find``, which returns row keys, to the column keys that the access needs."""
    points = points_of(access)
    return find if points is None else lambda params: points(find(params))


def _point(access: KeyInterval, table: Table) -> Callable[[Params], list[bytes]]:
    """Return the function from parameters to the keys of the rows whose key columns have the access's values."""
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
    """Return the function from parameters to one end of a range."""
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
    """Return the parameter's position, the type that needs no conversion, and the encoder; None for other values."""
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
    """Return the function from parameters to the encodings of all values that a column may have."""
    makers = [_atom_candidates(atom, values.spec) for atom in sorted(values.atoms, key=repr)]
    if len(makers) == 1:
        return makers[0]
    return lambda params: [part for make in makers for part in make(params)]


def _atom_candidates(atom: Atom, spec: Spec) -> Callable[[Params], list[bytes]]:
    encode = encoder(spec)
    affinities = tuple(sorted(atom.affinities))
    if atom.kind == "const":
        fixed = sorted({encode(value) for value in closure(atom.payload[1], affinities)})
        return lambda _: fixed
    assert atom.kind == "param"
    number = atom.payload - 1
    if not affinities:
        return lambda params: [encode(params[number])]
    return lambda params: [encode(value) for value in closure(params[number], affinities)]

"""A small model of the database: rows with versions, and requests that are programs over them.

A row is (version, value). Each write increments the version, so a version shows which write a read has seen. A deleted
row stays as a version without a value. ``apply`` checks that the overwritten row is the one in the transaction, so that
a divergence shows at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import cbor2

from bedrockish.api.requests import SNAPSHOT, Request, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.errors import ConstraintError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import encode_statements
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Transaction
from bedrockish_journal.model.vector import Vector

Row = tuple[int, Any]
NOTHING: Row = (0, None)
TABLE = b"t:rows\0"
INDEX = b"i:rows\0"
WHOLE_INDEX = (INDEX, b"i:rows\1")


class Unreadable:
    """The value of a row that can no longer be read from the file."""

    def __repr__(self) -> str:
        return "unreadable"


UNREADABLE = Unreadable()


def point(key: str) -> bytes:
    """Return the conflict key of a row."""
    return TABLE + key.encode()


def entry(key: str) -> bytes:
    """Return the conflict key of a row's entry in the index."""
    return INDEX + key.encode()


@dataclass
class Run:
    """One execution of a program: its reads and writes on the present rows."""

    rows: Mapping[str, Row]
    where: str  # the node that runs the program; drawn values may depend on it, as automatic ids do
    clock: int = 0  # the transaction's clock; 0: a majority has not been asked
    written: dict[str, Row] = field(default_factory=dict)
    points: set[bytes] = field(default_factory=set)
    ranges: set[tuple[bytes, bytes]] = field(default_factory=set)
    indexed: bool = False  # whether each row has an entry in an index
    sweeps: bool = False  # whether the program writes the index as a whole
    applied: Mapping[str, int] = field(default_factory=dict)  # the last tick of each timeline in the journal

    def get(self, key: str) -> Row:
        self.points.add(point(key))
        return self.written.get(key) or self.read(key)

    def read(self, key: str) -> Row:
        """Return a row of the file.

        Raises:
            DivergedError: the row cannot be read.
        """
        row = self.rows.get(key, NOTHING)
        if row[1] is UNREADABLE:
            raise DivergedError(f"{key} cannot be read")
        return row

    def between(self, low: str, high: str) -> list[tuple[str, Row]]:
        self.ranges.add((point(low), point(high)))
        keys = sorted(key for key in {*self.rows, *self.written} if low <= key < high)
        return [(key, self.written.get(key) or self.read(key)) for key in keys]

    def put(self, key: str, value: Any, *, blind: bool = False) -> int:
        if not blind:
            self.points.add(point(key))
        version = self.read(key)[0] + 1  # a transaction makes one version of a row, however often it writes the row
        self.written[key] = (version, value)
        return version


def run_statement(run: Run, statement: Statement) -> list[Any]:
    """Run one statement, and return its answer: [key, version, value] for each row that it reads or writes."""
    params: list[Any] = list(statement.params) if statement.params is not None else []
    match statement.sql, params:
        case "read", keys:
            return [[key, *run.get(key)] for key in keys]
        case "scan", [low, high]:
            return [[key, *row] for key, row in run.between(low, high)]
        case "journal", []:  # no key stands for rows of the journal
            return [["journal", 0, dict(sorted(run.applied.items()))]]
        case "write", [key, value]:
            return [[key, run.put(key, value, blind=True), value]]
        case "stamp", [key]:
            if not run.clock:
                raise ClockNeededError("a majority has to be asked first")
            return [[key, run.put(key, run.clock, blind=True), run.clock]]
        case "clock", []:
            if not run.clock:
                raise ClockNeededError("a majority has to be asked first")
            return [["clock", 0, run.clock]]
        case "delete", [key]:
            return [[key, run.put(key, None), None]]
        case "add", [key, amount]:
            value = _number(run.get(key)[1]) + amount
            return [[key, run.put(key, value), value]]
        case "append", [key, item]:
            old = run.get(key)[1]
            new = [*(old if isinstance(old, list) else []), item]
            return [[key, run.put(key, new), new]]
        case "note", [text]:
            key = f"note {text} of {run.where}"
            return [[key, run.put(key, text, blind=True), text]]
        case "move", [source, target, amount]:
            have = _number(run.get(source)[1])
            if have < amount:
                raise ConstraintError(f"{source} has {have}, not {amount}")
            run.put(source, have - amount)
            run.put(target, _number(run.get(target)[1]) + amount)
            return [[key, *run.written[key]] for key in (source, target)]
        case "sweep", [low, high, amount]:
            run.sweeps = True
            found = [(key, _number(row[1]) + amount) for key, row in run.between(low, high) if row[1] is not None]
            found = found or [(low, amount)]  # insert a row into an empty range
            return [[key, run.put(key, value), value] for key, value in found]
        case "total", [low, high, key]:
            summed = sum(_number(row[1]) for _, row in run.between(low, high))
            return [[key, run.put(key, summed), summed]]
        case _:
            raise AssertionError(f"no statement is called {statement.sql}")


def wants_clock(request: Request) -> bool:
    """Return whether a program uses its transaction's clock."""
    return any(statement.sql in ("stamp", "clock") for statement in request.statements)


def reads_journal(request: Request) -> bool:
    """Return whether a program reads the journal."""
    return any(statement.sql == "journal" for statement in request.statements)


def only_writes(request: Request) -> bool:
    """Return whether a request writes rows and does not use its transaction's clock."""
    writes = ("write", "delete", "add", "append", "note", "move", "total", "sweep")
    return any(statement.sql in writes for statement in request.statements) and not wants_clock(request)


def _number(value: Any) -> int:
    return value if type(value) is int else 0


@dataclass(frozen=True)
class Outcome:
    """The effects of a program: its reads (versions before its own writes), its changes, and its answer."""

    reads: dict[str, int]
    ranges: tuple[tuple[bytes, bytes], ...]
    changes: list[list[Any]]
    told: list[list[Any]]
    access_set: AccessSet


def run_together(
    rows: Mapping[str, Row],
    programs: Sequence[Iterable[Statement]],
    where: str,
    clock: int = 0,
    *,
    indexed: bool = False,
    applied: Vector | None = None,
) -> list[Outcome]:
    """Run programs one after the other without changing the rows, and return an outcome for each.

    Each outcome has the reads and changes of all programs, and the program's own answer.

    Raises:
        ConstraintError: the rows forbid a program.
    """
    run = Run(rows, where, clock, indexed=indexed, applied=applied or {})
    try:
        told = [[run_statement(run, statement) for statement in statements] for statements in programs]
    except ConstraintError as error:
        error.rests_on = outcomes_of(rows, run, [[]])[0]
        raise
    return outcomes_of(rows, run, told)


def outcomes_of(rows: Mapping[str, Row], run: Run, told: list[list[Any]]) -> list[Outcome]:
    changes = [[key, list(rows.get(key, NOTHING)), list(row)] for key, row in run.written.items()]
    reads = {key.removeprefix(TABLE).decode(): 0 for key in run.points}
    for low, high in run.ranges:
        reads.update({key: 0 for key in rows if low <= point(key) < high})
    reads = {key: rows.get(key, NOTHING)[0] for key in sorted(reads)}
    # A sweep counts the entries of the index as one range, as the engine does for many writes.
    swept = (WHOLE_INDEX,) if run.sweeps and run.written else ()
    written = frozenset(point(key) for key in run.written)
    if run.indexed and not swept:
        written |= {entry(key) for key in run.written}
    access_set = AccessSet(frozenset(run.points), tuple(sorted(run.ranges)), written, swept)
    return [Outcome(reads, access_set.read_ranges, changes, one, access_set) for one in told]


def execute(
    rows: Mapping[str, Row],
    request: Request,
    base: Vector,
    where: str,
    schema: int,
    clock: int = 0,
    others: Sequence[Request] = (),
    *,
    indexed: bool = False,
) -> Prepared:
    """Run a request as an engine would, then others in the same transaction up to the first failure; return the result.

    For the laws, the encoded result also has the versions of all rows that were read, and the version of the schema.

    Raises:
        ConstraintError: the rows forbid the request.
        ClockNeededError: the request uses the transaction's clock, and ``clock`` is 0.
    """
    if request.statements[0].sql == "alter":
        statements = encode_statements([f"alter {request.command}"])
        result = cbor2.dumps([[], {}, [], schema])
        # Some changes come into force after a delay, as for building an index, even longer than a conflict window.
        delay_ms = (0, 0, 0, 400, 2_500)[crc32(request.command.encode()) % 5]
        return Prepared(dict(base), schema, False, SCHEMA, AccessSet(), statements, result, delay_ms=delay_ms)
    try:
        outcomes = run_together(rows, [request.statements], where, clock, indexed=indexed, applied=base)
    except ConstraintError as error:
        seen = error.rests_on
        assert isinstance(seen, Outcome)
        error.rests_on = Prepared(dict(base), schema, True, ROWS, seen.access_set, b"", result_of(seen, schema))
        raise
    while others:
        try:
            programs = [one.statements for one in (request, *others)]
            outcomes = run_together(rows, programs, where, clock, indexed=indexed, applied=base)
            break
        except (ConstraintError, ClockNeededError):
            others = others[:-1]
    outcome = outcomes[0]
    readonly = not outcome.changes
    result, *results = [result_of(one, schema) for one in outcomes]
    joined = tuple((one.command, each) for one, each in zip(others, results, strict=True))
    changes = b"" if readonly else cbor2.dumps(outcome.changes)
    access_set = outcome.access_set
    if request.isolation == SNAPSHOT and not readonly:  # with isolation ``snapshot``, reads are not certified
        written = access_set.write_points, access_set.write_ranges
        access_set = AccessSet(access_set.read_points & access_set.write_points, (), *written)
    own = clock if wants_clock(request) else 0
    found = Prepared(dict(base), schema, readonly, ROWS, access_set, changes, result, own, joined)
    return replace(found, spans=access_set.write_ranges, reads_system=reads_journal(request))


def result_of(outcome: Outcome, schema: int) -> bytes:
    """Return the encoded answer of a program with the facts that the laws need."""
    return cbor2.dumps([outcome.told, outcome.reads, [list(pair) for pair in outcome.ranges], schema])


def join(each: Sequence[bytes]) -> tuple[bytes, tuple[int, ...]]:
    """Join the changes of transactions, in order; return the encoded list, and the number of changes of each."""
    lists = [cbor2.loads(changes) for changes in each]
    return cbor2.dumps([change for one in lists for change in one]), tuple(map(len, lists))


def apply(rows: dict[str, Row], transaction: Transaction) -> None:
    """Apply the changes of a committed transaction to the rows.

    Raises:
        DivergedError: a row differs from the one that the transaction has overwritten.
    """
    if transaction.kind != ROWS:
        return
    for key, before, after in cbor2.loads(transaction.changes):
        if rows.get(key, NOTHING) != tuple(before):
            raise DivergedError(f"{key} is {rows.get(key, NOTHING)} and should be {tuple(before)}")
        rows[key] = (after[0], after[1])


class DivergedError(Exception):
    """Raised when a commit does not fit the rows."""

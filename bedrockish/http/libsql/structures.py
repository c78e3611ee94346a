"""Hrana's shared structures in their JSON form: statements, values, conditions, results, errors. Pure.

Input is checked field by field, and an error names the field. A result is written from a node's answer.
"""

import base64
import binascii
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

from bedrockish.api.requests import Params, Result, Statement
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    OutcomeUnknownError,
    SqlError,
    TooLargeError,
    UsageError,
    drop_frames,
)

STEPS_MAX = 10_000  # the most steps of a batch
DEPTH_MAX = 32  # most levels of conditions inside conditions
SQL_BYTES_MAX = 256 << 10  # bytes of a stream's stored texts; `@libsql/client` stores 30 of at most 5,000 bytes
INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 63) - 1

Json = Mapping[str, Any]


class ResultUnsayableError(UsageError):
    """Raised for a result with an infinite number, which JSON cannot represent. The statement was run."""

    code = "result_unsayable"

    def __init__(self) -> None:
        super().__init__(
            "the statement was run, but its result has an infinite number, which JSON cannot represent; CAST it to TEXT"
        )


@dataclass(frozen=True, slots=True)
class BatchStep:
    """One step of a batch: a statement, and whether its rows are wanted."""

    statement: Statement
    want_rows: bool
    # The condition on the outcomes of earlier steps under which this step is run; None: it is run always.
    condition: Json | None = None
    problem: UsageError | None = None  # the error of a malformed statement, which is answered as the error of this step


def _field(found: object, name: str, kind: type, *, where: str, default: Any = ...) -> Any:
    if not isinstance(found, Mapping):
        raise UsageError(f"{where} should be an object")
    value = found.get(name)
    if value is None and default is not ...:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{where}: {name} should be {_KINDS[kind]}")
    return value


_KINDS = {str: "a text", int: "an integer", list: "an array", Mapping: "an object", bool: "true or false"}


class Texts:
    """SQL texts that a client has stored under numbers of its own."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def store(self, asked: Json) -> None:
        """Store a text.

        Raises:
            UsageError: the number is taken.
            TooLargeError: there are too many texts.
        """
        number = _field(asked, "sql_id", int, where="store_sql")
        text = _field(asked, "sql", str, where="store_sql")
        if number in self._texts:
            raise UsageError(f"store_sql: the text {number} is stored already; close it first")
        size = getsizeof(text)
        if self._bytes + size > SQL_BYTES_MAX:
            raise TooLargeError(f"the stored texts take over {SQL_BYTES_MAX} bytes; close some with close_sql")
        self._texts[number] = text
        self._bytes += size

    def close(self, asked: Json) -> None:
        """Forget a text; an unknown one is ignored."""
        text = self._texts.pop(_field(asked, "sql_id", int, where="close_sql"), None)
        self._bytes -= getsizeof(text) if text is not None else 0

    def text(self, asked: Json, where: str) -> str:
        """Return the text that a request gives, directly or by its number.

        Raises:
            UsageError: the request gives neither or both, or no text has this number.
        """
        sql = _field(asked, "sql", str, where=where, default=None)
        number = _field(asked, "sql_id", int, where=where, default=None)
        if (sql is None) == (number is None):
            raise UsageError(f"{where}: give either sql or sql_id")
        if sql is not None:
            return str(sql)
        if number not in self._texts:
            raise UsageError(f"{where}: no text {number} is stored; store_sql comes first")
        return self._texts[number]


def read_value(value: object, where: str) -> Any:
    """Return the value that a ``Value`` stands for.

    Raises:
        UsageError: the input is malformed.
    """
    kind = _field(value, "type", str, where=where)
    assert isinstance(value, Mapping)
    given = value.get("value")
    match kind:
        case "null":
            return None
        case "integer":
            try:
                number = int(given) if isinstance(given, str | int) and not isinstance(given, bool) else None
            except ValueError:
                number = None
            if number is None or not INTEGER_MIN <= number <= INTEGER_MAX:
                raise UsageError(f"{where}: an integer should be a text with a signed 64-bit number")
            return number
        case "float" if isinstance(given, int | float) and not isinstance(given, bool):
            try:
                return float(given)
            except OverflowError:
                raise UsageError(f"{where}: a float should be a number that fits in 64 bits") from None
        case "text" if isinstance(given, str):
            return given
        case "blob":
            text = _field(value, "base64", str, where=where)
            try:
                return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
            except (binascii.Error, ValueError) as error:
                raise UsageError(f"{where}: base64 is malformed: {error}") from error
        case _:
            raise UsageError(f"{where}: {kind!r} is not the type of a value, or the value does not fit")


def write_value(value: Any) -> dict[str, Any]:
    """Return a value of a result as a ``Value``."""
    match value:
        case None:
            return {"type": "null"}
        case int():
            return {"type": "integer", "value": str(value)}
        case float():
            return {"type": "float", "value": value}
        case str():
            return {"type": "text", "value": value}
        case _:
            return {"type": "blob", "base64": base64.b64encode(value).decode().rstrip("=")}


def has_infinity(result: Json) -> bool:
    """Return whether a written result has an infinite number, which JSON cannot represent."""
    return any(v["type"] == "float" and math.isinf(v["value"]) for row in result["rows"] for v in row)


def read_step(asked: object, texts: Texts, where: str = "stmt") -> BatchStep:
    """Return the step of a statement object.

    Raises:
        UsageError: the object is malformed.
    """
    if not isinstance(asked, Mapping):
        raise UsageError(f"{where} should be an object")
    args = _field(asked, "args", list, where=where, default=[])
    named = _field(asked, "named_args", list, where=where, default=[])
    if args and named:
        raise UsageError(f"{where}: give parameters by position or by name, not both")
    params: Params = None
    if args:
        params = tuple(read_value(value, f"{where}.args[{place}]") for place, value in enumerate(args))
    elif named:
        params = {}
        for place, one in enumerate(named):
            name = _field(one, "name", str, where=f"{where}.named_args[{place}]")
            params[name[1:] if name[:1] in (":", "@", "$") else name] = read_value(one.get("value"), f"{where}: {name}")
    want_rows = _field(asked, "want_rows", bool, where=where, default=True)
    return BatchStep(Statement(texts.text(asked, where), params), want_rows)


def read_batch(asked: object, texts: Texts) -> list[BatchStep]:
    """Return the steps of a batch. A step with a malformed statement has the error as its ``problem``.

    Raises:
        UsageError: the batch or a condition is malformed.
        TooLargeError: it has too many steps.
    """
    steps = _field(asked, "steps", list, where="batch")
    if len(steps) > STEPS_MAX:
        raise TooLargeError(f"the batch has {len(steps)} steps, and {STEPS_MAX} is the limit; send several")
    found = []
    for place, one in enumerate(steps):
        where = f"batch.steps[{place}]"
        condition = _field(one, "condition", Mapping, where=where, default=None)
        if condition is not None:
            check_condition(condition, place, where)
        try:
            step = read_step(one.get("stmt"), texts, f"{where}.stmt")
        except UsageError as error:
            step = BatchStep(Statement(""), want_rows=False, problem=error)
        found.append(BatchStep(step.statement, step.want_rows, condition, step.problem))
    return found


def check_condition(condition: object, place: int, where: str, depth: int = 0) -> None:
    """Check the condition of a step.

    Raises:
        UsageError: the condition is malformed, or refers to a step that does not come before.
    """
    if depth > DEPTH_MAX:
        raise UsageError(f"{where}: more than {DEPTH_MAX} conditions are inside each other")
    match _field(condition, "type", str, where=where):
        case "ok" | "error":
            if not 0 <= _field(condition, "step", int, where=where) < place:
                raise UsageError(f"{where}: a condition can only refer to earlier steps")
        case "not":
            check_condition(_field(condition, "cond", Mapping, where=where), place, where, depth + 1)
        case "and" | "or":
            for one in _field(condition, "conds", list, where=where):
                check_condition(one, place, where, depth + 1)
        case "is_autocommit":
            pass
        case kind:
            raise UsageError(f"{where}: {kind!r} is not a condition")


def holds(condition: Json | None, outcome: Callable[[int], bool | None], *, autocommit: bool) -> bool:
    """Return whether the condition of a step holds, so that the step is run.

    Args:
        condition: a condition that ``check_condition`` has accepted.
        outcome: returns the outcome of an earlier step: True if it succeeded, False if it failed, None if skipped.
        autocommit: whether no transaction is open.
    """
    if condition is None:
        return True
    match condition["type"]:
        case "ok":
            return outcome(condition["step"]) is True
        case "error":
            return outcome(condition["step"]) is False
        case "not":
            return not holds(condition["cond"], outcome, autocommit=autocommit)
        case "and":
            return all(holds(one, outcome, autocommit=autocommit) for one in condition["conds"])
        case "or":
            return any(holds(one, outcome, autocommit=autocommit) for one in condition["conds"])
        case _:
            return autocommit


def write_columns(columns: Sequence[str], declared: Sequence[str | None]) -> list[dict[str, Any]]:
    """Return the columns of a result, with the types that were declared for them."""
    types = declared if len(declared) == len(columns) else [None] * len(columns)
    return [{"name": name, "decltype": kind} for name, kind in zip(columns, types, strict=True)]


def write_counts(result: Result) -> dict[str, Any]:
    """Return a statement's number of changed rows, and the rowid inserted last."""
    rowid = result.lastrowid
    return {"affected_row_count": max(0, result.rowcount), "last_insert_rowid": None if rowid is None else str(rowid)}


def write_result(result: Result, declared: Sequence[str | None], *, want_rows: bool) -> dict[str, Any]:
    """Return the result of a statement as a ``StmtResult``."""
    rows = [[write_value(value) for value in row] for row in result.rows] if want_rows else []
    return {"cols": write_columns(result.columns, declared), "rows": rows, **write_counts(result)}


_CONSTRAINTS = {
    number: name for name, number in vars(sqlite3).items() if name.startswith("SQLITE_CONSTRAINT_")
}  # by SQLite's extended result code


def write_error(error: BedrockishError) -> dict[str, Any]:
    """Return an ``Error``, with SQLite's code where SQLite has one, because programs know these codes.

    A conflict is ``SQLITE_BUSY``: the transaction did not happen, and can be run again. An unknown outcome is
    ``OUTCOME_UNKNOWN``, which no program takes for a commit or for a rollback. The error drops its frames.
    """
    drop_frames(error)
    message, code = error.message, error.code.upper()
    match error:
        case ConstraintError():
            is_key = "FOREIGN KEY" in message  # a schema change that fails when it comes into force has no code
            number = error.details.get("sqlite", sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY if is_key else 0)
            code = _CONSTRAINTS.get(number, "SQLITE_CONSTRAINT")
        case ConflictError():
            code = "SQLITE_BUSY"
        case OutcomeUnknownError():  # the protocol has no id with which to ask again
            fact = message.rpartition("; ")[0] or message  # without the advice, which ends each text
            message, code = f"{fact}; read the rows before you run the statement again", "OUTCOME_UNKNOWN"
        case SqlError():
            is_mismatch = error.details.get("sqlite") == sqlite3.SQLITE_MISMATCH
            code = "SQLITE_MISMATCH" if is_mismatch else "SQLITE_ERROR"
        case TooLargeError():
            code = "SQLITE_TOOBIG"
    return {"message": message, "code": code}

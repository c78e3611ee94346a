"""Descriptions of a statement's reads and writes for its author: what it conflicts with, and how to reduce that."""

from collections.abc import Sequence
from typing import Any

from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.access_sets.analysis import Analysis
from bedrockish.access_sets.catalog import Index, Schema, Table, stored_column
from bedrockish.access_sets.dependent_reads import TOO_MANY
from bedrockish.access_sets.opcodes import COMPARISONS, OPENS, Op
from bedrockish.access_sets.readset import program_of
from bedrockish.api.requests import Statement
from bedrockish.engine.execution.executor import Executor
from bedrockish.engine.sqlite.limits import TakesLongError, out_of_time
from bedrockish.engine.statements.compiled import READ, SCHEMA, Compiled
from bedrockish.errors import BedrockishError, DamagedError, StatementTimeoutError
from bedrockish_journal.model.access_set import HIGH, AccessSet, Range
from bedrockish_journal.model.key_text import key_text
from bedrockish_journal.storage.table_layout import quote

ITEMS_MAX = 100
_SCANS = ("with no bound", "with one bound")
_ALL = {b"t:": "every table", b"i:": "every index"}


def explain(executor: Executor, statement: Statement, user: str = "", *, columns: bool = False) -> list[dict[str, Any]]:
    """Run a text inside the open transaction and describe each of its statements; the caller rolls it back.

    Return a map for each statement. ``sql`` is its text, and ``kind`` is ``read``, ``write`` or ``schema``. ``ids``
    tells whether the node assigns ids to its rows. ``reads`` and ``writes`` are its accesses, and ``wider`` the objects
    whose recorded accesses are wider than the real ones, each with the reason. ``advice`` has texts that say how to
    avoid that. ``error`` is its error text, or empty.

    With ``columns``, run no statement, and return one map with only the columns, as pairs of name and declared type.

    Raises:
        SqlError: SQLite does not accept a statement or its parameters.
        UnsupportedError: a statement cannot be replicated.
        StatementTimeoutError: the whole text exceeds the time limit of one statement.
    """
    if columns:
        return [{"columns": [list(pair) for pair in executor.texts.compiled(statement.sql, user)[0].declared]}]
    found = []
    executor.governor.allow(executor._limits.statement_s)
    try:
        for piece, params in executor.texts.pieces(statement, user):
            found.append(_explain(executor, piece, params))
            if found[-1]["error"]:
                break
    except TakesLongError as error:
        raise out_of_time(executor._limits, error.sql) from None
    finally:
        executor.governor.allow(float("inf"))
    return found


def _explain(executor: Executor, piece: Compiled, params: tuple[Any, ...]) -> dict[str, Any]:
    analysis, error = executor.analysis, ""
    told: dict[str, Any] = {"sql": piece.shown.strip(), "kind": piece.kind, "ids": piece.text(params) != piece.sql}
    if piece.setting:
        return {**told, "reads": [], "writes": [], "wider": [], "advice": [], "error": ""}
    if piece.kind == SCHEMA:
        nothing: dict[str, Any] = {"reads": [], "wider": [], "advice": []}
        return {**told, **nothing, "writes": ["the schema"], "error": _run_schema(executor, piece, params)}
    executor.capture.start()
    gatherer = AccessSetBuilder(analysis, serializable=True)
    resolved = analysis.plan(piece).resolve(params, executor.query_for(piece))
    try:
        executor.run_piece(piece, params, executor._limits.result_bytes)
    except (DamagedError, StatementTimeoutError):
        raise
    except BedrockishError as failure:
        error = failure.message
    changes, touched = executor.capture.stop()
    if error:
        gatherer.add_reads(piece, params)
    else:
        gatherer.complete(resolved, changes, touched)
    access_set = gatherer.finish([] if error else changes, [] if error else list(touched))
    reasons = () if piece.kind == READ and piece.whole_schema else resolved.fallbacks
    wider = [[_object(analysis.schema, name), reason] for reason, name in reasons]
    ops = program_of(executor._db, piece.sql, len(piece.names)) if reasons else []
    texts = [_advice(analysis.schema, ops, reason, name) for reason, name in reasons]
    told["advice"] = list(dict.fromkeys(filter(None, texts)))
    return {**told, **_words(analysis, access_set), "wider": wider, "error": error}


def _run_schema(executor: Executor, piece: Compiled, params: tuple[Any, ...]) -> str:
    """Run a statement that changes the schema; return its error text, or an empty text."""
    executor.capture.discard_changes()
    try:
        executor.run_piece(piece, params, executor._limits.result_bytes)
    except (DamagedError, StatementTimeoutError):
        raise
    except BedrockishError as failure:
        return failure.message
    return ""


def _words(analysis: Analysis, access_set: AccessSet) -> dict[str, list[str]]:
    schema = analysis.schema
    reads = [_range(schema, one) for one in access_set.read_ranges]
    reads += [_point(schema, key) for key in sorted(access_set.read_points)]
    writes = [_range(schema, one) for one in access_set.write_ranges]
    writes += [_point(schema, key) for key in sorted(access_set.write_points)]
    return {"reads": _first_texts(reads), "writes": _first_texts(writes)}


def _first_texts(texts: list[str]) -> list[str]:
    """Return the first ``ITEMS_MAX`` different texts, and a text with the number of the others."""
    unique = list(dict.fromkeys(texts))
    if len(unique) <= ITEMS_MAX:
        return unique
    return [*unique[:ITEMS_MAX], f"and {len(unique) - ITEMS_MAX} more"]


def _object(schema: Schema, name: str) -> str:
    if name == "everything":
        return name
    kind, _, rest = name.partition(":")
    if kind == "t":
        return f"table {rest}"
    if kind == "u":
        return f"columns of {rest}"
    index = next((one for one in schema.roots.values() if isinstance(one, Index) and one.object == name), None)
    return f"index {rest} of {index.table}" if index else f"key of table {rest}"


def _named(schema: Schema, key: bytes) -> str:
    name = key.partition(b"\0")[0].decode()
    return _object(schema, name)


def _point(schema: Schema, key: bytes) -> str:
    text = key_text(key)
    return f"{_named(schema, key)}: {text}" if text else _named(schema, key)


def _range(schema: Schema, ends: Range) -> str:
    low, high = ends
    if low[:2] in _ALL and len(low) == 2:
        return _ALL[low[:2]]
    name = _named(schema, low)
    after, upto = low.endswith(HIGH), high.endswith(HIGH)
    first = key_text(low.removesuffix(HIGH))
    last = key_text(high.removesuffix(HIGH)) if high.partition(b"\0")[0] == low.partition(b"\0")[0] else ""
    if not first and not last:
        return f"{name}: all"
    if first == last and not after and upto:
        return f"{name}: {first}"
    begin = f"{'after' if after else 'from'} {first}" if first else ""
    end = f"{'to' if upto else 'before'} {last}" if last else ""
    return f"{name}: {' '.join(part for part in (begin, end) if part)}"


def _advice(schema: Schema, ops: Sequence[Op], reason: str, name: str) -> str:
    """Return advice for a read that is wider than necessary; empty if no simple advice fits.

    Args:
        schema: the schema that the statement runs on.
        ops: the instructions of the statement's programs, one program after the other.
        reason: why the read is wide.
        name: the table or index: ``t:NAME`` or ``i:NAME``.
    """
    if reason.endswith(_SCANS):
        table, columns = _compared(schema, ops, name)
        if columns:
            return f"CREATE INDEX ... ON {quote(table)}({', '.join(map(quote, columns))}), so that it need not scan all"
        return "give it a WHERE on an indexed column, or read it outside of transactions that write, or at snapshot"
    if reason == TOO_MANY:
        return "make it find fewer rows at a time: a narrower WHERE, or several statements"
    if "value" in reason and "row" in reason:
        return "look that value up by a statement of its own, and give it as a parameter"
    if reason.startswith("index on"):
        return "store the value in a column, and index that"
    if reason == "Count":
        return "count by a WHERE on an indexed column, or keep the count in a row"
    return ""


def _compared(schema: Schema, ops: Sequence[Op], name: str) -> tuple[str, list[str]]:
    """Return the name of a table, and the columns that a scan of the table or index compares."""
    on: dict[int, Table | Index] = {}
    loaded: dict[int, str] = {}
    found: dict[str, None] = {}
    table = name[2:]
    for op in ops:
        if op.address == 0:  # another program begins
            on, loaded = {}, {}
        if op.name in OPENS and op.p2 in schema.roots:
            on[op.p1] = schema.roots[op.p2]
        elif op.name == "Column" and op.p1 in on and on[op.p1].object == name:
            number = stored_column(on[op.p1], op.p2)
            table = _table_of(schema, on[op.p1]).name
            if number is not None and number >= 0:
                loaded[op.p3] = _table_of(schema, on[op.p1]).columns[number].name
        elif op.name in COMPARISONS:
            found.update(dict.fromkeys(loaded[one] for one in (op.p3, op.p1) if one in loaded))
    return table, list(found)


def _table_of(schema: Schema, on: Table | Index) -> Table:
    return on if isinstance(on, Table) else schema.tables[on.table]

"""Advice that makes a statement's reads more exact: an index on the compared columns, or values in another form."""

from collections.abc import Sequence

from bedrockish.access_sets.catalog import Index, Schema, Table, stored_column
from bedrockish.access_sets.dependent_reads import TOO_MANY
from bedrockish.access_sets.opcodes import COMPARISONS, OPENS, Op
from bedrockish.access_sets.table_layout import quote

_SCANS = ("with no bound", "with one bound")


def advice(schema: Schema, ops: Sequence[Op], reason: str, name: str) -> str:
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
            return (
                f"CREATE INDEX ... ON {quote(table)}({', '.join(map(quote, columns))}), so that it need not look at all"
            )
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

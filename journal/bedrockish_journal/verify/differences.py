"""Finds the rows that differ between two databases, by table and key, after their digests have differed."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import apsw

from bedrockish_journal.model.changes import Change, decode_changes
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.storage.own_objects import is_own
from bedrockish_journal.storage.store import reading, scan
from bedrockish_journal.storage.table_layout import TableLayout, quote, user_tables, value_as_sql
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.storage.wide_rows import all_of, any_of, select

SHOWN_MAX = 60  # most characters of a value in a sentence
INDEXED = 16  # number of a key's columns by which a row is looked up; further ones are compared
UNTOLD = "the tables differ from a replay of the journal, and no row shows the difference"
ZERO = "bedrockish_zero"  # an SQL function that distinguishes -0.0 from 0.0


class Difference(NamedTuple):
    """A row or a definition that differs."""

    table: str  # the table, or the name of the definition that differs
    key: str | None  # the row's key as SQL literals; None for a definition
    text: str  # the actual and the expected state, in a sentence


def differences(path: str, should_be: str, limit: int) -> list[Difference]:
    """Return the first differences between a database and the expected one, whose digests differ, by table and key.

    Args:
        path: the database; no other program may write to it during the comparison.
    """
    db = ModuleConnection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        db.execute("ATTACH ? AS journaled", (should_be,))
        db.create_scalar_function(ZERO, lambda *values: str(values[0]), 1, deterministic=True)
        return list(islice(_all(db), limit)) or [Difference("", None, UNTOLD)]
    finally:
        db.close(True)


def last_writers(path: str, found: Iterable[Difference]) -> dict[tuple[str, str], Entry]:
    """Return, by table and key, the entry of the journal that last wrote each row that differs.

    Rows that no entry wrote are left out. The whole journal is read once.
    """
    wanted = {(one.table, one.key) for one in found if one.key is not None}
    tables = {table for table, _ in wanted}
    writers: dict[tuple[str, str], Entry] = {}
    with reading(path) as db:
        primary = {table.name: table.primary for table in user_tables(db)}
        for entry in scan(db) if wanted else ():
            if entry.transaction.kind == ROWS:
                for change in decode_changes(entry.transaction.changes):
                    if change.table in tables:
                        for key in _keys(change, primary.get(change.table, ())):
                            if (change.table, key) in wanted:
                                writers[change.table, key] = entry
    return writers


def _keys(change: Change, primary: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys of a changed row before and after, as ``differences`` prints them."""
    for row, rowid in ((change.before, change.rowid), (change.after, change.rowid_after)):
        if row is not None:
            values = dict(zip(change.columns, row, strict=True))
            if primary and all(name in values for name in primary):
                yield ", ".join(value_as_sql(values[name]) for name in primary)
            elif rowid is not None:
                yield str(rowid)


def _all(db: apsw.Connection) -> Iterator[Difference]:
    differing = set()
    query = """SELECT min(type), name, min(tbl_name), min(one), min(other) FROM (
        SELECT type, name, tbl_name, sql AS one, NULL AS other FROM main.sqlite_schema UNION ALL
        SELECT type, name, tbl_name, NULL, sql FROM journaled.sqlite_schema)
        GROUP BY name HAVING min(one) IS NOT min(other) ORDER BY name"""
    for kind, name, table, one, other in db.execute(query):
        if not is_own(str(kind), str(name), str(table)):
            differing.add(name)
            what = "is defined differently" if one and other else "is not from the journal" if one else "is missing"
            yield Difference(str(name), None, f"{name} {what}")
    for layout in user_tables(db):
        if layout.name not in differing:
            yield from _rows(db, layout)


def _rows(db: apsw.Connection, table: TableLayout) -> Iterator[Difference]:
    """Yield the rows that differ or are surplus, then the missing rows; each by one scan of a table."""
    keys = table.key_columns
    # SQLite needs seconds to compile a join whose index can use 2,000 terms: a plus hides the later terms from it.
    same = all_of([f"{'+' * (place >= INDEXED)}b.{key} IS a.{key}" for place, key in enumerate(keys)])
    order = ", ".join(f"a.{key}" for key in keys)
    shown = [f"a.{key}" for key in [quote(name) for name in table.primary] or keys]
    columns = [quote(name) for name in table.columns]
    ours, theirs = ([f"{side}.{column}" for column in columns] for side in "ab")
    differ = any_of([f"({_exact(one)}) IS NOT ({other})" for one, other in zip(ours, map(_exact, theirs), strict=True)])
    name = quote(table.name)
    rest = f"FROM main.{name} AS a LEFT JOIN journaled.{name} AS b ON {same} WHERE {differ} ORDER BY {order}"
    for row in select(db, [*shown, f"b.{keys[0]} IS NULL", *ours, *theirs], rest):
        key, (extra, *values) = _key_text(row[: len(shown)]), row[len(shown) :]
        yield Difference(table.name, key, _sentence(table, key, bool(extra), [*map(_text, values)]))
    rest = f"FROM journaled.{name} AS a LEFT JOIN main.{name} AS b ON {same} WHERE b.{keys[0]} IS NULL ORDER BY {order}"
    for row in select(db, shown, rest):
        key = _key_text(row)
        yield Difference(table.name, key, f"the row {key} of {table.name} is missing")


def _key_text(values: Iterable[Any]) -> str:
    return ", ".join(map(_text, values))


def _text(value: Any) -> str:
    """Return the SQL literal of a value that ``select`` yielded."""
    if isinstance(value, list):  # a text that is not UTF-8
        _, data = value
        return value_as_sql(data.decode("utf-8", "backslashreplace"))
    return value_as_sql(value)


def _exact(name: str) -> str:
    """Return SQL expressions that are equal only for identical values; with ``=`` alone 1 equals 1.0, 0.0 equals -0.0,
    and 'a' may equal 'A'.
    """
    real = f"CASE WHEN {name} = 0 THEN {ZERO}({name}) ELSE {name} END"
    value = f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) WHEN 'real' THEN {real} ELSE {name} END"
    return f"typeof({name}), {value}"


def _sentence(table: TableLayout, key: str, extra: bool, values: list[str]) -> str:
    if extra:
        return f"the row {key} of {table.name} is not from the journal"
    half = len(values) // 2
    parts = [
        f"{column} is {_short(one)} and should be {_short(other)}"
        for column, one, other in zip(table.columns, values[:half], values[half:], strict=True)
        if one != other
    ]
    return f"in the row {key} of {table.name}, {', '.join(parts)}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"

"""Which rows of two databases differ, by table and key: where a digest only says that some do."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import apsw

from bedrockish_journal.model.changes import Change, Value, decode_changes
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.storage.store import open_readonly, scan
from bedrockish_journal.storage.table_layout import ROWID_NAMES, Table, is_hidden, quote, user_tables, value_as_sql

SHOWN_MAX = 60  # characters of a value in a sentence


class Difference(NamedTuple):
    """One row, or one definition, that is not the same.

    Attributes:
        table: the table, or the name of what is defined differently.
        key: the row, as SQL would write its key; None for a definition.
        text: what is there and what should be, in a sentence.
    """

    table: str
    key: str | None
    text: str


def differences(path: str, should_be: str, limit: int) -> list[Difference]:
    """Return the first differences of a database from what it should be, by table and key.

    Args:
        path: the database; nothing else may write to it meanwhile.
        should_be: what it should be like.
        limit: how many differences to return at most.
    """
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        db.execute("ATTACH ? AS journaled", (should_be,))
        db.create_scalar_function("bedrockish_shown", _printer(str(db.pragma("encoding"))), 2, deterministic=True)
        found: list[Difference] = []
        for one in _all(db):
            found.append(one)
            if len(found) == limit:
                break
        return found
    finally:
        db.close(True)


def last_writers(path: str, found: Iterable[Difference]) -> dict[tuple[str, str], Entry]:
    """Return, for rows that differ, the entry of the journal that wrote each of them last; by table and key.

    It walks through the whole journal once. Rows that no entry ever wrote are left out.

    Args:
        path: a node's file.
        found: what ``differences`` gave.
    """
    wanted = {(one.table, one.key) for one in found if one.key is not None}
    tables = {table for table, _ in wanted}
    writers: dict[tuple[str, str], Entry] = {}
    db = open_readonly(path)
    try:
        primary = {table.name: table.primary for table in user_tables(db)}
        for entry in scan(db) if wanted else ():
            if entry.transaction.kind == ROWS:
                for change in decode_changes(entry.transaction.changes):
                    if change.table in tables:
                        for key in _keys(change, primary.get(change.table, ())):
                            if (change.table, key) in wanted:
                                writers[change.table, key] = entry
    finally:
        db.close(True)
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
    query = """SELECT name, min(one), min(other) FROM (
        SELECT name, sql AS one, NULL AS other FROM main.sqlite_schema UNION ALL
        SELECT name, NULL, sql FROM journaled.sqlite_schema)
        GROUP BY name HAVING min(one) IS NOT min(other) ORDER BY name"""
    for name, one, other in db.execute(query):
        if not is_hidden(str(name)):
            differing.add(name)
            what = "is defined differently" if one and other else "is not from the journal" if one else "is missing"
            yield Difference(str(name), None, f"{name} {what}")
    for table in user_tables(db):
        if table.name not in differing and not table.virtual:
            yield from _rows(db, table)


def _rows(db: apsw.Connection, table: Table) -> Iterator[Difference]:
    """Yield the rows that differ or are too many, then those that are missing; each way is one walk over the table."""
    rowid = None if table.rowid is None else table.rowid if table.rowid in ROWID_NAMES else quote(table.rowid)
    keys = [rowid] if rowid is not None else [quote(name) for name in table.primary]
    same = " AND ".join(f"b.{key} IS a.{key}" for key in keys)
    order = ", ".join(f"a.{key}" for key in keys)
    key_shown = " || ', ' || ".join(_shown(f"a.{key}") for key in [quote(name) for name in table.primary] or keys)
    columns = [quote(name) for name in table.columns]
    ours, theirs = (", ".join(_shown(f"{side}.{column}") for column in columns) for side in "ab")
    exact, other = (", ".join(_exact(f"{side}.{column}") for column in columns) for side in "ab")
    name = quote(table.name)
    query = f"""SELECT {key_shown}, b.{keys[0]} IS NULL, {ours}, {theirs} FROM main.{name} AS a
        LEFT JOIN journaled.{name} AS b ON {same} WHERE ({exact}) IS NOT ({other}) ORDER BY {order}"""
    for key, extra, *texts in db.execute(query):
        yield Difference(table.name, key, _sentence(table, key, bool(extra), texts))
    query = f"""SELECT {key_shown} FROM journaled.{name} AS a LEFT JOIN main.{name} AS b ON {same}
        WHERE b.{keys[0]} IS NULL ORDER BY {order}"""
    for (key,) in db.execute(query):
        yield Difference(table.name, key, f"the row {key} of {table.name} is missing")


def _shown(name: str) -> str:
    """Return SQL that prints a value. A text goes as its bytes: who edits a file can put any into it."""
    return (
        f"bedrockish_shown(typeof({name}), CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END)"
    )


def _exact(name: str) -> str:
    """Return SQL that gives the same for the same value alone: = takes 1 for 1.0, 'a' for 'A' in many a collation, and
    0.0 for -0.0.
    """
    real = f"CASE WHEN {name} = 0 THEN {_shown(name)} ELSE {name} END"
    value = f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) WHEN 'real' THEN {real} ELSE {name} END"
    return f"typeof({name}), {value}"


def _printer(encoding: str) -> Callable[..., str]:
    def shown(kind: str, value: Value) -> str:
        return value_as_sql(
            value.decode(encoding, "backslashreplace") if kind == "text" and type(value) is bytes else value
        )

    return shown


def _sentence(table: Table, key: str, extra: bool, values: list[str]) -> str:
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

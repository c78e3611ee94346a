"""Which rows of two databases differ, by table and key: where a digest only says that some do."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apsw

from journal.changes import Change, decode_changes
from journal.entry import Entry
from journal.store import open_readonly, scan
from journal.tables import ROWID_NAMES, Table, is_hidden, quote, user_tables
from journal.transaction import ROWS

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
                yield ", ".join(apsw.format_sql_value(values[name]) for name in primary)
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
    shown = [quote(name) for name in table.primary] or keys
    # As blobs: who edits a file can put any bytes into a text, and they are to be shown, not to be tripped over.
    shown_key = "CAST(" + " || ', ' || ".join(f"quote(a.{key})" for key in shown) + " AS BLOB)"
    # quote() tells an integer from a real and a text from a blob, which = does not.
    ours, theirs = (", ".join(f"CAST(quote({side}.{quote(name)}) AS BLOB)" for name in table.columns) for side in "ab")
    name, encoding = quote(table.name), str(db.pragma("encoding"))
    query = f"""SELECT {shown_key}, b.{keys[0]} IS NULL, {ours}, {theirs} FROM main.{name} AS a
        LEFT JOIN journaled.{name} AS b ON {same} WHERE ({ours}) IS NOT ({theirs}) ORDER BY {order}"""
    for label, extra, *values in db.execute(query):
        key, *texts = (_text(value, encoding) for value in (label, *values))
        yield Difference(table.name, key, _sentence(table, key, bool(extra), texts))
    query = f"""SELECT {shown_key} FROM journaled.{name} AS a LEFT JOIN main.{name} AS b ON {same}
        WHERE b.{keys[0]} IS NULL ORDER BY {order}"""
    for (label,) in db.execute(query):
        key = _text(label, encoding)
        yield Difference(table.name, key, f"the row {key} of {table.name} is missing")


def _text(raw: bytes | None, encoding: str) -> str:
    return "" if raw is None else raw.decode(encoding, "backslashreplace")


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

"""Checks that indexes have the rows of their table, a range of rows at a time.

SQLite's own check reads a whole table on one snapshot, so the write-ahead log cannot restart for that long. Here each
range has its own snapshot, and each of its rows is looked up in each index by the row's own values. So the check finds
a row that an index lacks or has under another key; it does not find an entry without a row.
"""

from dataclasses import dataclass
from typing import Any

import apsw

from bedrockish.access_sets.computed_columns import indexed_expressions
from bedrockish.access_sets.query_names import condition_of
from bedrockish_journal.storage.table_layout import ROWID_NAMES, quote
from bedrockish_journal.storage.virtual_tables import virtual_tables
from bedrockish_journal.storage.wide_rows import all_of

Key = tuple[Any, ...]  # the rowid, or the values of the primary key
# All queries name the schema ``main``, because a connection that unpacks entries has a TEMP view named as the journal.
_TABLES = """SELECT DISTINCT listed.name FROM pragma_table_list AS listed
  JOIN pragma_index_list(listed.name, 'main') AS one
  WHERE listed.schema = 'main' AND listed.type = 'table' AND (one.origin <> 'pk' OR NOT listed.wr)
  ORDER BY listed.name"""
_TABLE = "SELECT wr FROM pragma_table_list(?) WHERE schema = 'main' AND type = 'table'"
_COLUMNS = "SELECT name, pk FROM pragma_table_xinfo(?, 'main') ORDER BY pk"
_INDEXES = "SELECT name, sql FROM main.sqlite_schema WHERE type = 'index' AND tbl_name = ?"
_TERMS = "SELECT cid, name, coll FROM pragma_index_xinfo(?, 'main') WHERE key ORDER BY seqno"
_EXPRESSION = -2  # the column number that SQLite lists for an expression
ROW = "bedrockish_row"  # no user's table has such a name


@dataclass(slots=True)
class CheckedRange:
    """The result of a check of one range."""

    count: int = 0  # number of rows in the range
    last: Key | None = None  # the key of the last row; None if the range reaches the end of the table
    lacks: str = ""  # an index that lacks a row of the range, and that row; empty if every index has every row


def tables_with_indexes(db: apsw.Connection) -> list[str]:
    """Return the tables that have an index besides their own B-tree, including system tables."""
    return [str(name) for (name,) in db.execute(_TABLES)]


def corrupt_indexes(db: apsw.Connection) -> list[str]:
    """Return the FTS5 indexes with external content that fail FTS5's own integrity check."""
    query = "PRAGMA main.integrity_check({})"
    names = [one.name for one in virtual_tables(db) if one.content]
    return [name for name in names if db.execute(query.format(quote(name))).fetchall() != [("ok",)]]


def check_range(db: apsw.Connection, name: str, after: Key | None, limit: int) -> CheckedRange:
    """Look up a range of rows in the indexes of their table.

    Args:
        db: a connection that only reads; the check takes one snapshot on it.
        name: name of the table; a table that was dropped has no rows.
        after: the key before the first row; None: from the beginning.
        limit: the greatest number of rows.

    Raises:
        apsw.CorruptError: a page cannot be read.
    """
    db.execute("BEGIN")
    try:
        listed: Any = db.execute(_TABLE, (name,)).fetchone()
        keys = _keys(db, name, is_without_rowid=bool(listed[0])) if listed is not None else []
        if not keys:
            return CheckedRange()
        found = _range(db, name, keys, after, limit)
        indexes: Any = db.execute(_INDEXES, (name,)).fetchall()
        for index, sql in indexes:
            lacking = _first_lacking(db, name, keys, str(index), sql, after, found.last)
            if lacking is not None:
                row = ", ".join(map(repr, lacking))
                found.lacks = f"row {row} of {name} is not in its index {index}"
                break
        return found
    finally:
        if db.in_transaction:  # after a disk error SQLite itself has rolled back, and ROLLBACK would hide that error
            db.execute("ROLLBACK")


def _keys(db: apsw.Connection, name: str, *, is_without_rowid: bool) -> list[str]:
    """Return the names of a table's key columns, or a name of its rowid; empty if columns have all of these names."""
    columns: Any = db.execute(_COLUMNS, (name,)).fetchall()
    if is_without_rowid:
        return [quote(str(column)) for column, place in columns if place]
    taken = {str(column).lower() for column, _ in columns}
    return [word for word in ROWID_NAMES if word not in taken][:1]


def _range(db: apsw.Connection, name: str, keys: list[str], after: Key | None, limit: int) -> CheckedRange:
    what = ", ".join(keys)
    where, values = _between(keys, after, None)
    query = f"SELECT {what} FROM main.{quote(name)} NOT INDEXED WHERE {where} ORDER BY {what} LIMIT {int(limit)}"
    found = CheckedRange()
    for row in db.execute(query, values):
        found.count += 1
        found.last = tuple(row)
    if found.count < limit:
        found.last = None
    return found


def _between(keys: list[str], after: Key | None, upto: Key | None) -> tuple[str, list[Any]]:
    compared = f"({', '.join(keys)})" if len(keys) > 1 else keys[0]
    marks = f"({', '.join('?' * len(keys))})"
    where, values = ["true"], list[Any]()
    for sign, bound in ((">", after), ("<=", upto)):
        if bound is not None:
            where.append(f"{compared} {sign} {marks}")
            values += bound
    return " AND ".join(where), values


def _first_lacking(
    db: apsw.Connection, table: str, keys: list[str], index: str, sql: object, after: Key | None, upto: Key | None
) -> Key | None:
    """Return the key of a row that an index lacks; None if it lacks none, or SQLite cannot look the rows up in it."""
    terms, condition = _terms_of(db, index, sql)
    if not terms:
        return None
    where, values = _between(keys, after, upto)
    given = [f"{key} AS k{place}" for place, key in enumerate(keys)]
    given += [f"{term} AS t{place}" for place, term in enumerate(terms)]
    of_row = [f"{ROW}.k{place}" for place in range(len(keys))]
    same = [f"{term} IS {ROW}.t{place}" for place, term in enumerate(terms)]
    same += [f"{key} = {of_row[place]}" for place, key in enumerate(keys)]
    rows = f"SELECT {', '.join(given)} FROM main.{quote(table)} NOT INDEXED WHERE {where} AND ({condition})"
    entry = f"SELECT 1 FROM main.{quote(table)} INDEXED BY {quote(index)} WHERE ({condition}) AND {all_of(same)}"
    query = f"SELECT {', '.join(of_row)} FROM ({rows}) AS {ROW} WHERE NOT EXISTS ({entry})"
    try:
        is_unique = _finds_at_once(db, query, values, index, len(terms) + len(keys), len(terms))
        if is_unique is None:
            return None
        if is_unique:  # skip rows with NULL: an index may have many such entries, and SQLite would read each
            query += "".join(f" AND {ROW}.t{place} IS NOT NULL" for place in range(len(terms)))
        found: Any = db.execute(f"{query} LIMIT 1", values).fetchone()
    except (apsw.SQLError, UnicodeDecodeError):  # a plugin's function failed, or a text is not UTF-8
        return None
    return None if found is None else tuple(found)


def _finds_at_once(
    db: apsw.Connection, query: str, values: list[Any], index: str, compared: int, terms: int
) -> bool | None:
    """Return by which columns SQLite would look an entry up in an index.

    True: by the index's terms alone, as in a unique index; False: by the terms and the key of the row; None: by only
    some of the terms.
    """
    plan: Any = db.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()
    searches = [str(row[3]) for row in plan if f"INDEX {index} (" in row[3] and str(row[3]).startswith("SEARCH")]
    if len(searches) != 1:
        return None
    constraints = searches[0].count("=?")
    if constraints >= compared or "rowid=?" in searches[0]:
        return False
    return True if constraints >= terms else None


def _terms_of(db: apsw.Connection, index: str, sql: object) -> tuple[list[str], str]:
    """Return the terms of an index with their collations, and the condition for a row to have an entry in it."""
    columns: Any = db.execute(_TERMS, (index,)).fetchall()
    expressions, condition = list[str](), None
    if isinstance(sql, str):  # otherwise SQLite made the index for a constraint
        expressions, condition = indexed_expressions(sql) or [], condition_of(sql)
        if len(expressions) != len(columns):
            return [], ""
    terms = []
    for place, (cid, name, collation) in enumerate(columns):
        term = f"({expressions[place]})" if cid == _EXPRESSION else quote(str(name))
        terms.append(f"{term} COLLATE {quote(str(collation))}")
    return terms, condition or "true"

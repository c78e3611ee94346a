"""Merges INSERTs of one row each, such as those of an ``executemany``, into one INSERT of many rows.

A transaction that changes the schema records the text of each statement with its values (``ddl_execution``), and every
node compiles it. Many rows in one text take a tenth of the time:

    INSERT INTO t(a) VALUES (?)     (three times)     INSERT INTO t(a) VALUES ((1)), ((2)), ((3))

This applies only to tables that the transaction itself has made: they have no rows of other clients, and no triggers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from bedrockish.api.requests import Statement
from bedrockish.engine.sqlite.bind import Binder
from bedrockish.engine.statements.constant_calls import written_in
from bedrockish.engine.statements.insert_parser import InsertParser, NotUnderstoodError
from bedrockish.errors import SqlError
from bedrockish.sqltext.tokenizer import NotTokensError, tokens
from bedrockish_journal.storage.table_layout import ROWID_NAMES, find_table, quote

ROWS_MAX, TEXT_MAX = 250, 1 << 18
"""The most rows of one text, and about the most characters."""


@dataclass(frozen=True, slots=True)
class OneRow:
    """An INSERT of one row by VALUES, without a conflict clause and without RETURNING."""

    table: str
    columns: tuple[str, ...] | None  # the names in its list of columns; None without a list
    head: str  # the text before the row
    parts: tuple[str, ...]  # the text of the row between its parameters
    numbers: tuple[int, ...]  # the number of each of these parameters, from 1
    values: tuple[int, ...]  # for each value of the row: its parameter's number; 0 for another expression
    write: Callable[[Any], str]  # writes a value in place of a parameter

    def row(self, values: tuple[Any, ...]) -> str:
        """Return the text of the row with these values for the statement's parameters."""
        found = [self.parts[0]]
        for number, part in zip(self.numbers, self.parts[1:], strict=True):
            found += (self.write(values[number - 1]), part)
        return "".join(found)


def one_row(sql: str) -> OneRow | None:
    """Return the parts of an INSERT of one row; None for any other statement."""
    try:
        parser = InsertParser(sql)
        insert, found = parser.insert(), parser.tokens
        rows = parser.split(insert.first + 1, insert.end) if insert.kind == "values" else []
        if len(rows) != 1 or insert.end != len(found) or not (found[0].is_word("INSERT") and found[1].is_word("INTO")):
            return None
        first, end = rows[0]
        parts = parser.split(first + 1, end - 1)
    except (NotTokensError, NotUnderstoodError):
        return None
    if (insert.schema or "main").lower() != "main" or any(place < first for place in parser.numbers):
        return None
    texts, at = [], found[first].start
    for place in parser.numbers:
        texts.append(sql[at : found[place].start])
        at = found[place].end
    return OneRow(
        insert.table,
        insert.columns,
        sql[: found[first].start],
        (*texts, sql[at : found[end - 1].end]),
        tuple(parser.numbers.values()),
        tuple(parser.numbers.get(begin, 0) if stop == begin + 1 else 0 for begin, stop in parts),
        written_in(found),
    )


def count_alike(statements: Sequence[Statement]) -> int:
    """Return how many statements from the first on have its text, at most ``ROWS_MAX``."""
    sql = statements[0].sql
    return next((at for at, one in enumerate(statements[:ROWS_MAX]) if one.sql != sql), min(len(statements), ROWS_MAX))


@dataclass(frozen=True, slots=True)
class MergedInsert:
    """INSERTs of one row each as one text."""

    sql: str
    count: int  # how many they are
    rowids: tuple[int, ...]  # the ids that the rows have, 0 for rows without one; empty if they get consecutive ids
    highest: str  # a query for the highest id of the table, if the rows get ids; otherwise empty


def merged(db: apsw.Connection, statements: Sequence[Statement], names: Sequence[str | None]) -> MergedInsert | None:
    """Return INSERTs with the same text as one statement; None if they must run one by one.

    Args:
        statements: at least two; further ones than the result has rows may follow.
        names: the names of the parameters of the text.
    """
    one = one_row(statements[0].sql)
    table = None if one is None else find_table(db, one.table)
    if one is None or table is None:
        return None
    columns = one.columns or [name for name in table.columns if name not in table.generated]
    ids = {*ROWID_NAMES} - {name.lower() for name in table.columns} | {(table.alias or "").lower()} - {""}
    places = [place for place, name in enumerate(columns) if table.rowid is not None and name.lower() in ids]
    number = one.values[places[0]] if len(places) == 1 and places[0] < len(one.values) else 0
    if places and not number:
        return None
    rows, rowids, size = list[str](), list[int](), 0
    for statement in statements:
        values = _values(statement, names)
        rowid = values[number - 1] if values is not None and number else 0
        if values is None or type(rowid) is not int or size > TEXT_MAX:
            break
        rows.append(one.row(values))
        rowids.append(rowid)
        size += len(rows[-1])
    if len(rows) < 2:
        return None
    has_ids = table.rowid is not None and not number
    highest = f"SELECT max({table.key_columns[0]}) FROM main.{quote(table.name)}" if has_ids else ""
    return MergedInsert(one.head + ", ".join(rows), len(rows), () if has_ids else tuple(rowids), highest)


def _values(statement: Statement, names: Sequence[str | None]) -> tuple[Any, ...] | None:
    """Return the values of a statement's parameters; None if they do not fit, which the statement itself reports."""
    try:
        binder = Binder(statement.params)
        values = binder.bind_next(names)
        binder.finish()
    except SqlError:
        return None
    return values


def made_table(sql: str) -> str:
    """Return the name of the table that a CREATE TABLE has made; empty for another statement.

    Also empty for a table with a conflict clause, by which SQLite could skip a row.
    """
    try:
        found = [token for token in tokens(sql) if token.text != ";"]
    except NotTokensError:
        return ""
    words = [token.text.upper() for token in found]
    if words[:2] != ["CREATE", "TABLE"] or words[2:3] == ["IF"] or "CONFLICT" in words:
        return ""
    return found[4 if words[3] == "." else 2].name or ""

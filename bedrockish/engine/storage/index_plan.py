"""Plans an online index build: the table that stands in for the user's table during it, and the queries that fill it.

SQLite adds an entry to an index only together with a row of its table. So the index is created on a system table, the
*stand-in*, which has the index's columns with their names, types and collations. The content of the index is then byte
for byte that of an index on the user's table, even if it is unique, partial or on expressions.

The plan is tried first, in an in-memory database that has only the user's table. A statement that fails this trial is
not built online: it runs like any other schema statement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import apsw

from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.definitions import folded
from bedrockish.access_sets.system_names import BARE, STAND_IN, STAND_IN_INDEX
from bedrockish.access_sets.table_layout import CapturedTable, Tables
from bedrockish.sqltext.statement_kinds import SCHEMA, kind_of
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, tokens
from bedrockish_journal.model.changes import DO, SchemaStep
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.storage.virtual_tables import FTS5, parse_virtual

P = TypeVar("P", bound="BuildPlan")
COLUMNS_MAX = 500  # number of columns from which on an FTS5 index is not built online
_FORM = "SELECT name, desc, coll, key FROM pragma_index_xinfo(?) ORDER BY seqno"


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The plan of a build, made before any row is read."""

    table: str  # name of the table, as the schema spells it
    table_sql: str  # the statement that made it
    name: str  # name of the result, which is an index or an FTS5 table
    sql: str  # the statement that makes the result, as SQLite keeps it
    stand_in_sql: str  # the statement that makes the stand-in
    rowid: str  # a name of the rowid that is valid in the table and in the stand-in, quoted
    columns: tuple[str, ...]  # the columns of the stand-in's rows: the rowid, and then the columns of the result
    load: str  # the query for ``columns`` of all rows that have an entry, in the order of the entries
    one: str  # the query for ``columns`` of the row with a given rowid

    @property
    def title(self) -> str:
        """Name of the index that is built, for log lines."""
        return f"index {self.name}"


@dataclass(frozen=True, slots=True)
class IndexPlan(BuildPlan):
    """The plan of the build of an index."""

    bare_sql: str  # the statement that describes the stand-in as a table without the index
    index_sql: str  # the statement that makes the index on the stand-in
    is_plain: bool  # whether the index has an entry for each row, and only columns as terms
    terms: tuple[str, ...]  # the names of the columns of an entry, if the index is plain


@dataclass(frozen=True, slots=True)
class SearchPlan(BuildPlan):
    """The plan of the build of an FTS5 index on the rows of a table."""

    near: str  # the query for the next rows from a given rowid on, in order


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """The parts of a CREATE INDEX."""

    unique: bool  # whether it has the word UNIQUE
    table: str  # the name of the table, as the statement spells it
    terms: str  # the text in the parentheses
    where: str  # the text from WHERE on, or empty
    tail: str  # the text from the opening parenthesis on
    names: frozenset[str]  # the words in ``tail`` that may name a column, folded


def makes_index(steps: Sequence[SchemaStep]) -> bool:
    """Return whether a change of the schema is one statement that makes an index."""
    return parse_create_index(*only_statement(steps)) is not None


def makes_search(steps: Sequence[SchemaStep]) -> bool:
    """Return whether a schema change makes an FTS5 index on a table's rows, and has otherwise only quick steps."""
    return bool(_content(*_search_statement(steps)))


def _search_statement(steps: Sequence[SchemaStep]) -> tuple[str, list[SqlToken]]:
    """Return the first statement of a change, and its tokens; ``("", [])`` unless all later ones are quick."""
    return only_statement(steps[:1]) if all(map(_is_quick, steps[1:])) else ("", [])


def _is_quick(step: SchemaStep) -> bool:
    """Return whether a step makes or drops a trigger or a view, or sets ``user_version`` or ``application_id``."""
    words = only_statement([step])[1]
    if not words or kind_of(step.sql) != SCHEMA:
        return False
    return words[0].is_word("PRAGMA") or words[1].is_word("TRIGGER", "VIEW")


def _content(sql: str, found: list[SqlToken]) -> str:
    """Return the content table of the FTS5 index that a statement makes; empty if it makes none."""
    if len(found) < 6 or not (found[0].is_word("CREATE") and found[1].is_word("VIRTUAL")):
        return ""
    virtual = parse_virtual("", sql)
    return virtual.content if virtual.module == FTS5 and not virtual.why_not_replicated else ""


def plan_build(steps: Sequence[SchemaStep], tables: Tables, prepare: Prepare) -> BuildPlan | None:
    """Return the plan of an online build; None if the change has other parts than one index, or cannot be built online.

    Args:
        steps: the change.
        tables: the tables of the schema that it changes.
    """
    sql, found = _search_statement(steps)
    content = _content(sql, found)
    if content:
        return _plan_search(sql, table_with_rowids(tables, content), tables, prepare)
    sql, found = only_statement(steps)
    words = parse_create_index(sql, found)
    table = table_with_rowids(tables, words.table) if words is not None else None
    if words is None or table is None:
        return None
    text = tables.definitions.text_of(table.name)
    return try_plan(prepare, lambda trial: _planned(trial, sql, words, table, text))


def parse_create_index(sql: str, found: list[SqlToken]) -> CreateIndex | None:
    """Return the parts of a CREATE INDEX; None for any other text. ``found`` are the tokens of the text."""
    is_unique = len(found) > 1 and found[1].is_word("UNIQUE")
    at = 1 + is_unique
    if len(found) <= at or not (found[0].is_word("CREATE") and found[at].is_word("INDEX")):
        return None
    # [IF NOT EXISTS] [schema .] name ON table ( ... ) [WHERE ...]: the keyword ON comes two tokens later or more. A
    # name that is ON is quoted, so the first bare ON is the keyword.
    on = next((place for place in range(at + 2, len(found)) if found[place].is_word("ON")), len(found))
    if on + 2 >= len(found) or found[on + 2].text != "(":
        return None
    end = _closing(found, on + 2)
    name = found[on + 1].name
    if end is None or name is None:
        return None
    last = found[-1].end
    where = ""
    if end + 1 < len(found):
        if not found[end + 1].is_word("WHERE"):
            return None
        where = sql[found[end + 1].start : last]
    names = frozenset(folded(token.name) for token in found[on + 3 :] if token.name is not None)
    opening = found[on + 2]
    return CreateIndex(is_unique, name, sql[opening.end : found[end].start], where, sql[opening.start : last], names)


def _closing(found: list[SqlToken], opening: int) -> int | None:
    depth = 0
    for place in range(opening, len(found)):
        depth += (found[place].text == "(") - (found[place].text == ")")
        if not depth:
            return place
    return None


def _planned(
    trial: apsw.Connection, statement: str, words: CreateIndex, table: CapturedTable, table_sql: str
) -> IndexPlan | None:
    trial.execute(table_sql)
    trial.execute(statement)
    made = trial.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").fetchall()
    if len(made) != 1:
        return None
    name, sql = str(made[0][0]), str(made[0][1])
    alias = table.id_column
    info = trial.execute("SELECT name FROM pragma_table_xinfo(?) ORDER BY cid", (table.name,)).fetchall()
    columns = [str(one) for (one,) in info if folded(str(one)) in words.names and str(one) != alias]
    if not columns:
        return None
    is_strict = trial.execute("SELECT strict FROM pragma_table_list(?)", (table.name,)).fetchall() == [(1,)]
    described = [_described(trial, table.name, one) for one in columns]
    parts = [*([f"{quote(alias)} INTEGER PRIMARY KEY"] if alias else []), *described]
    shape = f"({', '.join(parts)})" + " STRICT" * is_strict
    index_sql = f"CREATE {'UNIQUE ' * words.unique}INDEX {STAND_IN_INDEX} ON {STAND_IN}{words.tail}"
    stand_in_sql, bare_sql = f"CREATE TABLE {STAND_IN}{shape}", f"CREATE TABLE {BARE}{shape}"
    trial.execute(stand_in_sql)
    trial.execute(index_sql)
    if [trial.column_metadata("main", STAND_IN, one)[:2] for one in columns] != [
        trial.column_metadata("main", table.name, one)[:2] for one in columns
    ]:
        return None
    form = trial.execute(_FORM, (name,)).fetchall()
    if form != trial.execute(_FORM, (STAND_IN_INDEX,)).fetchall():
        return None
    terms = [term for term, *_, is_key in form if is_key]
    is_plain = not words.where and None not in terms
    assert table.rowid
    named = (table.rowid, *map(quote, columns))
    read = f"SELECT {', '.join(named)} FROM {quote(table.name)}"
    load = f"{read} {words.where} ORDER BY {words.terms}, {table.rowid}"
    one = f"{read} WHERE {table.rowid} = ?"
    trial.execute(f"EXPLAIN {load}").fetchall()
    trial.execute(f"EXPLAIN {one}", (1,)).fetchall()
    return IndexPlan(
        table.name, table_sql, name, sql, stand_in_sql, table.rowid, named, load, one, bare_sql, index_sql, is_plain,
        tuple(map(str, terms)) if is_plain else (),
    )  # fmt: skip


def _plan_search(sql: str, table: CapturedTable | None, tables: Tables, prepare: Prepare) -> SearchPlan | None:
    if table is None:
        return None
    text = tables.definitions.text_of(table.name)
    return try_plan(prepare, lambda trial: _planned_search(trial, sql, table, text))


def _planned_search(trial: apsw.Connection, statement: str, table: CapturedTable, table_sql: str) -> SearchPlan | None:
    trial.execute(table_sql)
    trial.execute(statement)
    ((name, sql),) = trial.execute("SELECT name, sql FROM sqlite_schema WHERE rootpage = 0").fetchall()
    words = tokens(str(sql))
    using = next(token.start for token in words[4:] if token.is_word("USING"))
    stand_in_sql = f"CREATE VIRTUAL TABLE {STAND_IN} {str(sql)[using:]}"
    trial.execute(stand_in_sql)
    info = trial.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid", (name,)).fetchall()
    columns = [quote(str(column)) for (column,) in info]
    if len(columns) >= COLUMNS_MAX:
        return None
    assert table.rowid
    read = f"SELECT {', '.join((table.rowid, *columns))} FROM {quote(table.name)}"
    order = f"ORDER BY {table.rowid}"
    load, one, near = f"{read} {order}", f"{read} WHERE {table.rowid} = ?", f"{read} WHERE {table.rowid} >= ? {order}"
    trial.execute(f"EXPLAIN {load}").fetchall()
    return SearchPlan(
        table.name, table_sql, str(name), str(sql), stand_in_sql, table.rowid, ("rowid", *columns), load, one, near
    )


def _described(trial: apsw.Connection, table: str, column: str) -> str:
    """Return a column's definition for the stand-in, in which a generated column becomes an ordinary one."""
    kind, collation, *_ = trial.column_metadata("main", table, column)
    return f"{quote(column)} {kind or ''} COLLATE {quote(collation or 'BINARY')}"


def only_statement(steps: Sequence[SchemaStep]) -> tuple[str, list[SqlToken]]:
    """Return the only statement of a schema change, and its tokens up to the semicolon; ``("", [])`` if it has more."""
    if len(steps) != 1 or steps[0].kind != DO or steps[0].result_digest:
        return "", []
    try:
        found = tokens(steps[0].sql)
    except NotTokensError:
        return "", []
    while found and found[-1].text == ";":
        found.pop()
    return steps[0].sql, found


def table_with_rowids(tables: Tables, name: str) -> CapturedTable | None:
    """Return a table; None if none has this name, or if its rows have no rowid that can be named."""
    names = tables.names([folded(name)])
    table = tables.by_name[names[0]] if names else None
    return table if table is not None and table.rowid else None


def try_plan(prepare: Prepare, plan: Callable[[apsw.Connection], P | None]) -> P | None:
    """Return a plan made in an empty database in memory; None if SQLite refuses a part of it there."""
    trial = ModuleConnection(":memory:")
    try:
        prepare(trial)
        return plan(trial)
    except apsw.Error:
        return None
    finally:
        trial.close()

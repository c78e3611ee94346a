"""The declarations of a table's columns over all schema changes, which determine its typed columns.

A column keeps its first type. The statements of all schema changes for tables and views are run again in a private
in-memory database without rows. A definition that cannot be run there, such as a table that needs a function of a
plugin, is taken from the node's present schema.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import apsw

from bedrockish_journal.model.changes import decode_statements
from bedrockish_journal.model.errors import EntryMalformedError, FileMissingError
from bedrockish_journal.model.plain_names import folded, is_users
from bedrockish_journal.model.transaction import SCHEMA, decode_transaction
from bedrockish_journal.spark.source.feeds import OpenJournal
from bedrockish_journal.spark.source.typed_values import column_type, kept_type
from bedrockish_journal.storage.vector_modules import ModuleConnection

STEPS_MOST = 1_000_000  # most steps of SQLite's virtual machine for one statement
PAGES_MOST = 10_000
LENGTH_MOST = 1_000_000
_OF_TABLES = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:CREATE|ALTER|DROP)\s+(?:VIRTUAL\s+)?(?:TABLE|VIEW)\b", re.I | re.DOTALL
)
_COLUMNS = "SELECT name, type, pk FROM pragma_table_xinfo(?) WHERE hidden IN (0, 3) ORDER BY cid"
_IS_STRICT = "SELECT 1 FROM pragma_table_list(?) WHERE strict"
_IS_KEPT = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'bedrockish_schema'"
_KEPT = "SELECT statements FROM bedrockish_schema WHERE state = 'active' ORDER BY version"
_IN_JOURNAL = f"SELECT body FROM bedrockish_journal WHERE kind = '{SCHEMA}' AND repeat = 0 ORDER BY clock, origin"
_TABLES = f"SELECT name FROM sqlite_master WHERE type = 'table' AND {is_users()} ORDER BY name"


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """The declarations of a table in all versions of the schema."""

    table: str  # the table's name
    types: dict[str, str]  # the first type of each stored column, by name
    keys: tuple[tuple[str, ...], ...]  # the columns of each primary key of any version, the last first


def declared(feeds: Iterable[OpenJournal], table: str) -> DeclaredTable:
    """Return the declarations of a table in some journals of one cluster.

    Raises:
        FileMissingError: no journal has or had such a table.
        JournalError: a journal cannot be read.
    """
    types: dict[str, str] = {}
    keys: list[tuple[str, ...]] = []
    paths, tables = list[str](), set[str]()
    known = dict[str, str]()  # folded name -> first spelling
    for feed in feeds:
        paths.append(feed.context.path)
        for columns in _versions(feed, table):
            for name, kind, _ in columns:
                first, found = known.setdefault(folded(name), name), column_type(kind)
                types[first] = kept_type(types.setdefault(first, found), found)
            key = tuple(name for name, _, place in sorted(columns, key=lambda one: one[2]) if place)
            if key and key not in keys:
                keys.append(key)
        tables.update(str(row[0]) for row in feed.ask(_TABLES, ()))
    if not types:
        raise FileMissingError(
            ", ".join(paths),
            f"{', '.join(paths)}: there is no table {table!r}, and none was; there are {', '.join(sorted(tables))}",
        )
    return DeclaredTable(table, types, tuple(reversed(keys)))


def _versions(feed: OpenJournal, table: str) -> Iterator[list[tuple[str, str, int]]]:
    """Yield a table's columns in each version of the schema, as (name, declared type, place in the primary key)."""
    with closing(DefinitionRunner()) as db:
        for statement in _statements(feed):
            if _OF_TABLES.match(statement):
                with suppress(apsw.Error):
                    db.run(statement)
                    yield _columns(db.execute, table)
    yield _columns(feed.ask, table)


def _columns(ask: Callable[[str, tuple[str]], Iterable[Sequence[Any]]], table: str) -> list[tuple[str, str, int]]:
    rows = [(str(name), str(kind), int(place)) for name, kind, place in ask(_COLUMNS, (table,))]
    if any(kind.upper() == "ANY" for _, kind, _ in rows) and list(ask(_IS_STRICT, (table,))):
        return [(name, "" if kind.upper() == "ANY" else kind, place) for name, kind, place in rows]
    return rows


def _statements(feed: OpenJournal) -> Iterator[str]:
    """Yield the statements of all schema changes, in the order in which they came into force."""
    ((is_kept,),) = feed.ask(_IS_KEPT, ())
    if is_kept:
        for (text,) in list(feed.ask(_KEPT, ())):
            yield from _split(str(text))
        return
    for (body,) in list(feed.ask(_IN_JOURNAL, ())):  # a journal that no node wrote
        with suppress(EntryMalformedError, TypeError, RecursionError):
            yield from decode_statements(decode_transaction(body).changes)


def _split(text: str) -> Iterator[str]:
    """Yield the statements of a text in which ``;`` and a newline separate statements, but may also be inside one."""
    found = ""
    for part in text.split(";\n"):
        found += part + ";\n"
        if sqlite3.complete_statement(found):
            yield found
            found = ""
    yield found


class DefinitionRunner(ModuleConnection):
    """A database in memory that runs definitions under limits, because an altered file may have any statements."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.pragma("max_page_count", PAGES_MOST)
        self.limit(apsw.SQLITE_LIMIT_LENGTH, LENGTH_MOST)
        self.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        self.set_progress_handler(lambda: True, STEPS_MOST)

    def run(self, statement: str) -> None:
        """Run the first statement of a text, and ignore the others.

        Raises:
            apsw.Error: SQLite refuses the statement.
        """
        cursor, begun = self.cursor(), list[str]()

        def is_first(_: Any, text: str, __: Any) -> bool:
            begun.append(text)
            return len(begun) == 1

        cursor.exec_trace = is_first
        with suppress(apsw.ExecTraceAbort):
            cursor.execute(statement)

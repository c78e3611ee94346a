"""A compiled statement of a client: its kind, and the facts that SQLite has reported about it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any

from bedrockish.access_sets.system_names import is_ours
from bedrockish.engine.statements.insert_rewriter import Rewritten
from bedrockish.sqltext.session_settings import NONE, Settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish_journal.storage.table_layout import is_hidden

READ, WRITE, SCHEMA, EMPTY, TEMPORARY = "read", "write", "schema", "empty", "temporary"

ALONE = "a table of vec1 is made in a request of its own; make other changes in requests before it, or after it"
"""The refusal of a statement with ``Compiled.needs_full_rollback`` next to other changes."""
_AROUND = " \t\r\n;"  # the characters that may surround a statement
_DROPS = re.compile(r"DROP\b(?!\s+(?:TRIGGER|VIEW)\b)", re.IGNORECASE)


@dataclass(slots=True)
class Compiled:
    """One compiled statement of a client's text.

    Why so large: It is a record, with a field for each fact that compiling a statement shows.
    """

    sql: str  # the text of the statement alone
    # ``read``, ``write``, ``schema``, ``temporary`` (it changes only TEMP tables) or ``empty`` (only blanks and
    # comments).
    kind: str
    names: tuple[str | None, ...]  # name of each parameter; None for a parameter without a name
    columns: tuple[str, ...]  # names of the result's columns
    tables: frozenset[str]  # the tables that it touches, by their names in the schema
    whole_schema: bool  # whether it reads definitions of tables that it does not name
    rest: str  # the text after the statement
    setting: str = ""  # the name of the PRAGMA that it sets until the end of the request, or empty
    # Pairs of a table and a column that its triggers update; the column is empty for an INSERT of a trigger.
    trigger_updates: frozenset[tuple[str, str]] = frozenset()
    # The text to run instead, in which the node assigns the ids that the statement leaves out.
    with_ids: Rewritten | None = None
    # Name and declared type of each column of the result; the type is None if it is not a table's column.
    declared: tuple[tuple[str, str | None], ...] = ()
    required_role: int = 0  # the role that a user needs to run it
    reads: frozenset[str] = frozenset()  # all tables and views that it reads, also by views, triggers and foreign keys
    writes: frozenset[str] = frozenset()  # all tables that it changes, also by views, triggers and foreign keys
    # The tables that it reads, updates or deletes from; and, as ``-NAME``, the tables that it inserts into.
    accessed_tables: frozenset[str] = frozenset()
    configures: bool = False  # whether it makes a change that SQLite's counter of schema changes does not count
    is_create_as_select: bool = False  # whether it makes a table and its rows, as CREATE TABLE ... AS SELECT
    defines_temporary: bool = False  # whether it makes, changes or drops a TEMP object
    is_command: bool = False  # whether it is a command of a virtual table, with values to be written into the text
    is_upkeep: bool = False  # whether it is a command of FTS5 that changes no result of an index that matches its rows
    is_uninterruptible: bool = False  # whether it calls a function or module that takes long and cannot be interrupted
    # Whether it makes a table of vec1. Only a rollback of the whole transaction undoes that: after a rollback to a
    # savepoint, later statements of the connection fail.
    needs_full_rollback: bool = False
    compares: bool = False  # whether it calls ``like``, also by views and triggers
    settings: Settings = NONE  # the settings of its session that change its effect, and with which it therefore runs
    client_text: str = ""  # the client's text with literals, if ``sql`` has parameters for them; else empty
    _without_keys: bool | None = field(default=None, repr=False, compare=False)
    _system: bool | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The text of the client, for errors."""
        return self.client_text or self.sql

    @property
    def memory_bytes(self) -> int:
        """The approximate bytes that it takes in memory, with the texts that are made from its own."""
        names = len(self.names) + len(self.columns) + len(self.reads) + len(self.tables) + len(self.trigger_updates)
        return 2_000 + 3 * getsizeof(self.sql) + 200 * names + sum(map(getsizeof, self.columns))

    @property
    def can_cache(self) -> bool:
        """Whether the statement may stay compiled: SQLite compiles all but EXPLAIN again after a schema change."""
        return not (self.whole_schema or self.settings)

    @property
    def drops_pages(self) -> bool:
        """Whether the statement drops a table or index, whose pages SQLite reads in one step without interrupts."""
        return self.kind == SCHEMA and bool(self.tables) and _DROPS.match(self.sql) is not None

    @property
    def reads_without_keys(self) -> bool:
        """Whether the statement reads data without keys for a read set: the schema, or system tables."""
        if self._without_keys is None:  # computed once, because each run needs it
            self._without_keys = (
                self.whole_schema or bool(self.setting) or any(map(is_hidden, self.reads | self.tables))
            )
        return self._without_keys

    @property
    def reads_system(self) -> bool:
        """Whether the statement reads system tables such as the journal, to which every commit adds rows."""
        if self._system is None:  # computed once, because each run needs it
            self._system = any(map(is_ours, self.reads | self.tables))
        return self._system

    @property
    def checks_keys(self) -> bool:
        """Whether the statement is PRAGMA foreign_key_check."""
        return self.whole_schema and first_word(self.sql) == "PRAGMA" and "foreign_key_check" in self.sql.lower()

    def only_reads(self, sql: str) -> bool:
        """Return whether this statement reads and is the only one in ``sql``, the text of a client."""
        return self.kind == READ and self.sql.strip(_AROUND) == sql.strip(_AROUND)

    def text(self, params: Sequence[Any]) -> str:
        """Return the text to run with these parameters."""
        auto = self.with_ids
        if auto is None:
            return self.sql
        for place in auto.nulls:
            if params[place] is None:
                return auto.sql
        return self.sql if auto.nulls else auto.sql

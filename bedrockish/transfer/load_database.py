"""Loads a plain SQLite database into a cluster: schema as schema transactions, rows in batches, each of them once.

The command id of every batch is derived from the source and the batch's number. So a batch whose answer was lost is
sent again without a second effect, and an interrupted load continues with the next batch when it is run again.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import length_hint
from pathlib import Path
from typing import Any

import trio

from bedrockish.api.requests import STRICT, Params
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, OutcomeUnknownError, UsageError
from bedrockish.sqltext.literals import literal
from bedrockish_journal.model.plain_names import quote
from bedrockish_journal.storage.vector_modules import ModuleConnection, SqliteError, open_to_check, open_to_read
from bedrockish_journal.storage.virtual_tables import FTS5, VirtualTable, is_virtual, parse_virtual

BATCH_ROWS, BATCH_BYTES = 600, 512 * 1024  # limits of a batch, which a node executes in about 20 ms
# Limits for tables that refer to each other or to themselves: large, as foreign keys are checked at a batch's end.
CYCLE_ROWS, CYCLE_BYTES = 5_000, 4 << 20
ROW_BYTES_MAX = 16 << 20  # the largest row: less than a node takes as one transaction
AHEAD = 6  # batches under way: while some are being decided, the node executes others, which share their commits
FINDINGS_MAX = 20
# How SQLite's check begins its line about a row that breaks a constraint, such as one that was added after the row.
BROKEN = re.compile(r"CHECK constraint failed in |NULL value in |non-[A-Z]+ value in ")
LAYOUT = 3  # changed with the way to cut batches, so that no command id stands for two sets of rows
DEFER = "PRAGMA defer_foreign_keys = ON"
VIRTUAL, SETTING = "virtual table", "setting of"
REST_ORDER = (VIRTUAL, "index", "view", "trigger")

Progress = Callable[[str, int, int], None]
Statements = list[tuple[str, Params]]
Source = Any  # a connection of apsw, or of sqlite3
NO_MARKS: Mapping[str, str] = {}
SYSTEM, JOURNAL = "bedrockish_", "bedrockish_journal"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The content of the database to be loaded."""

    # The name and the CREATE statement of each table, parents before the children that refer to them, with the virtual
    # tables that own their rows.
    tables: list[tuple[str, str]]
    # Type, name and CREATE statement of other virtual tables, indexes, views and triggers; then the settings of FTS5.
    rest: list[tuple[str, str, str]]
    # Table in a circle of references, or that refers to itself -> all tables of its circle.
    cycles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    settings: tuple[str, ...] = ()  # PRAGMAs that belong to the content


@dataclass(frozen=True, slots=True)
class DatabaseLoad:
    """The result of a load."""

    rows: dict[str, int]  # the number of rows of each table in the file
    left_out: list[str]  # parts of the schema that the cluster refused, and the reasons
    before: int  # the number of transactions that an earlier run had committed


def open_source(path: Path) -> ModuleConnection:
    """Open the database to be loaded, read-only.

    Raises:
        UsageError: the database cannot be opened.
    """
    try:
        return open_to_read(path)
    except SqliteError as error:
        raise UsageError(f"{path} cannot be opened: {error}; check the path and its permissions") from error


def read_plan(db: Source, path: Path) -> LoadPlan:
    """Read the schema, and return the plan of the load.

    Raises:
        UsageError: the file is not a SQLite database, or has a virtual table that is not replicated.
    """
    try:
        rows = db.execute(
            "SELECT type, name, sql, tbl_name FROM sqlite_schema "
            "WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
        ).fetchall()
        settings = [(name, db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("user_version", "application_id")]
    except SqliteError as error:
        raise UsageError(f"{path} cannot be read as a SQLite database: {error}{_or_dump(path)}") from error
    if any(
        one[:2] == ("table", JOURNAL) for one in rows
    ):  # a node's file, such as a backup: its own tables are left out
        rows = [one for one in rows if not one[3].lower().startswith(SYSTEM)]
    tables = {name: sql for kind, name, sql, _ in rows if kind == "table"}
    made = [parse_virtual(name, sql) for name, sql in tables.items() if is_virtual(sql)]
    if unfit := [f"the virtual table {one.name!r}: {one.why_not_replicated}" for one in made if one.why_not_replicated]:
        raise UsageError(f"{path} has {'; '.join(unfit)}")
    shadows = {name for one in made for name in one.shadow_names}
    shown = {one.name for one in made if not one.owns_rows}
    made.sort(key=lambda one: bool(one.shows))  # a table that shows the index of another is made after it
    virtual = [(VIRTUAL, one.name, tables[one.name]) for one in made if one.name in shown]
    tables = {name: sql for name, sql in tables.items() if name not in shadows | shown}
    named = {name.lower(): name for name in tables}
    references = {
        name: {
            named[key[2].lower()]
            for key in db.execute(f"PRAGMA foreign_key_list({quote(name)})").fetchall()
            if key[2].lower() in named
        }
        for name in tables
    }
    rest = virtual + [(kind, name, sql) for kind, name, sql, table in rows if kind != "table" and table not in shadows]
    rest.sort(key=lambda one: REST_ORDER.index(one[0]))
    return LoadPlan(
        [(name, tables[name]) for name in parents_first(tables, references)],
        rest + [(SETTING, one.name, sql) for one in made if one.module == FTS5 for sql in _configuring(db, one)],
        reference_cycles(references),
        tuple(f"PRAGMA {name} = {value}" for name, value in settings if value),
    )


def _configuring(db: Source, index: VirtualTable) -> Iterator[str]:
    """Yield the commands that configure an FTS5 table as it is configured in the file, such as its rank function."""
    name = quote(index.name)
    kept = f"SELECT k, v FROM {quote(index.name + '_config')} WHERE k <> 'version' ORDER BY k"
    with suppress(SqliteError):  # FTS5 tables of another program may lack their shadow tables
        for key, value in db.execute(kept).fetchall():
            yield f"INSERT INTO {name} ({name}, rank) VALUES ({literal(key)}, {literal(value)})"


def _or_dump(path: Path) -> str:
    """Return the advice for a file of SQL statements, a dump; empty for any other file."""
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as file:
        if re.match(r"\s*(--|/\*|PRAGMA|BEGIN|CREATE|INSERT)", file.read(100), re.IGNORECASE):
            return f"; it is a dump: load it by 'sqlite3 new.db < {path}', and import new.db"
    return ""


def parents_first(names: Iterable[str], references: Mapping[str, Iterable[str]]) -> list[str]:
    """Return tables in an order in which each comes after the tables to which it refers, except in cycles."""
    ordered: dict[str, None] = {}

    def place(name: str, above: tuple[str, ...]) -> None:
        for parent in sorted(references.get(name, ())):
            if parent not in above and parent not in ordered:
                place(parent, (*above, parent))
        ordered.setdefault(name)

    for name in names:
        place(name, (name,))
    return list(ordered)


def reference_cycles(references: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """Return, for each table that refers to itself or is in a circle of references, all tables of its circle."""

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        ahead = list(references.get(name, ()))
        while ahead:
            one = ahead.pop()
            if one not in found:
                found.add(one)
                ahead += references.get(one, ())
        return found

    below = {name: reached(name) for name in references}
    return {
        name: frozenset(one for one in found if name in below[one]) for name, found in below.items() if name in found
    }


def fingerprint(path: Path) -> str:
    """Return a digest of a database file and of its write-ahead log."""
    digest = hashlib.sha256(f"database {LAYOUT}".encode())
    for one in (path, path.with_name(path.name + "-wal")):
        if one.exists():
            with one.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def survey(db: Source, plan: LoadPlan) -> list[str]:
    """Return the rows that a cluster would refuse: with broken references or text, or too large."""
    found: list[str] = []
    try:
        for child, row, parent, _ in db.execute("PRAGMA foreign_key_check"):
            found.append(f"table {child}: row {row} refers to a row of {parent} that does not exist")
            if len(found) >= FINDINGS_MAX:
                return found
    except SqliteError as error:  # a foreign key to columns that are not unique, or do not exist
        found.append(str(error))
    for name, _ in plan.tables:
        number = 0
        try:
            for row in db.execute(f"SELECT * FROM {quote(name)}"):
                number += 1
                if row_bytes(row) > ROW_BYTES_MAX:
                    found.append(f"table {name}: its row number {number} is larger than {ROW_BYTES_MAX >> 20} MiB")
        except SqliteError as error:
            found.append(f"table {name}: after {number} rows: {error}")
        except UnicodeDecodeError:
            found.append(f"table {name}: after {number} rows: a text that is not UTF-8")
    return found[:FINDINGS_MAX]


def broken(path: Path) -> list[str]:
    """Return the constraints that rows of a file break; none if SQLite cannot tell."""
    with suppress(SqliteError), closing(open_to_check(path)) as db:
        checked = [str(text) for (text,) in db.execute(f"PRAGMA quick_check({FINDINGS_MAX})")]
        return list(dict.fromkeys(text for text in checked if BROKEN.match(text)))
    return []


def row_bytes(row: Sequence[Any]) -> int:
    """Return the approximate number of bytes of a row."""
    return 8 * len(row) + sum(map(length_hint, row))  # the hint of a number and of None is 0


def inserts(
    table: str, columns: list[str], rows: list[tuple[Any, ...]], marks: Mapping[str, str] = NO_MARKS
) -> Statements:
    """Return an INSERT statement for each row, all with one text, so that a node runs them together and plans once."""
    values = ", ".join(marks.get(column, "?") for column in columns)
    head = f"INSERT INTO {quote(table)} ({', '.join(map(quote, columns))}) VALUES ({values})"
    return [(head, row) for row in rows]


def cut(rows: Iterable[tuple[Any, ...]], rows_max: int, bytes_max: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows in batches of at most ``rows_max`` rows, and not much more than ``bytes_max`` bytes."""
    batch: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row_bytes(row)
        if len(batch) >= rows_max or size >= bytes_max:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def batches(db: Source, table: str, *, cycle: bool = False) -> Iterator[Statements]:
    """Yield a table's rows in batches of INSERT statements, one for each row."""
    listed = db.execute(f"PRAGMA table_xinfo({quote(table)})").fetchall()
    columns = [row[1] for row in listed if row[6] == 0]  # generated columns compute themselves
    found: Any = db.execute("SELECT sql FROM sqlite_schema WHERE name = ? AND rootpage = 0", (table,)).fetchone()
    marks = NO_MARKS
    if found is not None:
        virtual = parse_virtual(table, found[0])
        marks = virtual.marks
        if virtual.names_rowid:
            columns.insert(0, "rowid")  # programs refer to rows by it
    names = ", ".join(map(quote, columns))
    limits = (CYCLE_ROWS, CYCLE_BYTES) if cycle else (BATCH_ROWS, BATCH_BYTES)
    for rows in cut(db.execute(f"SELECT {names} FROM {quote(table)}"), *limits):
        yield inserts(table, columns, rows, marks)


def cyclic_rows(db: Source, tables: list[str]) -> Iterator[Statements]:
    """Yield the rows of tables that refer to each other: in one transaction if they fit, else in large transactions."""
    whole = [statements for name in tables for statements in batches(db, name, cycle=True)]
    if len(whole) <= len(tables):
        whole = [[one for statements in whole for one in statements]]
    return ([(DEFER, []), *statements] for statements in whole if statements)


async def commands_done(client: Client, prefix: str) -> set[str]:
    """Return the ids with this prefix of all commands that have happened, at any node.

    Raises:
        BedrockishError: no node could be asked.
    """
    rows = await client.execute(
        "SELECT command FROM bedrockish_journal WHERE repeat = 0 AND command >= ?1 AND command < ?2 "
        "UNION ALL SELECT command FROM bedrockish_joined WHERE command >= ?1 AND command < ?2",
        (prefix, prefix + "~"),
        read=STRICT,
    )
    done = {command for (command,) in rows}
    past = "SELECT command FROM bedrockish_past WHERE command >= ? AND command < ?"
    return done | {command for (command,) in await client.execute(past, (prefix, prefix + "~"), read=STRICT)}


class IdempotentSender:
    """A sender of transactions with command ids, which skips transactions that are in the journal already.

    Args:
        prefix: the prefix of the ids.
        done: ids that are in the journal.
    """

    def __init__(self, client: Client, prefix: str, done: set[str] | frozenset[str]) -> None:
        self._client, self._prefix, self._done = client, prefix, done
        self.before = 0

    def has(self, name: str) -> bool:
        """Return whether a transaction happened in an earlier run."""
        return self._prefix + name in self._done

    async def send(self, name: str, statements: Sequence[str | tuple[str, Params]]) -> None:
        """Send one transaction until its outcome is known.

        Raises:
            BedrockishError: the transaction did not happen.
        """
        command = self._prefix + name
        if command in self._done:
            self.before += 1
            return
        try:
            await self._client.transact(statements, command=command)
        except OutcomeUnknownError:
            await self._client.transact(statements, command=command)

    async def send_all(self, batches: Iterable[tuple[str, Statements]], told: Callable[[int], None]) -> None:
        """Send transactions that do not depend on each other, several at a time, until all outcomes are known.

        Args:
            batches: name and statements of each.
            told: called with the number of statements that are done.

        Raises:
            BedrockishError: a transaction did not happen; others, even later ones, may have happened.
        """
        places, failed, done = trio.Semaphore(AHEAD), list[BedrockishError](), 0

        async def send(name: str, statements: Statements) -> None:
            nonlocal done
            try:
                await self.send(name, statements)
            except BedrockishError as error:
                failed.append(error)
            else:
                done += len(statements)
                told(done)
            finally:
                places.release()

        async with trio.open_nursery() as nursery:
            for batch in batches:
                await places.acquire()
                if failed:
                    break
                nursery.start_soon(send, *batch)
        if failed:
            raise failed[0]


async def load(
    client: Client, path: Path, run: str, progress: Progress, done: set[str] | frozenset[str] = frozenset()
) -> DatabaseLoad:
    """Load the schema and the rows of a SQLite database into a cluster.

    Args:
        path: the database; it is only read.
        run: the prefix of the command ids, which no other file has.
        progress: called with the table, the rows loaded and the rows in all.
        done: ids of the commands that an earlier run has brought into the journal.

    Raises:
        UsageError: the database cannot be read, or the cluster refuses a part of it; the text says where it stopped.
        BedrockishError: no node accepts the content.
    """
    left_out: list[str] = []
    once = IdempotentSender(client, f"{run}-", done)
    with closing(open_source(path)) as db:
        plan = read_plan(db, path)
        names = [name for name, _ in plan.tables]
        counts: dict[str, Any] = {name: db.execute(f"SELECT count(*) FROM {quote(name)}").get for name in names}
        where = "schema"

        def show(table: str, done: int) -> None:
            progress(table, done, counts[table])

        try:
            for number, (name, sql) in enumerate(plan.tables):
                where = name
                await once.send(f"table-{number}", [sql])
            for place, where in enumerate(names):
                show(where, 0)
                cycle = plan.cycles.get(where)
                if cycle is None:
                    named = ((f"rows-{place}-{number}", rows) for number, rows in enumerate(batches(db, where)))
                    await once.send_all(named, partial(show, where))
                elif cycle.isdisjoint(names[place + 1 :]):
                    for number, statements in enumerate(cyclic_rows(db, [name for name in names if name in cycle])):
                        await once.send(f"knot-{place}-{number}", statements)
                    for name in cycle:
                        show(name, counts[name])
        except BedrockishError as error:
            raise type(error)(f"{path.name}, table {where}: {error.message}", **error.details) from error
        for number, (kind, name, sql) in enumerate(plan.rest):
            try:
                await once.send(f"rest-{number}", [sql])
            except UsageError as error:
                left_out.append(f"{kind} {name}: {error}")
        if plan.settings:
            await once.send("settings", list(plan.settings))
    return DatabaseLoad(counts, left_out, once.before)

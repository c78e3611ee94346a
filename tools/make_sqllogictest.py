"""Writes files of SQLite's sqllogictest format: the same for the same seed, with the results that plain SQLite gives.

Tables of every kind are made, filled, read in every shape and changed, in transactions and out of them. Queries depend
only on promises of SQL: automatic ids stay out of sight, and results without an order are compared without one.
"""

from pathlib import Path

import apsw
import click

from tools.logictest import tables
from tools.logictest.luck import Luck, Table
from tools.logictest.queries import Queries
from tools.logictest.records import NOSORT, ROWSORT, Printer, Query, written
from tools.logictest.run import Outcome, Plain

THRESHOLD = 12
LOG = "log"
ROWS_MAX = 400
STEPS_MAX = 200_000  # of SQLite's own: a statement that takes longer is left out


class Writer:
    """One file on its way: runs each statement at plain SQLite and writes down what came of it."""

    def __init__(self, seed: int) -> None:
        self.luck = Luck(seed)
        self.plain = Plain()
        self.plain.db.set_progress_handler(lambda: True, STEPS_MAX)
        self._printer = Printer()
        self.out = [
            f"# made by: python -m tools.make_sqllogictest --seed {seed}",
            "",
            f"hash-threshold {THRESHOLD}",
            "",
        ]

    def statement(self, sql: str) -> bool:
        """Write a statement; whether it succeeded."""
        outcome = self._run(sql)
        if outcome is None:
            return False
        self.out += [f"statement {'error' if outcome.error else 'ok'}", sql, ""]
        return not outcome.error

    def _run(self, sql: str) -> Outcome | None:
        """Run a text; None if it takes too long and should not be in the file."""
        inside = self.plain.db.in_transaction
        outcome = self.plain.run(sql)
        if "interrupt" not in outcome.error.lower():
            return outcome
        if inside and not self.plain.db.in_transaction:  # SQLite has rolled back more than this statement
            self.out += ["statement ok", "ROLLBACK", ""]
        return None

    def query(self, sql: str, sort: str = ROWSORT) -> None:
        """Write a query."""
        outcome = self._run(sql)
        if outcome is None or (sql.startswith(("SELECT", "WITH")) and len(outcome.rows) > ROWS_MAX):
            return
        if outcome.error:
            self.out += ["statement error", sql, ""]
            return
        types = "T" * (len(outcome.rows[0]) if outcome.rows else 1)
        query = Query(0, sql, types, sort, "", None)
        values = written(self._printer.values(outcome.rows, query), THRESHOLD)
        self.out += [f"query {types} {sort}", sql, "----", *values, ""]


def make(seed: int, statements: int) -> str:
    """Return a file of about so many statements."""
    writer = Writer(seed)
    luck = writer.luck
    known, views = _schema(writer)
    queries = Queries(luck, known, views)
    inside, names = False, 0
    while len(writer.out) < statements * 3:
        draw = luck.below(100)
        if draw < 45:
            _read(writer, queries)
        elif draw < 85:
            sql, gives = queries.write(inside=inside)
            (writer.query if gives else writer.statement)(sql)
        elif draw < 95:
            names += 1
            _transact(writer, names)
        elif not inside:
            names += 1
            _alter(writer, known, names)
        inside = writer.plain.db.in_transaction
    if inside:
        writer.statement(luck.one(("COMMIT", "ROLLBACK")))
        if writer.plain.db.in_transaction:
            writer.statement("ROLLBACK")
    for table in known:
        writer.query(f"SELECT * FROM {table.name}")
    writer.query("PRAGMA integrity_check")
    writer.query("PRAGMA foreign_key_check")
    return "\n".join(writer.out)


def _schema(writer: Writer) -> tuple[list[Table], list[Table]]:
    luck = writer.luck
    known: list[Table] = []
    views: list[Table] = []
    writer.statement(f"CREATE TABLE {LOG}(n INTEGER PRIMARY KEY, what TEXT, a, b)")
    while len(known) < 4:
        sql, made = tables.table(luck, f"t{len(known) + 1}", known)
        if writer.statement(sql):
            known.append(made)
    for number in range(1, 5):
        writer.statement(tables.index(luck, f"i{number}", luck.one(known)))
    for number in range(1, 3):
        sql, made = tables.view(luck, f"v{number}", known)
        if writer.statement(sql):
            views.append(made)
            if luck.chance(50):
                writer.statement(tables.instead(luck, f"r{number}", made, LOG))
    for number in range(1, 1 + luck.below(4)):
        writer.statement(tables.trigger(luck, f"g{number}", luck.one(known), LOG, known))
    queries = Queries(luck, known, [])
    for _ in range(25):
        writer.statement(queries._insert("")[0].partition(" RETURNING")[0])
    return known, views


def _read(writer: Writer, queries: Queries) -> None:
    luck = writer.luck
    sql = queries.select()
    if luck.chance(25) and not sql.startswith("WITH"):
        # In the order of all columns, so that there is only one.
        limit = luck.maybe(40, f" LIMIT {1 + luck.below(5)}{luck.maybe(40, f' OFFSET {luck.below(3)}')}")
        try:
            count = len(list(writer.plain.db.execute(f"SELECT * FROM ({sql}) LIMIT 0").get_description()))
        except apsw.ExecutionCompleteError:
            count = 0
        except apsw.Error:
            count = 0
        if count:
            order = ", ".join(f"{n}{luck.maybe(30, ' DESC')}" for n in range(1, count + 1))
            writer.query(f"{sql} ORDER BY {order}{limit}", NOSORT)
            return
    writer.query(sql)


def _transact(writer: Writer, number: int) -> None:
    """Begin, end, mark or go back."""
    luck = writer.luck
    if not writer.plain.db.in_transaction:
        writer.statement(luck.one(("BEGIN", "BEGIN IMMEDIATE", "BEGIN TRANSACTION")))
        return
    choice = luck.one(("COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT", "SAVEPOINT", "ROLLBACK TO", "RELEASE"))
    name = f" s{1 + number % 3}" if choice not in ("COMMIT", "ROLLBACK") else ""
    writer.statement(f"{choice}{name}")


def _alter(writer: Writer, known: list[Table], number: int) -> None:
    """Change the schema."""
    luck = writer.luck
    table = luck.one(known)
    free = [column for column in table.columns if column not in (*table.needs, *table.key)]
    match luck.below(6):
        case 0:
            if writer.statement(f"ALTER TABLE {table.name} ADD COLUMN e{number} DEFAULT {luck.one(('1', 'NULL'))}"):
                table.columns.append(f"e{number}")
        case 1 if free:
            column = luck.one(free)
            if writer.statement(f"ALTER TABLE {table.name} RENAME COLUMN {column} TO f{number}"):
                table.columns[table.columns.index(column)] = f"f{number}"
        case 2:
            if writer.statement(f"ALTER TABLE {table.name} RENAME TO n{number}"):
                table.name = f"n{number}"
        case 3 if len(free) > 2:
            column = luck.one(free)
            if writer.statement(f"ALTER TABLE {table.name} DROP COLUMN {column}"):
                table.columns.remove(column)
        case 4:
            writer.statement(tables.index(luck, f"x{number}", table))
        case _:
            writer.statement(f"DROP INDEX IF EXISTS i{1 + luck.below(4)}")


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first file; the next has the next.")
@click.option("--files", type=click.IntRange(1, 100_000), default=1, show_default=True)
@click.option("--statements", type=click.IntRange(10, 1_000_000), default=150, show_default=True, help="In a file.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="Default: print one file.")
def main(seed: int, files: int, statements: int, directory: Path | None) -> None:
    """Write files in SQLite's sqllogictest format, for tools/sqllogictest."""
    if directory is None:
        print(make(seed, statements))
        return
    directory.mkdir(parents=True, exist_ok=True)
    for one in range(seed, seed + files):
        (directory / f"{one:06}.test").write_text(make(one, statements))


if __name__ == "__main__":
    main(prog_name="tools.make_sqllogictest")

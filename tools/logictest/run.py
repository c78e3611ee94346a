"""Runs a file at a cluster and at plain SQLite, and holds every result of the one against the other.

The statements of a file are one session: the first goes to one node, the next to another. BEGIN stays where it is until
COMMIT or ROLLBACK. Statements that the cluster refuses with a reason (docs/sql.md) are not run on plain SQLite either.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish.client.transaction import Transaction
from bedrockish.client.trio_client import Client
from bedrockish.errors import UnsupportedError, UsageError
from bedrockish.sqltext.statement_ends import is_single, split
from bedrockish.sqltext.temporary import makes_temporary
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, parse_control
from tools.logictest.records import NOSORT, Printer, Query, Statement, Threshold, meets, parse

Row = tuple[Any, ...]
TIMEOUT_S = 60.0


@dataclass
class Report:
    """The result of a file."""

    name: str  # the name of the file
    statements: int = 0  # the number of statements that were run, without the queries
    queries: int = 0  # the number of queries that were run
    refused: Counter[str] = field(default_factory=Counter)  # the reasons for refusals, each with its number
    other: list[str] = field(default_factory=list)  # places at which SQLite's own result differs from the file
    wrong: list[str] = field(default_factory=list)  # places at which the cluster and SQLite differ
    given: list[str] = field(default_factory=list)  # tables that differ only in the ids that nodes assigned


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows, or an error's text; ``refused``: why it is not done at all."""

    rows: list[Row] = field(default_factory=list)
    error: str = ""
    refused: str = ""


class Plain:
    """SQLite alone, set as nodes set it."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        self.db.pragma("foreign_keys", 1)
        self.db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)

    def run(self, sql: str) -> Outcome:
        """Run a text."""
        try:
            return Outcome(self.db.execute(sql).fetchall())
        except apsw.Error as error:
            return Outcome(error=str(error))
        except UnicodeDecodeError:
            return Outcome(error="text that is not UTF-8")


class Session:
    """One session whose statements rotate over the nodes, until it makes a TEMP object, which is at one node alone."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        self._turn = 0
        self._open: Transaction | None = None
        self._stays = False

    @property
    def next(self) -> Client:
        """The client of the next node, with the token of the client before; each read of this moves to the next node.

        Once a TEMP object exists, it stays the same client.
        """
        before = self._clients[self._turn % len(self._clients)]
        if self._stays:
            return before
        self._turn += 1
        client = self._clients[self._turn % len(self._clients)]
        client.token = before.token
        return client

    async def run(self, sql: str) -> Outcome:
        """Run the statements of a text at the next nodes, or in the transaction that is open.

        Raises:
            BedrockishError: the cluster has failed; mistakes in the text raise nothing.
        """
        rows: list[tuple[Any, ...]] = []
        for statement in [sql] if is_single(sql) else split(sql):
            outcome = await self._one(statement)
            if outcome.refused or outcome.error:
                return outcome
            rows += outcome.rows
        return Outcome(rows)

    async def _one(self, sql: str) -> Outcome:
        self._stays = self._stays or makes_temporary(sql)
        try:
            return await self._run(sql)
        except UnsupportedError as error:
            return Outcome(refused=error.message)
        except UsageError as error:
            if "is not UTF-8" in error.message:  # docs/decisions/0006
                return Outcome(refused="text that is not UTF-8")
            if error.details.get("ended"):
                self._open = None
            return Outcome(error=error.message)

    async def _run(self, sql: str) -> Outcome:
        control = parse_control(sql)
        if control is not None and control.kind == BEGIN and self._open is None:
            self._open = await self.next.begin(timeout=TIMEOUT_S)
            return Outcome()
        if self._open is None:
            if control is not None and control.kind in (COMMIT, ROLLBACK):
                return Outcome(error=f"cannot {control.kind} - no transaction is active")
            return Outcome((await self.next.execute(sql, timeout=TIMEOUT_S)).rows)
        if control is not None and control.kind == BEGIN:
            return Outcome(error="cannot start a transaction within a transaction")
        if control is not None and control.kind == ROLLBACK:
            opened, self._open = self._open, None
            await opened.rollback()
            return Outcome()
        if control is not None and control.kind == COMMIT:
            await self._open.commit(timeout=TIMEOUT_S)
            self._open = None
            return Outcome()
        return Outcome((await self._open.execute(sql, timeout=TIMEOUT_S)).rows)

    async def clear(self) -> None:
        """End the open transaction, and drop all objects."""
        if self._open is not None:
            await self._open.rollback()
            self._open = None
        if self._stays:
            for kind, name in await self.next.execute(
                "SELECT type, name FROM sqlite_temp_schema WHERE type <> 'index'"
            ):
                await self.next.execute(f"DROP {kind} temp.{quoted(name)}")
            self._stays = False
        for kind in ("trigger", "view"):
            for name in await self._names(kind):
                await self.next.execute(f"DROP {kind} {name}")
        for name in await self._names("table", "rootpage = 0"):
            await self.next.execute(f"DROP TABLE {name}")
        tables = await self._names("table")
        if tables:  # rows first, as dropping a parent is refused while there are children
            await self.next.transact(["PRAGMA defer_foreign_keys = ON", *(f"DELETE FROM {name}" for name in tables)])
        for name in tables:
            await self.next.execute(f"DROP TABLE {name}")

    async def _names(self, kind: str, which: str = "rootpage <> 0 OR type <> 'table'") -> list[str]:
        sql = (
            f"SELECT name FROM sqlite_schema WHERE type = ? AND ({which}) AND name NOT GLOB 'sqlite_*' "
            "AND name NOT GLOB 'bedrockish_*' ORDER BY rowid DESC"
        )
        return [quoted(name) for (name,) in await self.next.execute(sql, (kind,))]


def quoted(name: str) -> str:
    """Return a name as a double-quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class Runner:
    """Runs files, one after the other, at one cluster.

    Args:
        clients: a client for each node.
        stop_after: the number of differences after which a file ends.
    """

    def __init__(self, clients: Sequence[Client], stop_after: int = 3) -> None:
        self._clients, self._stop_after = clients, stop_after
        self._printer = Printer()

    async def run(self, text: str, name: str) -> Report:
        """Run a file's text.

        Raises:
            FormatError: it is not in the format.
            BedrockishError: the cluster has failed.
        """
        report = Report(name)
        session, plain = Session(self._clients), Plain()
        labels: dict[str, list[str]] = {}
        await session.clear()
        for record in parse(text, name):
            match record:
                case Statement():
                    report.statements += 1
                    await self._statement(record, session, plain, report)
                case Query():
                    report.queries += 1
                    await self._query(record, session, plain, report, labels)
                case Threshold():
                    pass
            if len(report.wrong) >= self._stop_after:
                report.wrong.append(f"{name}: enough; the rest was not run")
                return report
        if not report.wrong:
            await self._compare(session, plain, report)
        return report

    async def _both(
        self, record: Statement | Query, session: Session, plain: Plain, report: Report
    ) -> tuple[Outcome, Outcome] | None:
        ours = await session.run(record.sql)
        if ours.refused:
            report.refused[ours.refused] += 1
            return None
        theirs = plain.run(record.sql)
        if bool(ours.error) != bool(theirs.error):
            said = f"the cluster said {ours.error!r}, SQLite {theirs.error!r}"
            report.wrong.append(_at(report, record, said))
            return None
        return ours, theirs

    async def _statement(self, record: Statement, session: Session, plain: Plain, report: Report) -> None:
        both = await self._both(record, session, plain, report)
        if both is not None and record.ok == bool(both[1].error):
            report.other.append(_at(report, record, f"SQLite said {both[1].error!r}"))

    async def _query(
        self, record: Query, session: Session, plain: Plain, report: Report, labels: dict[str, list[str]]
    ) -> None:
        both = await self._both(record, session, plain, report)
        if both is None:
            return
        ours, theirs = both
        if theirs.error:
            report.other.append(_at(report, record, f"SQLite said {theirs.error!r}"))
            return
        if _ordered(ours.rows, record) != _ordered(theirs.rows, record):
            said = f"the cluster gave {_some(ours.rows)}, SQLite {_some(theirs.rows)}"
            report.wrong.append(_at(report, record, said))
        if theirs.rows and len(theirs.rows[0]) != len(record.types):
            report.other.append(_at(report, record, f"{len(record.types)} columns expected, not {len(theirs.rows[0])}"))
            return
        values = self._printer.values(theirs.rows, record)
        if record.label and labels.setdefault(record.label, values) != values:
            report.other.append(_at(report, record, f"other values than before with the label {record.label}"))
        if record.expected is not None and not meets(values, record.expected):
            narrow = self._printer.values(theirs.rows, record, narrow=True)
            if not meets(narrow, record.expected):
                report.other.append(_at(report, record, f"SQLite gave {_some(values)}, not {_some(record.expected)}"))

    async def _compare(self, session: Session, plain: Plain, report: Report) -> None:
        """Compare the tables of each node with those of SQLite."""
        if plain.db.in_transaction:
            await session.run("ROLLBACK")
            plain.run("ROLLBACK")
        schema = (
            "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE tbl_name NOT GLOB 'bedrockish_*' "
            "AND name NOT GLOB 'sqlite_*' ORDER BY 1, 2"
        )
        made = plain.run(schema).rows
        for node in range(len(self._clients)):
            if (await session.run(schema)).rows != made:
                report.wrong.append(f"{report.name}: at its end, node {node + 1} has other definitions than SQLite")
        shadows = plain.run("SELECT name FROM pragma_table_list WHERE type = 'shadow'").rows
        for table in (name for kind, name, *_ in made if kind == "table" and (name,) not in shadows):
            theirs = sorted(plain.run(f"SELECT * FROM {quoted(table)}").rows, key=repr)
            for node in range(len(self._clients)):
                await self._compare_table(session, plain, report, table, theirs, node)

    async def _compare_table(
        self, session: Session, plain: Plain, report: Report, table: str, theirs: list[Row], node: int
    ) -> None:
        ours: list[Row] = []
        async with session.next.stream(f"SELECT * FROM {quoted(table)}", timeout=TIMEOUT_S) as rows:
            while batch := await rows.batch():
                ours += batch
        if repr(sorted(ours, key=repr)) == repr(theirs):
            return
        info = plain.db.execute("SELECT name FROM pragma_table_info(?) WHERE pk = 0", (table,)).fetchall()
        others = ", ".join(quoted(name) for (name,) in info if isinstance(name, str))
        if others and len(ours) == len(theirs):
            found = (await session.run(f"SELECT {others} FROM {quoted(table)}")).rows
            if sorted(map(repr, found)) == sorted(map(repr, plain.run(f"SELECT {others} FROM {quoted(table)}").rows)):
                report.given.append(table)
                return
        report.wrong.append(
            f"{report.name}: at its end, table {table} of node {node + 1} has {_some(ours)}, SQLite {_some(theirs)}"
        )


def _ordered(rows: Sequence[Row], query: Query) -> list[str]:
    """Return rows so that equal results are equal: exact values, and an order if the query promises one."""
    printed = [repr(row) for row in rows]
    return printed if query.sort == NOSORT else sorted(printed)


def _some(values: Sequence[Any]) -> str:
    return f"{len(values)}: {', '.join(map(repr, values[:6]))}{', …' if len(values) > 6 else ''}"


def _at(report: Report, record: Statement | Query, said: str) -> str:
    return f"{report.name}:{record.line}: {' '.join(record.sql.split())[:300]}: {said}"

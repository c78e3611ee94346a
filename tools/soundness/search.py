"""Tests that the computed reads and writes of a statement determine its effects.

Makes random schemas, rows, statements and changes. A change whose keys do not meet the access set of a statement must
leave the statement's rows, its own changes and its error as they were.

    python -m tools.soundness --examples 2000 --seed 1
"""

import contextlib
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish.access_sets.access_set_builder import UnchangedStatement
from bedrockish.access_sets.analysis import plan_of
from bedrockish.access_sets.catalog import Schema, read_schema
from bedrockish.access_sets.query_names import connection_query
from bedrockish.access_sets.readset import ReadKeys, ReadPlan
from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.access_sets.writeset import WriteKeys
from bedrockish.sqltext.session_settings import NONE
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change
from tools.soundness.case_search import Tally, find_failing
from tools.soundness.cases import Case, make_case
from tools.soundness.witnesses import WITNESSES

RawChange = tuple[str, int | None, int | None, tuple[Any, ...] | None, tuple[Any, ...] | None]


class UnsoundError(Exception):
    """Raised for a change that alters the effects of a statement, although its keys do not meet the access set."""


@dataclass
class Outcome:
    """The effects of a statement, on a database that was restored afterwards."""

    visible: str
    failed: bool
    changes: list[RawChange]
    net_only: list[str]  # tables of whose changes only the net effect is known
    hidden: list[str] = field(default_factory=list)  # tables of whose single changes nothing is known
    # Of each rowid table, the highest rowid before the statement.
    last_ids: dict[str, int] = field(default_factory=dict)


class Bench:
    """One database of a case, with the analysis of its schema."""

    def __init__(self, case: Case) -> None:
        self.db = apsw.Connection(":memory:")
        self.db.create_collation("backwards", lambda a, b: (a[::-1] > b[::-1]) - (a[::-1] < b[::-1]))
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        self._log: list[RawChange] = []
        self._blind: set[str] = set()
        self._unseen: Counter[str] = Counter()  # changes of tables whose rows the hook cannot show
        self.db.preupdate_hook(self._hook)
        for sql in case.ddl:
            self.db.execute(sql)
        self.schema: Schema = read_schema(self.db)
        self._blind = {
            table.name for table in self.schema.tables.values() if any(column.place is None for column in table.columns)
        }
        self.keys = WriteKeys(self.schema)
        for sql, params in case.rows:
            try:
                self.db.execute(sql, params).fetchall()
            except apsw.Error:
                continue
        self.is_statement = False
        self.db.create_scalar_function("is_statement", lambda *_: int(self.is_statement), 0)
        for sql in case.temporary:
            with contextlib.suppress(apsw.Error):  # a column may be a generated one
                self.db.execute(sql)
        self.settings = case.settings
        self.has_temporary = bool(self.db.execute("SELECT 1 FROM sqlite_temp_schema").fetchone())
        self._log.clear()

    def _hook(self, update: apsw.PreUpdate) -> None:
        name = update.table_name
        if name not in self.schema.tables:
            return
        if name in self._blind:
            self._unseen[name] += 1
            return
        old = None if update.op == "INSERT" else update.old
        new = None if update.op == "DELETE" else update.new
        if self.schema.tables[name].key is not None:
            self._log.append((name, None, None, old, new))
        else:
            self._log.append((name, update.rowid, update.rowid_new, old, new))

    def _rows_of_blind(self) -> dict[tuple[str, Any], tuple[Any, ...]]:
        """Return the rows of tables that the hook cannot show, each by a key that no other row has."""
        found: dict[tuple[str, Any], tuple[Any, ...]] = {}
        for name in self._blind:
            table = self.schema.tables[name]
            columns = ", ".join(f'"{column.name}"' for column in table.columns if column.place is not None)
            rowid = "NULL" if table.key else "_rowid_"
            for row in self.db.execute(f"SELECT {rowid}, {columns} FROM {name}").fetchall():
                place = row[0] if table.key is None else repr([row[1 + column] for column in table.key.columns])
                found[name, place] = row
        return found

    def run(self, sql: str, params: tuple[Any, ...], autoid: bool, keep: bool = False) -> Outcome:
        """Run a statement; restore the database unless ``keep`` is set."""
        self.db.execute("SAVEPOINT one")
        self._log.clear()
        self._unseen.clear()
        last_ids = self._last_ids()
        before = self._rows_of_blind()
        self.is_statement = not keep
        try:
            with in_force(self.db, NONE if keep else self.settings):
                rows = self.db.execute(sql, params).fetchall()
            after = self._rows_of_blind()
            self._note_blind(before, after)
            changes = list(self._log)
            net_only = [name for name, count in self._unseen.items() if count != len(_of(changes, name))]
            fresh: Set[tuple[str, int | None]] = {(name, rowid) for name, _, rowid, old, _ in changes if old is None}
            shown = [_shown(one, self.schema, fresh if autoid else frozenset()) for one in changes]
            own = self.db.execute("SELECT * FROM own").fetchall() if self.has_temporary else []
            visible, failed = repr((rows, shown, own)), False
        except apsw.Error as error:
            visible, failed, changes = f"{type(error).__name__}: {error}", True, []
            net_only = []
        if failed or not keep:
            self.db.execute("ROLLBACK TO one")
        self.db.execute("RELEASE one")
        return Outcome(visible, failed, changes, net_only, list(self._unseen), last_ids)

    def _last_ids(self) -> dict[str, int]:
        names = [table.name for table in self.schema.tables.values() if table.key is None]
        found = self.db.execute(" UNION ALL ".join(f"SELECT '{name}', max(_rowid_) FROM {name}" for name in names))
        return {name: last or 0 for name, last in found}

    def _note_blind(
        self, before: dict[tuple[str, Any], tuple[Any, ...]], after: dict[tuple[str, Any], tuple[Any, ...]]
    ) -> None:
        for key in sorted(before.keys() | after.keys(), key=repr):
            old, new = before.get(key), after.get(key)
            if old != new:
                rowid = (old or new or (None,))[0]
                self._log.append((key[0], rowid, rowid, old and old[1:], new and new[1:]))

    def access_set(self, outcome: Outcome, reads: ReadKeys) -> AccessSet:
        """Return the access set of some reads and of the changes of a statement together."""
        points, ranges = set(reads[0]), list(reads[1])
        write_points: set[bytes] = set()
        write_ranges: set[tuple[bytes, bytes]] = set()
        for change in outcome.changes:
            more_points, more_ranges = self.keys.keys(*change)
            write_points.update(more_points)
            write_ranges.update(more_ranges)
            more_points, more_ranges = self.keys.reads(*change)
            points.update(more_points)
            ranges += more_ranges
        for name in outcome.net_only:
            write_ranges.update(self.keys.whole(name))
        return AccessSet(frozenset(points), tuple(ranges), frozenset(write_points), tuple(write_ranges))


def _of(changes: list[RawChange], table: str) -> list[RawChange]:
    return [change for change in changes if change[0] == table]


def _shown(change: RawChange, schema: Schema, fresh: Set[tuple[str, int | None]]) -> Any:
    """Return a change without the id that SQLite chose for a new row, because the id depends on rows that other
    statements inserted.

    ``fresh`` are the rows that the statement has inserted.
    """
    name, before, after, old, new = change
    table = schema.tables[name]
    if table.key is not None or (name, after if old is None else before) not in fresh:
        return change
    if table.rowid_column is not None:
        place = table.columns[table.rowid_column].place
        assert place is not None
        old = old and (*old[:place], None, *old[place + 1 :])
        new = new and (*new[:place], None, *new[place + 1 :])
    return (name, None, None, old, new)


def examine(case: Case, tally: Tally) -> None:
    """Check one case.

    Raises:
        UnsoundError: a change that was declared irrelevant changed what a statement does.
    """
    bench = Bench(case)
    bench.db.execute("BEGIN")
    for sql, params in case.queries:
        try:
            plan = plan_of(
                bench.db, bench.schema, UnchangedStatement(sql, (None,) * len(params), settings=case.settings)
            )
        except apsw.SQLError:
            tally.counts["statements SQLite refuses"] += 1
            continue
        tally.counts["statements"] += 1
        tally.counts["statements with settings"] += bool(case.settings)
        tally.counts["statements that read by column"] += plan.by_column
        tally.fallbacks.update(reason for reason, _ in plan.fallbacks)
        if not plan.fallbacks and plan.dependents is not None:
            tally.counts["statements with dependent reads and no fallback"] += 1
        _examine_statement(bench, case, sql, params, plan, tally)
    bench.db.execute("ROLLBACK")
    bench.db.close()


def _examine_statement(
    bench: Bench, case: Case, sql: str, params: tuple[Any, ...], plan: ReadPlan, tally: Tally
) -> None:
    resolved = plan.resolve(params, connection_query(bench.db))
    before = bench.run(sql, params, True)
    if resolved.resolution is not None:
        resolved.resolution.add_changes([_change_of(one) for one in before.changes], before.hidden)
        tally.counts["dependent reads, " + (resolved.resolution.failure or "told exactly")] += 1
    reads: ReadKeys = plan.bind_failed(params) if before.failed else resolved.keys()
    mine = bench.access_set(before, reads)
    for change_sql, change_params in case.changes:
        bench.db.execute("SAVEPOINT other")
        other = bench.run(change_sql, change_params, False, keep=True)
        if other.changes:
            theirs = bench.access_set(other, ([], []))
            meets = conflict(theirs, mine)
            after = bench.run(sql, params, True)
            same = after.visible == before.visible
            if meets is None and not same and _depends_on_given_ids(before, after):
                tally.counts["other ids were given by SQLite"] += 1
                same = True
            precise = "" if plan.fallbacks else ", plan without fallback"
            tally.counts[f"{'conflict' if meets else 'no conflict'}, {'same' if same else 'changed'}{precise}"] += 1
            if meets is None and not same:
                raise UnsoundError(
                    _report(bench, case, (sql, params), (change_sql, change_params), (before, after), mine, theirs)
                )
        bench.db.execute("ROLLBACK TO other")
        bench.db.execute("RELEASE other")


def _depends_on_given_ids(before: Outcome, after: Outcome) -> bool:
    """Return whether SQLite assigned other ids to new rows because a change inserted or deleted the last row of a
    table.

    A node assigns ids in another way, so that a repeated execution gets the same ones. Uses of SQLite's ids in triggers
    cannot be compared.
    """
    return any(
        old is None and rowid == before.last_ids.get(name, 0) + 1 and after.last_ids[name] != before.last_ids[name]
        for name, _, rowid, old, _ in before.changes
        if name in before.last_ids
    )


def _change_of(raw: RawChange) -> Change:
    name, rowid_old, rowid_new, old, new = raw
    kind = INSERT if old is None else DELETE if new is None else UPDATE
    return Change(name, (), kind, rowid_old, rowid_new, old, new)


def _report(
    bench: Bench,
    case: Case,
    query: tuple[str, tuple[Any, ...]],
    change: tuple[str, tuple[Any, ...]],
    outcomes: tuple[Outcome, Outcome],
    mine: AccessSet,
    theirs: AccessSet,
) -> str:
    lines = ["UNSOUND: a change that no key of the statement meets changed what the statement does", *case.ddl]
    lines += [f"  {sql} {params!r}" for sql, params in case.rows]
    lines += [*case.temporary, f"settings: {sorted(case.settings)}"]
    lines += [f"statement: {query[0]} {query[1]!r}", f"change:    {change[0]} {change[1]!r}"]
    lines += [f"before: {outcomes[0].visible}", f"after:  {outcomes[1].visible}"]
    lines += [f"statement's access set: {mine}", f"change's access set:    {theirs}"]
    for row in bench.db.execute("EXPLAIN " + query[0], (None,) * len(query[1])).fetchall():
        lines.append("  " + " ".join(str(part) for part in row[:7]))
    return "\n".join(lines)


def search(examples: int, start: int, tally: Tally, *, shrink: bool = True) -> str | None:
    """Try the witnesses and many cases; return the report of an unsound case, reduced, or None."""

    def unsound(case: Case) -> str | None:
        try:
            examine(case, tally)
        except UnsoundError as error:
            return str(error)
        return None

    found = next(filter(None, map(unsound, WITNESSES.values())), None)
    parts = ("queries", "changes", "temporary", "rows", "ddl")
    return found or find_failing(examples, start, make_case, unsound, parts, shrink=shrink)

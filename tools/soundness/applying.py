"""Tests that approved transactions can be applied: three engines without a protocol, and the conflict test of the core.

Makes random schemas with every kind of constraint, index and trigger, and random transactions at both isolation levels,
as requests and as open transactions. A transaction commits unless it conflicts with a commit outside its base. Every
engine must then apply every commit, in any order that the bases allow, and end with the same tables, in which all
constraints hold; a replay of the journals must, too. A conflicting transaction is tried once more as if it had been
executed on the commits that its node has applied since, as a leader does with large transactions. In every other case,
a transaction that changes more than two rows has ranges instead of keys.

    python -m tools.soundness applying --examples 2000 --seed 1
"""

import contextlib
import random
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw

from bedrockish.access_sets import analysis
from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.access_sets.catalog import read_schema
from bedrockish.access_sets.table_layout import Tables
from bedrockish.access_sets.writeset import finds_same_pairs
from bedrockish.api.requests import SERIALIZABLE, SNAPSHOT, Request, Statement
from bedrockish.core.coordinator.revalidation import first_conflict
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.certifier import claim, prepare_commit
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish.core.state.pending import Pending
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.errors import BedrockishError, ConflictError, DamagedError, UnsupportedError, UsageError
from bedrockish.sqltext.session_settings import NONE, with_settings
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import covers
from bedrockish_journal.verify.replay import digest, replay
from tools.soundness.applying_cases import COMMIT, DECIDE, DELIVER, OPEN, RUN, STATEMENT, Case, Sql, Step, make_case
from tools.soundness.case_search import Tally, find_failing

NODES = "ABC"
MEMBERSHIP = Membership(0, {node: Member(node, f"127.0.0.1:{place}") for place, node in enumerate(NODES, 1)})
IN_FLIGHT_MAX = 3
ROOM = 1 << 20  # the most bytes of results that a statement of an open transaction may have
FEW = {"ROWS_MAX": 2, "POINTS_MAX": 6, "GROUP_MAX": 1}  # limits so low that a few rows already become ranges


class NotAppliedError(AssertionError):
    """Raised for an approved commit that cannot be applied, or has another result."""


def register(db: apsw.Connection) -> None:
    """Give a connection the collation and the function that cases use."""

    def backwards(left: str, right: str) -> int:
        one, other = left[::-1].lower(), right[::-1].lower()
        return (one > other) - (one < other)

    db.create_collation("backwards", backwards)
    db.create_scalar_function("plain", lambda *values: str(values[0]).strip().lower(), 1, deterministic=True)


def valid(ddl: list[str]) -> list[str]:
    """Return the statements of a random schema that SQLite accepts."""
    db = apsw.Connection(":memory:")
    register(db)
    found = []
    for sql in ddl:
        with contextlib.suppress(apsw.Error):
            db.execute(sql)
            try:
                Tables(db).check_supported(db)
            except UnsupportedError as error:
                db.execute(f'DROP TABLE "{error.details["table"]}"')
                continue
            found.append(sql)
    db.close()
    return found


class Node:
    def __init__(self, path: Path, name: str, world: "World") -> None:
        self.name, self.path, self.world = name, path, world
        self.engine = Engine.open(path, founding=Founding(name, MEMBERSHIP, f"store-{name}"), prepare=register)
        self.interactive = Interactive(self.engine, world.invalidated)
        self.tick, self.head = 0, GENESIS
        self.prepared: list[tuple[Prepared, str]] = []
        self.sessions: list[TransactionWork] = []

    def entry(self, prepared: Prepared, isolation: str) -> Entry:
        """Make the next entry of the node's timeline from an execution, and return the entry."""
        self.tick += 1
        self.world.clock += 1
        txid = Txid(self.world.clock, self.name)
        command = f"{self.name}{self.tick}"
        transaction = Transaction(
            txid, prepared.base, 0, prepared.schema, 0, command, isolation, prepared.kind,
            claim(prepared.access_set, (command,), prepared.kind, txid.clock), prepared.changes, b"",
        )  # fmt: skip
        entry = Entry(self.name, self.tick, {self.name: self.tick}, transaction, None, self.head)
        self.head = entry.hash
        return entry

    def close(self) -> None:
        """Roll back the open transactions, and close the engine."""
        for work in self.sessions:
            self.interactive.end(work)
        self.interactive.close()
        self.engine.close()


class World:
    def __init__(self, folder: Path, case: Case, tally: Tally) -> None:
        self.tally, self.case = tally, case
        self.clock = 0
        self.commit_window = CommitWindow()
        self.entries: dict[str, list[Entry]] = {name: [] for name in NODES}
        self.said: list[str] = []
        self.nodes: list[Node] = []
        for name in NODES:
            self.nodes.append(Node(folder / f"{name}.db", name, self))

    def invalidated(self, sets: AccessSetBuilder, base: Mapping[str, int]) -> BedrockishError | None:
        """Return the conflict that invalidates an open transaction, as the core does for a node's ``Transactions``."""
        newer = self.commit_window.newer_than(base)
        if newer is None:
            return self.overtaken(sets.rests_on(), base)
        return ConflictError("overtaken") if any(sets.conflicts_with(one.access_set) for one in newer) else None

    def overtaken(self, access_set: AccessSet, base: Mapping[str, int]) -> BedrockishError | None:
        """Return the conflict for which a voter would reject the transaction; None if it would approve."""
        found = prepare_commit(access_set, dict(base), self.commit_window, Pending())
        return None if found is None else ConflictError("overtaken")

    def begin(self) -> None:
        """Create the schema and the first rows, everywhere."""
        first = self.nodes[0]
        ddl = tuple(Statement(sql) for sql in valid(self.case.ddl))
        if ddl:
            self.commit(first, first.engine.execute(Request("c", ddl)), SERIALIZABLE)
        for sql, params in self.case.rows:
            with contextlib.suppress(UsageError):
                self.commit(first, first.engine.execute(Request("c", (Statement(sql, params),))), SERIALIZABLE)
        self.deliver_all(lambda _: 0)

    def commit(self, node: Node, prepared: Prepared, isolation: str) -> None:
        """Commit the transaction that a node has executed, unless it conflicts with a commit outside its base."""
        if prepared.readonly:
            return
        if self.overtaken(prepared.access_set, prepared.base) is not None:
            moved = self.moved(node, prepared)
            if moved is None:
                self.tally.counts["rejected"] += 1
                return
            self.tally.counts["moved"] += 1
            prepared = moved
        entry = node.entry(prepared, isolation)
        self.entries[node.name].append(entry)
        self.commit_window.add(entry.place, entry.transaction)
        self.tally.counts[f"committed, {isolation}"] += 1
        self.said.append(f"   {node.name}{entry.tick} is committed, base {dict(prepared.base)}")
        self.apply(node, entry)

    def moved(self, node: Node, prepared: Prepared) -> Prepared | None:
        """Return an execution with its base moved up to now; None if its result may have changed, or it is rejected."""
        if not prepared.spans or prepared.schema != node.engine.schema_version:
            return None
        if first_conflict(self.commit_window, prepared.access_set, dict(prepared.base), prepared.spans) is not None:
            return None
        moved = replace(prepared, base=dict(node.engine.applied))
        return moved if self.overtaken(moved.access_set, moved.base) is None else None

    def apply(self, node: Node, entry: Entry) -> None:
        try:
            node.engine.apply(entry, repeat=False, applied_ms=0)
        except DamagedError as error:
            raise NotAppliedError(f"at {node.name}: {error}") from error
        self.tally.counts["applied"] += 1

    def ready(self, node: Node) -> list[Entry]:
        applied = node.engine.applied
        following = [
            entries[applied.get(leader, 0)]
            for leader, entries in self.entries.items()
            if len(entries) > applied.get(leader, 0)
        ]
        return [entry for entry in following if covers(applied, entry.after)]

    def deliver(self, node: Node, choose: Any) -> bool:
        ready = self.ready(node)
        if not ready:
            return False
        entry = ready[choose(len(ready))]
        self.said.append(f"   {node.name} applies {entry.leader}{entry.tick}")
        self.apply(node, entry)
        return True

    def deliver_all(self, choose: Any) -> None:
        """Make every node apply all commits, each in its own order."""
        for node in self.nodes:
            while self.deliver(node, choose):
                pass

    # -- transactions ----------------------------------------------------------------------------------------------

    def run(self, node: Node, statements: list[Sql], isolation: str) -> None:
        """Execute a request at a node; a later step decides whether it commits."""
        request = Request("c", tuple(Statement(*sql) for sql in statements), isolation=isolation)
        self.said.append(f"{node.name} runs {statements} at {isolation}")
        try:
            prepared = node.engine.execute(request)
        except UsageError as error:
            self.tally.counts[f"refused: {str(error)[:40]}"] += 1
            self.said.append(f"   refused: {error}")
            return
        node.prepared.append((prepared, isolation))

    def step_of(self, node: Node, work: TransactionWork, sql: Sql) -> None:
        """Run one statement of an open transaction."""
        self.said.append(f"{node.name} runs {sql} in open transaction {id(work) % 1000}, {work.serializable}")
        try:
            for piece, params in node.interactive.pieces(work, Statement(*sql)):
                if node.interactive.needs_snapshot(work, piece):
                    node.engine.flush()
                    node.interactive.take_snapshot(work)
                node.interactive.run(work, piece, params, ROOM)
            self.tally.counts["statements of open transactions"] += 1
        except (ConflictError, UsageError) as error:
            self.said.append(f"   {type(error).__name__}: {error}")
            if isinstance(error, ConflictError) or work.has_failed:
                self.forget(node, work)

    def finish(self, node: Node, work: TransactionWork) -> None:
        """Commit an open transaction."""
        self.said.append(f"{node.name} commits open transaction {id(work) % 1000}")
        try:
            prepared = node.interactive.finish(work)
        except (ConflictError, UsageError) as error:
            self.said.append(f"   {type(error).__name__}: {error}")
        else:
            node.interactive.end(work)
            self.commit(node, prepared, SERIALIZABLE if work.serializable else SNAPSHOT)
        self.forget(node, work)

    def forget(self, node: Node, work: TransactionWork) -> None:
        node.interactive.end(work)
        node.sessions.remove(work)

    # -- the end ---------------------------------------------------------------------------------------------------

    def check(self, folder: Path, seed: int | None) -> None:
        """Compare the nodes, and with ``seed`` also a replay of their journals."""
        for node in self.nodes:
            for work in list(node.sessions):
                self.forget(node, work)
            node.engine.flush()
        digests = {node.name: digest(node.engine._db) for node in self.nodes}
        if len(set(digests.values())) > 1:
            raise NotAppliedError(f"the tables differ: {digests}")
        for node in self.nodes:
            db = node.engine._db
            orphans = _orphans(db)
            told = db.execute("PRAGMA integrity_check").fetchall()
            if orphans or told != [("ok",)]:
                raise NotAppliedError(f"constraints are broken at {node.name}: {orphans} {told}")
        if seed is not None:
            target = folder / "replay.db"
            try:
                found = replay(
                    [node.path for node in self.nodes], target, draw=random.Random(seed).random, prepare=register
                )
            except Exception as error:
                raise NotAppliedError(f"the replay fails: {error}") from error
            if found.digest != digests["A"]:
                raise NotAppliedError("a replay has other tables")
            self.tally.counts["replayed"] += 1

    def close(self) -> None:
        """Close the nodes."""
        for node in self.nodes:
            node.close()


def _orphans(db: apsw.Connection) -> list[Any]:
    """Return the rows that lack the parent that their foreign key requires.

    Foreign keys whose columns have different types are left out: for these SQLite finds other children at the delete
    of a parent than parents at the insert of a child, so it leaves such rows on a single node as well.
    """
    schema = read_schema(db)
    found: list[Any] = []
    for table in schema.tables.values():
        for foreign in table.foreign_keys:
            parent = schema.tables.get(foreign.parent or "")
            if parent is not None and finds_same_pairs(foreign, table, parent):
                with contextlib.suppress(apsw.SQLError):  # columns that are not unique: no row can refer to them
                    query = "SELECT * FROM pragma_foreign_key_check(?) WHERE parent = ?"
                    found += db.execute(query, (table.name, parent.name))
    return found


def play(case: Case, tally: Tally, folder: Path) -> None:
    """Play a case.

    Raises:
        NotAppliedError: an approved transaction does not apply, or nodes or a replay differ.
    """
    world = World(folder, case, tally)
    luck = random.Random(case.luck)
    few = FEW if case.luck % 2 else {}
    with contextlib.ExitStack() as stack:
        for name, value in few.items():
            stack.enter_context(patch.object(analysis, name, value))
        _play(case, folder, world, luck)


def _play(case: Case, folder: Path, world: World, luck: random.Random) -> None:
    try:
        world.begin()
        for step in case.steps:
            _step(world, step)
        for node in world.nodes:
            for work in list(node.sessions):
                world.finish(node, work)
            while node.prepared:
                world.commit(node, *node.prepared.pop(0))
        world.deliver_all(luck.randrange)
        world.check(folder, case.luck if case.luck % 8 == 0 else None)
    except Exception as error:
        raise NotAppliedError("\n".join([*case.ddl, *map(str, case.rows), *world.said, repr(error)])) from error
    finally:
        world.close()


def _step(world: World, step: Step) -> None:
    node = world.nodes[step.node]
    settings = world.case.settings if step.choice % 2 else NONE
    step = replace(step, statements=[(with_settings(sql, settings), params) for sql, params in step.statements])
    if step.kind == RUN:
        if len(node.prepared) < IN_FLIGHT_MAX:
            world.run(node, step.statements, step.isolation)
    elif step.kind == DECIDE:
        if node.prepared:
            world.commit(node, *node.prepared.pop(step.choice % len(node.prepared)))
    elif step.kind == DELIVER:
        world.deliver(node, lambda count: step.choice % count)
    elif step.kind == OPEN:
        if len(node.sessions) < IN_FLIGHT_MAX:
            node.sessions.append(TransactionWork(step.isolation == SERIALIZABLE))
    elif node.sessions:
        work = node.sessions[step.choice % len(node.sessions)]
        if step.kind == COMMIT:
            world.finish(node, work)
        else:
            assert step.kind == STATEMENT
            world.step_of(node, work, step.statements[0])


def search(examples: int, start: int, tally: Tally, *, shrink: bool = True) -> str | None:
    """Try many cases; return the report of a failing case, reduced, or None."""

    def failing(case: Case) -> str | None:
        tally.counts["examples"] += 1
        try:
            with tempfile.TemporaryDirectory(prefix="applicable-", dir=_memory_folder()) as folder:
                play(case, tally, Path(folder))
        except NotAppliedError as error:
            return str(error)
        return None

    return find_failing(examples, start, make_case, failing, ("steps", "rows", "ddl"), shrink=shrink)


def _memory_folder() -> str | None:
    """Return a folder whose files are in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None

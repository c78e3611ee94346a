"""One run of chaos from the first node's start to the verdict."""

import random
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import ascii_uppercase

import trio

from bedrockish import open_client
from bedrockish.client.compare_nodes import AskRange, NodeComparison, ask_range
from bedrockish.errors import BedrockishError
from bedrockish.node.admin.wal_readers import READ_LOCKS, read_locks
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.verify import verify
from tools.chaos.cluster import ProxiedCluster, proxied_cluster
from tools.chaos.faults import FAULTS, MEMBER, QUIET_ROWS, Faults
from tools.chaos.visitors import SCHEMA, Visitors, check_file, judge, read_events
from tools.chaos.workload import READ, Workload, read_step
from tools.checker.check import check
from tools.checker.history import Operation, write_history

LEVEL_S = 60.0  # seconds that the nodes get to become equal after all faults have ended
HEAL_S = 240.0  # seconds until all tables must be equal: damaged nodes replay their journals, one node after the other

HELD_S = 20.0  # seconds in which the snapshots of the nodes' own reads end
MARKS_AT, MARKS_END = 100, 120  # the bytes of the read marks in the -shm file


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run."""

    nodes: int = 3  # the number of nodes
    seconds: float = 60.0  # the least duration of the faults
    seed: int = 1  # the seed of the choices of clients and faults
    faults: tuple[str, ...] = FAULTS  # the kinds of faults
    clients: int = 3  # the number of clients of each node
    level: str = "info"  # the level of the nodes' logs
    # Whether clients are programs that open the file of their node, and read and execute in their own process.
    by_file: bool = False
    learner: bool = False  # whether one more node only reads; then no links can be cut
    # The faults last until this many writing transactions were acknowledged, but at most ten times ``seconds``.
    updates: int = 0


@dataclass
class Verdict:
    """The result of a run."""

    counts: dict[str, int] = field(default_factory=dict)  # the counts of events, by name
    wrong: list[str] = field(default_factory=list)  # the violations; empty if all is well


async def run(plan: Plan, directory: Path, say: Callable[[str], None] = lambda _: None) -> Verdict:
    """Run nodes, clients and faults in a new directory, end the faults, and judge the result.

    The history is written to ``history.jsonl`` in the same directory as the nodes' files.

    Raises:
        DemoError: a node does not start.
    """
    verdict = Verdict()
    settings = {"log": {"level": plan.level}}
    names, is_direct = ascii_uppercase[: plan.nodes], plan.learner or MEMBER in plan.faults
    async with proxied_cluster(directory / "nodes", names, settings, is_direct=is_direct, http=True) as cluster:
        await cluster.wait_all_ready()
        workload = Workload(cluster, plan.seed, plan.clients, plan.by_file)
        if plan.learner:
            await cluster.join("learner")
        visitors = [_visitors(cluster, index, plan.seed, directory) for index in range(len(cluster.nodes))]
        workload.programs.extend(visitors)
        faults = Faults(cluster, random.Random(plan.seed), plan.faults, workload.programs)
        counted: dict[tuple[str, int], Counter[str]] = {}
        await workload.create()
        await _create_tables(cluster)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, cluster, counted)
                for one in visitors:
                    nursery.start_soon(one.run)
                await _strike(plan, workload, faults, say)
                nursery.cancel_scope.cancel()
            say("healed; waiting until all nodes are equal")
            began = trio.current_time()
            if wrong := await cluster.wait_level(LEVEL_S):
                verdict.wrong.append(f"not equal {LEVEL_S:.0f} s after the end of all faults: {wrong}")
            verdict.counts["ms until equal"] = round(1000 * (trio.current_time() - began))
            say("comparing the tables of all nodes")
            verdict.wrong += await _scrub(cluster, verdict.counts)
            verdict.wrong += await _find_snapshots(cluster)
        finally:
            write_history(directory / "history.jsonl", workload.history)
    verdict.counts |= {**dict(sorted(faults.counts.items())), "bytes that power cuts have taken": faults.lost_bytes}
    verdict.counts |= {f"answers: {code}": count for code, count in sorted(workload.errors.items())}
    verdict.counts |= dict(sum(counted.values(), Counter[str]()))
    verdict.wrong += faults.deaths + workload.strange
    await trio.to_thread.run_sync(_judge, cluster, faults, workload, verdict, directory)
    await trio.to_thread.run_sync(_judge_visits, cluster, [one.record for one in visitors], verdict)
    return verdict


def _visitors(cluster: ProxiedCluster, index: int, seed: int, directory: Path) -> Visitors:
    """Return the visitors of a node; their process is not started."""
    node = cluster.nodes[index]
    urls = [cluster.url(number, options="/?connect_timeout=2") for number in range(len(cluster.nodes))]
    urls += [str(one.http_port) for one in cluster.nodes if one.http_port]
    return Visitors(node.database, urls, directory / f"visits-{node.name}.jsonl", seed, cluster.dark)


async def _create_tables(cluster: ProxiedCluster) -> None:
    """Create the visitors' tables, and the rows whose bits are flipped: only the scrub can find the damage there."""
    async with open_client(cluster.url()) as client:
        rows = [f"INSERT INTO quiet VALUES ({row}, 'quiet row {row:04d}')" for row in range(QUIET_ROWS)]
        await client.transact(["CREATE TABLE quiet(id INTEGER PRIMARY KEY, v TEXT)", *rows])
        for sql in SCHEMA:
            await client.execute(sql)


async def _scrub(cluster: ProxiedCluster, counts: dict[str, int]) -> list[str]:
    """Make every node compare its tables with the others' until all are equal; return the remaining differences."""
    left: list[str] = ["the tables could not be compared"]
    counts["rows that differed before the scrub at the end"] = 0
    with trio.move_on_after(HEAL_S):
        while left:
            try:
                async with AsyncExitStack() as stack:
                    asks: dict[str, AskRange] = {}
                    clients = []
                    for index, node in enumerate(cluster.nodes):
                        # This fails while a node restarts after the replacement of its damaged tables.
                        client = await stack.enter_async_context(open_client(cluster.url(index, only=True)))
                        asks[node.name] = ask_range(partial(client.upkeep, timeout=60.0))
                        clients.append(client)
                    report = await NodeComparison(asks, len(asks)).run()
                    left = [str(one) for one in report.differences] + [
                        f"{n}: {why}" for n, why in report.lost_nodes.items()
                    ]
                    name = "rows that differed before the scrub at the end"
                    counts[name] = max(counts[name], len(report.differences))
                    counts["rows compared at the end"] = report.rows
                    for client in clients if left else ():
                        await client.upkeep({"do": "scrub"}, timeout=5)
            except BedrockishError as error:
                left = [f"the tables could not be compared: {error.message}"]
            if left:
                await trio.sleep(1)
    return left


async def _strike(plan: Plan, workload: Workload, faults: Faults, say: Callable[[str], None]) -> None:
    """Run the clients: with faults until the plan's time and updates are reached, then for a second without faults."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workload.run)
        with trio.move_on_after(10 * plan.seconds):
            async with trio.open_nursery() as striking:
                striking.start_soon(faults.run)
                ends = trio.current_time() + plan.seconds
                while trio.current_time() < ends or _updates(workload) < plan.updates:
                    await trio.sleep(min(10.0, plan.seconds / 10))
                    say(f"{len(workload.history)} operations, {faults.counts.total()} faults")
                striking.cancel_scope.cancel()
        await trio.sleep(1)
        workload.stopping = True


def _updates(workload: Workload) -> int:
    """Return the number of acknowledged writing transactions."""
    return sum((one.level, one.outcome) == ("update", "ok") for one in workload.history)


async def _watch(cluster: ProxiedCluster, counted: dict[tuple[str, int], Counter[str]]) -> None:
    """Record the recoveries of each process, before it is killed."""
    while True:
        for node in cluster.nodes:
            process = node.process
            status = await cluster.status(node, 1.0)
            if status is not None and process is not None:
                said = {f"recoveries {name}": count for name, count in status["recoveries"].items()}
                counted[node.name, process.pid] = Counter(said)
        await trio.sleep(0.5)


async def _find_snapshots(cluster: ProxiedCluster) -> list[str]:
    """Return the nodes whose files have a reader that stays at one moment although all clients have gone."""
    held = {node.name: _held_marks(node.database) for node in cluster.nodes}
    with trio.move_on_after(HELD_S):
        async with open_client(cluster.url()) as client:
            while any(held.values()):
                await client.execute("UPDATE quiet SET v = v WHERE id = 0")
                for node in cluster.nodes:
                    held[node.name] &= _held_marks(node.database)
    return [f"node {name}: a snapshot is left: {marks}" for name, marks in held.items() if marks]


def _held_marks(database: Path) -> set[tuple[int, int]]:
    """Return the read marks of a file that a process has locked: the locked byte, and the last frame that is seen.

    Every snapshot holds the lock of one mark. The marks are those of SQLite's ``WalCkptInfo`` (wal.c).
    """
    index = database.with_name(f"{database.name}-shm").read_bytes()[:MARKS_END]
    marks = struct.unpack_from(f"={len(READ_LOCKS)}I", index, MARKS_AT)
    return {(byte, marks[byte - READ_LOCKS.start]) for _, byte in read_locks(str(database))}


def _judge_visits(cluster: ProxiedCluster, records: list[Path], verdict: Verdict) -> None:
    """Compare the visitors' records with the file of each stopped node."""
    events = read_events(records)
    verdict.counts |= dict(sorted(events.counts.items()))
    verdict.counts["visits that were acknowledged"] = len(events.acknowledged)
    wrong = dict[str, None]()  # each once, although all files should have the same rows
    for node in cluster.nodes:
        with closing(sqlite3.connect(node.database)) as db:
            visits = db.execute("SELECT who, number FROM visits").fetchall()
            totals = dict(db.execute("SELECT who, visits FROM visitors"))
            wrong |= dict.fromkeys([*judge(events, visits, totals), *check_file(node.database)])
    verdict.wrong += list(wrong)


def _judge(cluster: ProxiedCluster, faults: Faults, workload: Workload, verdict: Verdict, directory: Path) -> None:
    """Check the clients' history, and the files of the stopped nodes."""
    paths = [node.database for node in cluster.nodes]
    last = max((one.end for one in workload.history), default=0.0)
    history = list(workload.history)
    for node in cluster.nodes:
        with closing(sqlite3.connect(node.database)) as db:
            steps = tuple(read_step(key, db.execute(READ[key[0]], [key]).fetchall()) for key in workload.keys.all)
        number = len(history) + 1
        history.append(Operation(number, f"file {node.name}", "final", last + 1, last + 2, "ok", steps))
    write_history(directory / "history.jsonl", history)
    report = check(history)
    verdict.counts = {**report.counts, **verdict.counts}
    if report.findings:
        verdict.wrong.append(report.describe())
    found = verify(paths)
    logs = [node.log.read_text(errors="replace") for node in cluster.nodes]
    verdict.counts["times that a node was filled again"] = sum(log.count("tables were filled again") for log in logs)
    verdict.wrong += [f"journal: {finding.text}" for finding in found.findings[:10]]
    digests = {node.name: digest(node.database) for node in cluster.nodes}
    for node in [*cluster.nodes, *faults.former]:
        if "Traceback" in node.log.read_text(errors="replace"):
            verdict.wrong.append(f"node {node.name} printed a traceback: {node.log}")
    if len(set(digests.values())) > 1:
        verdict.wrong.append(f"the tables differ: {digests}")
    with closing(sqlite3.connect(paths[0])) as db:
        sql = "SELECT count(*) FILTER (WHERE NOT repeat), sum(leader <> origin), sum(repeat) FROM bedrockish_journal"
        commits, adopted, repeats = db.execute(sql).fetchone()
    verdict.counts |= {"commits": commits, "adopted commits": adopted, "repeats": repeats}

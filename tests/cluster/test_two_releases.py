"""The last release and this one in one cluster: every operation while it is upgraded, in both orders, under load."""

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import Client, open_client
from bedrockish.api.requests import REMOVE, MemberChange
from bedrockish.client.transaction import Transaction
from bedrockish.errors import ConstraintError, SqlError, UnsupportedError
from bedrockish_journal.model.levels import LEVEL
from tests.cluster.releases import unpack_last_release, unpack_lower_level
from tests.cluster.story import PATIENT, judge_files, level, ready, rows, status_of, until
from tests.cluster.test_members import Work, working
from tools.cluster import SOURCES, LocalCluster, LocalNode, clean_environment, free_ports, local_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return unpack_last_release(tmp_path_factory.mktemp("last"))


def program(sources: Sequence[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of a release in its own folder, because Python imports from the current folder first."""
    command = [sys.executable, "-m", "bedrockish.cli.main", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=clean_environment(sources), cwd=sources[0]
    )


async def restart(cluster: LocalCluster, index: int, sources: Sequence[Path]) -> None:
    """End a node gracefully, and start another release on its file."""
    node = cluster.nodes[index]
    assert node.process is not None
    node.process.terminate()
    await trio.to_thread.run_sync(node.process.wait)
    node.sources = sources
    node.start()
    await ready(cluster)


async def every_operation(cluster: LocalCluster, last: Sequence[Path], stage: str) -> None:
    """Run every operation of a client at each node, and the other release's command line at one of each."""
    asked: list[Sequence[Path]] = []
    counts: dict[str, int] = {}
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute(f"CREATE TABLE {stage}(id INTEGER PRIMARY KEY, who TEXT UNIQUE, n INTEGER DEFAULT 0)")
    for index, node in enumerate(cluster.nodes):
        async with open_client(cluster.url(index, only=True, options=PATIENT)) as client:
            who = f"{stage}-{node.name}"
            await client.execute(f"INSERT INTO {stage}(who) VALUES (?)", [who])
            await client.execute(f"UPDATE {stage} SET n = n + 1 WHERE who = ?", [who], isolation="snapshot")
            with pytest.raises(ConstraintError):
                await client.execute(f"INSERT INTO {stage}(who) VALUES (?)", [who])

            async def step_by_step(work: Transaction, who: str = who) -> None:
                await work.execute(f"SELECT n FROM {stage} WHERE who = ?", [who])
                await work.execute("SAVEPOINT one")
                await work.execute(f"UPDATE {stage} SET n = 100 WHERE who = ?", [who])
                await work.execute("ROLLBACK TO one")
                await work.execute(f"UPDATE {stage} SET n = n + 1 WHERE who = ?", [who])

            await client.run_transaction(step_by_step)
            for read in ("session", "strict"):
                assert (await client.execute(f"SELECT n FROM {stage} WHERE who = ?", [who], read=read)).value() == 2
            await client.execute("SELECT count(*) FROM work", read="stale")
            async with client.stream("SELECT row FROM work LIMIT 100") as found:
                assert len([row async for row in found]) > 0
            # Many commands on one row: those of one node share transactions, and conflict with those of other nodes.
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(client.execute, f"UPDATE {stage} SET n = n + 1 WHERE who = ?", [who])
            assert (await client.execute(f"SELECT n FROM {stage} WHERE who = ?", [who], read="strict")).value() == 7
            counts[who] = 7
            await client.execute(f"INSERT INTO {stage}(who, n) VALUES (?, 9)", [who.encode() + b"x" * 1_000_000])
        url = cluster.url(index, only=True)
        if node.sources in asked:  # a node of its release was
            continue
        asked.append(node.sources)
        other = SOURCES if node.sources == last else last
        done = program(other, "sql", url, f"UPDATE {stage} SET n = n + 1 WHERE who = '{who}' RETURNING n")
        assert done.returncode == 0, done.stderr
        counts[who] += 1
        for command in ("status", "nodes"):
            done = program(other, *command.split(), url)
            assert done.returncode == 0, done.stdout + done.stderr
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute(f"ALTER TABLE {stage} ADD COLUMN more TEXT DEFAULT 'x'")

        async def migrate(work: Transaction) -> None:
            await work.execute(f"CREATE INDEX {stage}_n ON {stage}(n)")
            await work.execute(f"UPDATE {stage} SET more = 'y'")

        await client.run_transaction(migrate)
        query = f"SELECT who, n FROM {stage} WHERE typeof(who) = 'text' ORDER BY who"
        assert (await client.execute(query, read="strict")).rows == sorted(counts.items())


async def learner(cluster: LocalCluster, name: str, sources: Sequence[Path]) -> None:
    """Have a node of a release join as a learner, be promoted, and leave again."""
    node = LocalNode(name, free_ports(1)[0], cluster.directory, sources=sources)
    security = cluster.nodes[0].config.read_text().partition("[security]")[2].replace("/A", f"/{name}")
    text = f'node = "{name}"\ndatabase = "{node.database.name}"\nlisten = "127.0.0.1:{node.port}"\n'
    node.config.write_text(text + (f"[security]{security}" if security else ""))
    cluster.nodes.append(node)
    node.start("join", cluster.url(0), "--voter")

    async def voter() -> bool:
        return bool((await status_of(cluster, 0))["nodes"].get(name, {}).get("role") == "voter")

    await until(f"{name} is a voter", voter)
    async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
        await client.change_members(MemberChange(REMOVE, name, force=True))
    assert node.process is not None
    node.process.terminate()
    await trio.to_thread.run_sync(node.process.wait)
    cluster.nodes.remove(node)


async def dies(cluster: LocalCluster, index: int, work: Work) -> None:
    """Kill a node under load; nodes of the other release finish its transactions."""
    cluster.nodes[index].kill()
    await work.moves()
    cluster.nodes[index].start()
    await ready(cluster)


async def checked(cluster: LocalCluster) -> str:
    """Return the output of ``bedrockish upgrade check`` once it finds the cluster healthy, which takes a moment."""
    said: list[str] = []

    async def well() -> bool:
        done = await trio.to_thread.run_sync(program, SOURCES, "upgrade", "check", cluster.url(0))
        said[:] = [done.stdout + done.stderr]
        return done.returncode == 0

    try:
        await until("the cluster is well", well)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said}") from error
    return said[0]


def encrypt(cluster: LocalCluster, last: Sequence[Path], certs: Path) -> None:
    """Give nodes and clients certificates that the last release makes."""
    done = program(last, "tls", str(certs), *(f"{name}=127.0.0.1" for name in "ABCDE"), "--client", "app")
    assert done.returncode == 0, done.stderr
    for node in cluster.nodes:
        files = {"tls_ca": "ca.pem", "tls_certificate": f"{node.name}.pem", "tls_key": f"{node.name}-key.pem"}
        lines = "".join(f'{key} = "{certs / file}"\n' for key, file in files.items())
        node.config.write_text(node.config.read_text() + "\n[security]\n" + lines)
    cluster.options = f"ca={certs / 'ca.pem'}&cert={certs / 'app.pem'}&key={certs / 'app-key.pem'}"


@pytest.mark.parametrize(("order", "tls"), [pytest.param("ABC", False, marks=pytest.mark.slow), ("CBA", True)])
async def test_a_cluster_is_upgraded_node_after_node(tmp_path: Path, last: list[Path], order: str, tls: bool) -> None:
    """No client sees an error that is not retried, and nothing acknowledged is lost."""
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.write_files()
    for node in cluster.nodes:
        node.sources = last
    if tls:
        encrypt(cluster, last, tmp_path / "certs")
    try:
        for node in cluster.nodes:
            node.start()
        async with working(cluster) as work:
            for stage, name in enumerate(order):
                asked = await checked(cluster)
                assert f"{3 - stage} of 3 are left" in asked
                await restart(cluster, "ABC".index(name), SOURCES)
                await every_operation(cluster, last, f"s{stage}")
                await dies(cluster, "ABC".index(order[(stage + 1) % 3]), work)
                if stage == 0:
                    await learner(cluster, "D", last)
                    await learner(cluster, "E", SOURCES)
                if (
                    stage == 1
                ):  # go back once: so far the new release writes and sends only forms that the last one reads
                    await restart(cluster, "ABC".index(name), last)
                    await restart(cluster, "ABC".index(name), SOURCES)
            assert "all run" in await checked(cluster)
        await level(cluster)
        cluster.stop()
        for node in cluster.nodes:
            assert work.done <= {row for (row,) in rows(node, "SELECT row FROM work")}
        judge_files(cluster)
    finally:
        cluster.stop()


LARGE_ROWS = 4_000
MANY = f"WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {LARGE_ROWS})"


async def whole(cluster: LocalCluster, index: int) -> None:
    async with open_client(cluster.url(index, only=True, options="timeout=60")) as client:
        await client.execute("UPDATE large SET n = n + 1, v = v || 'x'")


@asynccontextmanager
async def half_upgraded(place: Path, last: list[Path]) -> AsyncIterator[LocalCluster]:
    """Run three nodes; the first two are of this release, and the third one is of the last."""
    cluster = LocalCluster(place)
    cluster.write_files()
    for node in cluster.nodes:
        node.sources = last
    try:
        for node in cluster.nodes:
            node.start()
        await ready(cluster)  # founded by that release: two of the present one would found it without the third
        for index in (0, 1):
            await restart(cluster, index, SOURCES)
        yield cluster
    finally:
        cluster.stop()


async def test_large_transactions_work_beside_the_last_release(tmp_path: Path, last: list[Path]) -> None:
    """A node of either release leads, and both assemble the pieces. While clients write rows of the same table, nodes
    of this release hold back, and the older one ignores the request to do so.
    """
    async with half_upgraded(tmp_path / "cluster", last) as cluster:
        sums = {0: 0, 1: 0}
        async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
            await client.execute("CREATE TABLE large(id INTEGER PRIMARY KEY, v TEXT, n INTEGER, small INTEGER)")
            await client.execute(f"{MANY} INSERT INTO large SELECT i, printf('%0300d', i), 0, 0 FROM s")
        async with trio.open_nursery() as nursery:

            async def write(index: int) -> None:
                async with open_client(cluster.url(index, only=True, options=PATIENT)) as client:
                    while True:
                        row = 1 + (sums[index] * 7919 + index) % LARGE_ROWS
                        await client.execute("UPDATE large SET small = small + 1 WHERE id = ?", [row])
                        sums[index] += 1
                        await trio.sleep(0.01)

            for index in sums:
                nursery.start_soon(write, index)
            await whole(cluster, 0)
            assert (await status_of(cluster, 0))["counts"]["reservations"] >= 1, "else nobody was asked to hold back"
            nursery.cancel_scope.cancel()
        await whole(cluster, 2)
        await level(cluster)
        cluster.stop()
        for node in cluster.nodes:
            ((count, n, small),) = rows(node, "SELECT count(*), sum(n), sum(small) FROM large")
            assert (count, n) == (LARGE_ROWS, 2 * LARGE_ROWS)
            assert small >= sum(sums.values()) > 0  # requests in flight at the end may have been committed, too
        judge_files(cluster)
        assert "Traceback" not in "".join(node.log.read_text() for node in cluster.nodes)


async def test_schema_transaction_makes_the_same_tables_at_the_last_release(tmp_path: Path, last: list[Path]) -> None:
    """The steps around the client's statements have the form that the last release executes, too."""
    async with half_upgraded(tmp_path / "cluster", last) as cluster:
        async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
            await client.execute("CREATE TABLE tree(id INTEGER PRIMARY KEY, up REFERENCES tree ON DELETE CASCADE)")
            await client.execute(f"{MANY} INSERT INTO tree SELECT i, nullif(i - 1, 0) FROM s")
            await client.execute("CREATE TABLE item(id INTEGER PRIMARY KEY)")
            await client.execute("CREATE VIEW items AS SELECT id FROM item")
            change = await client.begin()
            await change.execute("CREATE TABLE new(id INTEGER PRIMARY KEY, more DEFAULT 5)")
            with pytest.raises(SqlError):  # SQLite itself leaves a part of the rows deleted
                await change.execute("DELETE FROM tree WHERE id = 2")
            await change.execute("DROP TABLE item")
            await change.execute("PRAGMA legacy_alter_table = ON")
            await change.execute("ALTER TABLE new RENAME TO item")
            await change.commit()
        await level(cluster)
        cluster.stop()
        for node in cluster.nodes:
            assert rows(node, "SELECT count(*) FROM tree") == [(LARGE_ROWS,)]
            assert rows(node, "SELECT sql FROM sqlite_schema WHERE name = 'items'") == [
                ("CREATE VIEW items AS SELECT id FROM item",)
            ]
        judge_files(cluster)


async def told(client: Client, sql: str, name: str) -> list[tuple[Any, ...]] | None:
    """Return the rows of a statement; None if the node refused it and named the PRAGMA."""
    try:
        return (await client.execute(sql)).rows
    except UnsupportedError as error:
        if name not in error.message:
            raise
        return None


async def test_no_node_of_the_last_release_ignores_a_setting(tmp_path: Path, last: list[Path]) -> None:
    """The node either obeys the setting, or refuses the statement and names the PRAGMA."""
    cluster = LocalCluster(tmp_path / "cluster", ("A",))
    cluster.write_files()
    cluster.nodes[0].sources = last
    try:
        cluster.nodes[0].start()
        await ready(cluster)
        async with open_client(cluster.url(0, options=PATIENT)) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            await client.execute("CREATE TABLE said(x)")
            await client.execute("CREATE TRIGGER r AFTER DELETE ON t BEGIN INSERT INTO said VALUES (old.id); END")
            await client.execute("INSERT INTO t VALUES (1)")
            await client.execute("PRAGMA case_sensitive_like = ON")
            assert await told(client, "SELECT 'a' LIKE 'A'", "PRAGMA case_sensitive_like") in (None, [(0,)])
            await client.execute("PRAGMA case_sensitive_like = OFF")
            await client.execute("PRAGMA recursive_triggers = ON")
            if await told(client, "REPLACE INTO t VALUES (1)", "recursive_triggers") is not None:
                assert (await client.execute("SELECT x FROM said")).rows == [(1,)]
    finally:
        cluster.stop()


REMOVED = """
import sys
import bedrockish
with bedrockish.connect(sys.argv[1]) as db:
    for name, ask in (("outcome", lambda: db.outcome("a command")), ("call", lambda: db.call("a command", {}))):
        try:
            ask()
        except bedrockish.BedrockishError as error:
            print(error)
    print(db.execute("SELECT 1").value())
"""


async def test_client_of_the_last_release_gets_an_error_for_removed_operations(
    cluster: LocalCluster, last: list[Path]
) -> None:
    """The refusal is a typed error, and the connection goes on."""
    if "def outcome" not in (last[0] / "bedrockish" / "client" / "blocking.py").read_text():
        pytest.skip("the last release has none of the removed operations")
    await ready(cluster)
    command = [sys.executable, "-c", REMOVED, cluster.url()]
    run = partial(subprocess.run, command, capture_output=True, text=True, env=clean_environment(last), cwd=last[0])
    told = (await trio.to_thread.run_sync(partial(run, timeout=60, check=False))).stdout
    outcome, call, value = told.splitlines()
    for name, line in (("outcome", outcome), ("call", call)):
        assert line.startswith(f"there is no operation '{name}'; ")
        assert line.endswith("update a client of an older release")
    assert value == "1"


async def test_node_of_a_lower_level_is_refused(tmp_path: Path) -> None:
    """When a node of a lower level joins, the error names the release to install; started on a member's file it does no
    harm.
    """
    lower = unpack_lower_level(tmp_path / "lower")
    with local_cluster(tmp_path / "cluster") as cluster:
        await ready(cluster)
        node = LocalNode("D", free_ports(1)[0], cluster.directory)
        node.config.write_text(f'node = "D"\ndatabase = "{node.database}"\nlisten = "127.0.0.1:{node.port}"\n')
        done = program(lower, "join", cluster.url(), "--config", str(node.config), "--no-serve")
        assert done.returncode != 0
        assert f"D is of release level {LEVEL - 1}" in done.stderr
        assert "install the release of its members on D" in done.stderr
        cluster.nodes[2].kill()
        cluster.nodes[2].sources = lower
        cluster.nodes[2].start()
        assert cluster.nodes[2].process is not None
        assert await trio.to_thread.run_sync(cluster.nodes[2].process.wait) != 0
        assert f"at release level {LEVEL}, and this program reads up to {LEVEL - 1}" in cluster.nodes[2].last_words()
        async with open_client(cluster.url(0, options=PATIENT)) as client:
            await client.execute("CREATE TABLE t(a)")

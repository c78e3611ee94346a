"""The operator's mistakes of docs/mistakes.md have the documented symptoms and remedies."""

import subprocess
import time
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError, DeadlineError, OutcomeUnknownError, UnavailableError
from bedrockish_journal.model.clock import milliseconds
from tests.cluster.story import judge_files, level, ready, status_of, until
from tests.cluster.test_members import newcomer
from tests.forked import program
from tools.chaos.cluster import proxied_cluster
from tools.cluster import LocalCluster, LocalNode, free_ports, local_cluster

pytestmark = pytest.mark.cluster

DAY_MS = 86_400_000


async def run(*arguments: str, cwd: Path | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return await trio.to_thread.run_sync(lambda: program(*arguments, cwd=cwd, stdin=stdin))


async def until_up(cluster: LocalCluster, name: str) -> None:
    async def up() -> bool:
        return bool((await status_of(cluster, 0))["nodes"].get(name, {}).get("up"))

    await until(f"{name} is up", up)


async def until_said(cluster: LocalCluster, index: int, words: str) -> None:
    """Wait until ``bedrockish status`` of a node has these words in its first lines."""

    async def told() -> bool:
        done = await run("status", cluster.url(index, only=True, options="discover=no"))
        return done.returncode == 1 and words in " ".join(done.stdout.split()[:200])

    await until(f"status says {words!r}", told)


async def test_second_node_under_a_learners_name_is_refused(tmp_path: Path) -> None:
    """While the first node runs, the second is refused; if the second was faster, the first gets an error."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        first = newcomer(cluster, "D")
        await until_up(cluster, "D")
        place = tmp_path / "other"
        place.mkdir()
        second = LocalNode("D", free_ports(1)[0], place)
        second.config.write_text(f'node = "D"\ndatabase = "D.sqlite"\nlisten = "127.0.0.1:{second.port}"\n')
        joining = ("join", cluster.url(0, only=True), "--config", str(second.config))
        done = await run(*joining, cwd=place)
        assert done.returncode != 0
        assert f"D is a learner already, and runs at 127.0.0.1:{first.port}; stop it there" in done.stderr
        assert not second.database.exists()
        first.kill()

        async def gone() -> bool:
            return not (await status_of(cluster, 0))["nodes"]["D"]["up"]

        await until("D is gone", gone)
        second.start("join", cluster.url(0, only=True))
        try:
            await until_up(cluster, "D")
            first.start()
            await until_said(cluster, 3, f"was admitted as D, at 127.0.0.1:{second.port}, and this one")
            await trio.sleep(1)
            assert (await status_of(cluster, 0))["nodes"]["D"]["up"], "the second one keeps its links"
        finally:
            second.kill()


async def test_node_at_an_unknown_address_is_reported_by_both_sides(tmp_path: Path) -> None:
    """The node and its peers report the address, even if the peers got a wrong one; a correction ends the reports."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        moved, (there, wrong) = cluster.nodes[2], free_ports(2)
        before = moved.port
        moved.kill()
        text = moved.config.read_text()
        moved.config.write_text(text.replace(f'listen = "127.0.0.1:{before}"', f'listen = "127.0.0.1:{there}"'))
        moved.port = there
        moved.start()
        await until_said(cluster, 0, f"C is heard, and does not answer at its address, 127.0.0.1:{before}")
        await until_said(
            cluster, 2, f"none of them reaches this node at the address that they know, 127.0.0.1:{before}"
        )
        own = cluster.url(0, only=True)
        assert (await run("member", "address", own, "C", f"127.0.0.1:{wrong}")).returncode == 0
        await until_said(cluster, 0, f"C is heard, and does not answer at its address, 127.0.0.1:{wrong}")
        taken = await run("member", "address", own, "C", f"127.0.0.1:{cluster.nodes[1].port}")
        assert taken.returncode != 0
        assert "B has the address" in taken.stderr
        assert (await run("member", "address", own, "C", f"127.0.0.1:{there}")).returncode == 0

        async def well() -> bool:
            return all([(await run("status", cluster.url(index, only=True))).returncode == 0 for index in (0, 2)])

        await until("all is well", well)


async def test_members_are_changed_through_a_learner(tmp_path: Path) -> None:
    """The URL of a learner is enough, as for writing statements."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        newcomer(cluster, "D")
        await until_up(cluster, "D")
        done = await run("member", "remove", cluster.url(3, only=True), "D")
        assert done.returncode == 0, done.stderr
        assert "D" not in (await status_of(cluster, 0))["nodes"]


async def test_second_process_on_a_file_ends(tmp_path: Path) -> None:
    """The second process ends with one line of error, and the first goes on."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        node = cluster.nodes[0]
        text = node.config.read_text().replace(f":{node.port}", f":{free_ports(1)[0]}")
        again = node.directory / "again.toml"
        again.write_text(text)
        done = await run("serve", "--config", str(again), cwd=node.directory)
        assert done.returncode != 0
        assert done.stderr.strip().splitlines()[-1].startswith("error: ")
        assert "is in use by another node on this machine" in done.stderr
        async with open_client(cluster.url(0, only=True)) as client:
            await client.execute("CREATE TABLE t(x)")


def copy_file(database: Path, place: Path) -> None:
    for source in (database, database.with_name(f"{database.name}-wal")):
        if source.exists():
            (place / source.name).write_bytes(source.read_bytes())


async def test_copy_of_a_nodes_file_started_elsewhere_loses_no_row(tmp_path: Path) -> None:
    """The others refuse the copy while the original runs, or `status` names both; no row is lost."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        async with open_client(cluster.url(0)) as client:
            await client.execute("CREATE TABLE t(x)")
            original = cluster.nodes[2]
            original.kill()
            place = tmp_path / "copy"
            place.mkdir()
            copy_file(original.database, place)
            original.start()
            await until_up(cluster, "C")
            copy = LocalNode("C", free_ports(1)[0], place)
            copy.config.write_text(original.config.read_text().replace(f":{original.port}", f":{copy.port}"))
            copy.start()
            try:
                for _ in range(20):
                    await client.execute("INSERT INTO t VALUES (1)", timeout=20)

                async def named() -> bool:
                    log = copy.log.read_text(errors="replace")
                    return "older state of its file" in log

                await until("the copy is told", named)
                with pytest.raises(BedrockishError):
                    async with open_client(f"bedrockish://127.0.0.1:{copy.port}/?discover=no") as other:
                        await other.execute("INSERT INTO t VALUES (2)", timeout=3)
            finally:
                copy.kill()
            assert (await client.execute("SELECT count(*) FROM t WHERE x = 1")).value() == 20
            assert (await client.execute("SELECT count(*) FROM t")).value() == 20


async def test_lost_admin_password_can_be_replaced(tmp_path: Path) -> None:
    """The owner of a node's configuration creates an admin again, also after the last one was removed."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        first, second = cluster.nodes[:2]
        done = await run("user", "add", cluster.url(), "root", "--role", "admin", stdin="lost\n")
        assert done.returncode == 0, done.stderr
        before = first.config.read_text()
        rescue = f"bedrockish://rescue:found@127.0.0.1:{first.port}/?discover=no"
        first.config.write_text(f"{before}\n[users]\n{(await run('password', 'rescue', stdin='found')).stdout}")
        first.kill()
        first.start()

        async def changed(*words: str) -> None:
            async def done() -> bool:
                return (await run("user", words[0], rescue, *words[1:], stdin="new\n")).returncode == 0

            await until(f"the rescuer has done {words}", done)

        async def comes_in(name: str) -> None:
            async def listed() -> bool:
                url = f"bedrockish://{name}:new@127.0.0.1:{second.port}/?discover=no"
                return (await run("user", "list", url)).returncode == 0

            await until(f"{name} comes in at another node", listed)

        await changed("passwd", "root")
        await comes_in("root")
        await changed("remove", "root", "--force")
        await changed("add", "again", "--role", "admin")
        first.config.write_text(before)
        first.kill()
        first.start()
        await comes_in("again")
        told = await run("user", "list", rescue)
        assert (told.returncode, "wrong user or password" in told.stderr) == (2, True), told.stderr


async def test_node_catches_up_after_a_partition_of_a_day(tmp_path: Path) -> None:
    """C is cut off for a day, by all clocks: it reports that and writes nothing. The others go on and keep the entries
    that it will need; afterwards it catches up by itself. In the middle all nodes restart, because only a restart moves
    their wall clocks.
    """
    async with proxied_cluster(tmp_path / "three", "ABC") as cluster:
        await ready(cluster)
        async with open_client(cluster.url(0)) as client:
            await client.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")
        await level(cluster)
        with cluster.network.cut(cluster.network.apart("AB", "C")):
            await until_troubled(cluster, 2, "no_quorum")
            async with open_client(cluster.url(2, only=True)) as alone:
                with pytest.raises((UnavailableError, DeadlineError, OutcomeUnknownError)):
                    await alone.execute("INSERT INTO t VALUES (-1)", timeout=2, command="alone")
                assert (await alone.execute("SELECT count(*) FROM t", read="stale")).value() == 0
            await fill(cluster, 0, 50)
            for node in cluster.nodes:
                node.kill()
                node.start("serve", "--set", f"wall_offset_ms={DAY_MS}", "--set", "journal_keep_minutes=60")
            await fill(cluster, 50, 100)
            status = await status_of(cluster, 0)
            assert milliseconds(status["clock"]) > 1000 * time.time() + DAY_MS - 3_600_000
            done = await run("journal", "prune", cluster.url(0, only=True), "--older-than", "1h")
            assert "node C has not reported all entries that are here" in done.stdout, done.stdout + done.stderr
            await until_troubled(cluster, 2, "no_quorum")
        await ready(cluster)
        await level(cluster)
        for index in range(3):
            async with open_client(cluster.url(index, only=True)) as each:
                happened = await each.settle("alone")  # either outcome, but the same at all nodes
                count = "SELECT count(*) FILTER (WHERE x >= 0), count(*) FILTER (WHERE x < 0) FROM t"
                assert (await each.execute(count, read="strict")).rows == [(100 + index, int(bool(happened)))]
                await each.execute("INSERT INTO t VALUES (?)", [100 + index], timeout=20)
        await until_well(cluster)
        await level(cluster)  # also the last write
        cluster.stop()
        judge_files(cluster)


async def fill(cluster: LocalCluster, first: int, after: int) -> None:
    """Write rows at A, as soon as it can."""
    for index in (0, 1):
        await cluster.wait_ready(index)
    async with open_client(cluster.url(0, only=True)) as client:
        for number in range(first, after):
            await client.execute("INSERT INTO t VALUES (?)", [number], timeout=40)


async def until_troubled(cluster: LocalCluster, index: int, name: str) -> None:
    await cluster.wait_ready(index)

    async def told() -> bool:
        return name in {one["code"] for one in (await status_of(cluster, index))["troubles"]}

    await until(f"{cluster.nodes[index].name} has the trouble {name}", told)


async def until_well(cluster: LocalCluster) -> None:
    """Wait until no node has a trouble that the test caused."""

    async def well() -> bool:
        found = [await status_of(cluster, index) for index in range(3)]
        codes = {one["code"] for status in found for one in status["troubles"]}
        return not codes & {"no_quorum", "node_away", "clock_skew"}

    await until("all is well", well)


async def test_join_on_the_file_of_another_cluster_says_how_to_go_on(tmp_path: Path) -> None:
    """A node that was started before its join has founded another cluster."""
    with local_cluster(tmp_path / "alone", ("D",)) as cluster:
        await ready(cluster)
        node = cluster.nodes[0]
        assert node.process is not None
        node.process.terminate()
        await trio.to_thread.run_sync(node.process.wait)
        done = await run("join", "bedrockish://127.0.0.1:1", "--config", str(node.config), cwd=node.directory)
        assert done.returncode == 2
        assert "is the file of D, which has served as a cluster of its own" in done.stderr
        assert "move the file and its -wal and -shm away and join again" in done.stderr


async def test_join_that_gets_no_data_says_how_to_go_on(tmp_path: Path) -> None:
    """The cluster has admitted the node already; a second run of the command takes its place."""
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        await ready(cluster)
        node = LocalNode("B", free_ports(1)[0], tmp_path)
        node.config.write_text(f'node = "B"\ndatabase = "B.sqlite"\nlisten = "127.0.0.1:{node.port}"\n')
        in_the_way = tmp_path / "B.sqlite.joining"
        in_the_way.mkdir()
        joining = ("join", cluster.url(0), "--config", str(node.config), "--no-serve")
        done = await run(*joining, cwd=tmp_path)
        assert done.returncode == 2
        assert "B.sqlite.joining cannot be written: Is a directory" in done.stderr
        assert "B is a learner without data: run 'bedrockish join' again, or 'bedrockish member remove" in done.stderr
        in_the_way.rmdir()
        done = await run(*joining, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert node.database.exists()


async def test_repair_of_a_node_that_does_not_answer_ends(tmp_path: Path) -> None:
    """The command must not wait for ever for a node that has not received the order."""
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        cluster.nodes[0].kill()
        with trio.fail_after(60):
            done = await run("member", "repair", cluster.url(1, only=True), "A")
        assert done.returncode == 3
        assert "A did not answer the order: no node can be reached at" in done.stderr
        assert "run the command again when A runs" in done.stderr

"""The views of each state of a node: docs/trouble-states.md has the table that is measured here.

``WRITE=1`` writes the rows that a test measures; otherwise the page must be what is measured.
"""

import errno
import os
import re
import resource
import shutil
import signal
import sqlite3
import ssl
import subprocess
import textwrap
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import DEMOTE, PROMOTE, MemberChange
from bedrockish.cli.certificates import Authority
from bedrockish.core.protocol.health import UNPROVEN, Alarm, Mode, encode_alarm
from bedrockish.engine.storage.system_tables import ALARM
from bedrockish.errors import BedrockishError, MembershipError
from bedrockish.node.admin.troubles import KINDS
from tests.cluster.releases import unpack_lower_level
from tests.cluster.story import level, ready, status_of, until
from tests.cluster.test_damage import fill as fill_marked
from tests.cluster.test_damage import flip, stop
from tests.cluster.test_waiting import LIMIT_BYTES, fill, limit_files
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode, local_cluster

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs" / "trouble-states.md"
COMING_AND_GOING = frozenset({"safe_time", "in_doubt", "node_behind", "behind", "node_slow", "disk_filling"})
HEAD = (
    "| state of C | `status` of C | `status` of the others | mode of C in `nodes` | `/livez` of C | `/readyz` of C "
    "| `/readyz` of the others | alerts |"
)
ROWS = ("<!-- states -->\n\n", "\n\n<!-- end of states -->")
REMEDIES = ("<!-- remedies -->\n\n", "\n\n<!-- end of remedies -->")
PATIENCE_S = 90.0
ANSWER_S = 30.0  # the time for an answer of a node that has just answered
SILENCE_S = 1.0  # the time for an answer of HTTP, if the same request over a link got none
HEALTHY = "all is well"
NAMES = (
    HEALTHY,
    "killed, or its machine is gone",
    "stopped by SIGTERM",
    "paused (SIGSTOP), or cut off",
    "dead, and B as well: no quorum",
    "the only voter of three members",
    "its disk is full",
    "its quota is used up",
    "its file system became read-only",
    "its file reached a limit of size (`ulimit -f`)",
    "its disk takes seconds for each sync",
    "its clock is four seconds behind",
    "its certificate ends within 30 days",
    "its certificate has ended, and it runs on",
    "its certificate has ended, and it was started again",
    "its tables are a copy that is not compared yet",
    "its tables are damaged, and `repair_automatic` is off",
    "it holds a transaction of A in doubt, and A and B are paused",
    "an older release, started when all others had gone on",
)


class Seen(NamedTuple):
    """The views of one state."""

    own: str
    others: str
    mode: str
    livez: str
    readyz: str
    others_readyz: str
    alerts: str


class View:
    """Collects the views of C from all sides, also through another node.

    Args:
        cluster: three nodes with HTTP.
        other: the index of the other node.
        keep: codes to show although they come and go with load.
    """

    def __init__(self, cluster: LocalCluster, other: int = 0, keep: frozenset[str] = frozenset()) -> None:
        self.cluster, self.other, self._hidden = cluster, other, COMING_AND_GOING - keep

    def get(self, index: int, path: str, *, is_silent: bool = False) -> tuple[str, bytes]:
        """Return the status of an HTTP answer, or ``no answer``, and the answer; do not wait long for a silent node."""
        trusted = re.search(r"ca=([^&]*)", self.cluster.options)
        context = ssl.create_default_context(cafile=trusted[1]) if trusted else None
        if context is not None:
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        url = f"http{'s' * bool(trusted)}://127.0.0.1:{self.cluster.nodes[index].http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=SILENCE_S if is_silent else ANSWER_S, context=context) as reply:
                return str(reply.status), reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return str(error.code), error.read()
        except OSError:
            return "no answer", b""

    def codes(self, status: dict[str, Any] | None) -> set[str] | None:
        """Return the troubles of a status; None without one. Each says what to do."""
        if status is None:
            return None
        assert all(one["do"] == KINDS[one["code"]].do for one in status["troubles"])
        return {one["code"] for one in status["troubles"]} - self._hidden

    async def told(self, index: int, within_s: float) -> dict[str, Any] | None:
        """Return the status of a node; None if it does not answer."""
        with trio.move_on_after(within_s):
            try:
                return await status_of(self.cluster, index)
            except BedrockishError:
                return None
        return None

    def alerts(self, index: int) -> set[str]:
        """Return the troubles in a node's metrics; fail if one has no alert rule."""
        found = set(re.findall(r'bedrockish_trouble{code="(\w+)"} 1', self.get(index, "/metrics")[1].decode()))
        rules = (PAGE.parent / "alerts.yml").read_text()
        assert all(f'code="{code}"' in rules for code in found)
        return found - self._hidden

    async def until(self, own: set[str] | None, others: set[str] | None) -> Seen:
        """Wait until C and the others tell these troubles; return all views, which agree."""

        async def look(index: int) -> None:
            expected = own if index == 2 else others
            statuses[index] = await self.told(index, 3 if expected is None else ANSWER_S)
            found[index] = self.codes(statuses[index])

        async def there() -> bool:
            async with trio.open_nursery() as nursery:
                for index in (2, self.other):
                    nursery.start_soon(look, index)
            if (found[2], found[self.other]) != (own, others) or not is_consistent(statuses[self.other], others):
                return False
            return await trio.to_thread.run_sync(self._alike, found)

        statuses: dict[int, dict[str, Any] | None] = {}
        found: dict[int, set[str] | None] = {}
        try:
            await until(f"{own} at C and {others} at the others", there, PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {found}") from None
        return await trio.to_thread.run_sync(self._look, own, others, statuses[self.other])

    def _alike(self, found: dict[int, set[str] | None]) -> bool:
        """Return whether the metrics tell the same troubles, which come and go between two questions."""
        return all(codes is None or self.alerts(index) == codes for index, codes in found.items())

    def _look(self, own: set[str] | None, others: set[str] | None, status: dict[str, Any] | None) -> Seen:
        told, ready_of = {2: own, self.other: others}, {}
        alerts: set[str] = set()
        for index, codes in told.items():
            ready_of[index] = self.get(index, "/readyz", is_silent=codes is None)[0]
            if codes is not None:
                assert (ready_of[index] == "503") is any(KINDS[code].useless for code in codes)
                found = self.alerts(index)
                assert found == codes
                alerts |= found
        return Seen(
            shown(own),
            shown(others),
            status["nodes"]["C"]["mode"] if status else "no answer",
            self.get(2, "/livez", is_silent=own is None)[0],
            ready_of[2],
            ready_of[self.other],
            shown(alerts),
        )


def is_consistent(status: dict[str, Any] | None, codes: set[str] | None) -> bool:
    """Return whether the mode of C fits to the troubles, which begin and end a moment later."""
    if status is None or codes is None:
        return True
    return (status["nodes"]["C"]["mode"] == "away") is ("node_away" in codes)


def shown(found: set[str] | None) -> str:
    if found is None:
        return "no answer"
    return ", ".join(f"`{code}`" for code in sorted(found)) or "nothing"


def check_row(name: str, seen: Seen) -> None:
    """Compare a row of the page with a measured state, or write it."""
    assert name in NAMES
    line = f"| {name} | " + " | ".join(seen) + " |"
    if os.environ.get("WRITE"):
        rows = {**rows_of_page(), name: line}
        replace(ROWS, [HEAD, "| " + "--- | " * 8 + "--- |", *(rows[one] for one in NAMES if one in rows)])
        replace(REMEDIES, remedies())
    else:
        assert rows_of_page().get(name) == line


def rows_of_page() -> dict[str, str]:
    lines = section(ROWS).splitlines()[2:]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def remedies() -> list[str]:
    """Return a table of the troubles in the rows, with their remedies."""
    codes = set(re.findall(r"`(\w+)`", " ".join(rows_of_page().values()))) & KINDS.keys()
    lines = [f"| `{code}` | {kind.do} |" for code, kind in KINDS.items() if code in codes]
    return ["| trouble | what to do |", "| --- | --- |", *lines]


def section(marks: tuple[str, str]) -> str:
    return PAGE.read_text().partition(marks[0])[2].partition(marks[1])[0]


def replace(marks: tuple[str, str], lines: list[str]) -> None:
    before, _, rest = PAGE.read_text().partition(marks[0])
    after = rest.partition(marks[1])[2]
    PAGE.write_text(before + marks[0] + "\n".join(lines) + marks[1] + after)


def send(cluster: LocalCluster, index: int, number: signal.Signals) -> None:
    process = cluster.nodes[index].process
    assert process is not None
    process.send_signal(number)


@asynccontextmanager
async def started_again(cluster: LocalCluster, *arguments: str) -> AsyncIterator[None]:
    """Run C with other settings in this block."""
    cluster.nodes[2].kill()
    cluster.nodes[2].start("serve", *arguments)
    await ready(cluster)
    yield
    cluster.nodes[2].kill()
    cluster.nodes[2].start()
    await ready(cluster)


async def without_room(cluster: LocalCluster) -> Seen:
    limit_files(cluster.nodes[2], LIMIT_BYTES)
    await fill(cluster)
    seen = await View(cluster).until({"cannot_write"}, {"node_trouble"})
    limit_files(cluster.nodes[2], resource.RLIM_INFINITY)
    return seen


async def paused(cluster: LocalCluster) -> Seen:
    send(cluster, 2, signal.SIGSTOP)
    seen = await View(cluster).until(None, {"node_away"})
    send(cluster, 2, signal.SIGCONT)
    return seen


async def dead(cluster: LocalCluster) -> Seen:
    cluster.nodes[2].kill()
    seen = await View(cluster).until(None, {"node_away"})
    cluster.nodes[2].start()
    return seen


async def stopped(cluster: LocalCluster) -> Seen:
    await stop(cluster.nodes[2])
    seen = await View(cluster).until(None, {"node_away"})
    cluster.nodes[2].start()
    return seen


async def clock_behind(cluster: LocalCluster) -> Seen:
    async with started_again(cluster, "--set", "wall_offset_ms=-4000"):
        return await View(cluster).until({"clock_skew"}, {"clock_skew"})


async def no_quorum(cluster: LocalCluster) -> Seen:
    send(cluster, 1, signal.SIGSTOP)
    cluster.nodes[2].kill()
    seen = await View(cluster).until(None, {"no_quorum", "node_away"})
    send(cluster, 1, signal.SIGCONT)
    cluster.nodes[2].start()
    return seen


async def one_voter(cluster: LocalCluster) -> Seen:
    async with open_client(cluster.url(0)) as client:
        for node in "AB":
            await client.change_members(MemberChange(DEMOTE, node, force=True))
        seen = await View(cluster).until({"one_voter"}, {"one_voter"})
        for node in "AB":

            async def promoted(node: str = node) -> bool:
                try:
                    await client.change_members(MemberChange(PROMOTE, node))
                except MembershipError:  # the node is not heard, or behind
                    return False
                return True

            await until(f"{node} is promoted", promoted)
    return seen


async def in_doubt(cluster: LocalCluster) -> Seen:
    """Let C receive a transaction of A, and neither A nor B send it the outcome."""
    async with open_client(cluster.url(0)) as client:
        await client.execute("CREATE TABLE IF NOT EXISTS d(x)")
        await level(cluster)
        send(cluster, 2, signal.SIGSTOP)
        send(cluster, 1, signal.SIGSTOP)
        with trio.move_on_after(2):  # A asks both, and its messages wait in their sockets
            await client.execute("INSERT INTO d VALUES (1)", timeout=60)
        send(cluster, 0, signal.SIGSTOP)
        send(cluster, 2, signal.SIGCONT)
        view = View(cluster, keep=frozenset({"in_doubt"}))
        seen = await view.until({"in_doubt", "no_quorum", "node_away"}, None)
        send(cluster, 0, signal.SIGCONT)
        send(cluster, 1, signal.SIGCONT)
    return seen


async def slow_disk(cluster: LocalCluster) -> Seen:
    with run_as(cluster.nodes[2], SLOW_SYNCS):
        cluster.nodes[2].kill()
        cluster.nodes[2].start()
        await ready(cluster)
        async with open_client(cluster.url(0)) as client, trio.open_nursery() as nursery:
            await client.execute("CREATE TABLE IF NOT EXISTS d(x)")
            nursery.start_soon(write_on, client)
            seen = await View(cluster).until({"disk_slow"}, set())
            nursery.cancel_scope.cancel()
        cluster.nodes[2].kill()
    cluster.nodes[2].start()
    return seen


async def write_on(client: Any) -> None:
    while True:
        await client.execute("INSERT INTO d VALUES (2)")
        await trio.sleep(0.1)


async def unproven(cluster: LocalCluster) -> Seen:
    """Prevent the comparison of a copy: a folder has the name of its scratch file."""
    node = cluster.nodes[2]
    scratch = node.database.with_name(node.database.name + ".proof")
    await stop(node)
    alarm = encode_alarm(Alarm(Mode.READ_ONLY, "the tables are a copy, which is not compared with its journal yet", {}))
    with closing(sqlite3.connect(node.database)) as db, db:
        db.execute("INSERT INTO bedrockish_meta(key, value) VALUES (?, ?)", (ALARM + UNPROVEN, alarm))
    scratch.mkdir()
    node.start()
    seen = await View(cluster).until({"read_only", "unproven_copy"}, {"node_trouble"})
    node.kill()
    scratch.rmdir()
    node.start()
    return seen


async def damaged(cluster: LocalCluster) -> Seen:
    node = cluster.nodes[2]
    async with open_client(cluster.url(0)) as client:
        await client.execute("DROP TABLE IF EXISTS t")  # from the state without room
    await fill_marked(cluster)
    await stop(node)
    flip(node, b"MARK-050-aaaa")
    node.start("serve", "--set", "repair_automatic=false")
    await ready(cluster)
    async with open_client(cluster.url(0)) as client:
        await client.execute("UPDATE t SET v = v || '' WHERE id = 50")
    seen = await View(cluster).until({"out_of_service"}, {"node_trouble"})
    node.kill()
    node.start()  # it fills itself from the others
    return seen


States = dict[str, Callable[[LocalCluster], Awaitable[Seen]]]
OF_PROCESSES: States = {
    "killed, or its machine is gone": dead,
    "stopped by SIGTERM": stopped,
    "paused (SIGSTOP), or cut off": paused,
    "dead, and B as well: no quorum": no_quorum,
}
OF_MOMENTS: States = {
    "it holds a transaction of A in doubt, and A and B are paused": in_doubt,
    "its clock is four seconds behind": clock_behind,
}
OF_FILES: States = {
    "its file reached a limit of size (`ulimit -f`)": without_room,
    "the only voter of three members": one_voter,
    "its tables are a copy that is not compared yet": unproven,
    "its disk takes seconds for each sync": slow_disk,
    "its tables are damaged, and `repair_automatic` is off": damaged,
}


async def one_after_the_other(states: States, directory: Path) -> AsyncGenerator[tuple[str, Seen]]:
    """Yield the views of each state of one cluster, which is healthy before each."""
    with local_cluster(directory / "three", http=True) as cluster:
        for name, state in states.items():
            await ready(cluster)
            well = await View(cluster).until(set(), set())
            yield HEALTHY, well
            yield name, await state(cluster)


def test_page_has_every_state_and_the_remedies_of_its_troubles() -> None:
    assert tuple(rows_of_page()) == NAMES
    assert section(REMEDIES).splitlines() == remedies()


# -- C under another program, or with other files ------------------------------------------------------------------

SLOW_SYNCS = """
    import os, runpy, time
    sync = os.fdatasync
    def slow(file):
        time.sleep(2)
        sync(file)
    os.fdatasync = slow
    runpy.run_module("bedrockish.cli.main", run_name="__main__")
"""
REFUSING = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/stat.h>
    #include <sys/types.h>
    /* Refuse each pwrite to a regular file with the number in the file $REFUSED, while there is one. */
    static int refused(int fd) {
        struct stat found;
        int number = 0;
        FILE *told = fopen(getenv("REFUSED"), "r");
        if (!told) return 0;
        if (fscanf(told, "%d", &number) != 1) number = 0;
        fclose(told);
        return fstat(fd, &found) == 0 && S_ISREG(found.st_mode) ? number : 0;
    }
    ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
        static ssize_t (*real)(int, const void *, size_t, off64_t);
        if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
        if ((errno = refused(fd))) return -1;
        return real(fd, data, size, place);
    }
    ssize_t pwrite(int fd, const void *data, size_t size, off_t place) { return pwrite64(fd, data, size, place); }
"""
HAS_COMPILER = shutil.which("cc") is not None
REFUSALS = {
    "its disk is full": errno.ENOSPC,
    "its quota is used up": errno.EDQUOT,
    "its file system became read-only": errno.EROFS,
}


@contextmanager
def run_as(node: LocalNode, text: str) -> Iterator[None]:
    """Start a node by another Python program in this block."""
    program = node.directory.parent / f"{node.name}-program.py"
    program.write_text(textwrap.dedent(text))
    before, node.program = node.program, (str(program),)
    yield
    node.program = before


def refusing(directory: Path, flag: Path) -> str:
    """Return a program that runs a node whose writes are refused with the number in a file, while there is one."""
    source, shim = directory / "refusing.c", directory / "refusing.so"
    source.write_text(textwrap.dedent(REFUSING))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return f"""
        import os, sys
        os.environ |= {{"LD_PRELOAD": {str(shim)!r}, "REFUSED": {str(flag)!r}}}
        os.execv(sys.executable, [sys.executable, "-m", "bedrockish.cli.main", *sys.argv[1:]])
    """


async def refused(tmp_path: Path) -> AsyncGenerator[tuple[str, Seen]]:
    """Yield the views of a node whose disk refuses writes, for each reason."""
    if not HAS_COMPILER:
        return
    flag = tmp_path / "refused"
    program = refusing(tmp_path, flag)
    cluster = LocalCluster(tmp_path / "three")
    cluster.add_http()
    with run_as(cluster.nodes[2], program), cluster.running():
        for name, number in REFUSALS.items():
            await ready(cluster)
            await View(cluster).until(set(), set())
            flag.write_text(str(number))
            await fill(cluster)
            seen = await View(cluster).until({"cannot_write"}, {"node_trouble"})
            flag.unlink()
            yield name, seen


def certify(certs: Path) -> Path:
    """Make the certificates of three nodes and a client in a folder; return it."""
    hosts = [f"{node}=127.0.0.1" for node in "ABC"]
    assert program("tls", certs, *hosts, "--client", "app").returncode == 0
    return certs


def issue(certs: Path, node: str, days: float) -> None:
    """Give a node another certificate, which ends in so many days."""
    for suffix in (".pem", "-key.pem"):
        (certs / f"{node}{suffix}").unlink()
    Authority.at(certs, 400).issue(node, ["127.0.0.1"], days, for_node=True)


async def certified(tmp_path: Path) -> AsyncGenerator[tuple[str, Seen]]:
    """Yield the views of a node whose certificate expires."""
    certs = certify(tmp_path / "certs")
    cluster = LocalCluster(tmp_path / "three", settings={"security": {"tls": str(certs)}})
    cluster.add_http()
    files = (("ca", "ca"), ("cert", "app"), ("key", "app-key"))
    cluster.options = "&".join(f"{option}={certs / name}.pem" for option, name in files)
    with cluster.running():
        await ready(cluster)
        await View(cluster).until(set(), set())
        issue(certs, "C", 25 / 86_400)
        async with started_again(cluster):
            yield "its certificate ends within 30 days", await View(cluster).until({"certificate"}, {"certificate"})
            yield "its certificate has ended, and it runs on", await View(cluster).until(None, {"certificate"})
            told = next(one for one in (await status_of(cluster, 0))["troubles"] if one["code"] == "certificate")
            assert told["text"] == "the certificate of C has expired"
            cluster.nodes[2].kill()
            cluster.nodes[2].start()
            yield (
                "its certificate has ended, and it was started again",
                await View(cluster).until(None, {"node_away"}),
            )

            async def why() -> bool:
                told = (await status_of(cluster, 0))["troubles"]
                return any(one["code"] == "node_away" and "certificate has expired" in one["text"] for one in told)

            await until("A tells why C is away", why)
            issue(certs, "C", 400)


async def too_late(tmp_path: Path) -> AsyncGenerator[tuple[str, Seen]]:
    """Yield the views of a node of an older release, which the others have left behind."""
    last = unpack_lower_level(tmp_path / "last")
    with local_cluster(tmp_path / "three", http=True) as cluster:
        await ready(cluster)
        await level(cluster)
        node = cluster.nodes[2]
        await stop(node)
        node.sources = last
        node.start()
        name = "an older release, started when all others had gone on"
        yield name, await View(cluster).until(None, {"node_away"})


# -- all of them ---------------------------------------------------------------------------------------------------

Views = dict[str, Seen]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> tuple[Views, list[Exception]]:
    """Bring clusters into all states, at the same time, for they mostly wait; return the views, and the failures."""
    found: Views = {}
    failed: list[Exception] = []

    async def follow(states: AsyncGenerator[tuple[str, Seen]]) -> None:
        try:
            async with aclosing(states):
                async for name, seen in states:
                    assert name != HEALTHY or found.setdefault(name, seen) == seen
                    found[name] = seen
        except Exception as error:
            failed.append(error)

    async def run() -> None:
        own = tmp_path_factory.mktemp
        async with trio.open_nursery() as nursery:
            for number, of_one in enumerate((OF_PROCESSES, OF_MOMENTS, OF_FILES)):
                nursery.start_soon(follow, one_after_the_other(of_one, own(f"states{number}")))
            for states in (refused, certified, too_late):
                nursery.start_soon(follow, states(own(states.__name__)))

    trio.run(run)
    return found, failed


@pytest.mark.parametrize("name", NAMES)
def test_every_interface_reports_a_trouble_as_the_page_says(views: tuple[Views, list[Exception]], name: str) -> None:
    found, failed = views
    if name in REFUSALS and not HAS_COMPILER:
        pytest.skip("no C compiler here, so writes cannot be refused by their number")
    if name not in found:
        raise AssertionError(f"the state {name!r} was not reached") from next(iter(failed), None)
    check_row(name, found[name])


def test_clusters_recover_from_each_state(views: tuple[Views, list[Exception]]) -> None:
    assert not views[1]


def test_status_command_succeeds_without_trouble_for_a_ready_node(tmp_path: Path) -> None:
    """The table names codes; the command prints each with what to do."""
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(ready, cluster)
        done = program("status", cluster.url())
        assert (done.returncode, "TROUBLE" in done.stdout) == (0, False)

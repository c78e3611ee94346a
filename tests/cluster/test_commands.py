"""Commands at three real nodes: from every client, exactly once, run again on conflict, stopped, and missing."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import connect, open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import (
    BedrockishError,
    CommandError,
    ConfigError,
    DeadlineError,
    StatementTimeoutError,
    UnsupportedError,
    UsageError,
)
from bedrockish.node.plugins import Plugins
from tests.cluster import procedures
from tests.cluster.story import PATIENT, judge_files, level, ready, rows, until
from tests.forked import program
from tools.cluster import LocalCluster, clean_environment

pytestmark = pytest.mark.cluster

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


@contextmanager
def with_plugins(directory: Path, plugins: str = procedures.__name__, names: str = "ABC") -> Iterator[LocalCluster]:
    """Three nodes of which those that are named have the module."""
    cluster = LocalCluster(directory, settings={"limits": {"command_ms_max": 1_500, "statement_ms_max": 700}})
    cluster.add_http()
    cluster.write_files()
    for node in cluster.nodes:
        if node.name in names:
            node.config.write_text(f'plugins = ["{plugins}"]\n' + node.config.read_text())
    try:
        for node in cluster.nodes:
            node.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with with_plugins(tmp_path_factory.mktemp("commands") / "cluster") as running:
        yield running


async def bank(client: Client) -> None:
    for table in ("account", "bill"):
        await client.execute(f"DROP TABLE IF EXISTS {table}")
    await client.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER)")
    await client.execute("CREATE TABLE bill(month TEXT PRIMARY KEY, total INTEGER)")
    await client.execute("INSERT INTO account VALUES (1, 100), (2, 0)")


async def test_commands_write_read_fail_and_catch_errors(cluster: LocalCluster) -> None:
    """Arguments and answers, its own writes, caught errors, refusals with their details, the same at each node."""
    await ready(cluster)
    async with open_client(cluster.url(options=PATIENT)) as client:
        await bank(client)
        assert await client.call("transfer", [1, 2, 30]) == 70
        assert await client.call("transfer", {"source": 1, "target": 2, "amount": 10}) == 60
        assert await client.call("accounts") == [[1, 60], [2, 40]]
        assert await client.call("accounts", {"least": 50}, read="strict") == [[1, 60]]
        values = [None, True, 1, -(1 << 63), 0.5, "text", b"\0", [1, [2]], {"a": {"b": None}}]
        assert await client.call("echo", values) == values
        assert await client.call("careful", command="mine") == [2, [["one", 1]], "mine", True]
        wrong: list[tuple[str, list[object], str, str]] = [
            ("transfer", [1, 2, 1000], "balance", "not enough"),
            ("transfer", [1, 2], "arguments", r"\(source: int, target: int, amount: int\): missing.*'amount'"),
            ("transfer", [1, 2, "3"], "arguments", "amount should be int, not str"),
            ("transfers", [], "unknown", "node A has no command 'transfers'; did you mean 'transfer'"),
            ("broken", [], "failed", "failed at A with ZeroDivisionError"),
            ("wrong", [], "failed", "a set cannot be sent"),
        ]
        for name, args, reason, text in wrong:
            with pytest.raises(CommandError, match=text) as caught:
                await client.call(name, args)
            assert caught.value.details["reason"] == reason
        with pytest.raises(UnsupportedError, match="may only read"):
            await client.call("sly")
        for bad in ("text", {1: 2}, [object()], [1 << 63], ["\ud800"]):
            with pytest.raises(UsageError):
                await client.call("echo", bad)  # type: ignore[arg-type]
        assert await client.call("accounts", read="strict") == [[1, 60], [2, 40]]
    assert "ZeroDivisionError" in cluster.nodes[0].log.read_text()


async def test_endless_commands_are_stopped_by_limit_or_deadline(cluster: LocalCluster) -> None:
    """A loop, a statement, a sleep; by the node's limit, or because its client's time is over. The node goes on."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
        await bank(client)
        for name, text in (
            ("spin", "command spin ran longer than 1.5 s"),
            ("endless", "statement ran longer than 0.7 s"),
        ):
            with pytest.raises(StatementTimeoutError, match=text):
                await client.call(name, timeout=40)
        with pytest.raises(StatementTimeoutError, match="stubborn"):
            await client.call("stubborn", timeout=40)
        with pytest.raises(DeadlineError, match="was still running"):
            await client.call("spin", timeout=1)
        assert await client.call("transfer", [1, 2, 1]) == 99

        async def idle() -> bool:
            found = await client.status()
            return not any(found["workers"][name] for name in ("running", "waiting", "stuck"))

        await until("all of them have ended", idle)


async def test_every_client_can_call(cluster: LocalCluster) -> None:
    """The blocking client, HTTP and the shell."""
    await ready(cluster)
    async with open_client(cluster.url(options=PATIENT)) as client:
        await bank(client)
    await trio.to_thread.run_sync(_every_client, cluster)


def _every_client(cluster: LocalCluster) -> None:
    with connect(cluster.url(options=PATIENT)) as db:
        assert db.call("transfer", [1, 2, 30]) == 70
        db.execute("BEGIN")
        with pytest.raises(UnsupportedError, match="transaction of its own"):
            db.call("transfer", [1, 2, 30])
        db.execute("ROLLBACK")
    url = f"http://127.0.0.1:{cluster.nodes[0].http_port}/db/command/"
    assert post(url + "transfer?command=h1", b'{"source": 1, "target": 2, "amount": 5}')["value"] == 65
    again = post(url + "transfer?command=h1", b'{"source": 1, "target": 2, "amount": 5}')
    assert (again["value"], again["command"], len(again["place"])) == (65, "h1", 2)
    special = [{"base64": "AAE="}, {"float": "inf"}, [{"base64": ""}], {"x": None}]
    assert post(url + "echo", json.dumps(special).encode())["value"] == special
    assert post(url + "accounts", b"")["value"] == [[1, 65], [2, 35]]
    for path, body, status, reason in (
        ("nothing", b"[]", 400, "unknown"),
        ("transfer", b"[1]", 400, "arguments"),
        ("transfer", b"3", 400, None),
        ("transfer?timeout=x", b"[]", 400, None),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(url + path, body)
        with caught.value as answer:
            told = json.load(answer)
        assert (answer.code, told["details"].get("reason")) == (status, reason)
    script = ".call transfer [1, 2, 15]\n.call accounts\n.call transfer\n"
    done = program("sql", cluster.url(options=PATIENT), stdin=script)
    assert done.stdout.splitlines() == ["50", "[[1,50],[2,50]]"]
    assert "takes (source: int, target: int, amount: int)" in done.stderr
    assert done.returncode == UsageError.exit_code


def post(url: str, body: bytes) -> Any:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=40) as answer:
        return json.load(answer)


async def test_the_page_works_and_nodes_that_differ_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of docs/commands.md as it stands there; a node without the modules names itself, and those that do."""
    blocks = {block.split("\n", 1)[0]: block for block in blocks_of(PAGE)}
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in ("bank", "words"):
        (folder / f"{name}.py").write_text(blocks[f"# {name}.py"])
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def program(url: str) -> None:
        exec(blocks["import bedrockish"], {"url": url})

    with with_plugins(tmp_path / "cluster", 'bank", "words', names="AB") as cluster:
        await ready(cluster)
        await trio.to_thread.run_sync(program, cluster.url(options=PATIENT))
        async with open_client(cluster.url(options=PATIENT)) as client:
            assert await client.call("richest") == [[1, 70], [2, 30]]
            assert (await client.execute("SELECT initials('Ada Byron')")).value() == "AB"
            found = (await client.status())["plugins"]
            assert found["differ"] == {"C": "C has no bank; C has no words"}
            assert found["missing"] == {"C": ["bill", "richest", "transfer"]}
            assert list(found["modules"]) == ["bank", "words"]
        async with open_client(cluster.url(2, only=True, options=PATIENT)) as client:
            with pytest.raises(CommandError, match=r"node C has no command 'transfer'; A, B has it") as caught:
                await client.call("transfer", [1, 2, 30])
            assert caught.value.details == {"reason": "unknown", "name": "transfer", "node": "C"}
        assert "plugins differ: C has no bank" in cluster.nodes[0].log.read_text()


async def test_functions_and_collations_of_a_plugin_work_at_every_node(cluster: LocalCluster) -> None:
    """They work in statements, expression indexes and UNIQUE columns, at every node, in transactions and workers."""
    await ready(cluster)
    async with open_client(cluster.url(options=PATIENT)) as client:
        await client.execute("CREATE TABLE word(w TEXT COLLATE backwards UNIQUE, CHECK (shout(w) <> 'NO!'))")
        await client.execute("CREATE INDEX loud ON word(shout(w))")
        await client.execute("INSERT INTO word VALUES ('a'), ('c'), ('b')")
        ordered = "SELECT group_concat(w, '') FROM (SELECT w FROM word ORDER BY w)"
        assert (await client.execute(ordered)).value() == "cba"
        async with client.transaction() as tx:
            assert (await tx.execute("SELECT w FROM word WHERE shout(w) = 'B!'")).rows == [("b",)]
            await tx.execute("INSERT INTO word VALUES ('d')")
        with pytest.raises(BedrockishError, match="CHECK"):
            await client.execute("INSERT INTO word VALUES ('no')")
        with pytest.raises(BedrockishError, match="UNIQUE"):
            await client.execute("INSERT INTO word VALUES ('d')")
        long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT max(i) FROM n"
        assert (await client.execute(f"{ordered} WHERE ({long}) > 0")).value() == "dcba"
    await level(cluster)


async def test_command_happens_once_and_runs_again_after_a_conflicting_write(cluster: LocalCluster) -> None:
    """Sent again under its id, to any node, it gives the first answer; after a conflict it reads again and blocks no
    other command.
    """
    await ready(cluster)
    folder = cluster.directory
    started, go = folder / procedures.STARTED.name, folder / procedures.GO.name
    async with (
        open_client(cluster.url(0, only=True, options=PATIENT)) as client,
        open_client(cluster.url(1, only=True, options=PATIENT)) as other,
    ):
        await bank(client)
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await client.call("bill", ["may"], command="bill-may", timeout=40))

        async def begun() -> bool:
            return started.exists()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await until("the command has read", begun)
            other.token = client.token
            await other.execute("UPDATE account SET balance = 1 WHERE id = 2")
            assert await client.call("transfer", [1, 2, 50]) == 50  # at the same node, while the first still waits
            client.token = other.token
            assert (await client.execute("SELECT sum(balance) FROM account")).value() == 101
            assert not answers
            go.touch()
        assert answers == [{"month": "may", "total": 101, "node": "A", "new": True}]
        assert started.read_text().split() == ["100", "101"]
        other.token = client.token
        assert await other.call("bill", ["may"], command="bill-may") == answers[0]
        found = await other.outcome("bill-may")
        assert found is not None
        assert found[0].value() == answers[0]
        again = await other.call("bill", ["may"])
        assert (again["total"], again["new"]) == (101, False)
        assert started.read_text().split() == ["100", "101"]
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    assert rows(cluster.nodes[2], "SELECT * FROM bill") == [("may", 101)]


def test_a_plugin_that_is_none_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line, which names the module and its fault."""
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    (tmp_path / "empty_plugin.py").write_text("x = 1\n")
    (tmp_path / "failing_plugin.py").write_text("def register(connection):\n    connection.nothing()\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (
        ("nowhere_at_all", "nowhere_at_all cannot be imported: ModuleNotFoundError"),
        ("broken_plugin", "broken_plugin cannot be imported: ZeroDivisionError"),
        ("empty_plugin", "empty_plugin has no commands and no function register"),
    ):
        with pytest.raises(ConfigError, match=text):
            Plugins([name])
    command = [sys.executable, "-m", "bedrockish.cli.main", "serve", "--node", "A", "--set", "plugins=failing_plugin"]
    command += ["--database", str(tmp_path / "A.sqlite"), "--listen", "127.0.0.1:0"]
    environment = clean_environment()
    environment["PYTHONPATH"] += f":{tmp_path}"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "failing_plugin: register failed: AttributeError" in done.stderr
    assert "Traceback" not in done.stderr


def blocks_of(page: str) -> list[str]:
    return [part.partition("```")[0] for part in page.split("```python\n")[1:]]

"""A command that is sent twice to one node, and waits there for a background worker, happens once."""

from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish.engine.sqlite.limits import LONG_TEXT
from tests.cluster import functions
from tests.cluster.story import PATIENT, judge_files, level, ready, rows, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

PAY = "INSERT INTO payment DEFAULT VALUES RETURNING id"
LONG = "--" + LONG_TEXT * " "  # a text of this length runs in a worker at once


async def test_command_sent_twice_at_once_is_applied_once(tmp_path: Path) -> None:
    """The second request looks up the command before it waits, and finds nothing. Applied twice, the command would end
    each node.
    """
    limits = {"workers_max": 1, "statement_ms_max": 60_000}
    cluster = LocalCluster(tmp_path / "cluster", settings={"limits": limits})
    cluster.write_files()
    answers: list[tuple[str, Any]] = []
    for node in cluster.nodes:
        node.config.write_text(f'plugins = ["{functions.__name__}"]\n' + node.config.read_text())
    try:
        for node in cluster.nodes:
            node.start()
        await ready(cluster)
        async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
            await client.execute("CREATE TABLE payment(id INTEGER PRIMARY KEY)")

            async def run(label: str, sql: str, **options: Any) -> None:
                answers.append((label, (await client.execute(sql + LONG, timeout=40, **options)).value()))

            async def lined_up(running: int, waiting: int) -> None:
                async def so_far() -> bool:
                    workers = (await client.status())["workers"]
                    return bool((workers["running"], workers["waiting"]) == (running, waiting))

                await until(f"{waiting} wait", so_far)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, "first gate", "SELECT wait_for('one')")
                await lined_up(1, 0)
                nursery.start_soon(lambda: run("first", PAY, command="pay-7"))
                await lined_up(1, 1)
                nursery.start_soon(run, "second gate", "SELECT wait_for('two')")
                await lined_up(1, 2)
                nursery.start_soon(lambda: run("second", PAY, command="pay-7", resend=True))
                await lined_up(1, 3)
                (cluster.directory / "one").touch()

                async def paid() -> bool:
                    return ("first", 1) in answers

                await until("the first sending is committed", paid)
                (cluster.directory / "two").touch()
        assert dict(answers)["second"] == 1
        await level(cluster)
        assert all(node.is_running for node in cluster.nodes)
    finally:
        cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        assert rows(node, "SELECT count(*) FROM payment") == [(1,)]

"""Every key of the configuration reaches the running node from the file, the environment and ``--set``."""

import dataclasses
import inspect
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import daemon, open_client
from bedrockish.config.config import NUMBER_MAX, SECTIONS, Config, build, check_security, keys
from bedrockish.node.runtime import Runtime
from tools.cluster import free_ports

ROOT = Path(__file__).parents[2] / "bedrockish"
FILES = ("tls", "tls_ca", "tls_certificate", "tls_key", "tls_revoked", "insecure")  # tests/cluster/test_security.py
PROCESS = ("level", "json")  # settings of the log, which the program sets up: tests/client/test_logs.py
MINIMAL = {"node": "Q", "cluster": "other", "listen": "127.0.0.1:0"}


def other_value(key: str, default: Any) -> Any:
    """Return a value that is not the default, and that goes together with all the others."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return {"wall_offset_ms": -1_500, "slow_ms": 0, "scrub_rows_per_second": 0}.get(
            key, default + default // 10 + 1
        )
    return {"level": "warning"}.get(key, "x")


OTHERS = {
    one.name: other_value(one.name, one.default)
    for cls in SECTIONS.values()
    for one in dataclasses.fields(cls)
    if one.name in keys() and one.name not in FILES
}
SEEN: dict[str, Callable[[Runtime], object]] = {  # the setting in the part of the node that uses it
    "memory_max": lambda node: node.engine.memory.max_bytes,
    "result_bytes_max": lambda node: node.engine._limits.result_bytes,
    "changes_bytes_max": lambda node: node.engine._limits.changes_bytes,
    "statement_ms_max": lambda node: round(1000 * node.engine._limits.statement_s),
    "loop_ms_max": lambda node: round(1000 * node.engine._limits.budget_s),
    "workers_max": lambda node: node.workers.describe()["places"],
    "idle_transaction_ms": lambda node: round(1000 * node.transactions._times()[0]),
    # of several differences the largest, since the test may stand still between the two clocks
    "wall_offset_ms": lambda node: round(max(node.clock().wall_ms - 1000 * time.time() for _ in range(5)) / 100) * 100,
}


def written(way: str, database: Path) -> Config:
    """Return the configuration in which every key is written in one way."""
    top = {**MINIMAL, "database": str(database)}
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in OTHERS.items()}
    if way == "file":
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        for section in SECTIONS:
            lines += [f"[{section}]"] + [f"{k} = {json.dumps(v)}" for k, v in OTHERS.items() if keys()[k] == section]
        return build(text="\n".join(lines))
    if way == "environment":
        return build(environment={f"BEDROCKISH_{key.upper()}": value for key, value in {**top, **texts}.items()})
    return build(flags={**top, **texts})


@pytest.mark.parametrize("way", ["file", "environment", "--set"])
async def test_every_key_reaches_the_running_node(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Runtime] = []
    init = Runtime.__init__

    def note(self: Runtime, *args: Any) -> None:
        init(self, *args)
        runs.append(self)

    monkeypatch.setattr(Runtime, "__init__", note)
    config = written(way, tmp_path / "q.db")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, config)
            while not (runs and runs[0].output.mesh is not None and runs[0]._nursery is not None):  # noqa: ASYNC110
                await trio.sleep(0.01)
            node = runs[0]
            status = node.status()
            assert (status["node"], status["cluster"], status["database"]) == ("Q", "other", str(tmp_path / "q.db"))
            for key, value in OTHERS.items():
                assert getattr(getattr(node.config, keys()[key]), key) == value, f"{keys()[key]}.{key}"
                if keys()[key] == "timings":
                    assert getattr(node.core.state.settings, key) == value, f"timings.{key}"
                if key in SEEN:
                    assert SEEN[key](node) == value, f"{keys()[key]}.{key}"
            nursery.cancel_scope.cancel()


async def test_node_serves_with_the_greatest_limits(tmp_path: Path) -> None:
    """SQLite's limit on the length of a value must not overflow, or the node's start would end as a bug."""
    limits = {key: str(NUMBER_MAX - 1) for key, section in keys().items() if section == "limits"}
    (port,) = free_ports(1)
    top = {**MINIMAL, "listen": f"127.0.0.1:{port}", "database": str(tmp_path / "q.db")}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve, build(flags={**top, **limits}))
            async with open_client(f"bedrockish://127.0.0.1:{port}") as client:
                await client.execute("CREATE TABLE t(a)")
                await client.execute("INSERT INTO t VALUES (zeroblob(1000000))")
                assert (await client.execute("SELECT length(a) FROM t")).value() == 1_000_000
            nursery.cancel_scope.cancel()


def test_every_key_is_read_by_the_product() -> None:
    """A key that no part of the node reads would have no effect."""
    product = "\n".join(path.read_text() for path in ROOT.rglob("*.py") if path.parent.name != "config")
    security = (ROOT / "config" / "security.py").read_text() + inspect.getsource(check_security)
    unread = [key for key in keys() if not re.search(rf"\.{key}\b", product + security)]
    assert unread == []


def test_every_setting_is_tested_here_or_named_with_its_own_test() -> None:
    top = {key for key, section in keys().items() if not section}
    assert set(keys()) == top | set(OTHERS) | set(FILES)
    assert set(PROCESS) <= set(OTHERS)

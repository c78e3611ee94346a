"""Long schema statements, and long statements that ``explain`` runs, run in a worker."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bedrockish import open_client
from bedrockish.errors import StatementTimeoutError
from tests.cluster.story import PATIENT, ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
INDEX = "CREATE INDEX dear ON t(length(replace(printf('%.*c', 40000 + i, 'x'), 'x', 'yy')))"
ROWS = 80_000


async def test_long_explain_and_schema_statements_block_no_other_request(tmp_path: Path) -> None:
    """Each of these long statements is interrupted in its thread and has no effect; all other work goes on."""
    cluster = LocalCluster(tmp_path / "nodes", ["A"])
    cluster.write_files()
    try:
        cluster.nodes[0].start()
        await ready(cluster)
        async with open_client(cluster.url(0, options=PATIENT)) as client:
            await client.execute("CREATE TABLE t(i INTEGER)")
            await client.execute(f"INSERT INTO t {NUMBERS.format(ROWS)} SELECT i FROM n", timeout=60)
        cluster.stop()
        config = cluster.nodes[0].config
        config.write_text(config.read_text() + "\n[limits]\nstatement_ms_max = 500\nloop_ms_max = 5\n")
        cluster.nodes[0].start()
        await ready(cluster)
        async with open_client(cluster.url(0, options=PATIENT)) as client:
            endless = f"{NUMBERS.format(1 << 60)} SELECT count(*) FROM n"

            async def in_transaction() -> None:
                async with client.transaction(timeout=60) as tx:
                    await tx.execute(INDEX)

            runs: dict[str, Callable[[], Awaitable[object]]] = {
                "explain": lambda: client.explain(endless, timeout=60),
                "explain a write": lambda: client.explain(f"UPDATE t SET i = ({endless})", timeout=60),
                "request": lambda: client.execute(INDEX, timeout=60),
                "transaction": in_transaction,
            }
            for name, run in runs.items():
                before = (await client.status())["counts"].get("worker_runs", 0)
                with pytest.raises(StatementTimeoutError, match=r"longer than 0\.5 s"):
                    await run()
                assert (await client.status())["counts"].get("worker_runs", 0) == before + (name != "transaction"), name
            found = await client.execute(
                "SELECT count(*), (SELECT count(*) FROM sqlite_schema WHERE tbl_name = 't') FROM t"
            )
            assert found.rows == [(ROWS, 1)]
            assert [one["kind"] for one in await client.explain("INSERT INTO t VALUES (7)")] == ["write"]
            assert await client.columns("SELECT i FROM t") == [("i", "INTEGER")]
    finally:
        cluster.stop()


async def test_slow_schema_change_succeeds(tmp_path: Path) -> None:
    """Tried in a worker, since it takes longer than the loop's time; then it comes into force."""
    cluster = LocalCluster(tmp_path / "nodes", ["A"], {"limits": {"loop_ms_max": 1}})
    cluster.write_files()
    try:
        cluster.nodes[0].start()
        await ready(cluster)
        async with open_client(cluster.url(0, options=PATIENT)) as client:
            await client.execute("CREATE TABLE t(i INTEGER)")
            await client.execute(f"INSERT INTO t {NUMBERS.format(60_000)} SELECT i FROM n", timeout=60)
            before = (await client.status())["counts"].get("worker_runs", 0)
            await client.execute("CREATE INDEX one ON t(i)", timeout=60)
            async with client.transaction(timeout=60) as tx:
                await tx.execute("CREATE INDEX other ON t(-i)")
                await tx.execute("ALTER TABLE t ADD COLUMN j DEFAULT 'j'")
            assert (await client.status())["counts"].get("worker_runs", 0) > before
            names = await client.execute("SELECT name FROM sqlite_schema WHERE tbl_name = 't' ORDER BY name")
            assert names.rows == [("one",), ("other",), ("t",)]
            assert (await client.execute("SELECT i, j FROM t WHERE -i = -7")).rows == [(7, "j")]
    finally:
        cluster.stop()

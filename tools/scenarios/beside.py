"""Measures whether what lasts disturbs what is short: the latency of small commits at three nodes, alone and beside
open transactions, long statements and a billing run at one of them. Each phase stands beside *alone*, in the same run.
"""

import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import click
import trio
from rich.console import Console
from rich.table import Table

from bedrockish import open_client
from bedrockish.api.requests import SNAPSHOT
from bedrockish.client.transaction import Transaction
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, DeadlineError
from tools.bench import quantile
from tools.cluster import DemoError, LocalCluster
from tools.scenarios import procedures

ROWS = 10_000
FILL = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
MARGIN_S = 2.0  # a client asks a node for this much less than its own patience


class Committers:
    """Clients that commit small transactions at a steady rate.

    Attributes:
        took: seconds from asking to knowing, by node.
    """

    def __init__(self, clients: list[list[Client]], rate: float) -> None:
        self._clients, self._rate = clients, rate
        self.took: list[list[float]] = []

    async def run(self, seconds: float) -> None:
        """Commit for so long."""
        self.took = [[] for _ in self._clients]
        count = sum(map(len, self._clients))
        async with trio.open_nursery() as nursery:
            number = 0
            for node, clients in enumerate(self._clients):
                for client in clients:
                    nursery.start_soon(self._commit, client, node, number, count, seconds)
                    number += 1

    async def _commit(self, client: Client, node: int, number: int, count: int, seconds: float) -> None:
        began, every = trio.current_time(), count / self._rate
        due = began + every * number / count
        luck = random.Random(number)
        while due < began + seconds:
            await trio.sleep_until(due)
            own = 1 + number + count * luck.randrange(ROWS // count // 2)  # nobody else's, nor an open transaction's
            asked = time.perf_counter()
            await client.execute("UPDATE bench_row SET value = value + 1 WHERE id = ?", [own])
            self.took[node].append(time.perf_counter() - asked)
            due = max(due + every, trio.current_time())


class Opened:
    """Open transactions at one node: each reads again what it has read, and finds the same.

    Attributes:
        looked: how often they did so.
        kept: how many did so to their end.
    """

    def __init__(self, client: Client, count: int) -> None:
        self._client, self._count = client, count
        self.looked = self.kept = 0

    async def run(self, seconds: float) -> None:
        """Keep them open for so long."""
        async with trio.open_nursery() as nursery:
            for number in range(self._count):
                nursery.start_soon(self._one, number, seconds)

    async def _one(self, number: int, seconds: float) -> None:
        until = trio.current_time() + seconds
        tx: Transaction = await self._client.begin(isolation=SNAPSHOT, timeout=60)
        rows = "SELECT sum(value), count(*) FROM bench_row WHERE id <= 100"
        first = (await tx.execute(rows)).one()
        if number % 2:
            own = ROWS - number
            await tx.execute("UPDATE bench_mine SET value = value + 1 WHERE id = ?", [own])
        while trio.current_time() < until:
            await trio.sleep(min(1.0, max(0.0, until - trio.current_time())) * random.random())
            if (await tx.execute(rows)).one() != first:
                raise DemoError(f"open transaction {number} has seen something else than its snapshot")
            self.looked += 1
        await tx.commit()
        self.kept += 1


async def _for_as_long(seconds: float, work: Callable[[float], Awaitable[Any]]) -> None:
    """Do something that lasts so long, or is to be ended then."""
    with suppress(DeadlineError):  # that is wanted
        await work(seconds + MARGIN_S)


async def _measure(cluster: LocalCluster, seconds: float, rate: float, clients: int, open_count: int) -> Table:
    async with AsyncExitStack() as stack:
        links = [
            [await stack.enter_async_context(open_client(cluster.url(node, only=True))) for _ in range(clients)]
            for node in range(3)
        ]
        other = await stack.enter_async_context(open_client(cluster.url(0, only=True)))
        await _fill(other)
        for client in [client for node in links for client in node]:
            client.token = other.token
        work = Committers(links, rate)
        opened = Opened(other, open_count)

        async def ask(sql: str, timeout_s: float) -> None:
            await other.execute(sql, timeout=timeout_s)

        async def bill(timeout_s: float) -> None:
            await other.call("billing", [timeout_s - MARGIN_S], timeout=4 * timeout_s, isolation=SNAPSHOT)

        phases: dict[str, Callable[[float], Awaitable[Any]] | None] = {
            "alone": None,
            f"{open_count} open transactions": lambda wait: opened.run(wait - MARGIN_S),
            "a long query": lambda wait: ask(f"{ENDLESS} SELECT count(*) FROM n, bench_row", wait),
            "a long write": lambda wait: ask(f"UPDATE bench_mine SET value = ({ENDLESS} SELECT max(i) FROM n)", wait),
            "a billing run": bill,
            "alone again": None,
        }
        await work.run(1.0)
        heads = ("commits/s", "A p50 ms", "A p99 ms", "others p50 ms", "others p99 ms", "A p99 ratio", "A WAL MB")
        table = Table("beside", *heads, title=f"{rate:g} commits per second are asked for, by {3 * clients} clients")
        alone = 0.0
        for name, beside in phases.items():
            async with trio.open_nursery() as nursery:
                if beside is not None:
                    nursery.start_soon(_for_as_long, seconds, beside)
                    await trio.sleep(0.2)
                began = time.perf_counter()
                await work.run(seconds)
                took_s = time.perf_counter() - began
                wal_mb = cluster.nodes[0].database.with_name("A.sqlite-wal").stat().st_size / 1e6
            mine, others = sorted(work.took[0]), sorted(work.took[1] + work.took[2])
            count = len(mine) + len(others)
            alone = alone or quantile(mine, 0.99)
            figures = [quantile(one, share) * 1000 for one in (mine, others) for share in (0.5, 0.99)]
            ratio = quantile(mine, 0.99) / alone
            table.add_row(
                name, f"{count / took_s:.0f}", *(f"{one:.1f}" for one in figures), f"{ratio:.2f}", f"{wal_mb:.1f}"
            )
        if opened.kept != open_count:
            raise DemoError(f"of {open_count} open transactions, {opened.kept} saw their snapshot to the end")
        table.caption = (
            f"all {opened.kept} open transactions saw their snapshot each time, {opened.looked} times in all"
        )
    return table


async def _fill(client: Client) -> None:
    for name in ("bench_row", "bench_mine"):
        await client.execute(f"CREATE TABLE {name}(id INTEGER PRIMARY KEY, value INTEGER NOT NULL)")
        await client.execute(f"INSERT INTO {name} {FILL} SELECT i, 0 FROM n", timeout=60)
    await client.execute("CREATE TABLE bench_bill(at REAL, rounds INTEGER)")


async def run(seconds: float, rate: float, clients: int, open_count: int) -> Table:
    """Start three nodes and measure."""
    with tempfile.TemporaryDirectory() as directory:
        cluster = LocalCluster(Path(directory) / "nodes")
        cluster.write_files()
        for node in cluster.nodes:
            node.config.write_text(f'plugins = ["{procedures.__name__}"]\n' + node.config.read_text())
        try:
            for node in cluster.nodes:
                node.start()
            for index in range(3):
                await cluster.wait_ready(index)
            return await _measure(cluster, seconds, rate, clients, open_count)
        finally:
            cluster.stop()


@click.command()
@click.option("--seconds", default=5.0, show_default=True, help="How long each phase is measured.")
@click.option("--rate", default=1000.0, show_default=True, help="Commits per second that are wanted, in all.")
@click.option("--clients", default=8, show_default=True, help="Clients that commit, at each node.")
@click.option("--open", "open_count", default=200, show_default=True, help="Transactions that are open at node A.")
def main(seconds: float, rate: float, clients: int, open_count: int) -> None:
    """Measure small commits alone, and beside what lasts at node A."""
    try:
        Console(width=100).print(trio.run(run, seconds, rate, clients, open_count))
    except (DemoError, BedrockishError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()

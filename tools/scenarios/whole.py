"""When a statement over a whole table gets through while others write its rows, and what these notice of it.

    tools/bench whole [--rows 20000] [--writers 4] [--only update …] [--greedy 20] [--timeout 60]

Three nodes on this machine, and at each so many clients that write random single rows of one table, one after the
other, all the time. A client runs each statement once, in turn, and is told how often it was executed; ``--greedy``
runs the first one again and again for so many seconds, which is the worst that it can do to others. All of that happens
twice: on nodes whose leaders never hold back for others (``reserve_ms = 1``), and on nodes as they come.
"""

import tempfile
from pathlib import Path
from random import Random

import click
import trio

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError
from tools.cluster import LocalCluster

STATEMENTS = {
    "update": "UPDATE account SET balance = balance + 1",
    "report": "INSERT INTO report(total) SELECT sum(balance) FROM account",
    "delete": "DELETE FROM account WHERE note < 'old'",  # none is, and no index tells so
    "read": "SELECT sum(balance) FROM account",  # at the level strict
}
FILL = (
    "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) "
    "INSERT INTO account SELECT i, 0, 'row ' || i FROM k"
)
WRITE = "UPDATE account SET balance = balance + 1 WHERE id = ?"
QUIET_S = 5.0
AFTER_S = 3.0  # who was held back has gone on by then, and is counted


class Writers:
    """The clients that write single rows, and how long each call took."""

    def __init__(self) -> None:
        self._took: list[float] = []
        self._since = trio.current_time()
        self.failures: dict[str, int] = {}

    def begin(self) -> None:
        """Forget what was noted."""
        self._took.clear()
        self._since = trio.current_time()

    async def go_on(self, client: Client, rows: int, luck: Random) -> None:
        """Write one row after the other."""
        while True:
            began = trio.current_time()
            try:
                await client.execute(WRITE, (luck.randint(1, rows),))
                self._took.append(trio.current_time() - began)
            except BedrockishError as error:
                failure = f"{type(error).__name__}: {error}"[:200]
                self.failures[failure] = self.failures.get(failure, 0) + 1

    def tell(self) -> str:
        """Return what they have done since ``begin``."""
        took, rate = sorted(self._took), len(self._took) / (trio.current_time() - self._since)
        if not took:
            return "writers: nothing"
        p50, p99 = (1e3 * took[int(part * (len(took) - 1))] for part in (0.5, 0.99))
        return f"writers: {rate:.0f}/s, p50 {p50:.1f}, p99 {p99:.1f}, longest {1e3 * took[-1]:.0f} ms"


async def run_statement(client: Client, text: str, timeout_s: float) -> str:
    """Run a statement once; return what came of it."""
    began = trio.current_time()
    try:
        read = {"read": "strict"} if text.startswith("SELECT") else {}
        found = await client.execute(text, timeout=timeout_s, **read)  # type: ignore[arg-type]  # a level by its name
        said = f"done in {found.attempts} executions at the last node"
    except BedrockishError as error:
        said = f"{type(error).__name__}: {error}"
    return f"{said}, after {trio.current_time() - began:.2f} s"


async def run(
    cluster: LocalCluster, names: list[str], rows: int, writers: int, greedy_s: float, timeout_s: float
) -> None:
    """Run the statements in turn."""
    for number in range(len(cluster.nodes)):
        await cluster.wait_ready(number)
    async with trio.open_nursery() as nursery, open_client(cluster.url(0)) as own:
        await own.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER, note TEXT)")
        await own.execute("CREATE TABLE report(id INTEGER PRIMARY KEY, total INTEGER)")
        await own.execute(FILL, (rows,), timeout=60)
        work = Writers()
        for number, node in enumerate(cluster.nodes):
            for count in range(writers):
                client = await nursery.start(_client, cluster.url(number))
                nursery.start_soon(work.go_on, client, rows, Random(f"{node.name} {count}"))
        await trio.sleep(1)
        work.begin()
        await trio.sleep(QUIET_S)
        print(f"  nothing else: {work.tell()}", flush=True)
        for name in names:
            work.begin()
            said = await run_statement(own, STATEMENTS[name], timeout_s)
            await trio.sleep(AFTER_S)
            print(f"  {name}: {said}; {work.tell()}", flush=True)
            await trio.sleep(QUIET_S)
        if greedy_s:
            work.begin()
            done = 0
            with trio.move_on_after(greedy_s):
                while True:
                    done += (await run_statement(own, STATEMENTS[names[0]], timeout_s)).startswith("done")
            print(f"  {names[0]} again and again: {done} times; {work.tell()}", flush=True)
        for failure, count in work.failures.items():
            print(f"  {count} x {failure}", flush=True)
        nursery.cancel_scope.cancel()


async def _client(url: str, *, task_status: trio.TaskStatus[Client]) -> None:
    async with open_client(url) as client:
        task_status.started(client)
        await trio.sleep_forever()


@click.command()
@click.option("--rows", default=20_000, show_default=True, help="How many the table has.")
@click.option("--writers", default=4, show_default=True, help="Clients at each node that write single rows.")
@click.option("--only", multiple=True, type=click.Choice([*STATEMENTS]), help="All, if none is named.")
@click.option("--greedy", "greedy_s", default=0.0, help="Seconds for which the first one is run again and again.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds that a statement has.")
@click.option("--reserve", multiple=True, type=int, default=(1, 3_000), show_default=True, help="reserve_ms, in turn.")
def main(
    rows: int, writers: int, only: tuple[str, ...], greedy_s: float, timeout_s: float, reserve: tuple[int, ...]
) -> None:
    """Measure when a statement over a whole busy table gets through."""
    names = [*(only or STATEMENTS)]
    for reserve_ms in reserve:
        print(f"reserve_ms = {reserve_ms}, {rows} rows, {writers} writers at each of three nodes", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            cluster = LocalCluster(Path(temporary) / "nodes", settings={"timings": {"reserve_ms": reserve_ms}})
            with cluster.running():
                trio.run(run, cluster, names, rows, writers, greedy_s, timeout_s)


if __name__ == "__main__":
    main()

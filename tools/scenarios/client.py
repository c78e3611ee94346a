"""What a call costs: microseconds of the processor in the client and in the node, by kind of call and client.

    tools/bench client [--calls 2000]

One node on this machine, one caller after the other. Processor time, unlike the time that passes, hardly depends on
what else the machine is busy with.
"""

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

import bedrockish.dbapi
from bedrockish import connect, open_client
from tools.cluster import LocalCluster, local_cluster

INSERT, SELECT = "INSERT INTO t(x) VALUES (?)", "SELECT x FROM t WHERE id = ?"
STEPS = 20  # statements in one transaction
WARM = 50


class Meter:
    """Prints what calls cost."""

    def __init__(self, cluster: LocalCluster, calls: int) -> None:
        self._node, self._calls = cluster.nodes[0], calls

    def measure(self, what: str, call: Callable[[int], object], each: int = 1) -> None:
        """Make calls, and print what each of them, or of ``each`` parts of them, costs."""
        for number in range(WARM // each + 1):
            call(-number - 1)
        own, node = time.process_time(), self._node.processor_s()
        for number in range(self._calls // each):
            call(number)
        self._print(what, own, node)

    async def measure_async(self, what: str, call: Callable[[int], Awaitable[object]]) -> None:
        """As ``measure``, in a loop."""
        for number in range(WARM):
            await call(-number - 1)
        own, node = time.process_time(), self._node.processor_s()
        for number in range(self._calls):
            await call(number)
        self._print(what, own, node)

    def _print(self, what: str, own: float, node: float) -> None:
        each = 1e6 / self._calls
        mine, nodes = (time.process_time() - own) * each, (self._node.processor_s() - node) * each
        print(f"{what:45} client {mine:6.0f} us, node {nodes:6.0f} us", flush=True)


def measure_blocking(url: str, meter: Meter) -> None:
    """Measure what stands on the blocking client."""
    with connect(url) as client:
        client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
        meter.measure("blocking: ping", lambda _: client.ping())
        meter.measure("blocking: insert", lambda n: client.execute(INSERT, (n,)))
        meter.measure("blocking: select by key", lambda n: client.execute(SELECT, (n,)))

        def transaction(_: int) -> None:
            with client.transaction() as opened:
                for number in range(STEPS):
                    opened.execute(SELECT, (number,))

        meter.measure(f"blocking: select, {STEPS} in a transaction", transaction, STEPS)

        def writing(_: int) -> None:
            with client.transaction() as opened:
                for number in range(STEPS):
                    opened.execute(INSERT, (number,))

        meter.measure(f"blocking: insert, {STEPS} in a transaction", writing, STEPS)
    made = bedrockish.dbapi.connect(url)
    cursor = made.cursor()

    def step(_: int) -> None:
        for number in range(STEPS):
            cursor.execute(SELECT, (number,)).fetchall()
        cursor.execute(INSERT, (1,))
        made.commit()

    meter.measure(f"DB-API: {STEPS} selects, an insert, a commit", step, STEPS)
    made.close()


async def measure_trio(url: str, meter: Meter) -> None:
    """Measure the trio client."""
    async with open_client(url) as client:
        await meter.measure_async("trio: ping", lambda _: client.ping())
        await meter.measure_async("trio: insert", lambda n: client.execute(INSERT, (n,)))
        await meter.measure_async("trio: select by key", lambda n: client.execute(SELECT, (n,)))


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000, help="of each kind")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, local_cluster(Path(temporary) / "nodes", "A") as cluster:
        trio.run(cluster.wait_ready, 0)
        meter = Meter(cluster, given.calls)
        measure_blocking(cluster.url(0), meter)
        trio.run(measure_trio, cluster.url(0), meter)


if __name__ == "__main__":
    main()

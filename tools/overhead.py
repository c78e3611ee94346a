"""What the client's own layers cost beside the node's time: ``python -m tools.overhead``.

The reference is a bare socket with bytes that were made before: that is the node, the kernel, and nothing else. Each
layer above it does the same work, one call at a time; what it takes more is its own. The layers take turns in short
rounds, so that a noisy machine is noisy for all, and the median of a layer's rounds is printed.
"""

import cProfile
import pstats
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
import sqlalchemy
import trio
from rich.console import Console
from rich.table import Table
from sqlalchemy.dialects import registry

import bedrockish.dbapi
from bedrockish import connect, open_client
from bedrockish.api.requests import Request, Statement
from bedrockish.api.wire import Execute, encode_call
from bedrockish_net.connection import Connection, Side
from bedrockish_net.events import Data, Hello
from bedrockish_net.limits import Limits
from tools.cluster import LocalCluster, local_cluster

WORK = {
    "read one row": ("SELECT value FROM cost WHERE id = ?", (7,)),
    "write one row": ("UPDATE cost SET value = value + 1 WHERE id = ?", (7,)),
}
LAYERS = ("bare socket", "trio client", "blocking client", "DB-API", "SQLAlchemy")
BYTES = 1 << 16
Once = Callable[[], object]


class Bare:
    """Calls on a socket."""

    def __init__(self, port: int, sql: str, params: tuple[int, ...]) -> None:
        self._port, self._sql, self._params, self._number = port, sql, params, 0
        self._ready: list[bytes] = []
        self._dial()

    def _dial(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection(Side.DIALLER, Hello("bare", None, "client"), Limits())
        self._socket.sendall(self._connection.send(self._connection.local))
        self._event()

    def prepare(self, count: int) -> None:
        """Make the bytes of so many calls: that is the client's work, and not counted here.

        It connects anew: while the others had their turn, nobody has told the node that this end is alive.
        """
        self.close()
        self._dial()
        for _ in range(count):
            self._number += 1
            command = f"bare-{id(self)}-{self._number}"
            request = Request(command, (Statement(self._sql, list(self._params)),), timeout_s=10.0)
            self._ready.append(self._connection.send_data(encode_call(Execute(self._number, request))))

    def call(self) -> object:
        """Send one and wait for its answer."""
        self._socket.sendall(self._ready.pop())
        return self._event()

    def _event(self) -> object:
        while True:
            event = self._connection.next_event()
            if isinstance(event, Data | Hello):
                return event
            if event is not None:
                continue  # a question whether we live, which does not come in so short a time
            self._connection.receive_data(self._socket.recv(BYTES))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def timed(once: Once, calls: int) -> float:
    """Return microseconds for a call."""
    began = time.perf_counter()
    for _ in range(calls):
        once()
    return (time.perf_counter() - began) / calls * 1e6


async def timed_trio(url: str, sql: str, params: tuple[int, ...], calls: int) -> float:
    """Return microseconds for a call of the trio client."""
    async with open_client(url) as client:
        await client.execute(sql, params)
        began = time.perf_counter()
        for _ in range(calls):
            await client.execute(sql, params)
        return (time.perf_counter() - began) / calls * 1e6


def measure(cluster: LocalCluster, sql: str, params: tuple[int, ...], calls: int, rounds: int) -> dict[str, float]:
    """Return the median time of each layer."""
    url = cluster.url(0, only=True)
    took: dict[str, list[float]] = {layer: [] for layer in LAYERS}
    with ExitStack() as stack:
        bare = Bare(cluster.nodes[0].port, sql, params)
        stack.callback(bare.close)
        blocking = stack.enter_context(connect(url))
        plain = bedrockish.dbapi.connect(url, autocommit=True)
        stack.callback(plain.close)
        engine = sqlalchemy.create_engine(url + "/", isolation_level="AUTOCOMMIT")
        stack.callback(engine.dispose)
        session = stack.enter_context(engine.connect())
        statement = sqlalchemy.text(sql.replace("?", ":id"))
        layers: dict[str, Once] = {
            "bare socket": bare.call,
            "blocking client": lambda: blocking.execute(sql, params),
            "DB-API": lambda: plain.execute(sql, params),
            "SQLAlchemy": lambda: session.execute(statement, {"id": params[0]}),
        }
        for once in list(layers.values())[1:]:
            once()
        for _ in range(rounds):
            bare.prepare(calls)
            for layer, once in layers.items():
                took[layer].append(timed(once, calls))
            took["trio client"].append(trio.run(timed_trio, url, sql, params, calls))
    return {layer: statistics.median(found) for layer, found in took.items()}


def profiled(cluster: LocalCluster, calls: int, lines: int) -> None:
    """Print where the trio client spends its time."""
    profile = cProfile.Profile()
    sql, params = WORK["read one row"]
    with profile:
        trio.run(timed_trio, cluster.url(0, only=True), sql, params, calls)
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(lines)


@click.command()
@click.option("--calls", default=200, show_default=True, help="Calls of each layer in a round.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--profile", "lines", default=0, help="Also print so many lines of a profile of the trio client.")
def main(calls: int, rounds: int, lines: int) -> None:
    """Measure the layers of the client against the node's own time, on three nodes."""
    registry.register("bedrockish", "bedrockish.sqlalchemy.dialect", "BedrockishDialect")
    with local_cluster(Path(tempfile.mkdtemp(prefix="bedrockish-overhead-")) / "nodes") as cluster:
        for index in range(3):
            trio.run(cluster.wait_ready, index)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE cost(id INTEGER PRIMARY KEY, value INTEGER)")
            db.execute("INSERT INTO cost VALUES (7, 0)")
        table = Table("µs for a call", *LAYERS, title="The client beside the node")
        for name, (sql, params) in WORK.items():
            found = measure(cluster, sql, params, calls, rounds)
            base = found["bare socket"]
            table.add_row(name, *(f"{found[layer]:.0f} (×{found[layer] / base:.2f})" for layer in LAYERS))
        Console(width=120).print(table)
        if lines:
            profiled(cluster, calls * rounds, lines)


if __name__ == "__main__":
    main()

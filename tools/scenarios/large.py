"""Large transactions: how long they take on links of a certain speed, and what others at that node notice of them.

    tools/bench large [--mbits 100] [--size 30] [--rows 100000] [--holds] [--work DIRECTORY]

Three nodes on this machine. ``--mbits`` is the speed of each link between two of them, in each direction (a proxy with
pauses; 0: none). Four other clients write single rows at the same node all the time. ``--holds`` tells for how long
each node's loop was held, and where: by its own time, so that it means something on a machine that is busy otherwise.
"""

import argparse
import json
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import trio

from bedrockish import connect, open_client
from bedrockish.errors import BedrockishError
from tools.cluster import LocalCluster, LocalNode, free_ports

OTHERS = 4
PAUSE_S = 0.02
MEASURED_S = 10.0
CHUNK = 1 << 14
LONGEST = 12  # holds that are told


def carry(source: socket.socket, target: socket.socket, rate: float) -> None:
    """Pass bytes on, so many per second at most."""
    free_at = time.monotonic()
    try:
        while data := source.recv(CHUNK):
            if rate:
                free_at = max(free_at, time.monotonic()) + len(data) / rate
                wait = free_at - time.monotonic()
                if wait > 0.002:
                    time.sleep(wait)
            target.sendall(data)
    except OSError:
        pass
    for one in (source, target):
        one.close()


def serve_link(port: int, target: int, rate: float) -> None:
    """Stand between two nodes."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            near, _ = listener.accept()
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # a real link holds little, too
            try:
                far = socket.create_connection(("127.0.0.1", target))
            except OSError:
                near.close()
                continue
            for pair in ((near, far, rate), (far, near, 0.0)):
                threading.Thread(target=carry, args=pair, daemon=True).start()


def serve_links(links: list[tuple[int, int]], rate: float) -> None:
    """Run all links of a cluster, in a process of their own."""
    for port, target in links:
        threading.Thread(target=serve_link, args=(port, target, rate), daemon=True).start()
    threading.Event().wait()


class SlowCluster(LocalCluster):
    """Nodes with links of a certain speed between them."""

    links: dict[tuple[str, str], tuple[int, int]]

    def peer_address(self, node: LocalNode, peer: LocalNode) -> str:
        """Return where the link to a peer begins."""
        return f"127.0.0.1:{self.links[node.name, peer.name][0]}"


MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) INSERT INTO big(x) SELECT ? FROM n"


def write_large(url: str, size: int, rows: int, pipe: "multiprocessing.connection.Connection") -> None:
    """Commit some large rows, or many, and say how long it took, and where it failed."""
    with connect(url) as db:
        value = os.urandom(size // rows)
        pipe.send("ready")
        pipe.recv()
        began = time.monotonic()
        try:
            if rows == 1:
                db.execute("INSERT INTO big(x) VALUES (?)", (value,), timeout=120)
            else:
                db.execute(MANY, (rows, value), timeout=120)
            pipe.send((time.monotonic() - began, "committed"))
        except BedrockishError as error:
            pipe.send((time.monotonic() - began, f"{type(error).__name__}: {error}"))


async def write_small(url: str, times: list[float], until: float) -> None:
    """Write single rows, one after the other, and note how long each takes."""
    async with open_client(url) as client:
        while trio.current_time() < until:
            began = trio.current_time()
            await client.execute("INSERT INTO small(x) VALUES (1)")
            times.append(trio.current_time() - began)
            await trio.sleep(PAUSE_S)


async def measure(cluster: SlowCluster, size: int, rows: int, measured_s: float) -> None:
    """Print one line for a size."""
    url = cluster.url(0, only=True)
    near, far = multiprocessing.Pipe()
    process = multiprocessing.Process(target=write_large, args=(url, size, rows, far))
    process.start()
    await trio.to_thread.run_sync(near.recv)
    for load, seconds in (("without it", measured_s / 2), ("with it", measured_s)):
        times: list[float] = []
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for _ in range(OTHERS):
                nursery.start_soon(write_small, url, times, until)
            if load == "with it":
                near.send("go")
        times.sort()
        p50, p99, worst = (1e3 * times[int(part * (len(times) - 1))] for part in (0.5, 0.99, 1.0))
        print(f"  {len(times)} others {load}: p50 {p50:.1f}, p99 {p99:.1f}, longest {worst:.1f} ms", flush=True)
    took, how = await trio.to_thread.run_sync(near.recv)
    process.join()
    print(f"{size / 1e6:g} MB in {rows} row{'s' * (rows > 1)}: {how} after {took:.2f} s", flush=True)


async def run(cluster: SlowCluster, sizes: list[float], rows: int, measured_s: float) -> None:
    """Measure each size."""
    for number in range(len(cluster.nodes)):
        await cluster.wait_ready(number)
    async with open_client(cluster.url(0)) as client:
        await client.execute("CREATE TABLE big(id INTEGER PRIMARY KEY, x)")
        await client.execute("CREATE TABLE small(id INTEGER PRIMARY KEY, x)")
    for size in sizes:
        await measure(cluster, int(size * 1e6), rows, measured_s)


def tell_holds(files: list[Path]) -> None:
    """Print what ``tools.loop_holds`` has found at each node, the longest first."""
    for path in files:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found.sort(key=lambda one: -max(one["busy_ms"], one["wall_ms"]))
        print(f"{path.stem}: {len(found)} steps of the loop that took longer than 20 ms")
        for one in found[:LONGEST]:
            where = "; ".join(f"{count} x {place}" for place, count in one["where"])
            print(f"  {one['busy_ms']:.0f} ms, by the wall {one['wall_ms']:.0f}, {one['task']}: {where}")


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbits", type=float, default=0.0, help="speed of each link, in Mbit/s; 0: unbounded")
    parser.add_argument("--size", type=float, nargs="*", default=[2.0, 8.0, 30.0], help="megabytes (several may be)")
    parser.add_argument("--rows", type=int, default=1, help="rows that have these bytes together")
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="for how long others are measured")
    parser.add_argument("--holds", action="store_true", help="tell where each node's loop was held")
    parser.add_argument("--work", type=Path, help="directory for the nodes' files; by default a temporary one")
    given = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        cluster = SlowCluster(given.work or Path(temporary))
        pairs = [(one, two) for one in cluster.nodes for two in cluster.nodes if one is not two]
        ports = free_ports(len(pairs))
        cluster.links = {(one.name, two.name): (port, two.port) for (one, two), port in zip(pairs, ports, strict=True)}
        links = multiprocessing.Process(target=serve_links, args=([*cluster.links.values()], given.mbits * 125_000))
        links.start()
        cluster.write_files()
        try:
            holds = [cluster.directory / f"{node.name}.holds" for node in cluster.nodes]
            for node, path in zip(cluster.nodes, holds, strict=True):
                if given.holds:
                    node.program = ("-m", "tools.loop_holds", str(path))
                node.start()
            print(f"links of {given.mbits:g} Mbit/s" if given.mbits else "links of loopback", flush=True)
            trio.run(run, cluster, given.size, given.rows, given.seconds)
        finally:
            cluster.stop()
            links.kill()
        if given.holds:
            tell_holds(holds)


if __name__ == "__main__":
    from tools.scenarios.large import main as begin  # the processes that it starts look for their work in that module

    begin()

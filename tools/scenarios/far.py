"""Measures the cost of distance: how long a commit takes on links that delay their data, and the delay alone.

    tools/bench far                            # 10 ms from node to node and back
    tools/bench far --round-trips 1,40,40      # A to B near, C far from both: A-B, A-C, B-C in ms
    tools/bench far --stop 3                   # and with node C stopped for three seconds

Three nodes on this machine, whose links go through a process that delays what it passes on. A client writes single rows
at node A, one after the other; with ``--stop`` there are 16, at A and B, and C stands still for a while. How long a
byte takes from A to B and back, without a node, is printed first.
"""

import argparse
import heapq
import multiprocessing
import os
import select
import signal
import socket
import tempfile
import time
from itertools import combinations, count
from pathlib import Path
from threading import Thread

import trio

from bedrockish import open_client
from tools.cluster import LocalCluster, LocalNode, free_ports

CLIENTS = 16  # with --stop
CHUNK = 1 << 16
ECHOES = 50


def serve_delays(links: list[tuple[int, int, float]]) -> None:
    """Pass on what comes to each port to another one, a while later, in both directions; until the process is ended.

    Args:
        links: where it listens, where it passes on to, and how many seconds it takes one way.
    """
    # Ctrl-C reaches this process, too, which has nothing to put in order: whoever started it ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    number = count()
    doors: dict[int, tuple[socket.socket, int, float]] = {}
    ways: dict[int, tuple[socket.socket, socket.socket, float]] = {}  # from whom, to whom, how long
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    for port, target, delay_s in links:
        door = socket.create_server(("127.0.0.1", port))
        doors[door.fileno()] = door, target, delay_s
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        # Not ``poll``, which waits for whole milliseconds.
        for file in select.select([*doors, *ways], (), (), wait_s)[0]:
            if file in doors:
                door, target, delay_s = doors[file]
                near, _ = door.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", target))
                except OSError:
                    near.close()
                    continue
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    ways[one.fileno()] = one, other, delay_s
                continue
            source, sink, delay_s = ways[file]
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            heapq.heappush(waiting, (time.monotonic() + delay_s, next(number), sink, data))
            if not data:
                del ways[file]
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, sink, data = heapq.heappop(waiting)
            try:
                if data:
                    sink.sendall(data)
                else:
                    sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the other direction tells its end


class FarCluster(LocalCluster):
    """Nodes with links that take a while."""

    links: dict[tuple[str, str], int]

    def peer_address(self, node: LocalNode, peer: LocalNode) -> str:
        """Return where the link to a peer begins."""
        return f"127.0.0.1:{self.links[node.name, peer.name]}"


def far_links(cluster: LocalCluster, round_trips_ms: list[float]) -> list[tuple[int, int, float]]:
    """Return a link for each pair of nodes in each direction, and name their ports."""
    names = [node.name for node in cluster.nodes]
    one_way_s = {frozenset(pair): ms / 2000 for pair, ms in zip(combinations(names, 2), round_trips_ms, strict=True)}
    pairs = [(node, peer) for node in cluster.nodes for peer in cluster.nodes if node is not peer]
    ports = dict(zip(((node.name, peer.name) for node, peer in pairs), free_ports(len(pairs)), strict=True))
    cluster.links = ports  # type: ignore[attr-defined]
    return [
        (ports[node.name, peer.name], peer.port, one_way_s[frozenset((node.name, peer.name))]) for node, peer in pairs
    ]


def wait_for_door(port: int) -> None:
    """Wait until a port accepts connections.

    Raises: ConnectionRefusedError: the port still refuses connections after ten seconds.
    """
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def round_trips_alone(through: int, echo: socket.socket) -> list[float]:
    """Return how long a byte took through a link to an echo and back, each time, in seconds."""

    def answer() -> None:
        while True:
            heard, _ = echo.accept()
            with heard:
                heard.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := heard.recv(CHUNK):
                    heard.sendall(data)

    Thread(target=answer, daemon=True).start()
    times = []
    with socket.create_connection(("127.0.0.1", through), timeout=10) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ECHOES):
            began = time.monotonic()
            link.sendall(b"x")
            link.recv(1)
            times.append(time.monotonic() - began)
    return times


async def write(url: str, times: list[tuple[float, float]], until: float) -> None:
    """Write single rows, one after the other; note for each when it began and how long it took, in seconds."""
    async with open_client(url) as client:
        while trio.current_time() < until:
            began = trio.current_time()
            await client.execute("INSERT INTO small(x) VALUES (1)")
            times.append((began, trio.current_time() - began))


def tell(what: str, found: list[float], of_what: str = "commits") -> None:
    """Print one line."""
    found.sort()
    if not found:
        print(f"{what}: nothing was written")
        return
    p50, p99, worst = (1e3 * found[int(part * (len(found) - 1))] for part in (0.5, 0.99, 1.0))
    print(f"{what}: {len(found)} {of_what}, p50 {p50:.1f}, p99 {p99:.1f}, longest {worst:.1f} ms", flush=True)


async def measure(cluster: LocalCluster, seconds: float, stop_s: float) -> None:
    """Write, and tell."""
    for index in range(3):
        await cluster.wait_ready(index)
    only = "/?discover=no"
    async with open_client(cluster.url(0, only=True, options=only)) as client:
        await client.execute("CREATE TABLE small(id INTEGER PRIMARY KEY, x)")
    await trio.sleep(1)
    times: list[tuple[float, float]] = []
    until = trio.current_time() + seconds
    if not stop_s:
        await write(cluster.url(0, only=True, options=only), times, until)
        tell("one client at A", [took for _, took in times])
        return
    stopped = (until - seconds + 2, until - seconds + 2 + stop_s)
    process = cluster.nodes[2].process
    assert process is not None
    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(write, cluster.url(number % 2, only=True, options=only), times, stopped[1] + 2)
        await trio.sleep_until(stopped[0])
        process.send_signal(signal.SIGSTOP)
        await trio.sleep_until(stopped[1])
        process.send_signal(signal.SIGCONT)
    tell("before", [took for began, took in times if began < stopped[0]])
    tell("C stopped", [took for began, took in times if stopped[0] <= began < stopped[1]])
    tell("afterwards", [took for began, took in times if began >= stopped[1]])


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trips", default="10", help="in ms: one for all links, or those of A-B, A-C and B-C")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long is measured")
    parser.add_argument("--stop", type=float, default=0.0, metavar="SECONDS", help="for how long C stands still")
    options = parser.parse_args()
    found = [float(one) for one in options.round_trips.split(",")]
    if len(found) not in (1, 3) or min(found) < 0:
        parser.error("--round-trips: one number, or three, of milliseconds")
    with tempfile.TemporaryDirectory() as folder:
        cluster = FarCluster(Path(folder) / "nodes")
        links = far_links(cluster, found if len(found) == 3 else 3 * found)
        echo, (through,) = socket.create_server(("127.0.0.1", 0)), free_ports(1)
        links.append((through, echo.getsockname()[1], found[0] / 2000))
        carrier = multiprocessing.Process(target=serve_delays, args=(links,), daemon=True)
        carrier.start()
        wait_for_door(through)
        cluster.write_files()
        try:
            for node in cluster.nodes:
                node.start()
            print(f"round trips of {options.round_trips} ms; {os.getloadavg()[0]:.1f} is the load of the machine")
            tell("a byte from A to B and back", round_trips_alone(through, echo), "times")
            trio.run(measure, cluster, options.seconds, options.stop)
        finally:
            cluster.stop()
            carrier.kill()
            carrier.join()


if __name__ == "__main__":
    main()

"""Clients that send and never read: their memory at a node is bounded, they are disconnected, and others are served."""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import cbor2
import pytest
import trio

from bedrockish import open_client
from tests.cluster.story import PATIENT, ready, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

MEMORY_MAX = 300 << 20
BESIDE = 300 << 20  # the node itself, and buffers of large results between SQLite and a link
CLIENTS, CALLS = 20, 3
MESSAGE = 60_000_000  # bytes
LARGE = "SELECT hex(zeroblob(15000000))"
HELLO = {"protocol": "bedrockish", "version": 1, "role": "client", "node": "mute", "cluster": None, "to": None}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "mute", ("A",), {"limits": {"memory_max": MEMORY_MAX}})
    cluster.add_http()
    cluster.write_files()
    cluster.nodes[0].start()
    try:
        yield cluster
    finally:
        cluster.stop()


def resident(pid: int, name: str) -> int:
    """Return the memory of a process in bytes: ``VmRSS`` now, ``VmHWM`` its maximum so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def frame(kind: int, what: object) -> bytes:
    body = cbor2.dumps(what)
    return struct.pack(">IB", len(body), kind) + body


def ask_on_a_link(port: int, client: int) -> socket.socket:
    end = socket.create_connection(("127.0.0.1", port), timeout=60)
    end.sendall(frame(1, {**HELLO, "info": {}}))
    end.recv(4096)
    for number in range(CALLS):
        call = {"id": number + 1, "op": "execute", "command": f"mute{client}.{number}", "isolation": "serializable"}
        statements = [[f"{LARGE} /* {client}.{number} */", None]]
        end.sendall(frame(2, {**call, "statements": statements, "read": "stale", "token": None, "timeout": 30.0}))
    return end


def ask_over_http(port: int, client: int) -> socket.socket:
    """Ask in turn by a query, by a libSQL pipeline, and by many statements of one call."""
    if client % 3 == 1:
        execute = {"type": "execute", "stmt": {"sql": LARGE, "want_rows": True}}
        path, asked = "/v3/pipeline", json.dumps({"baton": None, "requests": [execute] * CALLS})
    else:
        path, asked = ("/db/query", json.dumps([LARGE])) if client % 3 else ("/db/execute", json.dumps([LARGE] * CALLS))
    end = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(asked)}\r\n\r\n"
    end.sendall((head + asked).encode())
    return end


def send_most(port: int, client: int, *, is_whole: bool) -> socket.socket:
    """Send a call of 60 MB without its last byte, or with a byte of the next; the node cannot decode either."""
    end = socket.create_connection(("127.0.0.1", port), timeout=60)
    end.sendall(frame(1, {**HELLO, "node": f"mute{client}", "info": {}}))
    end.recv(4096)
    sent = struct.pack(">IB", MESSAGE, 2) + bytes(MESSAGE)
    with suppress(OSError):  # the node may close the connection
        end.sendall(sent + b"\0" if is_whole else sent[:-1])
    return end


@pytest.mark.parametrize("is_whole", [False, True])
async def test_incomplete_messages_of_all_clients_have_bounded_memory(cluster: LocalCluster, is_whole: bool) -> None:
    """Each may send 64 MiB; the memory for all of them is bounded, and counted."""
    node = cluster.nodes[0]
    await ready(cluster)
    assert node.process is not None
    ends: list[socket.socket] = []
    waits: list[float] = []
    async with open_client(cluster.url(0, options=PATIENT)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        await client.execute("INSERT INTO t VALUES (1, 0)")

        async def send(number: int) -> None:
            ends.append(await trio.to_thread.run_sync(partial(send_most, node.port, number, is_whole=is_whole)))

        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(send, number)
            while len(ends) < CLIENTS:
                began = trio.current_time()
                await client.execute("UPDATE t SET n = n + 1 WHERE id = 1")
                waits.append(trio.current_time() - began)
                await trio.sleep(0.02)
        told = (await client.status())["memory"]
        assert told["taken_bytes"] < MEMORY_MAX + BESIDE
        assert is_whole or told["taken_bytes"] > MESSAGE, "it is counted"
        assert (await client.execute("SELECT n FROM t")).value() == len(waits)
        for end in ends:
            end.close()

        async def is_free() -> bool:
            return bool((await client.status())["memory"]["taken_bytes"] < 20 << 20)

        await until("all is given back", is_free)
    assert resident(node.process.pid, "VmHWM") < MEMORY_MAX + BESIDE


@pytest.mark.parametrize("interface", ["link", "http"])
async def test_clients_that_never_read_have_bounded_memory(cluster: LocalCluster, interface: str) -> None:
    node = cluster.nodes[0]
    await ready(cluster)
    assert node.process is not None
    pid = node.process.pid
    before = resident(pid, "VmRSS")
    ends: list[socket.socket] = []
    served = 0
    async with open_client(cluster.url(0, options=PATIENT)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        await client.execute("INSERT INTO t VALUES (1, 0)")
        for number in range(CLIENTS):
            if interface == "link":
                ends.append(await trio.to_thread.run_sync(ask_on_a_link, node.port, number))
            else:
                assert node.http_port is not None
                ends.append(await trio.to_thread.run_sync(ask_over_http, node.http_port, number))

        async def pressed() -> bool:
            nonlocal served
            await client.execute("UPDATE t SET n = n + 1 WHERE id = 1")
            served += 1
            return bool((await client.status())["memory"]["recently_refused"])

        await until("the node has refused somebody", pressed)
        for _ in range(30):
            await client.execute("UPDATE t SET n = n + 1 WHERE id = 1")
            served += 1
            await trio.sleep(0.05)
        assert (await client.execute("SELECT n FROM t")).value() == served
        for end in ends:
            end.close()

        async def is_free() -> bool:
            taken = (await client.status())["memory"]["taken_bytes"]
            return bool(taken < 20 << 20 and resident(pid, "VmRSS") < before + (80 << 20))

        await until("all is given back", is_free)
    assert resident(pid, "VmHWM") < MEMORY_MAX + BESIDE

"""Readers that never read, or that request a million rows: the node's memory for them is bounded and released."""

import json
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bedrockish.http.connections import LOOK_S
from tests.http.conftest import Asker, node_with_limits

pytestmark = pytest.mark.cluster

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, hex(zeroblob(500)) FROM n"
LARGE = "SELECT hex(zeroblob(15000000))"  # far more than a connection buffers
BOUND_S = 30.0


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Asker]:
    """Yield a node that waits one second for a slow reader."""
    with node_with_limits(tmp_path / "strict", idle_stream_ms=1000) as asker:
        yield asker


def ask_and_do_not_read(node: Asker, path: str, sql: str) -> socket.socket:
    body = json.dumps([sql]).encode()
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(BOUND_S)
    reader.connect(("127.0.0.1", node.port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader.sendall(head.encode() + body)
    return reader


@pytest.mark.parametrize(("path", "sql"), [("/db/stream", ENDLESS), ("/db/query", LARGE)])
def test_connection_of_a_reader_that_stops_is_closed(strict: Asker, path: str, sql: str) -> None:
    """The node closes the connection and drops everything kept for it, not only the stream."""
    with ask_and_do_not_read(strict, path, sql) as reader:
        watch = select.poll()
        watch.register(reader, select.POLLHUP)  # shows the end without reading up to it
        assert watch.poll(1000 * BOUND_S), "the node still has the connection"
    wait_until(lambda: strict("/status").json["open_streams"] == 0)


def test_stuck_reader_does_not_delay_shutdown(strict: Asker) -> None:
    with ask_and_do_not_read(strict, "/db/query", LARGE) as reader:
        assert reader.recv(100).startswith(b"HTTP/1.1 200")
        process = strict.cluster.nodes[0].process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND_S) == 0


def test_transaction_that_a_reader_of_the_feed_leaves_unread_counts_as_taken_memory(tmp_path: Path) -> None:
    """The transaction is larger than a result may be, so a stream reads it, and its bytes must count."""
    size = 12 << 20

    with node_with_limits(tmp_path / "small", result_bytes_max=1 << 20) as node:

        def taken() -> int:
            return int(node("/status").json["memory"]["taken_bytes"])

        node.sql("CREATE TABLE t(x)")
        node.sql(f"INSERT INTO t VALUES (zeroblob({size}))")
        before = taken()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.settimeout(BOUND_S)
            reader.connect(("127.0.0.1", node.port))
            reader.sendall(b"GET /changes?follow=true&table=t HTTP/1.1\r\nHost: x\r\n\r\n")
            assert reader.recv(100).startswith(b"HTTP/1.1 200"), "the transaction was read before that"
            wait_until(lambda: taken() > before + 2 * size)  # its bytes, and a line with four digits for three of them
        wait_until(lambda: taken() < before + size // 4)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Asker]:
    with node_with_limits(tmp_path / "node") as asker:
        yield asker


def long_read(path: str) -> dict[str, object] | list[str]:
    """Return a body with a read that takes minutes; at libSQL's path, in an open transaction."""
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    if path.startswith("/db"):
        return [sql]
    return {
        "requests": [{"type": "execute", "stmt": {"sql": text}} for text in ("BEGIN", "INSERT INTO t VALUES (1)", sql)]
    }


@pytest.mark.parametrize("path", ["/db/query?timeout=60", "/db/execute?timeout=60", "/v2/pipeline"])
def test_read_whose_caller_has_gone_ends_with_its_transaction(node: Asker, path: str) -> None:
    """Otherwise the read would run until its timeout, and its transaction stay open for ten more seconds."""

    def work() -> tuple[int, int]:
        told = node("/status").json
        return told["workers"]["running"], told["open_transactions"]

    node.sql("CREATE TABLE t(x)")
    body = json.dumps(long_read(path)).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    is_open = int(path == "/v2/pipeline")
    with socket.create_connection(("127.0.0.1", node.port), timeout=BOUND_S) as caller:
        caller.sendall(head.encode() + body)
        wait_until(lambda: is_open == work()[1] and (is_open or work()[0]))
        time.sleep(2 * LOOK_S)
        assert work()[1] == is_open, "the caller is still there"
    wait_until(lambda: work() == (0, 0), 25.0)  # the read itself would take longer
    assert node.sql("SELECT count(*) FROM t", to="query").json["results"][0]["rows"] == [[0]]


def wait_until(test: Callable[[], object], within_s: float = BOUND_S) -> None:
    until = time.monotonic() + within_s
    while not test():
        assert time.monotonic() < until
        time.sleep(0.05)

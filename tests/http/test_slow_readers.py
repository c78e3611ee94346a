"""Readers that never read, or that request a million rows: the node's memory for them is bounded and released."""

import json
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    assert strict("/status").json["open_streams"] == 0


def test_stuck_reader_does_not_delay_shutdown(strict: Asker) -> None:
    with ask_and_do_not_read(strict, "/db/query", LARGE) as reader:
        assert reader.recv(100).startswith(b"HTTP/1.1 200")
        process = strict.cluster.nodes[0].process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0

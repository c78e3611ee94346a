"""Connections of HTTP, with requests written by hand: valid ones, and those that a node refuses."""

import json
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
import trio

from bedrockish.api.url import Address
from bedrockish.errors import ConfigError
from bedrockish.http import connections
from bedrockish.http.messages import HttpReply, HttpRequest, Write
from bedrockish.http.parsing import HEAD_BYTES_MAX, HEADERS_MAX, PIPELINED_MAX, Parser
from bedrockish.http.serving import listen
from tests.http.conftest import Asker
from tests.net.links import Names

cluster_test = pytest.mark.cluster

BODY = b'["SELECT 7"]'
ASK = (
    b"POST /db/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n" + BODY
)
ALIVE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def no_more() -> None:
    raise AssertionError("nothing more comes")


def parsed(*pieces: bytes) -> Parser:
    parser = Parser("127.0.0.1", no_more)
    for piece in pieces:
        parser.feed(piece)
    return parser


async def body_of(request: HttpRequest) -> bytes:
    return await request.piece()


# --- the parser -------------------------------------------------------------------------------------------------------


async def test_http_listens_on_an_address_of_its_name_that_the_machine_has() -> None:
    trio.socket.set_custom_hostname_resolver(Names("192.0.2.1", "127.0.0.1"))
    with await listen(Address("localhost", 0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    trio.socket.set_custom_hostname_resolver(Names("192.0.2.1"))
    with pytest.raises(ConfigError, match="http: localhost:0 cannot be used"):
        await listen(Address("localhost", 0))


async def test_request_that_arrives_byte_by_byte_is_parsed_as_one() -> None:
    parser = parsed(*(ASK[place : place + 1] for place in range(len(ASK))))
    (request,) = parser.requests
    assert (request.method, request.path, request.is_whole) == ("POST", "/db/query", True)
    assert await body_of(request) == BODY


async def test_request_that_offers_an_upgrade_to_http_2_is_read_whole() -> None:
    """Java's client offers HTTP/2 in its first request, which is a complete request of HTTP/1.1."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    head = b"POST /a HTTP/1.1\r\nHost: x\r\n" + offer
    for lengths, body in (
        (b"Content-Length: 12\r\n", BODY),
        (b"Transfer-Encoding: chunked\r\n", b"c\r\n%b\r\n0\r\n\r\n" % BODY),
    ):
        whole = head + lengths + b"\r\n" + body + ALIVE
        for at in (len(whole), len(head) + 5, len(whole) - len(ALIVE) - 8):
            parser = parsed(whole[:at], whole[at:])
            first, second = parser.requests
            assert (first.path, first.is_whole, await body_of(first)) == ("/a", True, BODY)
            assert (second.path, second.is_whole, parser.fault) == ("/livez", True, None)


def test_http_2_preface_is_refused_with_the_reason() -> None:
    fault = parsed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0").fault
    assert fault is not None
    assert fault.text == "the request is not valid HTTP/1.1: it is HTTP/2, which this node does not speak"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nabcd", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * HEADERS_MAX + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * HEAD_BYTES_MAX, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 2 * HEAD_BYTES_MAX, 431),
        (ALIVE * (PIPELINED_MAX + 1), 400),
    ],
    ids=lambda one: one[:40].decode() if isinstance(one, bytes) else str(one),
)
def test_requests_that_two_servers_may_understand_differently_or_that_are_large_are_refused(
    sent: bytes, status: int
) -> None:
    pieces = [sent[place : place + 1000] for place in range(0, len(sent), 1000)]
    fault = parsed(*pieces).fault
    assert fault is not None
    assert fault.status == status


def test_large_head_is_refused_before_it_is_buffered() -> None:
    parser = parsed(b"GET / HTTP/1.1\r\nHost: a\r\n")
    for number in range(HEAD_BYTES_MAX):
        parser.feed(b"X%d: " % number)
        parser.feed(b"1\r\n")
        if parser.fault is not None:
            break
    assert parser.fault is not None
    assert number <= HEADERS_MAX


def test_malformed_url_is_named_as_the_reason() -> None:
    fault = parsed(b"GET http:// HTTP/1.1\r\nHost: a\r\n\r\n").fault
    assert fault is not None
    assert (fault.status, fault.text) == (400, "the URL of the request is malformed")


def test_values_of_a_repeated_header_are_joined() -> None:
    (request,) = parsed(b"GET / HTTP/1.1\r\nHost: a\r\nAccept: b\r\naccept: c\r\n\r\n").requests
    assert request.headers["accept"] == "b, c"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a%20b?c=%20", "/a b", b"c=%20"),
        (b"http://elsewhere.example/a?b=1", "/a", b"b=1"),
        (b"http://elsewhere.example", "/", b""),
        (b"*", "*", b""),
    ],
)
def test_request_target_may_be_a_path_or_an_absolute_url(target: bytes, path: str, query: bytes) -> None:
    (request,) = parsed(b"OPTIONS %b HTTP/1.1\r\nHost: a\r\n\r\n" % target).requests
    assert (request.path, request.query) == (path, query)


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", ALIVE[:-2], ASK[:-1]], ids=["nothing", "head", "body"])
async def test_caller_that_does_not_send_the_rest_is_cut_off(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.2)
    monkeypatch.setattr(connections, "LOOK_S", 0.05)

    async def serve(request: HttpRequest, write: Write) -> None:
        while await request.piece():
            pass
        await write(HttpReply(b"whole"))

    listener = socket.create_server(("127.0.0.1", 0))
    open_now: set[connections.HttpConnection] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connections.serve_connections, serve, listener, None, 60.0, open_now)
        async with await trio.open_tcp_stream(*listener.getsockname()) as caller:
            await caller.send_all(sent)
            with trio.fail_after(60), suppress(trio.BrokenResourceError):
                while data := await caller.receive_some():
                    assert b"whole" not in data
        nursery.cancel_scope.cancel()


async def test_body_that_comes_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte arrives in time, but the whole body would take hours."""
    monkeypatch.setattr(connections, "IDLE_S", 0.4)
    monkeypatch.setattr(connections, "LOOK_S", 0.05)

    async def serve(request: HttpRequest, write: Write) -> None:
        while await request.piece():
            pass
        await write(HttpReply(b"whole"))

    listener = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connections.serve_connections, serve, listener, None, 60.0, set())
        assert b"whole" not in await send_slowly(listener, 1)
        found = b""
        for _ in range(5):  # a busy machine may send a large piece late, too
            found = found or await send_slowly(listener, 8 << 10)
        assert b"whole" in found
        nursery.cancel_scope.cancel()


async def send_slowly(listener: socket.socket, size: int) -> bytes:
    """Send a body in twenty pieces of a size within a second; return the answer, if any comes."""
    async with await trio.open_tcp_stream(*listener.getsockname()) as caller:
        with trio.fail_after(60), suppress(trio.BrokenResourceError):
            await caller.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (20 * size))
            for _ in range(20):
                await trio.sleep(0.05)
                await caller.send_all(bytes(size))
            return bytes(await caller.receive_some())
    return b""


async def test_unread_body_is_not_kept_during_a_streamed_reply() -> None:
    """A client may send gigabytes while it receives an answer."""
    asked: list[HttpRequest] = []
    seen, goes_on = trio.Event(), trio.Event()

    async def lines() -> AsyncGenerator[bytes]:
        yield b"first"
        seen.set()
        await goes_on.wait()
        yield b"last"

    async def serve(request: HttpRequest, write: Write) -> None:
        asked.append(request)
        await write(HttpReply(lines()))

    listener = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connections.serve_connections, serve, listener, None, 60.0, set())
        async with await trio.open_tcp_stream(*listener.getsockname()) as caller:
            await caller.send_all(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000000\r\n\r\n")
            await seen.wait()
            with trio.move_on_after(0.5):  # it is taken only until the kernel's buffers are full
                while True:
                    await caller.send_all(bytes(1 << 20))
            goes_on.set()
            assert len(asked[0]._came) <= connections.READ_BYTES
        nursery.cancel_scope.cancel()


# --- a node -----------------------------------------------------------------------------------------------------------


def talk(node: Asker, sent: bytes, until: int = 1, seconds: float = 5.0) -> bytes:
    """Send bytes; return the replies when there are so many of them, or the connection has ended."""
    with socket.create_connection(("127.0.0.1", node.port), seconds) as link:
        link.sendall(sent)
        found = b""
        with suppress(TimeoutError):
            while found.count(b"HTTP/1.1 ") < until and (piece := link.recv(65536)):
                found += piece
    return found


@cluster_test
def test_one_connection_serves_more_than_a_thousand_requests(node: Asker) -> None:
    with socket.create_connection(("127.0.0.1", node.port), 10) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(1_100):
            link.sendall(ALIVE)
            assert link.recv(65536).startswith(b"HTTP/1.1 200")


@cluster_test
def test_pipelined_requests_are_answered_in_their_order(node: Asker) -> None:
    found = talk(node, ALIVE + ASK + ALIVE, until=3)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200"] * 3
    assert found.index(b"alive") < found.index(b"[[7]]") < found.rindex(b"alive")


@cluster_test
def test_expect_100_continue_is_answered(node: Asker) -> None:
    head, _, body = ASK.partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", node.port), 5) as link:
        link.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert link.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(body)
        assert link.recv(65536).startswith(b"HTTP/1.1 200")


@cluster_test
def test_reply_before_the_end_of_a_body_ends_the_connection(node: Asker) -> None:
    """The rest of a refused body is not taken for the next request."""
    head = b"POST /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000000\r\n\r\n"
    found = talk(node, head + ALIVE, until=2, seconds=3)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"404"]
    assert b"connection: close" in found


@cluster_test
def test_caller_of_http_1_0_is_told_whether_the_connection_stays_open(node: Asker) -> None:
    old = b"GET /livez HTTP/1.0\r\nConnection: %b\r\n\r\n"
    found = talk(node, old % b"keep-alive" + old % b"close", until=2)
    kept, closed = found.lower().split(b"http/1.1 200")[1:]
    assert (kept.count(b"connection: "), kept.count(b"connection: keep-alive")) == (1, 1)
    assert (closed.count(b"connection: "), closed.count(b"connection: close")) == (1, 1)


@cluster_test
def test_malformed_request_is_refused_with_the_reason(node: Asker) -> None:
    found = talk(node, ALIVE + b"GET / HTTP/1.1\r\n\r\n" + ALIVE, until=3, seconds=3)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"400"]
    last = json.loads(found.rpartition(b"\r\n\r\n")[2])
    assert last == {"code": "usage", "message": "the request has no Host header", "details": {}}
    assert b"x-content-type-options: nosniff" in found


@cluster_test
def test_invalid_chunk_ends_the_request(node: Asker) -> None:
    head = b"POST /db/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    found = talk(node, head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[\r\n" + ALIVE, until=2, seconds=3)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"400"]

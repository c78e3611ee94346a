"""A node's memory for incomplete and unread messages of a WebSocket."""

import contextlib
import json
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import wsproto.events
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection as Frames
from wsproto.extensions import PerMessageDeflate

from bedrockish.engine.sqlite.limits import Memory
from bedrockish.http.messages import CallerGoneError, Request
from bedrockish.http.websocket import FIRST_BYTES, WebSocket
from tests.http.conftest import Asker
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

MEGABYTE = "x" * (1 << 20)
OPEN = {"type": "request", "request_id": 1, "request": {"type": "open_stream", "stream_id": 1}}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Asker]:
    """Yield a node that accepts 100 MB, and waits a second for a stalled client."""
    limits = {"memory_max": 100 << 20, "idle_stream_ms": 1_000}
    cluster = LocalCluster(tmp_path / "small", ("A",), {"limits": limits})
    cluster.add_http()
    cluster.write_files()
    cluster.nodes[0].start()
    try:
        trio.run(cluster.wait_ready, 0)
        assert cluster.nodes[0].http_port is not None
        yield Asker(cluster.nodes[0].http_port, cluster)
    finally:
        cluster.stop()


class Talk:
    """A WebSocket of libSQL, spoken by hand."""

    def __init__(self, port: int, *, extensions: tuple[Any, ...] = ()) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), 10)
        self.wire = WSConnection(ConnectionType.CLIENT)
        self.extensions: list[str] = []
        self.heard: list[dict[str, Any]] = []
        self.closed = self.text = ""
        asked = wsproto.events.Request(
            host="127.0.0.1", target="/v2", subprotocols=["hrana2"], extensions=list(extensions)
        )
        self.send(asked)
        while not self.heard:
            self.read()
        self.heard.clear()

    def send(self, event: Any) -> None:
        self.link.sendall(self.wire.send(event))

    def say(self, message: dict[str, Any]) -> None:
        self.send(wsproto.events.TextMessage(data=json.dumps(message)))

    def part(self, text: str, *, last: bool = False) -> None:
        self.send(wsproto.events.TextMessage(data=text, message_finished=last))

    def read(self) -> None:
        """Take what comes, or note that the other end has gone."""
        try:
            data = self.link.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = self.closed or "gone"
            return
        self.wire.receive_data(data)
        for event in self.wire.events():
            match event:
                case wsproto.events.AcceptConnection():
                    self.extensions = [type(one).__name__ for one in event.extensions]
                    self.heard.append({})
                case wsproto.events.TextMessage():
                    self.text += event.data
                    if event.message_finished:
                        self.heard.append(json.loads(self.text))
                        self.text = ""
                case wsproto.events.CloseConnection():
                    self.closed = f"code {event.code}"

    def wait(self) -> None:
        """Read until the other end has closed, or is gone."""
        until = time.monotonic() + 30
        while not self.closed and time.monotonic() < until:
            self.read()

    def open(self) -> None:
        self.say({"type": "hello", "jwt": None})
        self.say(OPEN)
        while len(self.heard) < 2:
            self.read()


@pytest.fixture
def talk_to() -> Iterator[Callable[..., Talk]]:
    """Opens WebSockets, and closes them at the end."""
    talks: list[Talk] = []

    def opened(node: Asker, **options: Any) -> Talk:
        talks.append(Talk(node.port, **options))
        return talks[-1]

    yield opened
    for talk in talks:
        talk.link.close()


def taken(node: Asker) -> int:
    found: int = node("/status").json["memory"]["taken_bytes"]
    return found


def until_given_back(node: Asker, most: int) -> None:
    until = time.monotonic() + 20
    while taken(node) > most and time.monotonic() < until:
        time.sleep(0.1)
    assert taken(node) <= most


def test_the_first_message_is_short_and_none_is_packed(small: Asker, talk_to: Callable[..., Talk]) -> None:
    """An unauthenticated client cannot make the node store anything."""
    talk = talk_to(small, extensions=(PerMessageDeflate(),))
    assert talk.extensions == []
    before = taken(small)
    talk.part(MEGABYTE)
    talk.wait()
    assert talk.closed == "code 1009"
    until_given_back(small, before + FIRST_BYTES)


def test_messages_that_are_not_whole_take_memory_until_there_is_none(
    small: Asker, talk_to: Callable[..., Talk]
) -> None:
    """The next one is refused, who does not go on is cut off, and all is given back."""
    before = taken(small)
    talks = [talk_to(small) for _ in range(6)]
    for talk in talks:
        talk.open()
        with contextlib.suppress(OSError):  # the last one is refused
            for _ in range(6):
                talk.part(MEGABYTE)  # 24 MB each, while it is put together
    assert taken(small) > before + (60 << 20)
    refused = talks[-1]
    refused.wait()
    assert refused.closed
    assert json.dumps(small("/db/query", ["SELECT 1"]).json)
    for talk in talks:
        talk.wait()
        assert talk.closed
    until_given_back(small, before + (1 << 20))


def test_a_long_message_is_answered_and_counted_no_more(small: Asker, talk_to: Callable[..., Talk]) -> None:
    before = taken(small)
    talk = talk_to(small)
    talk.open()
    sql = f"SELECT length('{'y' * (3 << 20)}') AS n"
    asked = {"type": "execute", "stream_id": 1, "stmt": {"sql": sql, "want_rows": True}}
    text = json.dumps({"type": "request", "request_id": 2, "request": asked})
    for start in range(0, len(text), 1 << 20):
        talk.part(text[start : start + (1 << 20)], last=start + (1 << 20) >= len(text))
    while len(talk.heard) < 3:
        talk.read()
    assert talk.heard[-1]["response"]["result"]["rows"] == [[{"type": "integer", "value": str(3 << 20)}]]
    until_given_back(small, before + (1 << 20))


def test_refused_sender_that_continues_is_disconnected(small: Asker, talk_to: Callable[..., Talk]) -> None:
    talk = talk_to(small)
    talk.part(MEGABYTE)
    more = talk.wire.send(wsproto.events.TextMessage(data=MEGABYTE, message_finished=False))
    sent = 0
    with contextlib.suppress(OSError):  # reset, or a broken pipe
        while sent < 200:
            talk.link.sendall(more)
            sent += 1
    assert sent < 200
    assert small("/readyz").status == 200


class Parts:
    """A connection that delivers parts of a message, and counts them."""

    half_since = until = math.inf

    def __init__(self, *parts: bytes) -> None:
        self.memory = Memory(used=lambda: 0)
        self.parts = deque(parts)
        self.kept = 0

    async def send(self, data: bytes) -> None:
        raise AssertionError(data)

    async def receive(self) -> bytes:
        return self.parts.popleft() if self.parts else b""

    def keep(self, size: int) -> None:
        self.kept += size


async def test_each_part_of_a_long_message_is_a_sign_of_life() -> None:
    wire = Frames(ConnectionType.CLIENT)
    first = wire.send(wsproto.events.TextMessage(data="hello"))
    half = wire.send(wsproto.events.TextMessage(data=MEGABYTE, message_finished=False))
    rest = wire.send(wsproto.events.TextMessage(data="x"))
    carrier = Parts(first, half)
    web_socket = WebSocket(Request("GET", b"/v2", {}, "", carrier.receive), b"", carrier)  # type: ignore[arg-type]
    assert await web_socket.receive() == "hello"
    assert (carrier.kept, carrier.half_since) == (0, math.inf)
    with pytest.raises(CallerGoneError):
        await web_socket.receive()
    assert carrier.kept == 4 * len(MEGABYTE)
    assert carrier.half_since < math.inf
    carrier.half_since -= 50
    before = carrier.half_since
    carrier.parts.append(rest)
    assert await web_socket.receive() == MEGABYTE + "x"
    assert (carrier.kept, carrier.half_since) == (0, math.inf) != (0, before)

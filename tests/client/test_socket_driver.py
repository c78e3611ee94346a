"""The driver of the blocking client: threads that share it, idle times, interruptions, and sockets without room."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from bedrockish import connect
from bedrockish.api.url import parse_url
from bedrockish.api.wire import PING, Ask
from bedrockish.client import socket_driver
from bedrockish.client.blocking import SocketClient, open_socket_client
from bedrockish.client.credentials import ClientCredentials
from bedrockish.client.in_thread import run
from bedrockish.errors import BedrockishError, ClientClosedError, DeadlineError, UnavailableError
from bedrockish_net.connection import Connection as Wire
from bedrockish_net.connection import Side
from bedrockish_net.errors import DialError, RefusedError, TlsError
from bedrockish_net.events import Data, Goodbye, Hello, Ping, Pong
from bedrockish_net.limits import LinkLimits
from bedrockish_net.socket_link import SocketLink, dial
from tests.client.scripted import ScriptedNode
from tests.client.test_blocking_client import echo, in_background


def serving() -> AbstractContextManager[str]:
    return in_background(ScriptedNode(script=[echo]))


class Other:
    """The scripted other end of a link."""

    def __init__(self, listener: socket.socket) -> None:
        self.sock, _ = listener.accept()
        self.sock.settimeout(10)
        self.wire = Wire(Side.ACCEPTER, Hello("A", "shop"))
        assert isinstance(self.hear(), Hello)

    def welcome(self) -> None:
        self.sock.sendall(self.wire.send(Hello("A", "shop")))

    def hear(self) -> object:
        while (event := self.wire.next_event()) is None:
            self.wire.receive_data(self.sock.recv(1 << 16))
        return event


@contextmanager
def link(limits: LinkLimits | None = None) -> Iterator[tuple[SocketLink, Other]]:
    found: list[Other] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            found.append(Other(listener))
            found[0].welcome()

        thread = threading.Thread(target=answer)
        thread.start()
        made = dial(
            "127.0.0.1", listener.getsockname()[1], Hello("me", "shop", "client"), 5, limits or LinkLimits(), None
        )
        thread.join()
        try:
            yield made, found[0]
        finally:
            made.close()
            found[0].sock.close()


def test_link_carries_messages_pings_and_goodbyes() -> None:
    with link() as (mine, other):
        mine.send(b"question")
        assert other.hear() == Data(b"question")
        other.sock.sendall(other.wire.send(Ping(b"?")) + other.wire.send_data(b"one") + other.wire.send_data(b"two"))
        got: list[bytes] = []
        while len(got) < 2:
            got += mine.receive()
        assert got == [b"one", b"two"]
        assert other.hear() == Pong(b"?")
        mine.tend(mine.heard + LinkLimits().ping_seconds)
        assert isinstance(other.hear(), Ping)
        other.sock.sendall(other.wire.send(Goodbye("shutdown", "done")))
        while mine.over is None:
            mine.receive()
        assert mine.over.code == "shutdown"


def test_silent_link_ends_unless_its_own_reader_was_late() -> None:
    with link() as (mine, _):
        late = mine.heard + 100
        mine.excuse(late)
        mine.tend(late)
        assert mine.over is None
        mine.tend(late + LinkLimits().silence_seconds)
        assert mine.over is not None
        assert mine.over.code == "timeout"


def test_peer_that_accepts_bytes_is_not_silent() -> None:
    """A ping waits in the queue behind a long message, and the peer answers it only after it has read that message."""
    with link() as (mine, other):
        mine.send(bytes(20 << 20))
        before = -1.0
        while mine.heard != before:  # until the kernel accepts no more bytes; it moves them to the other end late
            before = mine.heard
            mine.flush()
        while mine.heard == before:
            mine.flush()
            other.sock.recv(1 << 20)
        mine.tend(before + LinkLimits().silence_seconds)
        assert mine.over is None
        mine.tend(mine.heard + LinkLimits().silence_seconds)
        assert mine.over is not None


def test_bytes_beyond_the_socket_buffer_wait() -> None:
    with link() as (mine, other):
        payload = bytes(range(256)) * 40_000
        mine.send(payload)
        mine.send(b"behind it")
        assert mine.has_unsent
        got: list[object] = []
        reader = threading.Thread(target=lambda: got.extend((other.hear(), other.hear())))
        reader.start()
        while mine.has_unsent:
            mine.flush()
        reader.join()
        assert got == [Data(payload), Data(b"behind it")]


def test_dialling_reports_refusal_silence_and_nonsense() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, hello = listener.getsockname()[1], Hello("me", "shop", "client")

        def refuse() -> None:
            other = Other(listener)
            other.sock.sendall(other.wire.send(Goodbye("authentication", "no")))
            other.sock.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(RefusedError, match="no"):
            dial("127.0.0.1", port, hello, 5, LinkLimits(), None)
        thread.join()
        with pytest.raises(DialError, match="did not answer within"):
            dial("127.0.0.1", port, hello, 0.1, LinkLimits(), None)
    with pytest.raises(DialError, match="cannot connect"):
        dial("127.0.0.1", port, hello, 5, LinkLimits(), None)


def test_client_sends_nothing_to_other_machines_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrockish_net.socket_link.is_loopback", lambda _: False)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TlsError, match="another machine"):
        dial("127.0.0.1", listener.getsockname()[1], Hello("me", "shop", "client"), 5, LinkLimits(), None)


@pytest.mark.slow
def test_idle_client_answers_pings() -> None:
    """An idle client answers the node's pings, so the node keeps the link beyond its limit for silence."""
    with serving() as url, connect(url) as client:
        links = dict(client._client._links)
        time.sleep(LinkLimits().silence_seconds + 3)
        assert client.execute("SELECT ?", (1,)).one() == (1,)
        assert client._client._links == links


def test_interrupted_wait_does_not_disturb_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a thread reads for all: the next one reads on."""
    with serving() as url, connect(url) as client:
        inner = client._client
        real, hits = SocketClient._poll_links, [1]

        def move(self: SocketClient, wait_ms: float) -> None:
            if hits and threading.current_thread() is threading.main_thread():
                hits.pop()
                raise KeyboardInterrupt
            real(self, wait_ms)

        monkeypatch.setattr(SocketClient, "_poll_links", move)
        with pytest.raises(KeyboardInterrupt):
            client.execute("SELECT ?", (1,))
        assert not inner._waiting
        assert client.execute("SELECT ?", (2,)).value() == 2


def test_interrupted_call_drops_the_clients_state_and_keeps_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupted operation is dropped; the session's token is kept."""
    with serving() as url, connect(url) as client:
        inner, token = client._client, client.token
        inner._core.cluster_id = "one"
        core, real = inner._core, type(inner._core).received

        def received(*args: object) -> object:
            monkeypatch.setattr(type(core), "received", real)
            core.temporary.name = "kept"
            raise KeyboardInterrupt

        monkeypatch.setattr(type(core), "received", received)
        with pytest.raises(KeyboardInterrupt):
            client.execute("SELECT ?", (1,))
        assert inner._core is not core
        assert client.token == token
        assert inner._core.cluster_id == "one"
        assert client.has_temporary  # otherwise the next statement would not report their loss
        inner._core.temporary.name = ""
        assert client.execute("SELECT ?", (3,)).value() == 3


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, before: Callable[..., None]) -> None:
    """Replace a method by Ctrl-C for its next call in this thread."""
    real = getattr(owner, name)

    def interrupted(*args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return real(*args)
        monkeypatch.setattr(owner, name, real)
        before(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


def become_reader(client: SocketClient, number: int) -> None:
    client._reader = number


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (SocketLink, "send", lambda *_: None),
        (ClientCredentials, "dial_socket", lambda *_: None),
        (SocketClient, "_await", become_reader),  # between becoming the reader and reading
    ],
)
def test_calls_after_an_interrupted_call_get_their_own_answers(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, before: Callable[..., None]
) -> None:
    """Otherwise a later call could get the interrupted call's outcome, find no link, or have no reading thread."""
    with serving() as url, connect(url) as client:
        assert client.execute("SELECT ?", (0,)).value() == 0
        if owner is ClientCredentials:
            client._client._reset()  # so that the next call dials
        interrupt_once(monkeypatch, owner, name, before)
        with pytest.raises(KeyboardInterrupt):
            client.execute("SELECT ?", (1,))
        for value in range(2, 6):
            assert client.execute("SELECT ?", (value,), timeout=5).value() == value
        assert not client._client._waiting


def test_close_ends_the_calls_of_many_threads_with_large_answers() -> None:
    with serving() as url:
        client = connect(url)
        text, wrong = "x" * 500_000, list[object]()
        stop = threading.Event()

        def work(number: int) -> None:
            while not stop.is_set():
                try:
                    found = client.execute("SELECT ?, ?", (number, text)).one()
                except ClientClosedError:
                    return
                except BaseException as error:
                    wrong.append(error)
                    return
                if found != (number, text):
                    wrong.append(found[0])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        client.close()
        for thread in threads:
            thread.join(60)
        stop.set()
        assert not wrong
        assert not any(thread.is_alive() for thread in threads)


def test_call_times_out_also_while_a_node_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = parse_url(f"bedrockish://127.0.0.1:{listener.getsockname()[1]}/?connect_timeout=1")
        began = time.monotonic()
        with pytest.raises(BedrockishError) as caught:
            open_socket_client(target, None, ClientCredentials())
        assert isinstance(caught.value, UnavailableError | DeadlineError)
        assert time.monotonic() - began < 60


def test_coroutine_that_waits_for_a_loop_raises_an_assertion() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="needs a running event loop"):
        run(wait)


def test_close_releases_everything_and_may_be_repeated() -> None:
    with serving() as url:
        client = open_socket_client(parse_url(url), None)
        number = client._begin(Ask(0, PING), 5)
        client._close()
        client._close()
        with pytest.raises(ClientClosedError):
            run(client._wait, number)
        with pytest.raises(ClientClosedError):
            run(client.ping)
        assert client not in list(socket_driver.KEEPER._kept) or client.is_closed
        assert client._wake_read.fileno() == -1

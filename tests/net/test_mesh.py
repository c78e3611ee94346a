"""Meshes over real sockets on this machine: port 0, localhost, everything bounded."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import cbor2
import pytest
import trio

from net.errors import DialError, LinkClosedError, ListenError, RefusedError
from net.events import Hello
from net.frame import HEADER, FrameReader, Kind, encode_frame
from net.limits import Limits
from net.mesh import Mesh, MeshEvent, PeerDown, PeerUp, Received
from net.stream import Link

HOST = "127.0.0.1"
QUICK = Limits(hello_seconds=0.3, goodbye_seconds=0.3)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


class Node:
    """A mesh and everything it told."""

    def __init__(self, name: str, ports: dict[str, int], **options: object) -> None:
        self.name = name
        self.events: list[MeshEvent] = []
        self.log: list[str] = []
        self.got: dict[str, list[bytes]] = {}
        self.batches = 0
        self.up: set[str] = set()
        self.changed = trio.Event()
        options.setdefault("host", HOST)
        options.setdefault("port", ports[name])
        self.mesh = Mesh(
            Hello(name, "shop"),
            {node: (HOST, port) for node, port in ports.items()},
            on_event=self._take,
            on_log=self._note,
            draw=lambda: 0.5,
            **options,  # type: ignore[arg-type]
        )

    def _take(self, event: MeshEvent) -> None:
        self.events.append(event)
        match event:
            case PeerUp(node):
                self.up.add(node)
            case PeerDown(node):
                self.up.remove(node)
            case Received(node, payloads):
                self.got.setdefault(node, []).extend(payloads)
                self.batches += 1
        self._wake()

    def _note(self, line: str) -> None:
        self.log.append(line)
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, test: Callable[[], object]) -> None:
        with trio.fail_after(10):
            while not test():
                await self.changed.wait()


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.mesh.run)
        yield
        nursery.cancel_scope.cancel()


async def talk(port: int, data: bytes, *, finish: bool = True) -> list[tuple[Kind, bytes]]:
    """Connect as a stranger, say something and return every frame that comes back until the node hangs up."""
    with trio.fail_after(10):
        stream = await trio.open_tcp_stream(HOST, port)
        async with stream:
            await stream.send_all(data)
            if finish:
                await stream.send_eof()
            reader = FrameReader(1 << 20)
            async for chunk in stream:
                reader.feed(bytes(chunk))
            frames = []
            while (frame := reader.next_frame()) is not None:
                frames.append(frame)
            return frames


async def test_two_nodes_talk_in_order_and_in_batches() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a, b = Node("A", ports), Node("B", ports)
    async with running(a, b):
        await a.until(lambda: "B" in a.up)
        await b.until(lambda: "A" in b.up)
        sent = [b"%d" % number for number in range(5000)]
        for payload in sent:
            assert a.mesh.send("B", payload)
        b.mesh.send("A", b"hi")
        await b.until(lambda: len(b.got.get("A", [])) == 5000)
        await a.until(lambda: a.got.get("B") == [b"hi"])
        assert b.got["A"] == sent
        assert b.batches < 100


async def test_a_peer_that_comes_back_is_found_again() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a, b = Node("A", ports), Node("B", ports)
    async with running(a):
        async with running(b):
            await a.until(lambda: "B" in a.up)
        await a.until(lambda: "B" not in a.up)
        assert isinstance(a.events[-1], PeerDown)
        assert "B said goodbye: B is stopping" in a.events[-1].reason
        assert not a.mesh.send("B", b"lost")
        assert a.mesh.up == frozenset()
        await a.until(lambda: any("cannot connect" in line for line in a.log))
        again = Node("B", ports)
        async with running(again):
            await a.until(lambda: "B" in a.up)
            a.mesh.send("B", b"found")
            await again.until(lambda: again.got.get("A") == [b"found"])


async def test_members_can_be_changed() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a, b = Node("A", {"A": ports["A"]}), Node("B", ports)
    async with running(a, b):
        await b.until(lambda: any("'B' is not a member of 'shop' here; members: A" in line for line in b.log))
        a.mesh.set_peers({"A": (HOST, ports["A"]), "B": (HOST, ports["B"])})
        await a.until(lambda: "B" in a.up)
        await b.until(lambda: "A" in b.up)
        b.mesh.send("A", b"hello")
        await a.until(lambda: a.got.get("B") == [b"hello"])
        a.mesh.set_peers({})
        assert a.events[-1] == PeerDown("B", "B is no longer a member")
        assert not a.mesh.send("B", b"gone")
        await b.until(lambda: "A" not in b.up)


async def test_a_wrong_address_is_told_at_both_ends() -> None:
    ports = {"A": free_port(), "B": free_port()}
    b = Node("B", {"B": ports["B"], "A": ports["A"]})
    a = Node("A", {"A": ports["A"], "C": ports["B"]})  # A believes that C listens where B does
    async with running(a, b):
        await a.until(lambda: any("no link to C" in line and "check the address of 'C'" in line for line in a.log))
        await b.until(lambda: any("'A' wanted 'C', but this is 'B'" in line for line in b.log))
        assert not a.up


async def test_a_port_that_is_taken_is_said_clearly() -> None:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        sock.listen()
        node = Node("A", {"A": sock.getsockname()[1]})
        with pytest.raises(ListenError, match="in use; stop the program that has it"):
            await node.mesh.run()


async def test_strangers_are_answered_and_harm_nobody() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a, b = Node("A", ports, limits=QUICK), Node("B", ports)
    async with running(a, b):
        await b.until(lambda: "A" in b.up)
        for data, code in [
            (b"GET / HTTP/1.1\r\n\r\n", "too_large"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01", "too_large"),
            (HEADER.pack(2**31, 1), "too_large"),
            (HEADER.pack(65 * 1024, 1), "too_large"),
            (HEADER.pack(10, 1) + b"half", "truncated"),
            (encode_frame(Kind.HELLO, b"\xff"), "malformed"),
            (encode_frame(Kind.DATA, b"x"), "unexpected"),
            (HEADER.pack(0, 77), "unknown_kind"),
            (encode_frame(Kind.HELLO, cbor2.dumps({"protocol": "bedrockish", "version": 2})), "version"),
            (encode_frame(Kind.HELLO, cbor2.dumps({"protocol": "redis", "version": 1})), "protocol"),
        ]:
            (kind, payload), *rest = await talk(ports["A"], data)
            assert (kind, cbor2.loads(payload)["code"], rest) == (Kind.GOODBYE, code, [])
        (kind, payload), *_ = await talk(ports["A"], b"", finish=False)  # says nothing
        assert cbor2.loads(payload) == {"code": "timeout", "message": "no HELLO within 0.3 s"}
        assert await talk(ports["A"], b"") == []
        assert b.mesh.send("A", b"still here")
        await a.until(lambda: a.got.get("B") == [b"still here"])
        assert [event for event in b.events if isinstance(event, PeerDown)] == []
        assert len(a.log) >= 12


async def test_many_silent_strangers_do_not_keep_a_peer_out() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a = Node("A", ports, strangers_max=4)
    async with running(a):
        streams = [await trio.open_tcp_stream(HOST, ports["A"]) for _ in range(12)]
        await a.until(lambda: sum("closed the oldest" in line for line in a.log) == 8)
        with trio.fail_after(5):
            link = await Link.dial(HOST, ports["A"], Hello("B", "shop", to="A"))
        await link.aclose()
        with trio.fail_after(2):  # sooner than the 5 s of an ordinary stranger
            for stream in streams[:8]:
                assert await stream.receive_some() == b""
        for stream in streams:
            await stream.aclose()


async def test_clients_are_handed_to_their_handler() -> None:
    async def echo(link: Link) -> None:
        async for payload in link:
            await link.send(payload.upper())

    a = Node("A", {"A": 0}, on_client=echo)
    async with running(a), trio.open_nursery() as nursery:
        link = await Link.dial(HOST, a.mesh.addresses[0][1], Hello("shell", None, "client", info={"user": "ann"}))
        assert link.remote == Hello("A", "shop", to="shell")
        nursery.start_soon(link.run)
        with trio.fail_after(5):
            await link.send(b"abc")
            assert await link.receive() == b"ABC"
            await link.aclose()


async def test_clients_are_refused_where_there_is_no_handler() -> None:
    a = Node("A", {"A": 0})
    async with running(a), trio.open_nursery() as nursery:
        link = await Link.dial(HOST, a.mesh.addresses[0][1], Hello("shell", "shop", "client"))
        nursery.start_soon(link.run)
        with trio.fail_after(5), pytest.raises(LinkClosedError, match="takes no clients here"):
            await link.receive()


async def test_wrong_cluster_is_refused_with_both_names() -> None:
    a = Node("A", {"A": 0, "B": 1})
    async with running(a):
        with pytest.raises(RefusedError, match="'A' is of cluster 'shop', 'B' of cluster 'mall'") as caught:
            await Link.dial(HOST, a.mesh.addresses[0][1], Hello("B", "mall"))
        assert caught.value.code == "cluster"


async def test_nobody_there_is_a_dial_error() -> None:
    with pytest.raises(DialError, match=r"cannot connect to 127\.0\.0\.1:\d+: .*refused"):
        await Link.dial(HOST, free_port(), Hello("B", "shop"))


async def test_no_answer_is_a_dial_error() -> None:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        sock.listen()
        with pytest.raises(DialError, match=r"did not answer within 0\.05 s"):
            await Link.dial(HOST, sock.getsockname()[1], Hello("B", "shop"), timeout=0.05)


async def test_ipv6() -> None:
    a = Node("A", {"A": 0, "B": 1}, host="::1")
    async with running(a):
        link = await Link.dial("::1", a.mesh.addresses[0][1], Hello("B", "shop"))
        await link.aclose()

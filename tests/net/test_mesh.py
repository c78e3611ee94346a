"""Meshes over real sockets on this machine."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import cbor2
import pytest
import trio
from trio.testing import MockClock

from bedrockish.node.transactions.callers import caller_of
from bedrockish_net.connection_limits import ConnectionLimits
from bedrockish_net.errors import DialError, LinkClosedError, ListenError, NetError, RefusedError
from bedrockish_net.events import Hello
from bedrockish_net.frame import HEADER, FrameKind, FrameReader, encode_frame
from bedrockish_net.inflow import Inflow
from bedrockish_net.limits import LinkLimits
from bedrockish_net.mesh import Mesh, MeshEvent, PeerDown, PeerUp, Received
from bedrockish_net.stream import Link
from tests.net.links import Names, dial_link
from tools.cluster import free_ports

HOST = "127.0.0.1"
QUICK = LinkLimits(hello_seconds=0.3, goodbye_seconds=0.3)


def free_port() -> int:
    return free_ports(1)[0]


class Node:
    """A mesh with a record of its events."""

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
        with trio.fail_after(60):
            while not test():
                await self.changed.wait()


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.mesh.run)
        yield
        nursery.cancel_scope.cancel()


async def talk(port: int, data: bytes, *, finish: bool = True) -> list[tuple[FrameKind, bytes]]:
    """Connect as a stranger, say something and return every frame that comes back until the node hangs up."""
    with trio.fail_after(60):
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


async def test_mesh_delivers_messages_in_the_order_in_which_they_were_sent() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a, b = Node("A", ports), Node("B", ports)
    async with running(a, b):
        await a.until(lambda: "B" in a.up)
        await b.until(lambda: "A" in b.up)
        sent = [b"%d" % number for number in range(5000)]
        for payload in sent:
            assert a.mesh.send_many("B", [payload])
        b.mesh.send_many("A", [b"hi"])
        await b.until(lambda: len(b.got.get("A", [])) == 5000)
        await a.until(lambda: a.got.get("B") == [b"hi"])
        assert b.got["A"] == sent
        assert b.batches < 100


async def test_mesh_reconnects_to_a_restarted_peer() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a, b = Node("A", ports), Node("B", ports)
    async with running(a):
        async with running(b):
            await a.until(lambda: "B" in a.up)
        await a.until(lambda: "B" not in a.up)
        assert isinstance(a.events[-1], PeerDown)
        assert "B said goodbye: B is stopping" in a.events[-1].reason
        assert not a.mesh.send_many("B", [b"lost"])
        assert a.mesh.up == frozenset()
        await a.until(lambda: any("cannot connect" in line for line in a.log))
        again = Node("B", ports)
        async with running(again):
            await a.until(lambda: "B" in a.up)
            a.mesh.send_many("B", [b"found"])
            await again.until(lambda: again.got.get("A") == [b"found"])


async def test_mesh_links_to_changed_members() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a, b = Node("A", {"A": ports["A"]}), Node("B", ports)
    async with running(a, b):
        await b.until(lambda: any("'B' is not a member of 'shop' here; members: A" in line for line in b.log))
        a.mesh.set_peers({"A": (HOST, ports["A"]), "B": (HOST, ports["B"])})
        await a.until(lambda: "B" in a.up)
        await b.until(lambda: "A" in b.up)
        b.mesh.send_many("A", [b"hello"])
        await a.until(lambda: a.got.get("B") == [b"hello"])
        a.mesh.set_peers({})
        assert a.events[-1] == PeerDown("B", "B is no longer a member")
        assert not a.mesh.send_many("B", [b"gone"])
        await b.until(lambda: "A" not in b.up)


async def test_wrong_address_is_reported_at_both_ends() -> None:
    ports = {"A": free_port(), "B": free_port()}
    b = Node("B", {"B": ports["B"], "A": ports["A"]})
    a = Node("A", {"A": ports["A"], "C": ports["B"]})  # A has B's address for C
    async with running(a, b):
        await a.until(lambda: any("no link to C" in line and "check the address of 'C'" in line for line in a.log))
        await b.until(lambda: any("'A' wanted 'C', but this is 'B'" in line for line in b.log))
        assert not a.up


async def test_used_port_is_reported() -> None:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        sock.listen()
        node = Node("A", {"A": sock.getsockname()[1]})
        with pytest.raises(ListenError, match="in use; stop the program that has it"):
            await node.mesh.run()


async def test_strangers_are_answered_and_do_not_affect_links() -> None:
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
            (encode_frame(FrameKind.HELLO, b"\xff"), "malformed"),
            (encode_frame(FrameKind.DATA, b"x"), "unexpected"),
            (HEADER.pack(0, 77), "unknown_kind"),
            (encode_frame(FrameKind.HELLO, cbor2.dumps({"protocol": "bedrockish", "version": 2})), "version"),
            (encode_frame(FrameKind.HELLO, cbor2.dumps({"protocol": "redis", "version": 1})), "protocol"),
        ]:
            (kind, payload), *rest = await talk(ports["A"], data)
            assert (kind, cbor2.loads(payload)["code"], rest) == (FrameKind.GOODBYE, code, [])
        (kind, payload), *_ = await talk(ports["A"], b"", finish=False)  # says nothing
        assert cbor2.loads(payload) == {"code": "timeout", "message": "no HELLO within 0.3 s"}
        assert await talk(ports["A"], b"") == []
        assert b.mesh.send_many("A", [b"still here"])
        await a.until(lambda: a.got.get("B") == [b"still here"])
        assert [event for event in b.events if isinstance(event, PeerDown)] == []
        assert len(a.log) >= 12


async def test_many_silent_strangers_do_not_keep_a_peer_out() -> None:
    ports = {"A": free_port(), "B": free_port()}
    a = Node("A", ports, connection_limits=ConnectionLimits(strangers_max=4), limits=LinkLimits(hello_seconds=600))
    async with running(a):
        streams = [await trio.open_tcp_stream(HOST, ports["A"]) for _ in range(12)]
        await a.until(lambda: sum("closed the oldest" in line for line in a.log) == 8)
        with trio.fail_after(60):
            link = await dial_link(HOST, ports["A"], Hello("B", "shop", to="A"))
        await link.aclose()
        with trio.fail_after(60):  # sooner than an ordinary stranger
            for stream in streams[:8]:
                assert await stream.receive_some() == b""
        for stream in streams:
            await stream.aclose()


async def test_mesh_hands_client_links_to_the_client_handler() -> None:
    async def echo(link: Link) -> None:
        assert link.host == caller_of(link, "") == HOST
        while True:
            await link.send((await link.receive()).upper())

    a = Node("A", {"A": 0}, on_client=echo)
    async with running(a), trio.open_nursery() as nursery:
        link = await dial_link(HOST, a.mesh.addresses[0][1], Hello("shell", None, "client", info={"user": "ann"}))
        assert link.remote == Hello("A", "shop", to="shell")
        nursery.start_soon(link.run)
        with trio.fail_after(60):
            await link.send(b"abc")
            assert await link.receive() == b"ABC"
            await link.aclose()


async def test_clients_are_refused_where_there_is_no_handler() -> None:
    a = Node("A", {"A": 0})
    async with running(a), trio.open_nursery() as nursery:
        link = await dial_link(HOST, a.mesh.addresses[0][1], Hello("shell", "shop", "client"))
        nursery.start_soon(link.run)
        with trio.fail_after(60), pytest.raises(LinkClosedError, match="takes no clients here"):
            await link.receive()


async def test_wrong_cluster_is_refused_with_both_names() -> None:
    a = Node("A", {"A": 0, "B": 1})
    async with running(a):
        with pytest.raises(RefusedError, match="'A' is of cluster 'shop', 'B' of cluster 'mall'") as caught:
            await dial_link(HOST, a.mesh.addresses[0][1], Hello("B", "mall"))
        assert caught.value.code == "cluster"


async def test_refused_connection_is_a_dial_error() -> None:
    with pytest.raises(DialError, match=r"cannot connect to 127\.0\.0\.1:\d+: .*refused"):
        await dial_link(HOST, free_port(), Hello("B", "shop"))


async def test_no_answer_is_a_dial_error() -> None:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        sock.listen()
        with pytest.raises(DialError, match=r"did not answer within 0\.05 s"):
            await dial_link(HOST, sock.getsockname()[1], Hello("B", "shop"), seconds=0.05)


async def test_mesh_listens_on_ipv6() -> None:
    a = Node("A", {"A": 0, "B": 1}, host="::1")
    async with running(a):
        link = await dial_link("::1", a.mesh.addresses[0][1], Hello("B", "shop"))
        await link.aclose()


async def test_mesh_listens_on_those_addresses_of_its_name_that_the_machine_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Containers without IPv6 often have ``::1`` as the first address of ``localhost`` in their hosts file."""
    trio.socket.set_custom_hostname_resolver(Names("192.0.2.1", "127.0.0.1"))  # 192.0.2.1 is reserved for documents
    a = Node("A", {"A": 0, "B": 1}, host="localhost")
    async with running(a):
        assert [host for host, _ in a.mesh.addresses] == ["127.0.0.1"]
    assert "this machine lacks the address 192.0.2.1 of localhost" in caplog.text


async def test_address_of_another_machine_is_no_address_to_listen_on() -> None:
    mesh = Mesh(Hello("A", "shop"), {}, on_event=lambda _: None, draw=lambda: 0.5, host="192.0.2.1", port=0)
    with pytest.raises(ListenError, match="does not have the address; give one of its own"):
        await mesh.run()


async def test_peer_that_repeats_malformed_messages_is_refused_for_a_doubling_time(autojump_clock: MockClock) -> None:
    mesh = Mesh(Hello("A", "shop"), {"B": (HOST, 1)}, on_event=lambda _: None, draw=lambda: 0.5)
    waits = []
    for _ in range(9):
        mesh._peers["B"].incoming = link = cast(Any, StubLink())
        mesh.reject("B", "tick of a COMMIT: there should be a number")
        assert link.dropped == [("malformed", "tick of a COMMIT: there should be a number")]
        waits.append(round(mesh.left_alone.get("B", 0.0)))
        if waits[-1]:
            with pytest.raises(RefusedError, match="malformed messages"):
                mesh._answer_to(Hello("B", "shop"))
        await trio.sleep(waits[-1] + 0.1)
        assert mesh._answer_to(Hello("B", "shop")).to == "B"
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    await trio.sleep(601)  # earlier failures no longer count
    mesh._peers["B"].incoming = cast(Any, StubLink())
    mesh.reject("B", "once more")
    assert mesh.left_alone == {}


async def test_unexpected_exception_ends_one_link_and_not_the_mesh() -> None:
    ports = {"A": free_port(), "B": free_port()}
    faults: list[tuple[str, Exception]] = []

    async def on_client(_link: Link) -> None:
        raise ZeroDivisionError

    def judge(hello: Hello) -> None:
        if hello.info.get("plugins") == 1:
            raise TypeError("an int is no list of plugins")

    a = Node("A", ports, on_client=on_client, judge=judge, on_fault=lambda *fault: faults.append(fault))
    b = Node("B", ports)
    async with running(a, b):
        await a.until(lambda: a.up)
        for hello in (Hello("c", None, "client"), Hello("B", "shop", info={"plugins": 1})):
            with suppress(NetError):
                link = await dial_link(HOST, ports["A"], hello)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.run)
                    await link.wait_closed()
        a.mesh.send_many("B", [b"still here"])
        await b.until(lambda: b.got.get("A"))
    assert [what.split()[0] for what, _ in faults] == ["serving", "serving"]


async def test_slowest_reading_client_is_disconnected() -> None:
    mesh = Mesh(Hello("A", "shop"), {}, on_event=lambda _: None, draw=lambda: 0.5)
    links = [cast(Any, StubLink(waiting)) for waiting in (10, 500, 20)]
    mesh._clients.update(links)
    kept = {links[2]: 1_000}
    assert mesh.waiting_bytes() == 530
    mesh.drop_slowest(lambda link: kept.get(cast(Any, link), 0), 2_000)
    assert not any(link.dropped for link in links), "nobody is that slow"
    mesh.drop_slowest(lambda link: kept.get(cast(Any, link), 0), 1_000)
    assert [bool(link.dropped) for link in links] == [False, False, True]
    links[0].stuck_seconds = 2.0
    assert not mesh.drop_slowest(lambda _: 0, 11, 1.0)
    assert mesh.drop_slowest(lambda _: 0, 10, 1.0), "what has moved is not stuck, however much it is"
    assert [bool(link.dropped) for link in links] == [True, False, True]
    assert links[2].dropped[0][0] == "overflow"


async def test_sender_of_an_unfinished_message_is_disconnected(autojump_clock: MockClock) -> None:
    """The node waits for a time, or disconnects at once if other clients need the room."""
    inflow = Inflow(1_000_000, trio.current_time)
    mesh = Mesh(Hello("A", "shop"), {}, on_event=lambda _: None, draw=lambda: 0.5, inflow=inflow)
    links = [cast(Any, StubLink()) for _ in range(3)]
    mesh._clients.update(links)
    for link, size in zip(links, (400_000, 500_000, 300_000), strict=True):
        link.silent_seconds = 3.0
        inflow.note(link, size)
    mesh.drop_half_sent(400_001, 3.1)
    assert not any(link.dropped for link in links)
    assert inflow.has_to_wait(links[0])
    assert not inflow.has_to_wait(links[1])
    mesh.drop_half_sent(400_001, 3.1)
    assert [bool(link.dropped) for link in links] == [False, True, False]
    mesh.drop_half_sent(400_000, 3.0)
    assert [bool(link.dropped) for link in links] == [True, True, False]
    assert links[0].dropped[0][0] == "overflow"


class StubLink:
    """A link that records the reason of its end."""

    remote = Hello("c", None, "client")

    closed: LinkClosedError | None = None
    silent_seconds = 0.0

    def __init__(self, waiting_bytes: int = 0, stuck_seconds: float = 0.0) -> None:
        self.waiting_bytes, self.stuck_seconds = waiting_bytes, stuck_seconds
        self.dropped: list[tuple[str, str]] = []

    def drop(self, code: str, reason: str) -> None:
        self.dropped.append((code, reason))

"""Links over streams in memory: time is trio's mock clock, and nothing here can hang."""

import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing

from bedrockish_net.codec import encode_event
from bedrockish_net.errors import Code, DialError, LinkClosedError, LocalProtocolError, RefusedError, TlsError
from bedrockish_net.events import Hello
from bedrockish_net.frame import HEADER, FrameKind, FrameReader, encode_frame
from bedrockish_net.handshake import dial_on
from bedrockish_net.inflow import Inflow
from bedrockish_net.limits import LinkLimits
from bedrockish_net.link_texts import READ_BYTES, READ_FIRST_BYTES
from bedrockish_net.stream import SLICE_BYTES, Link
from tests.net.links import accept_link, dial_link

A = Hello("A", "shop", to="B")
B = Hello("B", "shop")


@asynccontextmanager
async def links(limits: LinkLimits | None = None, seconds: float = 60) -> AsyncIterator[tuple[Link, Link]]:
    limits = limits or LinkLimits()
    left, right = trio.testing.memory_stream_pair()
    made: dict[str, Link] = {}

    async def dial() -> None:
        made["a"] = Link(left, await dial_on(left, A, limits), limits)

    with trio.fail_after(seconds):
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as shake:
                shake.start_soon(dial)
                made["b"] = await accept_link(right, B, limits=limits)
            nursery.start_soon(made["a"].run)
            nursery.start_soon(made["b"].run)
            yield made["a"], made["b"]
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def half_link(limits: LinkLimits) -> AsyncIterator[tuple[Link, trio.abc.Stream]]:
    """Return a link whose other end has sent HELLO, and then obeys the test; a send waits for a reader."""
    left, right = trio.testing.lockstep_stream_pair()
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as shake:
                shake.start_soon(_hello_only, right)
                link = Link(left, await dial_on(left, A, limits), limits)
            nursery.start_soon(link.run)
            yield link, right
            nursery.cancel_scope.cancel()


async def _hello_only(stream: trio.abc.Stream) -> None:
    await stream.receive_some()
    await stream.send_all(encode_event(B, LinkLimits()))


async def test_messages_keep_their_order_and_come_in_batches(autojump_clock: trio.testing.MockClock) -> None:
    async with links() as (a, b):
        batches: list[list[bytes]] = []
        b.deliver_to(batches.append)
        for number in range(100):
            a.send_nowait(b"%d" % number)
        await trio.testing.wait_all_tasks_blocked()
        assert batches == [[b"%d" % number for number in range(100)]]


async def test_aclose_flushes_and_ends_the_other_ends_loop(autojump_clock: trio.testing.MockClock) -> None:
    async with links() as (a, b):
        a.send_nowait(b"one")
        a.send_nowait(b"two")
        await a.aclose()
        assert [await b.receive(), await b.receive()] == [b"one", b"two"]
        with pytest.raises(LinkClosedError, match="A said goodbye"):
            await b.receive()
        with pytest.raises(LinkClosedError, match="closed the link"):
            a.send_nowait(b"more")


async def test_a_slow_reader_overflows_and_the_link_is_dropped(autojump_clock: trio.testing.MockClock) -> None:
    """The other end does not read. The send buffer is bounded, and the sender gets the reason why the link ended."""
    limits = LinkLimits(outbox_bytes_max=10_000)
    async with half_link(limits) as (a, _):
        for _ in range(9):
            a.send_nowait(bytes(1000))
        with pytest.raises(LinkClosedError, match="B reads too slowly") as caught:
            a.send_nowait(bytes(1000))
        assert caught.value.code == Code.OVERFLOW
        with pytest.raises(LinkClosedError, match="B reads too slowly"):
            a.send_nowait(b"x")
        with pytest.raises(LinkClosedError, match="B reads too slowly"):
            await a.receive()


async def test_single_message_larger_than_the_outbox_is_sent(autojump_clock: trio.testing.MockClock) -> None:
    async with links(LinkLimits(outbox_bytes_max=100)) as (a, b):
        a.send_nowait(bytes(5000))
        assert await b.receive() == bytes(5000)


async def test_send_waits_for_room(autojump_clock: trio.testing.MockClock) -> None:
    """The awaitable send stops the sender instead of dropping the link."""
    async with half_link(LinkLimits(outbox_bytes_max=10_000, ping_seconds=50, silence_seconds=99)) as (a, stream):
        sent = 0
        with trio.move_on_after(1):
            while True:
                await a.send(bytes(1000))
                sent += 1
        assert 0 < sent < 15
        assert a.closed is None
        with trio.move_on_after(1):
            while True:
                await stream.receive_some(1000)
        with trio.fail_after(1):
            await a.send(b"goes through now")


async def test_silence_ends_the_link(autojump_clock: trio.testing.MockClock) -> None:
    async with half_link(LinkLimits()) as (a, _):
        with pytest.raises(LinkClosedError, match="B was silent for 8 s") as caught:
            await a.receive()
        assert caught.value.code == Code.TIMEOUT
        assert 8 <= trio.current_time() < 12


async def test_peer_that_accepts_bytes_is_not_silent(autojump_clock: trio.testing.MockClock) -> None:
    """A busy peer answers neither a ping behind a long message nor an unread one."""
    async with half_link(LinkLimits()) as (a, stream):
        a.send_nowait(bytes(20 * SLICE_BYTES))
        for _ in range(20):
            await trio.sleep(1)
            assert len(await stream.receive_some(SLICE_BYTES)) == SLICE_BYTES
        assert a.closed is None
        took = trio.current_time()
        assert "B was silent for 8 s" in (await a.wait_closed()).reason
        assert 8 <= trio.current_time() - took < 12


async def test_pings_keep_an_idle_link(autojump_clock: trio.testing.MockClock) -> None:
    async with links(seconds=1000) as (a, b):
        await trio.sleep(500)
        assert a.closed is None
        assert b.closed is None


async def test_full_inbox_stops_reading_without_ending_the_link(autojump_clock: trio.testing.MockClock) -> None:
    async with half_link(LinkLimits(inbox_bytes_max=1000)) as (a, stream):
        taken = 0
        with trio.move_on_after(100):
            while True:
                await stream.send_all(encode_frame(FrameKind.DATA, bytes(800)))
                taken += 1
        assert a.closed is None
        assert 1 < taken < 5
        for _ in range(taken + 1):
            await a.receive()  # reading resumes once there is room


async def test_stream_end_without_goodbye_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    async with half_link(LinkLimits()) as (a, stream):
        await stream.send_all(encode_frame(FrameKind.DATA, b"last"))
        await stream.aclose()
        assert await a.receive() == b"last"
        with pytest.raises(LinkClosedError, match=r"B hung up without a goodbye|the stream to B broke"):
            await a.receive()


async def test_unknown_frame_kind_ends_the_link_with_a_goodbye(autojump_clock: trio.testing.MockClock) -> None:
    async with half_link(LinkLimits()) as (a, stream):
        await stream.send_all(encode_frame(FrameKind.DATA, b"good") + HEADER.pack(0, 99))
        assert await a.receive() == b"good"
        with pytest.raises(LinkClosedError, match="B broke the protocol: frame kind 99"):
            await a.receive()
        reader = FrameReader(1000)
        reader.feed(bytes(await stream.receive_some()))
        frame = reader.next_frame()
        assert frame is not None
        assert frame[0] is FrameKind.GOODBYE


async def test_cancelling_a_receive_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with links() as (a, b):
        with trio.move_on_after(1):
            await b.receive()
        a.send_nowait(b"one")
        a.send_nowait(b"two")
        assert await b.receive() == b"one"
        with trio.CancelScope() as scope:
            scope.cancel()
            await b.receive()
        assert await b.receive() == b"two"


async def test_dropped_link_sends_its_reason_to_the_other_end(autojump_clock: trio.testing.MockClock) -> None:
    async with links() as (a, b):
        await trio.testing.wait_all_tasks_blocked()
        a.drop(Code.REFUSED, "enough of this")
        with pytest.raises(LinkClosedError, match="A said goodbye: enough of this") as caught:
            await b.receive()
        assert caught.value.code == Code.REFUSED


async def test_aclose_waits_for_a_stuck_reader_for_a_limited_time(autojump_clock: trio.testing.MockClock) -> None:
    async with half_link(LinkLimits()) as (a, _):
        for _ in range(10):
            a.send_nowait(bytes(1000))
        await a.aclose()
        assert trio.current_time() <= 2


async def test_accept_gives_up_on_silence(autojump_clock: trio.testing.MockClock) -> None:
    left, right = trio.testing.memory_stream_pair()
    with trio.fail_after(20), pytest.raises(RefusedError, match="no HELLO within 5 s"):
        await accept_link(right, B)
    reader = FrameReader(1000)
    reader.feed(bytes(await left.receive_some()))
    frame = reader.next_frame()
    assert frame is not None
    assert frame[0] is FrameKind.GOODBYE


async def test_an_accepter_can_refuse_by_its_own_rule(autojump_clock: trio.testing.MockClock) -> None:
    def refuse(remote: Hello) -> Hello:
        raise RefusedError("full", f"no room for {remote.node}")

    async def accept() -> None:
        with pytest.raises(RefusedError, match="no room for A"):
            await accept_link(right, B, welcome=refuse)

    left, right = trio.testing.memory_stream_pair()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            with pytest.raises(RefusedError, match="the other end refused: no room for A") as caught:
                await dial_on(left, A, LinkLimits())
            await left.aclose()
    assert caught.value.code == "full"


async def test_outbox_limit_counts_waiting_bytes_only(autojump_clock: trio.testing.MockClock) -> None:
    async with links(LinkLimits(outbox_bytes_max=10_000)) as (a, b):
        for _ in range(100):
            a.send_nowait(bytes(5000))
            assert await b.receive() == bytes(5000)


async def test_bulk_messages_are_sent_after_all_others() -> None:
    async with half_link(LinkLimits()) as (link, other):
        reader = FrameReader(1 << 20)
        link.send_many_nowait([b"bulk %d" % number for number in range(4)], bulk=True)
        got: list[bytes] = []
        urgent = iter(range(3))
        while len(got) < 7:
            reader.feed(bytes(await other.receive_some()))
            while (frame := reader.next_frame()) is not None:
                got.append(frame[1])
                number = next(urgent, None)
                if number is not None:
                    link.send_nowait(b"urgent %d" % number)
        # Only the bulk message that was being written is before each urgent one.
        assert [each for each in got if each.startswith(b"bulk")] == [b"bulk %d" % number for number in range(4)]
        assert got.index(b"urgent 2") < got.index(b"bulk 3")
        assert got.index(b"urgent 0") <= 2


async def test_message_given_in_parts_arrives_whole_and_in_order() -> None:
    async with links() as (a, b):
        parts = [b"head", b"x" * (3 * SLICE_BYTES + 1), b"tail", b"y" * SLICE_BYTES]
        a.send_nowait(b"before")
        a.send_parts_nowait(parts)
        a.send_nowait(b"after")
        assert [await b.receive() for _ in range(3)] == [b"before", b"".join(parts), b"after"]
        with pytest.raises(LocalProtocolError):
            a.send_parts_nowait([b"z" * (1 << 20)] * 1_000)


async def test_closing_a_link_flushes_its_bulk_messages(autojump_clock: trio.testing.MockClock) -> None:
    async with links() as (a, b):
        a.send_many_nowait([b"one", b"two"], bulk=True)
        a.send_nowait(b"three")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.aclose)
            assert sorted([await b.receive() for _ in range(3)]) == [b"one", b"three", b"two"]
    async with half_link(LinkLimits(outbox_bytes_max=100)) as (a, _):
        a.send_many_nowait([bytes(90)], bulk=True)
        with pytest.raises(LinkClosedError):
            a.send_many_nowait([bytes(90)], bulk=True)


async def test_memory_of_a_long_message_is_released_when_it_is_read(autojump_clock: trio.testing.MockClock) -> None:
    """An incomplete message is counted while it is kept."""
    async with half_link(LinkLimits(ping_seconds=50, silence_seconds=99)) as (a, stream):
        inflow = Inflow(1 << 30, trio.current_time)
        a.count_by(inflow)
        message, half = encode_frame(FrameKind.DATA, bytes(5 << 20)), encode_frame(FrameKind.DATA, bytes(1_000))[:-1]
        await stream.send_all(message[:-1])
        await trio.testing.wait_all_tasks_blocked()
        assert inflow.total == len(message) - 1
        await trio.sleep(2)
        assert a.silent_seconds == 2
        await stream.send_all(message[-1:] + half)
        assert len(await a.receive()) == 5 << 20
        await trio.testing.wait_all_tasks_blocked()
        assert inflow.total == len(half)
        assert sys.getsizeof(a._connection._frames._buffer) < 64 << 10
        await stream.send_all(encode_frame(FrameKind.DATA, bytes(1_000))[-1:])
        assert await a.receive() == bytes(1_000)
        await trio.testing.wait_all_tasks_blocked()
        assert (inflow.total, a.silent_seconds) == (0, 0.0)
        await stream.send_all(half)
    assert inflow.total == 0


async def test_only_the_longest_of_many_long_messages_is_read(autojump_clock: trio.testing.MockClock) -> None:
    """The others wait until the longest is complete or given up; short ones do not wait."""
    inflow, limits = Inflow(2_000_000, trio.current_time), LinkLimits(ping_seconds=50, silence_seconds=99)
    message, got = encode_frame(FrameKind.DATA, bytes(1_500_000)), Counter[str]()
    async with half_link(limits) as (a, one), half_link(limits) as (b, two), half_link(limits) as (c, three):
        for link in (a, b, c):
            link.count_by(inflow)

        async def send(stream: trio.abc.Stream, link: Link, name: str, data: bytes) -> None:
            await stream.send_all(data)
            got[name] += len(await link.receive())

        async with trio.open_nursery() as nursery:
            await one.send_all(message[:-1])
            nursery.start_soon(send, two, b, "b", message)
            await trio.sleep(1)
            nursery.start_soon(send, three, c, "c", encode_frame(FrameKind.DATA, bytes(100_000)))
            await trio.sleep(1)
            assert got == {"c": 100_000}
            assert inflow.total <= inflow.most + READ_BYTES
            assert (b.silent_seconds, inflow.late()) == (0.0, a)
            await one.send_all(message[-1:])
            assert len(await a.receive()) == 1_500_000
            await trio.sleep(1)
            assert got == {"b": 1_500_000, "c": 100_000}
            assert (inflow.total, inflow.late()) == (0, None)


async def test_socket_is_read_when_bytes_have_arrived_and_into_a_small_buffer_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large buffer costs more than a small read; a long message gets one with its second read."""
    asked, read = list[tuple[int, int]](), os.read

    def noted(file: int, most: int) -> bytes:
        data = read(file, most)  # it never fails: reads happen only after the poll
        asked.append((most, len(data)))
        return data

    monkeypatch.setattr(os, "read", noted)
    near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as shake:
                shake.start_soon(_hello_only, far)
                link = Link(near, await dial_on(near, A, LinkLimits()), LinkLimits())
            nursery.start_soon(link.run)
            for size in (10, 3_000_000, 20):
                nursery.start_soon(far.send_all, encode_frame(FrameKind.DATA, bytes(size)))
                assert await link.receive() == bytes(size)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    await far.aclose()
    assert asked[0][0] == READ_FIRST_BYTES
    for (most, length), (following, _) in pairwise(asked):
        assert following == (READ_BYTES if length == most else READ_FIRST_BYTES)
    assert {most for most, _ in asked} == {READ_BYTES, READ_FIRST_BYTES}


async def test_ended_link_reads_no_further_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream may be closed at the moment its socket has bytes, and its number may belong to another stream."""
    near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    with trio.fail_after(30):
        async with trio.open_nursery() as shake:
            shake.start_soon(_hello_only, far)
            link = Link(near, await dial_on(near, A, LinkLimits()), LinkLimits())
        await far.send_all(b"for somebody else")

        async def ended_meanwhile(_: int) -> None:
            link._end(Code.LOST, "closed by another task")

        monkeypatch.setattr(trio.lowlevel, "wait_readable", ended_meanwhile)
        with pytest.raises(trio.ClosedResourceError):
            await link._receive(100)
        monkeypatch.undo()
        assert await near.receive_some(100) == b"for somebody else"
    await near.aclose()
    await far.aclose()


async def test_peer_that_hangs_up_at_once_is_not_reported_as_remote_without_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node dies during the connection: the client tries the next one, and no error advises certificates."""
    listener = socket.create_server(("127.0.0.1", 0))

    async def connect_late(host: str, port: int) -> trio.SocketStream:
        stream = trio.SocketStream(trio.socket.socket())
        await stream.socket.connect((host, port))
        caller, _ = listener.accept()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()  # with a reset
        with trio.fail_after(60), pytest.raises(OSError, match="reset"):
            await stream.socket.recv(1)
        return stream

    monkeypatch.setattr(trio, "open_tcp_stream", connect_late)
    with pytest.raises(DialError, match="hung up before it said HELLO") as found:
        await dial_link("127.0.0.1", listener.getsockname()[1], Hello("me", None, "client"))
    assert not isinstance(found.value, TlsError)
    listener.close()

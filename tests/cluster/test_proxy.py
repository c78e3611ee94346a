"""The proxies of the stories and the chaos cut, hold, delay and record messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from bedrockish.core.protocol.messages import Fetch as Said
from bedrockish.core.protocol.messages import Message, decode, encode
from bedrockish_net.frame import FrameKind, FrameReader, encode_frame
from tools.chaos.proxy import Network

BOUND_S = 60


def said(number: int) -> bytes:
    return encode_frame(FrameKind.DATA, encode(Said({"A": number}, 1)))


class Listener:
    """The server behind the proxy; it records the received numbers."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.news = trio.Event()

    async def take(self, stream: trio.SocketStream) -> None:
        reader = FrameReader(1 << 20)
        async for data in stream:
            reader.feed(bytes(data))
            while (frame := reader.next_frame()) is not None:
                message = decode(frame[1])
                assert isinstance(message, Said)
                self.heard += message.wants.values()
                self.news.set()
                self.news = trio.Event()
            await stream.send_all(b"thanks")

    async def until(self, heard: list[int]) -> None:
        with trio.fail_after(BOUND_S):
            while self.heard != heard:
                await self.news.wait()


@asynccontextmanager
async def line() -> AsyncIterator[tuple[Network, Listener, trio.SocketStream]]:
    async with trio.open_nursery() as nursery:
        listener = Listener()
        (listening,) = await nursery.start(partial(trio.serve_tcp, listener.take, 0, host="127.0.0.1"))
        network = Network({"A": 1, "B": listening.socket.getsockname()[1]})
        await network.open()
        nursery.start_soon(network.run)
        async with await trio.open_tcp_stream("127.0.0.1", network.lines["A", "B"].port) as stream:
            yield network, listener, stream
        nursery.cancel_scope.cancel()


async def test_proxy_passes_messages_and_answers() -> None:
    async with line() as (_, listener, stream):
        await stream.send_all(said(1) + said(2))
        await listener.until([1, 2])
        assert (await stream.receive_some(6)) == b"thanks"


async def test_cut_link_ends_open_and_new_connections() -> None:
    async with line() as (network, listener, stream):
        await stream.send_all(said(1))
        await listener.until([1])
        with network.cut(network.between("A", "B")):
            with trio.fail_after(BOUND_S):
                while await stream.receive_some():
                    pass
            async with await trio.open_tcp_stream("127.0.0.1", network.lines["A", "B"].port) as again:
                with trio.fail_after(BOUND_S):
                    assert await again.receive_some() == b""
        async with await trio.open_tcp_stream("127.0.0.1", network.lines["A", "B"].port) as healed:
            await healed.send_all(said(2))
            await listener.until([1, 2])


async def test_proxy_delivers_nothing_after_a_trapped_message_until_it_is_healed() -> None:
    async with line() as (network, listener, stream):
        one = network.lines["A", "B"]

        def is_second(message: Message) -> bool:
            return isinstance(message, Said) and message.wants == {"A": 2}

        one.set_trap(is_second)
        await stream.send_all(said(1) + said(2) + said(3))
        with trio.fail_after(BOUND_S):
            await one.caught.wait()
        await listener.until([1])
        one.heal()
        await listener.until([1, 2, 3])


async def test_held_messages_are_lost_when_the_line_is_cut() -> None:
    async with line() as (network, listener, stream):
        one = network.lines["A", "B"]
        one.set_trap(lambda message: True)
        await stream.send_all(said(1))
        with trio.fail_after(BOUND_S):
            await one.caught.wait()
        one.cut()
        one.heal()
        async with await trio.open_tcp_stream("127.0.0.1", one.port) as again:
            await again.send_all(said(2))
            await listener.until([2])


async def test_slowed_link_keeps_the_order_of_messages() -> None:
    async with line() as (network, listener, stream):
        network.lines["A", "B"].slow(0.2)
        began = trio.current_time()
        await stream.send_all(said(1) + said(2))
        await listener.until([1, 2])
        assert trio.current_time() - began >= 0.2


@pytest.mark.parametrize(
    ("groups", "cut"),
    [
        (("ABC", "CDE"), {"AD", "AE", "BD", "BE", "DA", "EA", "DB", "EB"}),
        (("BCDE",), {"AB", "AC", "AD", "AE", "BA", "CA", "DA", "EA"}),
    ],
)
async def test_partition_cuts_the_links_between_groups_that_may_share_nodes(
    groups: tuple[str, ...], cut: set[str]
) -> None:
    network = Network(dict.fromkeys("ABCDE", 1))
    assert {one.source + one.target for one in network.apart(*groups)} == cut

"""Calls of one node at another: however they end, the caller gets one error, of a class that it catches."""

from typing import Any, cast

import pytest
import trio
import trio.testing

from bedrockish.api.url import Address
from bedrockish.api.wire import UPKEEP, Ask
from bedrockish.client.credentials import ClientCredentials
from bedrockish.errors import AuthenticationError, BedrockishError, UnavailableError, UsageError
from bedrockish.node.cluster.join import calls
from bedrockish_net.errors import Code, LinkClosedError, NetError, RefusedError
from bedrockish_net.events import Hello
from bedrockish_net.stream import Link

PLACE = Address("localhost", 1)
HELLO = Hello("repair-A", "c", "client")


class BrokenEntry:
    """An entry whose link ends, with a given reason, as soon as a caller waits for an answer."""

    def __init__(self, end: NetError) -> None:
        self.end, self.asked = end, trio.Event()

    async def dial(self, *_: Any) -> Link:
        return cast(Link, self)

    async def run(self) -> None:
        await self.asked.wait()
        raise self.end

    async def send(self, _: bytes) -> None:
        self.asked.set()

    async def receive(self) -> bytes:
        raise self.end


@pytest.mark.parametrize("said", [UsageError("no such thing"), UnavailableError("not two nodes")])
async def test_error_of_the_body_hides_a_lost_link(said: BedrockishError) -> None:
    entry = BrokenEntry(LinkClosedError(Code.LOST, "gone"))

    async def fails_as_it_ends() -> None:
        async with calls(PLACE, HELLO, cast(ClientCredentials, entry)):
            await trio.testing.wait_all_tasks_blocked()
            entry.asked.set()
            raise said

    with pytest.raises(type(said)) as raised:
        await fails_as_it_ends()
    assert raised.value is said


async def test_error_of_several_links_is_raised_as_one() -> None:
    """A comparison of tables has such calls, when one node refuses and another stops."""
    entries = [BrokenEntry(LinkClosedError(Code.LOST, "gone")), BrokenEntry(LinkClosedError(Code.LOST, "gone, too"))]
    said = UnavailableError("there are not two nodes to compare")

    async def fails_as_they_end() -> None:
        async with (
            calls(PLACE, HELLO, cast(ClientCredentials, entries[0])),
            calls(PLACE, HELLO, cast(ClientCredentials, entries[1])),
        ):
            await trio.testing.wait_all_tasks_blocked()
            for entry in entries:
                entry.asked.set()
            raise said

    with pytest.raises(UnavailableError, match="not two nodes"):
        await fails_as_they_end()


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (LinkClosedError(Code.LOST, "gone"), UnavailableError),
        (RefusedError(Code.AUTHENTICATION, "who are you"), AuthenticationError),
    ],
)
async def test_ended_link_raises_an_error_of_bedrockish(end: NetError, told: type[BedrockishError]) -> None:
    entry = BrokenEntry(end)
    with pytest.raises(told):
        async with calls(PLACE, HELLO, cast(ClientCredentials, entry)) as call:
            await call(Ask(1, UPKEEP, asked={"do": "scrub"}))

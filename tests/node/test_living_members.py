"""An order that depends on the living waits until each member has sent a message after it, or counts as dead."""

from types import SimpleNamespace

import trio
from trio.testing import MockClock

from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.health import Mode
from bedrockish.node.cluster.membership import ON_THE_WAY_S, SILENT_MS_MIN, wait_for_alive


class Members:
    """A core that knows one peer, which sent its last message at ``heard``."""

    def __init__(self, heard: float) -> None:
        self.peer = SimpleNamespace(heard=heard, up=True, mode=Mode.SERVING)
        settings = SimpleNamespace(suspicion_ms=SILENT_MS_MIN // 4)
        self.state = SimpleNamespace(roster=SimpleNamespace(peers={"B": self.peer}), settings=settings)


def now() -> Now:
    return Now(trio.current_time(), 0)


async def test_message_that_was_under_way_is_no_sign_of_life(autojump_clock: MockClock) -> None:
    """The member has failed before the order, and counts as dead two seconds after its last message."""
    core = Members(trio.current_time())
    began = trio.current_time()
    core.peer.heard += ON_THE_WAY_S / 2
    await wait_for_alive(core, now)  # type: ignore[arg-type]
    assert trio.current_time() - began >= SILENT_MS_MIN / 1000


async def test_member_that_sends_after_the_order_ends_the_wait(autojump_clock: MockClock) -> None:
    core = Members(trio.current_time())
    began = trio.current_time()

    async def send() -> None:
        await trio.sleep(2 * ON_THE_WAY_S)
        core.peer.heard = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_for_alive(core, now)  # type: ignore[arg-type]
    assert 2 * ON_THE_WAY_S <= trio.current_time() - began < SILENT_MS_MIN / 1000

"""The drain of a node that stops."""

import trio

from bedrockish.node.departure import POLL_S, _poll


async def test_drain_continues_after_an_unread_message(autojump_clock: trio.abc.Clock) -> None:
    """After a stall, the loop finds the transaction idle, and reads the transaction's next step right after that."""
    told = iter([True, False, True, False, False, True])
    asked: list[bool] = []

    def is_busy() -> bool:
        asked.append(next(told))
        return asked[-1]

    await _poll(is_busy, 1.0)
    assert asked == [True, False, True, False, False]


async def test_wait_for_open_calls_at_shutdown_ends_at_its_limit(autojump_clock: trio.abc.Clock) -> None:
    began = trio.current_time()
    await _poll(lambda: True, 1.0)
    assert 1.0 <= trio.current_time() - began < 1.0 + 2 * POLL_S

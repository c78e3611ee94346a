"""Steps: a step that waits for nothing is done at once, and another one in a task."""

import pytest
import trio

from bedrockish.node.transactions import steps


def counting(seen: list[str], waits: int) -> steps.Steps[int]:
    total = 0
    try:
        for number in range(waits):

            async def wanted(number: int = number) -> int:
                await trio.lowlevel.checkpoint()
                if number == 7:
                    raise KeyError(number)
                return 10 * number

            try:
                total += yield from steps.wait(wanted)
            except KeyError:
                seen.append("error")
    finally:
        seen.append("over")
    return total


async def test_steps_that_wait_for_nothing_are_done_at_once() -> None:
    seen: list[str] = []
    assert steps.begin(counting(seen, 0)) == 0
    assert seen == ["over"]


async def test_steps_receive_awaited_results_and_errors() -> None:
    seen: list[str] = []
    rest = steps.begin(counting(seen, 9))
    assert not isinstance(rest, int)
    assert seen == []
    assert await rest() == sum(10 * number for number in range(9) if number != 7)
    assert seen == ["error", "over"]
    assert await steps.run(counting(seen, 3)) == 30


async def test_abandoned_steps_release_their_resources() -> None:
    """They do so with and without a waiting caller."""
    seen: list[str] = []
    with trio.move_on_after(0) as scope:
        await steps.run(counting(seen, 1))
    assert scope.cancelled_caught
    assert seen == ["over"]
    rest = steps.begin(counting(seen, 1))
    del rest
    assert seen == ["over", "over"]


async def test_an_error_of_the_steps_is_raised() -> None:
    def failing(waits: bool) -> steps.Steps[None]:
        if waits:
            yield trio.lowlevel.checkpoint
        raise LookupError

    with pytest.raises(LookupError):
        steps.begin(failing(waits=False))
    rest = steps.begin(failing(waits=True))
    assert rest is not None
    with pytest.raises(LookupError):
        await rest()

"""``DeadlineTimer``: a task that makes a call at a deadline, which may move."""

import math

import trio
import trio.testing

from bedrockish.common.deadline_timer import DeadlineTimer


class Sleeper:
    """Has a time for its wakeup, and records its wakeups."""

    def __init__(self) -> None:
        self.when: float | None = math.inf
        self.rung: list[float] = []
        self.alarm = DeadlineTimer(lambda: self.when, trio.current_time, self.ring)

    def ring(self) -> None:
        self.rung.append(trio.current_time())

    def wants(self, when: float | None) -> None:
        self.when = when
        self.alarm.reschedule()


async def test_alarm_rings_at_the_newest_time_that_was_set(autojump_clock: trio.testing.MockClock) -> None:
    sleeper = Sleeper()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.alarm.run)
        await trio.sleep(5)
        assert not sleeper.rung
        start = trio.current_time()
        sleeper.wants(start + 10)
        await trio.sleep(1)
        sleeper.wants(start + 3)  # earlier
        await trio.sleep(20)
        assert sleeper.rung == [start + 3]
        sleeper.wants(start + 30)
        await trio.sleep(1)
        sleeper.wants(start + 40)  # later: the old time passes without a ring
        await trio.sleep_until(start + 50)
        assert sleeper.rung == [start + 3, start + 40]
        count = len(sleeper.rung)
        sleeper.wants(None)
        await trio.sleep(100)
        assert len(sleeper.rung) == count
        sleeper.wants(trio.current_time() - 1)  # it is past already
        await trio.sleep(1)
        assert len(sleeper.rung) == count + 1
        nursery.cancel_scope.cancel()


async def test_alarm_task_is_not_woken_when_its_time_moves(autojump_clock: trio.testing.MockClock) -> None:
    """Each wakeup of a task costs as much as a read."""
    sleeper, steps = Sleeper(), 0

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal steps
            steps += task.name.endswith("DeadlineTimer.run")

    trio.lowlevel.add_instrument(Steps())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.alarm.run)
        await trio.sleep(1)
        start = trio.current_time()
        for earlier in range(20):
            sleeper.wants(start + 50 - earlier)
            await trio.sleep(0.1)
        assert steps == 1
        await trio.sleep(100)
        assert sleeper.rung == [start + 31]
        nursery.cancel_scope.cancel()


async def test_alarm_rings_again_at_a_deadline_set_while_it_rings(autojump_clock: trio.testing.MockClock) -> None:
    sleeper = Sleeper()

    def ring() -> None:
        sleeper.rung.append(trio.current_time())
        sleeper.wants(trio.current_time() + 1)

    sleeper.alarm = DeadlineTimer(lambda: sleeper.when, trio.current_time, ring)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.alarm.run)
        start = trio.current_time()
        sleeper.wants(start + 1)
        await trio.sleep_until(start + 5.5)
        assert sleeper.rung == [start + 1, start + 2, start + 3, start + 4, start + 5]
        nursery.cancel_scope.cancel()

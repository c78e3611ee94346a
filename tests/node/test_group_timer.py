"""The group timer decides when the short writes that wait at a node are executed."""

from pathlib import Path

import pytest
import trio

from bedrockish.api.requests import Answer, Request, Statement
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling import group_timer
from bedrockish.node.scheduling.group_timer import GATHER_PART, GATHER_S, GroupTimer
from tests.node.test_durability import open_runtime, request

COMMIT_S = 0.004


class Scene:
    """A timer with a clock that the test moves."""

    def __init__(self, size_max: int = 64, commit_s: float = COMMIT_S) -> None:
        self.seconds = 100.0
        self.timer = GroupTimer(lambda: commit_s, lambda: size_max, lambda: self.seconds)

    def learn(self, count: int) -> None:
        """Have so many come together again and again."""
        for _ in range(count):
            self.timer.answered(count, 0)
            self.timer.executed(count)


def test_group_timer_does_not_delay_a_lone_writer() -> None:
    scene = Scene()
    for _ in range(20):
        assert scene.timer.is_due(1)
        assert scene.timer.due_at() is None
        scene.timer.executed(1)
        scene.timer.answered(1, 0)


def test_timer_waits_for_as_many_requests_as_were_answered_together() -> None:
    scene = Scene()
    scene.learn(5)
    scene.timer.answered(5, 0)
    assert [scene.timer.is_due(waiting) for waiting in range(1, 6)] == [False, False, False, False, True]


def test_timer_waits_for_as_many_requests_as_were_answered_or_waited() -> None:
    scene = Scene()
    scene.learn(5)
    scene.timer.answered(3, 2)
    assert not scene.timer.is_due(4)
    assert scene.timer.is_due(5)


@pytest.mark.parametrize(("commit_s", "longest_s"), [(COMMIT_S, GATHER_PART * COMMIT_S), (1.0, GATHER_S)])
def test_group_wait_is_a_bounded_share_of_the_commit_time(commit_s: float, longest_s: float) -> None:
    scene = Scene(commit_s=commit_s)
    scene.learn(5)
    scene.timer.answered(5, 0)
    assert scene.timer.due_at() == pytest.approx(scene.seconds + longest_s)
    scene.seconds += 0.99 * longest_s
    assert not scene.timer.is_due(1)
    scene.seconds += 0.02 * longest_s
    assert scene.timer.is_due(1)


def test_later_answers_do_not_extend_the_wait_of_a_group() -> None:
    scene = Scene()
    scene.learn(5)
    scene.timer.answered(5, 0)
    at = scene.timer.due_at()
    for _ in range(10):
        scene.seconds += COMMIT_S / 100
        scene.timer.answered(5, 1)
        assert scene.timer.due_at() == at


def test_group_timer_learns_the_size_of_groups() -> None:
    scene = Scene()
    for count in range(1, 6):  # one more each time
        scene.timer.answered(5, 0)
        assert scene.timer.is_due(count)
        assert count == 1 or not scene.timer.is_due(count - 1)
        scene.timer.executed(count)
    scene.timer.answered(5, 0)
    scene.seconds += 1
    scene.timer.executed(2)  # three stayed away
    scene.timer.answered(5, 0)
    assert scene.timer.is_due(2)


def test_group_timer_waits_for_at_most_one_full_group() -> None:
    scene = Scene(size_max=1)  # the last group met a conflict
    scene.learn(5)
    scene.timer.answered(5, 0)
    assert scene.timer.is_due(1)


def insert(number: int) -> Request:
    return Request(f"c{number}", (Statement("INSERT INTO t VALUES (?)", (number,)),), timeout_s=5)


async def test_node_waits_for_as_many_requests_as_it_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients, of which one is a little later each time, share a transaction from the second time on."""
    monkeypatch.setattr(group_timer, "GATHER_S", 30.0)
    monkeypatch.setattr(group_timer, "GATHER_PART", 30_000.0)
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[Answer | BedrockishError] = []

    async def round_of(first: int, *, apart: bool) -> int:
        """Begin the INSERTs of two writers; return how many transactions the node led for them."""
        commits, answered = runtime.counts["commits_led"], len(answers)
        runtime.begin(insert(first), answers.append)
        if apart:
            for _ in range(50):
                await trio.sleep(0.001)
            assert len(answers) == answered
        runtime.begin(insert(first + 1), answers.append)
        with trio.fail_after(60):
            while len(answers) < answered + 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
        return runtime.counts["commits_led"] - commits

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await runtime.submit(insert(0))  # from now on it is known to be short
        await runtime.submit(insert(1))
        assert await round_of(2, apart=False) == 1
        assert await round_of(4, apart=True) == 1
        # One writer has gone: the other one is executed at the end of the wait, without further arrivals.
        monkeypatch.setattr(group_timer, "GATHER_S", 0.05)
        runtime.begin(insert(6), answers.append)
        runtime.begin(insert(7), answers.append)
        with trio.fail_after(60):
            while len(answers) < 6:  # noqa: ASYNC110
                await trio.sleep(0.001)
            await runtime.submit(insert(8))
            await runtime.submit(insert(9))
        assert not any(isinstance(answer, BedrockishError) for answer in answers)
        nursery.cancel_scope.cancel()
    engine.close()

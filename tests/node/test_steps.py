"""Steps run at once until they wait: an answer of the core resumes them without a task, any other result in a task."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from bedrockish.api.requests import NOTHING, Answer, Token
from bedrockish.errors import BedrockishError, ConflictError, UnavailableError
from bedrockish.node.scheduling.durability import Done
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.steps import RemainingSteps, Steps, Submission, begin, run


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


async def test_coroutine_without_waits_runs_at_once_without_a_task() -> None:
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
    """Steps release them with and without a waiting caller."""
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


ANSWER = Answer(NOTHING, Token())


class Core:
    """Keeps the functions that take the answers of submissions."""

    def __init__(self) -> None:
        self.waiting: list[Done] = []

    def submission(self) -> Submission:
        """Return a submission, whose answer the test gives; a task gets it at once."""

        async def submit() -> Answer:
            return ANSWER

        return Submission(self.waiting.append, submit)


def commits(core: Core, after: Callable[[], Awaitable[Any]] | None = None) -> Steps[str]:
    """Submit a command; then wait for something else, if it is given."""
    try:
        yield core.submission()
    except ConflictError as error:
        raise UnavailableError("told otherwise") from error
    if after is not None:
        yield after
    return "over"


def resting(waiting: Steps[str]) -> RemainingSteps[str]:
    """Return the rest of steps that wait."""
    found = begin(waiting)
    assert isinstance(found, RemainingSteps)
    return found


def no_task(_rest: RemainingSteps[str]) -> None:
    """Fail, because the steps wait for the core only."""
    pytest.fail("a task was started")


def test_answer_of_the_core_resumes_the_steps_without_a_task() -> None:
    core, found = Core(), list[str | Exception]()
    resting(commits(core)).run_without_task(found.append, no_task)
    assert not found
    core.waiting.pop()(ANSWER)
    assert found == ["over"]


def test_error_of_the_core_is_raised_in_the_steps() -> None:
    core, found = Core(), list[str | Exception]()
    resting(commits(core)).run_without_task(found.append, no_task)
    core.waiting.pop()(ConflictError("lost"))
    assert isinstance(found[0], UnavailableError)
    assert isinstance(found[0].__cause__, BedrockishError)


async def test_request_that_waits_again_after_its_answer_goes_on_in_a_task() -> None:
    core, found, tasks = Core(), list[str | Exception](), list[RemainingSteps[str]]()
    waited = trio.Event()
    resting(commits(core, waited.wait)).run_without_task(found.append, tasks.append)
    core.waiting.pop()(ANSWER)
    assert not found
    waited.set()
    assert await tasks.pop()() == "over"


async def test_task_submits_a_command_and_awaits_its_answer() -> None:
    core = Core()
    assert await resting(commits(core))() == "over"
    assert await run(commits(core)) == "over"
    assert await run(steps.wait(core.submission())) == ANSWER
    assert not core.waiting

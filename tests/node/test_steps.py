"""Steps of operations: resumed by an answer of the core without a task, and continued in a task for other waits."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from bedrockish.api.requests import NOTHING, Answer, Token
from bedrockish.errors import BedrockishError, ConflictError, UnavailableError
from bedrockish.node.scheduling.durability import Done
from bedrockish.node.transactions.steps import Rest, Steps, Submission, begin, run, wait

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


def resting(steps: Steps[str]) -> Rest[str]:
    """Return the rest of steps that wait."""
    found = begin(steps)
    assert isinstance(found, Rest)
    return found


def no_task(_rest: Rest[str]) -> None:
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


async def test_other_wait_after_the_answer_goes_on_in_a_task() -> None:
    core, found, tasks = Core(), list[str | Exception](), list[Rest[str]]()
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
    assert await run(wait(core.submission())) == ANSWER
    assert not core.waiting

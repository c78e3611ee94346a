"""Operations that run without a task of their own until they wait for anything but the core.

An operation is a generator, ``Steps``, which yields awaitables and is sent their results. Usually it runs to its end in
the task that reads the call. If it submits a command to the core, the command's answer resumes it. If it waits for
anything else, the generator is continued in a task.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from bedrockish.api.requests import Answer, Request
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling.durability import Done, MakePrepared
from bedrockish_journal.model.vector import Vector

T = TypeVar("T")
Wanted = Callable[[], Awaitable[Any]]
Steps = Generator[Wanted, Any, T]


@dataclass(frozen=True, slots=True)
class Submission:
    """A command for the core, as an awaitable for tasks and for steps.

    ``begin`` submits the command and passes its answer to a function; ``wait`` submits it and returns its answer.
    """

    begin: Callable[[Done], None]
    wait: Callable[[], Awaitable[Answer]]

    def __call__(self) -> Awaitable[Answer]:
        """Submit the command; return an awaitable for its answer."""
        return self.wait()

    def __await__(self) -> Generator[Any, None, Answer]:
        return self.wait().__await__()


class Submit(Protocol):
    """Makes submissions; see ``Runtime.submit``."""

    def __call__(
        self,
        request: Request,
        prepare: MakePrepared | None = None,
        *,
        once: bool = False,
        shares: bool = False,
        base: Vector | None = None,
    ) -> Submission:
        """Return the submission of a request, which is executed by ``prepare`` or, without it, by the engine."""


class RemainingSteps(Generic[T]):
    """The steps of an operation from its first wait on."""

    def __init__(self, steps: Steps[T], wanted: Wanted) -> None:
        self._steps, self._wanted = steps, wanted

    async def __call__(self) -> T:
        """Run the rest to its end, and return the operation's result.

        Raises:
            Exception: any exception of the steps.
        """
        steps, wanted = self._steps, self._wanted
        with closing(steps):
            while True:
                try:
                    try:
                        got = await wanted()
                    except BaseException as error:  # also Cancelled: the steps release what they hold
                        wanted = steps.throw(error)
                    else:
                        wanted = steps.send(got)
                except StopIteration as end:
                    found: T = end.value
                    return found

    def run_without_task(
        self, done: Callable[[T | Exception], None], start_task: Callable[["RemainingSteps[T]"], None]
    ) -> None:
        """Run the rest to its end, resumed by the core's answers, and pass ``done`` its result or its error.

        If the steps wait for anything but the core, call ``start_task`` with the remaining steps in place of ``done``.
        """
        if isinstance(self._wanted, Submission):
            self._wanted.begin(partial(self._resume, done, start_task))
        else:
            start_task(self)

    def _resume(
        self,
        done: Callable[[T | Exception], None],
        start_task: Callable[["RemainingSteps[T]"], None],
        answer: Answer | BedrockishError,
    ) -> None:
        steps = self._steps
        try:
            self._wanted = steps.throw(answer) if isinstance(answer, BedrockishError) else steps.send(answer)
        except StopIteration as end:
            done(end.value)
        except Exception as error:
            done(error)
        else:
            self.run_without_task(done, start_task)


def wait(wanted: Callable[[], Awaitable[T]]) -> Steps[T]:
    """Wait for an awaitable, and return its result."""
    found: T = yield wanted
    return found


def begin(steps: Steps[T]) -> T | RemainingSteps[T]:
    """Run steps up to the first wait; return their result, or the rest of them.

    Raises:
        Exception: any exception of the steps.
    """
    try:
        wanted = next(steps)
    except StopIteration as end:
        found: T = end.value
        return found
    return RemainingSteps(steps, wanted)


async def run(steps: Steps[T]) -> T:
    """Run steps to their end, and return their result.

    Raises:
        Exception: any exception of the steps.
    """
    found = begin(steps)
    return await found() if isinstance(found, RemainingSteps) else found

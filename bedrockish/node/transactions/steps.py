"""What is done as far as nothing has to be waited for, and goes on in a task only if something has.

*Steps* are a generator. What it yields has to be awaited, and it is sent what comes of that; so the same code runs
where a call is read, to its end as a rule, and in a task otherwise.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Wanted = Callable[[], Awaitable[Any]]
Steps = Generator[Wanted, Any, T]
Rest = Callable[[], Awaitable[T]]


def wait(wanted: Callable[[], Awaitable[T]]) -> Steps[T]:
    """Wait for something, and return what comes of it."""
    found: T = yield wanted
    return found


def begin(steps: Steps[T]) -> T | Rest[T]:
    """Do steps up to the first that waits; return what came of them, or what goes on with them, to be awaited.

    Raises:
        Exception: what the steps raise.
    """
    try:
        wanted = next(steps)
    except StopIteration as end:
        found: T = end.value
        return found
    return partial(_go_on, steps, wanted)


async def run(steps: Steps[T]) -> T:
    """Do steps to their end.

    Raises:
        Exception: what the steps raise.
    """
    try:
        wanted = next(steps)
    except StopIteration as end:
        found: T = end.value
        return found
    return await _go_on(steps, wanted)


async def _go_on(steps: Steps[T], wanted: Wanted) -> T:
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

"""Operations that run without a task up to their first wait, and go on in a task only if they have to wait.

An operation is a generator, ``Steps``, which yields awaitables and is sent their results. As a rule it runs to its end
where the call is read; if it has to wait, the same generator goes on in a task.
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
    """Wait for an awaitable, and return its result."""
    found: T = yield wanted
    return found


def begin(steps: Steps[T]) -> T | Rest[T]:
    """Run steps up to the first wait; return their result, or an awaitable that goes on with them.

    Raises:
        Exception: any exception of the steps.
    """
    try:
        wanted = next(steps)
    except StopIteration as end:
        found: T = end.value
        return found
    return partial(_go_on, steps, wanted)


async def run(steps: Steps[T]) -> T:
    """Run steps to their end, and return their result.

    Raises:
        Exception: any exception of the steps.
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

"""Runs a client's coroutine methods in the thread that calls them, which waits for the sockets itself."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from bedrockish.common.forks import notice_fork

P = ParamSpec("P")
T = TypeVar("T")


def run(method: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    """Run a client's coroutine method, which must not wait for an event loop, to its end; return its result."""
    notice_fork()
    coroutine: Any = method(*args, **kwargs)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    coroutine.close()
    raise AssertionError(f"{method} needs a running event loop")


def blocking(twin: str, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking method that runs a coroutine method of the object in the attribute named ``twin``."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method, getattr(self, twin), *args, **kwargs)

    return call

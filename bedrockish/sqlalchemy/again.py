"""Retries of transactions that lost a conflict, for sessions of SQLAlchemy's ORM and connections of its core."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError

from bedrockish.common.pauses import Pauses

T = TypeVar("T")
MADE_MAX = 5  # how often a conflict with another creator of a table is retried


def run_transaction(maker: Any, function: Callable[[Any], T], *, timeout: float = 30.0) -> T:
    """Run ``function(session)`` in a transaction, and run all of it again if it lost to another transaction.

    The function may be run several times, each time with a new session, so it should change nothing but the database,
    and return no object that belongs to the session.

    Args:
        maker: a ``sessionmaker``, or an ``Engine``, which gives the function a connection in place of a session.
        function: the work of the transaction.
        timeout: seconds after which the transaction is not tried again.

    Raises:
        DBAPIError: the transaction could not be committed in time. If ``error.orig.code`` is ``unknown``, its outcome
            is unknown; otherwise it did not happen.
    """

    def attempt() -> T:
        begun: AbstractContextManager[Any] = maker.begin()
        with begun as session:
            return function(session)

    return repeated(attempt, timeout)


def repeated(attempt: Callable[[], T], timeout: float = 30.0) -> T:
    """Run one whole transaction, and run it again after a conflict.

    Args:
        attempt: runs the transaction, from its begin to its commit.
        timeout: seconds after which the transaction is not tried again.

    Raises:
        DBAPIError: see ``run_transaction``.
    """
    tries = _Tries(timeout)
    while True:
        try:
            return attempt()
        except DBAPIError as error:
            pause_s = tries.pause_s(error)
            if pause_s is None:
                raise
        time.sleep(pause_s)


async def run_transaction_async(
    maker: Any,
    function: Callable[[Any], Awaitable[T]],
    *,
    timeout: float = 30.0,  # noqa: ASYNC109  as its twin has it
) -> T:
    """Await ``function(session)`` in a transaction, and run all of it again if it lost; see ``run_transaction``.

    ``maker`` is an ``async_sessionmaker``, or an ``AsyncEngine``.
    """
    tries = _Tries(timeout)
    while True:
        try:
            async with maker.begin() as session:
                return await function(session)
        except DBAPIError as error:
            pause_s = tries.pause_s(error)
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)


class _Tries:
    """Decides whether and when a failed transaction is tried again."""

    def __init__(self, timeout: float) -> None:
        self._pauses, self._number = Pauses(timeout), 0

    def pause_s(self, error: DBAPIError) -> float | None:
        """Return the seconds to wait before the next try; None if the transaction is not tried again."""
        self._number += 1
        again = lost(error) or (self._number <= MADE_MAX and was_made(error))
        return self._pauses.draw() if again else None


def lost(error: DBAPIError) -> bool:
    """Return whether an error says that the transaction did not happen, and can be run again."""
    return bool(getattr(error.orig, "retry", False))


def was_made(error: DBAPIError) -> bool:
    """Return whether an error says that a table or index exists already; a retry that first looks for it succeeds."""
    return "already exists" in str(error.orig)

"""The call interface of a client: the methods of a driver, with or without an event loop, that a session uses."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bedrockish.api.url import Address
from bedrockish.api.wire import Answered, Told
from bedrockish.client.sansio.core import ClientCore
from bedrockish.client.sansio.transaction_steps import What

T = TypeVar("T")


class Calls:
    """The methods of a client's driver and session that its streams, transactions and file reads use."""

    _core: ClientCore
    _is_closed: bool

    @property
    def is_closed(self) -> bool:
        """Return whether the client is closed."""
        return self._is_closed

    async def _call(self, what: What, timeout_s: float) -> Answered | Told:
        return await self._wait(self._begin(what, timeout_s))

    def _begin(self, what: What, timeout_s: float) -> int:
        """Begin a call and return its number, for ``_wait`` or ``_cancel``."""
        raise NotImplementedError

    async def _wait(self, number: int) -> Answered | Told:
        raise NotImplementedError

    def _cancel(self, number: int) -> None:
        raise NotImplementedError

    def _notify(self, what: What, timeout_s: float) -> None:
        """Make a call without waiting for its answer."""
        raise NotImplementedError

    def _seconds(self, timeout_s: float | None) -> float:
        """Return the timeout of a call: the given one, or the session's if None."""
        raise NotImplementedError

    def leave_node(self, towards: Sequence[Address] = ()) -> None:
        """Move to another node, if there is one; to one of ``towards``, if any are given."""
        raise NotImplementedError

    async def _in_place(
        self,
        method: Callable[..., T],
        *arguments: Any,
        stop: Callable[[], None] | None = None,
        at_once: Callable[..., T | None] | None = None,
    ) -> T:
        """Run a method that may take as long as a statement; if the call is cancelled, ``stop`` ends the statement.

        Args:
            at_once: does the same with the same arguments if that takes some microseconds; otherwise returns None.
        """
        raise NotImplementedError

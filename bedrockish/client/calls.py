"""The call interface of a client: the methods of a driver, with or without an event loop, that a session uses."""

from bedrockish.api.requests import Params, Rows
from bedrockish.api.wire import Answered, Told
from bedrockish.client.sansio.transaction_steps import What


class Calls:
    """The methods of a driver and of a session that the parts of the session use."""

    async def _call(self, what: What, timeout_s: float) -> Answered | Told:
        """Make a call, and wait for its answer."""
        raise NotImplementedError

    def _begin(self, what: What, timeout_s: float) -> int:
        """Begin a call and return its number, for ``_wait`` or ``_cancel``."""
        raise NotImplementedError

    async def _wait(self, number: int) -> Answered | Told:
        raise NotImplementedError

    def _cancel(self, number: int) -> None:
        raise NotImplementedError

    def _tell(self, what: What, timeout_s: float) -> None:
        """Make a call without waiting for its answer."""
        raise NotImplementedError

    def _seconds(self, timeout_s: float | None) -> float:
        """Return the timeout of a call: the given one, or the session's if None."""
        raise NotImplementedError

    async def execute(
        self, sql: str, params: Params = None, *, timeout: float | None = None, read: str | None = None
    ) -> Rows:
        """Run one statement."""
        raise NotImplementedError

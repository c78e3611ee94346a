"""The call interface of a client: what a driver gives to the parts of a session, whatever moves the links."""

from bedrockish.api.requests import Params, Rows
from bedrockish.api.wire import Answered, Told
from bedrockish.client.sansio.transaction_steps import What


class Calls:
    """The methods of a driver, and those of a session that its parts use."""

    async def _call(self, what: What, timeout_s: float) -> Answered | Told:
        """Make a call, and wait for its answer."""
        raise NotImplementedError

    def _begin(self, what: What, timeout_s: float) -> int:
        """Begin a call; ``_wait`` for the number that is returned, or ``_cancel`` it."""
        raise NotImplementedError

    async def _wait(self, number: int) -> Answered | Told:
        raise NotImplementedError

    def _cancel(self, number: int) -> None:
        raise NotImplementedError

    def _tell(self, what: What, timeout_s: float) -> None:
        """Make a call without waiting for its answer."""
        raise NotImplementedError

    def _seconds(self, timeout_s: float | None) -> float:
        """Return the time that a call may take."""
        raise NotImplementedError

    async def execute(
        self, sql: str, params: Params = None, *, timeout: float | None = None, read: str | None = None
    ) -> Rows:
        """Run one statement."""
        raise NotImplementedError

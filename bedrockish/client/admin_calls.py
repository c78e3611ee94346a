"""The calls of a client about the cluster's clock and the length of the journal, and functions that interpret a clock.

A clock is one integer: 42 bits of Unix milliseconds and 22 bits of counter. The greater of two clocks is the later one.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from bedrockish.api.requests import STALE
from bedrockish.api.wire import UPKEEP, Answered, Ask, Told
from bedrockish.client.calls import Calls
from bedrockish_journal.model.clock import milliseconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def clock_time(clock: int) -> datetime:
    """Return the moment in a clock, in UTC."""
    return EPOCH + timedelta(milliseconds=milliseconds(clock))


def is_after(later: int, earlier: int) -> bool:
    """Return whether the first clock is after the second."""
    return later > earlier


class ClockCalls(Calls):
    """The calls of a client that are about clocks and the journal's length."""

    async def cluster_clock(self, *, timeout: float | None = None) -> int:
        """Return a new value of the connected node's clock, later than each clock that the node has heard of.

        Raises:
            BedrockishError: no node could be asked.
        """
        return int((await self.execute("SELECT cluster_clock()", timeout=timeout, read=STALE)).value())

    async def transaction_clock(self, *, timeout: float | None = None) -> int:
        """Return a clock later than each commit that any node acknowledged before this call; ask a majority for it.

        Raises:
            BedrockishError: no majority could be asked.
        """
        return int((await self.execute("SELECT transaction_clock()", timeout=timeout, read=STALE)).value())

    async def safe_clock(self, *, timeout: float | None = None) -> int:
        """Return the clock up to which no more transaction can commit at any node, as far as the connected node knows.

        Raises:
            BedrockishError: no node could be asked.
        """
        return int((await self.execute("SELECT safe_clock()", timeout=timeout, read=STALE)).value())

    async def hold(
        self, name: str, after: str | None = None, *, release: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Keep the journal's entries after a cursor of the feed at all nodes for a named reader, or release them.

        Args:
            name: name of the reader; a later call with the same name moves its cursor.
            after: the cursor; None keeps the whole journal.
            release: the reader no longer needs the journal.
            timeout: seconds.

        Raises:
            UsageError: the journal after the cursor was removed, or the text is not a cursor.
            BedrockishError: no node could be asked.
        """
        asked = {"do": "hold", "name": name, "after": after, "release": release}
        return _told(await self._call(Ask(0, UPKEEP, asked=asked), self._seconds(timeout)))

    async def upkeep(self, asked: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Send an operator's command to the connected node: see ``bedrockish clock`` and ``bedrockish journal prune``.

        Raises:
            BedrockishError: the node refuses the command, or no node could be asked.
        """
        return _told(await self._call(Ask(0, UPKEEP, asked=asked), self._seconds(timeout)))


def _told(reply: Answered | Told) -> dict[str, Any]:
    assert isinstance(reply, Told)
    return dict(reply.value)

"""The questions of a client to its node: about the node, and about a statement."""

from typing import Any

from bedrockish.api.requests import Params, Statement, check_params
from bedrockish.api.wire import EVENTS, EXPLAIN, NODES, STATUS, Ask, Told
from bedrockish.client.calls import Calls
from bedrockish.client.request_builder import columns_of, map_of


class QuestionCalls(Calls):
    """The calls, for a client to inherit."""

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what the connected node says about itself and the cluster.

        Raises:
            BedrockishError: no node could be asked.
        """
        return map_of(await self._call(Ask(0, STATUS), self._seconds(timeout)))

    async def nodes(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the members of the cluster as the connected node knows them.

        Raises:
            BedrockishError: no node could be asked.
        """
        return map_of(await self._call(Ask(0, NODES), self._seconds(timeout)))

    async def events(self, after: int = 0, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what the connected node lately said and heard of transactions, after a number from an earlier reply.

        Raises:
            BedrockishError: no node could be asked.
        """
        return map_of(await self._call(Ask(0, EVENTS, after), self._seconds(timeout)))

    async def explain(self, sql: str, params: Params = None, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return what each statement of a text would read and write at the connected node; nothing happens.

        Raises:
            BedrockishError: it cannot run, or no node could be asked.
        """
        what = Ask(0, EXPLAIN, statement=Statement(sql, check_params(params)))
        reply = await self._call(what, self._seconds(timeout))
        assert isinstance(reply, Told)
        return list(reply.value)

    async def columns(self, sql: str, *, timeout: float | None = None) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column that a statement returns, without running it.

        The type of an expression is None.

        Raises:
            BedrockishError: SQLite does not accept it, or no node could be asked.
        """
        what = Ask(0, EXPLAIN, statement=Statement(sql), asked={"columns": True})
        return columns_of(await self._call(what, self._seconds(timeout)))

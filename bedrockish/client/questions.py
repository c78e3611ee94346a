"""The questions of a client to its node: about the node, a statement, and the versions of the schema."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bedrockish.api.requests import Params, Statement, check_params
from bedrockish.api.wire import EXPLAIN, NODES, STATUS, Ask, Told
from bedrockish.client.admin_calls import clock_time
from bedrockish.client.calls import Calls
from bedrockish.client.request_builder import columns_of, map_of

HISTORY = (
    "SELECT version, leader, clock, activates, lead(activates) OVER (ORDER BY version) AS until, state, failure, "
    "statements FROM bedrockish_schema ORDER BY version"
)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of the schema."""

    version: int  # 1, 2, …; version 0 is the schema with which the cluster began
    leader: str  # the node that led the change
    clock: int  # the clock of the change's transaction
    activates: int  # the clock from which on the version is in force
    until: int | None  # the clock from which on the next version is in force; None for the last version
    state: str  # ``scheduled``, ``active`` or ``failed``; a failed version has the same schema as the version before it
    failure: str  # why the data forbade the change; empty if it did not fail
    statements: str  # the SQL of the change

    @property
    def at(self) -> datetime:
        """The time in the activation clock, in UTC."""
        return clock_time(self.activates)


class QuestionCalls(Calls):
    """The questions, as methods for a client to inherit."""

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the connected node's report on itself and the cluster.

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

    async def explain(self, sql: str, params: Params = None, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return the read and write sets that a text's statements would have at the node; change nothing.

        Raises:
            BedrockishError: a statement cannot run, or no node could be asked.
        """
        what = Ask(0, EXPLAIN, statement=Statement(sql, check_params(params)))
        reply = await self._call(what, self._seconds(timeout))
        assert isinstance(reply, Told)
        return list(reply.value)

    async def columns(self, sql: str, *, timeout: float | None = None) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column that a statement returns, without running it.

        The type of an expression is None.

        Raises:
            BedrockishError: SQLite does not accept the statement, or no node could be asked.
        """
        what = Ask(0, EXPLAIN, statement=Statement(sql), asked={"columns": True})
        return columns_of(await self._call(what, self._seconds(timeout)))

    async def schema_history(self, *, timeout: float | None = None) -> list[SchemaVersion]:
        """Return the versions of the schema that the connected node knows, oldest first.

        Raises:
            BedrockishError: no node could be asked.
        """
        return [SchemaVersion(*row) for row in await self.execute(HISTORY, timeout=timeout)]

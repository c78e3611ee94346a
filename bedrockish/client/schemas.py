"""The questions of a client about the schema: its versions, and the effect of a change."""

from dataclasses import dataclass
from datetime import datetime

from bedrockish.client.admin_calls import clock_time
from bedrockish.client.questions import QuestionCalls
from bedrockish.errors import UsageError

HISTORY = (
    "SELECT version, leader, clock, activates, lead(activates) OVER (ORDER BY version) AS until, state, failure, "
    "statements FROM bedrockish_schema ORDER BY version"
)
NOT_SCHEMA = "this is no change of the schema; a dry run is for CREATE, ALTER and DROP, and 'explain' for the rest"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of the schema.

    Attributes:
        version: 1, 2, …; version 0 is what the cluster began with.
        leader: who led the change.
        clock: of its transaction.
        activates: the clock from which on it is in force.
        until: the clock from which on the next version is; None for the last one.
        state: ``scheduled``, ``active`` or ``failed``; one that failed is the version before it once more.
        failure: why the data forbade it; empty if nothing did.
        statements: what the change does, as SQL.
    """

    version: int
    leader: str
    clock: int
    activates: int
    until: int | None
    state: str
    failure: str
    statements: str

    @property
    def at(self) -> datetime:
        """The moment in its activation clock, in UTC."""
        return clock_time(self.activates)


class SchemaCalls(QuestionCalls):
    """The calls of a client that are about the schema."""

    async def schema_history(self, *, timeout: float | None = None) -> list[SchemaVersion]:
        """Return the versions of the schema, as far as the connected node has them, oldest first.

        Raises:
            BedrockishError: no node could be asked.
        """
        return [SchemaVersion(*row) for row in await self.execute(HISTORY, timeout=timeout)]

    async def try_schema(self, sql: str, *, timeout: float | None = None) -> list[str]:
        """Run schema statements at the connected node, one after the other, and roll them back.

        Returns:
            for each statement what it failed with, up to the first that did; empty texts for those that did not.

        Raises:
            SqlError: SQLite does not accept a statement.
            UsageError: a statement does not change the schema.
            BedrockishError: it cannot be replicated, or no node could be asked.
        """
        found = await self.explain(sql, timeout=timeout)
        if any(one["kind"] != "schema" for one in found):
            raise UsageError(NOT_SCHEMA)
        return [str(one["error"]) for one in found]

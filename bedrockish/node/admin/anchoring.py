"""The order ``anchor``: the heads of this node's journal, and its confirmation of a statement of journals' heads.

A node confirms only entries of its own journal. So a majority holds everything that a majority of the voters confirms.
"""

from collections.abc import Callable, Mapping
from typing import Any

import trio

from bedrockish.config.config import Config
from bedrockish.core.node import Node
from bedrockish.errors import UnavailableError, UsageError
from bedrockish_journal.model.anchor import AnchorStatement, read_statement
from bedrockish_journal.storage.store import heads, reading
from bedrockish_journal.verify.anchored import founders_hash, head_hash

WALL_MS_MAX = 300_000  # how far the time in a statement may differ from this node's time


class Anchoring:
    """Confirms statements of journals' heads that agree with one node's journal.

    Args:
        wall_ms: the machine's time in milliseconds since 1970.
    """

    def __init__(self, core: Node, config: Config, wall_ms: Callable[[], int]) -> None:
        self._core, self._config, self._wall_ms = core, config, wall_ms
        self._limiter = trio.CapacityLimiter(1)

    async def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the order ``anchor``: confirm a ``statement``, or, without one, return the facts for a statement.

        Raises:
            UsageError: the text is not a statement, or the statement contradicts this node's journal.
            UnavailableError: this node lacks entries that the statement names.
        """
        text = asked.get("statement")
        if text is None:
            return await trio.to_thread.run_sync(self._facts, self._members(), limiter=self._limiter)
        try:
            statement = read_statement(text if isinstance(text, str) else "")
        except ValueError as error:
            raise UsageError(f"this node confirms no such statement: {error}") from None
        self._check(statement)
        await trio.to_thread.run_sync(self._compare_with_journal, statement, limiter=self._limiter)
        return {"node": self._core.state.me, "signature": None}  # a release before 0.3.0 looks for a signature

    def _members(self) -> dict[str, Any]:
        membership = self._core.state.roster.membership
        return {
            "node": self._core.state.me,
            "cluster": membership.cluster_id,
            "clock": self._core.state.clock.safe,
            "members": membership.version,
            "voters": sorted(membership.voters),
        }

    def _facts(self, members: dict[str, Any]) -> dict[str, Any]:
        with reading(self._config.database) as db:
            found = {leader: [tick, digest.hex()] for leader, (tick, digest) in heads(db).items()}
            return {**members, "founders": founders_hash(db), "heads": found}

    def _check(self, statement: AnchorStatement) -> None:
        known = self._members()
        if statement.cluster != known["cluster"]:
            raise UsageError(f"the statement is of cluster {statement.cluster!r}, and this one is {known['cluster']!r}")
        if (statement.members, list(statement.voters)) != (known["members"], known["voters"]):
            raise UnavailableError(
                f"the statement counts by membership {statement.members}, and {known['node']} by {known['members']}; "
                "try again"
            )
        if abs(statement.wall_ms - self._wall_ms()) > WALL_MS_MAX:
            raise UsageError(f"the time in the statement is not that of {known['node']}; set the clock of your machine")

    def _compare_with_journal(self, statement: AnchorStatement) -> None:
        with reading(self._config.database) as db:
            if founders_hash(db) != statement.founders:
                raise UsageError("the statement names other founders than this node knows; compare the nodes' journals")
            for leader, (tick, digest) in statement.heads.items():
                found = head_hash(db, leader, tick)
                if found is None:
                    raise UnavailableError(f"{self._core.state.me} does not have {leader}{tick} yet; try again")
                if found.hex() != digest:
                    raise UsageError(
                        f"{leader}{tick} is another entry at {self._core.state.me}: the journals differ; run "
                        "'bedrockish journal verify' with the files of all nodes"
                    )

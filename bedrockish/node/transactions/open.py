"""A node's record of a transaction that is open at it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from bedrockish.api.requests import Request
from bedrockish.engine.execution.open_transaction import Session


@dataclass(slots=True, eq=False)
class Open:
    """One open transaction.

    Attributes:
        request: its BEGIN.
        owner: the link that it belongs to.
        session: its work so far.
        since: seconds at which it began.
        touched: seconds of its last statement's end.
        busy: steps that run, or wait for their turn.
        last: the beginning of its last statement.
        told: the durable commits that its client's answers rest on; None: it was told nothing.
        id: a random text by which the transaction is shown and ended, since its command's id is its user's only.
        turn: has room for the step that runs.
    """

    request: Request
    owner: object
    session: Session
    since: float
    touched: float
    busy: int = 0
    last: str = ""
    told: Mapping[str, int] | None = None
    id: str = field(default_factory=lambda: os.urandom(6).hex())
    turn: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(1, max_value=1))

    @property
    def name(self) -> str:
        """The id of its command."""
        return self.request.command

    def described(self, now: float) -> dict[str, Any]:
        """Return it as plain values for operators; ``now`` is in seconds."""
        return {
            "command": self.id,  # not the command's own id, with which a reader could settle it
            "client": str(getattr(getattr(self.owner, "remote", None), "node", "HTTP")),
            "open_ms": round(1000 * (now - self.since)),
            "idle_ms": 0 if self.busy else round(1000 * (now - self.touched)),
            "changed": len(self.session.changes),
            "statement": self.last,
        }

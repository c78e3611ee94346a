"""A node's record of an open transaction."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from bedrockish.api.requests import Request
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.engine.statements.rights import Access, Rights
from bedrockish.errors import ForbiddenError, MemoryFullError
from bedrockish.node.transactions.callers import RULE, fits

OPEN_PARTS = 2  # all open transactions may take memory_max divided by this number


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """The state of an open transaction, from BEGIN to its end."""

    request: Request  # the transaction's BEGIN
    owner: object  # the link to which the transaction belongs
    caller: str  # the user or the address to whose share the transaction counts
    work: TransactionWork  # the work that the transaction has done so far
    since: float  # when the transaction began, in seconds
    touched: float  # when its last statement ended, in seconds
    rights: Rights | None  # the rights of its user at its last step; None: all rights
    config: int  # the version of the membership that grants these rights
    busy: int = 0  # the number of steps that run, or wait for their turn
    commits: bool = False  # whether its client has sent COMMIT
    last: str = ""  # the beginning of its last statement
    # A vector with every commit that was acknowledged before the transaction's first strict read of the cluster's own
    # tables; None before such a read.
    required_vector: Mapping[str, int] | None = None
    # The durable commits that its answers reveal; None: its client has no answer yet.
    revealed: Mapping[str, int] | None = None
    # A random name for operators, who must not learn the transaction's command id, which belongs to its user.
    id: str = field(default_factory=lambda: os.urandom(6).hex())
    # The semaphore that one step at a time acquires.
    turn: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(1, max_value=1))

    @property
    def name(self) -> str:
        """The id of its command."""
        return self.request.command

    def check_kept(self, access: Access) -> None:
        """Check that the user still has the rights of the transaction's last step, and keep the present rights.

        Raises:
            ForbiddenError: a right was taken away; the transaction must be ended.
        """
        try:
            access.check_kept(self.request.user, self.rights)
        except ForbiddenError as error:
            error.details = {**error.details, "ended": True}
            raise
        self.rights, self.config = access.of(self.request.user), access.config

    def described(self, now: float) -> dict[str, Any]:
        """Return the transaction as plain values for operators; ``now`` is in seconds."""
        return {
            "command": self.id,  # not the command's own id, with which a reader could settle it
            "client": str(getattr(getattr(self.owner, "remote", None), "node", "HTTP")),
            "open_ms": round(1000 * (now - self.since)),
            "idle_ms": 0 if self.busy else round(1000 * (now - self.touched)),
            "changed": len(self.work.changes),
            "statement": self.last,
        }


def over_share(
    tx: OpenTransaction, everyone: Collection[OpenTransaction], memory: Memory, transactions_max: int
) -> MemoryFullError | None:
    """Return the error of a transaction that takes more than its caller's share of the memory, else None.

    If a caller has more than its share, its next transaction above the average size that runs a statement is ended, so
    that the others can still commit. Before that, its log of statements, kept for a later schema change, is dropped.

    Args:
        tx: the transaction, which has just run a statement.
        everyone: all open transactions, this one among them.
        transactions_max: how many may be open.
    """
    most = memory.max_bytes // OPEN_PARTS
    average = most // transactions_max
    if tx.work.kept <= average:
        return None
    own, taken = _kept_of(tx.caller, everyone)
    if not fits(most, taken, own, 0):
        tx.work.drop_log()
        own, taken = _kept_of(tx.caller, everyone)
    if tx.work.kept <= average or fits(most, taken, own, 0):
        return None
    memory.note_refusal()
    return MemoryFullError(
        f"{own >> 10} KiB are kept for your open transactions; all callers may have {most >> 10} KiB, half of "
        f"memory_max, of which {RULE}; the transaction did not happen: commit in smaller pieces, or run it again later",
        memory_max=memory.max_bytes,
        ended=True,
    )


def _kept_of(caller: str, everyone: Collection[OpenTransaction]) -> tuple[int, int]:
    kept = [(tx.caller, tx.work.kept) for tx in everyone]
    return sum(size for name, size in kept if name == caller), sum(size for _, size in kept)


def checked(access: Access, user: str, prepare: Callable[[], Prepared]) -> Callable[[], Prepared]:
    """Return a function that calls ``prepare`` after a check that the user still has the rights of this moment."""
    before = access.of(user)

    def prepare_checked() -> Prepared:
        access.check_kept(user, before)
        return replace(prepare(), config=access.config)

    return prepare_checked

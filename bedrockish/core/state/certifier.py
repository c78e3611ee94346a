"""The conflict tests: the two calls that the gist asks SQLite for, on logical keys.

``conflict(a, b)``, in ``bedrockish_journal.model.access_set``, tells whether two access sets conflict.
``prepare_commit(x)`` tells whether x conflicts with a transaction that is pending at this node, or with a known commit
that x has not seen. Command ids, changes of the membership and changes of the schema need no conflict rules of their
own: ``claim`` adds them to the access set as keys.
"""

from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish.core.state.pending import Pending
from bedrockish_journal.model.access_set import AccessSet, clock_key, clocks_from
from bedrockish_journal.model.transaction import MEMBERS, SCHEMA, Txid
from bedrockish_journal.model.vector import Vector

EVERYTHING = (b"", b"\xff\xff")


def command_key(command: str) -> bytes:
    """Return the key that every transaction of a command writes."""
    return b"c:\0" + command.encode()


def claim(access_set: AccessSet, commands: tuple[str, ...], kind: str, clock: int, activates: int = 0) -> AccessSet:
    """Return the access set with the keys of its commands, and the keys that put it before or after schema changes.

    A transaction reads its own clock. A schema change writes all clocks from its activation on. So a schema change
    conflicts with the transactions that have such a clock, with every other schema change, and with no other
    transaction. A change of the membership writes every key.
    """
    # Two transactions of one command conflict, at whatever nodes they are led, so that only one of them commits.
    writes = [*map(command_key, commands)]
    if kind == SCHEMA:
        return access_set.extended(writes=writes, write_ranges=(clocks_from(activates),))
    return access_set.extended((clock_key(clock),), writes, (EVERYTHING,) if kind == MEMBERS else ())


def prepare_commit(
    access_set: AccessSet, base: Vector, recent: CommitWindow, pending: Pending, own: Txid | None = None
) -> Conflict | None:
    """Return a conflict of the access set with a commit outside the base or a pending transaction; else None."""
    # The commits first: a conflict with a commit is final; a conflict with a pending transaction may go away.
    found = next(recent.conflicts(access_set, base, own), None)
    return found or next(pending.conflicts(access_set, own), None)

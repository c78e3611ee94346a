"""The rights that memberships give to users, and the rights that the commands of a transaction need."""

from collections.abc import Iterator

from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import OWNER, ROLES, WRITER, Membership, UserSaid
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Transaction

NO_ROLE = 0


def needed(transaction: Transaction) -> Iterator[tuple[str, int]]:
    """Yield each user of a transaction with the least role that the user's command needs.

    The role is ``NO_ROLE`` for a command that changes nothing, or whose number of changes was not recorded.
    """
    if not any(transaction.users) or transaction.kind not in (ROWS, SCHEMA):
        return
    shares = transaction.shares
    if transaction.kind == ROWS and not transaction.joined:
        try:
            shares = (len(decode_changes(transaction.changes)),)
        except (EntryMalformedError, RecursionError, TypeError):  # the law ``bytes`` reports it
            return
    for place, user in enumerate(transaction.users):
        if user:
            changes = place < len(shares) and shares[place] > 0
            yield user, OWNER if transaction.kind == SCHEMA else WRITER if changes else NO_ROLE


def greatest(user: UserSaid) -> int:
    """Return the greatest role that a user has, for the whole database or for a table."""
    return max(user.role, *user.tables.values(), NO_ROLE)


def lacking(said: Membership | None, transaction: Transaction) -> str | None:
    """Return which user lacks the role for which command's work, as the end of a sentence; None if all users have it.

    A user that no membership names comes from a node's configuration, and the journal does not have its rights.
    """
    if said is None or not said.users:
        return None
    for user, role in needed(transaction):
        if user not in said.users:
            continue
        known = said.users[user]
        if known is None:
            return f"has a command of the user {user}, whom membership {said.version} names as removed"
        if greatest(known) < role:
            return f"has a command of the user {user}, who needs to be {ROLES[role - 1]} in membership {said.version}"
    return None

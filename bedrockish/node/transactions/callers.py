"""The callers of a node, and the share of its bounds that each may have.

A caller is a user, and without a login the address from which it has come. It may have three times as many as are free:
alone three quarters, so that the first request of another caller finds room.
"""

from collections.abc import Iterable

from bedrockish.engine.statements.rights import CERTIFIED, TOKEN

SHARE = 3
RULE = "one user or address may have three times as many as are free"


class Owner:
    """An owner of transactions and streams that has no link, and ends when it is told to.

    Args:
        host: the address from which its caller has come.
    """

    def __init__(self, host: str) -> None:
        self.host = host


def caller_of(owner: object, user: str) -> str:
    """Return the name by which a caller's shares are counted.

    Args:
        owner: what its work belongs to: a link, or another object that knows its ``host``.
        user: its user; empty at a node without logins.
    """
    if user in ("", TOKEN):
        return str(getattr(owner, "host", ""))
    return f"user {user.removeprefix(CERTIFIED)}"


def fits(most: int, taken: int, own: int, more: int = 1) -> bool:
    """Return whether a caller may take more.

    Args:
        most: how much there is for all.
        taken: how much of it all have.
        own: how much of that is the caller's.
        more: how much it asks for.
    """
    return taken + more <= most and own + more <= SHARE * (most - taken)


def has_room(most: int, callers: Iterable[str], caller: str) -> bool:
    """Return whether a caller may open one more of something.

    Args:
        most: how many may be open.
        callers: whose the open ones are.
        caller: who asks.
    """
    found = list(callers)
    return fits(most, len(found), found.count(caller))

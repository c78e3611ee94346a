"""The callers of a node, and the share of its bounds that each may have.

A caller is a user or, without a login, an address. A caller may have at most three times as much as is left free of a
bound. So a caller that is alone may have three quarters of a bound, and the first request of another caller finds room.
"""

from collections.abc import Iterable

from bedrockish.engine.statements.rights import CERTIFIED, TOKEN
from bedrockish_net.stream import Link

SHARE = 3
RULE = "one user or address may have three times as many as are free"


class Owner:
    """An owner of transactions and streams without a link, such as an HTTP client; its creator ends its transactions.

    Args:
        host: the address of its caller.
    """

    def __init__(self, host: str) -> None:
        self.host = host


def caller_of(owner: object, user: str) -> str:
    """Return the name by which a caller's shares are counted.

    Args:
        owner: the owner of the caller's work: a link or an ``Owner``; another object has no address.
        user: the caller's user; empty at a node without logins.
    """
    if user in ("", TOKEN):
        return owner.host if isinstance(owner, Link | Owner) else ""
    return f"user {user.removeprefix(CERTIFIED)}"


def fits(most: int, taken: int, own: int, more: int = 1) -> bool:
    """Return whether a caller may take more.

    Args:
        most: the bound for all callers together.
        taken: how much all callers have.
        own: how much this caller has.
        more: how much this caller asks for.
    """
    return taken + more <= most and own + more <= SHARE * (most - taken)


def has_room(most: int, callers: Iterable[str], caller: str) -> bool:
    """Return whether a caller may open one more of something.

    Args:
        most: how many may be open.
        callers: the caller of each one that is open.
        caller: the caller that asks.
    """
    found = list(callers)
    return fits(most, len(found), found.count(caller))

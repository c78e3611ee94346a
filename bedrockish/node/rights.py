"""The roles that calls other than SQL require of their users, for all interfaces."""

from collections.abc import Mapping
from typing import Any

from bedrockish.api.requests import RAISE, USER_ACTIONS, USER_PASSWORD, MemberChange
from bedrockish.api.wire import JOIN, SETTLE, SNAPSHOT, UPKEEP, Ask, AskChunk, Call, Execute, Step
from bedrockish.engine.statements.rights import Access
from bedrockish.errors import ForbiddenError
from bedrockish_journal.model.membership import ADMIN, READER

UPKEEP_OF_READERS = frozenset({"transactions", "statements", "digest", "anchor"})  # orders that only show data


def check_call(access: Access, call: Call, user: str) -> None:
    """Check that a user may make a call; rights for SQL, and for changes of members, are checked when the call runs.

    Raises:
        ForbiddenError: the user may not.
    """
    rights = access.of(user)
    if rights is None:
        return
    match call:
        case AskChunk():
            rights.require(ADMIN, "this copies the whole file")
        case Ask(_, op) if op in (JOIN, SNAPSHOT):
            rights.require(ADMIN, "this copies the whole file" if op == SNAPSHOT else "this lets a node in")
        case Ask(_, op, asked=asked) if op == UPKEEP:
            check_upkeep(access, asked or {}, user)
        case Step(_, _, op) if op == SETTLE:
            rights.require(0 if rights.has_any else READER, "this decides a command")
        case _:
            rights.require(0, "this")  # every user of the cluster may make this call


def check_call_by_token(call: Call) -> None:
    """Check that a client that connected with a token asks for nothing that would outlive the token.

    Raises:
        ForbiddenError: the call makes something that would outlive the token.
    """
    match call:
        case Execute(_, request) if request.change is not None and request.change.action in USER_ACTIONS:
            what = "change users or passwords"
        case Ask(_, op, asked=asked) if op == UPKEEP and (asked or {}).get("do") == "token":
            what = "make other tokens"
        case _:
            return
    raise ForbiddenError(f"a token cannot {what}, which would outlive it; log in with a password or a certificate")


def check_upkeep(access: Access, asked: Mapping[str, Any], user: str) -> None:
    """Check that a user may give an order.

    Raises:
        ForbiddenError: the user may not.
    """
    order = str(asked.get("do"))
    if order == "token" and asked.get("user") == user and access.users.get(user) is not None:
        return  # every user may get a token for itself
    role = READER if order in UPKEEP_OF_READERS and not asked.get("reset") else ADMIN
    access.require(user, role, f"the order {order!r} {'shows data' if role == READER else 'changes a node'}")


def check_change(access: Access, change: MemberChange, user: str) -> None:
    """Check that a user may change members or users; each user may change their own password.

    Raises:
        ForbiddenError: the user may not.
    """
    if change.action == RAISE or (change.action == USER_PASSWORD and change.node == user):
        return  # a node raises the release level by itself, as soon as all members support it
    access.require(user, ADMIN, "this changes members or users")

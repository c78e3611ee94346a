"""The users of the cluster and their roles: every change of the users, as a function from the old to the new users.

The users are a part of the membership, so a change of the users conflicts with every transaction under way: each
transaction has either seen the change, or was committed before it. At least one user is an admin, unless an operator
forces another change.
"""

from collections.abc import Mapping

from bedrockish.api.requests import USER_ADD, USER_GRANT, USER_PASSWORD, USER_REMOVE, MemberChange
from bedrockish.common.password_hash import LOG_N, USER, P, R, read_hash
from bedrockish.errors import MembershipError
from bedrockish_journal.model.membership import ADMIN, ROLES, WRITER, Membership, UserSaid

USERS_MAX, TABLES_MAX, NAME_CHARACTERS_MAX = 10_000, 1_000, 200
_NO_TABLES = ("sqlite_", "bedrockish_")


def change_users(old: Membership, change: MemberChange) -> Mapping[str, UserSaid | None]:
    """Return the users after a change.

    Raises:
        MembershipError: the change cannot be made.
    """
    users, name = dict(old.users), change.node
    if USER.fullmatch(name) is None:
        raise _refused(
            "name", f"{name!r} is not a user's name; write a letter and then up to 63 letters, digits or one of _.-"
        )
    known, number = users.get(name), old.version + 1
    if change.action == USER_ADD:
        if known is not None:
            raise _refused(
                "duplicate", f"there is a user {name} already; change it with 'bedrockish user grant|passwd'"
            )
        # Bounded, because every membership contains all users, and each node keeps the membership in memory.
        if len(users) >= USERS_MAX:
            raise _refused("last", f"a cluster has {USERS_MAX} users at most, and those that were removed count, too")
        users[name] = UserSaid(_secret(change), _role(change) if change.role else 0, number)
    elif change.action == USER_REMOVE:
        if known is None and name in users:
            raise _unknown(name)
        users[name] = None  # None also overrides a user of the configuration file
    elif known is None:
        raise _unknown(name)
    elif change.action == USER_PASSWORD:
        users[name] = known._replace(secret=_secret(change), number=number)
    elif change.table:
        users[name] = known._replace(tables=_tables(known.tables, change))
    elif change.action == USER_GRANT:
        users[name] = known._replace(role=max(known.role, _role(change)))
    else:
        # A user whose role is revoked keeps the role below it, because each role contains the roles below.
        users[name] = known._replace(role=min(known.role, _role(change) - 1))
    # Every interface enforces roles as soon as the cluster has a user; without an admin, nothing could undo that.
    if not change.force and not any(one is not None and one.role == ADMIN for one in users.values()):
        raise _refused(
            "last",
            "the cluster would have users and no admin among them, and only an admin can change users; make one "
            "first: 'bedrockish user add URL NAME --role admin', or insist with --force",
        )
    return users


def _tables(old: Mapping[str, int], change: MemberChange) -> Mapping[str, int]:
    """Return the roles for single tables after a change."""
    role, table = _role(change), change.table
    if change.action == USER_GRANT and role > WRITER:
        raise _refused(
            "role", f"{change.role} is a role for the whole database; for a table there is reader and writer"
        )
    # System tables contain rows of all tables, so a role for a system table would be a role for everything.
    if table.lower().startswith(_NO_TABLES):
        raise _refused(
            "name", f"{table} belongs to the database itself; grant reader without a table, which includes it"
        )
    now = old.get(table, 0)
    role = max(now, role) if change.action == USER_GRANT else min(now, role - 1)
    tables = {name: kept for name, kept in {**old, table: role}.items() if kept}
    if len(tables) > TABLES_MAX or len(table) > NAME_CHARACTERS_MAX:
        raise _refused("name", f"a user has roles for {TABLES_MAX} tables at most, with names of {NAME_CHARACTERS_MAX}")
    return tables


def _secret(change: MemberChange) -> str:
    found = read_hash(change.secret)
    if found is None or not (
        LOG_N <= found.log_n <= LOG_N + 2 and (found.r, found.p) == (R, P)
    ):  # bounded, because a node computes this hash at each login
        raise _refused("secret", "this is not the hash of a password; use 'bedrockish user', which makes it")
    return change.secret


def _role(change: MemberChange) -> int:
    if change.role not in ROLES:
        raise _refused("role", f"there is no role {change.role!r}; there is {', '.join(ROLES)}")
    return 1 + ROLES.index(change.role)


def _unknown(name: str) -> MembershipError:
    return _refused("unknown", f"the cluster has no user {name}; see them with 'bedrockish user list'")


def _refused(reason: str, text: str) -> MembershipError:
    return MembershipError(text, reason=reason)

"""Checks that a membership follows from the one before it by one change, as a node makes changes. Pure."""

from collections.abc import Iterator, Mapping

from bedrockish_journal.model.membership import ADMIN, WRITER, Member, Membership, UserSaid


def wrong_membership(said: Membership) -> Iterator[str]:
    """Yield the faults that one membership shows without the membership before it, each as the end of a sentence."""
    for name, user in said.users.items():
        if user is None:
            continue
        if user.role > ADMIN:
            yield f"gives the user {name} the role {user.role}, and there are roles up to {ADMIN}"
        for table, role in user.tables.items():
            if not 1 <= role <= WRITER:
                yield f"gives the user {name} the role {role} for the table {table}, and there are roles 1 to {WRITER}"
        if user.number > said.version:
            yield f"says that membership {user.number} made the password of the user {name}"


def wrong_step(old: Membership, new: Membership) -> Iterator[str]:
    """Yield the faults of a membership as the successor of ``old``, each as the end of a sentence."""
    if new.level < old.level:
        yield f"lowers the release level from {old.level} to {new.level}"
    if old.cluster_id and new.cluster_id != old.cluster_id:
        yield f"is of the cluster {new.cluster_id}, and the one before it of {old.cluster_id}"
    for leader, since in old.retired.items():
        if new.retired.get(leader) != since:
            yield f"no longer says that the timeline {leader} is retired since membership {since}"
    for leader, since in new.retired.items():
        if leader not in old.retired and since != new.version:
            yield f"retires the timeline {leader} from membership {since} on, and is membership {new.version}"
    if new.void[: len(old.void)] != old.void and new.void:
        yield "no longer names a transaction that is applied without its changes"
    for node in old.former:
        if node not in new.former and node not in new.voters:
            yield f"no longer says that {node} voted before"
    yield from _wrong_secrets(old, new)
    changes = [*_changed_members(old, new), *_changed_users(old, new)]
    changes += ["the release level"] * (new.level > old.level)
    changes += [f"the skipped transaction {txid}" for txid in new.void[len(old.void) :]]
    if len(changes) > 1:
        yield f"changes {', '.join(changes)} at once, and a node makes one change at a time"


def _wrong_secrets(old: Membership, new: Membership) -> Iterator[str]:
    for name in old.users:
        if name not in new.users:
            yield f"no longer names the user {name}; a user that is removed stays as a name"
    for name, user in new.users.items():
        before = old.users.get(name)
        if user is None:
            continue
        if before is None or before.secret != user.secret:
            if user.number != new.version:
                yield f"has a new password of the user {name}, and says that membership {user.number} made it"
        elif user.number not in (before.number, new.version):  # ``new`` may have set the same hash again
            yield f"says that membership {user.number} made the password of the user {name}, not {before.number}"


def _changed_members(old: Membership, new: Membership) -> list[str]:
    """Return the members that changed; a removed member and the new member in its place are one item."""
    before, after = old.members, new.members
    gone, come = before.keys() - after.keys(), after.keys() - before.keys()
    changed = [f"member {node}" for node in sorted(before.keys() & after.keys()) if _differs(before[node], after[node])]
    if len(gone) == len(come) == 1:
        return [f"members {min(gone)} and {min(come)}", *changed]
    return [*(f"member {node}" for node in sorted(gone | come)), *changed]


def _differs(old: Member, new: Member) -> bool:
    """Return whether a member changed.

    A first file id does not count: each membership change records the file ids that its leader has learned.
    """
    return (old.address, old.voter) != (new.address, new.voter) or (old.store not in ("", new.store))


def _changed_users(old: Membership, new: Membership) -> list[str]:
    names = sorted({*old.users, *new.users})
    return [f"user {name}" for name in names if _state(old.users, name) != _state(new.users, name)]


def _state(users: Mapping[str, UserSaid | None], name: str) -> object:
    """Return the state of a user in a membership, in a form that can be compared."""
    if name not in users:
        return "absent"
    user = users[name]
    return user and (user.secret, user.role, user.number, sorted(user.tables.items()))

"""The users of a cluster: the effect of each change, and refused changes."""

from dataclasses import replace

import cbor2
import pytest

from bedrockish.api.requests import ADD, USER_ADD, USER_GRANT, USER_PASSWORD, USER_REMOVE, USER_REVOKE, MemberChange
from bedrockish.common.password_hash import hash_password
from bedrockish.core.state.membership import MembershipFacts, change_members
from bedrockish.errors import MembershipError
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import (
    ADMIN,
    OWNER,
    READER,
    WRITER,
    Member,
    Membership,
    UserSaid,
    pack_membership,
    read_membership,
    without_secrets,
)

HASH = str(hash_password("x", bytes(16)))
OTHER = str(hash_password("y", bytes(16)))
ONE = Membership(7, {"A": Member("A", "h:1")}, "id", 2, users={"root": UserSaid(HASH, ADMIN, 1)})


def change(
    old: Membership, action: str, name: str, role: str = "", *, secret: str = "", force: bool = False
) -> Membership:
    return change_members(old, MemberChange(action, name, role=role, secret=secret, force=force), MembershipFacts())


def refused(old: Membership, *arguments: str, **more: str) -> str:
    with pytest.raises(MembershipError) as caught:
        change(old, *arguments, **more)  # type: ignore[arg-type]
    return str(caught.value.details["reason"])


def test_role_includes_lower_roles_and_is_revoked_with_higher_roles() -> None:
    users = change(ONE, USER_ADD, "ann", secret=HASH)
    assert users.users["ann"] == UserSaid(HASH, 0, 8)
    steps = [
        (USER_GRANT, "writer", WRITER),
        (USER_GRANT, "reader", WRITER),
        (USER_GRANT, "admin", ADMIN),
        (USER_REVOKE, "owner", WRITER),
        (USER_REVOKE, "admin", WRITER),
        (USER_REVOKE, "writer", READER),
        (USER_GRANT, "owner", OWNER),
        (USER_REVOKE, "reader", 0),
    ]
    for action, role, expected in steps:
        users = change(users, action, "ann", role)
        said = users.users["ann"]
        assert said is not None
        assert (said.role, said.secret, said.number) == (expected, HASH, 8), (action, role)
    again = change(users, USER_PASSWORD, "ann", secret=OTHER).users["ann"]
    assert again == UserSaid(OTHER, 0, users.version + 1)
    assert users.members == ONE.members


def test_removed_user_stays_known_and_may_return() -> None:
    """Otherwise a line of this name in a configuration would be valid again.

    This includes names that the cluster never had.
    """
    gone = change(change(ONE, USER_ADD, "ann", "writer", secret=HASH), USER_REMOVE, "ann")
    assert gone.users["ann"] is None
    assert change(ONE, USER_REMOVE, "of_a_configuration").users["of_a_configuration"] is None
    assert refused(gone, USER_REMOVE, "ann") == refused(gone, USER_GRANT, "ann", "reader") == "unknown"
    assert change(gone, USER_ADD, "ann", "reader", secret=OTHER).users["ann"] == UserSaid(
        OTHER, READER, gone.version + 1
    )


def test_change_that_leaves_no_admin_needs_force() -> None:
    nobody = replace(ONE, users={})
    assert refused(nobody, USER_ADD, "ann", "owner", secret=HASH) == "last"
    assert refused(nobody, USER_REMOVE, "ann") == "last"
    assert change(nobody, USER_ADD, "ann", "admin", secret=HASH).users["ann"] == UserSaid(HASH, ADMIN, 8)
    assert refused(ONE, USER_REMOVE, "root") == refused(ONE, USER_REVOKE, "root", "admin") == "last"
    assert change(ONE, USER_REMOVE, "root", force=True).users == {"root": None}
    two = change(ONE, USER_ADD, "ann", "admin", secret=HASH)
    assert change(two, USER_REMOVE, "root").users["root"] is None


@pytest.mark.parametrize(
    ("arguments", "secret", "reason"),
    [
        ((USER_ADD, "root", "reader"), HASH, "duplicate"),
        ((USER_ADD, "client:app", "reader"), HASH, "name"),
        ((USER_ADD, "", "reader"), HASH, "name"),
        ((USER_ADD, "(http_token)", "admin"), HASH, "name"),
        ((USER_ADD, "ann", "king"), HASH, "role"),
        ((USER_GRANT, "root", ""), "", "role"),
        ((USER_ADD, "ann", "reader"), "plain text", "secret"),
        ((USER_PASSWORD, "root"), "", "secret"),
        ((USER_PASSWORD, "root"), HASH.replace("scrypt:14:8:1", "scrypt:20:16:4"), "secret"),
        ((USER_PASSWORD, "root"), HASH.replace("scrypt:14:8:1", "scrypt:1:1:1"), "secret"),
        ((USER_GRANT, "nobody", "reader"), "", "unknown"),
    ],
)
def test_malformed_password_hashes_are_refused(arguments: tuple[str, ...], secret: str, reason: str) -> None:
    """A hash is refused if it costs every node two gigabytes, or can be guessed without effort."""
    assert refused(ONE, *arguments, secret=secret) == reason


def test_users_are_kept_with_the_membership_and_survive_its_changes() -> None:
    both = change(change(ONE, USER_ADD, "ann", "writer", secret=OTHER), USER_REMOVE, "bob")
    assert read_membership(pack_membership(both)) == both
    grown = change_members(both, MemberChange(ADD, "B", "h:2"), MembershipFacts())
    assert grown.users == both.users
    plain = replace(ONE, users={})
    assert len(cbor2.loads(pack_membership(plain))) == 4, "nothing extra without users"
    open_ = without_secrets(pack_membership(both))
    assert (HASH.encode() in open_, OTHER.encode() in open_) == (False, False)
    assert read_membership(open_).users == {"ann": UserSaid("", WRITER, 8), "bob": None, "root": UserSaid("", ADMIN, 1)}
    assert "scrypt" not in repr(both)


def test_roles_for_single_tables_are_granted_and_revoked() -> None:
    users = change(ONE, USER_ADD, "ann", secret=HASH)

    def at(old: Membership, action: str, role: str, table: str) -> Membership:
        return change_members(old, MemberChange(action, "ann", role=role, table=table), MembershipFacts())

    users = at(at(users, USER_GRANT, "writer", "account"), USER_GRANT, "reader", "It'em")
    assert users.users["ann"] == UserSaid(HASH, 0, 8, {"account": WRITER, "It'em": READER})
    assert read_membership(pack_membership(users)) == users
    assert read_membership(without_secrets(pack_membership(users))).users["ann"] == UserSaid(
        "", 0, 8, {"account": WRITER, "It'em": READER}
    )
    users = at(at(users, USER_GRANT, "reader", "account"), USER_REVOKE, "writer", "account")
    users = at(at(users, USER_REVOKE, "reader", "It'em"), USER_REVOKE, "reader", "never")
    assert users.users["ann"] == UserSaid(HASH, 0, 8, {"account": READER})
    for role, table, reason in (
        ("owner", "account", "role"),
        ("admin", "account", "role"),
        ("reader", "bedrockish_journal", "name"),
        ("reader", "SQLITE_sequence", "name"),
        ("reader", "x" * 201, "name"),
    ):
        with pytest.raises(MembershipError) as caught:
            at(users, USER_GRANT, role, table)
        assert caught.value.details["reason"] == reason


@pytest.mark.parametrize(
    "users",
    [
        {"a": ["x", 1, 1, 7]},
        {"a": ["x", 1, 1, {"t": "1"}]},
        {"a": ["x", 1, 1, {1: 1}]},
        1,
        [1],
        {1: None},
        {"a": 1},
        {"a": []},
        {"a": ["x", "1", 1]},
        {"a": [b"x", 1, 1]},
    ],
)
def test_malformed_users_are_refused(users: object) -> None:
    fields = cbor2.loads(pack_membership(ONE))
    fields[5] = users
    with pytest.raises(EntryMalformedError):
        read_membership(cbor2.dumps(fields))

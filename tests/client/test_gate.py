"""Passwords and the gate: admitted clients, the limit of wrong passwords, and no password in any output."""

import logging

import pytest
import trio
from trio.testing import MockClock

from bedrockish.common.password_hash import hash_password, read_hash
from bedrockish.config.config import Config, build
from bedrockish.engine.statements.rights import Access
from bedrockish.errors import UsageError
from bedrockish.node.cluster.authentication import ADDRESS_TRIES_MAX, TRIES_MAX, WINDOW_S, Credentials, Gate
from bedrockish_journal.model.membership import ADMIN, UserSaid
from bedrockish_net.errors import RefusedError
from bedrockish_net.events import Hello

CHEAP = str(hash_password("right", bytes(16)))


def config(**users: str) -> Config:
    return build(
        flags={"node": "A", "database": "a", "users": ",".join(f"{name}={text}" for name, text in users.items())}
    )


def gate(**users: str) -> Gate:
    made = config(**users)
    return Gate(made, Credentials(made), Access())


def test_password_hash_fits_its_password_only() -> None:
    made = hash_password("pässword", b"s" * 16)
    found = read_hash(str(made))
    assert found == made
    assert found.fits("pässword")
    assert found.fits("pa\u0308ssword")  # the same word, typed on another keyboard
    assert not found.fits("passwort")
    assert not found.fits("\ud800")
    assert "scrypt" not in repr(made)
    for nonsense in ("", "hunter2", "scrypt:14:8:1:x:y", str(made).replace(":14:", ":40:"), str(made) + "x"):
        assert read_hash(nonsense) is None
    with pytest.raises(UsageError, match="1 to 1000 characters"):
        hash_password("", bytes(16))


async def test_only_the_right_password_of_a_user_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    this = gate(ann=CHEAP)
    with caplog.at_level(logging.DEBUG):
        assert await this.judge("ann", "right", "10.0.0.1") == ""
        assert await this.judge("ann", "wrong", "10.0.0.1") == "wrong user or password"
        assert await this.judge("bob", "right", "10.0.0.1") == "wrong user or password"
        assert await this.judge("nobody", "nobody", "10.0.0.1") == "wrong user or password"
        assert await this.judge("ann", "x" * 5000, "10.0.0.1") == "wrong user or password"
    assert "wrong user or password from 10.0.0.1" in caplog.text
    assert "right" not in caplog.text


async def test_wrong_passwords_throttle_an_address_except_for_users_logged_in_before() -> None:
    this, old = gate(ann=CHEAP), gate(ann=CHEAP)
    assert await this.judge("ann", "right", "10.0.0.1") == ""
    async with trio.open_nursery() as nursery:  # concurrent attempts are counted like sequential ones
        for number in range(TRIES_MAX):
            nursery.start_soon(this.judge, "ann", f"wrong {number}", "10.0.0.1")
    assert "too many wrong passwords of user 'ann' from 10.0.0.1" in await this.judge("ann", "wrong", "10.0.0.1")
    assert await this.judge("bob", "right", "10.0.0.1") == "wrong user or password", "others of that address may try"
    assert await this.judge("ann", "right", "10.0.0.1") == ""
    assert await this.judge("ann", "wrong", "10.0.0.2") == "wrong user or password"
    assert await old.judge("ann", "right", "10.0.0.1") == ""


async def test_address_with_many_wrong_passwords_is_throttled_for_all_users() -> None:
    this = gate(ann=CHEAP)
    for number in range(ADDRESS_TRIES_MAX):
        assert await this.judge(f"user {number}", "wrong", "10.0.0.1") == "wrong user or password"
    assert "too many wrong passwords from 10.0.0.1" in await this.judge("ann", "right", "10.0.0.1")
    assert await this.judge("ann", "right", "10.0.0.2") == ""
    assert await this.judge("ann", "right", "10.0.0.1") == "", "who is known by now is let in from everywhere"


async def test_throttling_ends_after_its_window(autojump_clock: MockClock) -> None:
    this = gate(ann=CHEAP)
    for _ in range(TRIES_MAX):
        await this.judge("ann", "wrong", "10.0.0.1")
    assert "too many" in await this.judge("ann", "right", "10.0.0.1")
    await trio.sleep(WINDOW_S + 1)
    assert await this.judge("ann", "right", "10.0.0.1") == ""


async def test_user_name_without_password_check_is_not_believed() -> None:
    """A name in a HELLO counts only if the node checked its password, not merely because the cluster has users."""
    made = config()
    access = Access()
    this = Gate(made, Credentials(made), access)
    early, late = trio.testing.memory_stream_pair()
    await this.admit(early, Hello("x", None, "client", info={"user": "root", "password": "guess"}))
    access.learn({"root": UserSaid(CHEAP, ADMIN, 1)}, ["A"])
    assert this.caller(early) == ""
    with pytest.raises(RefusedError, match="wrong user or password"):
        await this.admit(late, Hello("x", None, "client", info={"user": "root", "password": "guess"}))
    assert this.caller(late) == ""
    await this.admit(late, Hello("x", None, "client", info={"user": "root", "password": "right"}))
    assert this.caller(late) == "root"

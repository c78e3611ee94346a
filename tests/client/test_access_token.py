"""Tokens of users: signed with the user's secret, and valid in one cluster only."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish.common.access_token import PREFIX, AccessToken, is_signed, make_token, read_token

SAID = AccessToken("ann", 1_800_000_000_000)


def test_token_is_valid_for_its_secret_and_cluster_only() -> None:
    token = make_token(SAID, "secret", "id")
    assert read_token(token) == SAID
    assert is_signed(token, "secret", "id")
    assert not is_signed(token, "Secret", "id")
    assert not is_signed(token, "secret", "other")
    assert not is_signed(token, "", "")


def test_token_with_a_changed_character_is_refused() -> None:
    token = make_token(SAID, "secret", "id")
    for place in range(len(PREFIX), len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        assert not is_signed(changed, "secret", "id"), place


@pytest.mark.parametrize("text", ["", "x", PREFIX, f"{PREFIX}.", f"{PREFIX}a.b", f"{PREFIX}gA.gA", f"{PREFIX}Ä.Ä"])
def test_malformed_token_is_refused(text: str) -> None:
    assert read_token(text) is None
    assert not is_signed(text, "secret", "id")


@given(st.binary(max_size=100), st.binary(max_size=40))
def test_any_token_text_is_read_or_rejected_without_error(payload: bytes, mac: bytes) -> None:
    text = f"{PREFIX}{base64.urlsafe_b64encode(payload).decode()}.{base64.urlsafe_b64encode(mac).decode()}"
    found = read_token(text)
    assert found is None or (isinstance(found.user, str) and type(found.until_ms) is int)
    assert not is_signed(text, "secret", "id")

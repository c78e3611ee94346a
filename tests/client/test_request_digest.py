"""The digest of a request: equal for requests that mean the same, and for no others."""

import pytest

from bedrockish.api import requests
from bedrockish.api.requests import Params, Request, Statement, digest_of
from bedrockish.errors import UsageError


def digest(sql: str, params: Params = None) -> bytes:
    return digest_of(Request("c", (Statement(sql, params),)))


@pytest.mark.parametrize("params", [[], (), {}])
def test_empty_parameters_and_none_have_the_same_digest(params: Params) -> None:
    assert digest("SELECT 1", params) == digest("SELECT 1")


def test_list_and_tuple_have_one_digest() -> None:
    assert digest("SELECT ?", [1]) == digest("SELECT ?", (1,))


def test_different_requests_have_different_digests() -> None:
    found = [digest("SELECT ?", [1]), digest("SELECT ?", [2]), digest("SELECT ?", ["1"]), digest("SELECT ? ", [1])]
    found += [digest("SELECT ?", [None]), digest("SELECT ?")]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("long", ["x" * 200_000, "é" * 140_000, b"\0" * 150_000])
def test_digest_of_long_values_equals_the_digest_by_the_encoder(
    monkeypatch: pytest.MonkeyPatch, long: str | bytes
) -> None:
    lists: list[list[Params]] = [[[1, long, 0.5, None, b"", "é"]], [None, [long, -7], [], {"a": 1, "é": 2.5}, [1.1]]]
    for many in lists:
        request = Request("c", tuple(Statement("SELECT ?", params) for params in many))
        found = digest_of(request)
        with monkeypatch.context() as patch:
            patch.setattr(requests, "FEW_STATEMENTS", 0)
            assert digest_of(request) == found


def test_long_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match="not Unicode"):
        digest("SELECT ?", ["x" * 200_000 + "\udc80"])

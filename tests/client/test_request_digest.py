"""The digest of a request: equal for requests that mean the same, and for no others."""

import pytest

from bedrockish.api.requests import Named, Params, Request, Statement, digest_of


def digest(sql: str, params: Params = None) -> bytes:
    return digest_of(Request("c", (Statement(sql, params),)))


@pytest.mark.parametrize("params", [[], (), {}])
def test_empty_parameters_have_the_digest_of_none(params: Params) -> None:
    assert digest("SELECT 1", params) == digest("SELECT 1")
    assert digest_of(Request("c", (), call=Named("f", []))) == digest_of(Request("c", (), call=Named("f", {})))


def test_list_and_tuple_have_one_digest() -> None:
    assert digest("SELECT ?", [1]) == digest("SELECT ?", (1,))


def test_other_requests_have_other_digests() -> None:
    found = [digest("SELECT ?", [1]), digest("SELECT ?", [2]), digest("SELECT ?", ["1"]), digest("SELECT ? ", [1])]
    found += [digest("SELECT ?", [None]), digest("SELECT ?"), digest_of(Request("c", (), call=Named("SELECT ?", [1])))]
    assert len(set(found)) == len(found)

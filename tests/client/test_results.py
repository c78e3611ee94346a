"""Results as bytes: those of statements without rows are written in a shorter way, and are the same."""

import cbor2
import pytest

from bedrockish.api.requests import Result, decode_results, encode_results


@pytest.mark.parametrize("rowcount", [-1, 0, 1, 23, 24, 100_000])
@pytest.mark.parametrize("lastrowid", [None, 1, -7, 2**63 - 1])
def test_one_statement_without_rows(rowcount: int, lastrowid: int | None) -> None:
    one = Result((), [], rowcount, lastrowid)
    assert encode_results([one]) == cbor2.dumps([[[], [], rowcount, lastrowid]])
    assert decode_results(encode_results([one])) == [one]


def test_other_results_are_encoded_as_they_are() -> None:
    for results in (
        [],
        [Result(("a",), [])],
        [Result(("a",), [(1,)], 1, 2)],
        [Result((), [(1,)])],
        [Result((), []), Result((), [])],
    ):
        assert decode_results(encode_results(results)) == results

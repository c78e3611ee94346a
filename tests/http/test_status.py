"""``bedrockish status``: a readable table, with the transactions in doubt."""

import io

import pytest

from bedrockish.cli.status import print_status
from tests.http.conftest import Asker


def test_status_prints_members_and_transactions_in_doubt_as_tables() -> None:
    out = io.StringIO()
    doubt = {"txid": "B-1f", "leader": "B", "age_ms": 4100, "recovered_by": "A"}
    node = {"address": "h:1", "role": "voter", "up": True, "applied": {"A": 1}}
    print_status(
        {"node": "A", "safe_lag_ms": 7, "nodes": {"A": node, "B": {**node, "up": False}}, "in_doubt": [doubt]}, out
    )
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["node", "A"] in lines
    assert ["node", "address", "role", "up", "applied"] in lines
    assert ["B", "h:1", "voter", "no", "A:", "1"] in lines
    assert ["txid", "leader", "age_ms", "recovered_by"] in lines
    assert ["1", "B-1f", "B", "4100", "A"] in lines


def test_status_names_a_silent_member_before_that_is_a_trouble() -> None:
    out = io.StringIO()
    nodes = {"A": {"up": True}, "B": {"up": True}, "C": {"up": False}}
    print_status({"troubles": [], "nodes": nodes, "peer_certificates": {"B": 1953654555}}, out)
    assert "2 of 3 nodes answer, without C" in out.getvalue()
    assert "Nothing is wrong" not in out.getvalue()
    assert "B: until 2031-11-28" in out.getvalue()


def test_status_of_another_release_is_printed() -> None:
    out = io.StringIO()
    print_status({"node": "A", "nodes": "many", "in_doubt": []}, out)
    assert "many" in out.getvalue()
    assert "transactions in doubt: none" in out.getvalue()


@pytest.mark.cluster
def test_status_of_a_real_node_is_printed(node: Asker) -> None:
    out = io.StringIO()
    print_status(node("/status").json, out)
    assert out.getvalue().startswith("Nothing is wrong: 1 of 1 nodes answer.\n")
    assert "members" in out.getvalue()
    assert "seconds: \n" not in out.getvalue(), "what is not known is told to be none"

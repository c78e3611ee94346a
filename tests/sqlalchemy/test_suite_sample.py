"""A part of SQLAlchemy's own suite against three nodes; all of it is run by `python -m tools.compliance`."""

from pathlib import Path

import pytest
import trio

from tools.cluster import local_cluster
from tools.compliance import run_suite

SAMPLE = "CTETest or InsertBehaviorTest or LastrowidTest or IsolationLevelTest or ExistsTest or BinaryTest"


@pytest.mark.cluster
def test_a_part_of_the_suite_fails_nowhere(tmp_path: Path) -> None:
    """Nothing fails, most is run, and what is skipped says why."""
    with local_cluster(tmp_path / "cluster") as cluster:
        for node in range(3):
            trio.run(cluster.wait_ready, node)
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        found = run_suite("bedrockish", f"bedrockish://[{hosts}]/", tmp_path / "suite", ["-k", SAMPLE])
    outcomes = [outcome for outcome, _ in found.values()]
    assert [(test, why) for test, (outcome, why) in found.items() if outcome == "failed"] == []
    assert outcomes.count("passed") > 20
    assert all(why for outcome, why in found.values() if outcome == "skipped")

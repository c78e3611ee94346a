"""One real node for the tests of this directory, and a table of its own for each."""

import itertools
from collections.abc import Iterator

import pytest
import trio

from tools.cluster import LocalCluster, LocalNode, local_cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of one node, which no test stops."""
    with local_cluster(tmp_path_factory.mktemp("alone") / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        yield cluster


@pytest.fixture
def node(alone: LocalCluster) -> LocalNode:
    return alone.nodes[0]


@pytest.fixture
def table() -> str:
    return f"t{next(_numbers)}"

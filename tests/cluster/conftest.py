"""Real processes, sockets, files and signals; every test waits for an event, with a time limit."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster import LocalCluster, local_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "cluster") as running:
        yield running

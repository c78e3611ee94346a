"""Nodes for one suite alone, because a suite drops all tables."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from tools.cluster import LocalCluster


@contextmanager
def three_nodes(directory: Path, plugins: Sequence[str] = (), *, names: str = "ABC") -> Iterator[LocalCluster]:
    """Start nodes that answer, and stop them at the end of the block.

    Raises:
        DemoError: they do not answer in time.
    """
    cluster = LocalCluster(directory, tuple(names))
    cluster.write_files()
    if plugins:
        line = f"plugins = [{', '.join(repr(name) for name in plugins)}]"
        for node in cluster.nodes:
            node.config.write_text(f"{line}\n{node.config.read_text()}")
    try:
        for node in cluster.nodes:
            node.start()
        for place in range(len(cluster.nodes)):
            trio.run(cluster.wait_ready, place)
        yield cluster
    finally:
        cluster.stop()

"""Nodes that are closed when the test is over, and a limit of files that ends with it."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.nodes import TestNode

MakeNode = Callable[..., TestNode]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    made: list[TestNode] = []

    def make(node: str = "A", path: Path | None = None, **options: Any) -> TestNode:
        made.append(TestNode(path or tmp_path / f"{node}.db", node, **options))
        return made[-1]

    yield make
    for node in made:
        node.engine.close()


@pytest.fixture
def node(make_node: MakeNode) -> TestNode:
    return make_node()


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """Limits the size of this process's files, in bytes; Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)

"""Nodes that are closed when the test is over."""

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

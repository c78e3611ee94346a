"""A pytest fixture: a real node for a program's tests. Name it with ``pytest_plugins = ["bedrockish.testing"]``.

    def test_transfer(bedrockish_node):
        with bedrockish_node.connect() as db:
            db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER)")

The node of a session starts once and is empty at first; each test makes the tables that it needs. A test that stops its
node takes ``bedrockish_new_node``, which starts one for it alone.
"""

from collections.abc import Iterator

import pytest

from bedrockish.embedded import Node, node


@pytest.fixture(scope="session")
def bedrockish_node() -> Iterator[Node]:
    """Give a temporary node that all tests share."""
    with node() as running:
        yield running


@pytest.fixture
def bedrockish_new_node() -> Iterator[Node]:
    """Give a temporary node of the test's own."""
    with node() as running:
        yield running

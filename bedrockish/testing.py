"""A pytest fixture: a real node for a program's tests. Name it with ``pytest_plugins = ["bedrockish.testing"]``.

    def test_transfer(bedrockish_node):
        with bedrockish_node.connect() as db:
            db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER)")

One node is started for the whole test session, with an empty database; each test makes the tables that it needs. A test
that stops its node uses ``bedrockish_new_node``, which starts a node for this test alone.
"""

from collections.abc import Iterator

import pytest

from bedrockish.embedded import Node, node


@pytest.fixture(scope="session")
def bedrockish_node() -> Iterator[Node]:
    """Yield a temporary node that all tests of the session share."""
    with node() as running:
        yield running


@pytest.fixture
def bedrockish_new_node() -> Iterator[Node]:
    """Yield a temporary node for one test."""
    with node() as running:
        yield running

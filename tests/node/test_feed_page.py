"""A page of the change feed at a node that refuses its query."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bedrockish.errors import BedrockishError, MemoryFullError
from bedrockish.http.changes import _Reader, read_asked
from bedrockish.http.messages import HttpRequest
from bedrockish_journal.feed.change_feed import Feed


def reader_of(node: object, feed: Feed) -> _Reader:
    """Return a reader of a feed at a node."""
    request = cast(HttpRequest, SimpleNamespace(query="", headers={}, user="", address=""))
    return _Reader(cast(Any, node), feed, read_asked(request), request)


class Refusing:
    """A node that refuses each request."""

    def __init__(self, error: BedrockishError) -> None:
        self.error, self.asked = error, 0

    async def submit(self, _: object) -> Any:
        self.asked += 1
        raise self.error


async def test_page_tells_that_the_node_lacks_memory() -> None:
    """The error must not be that of a transaction larger than a result, which no later attempt changes."""
    node = Refusing(MemoryFullError("the node has used its memory"))
    with pytest.raises(MemoryFullError, match="used its memory"):
        await reader_of(node, Feed(None)).page()
    assert node.asked == 1, "a stream would need as much"

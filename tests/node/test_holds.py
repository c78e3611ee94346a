"""Readers that keep the journal: how many there may be."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bedrockish.core.replica.safe_time import RELEASED
from bedrockish.errors import UsageError
from bedrockish.node.admin.retention import HOLD_NAMES_MAX, HOLDS_MAX, Upkeep
from bedrockish_journal.model.transaction import Txid


class Node:
    """A node with some holds; it takes what ``Upkeep.hold`` posts."""

    def __init__(self, live: int, released: int = 0) -> None:
        self.state = SimpleNamespace(me="A", holds={f"live{number}": (1, 5) for number in range(live)})
        self.state.holds |= {f"gone{number}": (1, RELEASED) for number in range(released)}
        self.posted: list[object] = []
        self.upkeep = cast(Any, object.__new__(Upkeep))
        self.upkeep._core = SimpleNamespace(state=self.state)
        self.upkeep._engine = SimpleNamespace(journal=SimpleNamespace(horizon=Txid(0, "")))
        self.upkeep._post, self.upkeep._durable = self.posted.append, self._durable
        self.upkeep.status = lambda: {"journal": {"holds": {}}}

    async def _durable(self) -> None:
        pass

    async def hold(self, name: str, *, release: bool = False) -> None:
        await self.upkeep.hold(name, None, release=release)


async def test_released_readers_leave_room_for_others() -> None:
    node = Node(HOLDS_MAX - 1, released=HOLDS_MAX)
    await node.hold("another")
    await node.hold("gone7")
    assert len(node.posted) == 2


async def test_holds_beyond_the_limit_are_refused_and_existing_ones_may_move() -> None:
    node = Node(HOLDS_MAX, released=1)
    for name in ("another", "gone0"):
        with pytest.raises(UsageError, match="100 readers hold the journal, which is the limit; release one"):
            await node.hold(name)
    await node.hold("live3")
    await node.hold("live3", release=True)
    assert len(node.posted) == 2


async def test_names_of_readers_are_bounded() -> None:
    """A client that uses a new name each time does not fill the memory of all nodes."""
    node = Node(0, released=HOLD_NAMES_MAX)
    with pytest.raises(UsageError, match=r"another: readers have used 1000 names.*use one of these names again"):
        await node.hold("another")
    await node.hold("gone3")

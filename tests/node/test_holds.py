"""The holds of readers, and the order about the clock that a file keeps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bedrockish.core.replica.safe_time import RELEASED
from bedrockish.errors import UsageError
from bedrockish.node.admin.retention import CLOCK_KEY, HOLD_NAMES_MAX, HOLDS_MAX, Upkeep, follows_wall
from bedrockish_journal.model.transaction import Txid


class Node:
    """A node with some holds; it takes what ``Upkeep.hold`` posts."""

    def __init__(self, live: int, released: int = 0) -> None:
        self.state = SimpleNamespace(me="A", holds={f"live{number}": (1, 5) for number in range(live)})
        self.state.holds |= {f"gone{number}": (1, RELEASED) for number in range(released)}
        self.posted: list[object] = []
        self.upkeep = cast(Any, object.__new__(Upkeep))
        self.upkeep._core = SimpleNamespace(state=self.state)
        self.upkeep._engine = SimpleNamespace(
            journal=SimpleNamespace(horizon=Txid(0, "")), batch=SimpleNamespace(is_in_thread=False)
        )
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


@pytest.mark.parametrize(("kept", "follows"), [({}, True), ({CLOCK_KEY: 1}, True), ({CLOCK_KEY: 0}, False)])
def test_clock_follows_the_wall_unless_an_operator_has_stopped_it(kept: dict[str, Any], follows: bool) -> None:
    assert follows_wall(SimpleNamespace(get_meta=lambda _prefix: kept)) is follows  # type: ignore[arg-type]


def test_clock_follows_the_wall_after_the_order_default_of_an_earlier_release() -> None:
    """The earlier release stored None for it."""
    assert follows_wall(SimpleNamespace(get_meta=lambda _prefix: {CLOCK_KEY: None}))  # type: ignore[arg-type]

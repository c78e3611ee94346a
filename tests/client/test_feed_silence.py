"""A following reader of the change feed moves to another node if its node falls silent, and finally gets an error."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
import trio
import trio.testing

from bedrockish.api.requests import Rows
from bedrockish.client import feed
from bedrockish.client.feed import Changes
from bedrockish.client.trio_client import Client
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    DeadlineError,
    InternalError,
    MemoryFullError,
    OutcomeUnknownError,
    UnavailableError,
)

Clock = trio.testing.MockClock


class Nodes:
    """A client of nodes with scripted answers."""

    def __init__(
        self,
        safe: Callable[[], int | None],
        *,
        clock: str = "on",
        holds: bool = True,
        errors: Iterable[BedrockishError] = (),
    ) -> None:
        self._safe, self._clock, self._holds, self._errors = safe, clock, holds, deque(errors)
        self.left = self.pages = self.asked_to_hold = 0
        self.cluster_id = ""

    def belong(self, what: str, cluster_id: str) -> None:
        assert not cluster_id, what

    async def execute(self, *_: Any, **__: Any) -> Rows:
        self.pages += 1
        if self._errors:
            raise self._errors.popleft()
        safe = self._safe()
        if safe is None:
            raise UnavailableError("no node can be reached")
        return Rows((), [(0, 0, "", "", safe, b"", "")])

    async def hold(self, *_: Any, timeout: float, **__: Any) -> None:  # noqa: ASYNC109
        self.asked_to_hold += 1
        if not self._holds:
            await trio.sleep(timeout)
            raise DeadlineError("it took too long")

    async def status(self, **_: Any) -> dict[str, Any]:
        if self._safe() is None:
            raise UnavailableError("no node can be reached")
        return {"cluster_clock": self._clock}

    def leave_node(self) -> None:
        self.left += 1


@pytest.fixture(autouse=True)
def trio_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "monotonic", trio.current_time)
    monkeypatch.setattr(feed, "POLL_S", 1.0)


async def follow(nodes: Nodes, seconds: float, **options: Any) -> float:
    """Return the time after which the reader got an error, else the whole time."""
    began, told = trio.current_time(), list[str]()
    with trio.move_on_after(seconds):
        try:
            await anext(Changes(cast(Client, nodes), **options))
        except UnavailableError as error:
            told.append(error.message)
    assert all("continue after the last cursor" in text for text in told)
    return trio.current_time() - began


async def test_feed_raises_nothing_while_safe_time_advances(autojump_clock: Clock) -> None:
    nodes = Nodes(lambda: int(trio.current_time()))
    assert await follow(nodes, 200) == 200
    assert not nodes.left


async def test_feed_leaves_a_node_that_is_cut_off_and_then_reports_it(autojump_clock: trio.testing.MockClock) -> None:
    nodes = Nodes(lambda: 7)
    assert 60 <= await follow(nodes, 200) <= 64
    assert 4 <= nodes.left <= 6


async def test_feed_of_unreachable_nodes_fails_after_its_limit(autojump_clock: Clock) -> None:
    assert 20 <= await follow(Nodes(lambda: None), 200, silent_s=20.0) <= 22


async def test_counting_clock_without_commits_is_not_reported_as_silent(autojump_clock: trio.testing.MockClock) -> None:
    assert await follow(Nodes(lambda: 7, clock="off"), 200) == 200


async def test_feed_is_read_even_if_the_hold_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    nodes = Nodes(lambda: int(trio.current_time()), holds=False)
    assert await follow(nodes, 150, hold="mirror") == 150
    assert 8 <= nodes.asked_to_hold <= 12
    assert nodes.pages > 50


async def test_temporary_errors_do_not_end_a_feed_and_permanent_ones_do(autojump_clock: trio.testing.MockClock) -> None:
    passing = [MemoryFullError("full"), ConflictError("busy"), OutcomeUnknownError("lost", command="c")]
    nodes = Nodes(lambda: int(trio.current_time()), errors=passing)
    assert await follow(nodes, 100) == 100
    assert nodes.pages > 90
    with pytest.raises(MemoryFullError):
        await anext(Changes(cast(Client, Nodes(lambda: 1, errors=passing)), follow=False))
    with pytest.raises(InternalError):
        await anext(Changes(cast(Client, Nodes(lambda: 1, errors=[InternalError("a defect")]))))

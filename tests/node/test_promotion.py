"""A node that becomes a voter serves at the same time, and survives temporary refusals."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from bedrockish.api.requests import PROMOTE, MemberChange
from bedrockish.api.url import Address
from bedrockish.config.config import Config
from bedrockish.errors import BedrockishError, ConflictError, MembershipError, OutcomeUnknownError, UnavailableError
from bedrockish.node.cluster import join

URL = "bedrockish://127.0.0.1:7000/"
SILENT = UnavailableError("nobody can be asked")
UNKNOWN = OutcomeUnknownError("the answer was lost")
CONFLICT = ConflictError("command c conflicted with A-1 of A on another command in 17 attempts")
BEHIND = MembershipError("B lacks 3 commits", reason="behind")
VOTER = MembershipError("B is a voter already", reason="duplicate")
REMOVED = MembershipError("there is no member B", reason="unknown")


@pytest.fixture
def promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    async def run(*answers: BedrockishError | None) -> None:
        """Ask until the answer is final; SILENT is the answer to opening the client."""
        left = list(answers)

        class Client:
            async def change_members(self, change: MemberChange, **_options: object) -> None:
                assert change == MemberChange(PROMOTE, "B")
                answer = left.pop(0)
                if answer is not None:
                    raise answer

        @asynccontextmanager
        async def open_client(*_arguments: object, **_options: object) -> AsyncIterator[Client]:
            if left[0] is SILENT:
                raise left.pop(0)  # type: ignore[misc]
            yield Client()

        monkeypatch.setattr(join, "open_client", open_client)
        here = Address("127.0.0.1", 7001)
        await join.promote_when_ready(URL, Config(node="B", database=str(tmp_path / "b.db"), listen=here, peers={}))
        assert not left

    return run


@pytest.mark.parametrize(
    "answers",
    [
        (None,),
        (SILENT, BEHIND, SILENT, None),
        (*[UNKNOWN] * 12, None),
        (CONFLICT, BEHIND, CONFLICT, None),  # too few voters decided the writes under way
        (BEHIND, VOTER),  # an operator was faster
        (*[UNKNOWN] * 5, VOTER),  # it was ours
    ],
)
async def test_promotion_waits_out_temporary_refusals(
    promoted: Callable[..., Any], answers: tuple[BedrockishError | None, ...], autojump_clock: MockClock
) -> None:
    await promoted(*answers)


async def test_permanent_refusal_of_a_promotion_is_reported(
    promoted: Callable[..., Any], autojump_clock: MockClock
) -> None:
    with pytest.raises(MembershipError, match="no member B"):
        await promoted(BEHIND, REMOVED)

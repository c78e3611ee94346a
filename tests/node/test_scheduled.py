"""A schema change that is committed and comes into force minutes later."""

from types import SimpleNamespace
from typing import Any

import pytest

from bedrockish.core.state.settings import Settings
from bedrockish.node.admin.retention import Upkeep
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.transaction import Txid


@pytest.mark.parametrize("force", [True, False])
def test_journal_keeps_scheduled_schema_changes(force: bool) -> None:
    """The node executes the change from the journal, and could not go on without it."""
    change = Txid(moved(0, 1_000_000), "A")
    state: Any = SimpleNamespace(
        clock=SimpleNamespace(follows_wall=True, safe=moved(0, 9_000_000)),
        schema=SimpleNamespace(scheduled=SimpleNamespace(txid=change)),
        roster=SimpleNamespace(peers={}),
        settings=Settings(),
        holds={},
    )
    upkeep = object.__new__(Upkeep)
    upkeep._core = SimpleNamespace(state=state)  # type: ignore[assignment]
    for clock in (change.clock, moved(0, 2_000_000)):
        found = upkeep.bound(clock, force=force)
        assert (found.clock, found.why) == (change.clock - 1, ["a change of the schema is not in force yet"])
    assert upkeep.bound(change.clock - 1, force=force).clock == change.clock - 1
    state.schema.scheduled = None
    assert upkeep.bound(moved(0, 2_000_000), force=force).clock == moved(0, 2_000_000)

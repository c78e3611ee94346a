"""The simulator's checks of all journals together at the end of a world."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.transaction import Transaction
from tests.core.test_member_changes import membership, transaction
from tools.sim.history import Histories


def label(made: Transaction, leader: str, tick: int) -> Entry:
    return Entry(leader, tick, {leader: 1}, made, None, GENESIS)


def test_history_check_allows_a_second_label_only_at_the_end_of_a_retired_timeline() -> None:
    """A removed leader A may also commit its own removal before it learns of it; no node accepts that, and no entry may
    follow.
    """
    world = SimpleNamespace(broken=lambda law, story: pytest.fail(f"{law}: {story}"))
    histories = Histories(cast(Any, world), [])
    removal = transaction("C", 2, change=membership(1, "BCDE"), base={"A": 1})
    retiring = replace(membership(2, "BCDE", "F"), level=2, retired={"A": 2})
    following = transaction("E", 3, config=1, change=retiring, base={"A": 1, "D": 1})
    for entry in (label(removal, "A", 2), label(removal, "D", 1), label(following, "E", 1)):
        histories.entries[entry.place] = entry
        histories.first.setdefault(entry.txid, entry)
        histories.places[entry.txid].append(entry.place)
    assert histories._ends_of_retired() == {"A": 1}
    more = label(transaction("A", 4), "A", 3)
    histories.entries[more.place] = more
    histories.places[more.txid].append(more.place)
    with pytest.raises(pytest.fail.Exception, match="what is retired ends there: A3"):
        histories._ends_of_retired()

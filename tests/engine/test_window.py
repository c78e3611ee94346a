"""A start reads a bounded part of the journal for conflict tests; queries of the journal answer for the rest."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Now
from bedrockish.core.state import state as state_module
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.settings import Settings
from bedrockish.engine.storage import journal_tables
from bedrockish.errors import DamagedError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.model.vector import Vector
from tests.engine.nodes import TestNode

COUNT = 21  # entries, with clocks and ticks 1, 2, 3, …; the first one makes the table
KEPT = 3


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestNode:
    monkeypatch.setattr(journal_tables, "WINDOW_ENTRIES_MAX", KEPT)
    node = TestNode(tmp_path / "a.db")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)")
    for number in range(2, COUNT + 1):
        node.run(("INSERT INTO t VALUES (?, 'x')", [number]))
    return node


def start(node: TestNode, safe: int) -> Node:
    node.engine.set_meta("safe", safe)
    journal = node.engine.journal
    return Node(
        node.engine.recover(),
        Settings(),
        lambda: 0.5,
        Now(0.0, 0),
        lookups=FileLookups(has_applied=journal.has, find_places=journal.places, conflicts=journal.conflicts),
    )


def asked(node: TestNode, row: int, base: Vector) -> Transaction:
    """Return a transaction that writes the same keys as the entry of a row."""
    access_set = AccessSet(write_points=node.entries[row - 1].transaction.access_set.write_points)
    return Transaction(Txid(99, "B"), base, 0, 1, 0, "mine", "serializable", ROWS, access_set, b"", b"")


def test_start_reads_settled_entries_up_to_its_limit_and_all_others(node: TestNode) -> None:
    state = start(node, COUNT).state
    assert len(state.commit_window.known) == KEPT
    assert state.commit_window.floor == {"A": COUNT - KEPT}
    state = start(node, 10).state
    assert sorted(txid.clock for txid in state.votes.done) == list(range(11, COUNT + 1))
    assert state.commit_window.floor == {"A": 10}


def test_start_reads_entries_for_the_window_up_to_a_limit_of_bytes(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(len(entry.label) + len(entry.transaction.body) for entry in node.entries)
    monkeypatch.setattr(journal_tables, "WINDOW_BYTES_MAX", 2 * size)
    assert start(node, COUNT).state.commit_window.floor == {"A": COUNT - 2}


@pytest.mark.parametrize(
    ("row", "base", "conflicts"),
    [
        (COUNT, {"A": COUNT - 1}, True),  # in the window
        (COUNT, {"A": COUNT}, False),
        (15, {"A": 14}, True),  # in the journal
        (15, {"A": 15}, False),
        (15, {"A": 16}, False),
        (5, {}, True),
    ],
)
def test_commits_dropped_from_the_window_are_compared_by_the_journal(
    node: TestNode, row: int, base: Vector, conflicts: bool
) -> None:
    assert start(node, COUNT).state.conflicts_outside(asked(node, row, base)) is conflicts


def test_base_with_either_label_covers_a_commit_with_two_labels(node: TestNode) -> None:
    """B had adopted the transaction, and applied its own label first; the original label comes later."""
    entry = node.entries[14]
    places = node.engine.journal.conflicts(entry.transaction.access_set, {"A": 14}, {"A": 15})
    assert places is True
    node.engine._db.execute("UPDATE main.bedrockish_journal SET repeat = 1 WHERE tick = 16")
    node.engine._db.execute("UPDATE main.bedrockish_journal SET leader = 'B', tick = 1, clock = 15 WHERE tick = 16")
    assert node.engine.journal.conflicts(entry.transaction.access_set, {"A": 14, "B": 1}, {"A": 15}) is False


def spoil(node: TestNode) -> None:
    node.engine._db.execute("UPDATE main.bedrockish_journal SET body = CAST(substr(body, 2) AS BLOB) WHERE tick = 16")


def remove(node: TestNode) -> None:
    node.engine._db.execute("DELETE FROM main.bedrockish_journal WHERE tick = 16")


def ask_too_much(_node: TestNode) -> None:
    pass


@pytest.mark.parametrize("change", [spoil, remove, ask_too_much])
def test_incomparable_commits_are_reported(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, change: Callable[[TestNode], None]
) -> None:
    """The window reports that it cannot compare the commits, and does not scan the whole journal."""
    state = start(node, COUNT).state
    change(node)
    if change is ask_too_much:
        monkeypatch.setattr(state_module, "LOOKED_UP_MAX", 3)
    assert state.conflicts_outside(asked(node, 17, {"A": 14})) is None
    assert state.conflicts_outside(asked(node, 17, {"A": 16})) is True


def test_received_but_unapplied_commit_cannot_be_compared(node: TestNode) -> None:
    """The commit arrived too late for the window, and waits for its causes, so the journal has no conflict with it."""
    state = start(node, COUNT).state
    state.commit_window.floor["A"] = COUNT + 1
    assert state.conflicts_outside(replace(asked(node, 15, {"A": COUNT}), access_set=AccessSet())) is None


def test_node_starts_despite_a_damaged_settled_entry(node: TestNode) -> None:
    """The entry counts as dropped, so bases without it are refused; an entry that may be unsettled must be readable."""
    spoil(node)
    state = start(node, 17).state
    assert state.commit_window.floor == {"A": 17}
    assert sorted(txid.clock for txid in state.votes.done) == list(range(18, COUNT + 1))
    assert not node.engine.damaged
    node.engine._db.execute("UPDATE main.bedrockish_journal SET body = CAST(substr(body, 2) AS BLOB) WHERE tick = 20")
    assert start(node, COUNT).state.commit_window.floor == {"A": 20}
    assert list(node.engine.damaged) == ["A20"]
    with pytest.raises(DamagedError, match=r"the entry A20 of the journal is damaged.*member replace"):
        start(node, 19)


def test_a_conflict_is_not_certain_if_a_place_of_the_commit_may_have_been_removed(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base may include the commit by the removed place."""
    journal, entry = node.engine.journal, node.entries[14]
    assert journal.conflicts(entry.transaction.access_set, {"A": 14}, {"A": 15}) is True
    monkeypatch.setattr(journal, "horizon", entry.txid)
    assert journal.conflicts(entry.transaction.access_set, {"A": 14}, {"A": 15}) is None

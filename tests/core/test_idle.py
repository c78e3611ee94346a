"""Heartbeats of nodes with nothing to do, and of nodes that get work again."""

from collections import Counter
from dataclasses import replace

from bedrockish.core.protocol.events import Event, Received
from bedrockish.core.protocol.messages import Gossip
from tests.core.test_once import NODES, Trio, prepared


class Counted(Trio):
    """Three nodes, and the number of reports that each has received."""

    def __init__(self) -> None:
        self.reports: Counter[str] = Counter()
        super().__init__()

    def step(self, name: str, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, Gossip):
            self.reports[name] += 1
        super().step(name, event)

    def reports_in(self, seconds: float) -> set[int]:
        self.reports.clear()
        self.run(seconds)
        return {self.reports[name] for name in NODES}

    def lead(self, key: str) -> int:
        """Commit a transaction of A, and return its clock."""
        number = self.submit("A", prepared(self.nodes["A"].state.timelines.applied, writes=key), once=False)
        while number not in self.answers:
            self.run(0.01)
        return max(entry.txid.clock for entry in self.journals["A"])


def test_idle_nodes_report_twice_a_second() -> None:
    trio = Counted()
    trio.run(5.0)
    assert max(trio.reports_in(10.0)) <= 2 * 2 * 10 + 2  # two others, twice a second


def test_idle_nodes_hurry_as_soon_as_a_transaction_begins() -> None:
    """Safe time passes the commit at all nodes within the closing lag and a heartbeat, as at busy nodes."""
    trio = Counted()
    trio.run(5.0)
    clock = trio.lead("x")
    trio.run(0.6)
    assert all(trio.nodes[name].state.clock.safe >= clock for name in NODES)


def test_nodes_become_idle_again_after_their_commits() -> None:
    trio = Counted()
    for key in "xyz":
        trio.lead(key)
    trio.run(5.0)
    assert max(trio.reports_in(10.0)) <= 2 * 2 * 10 + 2


def test_idle_node_reports_at_least_twice_in_the_time_of_suspicion() -> None:
    trio = Counted()
    for name in NODES:
        state = trio.nodes[name].state
        state.settings = replace(state.settings, suspicion_ms=300)
    trio.run(5.0)
    assert min(trio.reports_in(9.0)) >= 2 * 2 * 9 / 0.3 * 0.9


def test_nodes_are_not_idle_while_a_peer_lacks_an_entry() -> None:
    trio = Counted()
    trio.run(5.0)
    trio.cut.add("C")
    trio.lead("x")
    trio.run(3.0)
    trio.reports.clear()
    trio.run(5.0)
    assert trio.reports["B"] >= 0.9 * 5 / 0.1  # A's

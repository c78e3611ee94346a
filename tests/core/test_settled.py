"""A node that was away, or is new, keeps no more of the fetched entries in memory than a node that keeps up."""

from collections.abc import Iterator

import pytest

from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Apply, Effect, Keep, Send, SendOutcome
from bedrockish.core.protocol.events import Now, Received, Woken
from bedrockish.core.protocol.messages import Ask, Commit, Entries, Gossip, Message, Outcome, Recover
from bedrockish.core.protocol.records import Joining, Recovered
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import Transaction, Txid
from tests.core.test_member_changes import CLOCK, WALL, membership, transaction

MEMBERS = membership(0, "ABC")
HOUR_MS = 3_600_000
PAGE, PAGES = 40, 30
LAST = PAGE * PAGES
LATER = moved(CLOCK, HOUR_MS)  # closed and cut of the other nodes


class Behind:
    """The node B, which lacks A's commits, and a driver that records the ids of applied entries."""

    def __init__(self, members: Membership = MEMBERS, joining: Joining | None = None, settled: int = 0) -> None:
        self.journal: dict[Txid, list[tuple[str, int]]] = {}
        self.seconds = 0.0
        recovered = Recovered("B", "store of B", members, joining=joining, settled=settled)
        self.node = Node(
            recovered,
            Settings(),
            lambda: 0.5,
            self.now,
            lookups=FileLookups(has_applied=lambda txid: txid in self.journal),
        )
        self.state = self.node.state
        self.node.start(self.now)
        for peer in self.state.roster.peers:
            self.hear(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL))

    @property
    def now(self) -> Now:
        return Now(self.seconds, WALL + HOUR_MS + int(1000 * self.seconds))

    def hear(self, peer: str, message: Message) -> list[Effect]:
        """Receive a message; the journal has the entries that it applies before the next one."""
        return self._perform(self.node.step(Received(peer, message), self.now))

    def wait(self, seconds: float = 0.5) -> list[Effect]:
        self.seconds += seconds
        return self._perform(self.node.step(Woken(), self.now))

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Apply):
                assert effect.repeat == (effect.entry.txid in self.journal)
                self.journal.setdefault(effect.entry.txid, []).append(effect.entry.place)
        return effects

    def are_ahead(self, peers: str = "AC", config: int = 0, clock: int = LATER) -> None:
        for peer in peers:
            self.hear(peer, Gossip({"A": LAST}, clock, clock, clock, f"store of {peer}", 1, WALL, config=config))

    @property
    def remembered(self) -> int:
        return max(map(len, (self.state.votes.done, self.state.votes.outcomes, self.state.commit_window.known)))


def timeline() -> Iterator[Entry]:
    """Yield the entries that A led an hour ago."""
    head = GENESIS
    for number in range(1, LAST + 1):
        made = transaction("A", number, base={"A": number - 1} if number > 1 else {})
        entry = Entry("A", number, {"A": number, "C": 0}, made, None, head)
        head = entry.hash
        yield entry


def pages() -> Iterator[Entries]:
    entries = list(timeline())
    for first in range(0, LAST, PAGE):
        page = entries[first : first + PAGE]
        yield Entries(tuple((entry.prev, entry.label, entry.transaction.body) for entry in page), LATER)


@pytest.fixture
def behind() -> Behind:
    return Behind()


def test_node_that_catches_up_remembers_at_most_a_page_of_entries(behind: Behind) -> None:
    behind.are_ahead()
    behind.wait()
    for page in pages():
        assert behind.state.clock.safe == 0
        behind.hear("A", page)
        behind.wait()
        assert behind.remembered <= PAGE
    assert len(behind.journal) == LAST
    assert behind.state.clock.safe == LATER
    assert not behind.state.votes.outcomes
    assert behind.state.commit_window.floor == {"A": LAST}  # a base without them is refused


def test_node_remembers_all_entries_until_a_majority_has_reported(behind: Behind) -> None:
    """One node's cut is not enough, because another node may still decide a transaction there."""
    behind.are_ahead("A")
    for page in list(pages())[:-1]:
        behind.hear("A", page)
        behind.wait()
    assert behind.state.clock.settled == 0
    assert behind.remembered == LAST - PAGE


def some_taken(behind: Behind) -> Transaction:
    """Let B apply some entries and forget them; return the first."""
    behind.are_ahead()
    behind.wait()
    for page, _ in zip(pages(), range(5), strict=False):
        behind.hear("A", page)
        behind.wait()
    first = transaction("A", 1)
    assert first.txid in behind.journal
    assert first.txid not in behind.state.votes.done
    assert first.txid not in behind.state.votes.outcomes
    assert behind.state.clock.safe < first.txid.clock
    return first


def test_second_label_of_a_forgotten_commit_is_applied_as_a_repeat(behind: Behind) -> None:
    first = some_taken(behind)
    adopted = Entry("C", 1, {"C": 1}, first, "A", GENESIS)
    effects = behind.hear("C", Commit(adopted.label, first.body, adopted.hash, LATER))
    assert [(one.entry.leader, one.repeat) for one in effects if isinstance(one, Apply)] == [("C", True)]
    behind.wait()
    assert behind.remembered <= PAGE


def test_outcome_of_a_forgotten_commit_is_known(behind: Behind) -> None:
    first = some_taken(behind)
    assert behind.state.outcome(first.txid) is True
    assert SendOutcome("C", first.txid) in behind.hear("C", Recover(first.body, 2, LATER))
    never = Txid(first.txid.clock, "C")
    assert behind.state.outcome(never) is None
    assert not [one for one in behind.hear("C", Ask(never, LATER)) if isinstance(one, SendOutcome)]


def test_late_waiting_commit_is_not_reported_as_rolled_back() -> None:
    """The window drops the commit when it arrives, and the journal gets it after the commits that it has seen."""
    behind = Behind()
    behind.are_ahead()
    behind.wait()
    made = transaction("C", 1, base={"A": 1})
    late = Entry("C", 1, {"A": 1, "C": 1}, made, None, GENESIS)
    behind.hear("C", Commit(late.label, made.body, late.hash, LATER))
    assert made.txid not in behind.state.commit_window.known
    assert made.txid not in behind.journal
    assert behind.state.outcome(made.txid) is True
    effects = behind.hear("A", Recover(made.body, 2, LATER))
    assert SendOutcome("A", made.txid) not in effects, "the journal would say that it is rolled back"
    told = [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, Outcome)]
    assert [(one.commit, one.leader, one.tick) for one in told] == [(True, "C", 1)]

    behind.hear("A", next(pages()))
    behind.wait()
    assert made.txid in behind.journal
    assert SendOutcome("A", made.txid) in behind.hear("A", Recover(made.body, 2, LATER))


def test_commit_applied_in_this_step_is_not_forgotten_yet(behind: Behind) -> None:
    """The journal has the commit only at the end of the step, and time may advance before that."""
    behind.are_ahead()
    behind.wait()
    behind.node.apply_queue.on_entries("A", next(pages()))
    behind.node.safe_time.advance()
    assert len(behind.state.votes.done) == len(behind.state.votes.outcomes) == PAGE
    behind.hear("C", Ask(transaction("A", 1).txid, LATER))
    behind.wait()
    assert not behind.state.votes.done
    assert not behind.state.votes.outcomes


def test_settled_clock_survives_a_restart(behind: Behind) -> None:
    behind.are_ahead()
    kept = [effect for effect in behind.wait() if isinstance(effect, Keep) and effect.name == "settled"]
    assert kept == [Keep("settled", LATER)]
    assert Behind(settled=LATER).state.clock.settled == LATER


def test_new_node_counts_by_the_membership_that_added_it() -> None:
    """The new node's own file begins with A alone, whose cut is not a majority's any more."""
    told = membership(3, "ACD", "B")
    behind = Behind(membership(0, "A"), Joining(told, {"A": LAST}))
    behind.are_ahead("A", config=3)
    behind.wait()
    assert behind.state.clock.settled == 0
    behind.are_ahead("D", config=3)
    behind.wait()
    assert behind.state.clock.settled == LATER


def test_safe_time_waits_while_a_sender_knows_a_newer_membership(behind: Behind) -> None:
    behind.are_ahead("C", config=1)
    behind.are_ahead("A")
    behind.wait()
    assert behind.state.clock.settled == 0

"""A second label arrives long after the first: a base that includes the first place includes the commit."""

import pytest

from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Send
from bedrockish.core.protocol.events import Event, Now, PeerUp, Received, Woken
from bedrockish.core.protocol.messages import Approve, Begin, Commit, Gossip, Promise, Recover, Standing
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state import commit_window, packed_commits
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.model.vector import Vector

WALL = 1_700_000_000_000
HOT = b"t:x\0hot"
LAST = 30  # the last tick of C's timeline


def make(leader: str, ms: int, key: bytes, base: Vector) -> Transaction:
    clock, command = pack(WALL + ms), f"{leader}-{ms}"
    written = AccessSet(read_points=frozenset({key}), write_points=frozenset({key}))
    sets = claim(written, (command,), ROWS, clock)
    safe = pack(WALL + ms - 500)
    return Transaction(Txid(clock, leader), base, safe, 0, 0, command, "serializable", ROWS, sets, b"", b"")


class Story:
    """The voter B: X of A was adopted as C1 long ago; C goes on alone; then A is back with its own label of X, A1."""

    def __init__(self) -> None:
        self.ms = 0
        self.journal: dict[Txid, list[tuple[str, int]]] = {}
        recovered = Recovered("B", "sB", Membership(0, {node: Member(node, f"{node}:1") for node in "ABC"}))
        settings = Settings(conflict_window_ms=1_000)
        self.node = Node(
            recovered,
            settings,
            lambda: 0.5,
            self.now,
            lookups=FileLookups(
                has_applied=lambda txid: txid in self.journal, find_places=lambda txid: self.journal.get(txid, ())
            ),
        )
        self.node.start(self.now)
        self.step(PeerUp("C"))
        self.gossip("C", {}, 0)
        self.x = make("A", 10, HOT, {})
        self.ms = 1_000
        entry = Entry("C", 1, {"B": 0, "C": 0}, self.x, "A", GENESIS)
        self.commit(entry)
        for tick in range(2, LAST + 1):
            self.ms += 200
            self.step(Woken())
            entry = Entry("C", tick, {"B": 0, "C": tick}, make("C", self.ms, b"t:y", {"C": tick - 1}), None, entry.hash)
            self.commit(entry)
            self.gossip("C", {"C": tick}, pack(WALL + self.ms - 600))
        self.step(PeerUp("A"))
        self.gossip("A", {"C": LAST}, 0)
        assert not list(self.window.conflicts(self.x.access_set, {}, None))
        self.commit(Entry("A", 1, {"A": 1, "C": 0}, self.x, None, GENESIS))
        assert self.node.state.timelines.applied == {"A": 1, "C": LAST}

    @property
    def now(self) -> Now:
        return Now(self.ms / 1000, WALL + self.ms)

    @property
    def window(self) -> commit_window.CommitWindow:
        return self.node.state.commit_window

    def step(self, event: Event) -> list[object]:
        return [effect.message for effect in self.node.step(event, self.now) if isinstance(effect, Send)]

    def gossip(self, peer: str, applied: Vector, closed: int) -> None:
        self.step(Received(peer, Gossip(applied, closed, closed, pack(WALL + self.ms), f"s{peer}", 1, WALL + self.ms)))

    def commit(self, entry: Entry) -> None:
        transaction = entry.transaction
        self.journal.setdefault(transaction.txid, []).append(entry.place)
        self.step(Received(entry.leader, Commit(entry.label, transaction.body, entry.hash, transaction.txid.clock)))


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(packed_commits, "SEGMENT", 4)
    return Story()


def test_a_recovery_holds_a_transaction_whose_base_has_the_first_label_alone(story: Story) -> None:
    """NEVER would abort the transaction, though its client may have the answer that it is committed."""
    made = make("C", story.ms + 5, HOT, {"C": LAST})
    said = story.step(Received("A", Recover(made.body, 2, made.txid.clock)))
    assert [one.standing for one in said if isinstance(one, Promise)] == [Standing.HELD]


def test_a_voter_approves_a_transaction_whose_base_has_the_first_label_alone(story: Story) -> None:
    made = make("C", story.ms + 5, HOT, {"C": LAST})
    said = story.step(Received("C", Begin(made.body, "")))
    assert [type(one) for one in said if not isinstance(one, Gossip)] == [Approve]


def test_base_with_a_place_only_in_the_journal_covers_its_commit(story: Story) -> None:
    """A restart reads only some entries: an entry at the first place may not be among them, or may be damaged."""
    story.window.known.clear()
    made = make("C", story.ms - 300, HOT, {"C": LAST - 1})
    story.journal[made.txid] = [("C", LAST), ("A", 2)]
    story.window.add(("A", 2), made)
    asks = make("C", story.ms + 5, HOT, {"A": 1, "C": LAST})
    assert story.node.state.conflicts_outside(asks) is False
    lacks = make("C", story.ms + 6, HOT, {"A": 1, "C": LAST - 1})
    assert story.node.state.conflicts_outside(lacks) is True

"""A clock near the largest value that a file can hold stops following the wall; all else goes on."""

from dataclasses import fields

import cbor2
import pytest

from bedrockish.api.requests import Request
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Apply, Effect, Keep, Malformed, Send
from bedrockish.core.protocol.events import Executed, Now, Received, Submitted, Woken
from bedrockish.core.protocol.messages import (
    NUMBERS,
    Accepted,
    Approve,
    Begin,
    Gossip,
    Message,
    Outcome,
    Promise,
    Recover,
    Refused,
    decode,
    encode,
)
from bedrockish.core.protocol.records import ENDED, Prepared, Recovered
from bedrockish.core.state.clock import Clock
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import (
    BEND,
    BEND_MS,
    CLOCK_LIMIT,
    CLOCK_READ_LIMIT,
    WALL_MS_MAX,
    milliseconds,
    moved,
    pack,
)
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from tests.core.net import Net, add
from tests.core.test_member_changes import CLOCK, WALL, One, membership

DECADES_MS = 20 * 365 * 24 * 3_600_000


def test_clock_rises_one_by_one_when_the_wall_time_is_beyond_its_range() -> None:
    clock = Clock(Settings(), Now(0.0, WALL_MS_MAX - 1))
    clock.set_now(Now(0.0, WALL_MS_MAX - 1), needed=0)
    before = clock.tick()
    assert before == pack(WALL_MS_MAX - 1)
    late = []
    for step in range(1_000):
        clock.set_now(Now(0.0, WALL_MS_MAX + DECADES_MS + step), needed=0)
        late.append(clock.tick())
    assert late == sorted(set(late))
    assert before < late[0]
    assert late[-1] < CLOCK_LIMIT
    clock.set_now(Now(0.0, 1 << 60), needed=0)
    assert clock.read() == late[-1]


def test_node_at_the_limit_of_its_clock_commits_and_safe_time_advances() -> None:
    """A node goes on even if its machine reports for a moment a time far in the future."""
    wall, seconds = WALL_MS_MAX - 2_000, 0.0
    node = Node(Recovered("A", "s", Membership(0, {"A": Member("A", "")})), Settings(), lambda: 0.5, Now(seconds, wall))
    effects: list[Effect] = node.start(Now(seconds, wall))
    for beat in range(10):  # until safe time is there
        effects += node.step(Woken(), Now(seconds + 0.1 * beat, wall + 100 * beat))
    seconds, wall = 1.0, wall + 1_000
    for number in range(1, 40):
        seconds += 0.1
        wall += 100 if number < 20 else DECADES_MS
        now = Now(seconds, wall)
        written = AccessSet(write_points=frozenset({b"t:x\0%d" % number}))
        effects += node.step(Submitted(number, Request(f"c{number}", ())), now)
        prepared = Prepared(dict(node.state.timelines.applied), 0, False, ROWS, written, b"", b"")
        effects += node.step(Executed(number, prepared), now)
        effects += node.step(Woken(), now)
    commits = [effect.entry.txid.clock for effect in effects if isinstance(effect, Apply)]
    kept = [effect.value for effect in effects if isinstance(effect, Keep) and isinstance(effect.value, int)]
    assert len(commits) == 39
    assert commits == sorted(commits)
    assert max(commits + kept) < CLOCK_LIMIT
    assert node.state.clock.safe >= commits[30]


FAR = Txid(CLOCK_READ_LIMIT - 1, "A")


@pytest.mark.parametrize(
    "message",
    [
        Accepted(FAR, 2, FAR.clock),
        Approve(FAR, 5, FAR.clock),
        Gossip({"A": 1}, FAR.clock, FAR.clock, FAR.clock, "s", 1, 1, {}, 2, "", 0),
        Outcome(FAR, True, "A", 1, FAR.clock),
        Refused(FAR, ENDED, FAR.clock),
        Recover(b"body", ENDED - 1, FAR.clock),
    ],
)
def test_message_with_a_number_too_large_for_a_file_is_refused(message: Message) -> None:
    """The greatest accepted numbers leave room for the numbers that are counted from them; each larger field is
    refused.

    A clock of two to the power of 63 would end a node, which could not store its ceiling above this clock.
    """
    assert decode(encode(message)) == message
    packed = [NUMBERS[type(message)], *(getattr(message, one.name) for one in fields(message))]
    clocks = [place for place, item in enumerate(packed) if item in (FAR, FAR.clock, ENDED - 1, ENDED)]
    assert len(clocks) >= 2
    for place in clocks:
        wrong = list(packed)
        wrong[place] = replace_clock(packed[place])
        with pytest.raises(EntryMalformedError):
            decode(cbor2.dumps(wrong))


def replace_clock(item: object) -> object:
    if isinstance(item, Txid):
        return [item.clock + 1, item.leader]
    assert isinstance(item, int)
    return item + 1


def test_clock_that_counts_from_the_greatest_clock_can_be_stored() -> None:
    net = Net("ABC")
    core = net.places["A"].core
    core.state.clock.follow_wall(follows=False)
    net.play("A", "receive", "B", Accepted(FAR, 2, FAR.clock))
    assert core.state.clock.value >= FAR.clock
    assert FAR.clock < core.state.clock.ceiling < CLOCK_LIMIT


def test_recoverer_jumps_above_any_promised_ballot() -> None:
    """A peer claims to have promised an unreachably high ballot: the recoverer does not count up to it."""
    net = Net("ABC")
    net.ask("A", add("P", "x"))
    begin = next(one for _, _, one in net.flights if isinstance(one, Begin))
    net.play("B", "receive", "A", begin)
    core = net.places["B"].core
    (transaction,) = core.state.votes.pending.transactions.values()
    before = 0
    for promised in (1 << 61, ENDED - 1):
        core.recovery.start(transaction)
        assert before < core.recovery.rounds[transaction.txid].ballot <= before + 4
        before = promised
        net.play("B", "receive", "C", Refused(transaction.txid, promised, 1))
        core.recovery.rounds.clear()
    core.recovery.start(transaction)
    assert not core.recovery.rounds, "a decided rollback is kept there"


YEAR_MS = 366 * 86_400_000


@pytest.mark.parametrize("ahead_ms", [YEAR_MS + 60_000, 2_000 * YEAR_MS])
def test_one_message_does_not_put_the_clocks_years_ahead(ahead_ms: int) -> None:
    """A node ignores and reports such a message like a lost one, even if an outcome depends on it."""
    one = One(membership(0, "ABC"))
    clock, far = one.node.state.clock, moved(CLOCK, ahead_ms)
    begun = Transaction(*(Txid(far, "C"), {}, 0, 0, 0, "c", "serializable", ROWS, AccessSet(), b"\x80", b"\x80"))
    for said in (
        Accepted(Txid(CLOCK, "C"), 2, far),
        Outcome(Txid(CLOCK, "C"), False, "", 0, far),
        Refused(Txid(CLOCK, "C"), 3, far),
        Recover(begun.body, 3, CLOCK),
        Begin(begun.body),
        Gossip({}, 0, 0, far, "store of C", 1, WALL),
    ):
        effects = one.step(Received("C", said))
        assert clock.value < moved(CLOCK, 60_000), said
        assert not any(isinstance(effect, Send) and isinstance(effect.message, Promise) for effect in effects)
        assert isinstance(said, Begin | Gossip) or any(isinstance(effect, Malformed) for effect in effects)


def test_clock_hours_ahead_is_followed_if_an_outcome_depends_on_it() -> None:
    one = One(membership(0, "ABC"))
    ahead = moved(CLOCK, 30 * 3_600_000)
    one.step(Received("C", Accepted(Txid(CLOCK, "C"), 2, ahead)))
    assert one.node.state.clock.value >= ahead


def test_cluster_survives_the_change_of_the_clocks_layout() -> None:
    """Clocks and commits stay in order, safe time advances, and stored clocks give the wall time."""
    wall = BEND_MS - 2_000
    node = Node(Recovered("A", "s", Membership(0, {"A": Member("A", "")})), Settings(), lambda: 0.5, Now(0.0, wall))
    effects: list[Effect] = node.start(Now(0.0, wall))
    for beat in range(1, 41):
        now = Now(0.1 * beat, wall + 100 * beat)
        if beat > 15:
            effects += node.step(Submitted(beat, Request(f"c{beat}", ())), now)
            written = AccessSet(write_points=frozenset({b"t:x\0"}))
            prepared = Prepared(dict(node.state.timelines.applied), 0, False, ROWS, written, b"", b"")
            effects += node.step(Executed(beat, prepared), now)
        effects += node.step(Woken(), now)
    clocks = [effect.entry.txid.clock for effect in effects if isinstance(effect, Apply)]
    assert len(clocks) == 25
    assert clocks == sorted(clocks)
    assert clocks[0] < BEND < clocks[-1]
    moments = [milliseconds(clock) - wall for clock in clocks]
    assert all(abs(moment - 100 * beat) <= 1 for beat, moment in zip(range(16, 41), moments, strict=True))
    assert abs(milliseconds(node.state.clock.safe) - (wall + 4_000)) < 3_000

"""The printer: every message, effect and event is one line, also a malformed one."""

from typing import get_args

import pytest

from bedrockish.api.requests import Answer, Request, Token
from bedrockish.core.describe import Printer, log_line
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol import messages as say
from bedrockish.core.protocol.records import ENDED, Prepared, Vote
from bedrockish.errors import DeadlineError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid

ALICE, BETTY = Txid(1, "A"), Txid(2, "B")
NAMES = {ALICE: "Alice", BETTY: "Betty"}
PRINTER = Printer("ABCDE", lambda txid: NAMES.get(txid, str(txid)))


def transaction(txid: Txid, *rollbacks: Txid) -> Transaction:
    return Transaction(txid, {}, 0, 0, 0, "", "", ROWS, AccessSet(), b"", b"", rollbacks)


BODY = transaction(ALICE).body
ENTRY = Entry("A", 4, {"A": 4, "C": 0, "E": 0}, transaction(ALICE), None, GENESIS)
ADOPTED = Entry("B", 1, {"B": 1, "C": 0}, transaction(ALICE), "A", GENESIS)

MESSAGES: list[tuple[say.Message, str]] = [
    (say.Begin(BODY), "BEGIN Alice"),
    (say.Begin(transaction(BETTY, ALICE).body), "BEGIN Betty, which carries ROLLBACK Alice"),
    (say.Begin(b"?"), "BEGIN 1 bytes that are not a transaction"),
    (say.Approve(ALICE, 0, 0), "APPROVE Alice"),
    (say.Approve(Txid(10, "C"), 0, 0), "APPROVE C-a"),
    (say.Reject(ALICE, say.Reason.FOR, BETTY, b"", 0), "REJECT Alice FOR Betty"),
    (say.Reject(ALICE, say.Reason.TOO_LATE, None, b"", 0), "REJECT Alice TOO LATE"),
    (say.Commit(ENTRY.label, None, ENTRY.hash, 0), "COMMIT Alice[4, *, 0, *, 0]"),
    (say.Commit(ADOPTED.label, BODY, ADOPTED.hash, 0), "COMMIT Alice[*, 1, 0, *, *] ADOPTED FROM A"),
    (say.Rollback(BETTY, 0), "ROLLBACK Betty"),
    (say.Recover(BODY, 2, 0), "RECOVER Alice at ballot 2"),
    (say.Promise(ALICE, 2, say.Standing.HELD, None, (), (), 0, 0), "PROMISE Alice at ballot 2 HELD"),
    (
        say.Promise(ALICE, 3, say.Standing.BLOCKED, (2, False), (transaction(BETTY).body,), (BETTY,), 0, 0),
        "PROMISE Alice at ballot 3 BLOCKED BY Betty ACCEPTED ABORT at 2 ENDED Betty",
    ),
    (say.Accept(BODY, 2, True, 0), "ACCEPT COMMIT Alice at ballot 2"),
    (say.Accepted(ALICE, 2, 0), "ACCEPTED Alice at ballot 2"),
    (say.Accepted(ALICE, 1, 0), "ACCEPTED ROLLBACK Alice"),
    (say.Refused(ALICE, 7, 0), "REFUSED Alice, promised 7"),
    (say.Outcome(ALICE, True, "B", 1, 0), "OUTCOME Alice COMMITTED as B1"),
    (say.Outcome(ALICE, False, "", 0, 0), "OUTCOME Alice ROLLED BACK"),
    (say.Ask(ALICE, 0), "ASK Alice"),
    (say.Ask(ALICE, 0, (ALICE,)), "ASK Alice, Alice"),
    (say.Gossip({"A": 1}, 1 << 22, 5, 0, "", 0, 0), "GOSSIP [1, 0, 0, 0, 0] closed 1ms+0 cut 0ms+5"),
    (say.Fetch({"C": 2, "A": 1}, 9), "FETCH A1…, C2…"),
    (say.Entries(((GENESIS, ENTRY.label, BODY),), 0), "ENTRIES A4 Alice"),
    (say.Entries(((GENESIS, b"?", BODY),), 0), "ENTRIES a malformed entry"),
    (say.Entries((), 0), "ENTRIES none"),
    (say.Offer(3, ((bytes(32), 7), (b"x" * 32, 5)), 0), "OFFER 3: 12 bytes in 2 pieces"),
    (say.Offer(3, (), 0), "OFFER 3 is over"),
    (say.Stored(3, True, 0), "STORED offer 3"),
    (say.Stored(3, False, 0), "STORED nothing of offer 3: no room"),
    (say.Want((bytes(32),)), "WANT 1 pieces"),
    (say.Piece(b"\xab" * 32, b"xyz"), "PIECE abababab of 3 bytes"),
    (say.Piece(b"\xab" * 32, None), "PIECE abababab is not here any more"),
    (say.InPieces((b"head", (bytes(32), 7))), "IN PIECES: 7 bytes in 1 pieces"),
    (say.Check(1, {"B": 2}, b"", 0), "CHECK read 1 at [0, 2, 0, 0, 0]"),
    (say.Checked(1, (), 0), "CHECKED read 1, no conflict"),
    (say.Checked(1, (BETTY,), 0), "CHECKED read 1, conflicts with Betty"),
    (say.AskClock(1, 2 << 22), "ASK CLOCK, ours is 2ms+0"),
    (say.ToldClock(1, (2 << 22) + 1), "TOLD CLOCK 2ms+1"),
    (say.Removed({"C": 2, "A": 1}, 0), "REMOVED up to A1, C2"),
]

EFFECTS: list[tuple[do.Effect, str]] = [
    (do.Send("B", say.Ask(ALICE, 0)), "ASK Alice -> B"),
    (do.Reply(7, Answer(b"", Token(), ("A", 4))), "answers request 7: committed as A4"),
    (do.Reply(7, Answer(b"", Token())), "answers request 7: read"),
    (do.Reply(7, DeadlineError("too late")), "answers request 7: DeadlineError: too late"),
    (do.Execute(7), "execute, request_id 7, clock 0, group of 0"),
    (do.Persist(Vote(ALICE, None, held=True)), "persist, vote on Alice: held, promised 0, parts None"),
    (do.Persist(Vote(ALICE, None, False, 1, (1, False))), "persist, vote on Alice: not held, promised 1, parts None"),
    (
        do.Persist(Vote(ALICE, None, False, ENDED, (ENDED, False))),
        f"persist, vote on Alice: not held, promised {ENDED}, parts None",
    ),
    (do.Forget(ALICE), "forget, txid Alice"),
    (do.SavePiece(b"\xab" * 32, b"xyz"), "save piece, digest of 32 bytes, data of 3 bytes"),
    (do.DropPieces((b"\xab" * 32,)), "drop pieces, digests of 1"),
    (do.Assemble("B", (b"x",)), "assemble, peer B, parts of 1"),
    (do.Keep("cut", 3 << 22), "keep, name cut, value 12582912"),
    (do.KeepHold("mirror", 1, 3 << 22), "keep hold, name mirror, times 1, clock 12582912"),
    (do.Apply(ENTRY, False), "applies A4 Alice"),
    (do.Apply(ENTRY, True), "records the repeat A4 Alice"),
    (do.Activate(ALICE), "activate, txid Alice"),
    (do.SendEntries("B", {"A": 1}, 9), "send entries, peer B, wants [1, 0, 0, 0, 0], limit 9"),
    (do.SendOutcome("B", ALICE), "send outcome, peer B, txid Alice"),
    (do.NewerAnswered(3, may_exist=False), "newer answered, number 3, may_exist False"),
    (do.NewerAnswered(3, may_exist=True), "newer answered, number 3, may_exist True"),
    (do.SetMembers(Membership(3, {})), "membership 3: "),
    (do.Malformed("B", "COMMIT: no label"), "malformed, peer B, reason COMMIT: no label"),
    (do.Halt("a fork"), "halt, reason a fork"),
]

PREPARED = Prepared({"A": 1}, 0, True, ROWS, AccessSet(), b"", b"")
EVENTS: list[tuple[on.Event, str]] = [
    (on.Submitted(7, Request("order-7", ())), "request 7 is submitted as command order-7"),
    (on.MovedToWorker(7), "moved to worker, request_id 7"),
    (on.Executed(7, PREPARED), "request 7 reads at [1, 0, 0, 0, 0]"),
    (on.Overtaken(7, PREPARED), "overtaken, request_id 7, prepared at [1, 0, 0, 0, 0]"),
    (on.ClockWanted(7), "clock wanted, request_id 7"),
    (on.NewerAsked(3, {"A": 1}), "newer asked, number 3, base [1, 0, 0, 0, 0]"),
    (on.ClockSet(False), "clock set, follows_wall False"),
    (on.ClockSet(True), "clock set, follows_wall True"),
    (on.Shortened({"A": 1}), "shortened, upto [1, 0, 0, 0, 0]"),
    (on.Held("mirror", 3 << 22), "held, name mirror, clock 12582912"),
    (on.Held("mirror", None), "held, name mirror, clock None"),
    (on.Failed(7, DeadlineError("too slow")), "failed, request_id 7, error DeadlineError: too slow"),
    (on.Dropped(7), "dropped, request_id 7"),
    (on.Decided(7, ALICE, Answer(b"", Token())), "decided, request_id 7, txid Alice, answer read"),
    (on.Activated(ALICE, ""), "activated, txid Alice, failure "),
    (on.Activated(ALICE, "no room"), "activated, txid Alice, failure no room"),
    (on.Assembled("B", (), b"xyz"), "assembled, peer B, parts of 0, data of 3 bytes, known None"),
    (on.Compared(ALICE), "compared, txid Alice"),
    (on.Received("B", say.Ask(ALICE, 0)), "hears B: ASK Alice"),
    (on.PeerUp("B"), "peer up, peer B"),
    (on.PeerDown("B"), "peer down, peer B"),
    (on.Accused("B", "another file"), "accused, peer B, reason another file, for_good False"),
    (on.Accused("B", "an older file", for_good=True), "accused, peer B, reason an older file, for_good True"),
    (on.Woken(), "woken"),
]


@pytest.mark.parametrize(("message", "text"), MESSAGES, ids=[text for _, text in MESSAGES])
def test_messages_are_printed_as_in_the_logs(message: say.Message, text: str) -> None:
    assert PRINTER.message(message) == text


@pytest.mark.parametrize(("effect", "text"), EFFECTS, ids=[text for _, text in EFFECTS])
def test_effects_are_printed_as_in_the_logs(effect: do.Effect, text: str) -> None:
    assert PRINTER.effect(effect) == text


@pytest.mark.parametrize(("event", "text"), EVENTS, ids=[text for _, text in EVENTS])
def test_events_are_printed_as_in_the_logs(event: on.Event, text: str) -> None:
    assert PRINTER.event(event) == text


def test_every_kind_of_message_effect_and_event_is_printed() -> None:
    """A new kind of message, effect or event needs a line above."""
    for kinds, table in ((say.Message, MESSAGES), (do.Effect, EFFECTS), (on.Event, EVENTS)):
        assert {type(value) for value, _ in table} == set(get_args(kinds))


def test_entry_and_log_line_are_printed() -> None:
    assert PRINTER.entry(ENTRY) == "A4: COMMIT Alice[4, *, 0, *, 0] after [0, 0, 0, 0, 0]"
    assert log_line("A", 0, "BEGIN Alice") == "A0: BEGIN Alice"

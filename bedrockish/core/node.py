"""The node: a pure state machine, told what happened, answering what to do. It only wires the parts together.

Rule 1: nothing here waits, reads a clock, draws a number or opens a file.
Rule 2: what a node says rests on what it has written; the driver lets nothing leave before that is durable.
"""

from collections.abc import Callable
from typing import assert_never

from bedrockish.core.effects import Effect
from bedrockish.core.events import (
    Accused,
    Activated,
    Answered,
    ClockSet,
    ClockWanted,
    Decided,
    Dropped,
    Event,
    Executed,
    Failed,
    Held,
    Now,
    PeerDown,
    PeerUp,
    Received,
    Shortened,
    Submitted,
    Woken,
)
from bedrockish.core.leading import Leading
from bedrockish.core.messages import (
    Accept,
    Accepted,
    Approve,
    Ask,
    AskClock,
    Begin,
    Check,
    Checked,
    Commit,
    Entries,
    Fetch,
    Forward,
    Forwarded,
    Gossip,
    Message,
    Outcome,
    Promise,
    Recover,
    Refused,
    Reject,
    Removed,
    Rollback,
    ToldClock,
)
from bedrockish.core.ordering import Ordering
from bedrockish.core.reading import Reading
from bedrockish.core.records import Recovered
from bedrockish.core.recovery import PATIENCE_MAX, Recovery
from bedrockish.core.safety import Safety
from bedrockish.core.settings import Settings
from bedrockish.core.state import State
from bedrockish.core.voting import Voting
from journal.transaction import Txid
from journal.vector import merge


class Node:
    """One leader among equals.

    Args:
        recovered: what its file holds.
        settings: timings and bounds.
        draw: gives a number in [0, 1) each time; all the luck there is.
        now: the driver's clocks at the start.
        follows_wall: False makes the clock purely logical (the safety valve ``enable_cluster_clock = off``).
    """

    def __init__(
        self,
        recovered: Recovered,
        settings: Settings,
        draw: Callable[[], float],
        now: Now,
        *,
        follows_wall: bool = True,
    ) -> None:
        self.state = State(recovered, settings, draw, now, follows_wall=follows_wall)
        self.ordering = Ordering(self.state)
        self.voting = Voting(self.state, self.ordering)
        self.reading = Reading(self.state)
        self.leading = Leading(self.state, self.ordering, self.voting, self.reading)
        self.recovery = Recovery(self.state, self.ordering, self.voting, self.leading)
        self.safety = Safety(self.state, self.ordering)

    def start(self, now: Now) -> list[Effect]:
        """Begin: give up what was in flight before a restart, and start the heartbeat."""
        self.state.set_now(now)
        self.leading.rollbacks.restart()
        self._heartbeat()
        return self._answer()

    def step(self, event: Event, now: Now) -> list[Effect]:
        """Take one event and return the effects that it causes, in the order in which they must happen."""
        self.state.set_now(now)
        match event:
            case Received(peer, message):
                self._receive(peer, message)
            case Submitted(ticket, request, once):
                self.leading.submit(ticket, request, once=once)
            case Executed(ticket, prepared):
                self.leading.executed(ticket, prepared)
            case ClockWanted(ticket):
                self.leading.clock_wanted(ticket)
            case ClockSet(follows_wall):
                self.state.set_clock(follows_wall=follows_wall)
                self.safety.gossip()
            case Shortened(upto):
                self.state.removed = merge(self.state.removed, upto)
            case Held(name, clock):
                self.safety.held(name, clock)
                self.safety.gossip()
            case Failed(ticket, error):
                self.leading.failed(ticket, error)
            case Dropped(ticket):
                self.leading.drop(ticket)
            case Decided(ticket, txid, answer):
                self.leading.decided(ticket, txid, answer)
            case Activated(txid, failure):
                self.leading.activated(txid, failure)
            case Answered(ticket, answer):
                self.leading.forwarding.answered(ticket, answer)
            case PeerUp(peer):
                self._peer_up(peer)
            case PeerDown(peer):
                if peer in self.state.peers:
                    self.state.peers[peer].up = False
                    self.leading.check(gone=peer)
            case Accused(peer, reason, for_good):
                self.state.accused[peer] = reason
                if for_good:
                    self.state.lose(reason)
            case Woken():
                pass
            case _:
                assert_never(event)
        for name, subject in self.state.due():
            self._on_timer(name, subject)
        return self._answer()

    def tick(self, now: Now) -> int:
        """Return a new value of the clock, for somebody outside; the next step keeps the ceiling that it needs."""
        self.state.set_now(now)
        return self.state.tick()

    def deadline(self) -> float | None:
        """Return the seconds at which to step ``Woken`` if nothing happens before, or None for never."""
        return self.state.deadline()

    def _answer(self) -> list[Effect]:
        self._settle()
        self.safety.hurry()
        self._settle()
        self.state.keep_ceiling()
        effects, self.state.effects = self.state.effects, []
        return effects

    def _settle(self) -> None:
        """Let what became known or applied in this step have its consequences, until nothing more follows."""
        state = self.state
        self.ordering.settle()
        approved, self.voting.approved = self.voting.approved, []
        for transaction in approved:
            if transaction.txid in state.pending:  # else it has ended in this very step, and nobody is to wait for it
                self.leading.queues.met(transaction)
        while state.ended or state.released or state.progress:
            if state.progress:
                state.progress = False
                self.voting.settle()
                self.recovery.settle()
                self.leading.settle()
            ended, state.ended = state.ended, []
            for txid in ended:
                known = state.recent.known.get(txid)
                if state.outcomes[txid] and known is not None:
                    self.leading.doom(known)
                    self.voting.lift_barrier(known.transaction)
                self.leading.ended(txid)
                self.recovery.ended(txid)
            released, state.released = state.released, []
            for txid in released:
                self.leading.released(txid)
                self.recovery.released(txid)
            self.ordering.settle()

    def _receive(self, peer: str, message: Message) -> None:
        state = self.state
        known = state.peers.get(peer)
        if known is None:
            return  # not, or no longer, a member
        known.heard = state.now.seconds
        if known.suspected:
            known.suspected, known.patience = False, min(2 * known.patience, PATIENCE_MAX)
        match message:
            case Begin() | Fetch() | AskClock() | ToldClock():
                pass  # a BEGIN's clock, and one that is asked for, are tested before they are followed
            case Recover() | Promise() | Accept() | Accepted() | Refused() | Outcome():
                # What is counted on when a transaction ends rests on it: it is followed wherever it leads.
                known.clock = max(known.clock, message.clock)
                state.clock.adjust(message.clock)
            case _:  # a commit's own clock is followed when it is taken
                known.clock = max(known.clock, message.clock)
                state.hear_clock(peer, message.clock)
        match message:
            case Begin():
                self.voting.on_begin(peer, message)
            case Approve():
                self.leading.on_approve(peer, message)
            case Reject():
                self.leading.on_reject(peer, message)
            case Commit():
                self.ordering.on_commit(peer, message)
            case Rollback():
                self.voting.on_rollback(peer, message)
            case Recover():
                self.recovery.on_recover(peer, message)
            case Promise():
                self.recovery.on_promise(peer, message)
            case Accept():
                self.recovery.on_accept(peer, message)
            case Accepted():
                self.leading.rollbacks.on_accepted(peer, message)
                self.recovery.on_accepted(peer, message)
            case Refused():
                self.leading.rollbacks.on_refused(message)
                self.recovery.on_refused(message)
            case Outcome():
                self._on_outcome(peer, message)
            case Ask():
                self.voting.on_ask(peer, message)
            case Gossip():
                self.safety.on_gossip(peer, message)
            case Fetch():
                self.ordering.on_fetch(peer, message)
            case Entries():
                self.ordering.on_entries(peer, message)
            case Check():
                self.reading.on_check(peer, message)
            case AskClock():
                self.leading.clocking.on_ask(peer, message)
            case ToldClock():
                self.leading.clock_told(peer, message)
            case Removed():
                self.ordering.on_removed(peer, message)
            case Forward():
                self.leading.forwarding.on_forward(peer, message)
            case Forwarded():
                self.leading.on_forwarded(peer, message)
            case Checked():
                verdict = self.reading.on_checked(peer, message)
                if verdict is not None:
                    self.leading.read_checked(verdict[0], valid=verdict[1])
            case _:
                assert_never(message)

    def _on_outcome(self, peer: str, message: Outcome) -> None:
        if message.commit:
            self.ordering.on_outcome(peer, message)
            self.ordering.fetch_missing(at_once=True)
        elif message.txid not in self.state.outcomes and message.txid.clock > self.state.safe:
            self.state.end(message.txid, commit=False)

    def _peer_up(self, peer: str) -> None:
        if peer not in self.state.peers:
            return
        self.state.peers[peer].up = True
        self.state.accused.pop(peer, None)
        self.safety.gossip_to(peer)
        self.leading.resend(peer)
        self.recovery.resend(peer)

    def _heartbeat(self) -> None:
        self.safety.advance()
        self.safety.gossip()
        self.ordering.fetch_missing()
        self.voting.settle()
        self.recovery.check()
        self.leading.check()
        self.leading.clocking.repeat(self.leading.tickets)
        self.leading.settle()
        self.state.timer(self.state.settings.heartbeat_ms, "heartbeat")

    def _on_timer(self, name: str, subject: object) -> None:
        match name, subject:
            case "heartbeat", _:
                self._heartbeat()
            case "fetch", _:
                self.ordering.fetch_missing(at_once=True)
            case "ticket_again", int(number):
                self.leading.again(number)
            case "ticket_deadline", int(number):
                self.leading.past_deadline(number)
            case "schema_due", Txid() as txid:
                self.safety.schema_due(txid)
            case "recover_again", Txid() as txid:
                self.recovery.again(txid)
            case _:
                raise AssertionError(f"no timer is called {name}")

"""The answers to our clients' requests."""

from bedrockish.api.requests import Answer, Token
from bedrockish.core.coordinator import request as requests
from bedrockish.core.coordinator.contention import Contention
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.schema_barrier import SchemaBarrier
from bedrockish.core.coordinator.wait_queue import CHANGES
from bedrockish.core.protocol.effects import Reply
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import merge


class Replies:
    """The requests under way, and their answers.

    Args:
        contention: unblocks other requests when a request is over.
    """

    def __init__(self, state: State, in_flight: dict[int, InFlight], contention: Contention) -> None:
        self.state, self.in_flight, self.contention = state, in_flight, contention
        self.schema_barrier = SchemaBarrier(state)  # the requests that wait for a schema change

    def answer_read(self, inflight: InFlight, prepared: Prepared) -> Answer:
        """Return the answer of a request that only read, with a token of its snapshot."""
        # The clock of a token is above the clock of every commit in its vector. So a node whose safe time has reached
        # the token's clock has all of these commits.
        seen, clock = inflight.request.token, self.state.read_clock()
        vector = self.state.timelines.in_short(merge(prepared.base, seen.vector))
        return Answer(prepared.result, Token(vector, max(seen.clock, clock)), None, inflight.attempts)

    def decided(self, number: int, txid: Txid, answer: Answer) -> None:
        """Let a request wait until a committed schema change of the same command is in force here."""
        inflight = self.in_flight.get(number)
        if inflight is not None:
            self.schema_barrier.decide(inflight, txid, answer)
            self.contention.unblock_behind(inflight)

    def activated(self, txid: Txid, failure: str) -> None:
        """Answer the requests for a schema change that came into force, or, with ``failure``, failed on the data."""
        # Otherwise a client that is answered here could begin its next schema change before the changes that wait.
        self.contention.turns.start_turns(txid, CHANGES)
        for inflight in self.schema_barrier.activated(txid):
            assert inflight.answer is not None
            self.finish(inflight, requests.schema_failed(failure) if failure else inflight.answer)

    def may_happen(self, number: int) -> bool:
        """Return whether a request has happened, or may still happen without another execution at this node."""
        inflight = self.in_flight.get(number)
        return inflight is not None and (bool(inflight.open) or inflight.stage is Stage.ACTIVATING)

    def drop(self, number: int) -> None:
        """Forget a request that needs no answer."""
        inflight = self.in_flight.pop(number, None)
        if inflight is not None:
            self.state.timers.drop(Timer.REQUEST_DEADLINE, number)
            self.contention.unblock_behind(inflight)

    def finish(self, inflight: InFlight, answer: Answer | BedrockishError) -> None:
        """Answer a request, and unblock the requests behind it."""
        if self.in_flight.pop(inflight.number, None) is not None:
            self.state.timers.drop(Timer.REQUEST_DEADLINE, inflight.number)
        # Like a message, the answer leaves the driver only when the writes of this step are durable.
        self.state.outbox.emit(Reply(inflight.number, answer))
        self.contention.reservations.ended(inflight)
        if inflight.behind or self.contention.wait_queue.heads:
            self.contention.wait_queue.unblock_behind(inflight)

    def ended(self, inflight: InFlight, transaction: Transaction, *, commit: bool) -> None:
        """Answer a request, or run it again, after the end of one of its transactions."""
        inflight.open.discard(transaction.txid)
        if commit:
            # The transaction ended in this step, so it is in the conflict window. If it was adopted, its place is in
            # another leader's timeline.
            place = self.state.commit_window.known[transaction.txid].places[0]
            answer = requests.committed(self.state, inflight, transaction, place)
            # A committed schema change is not in force yet, and the data may still forbid it, so its client waits.
            if transaction.activates:
                self.schema_barrier.decide(inflight, transaction.txid, answer)
            else:
                self.finish(inflight, answer)
        # A recovery or safe time has rolled the transaction back: the command is executed again, unless the request is
        # already in flight with a later transaction.
        elif inflight.stage is Stage.VOTING and inflight.last_clock == transaction.txid.clock:
            self.contention.pause(inflight, requests.RETRY_MS_MIN * (1 + self.state.draw()))
        elif inflight.stage is Stage.ENDING and not inflight.open:
            self.finish(inflight, requests.did_not_happen(inflight, self.state))

    def end(self, inflight: InFlight, error: BedrockishError) -> None:
        """Answer a request with an error as soon as none of its attempts can still commit."""
        # A recovery may still commit an attempt whose outcome is unknown.
        if not inflight.open:
            self.finish(inflight, error)
            return
        inflight.move(Stage.ENDING)
        inflight.error = error
        self.state.timers.set(requests.ENDING_MS, Timer.REQUEST_DEADLINE, inflight.number)
        self.contention.unblock_behind(inflight)

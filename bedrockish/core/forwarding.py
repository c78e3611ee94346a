"""A hot key: send the loser's command to where the winner leads.

When transactions of several leaders keep meeting on one key, each commit would be followed by another race. Instead, a
ticket that meets a pending transaction of another leader is forwarded to that leader, which queues it behind its own
and leads it in turn; so the key's commands follow each other at one node, without races, for as long as they come. It
is only a short cut: a command is applied once wherever it runs, and if no word comes back, it is executed here.
"""

from bedrockish.core.effects import Admit
from bedrockish.core.messages import Forward, Forwarded
from bedrockish.core.state import State
from bedrockish.core.tickets import Stage, Ticket
from bedrockish.errors import BedrockishError
from bedrockish.requests import Answer
from bedrockish.wire import Answered, Execute, Failed, MalformedCallError, decode_call, decode_reply, encode_call
from bedrockish.wire import encode_reply as encode_answer
from journal.transaction import Txid

BODY_BYTES_MAX = 1 << 20  # a longer command waits where it is
MARGIN_S = 0.5  # what is left of its time for the answer's way back
FORWARDS_MAX = 2  # of one ticket; then it takes its chances here


class Forwarding:
    """Commands of ours at other leaders, and of others at us."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.sent: dict[str, tuple[int, str, float]] = {}  # command -> our ticket, whom we sent it to, since when
        self.admitted: dict[int, tuple[str, str]] = {}  # ticket here -> who sent it, command
        self._count = 0

    def forward(self, ticket: Ticket, other: Txid) -> bool:
        """Send a ticket to the leader of what it met; False if it has to wait here."""
        state, request, leader = self.state, ticket.request, other.leader
        peer = state.peers.get(leader)
        left = ticket.deadline - state.now.seconds - MARGIN_S
        if (
            not state.settings.forwarding
            or ticket.number < 0
            or ticket.once
            or ticket.open
            or ticket.forwards >= FORWARDS_MAX
            or request.change is not None
            or request.command in self.sent
            or peer is None
            or not peer.up
            or not state.is_voter(leader)
            or left <= MARGIN_S
        ):
            return False
        body = encode_call(Execute(0, request.within(left)))
        if len(body) > BODY_BYTES_MAX:
            return False
        ticket.stage = Stage.FORWARDED
        ticket.forwards += 1
        self.sent[request.command] = (ticket.number, leader, state.now.seconds)
        state.counts["forwarded"] += 1
        state.send(leader, Forward(body, state.clock.read(state.now.wall_ms)))
        return True

    def on_forward(self, peer: str, message: Forward) -> None:
        """Take a command that met one of ours."""
        try:
            call = decode_call(message.body)
        except MalformedCallError:
            return
        if not isinstance(call, Execute) or (peer, call.request.command) in self.admitted.values():
            return
        self._count += 1
        self.admitted[-self._count] = (peer, call.request.command)
        self.state.emit(Admit(-self._count, call.request))

    def answered(self, number: int, answer: Answer | BedrockishError) -> None:
        """A command that we took for somebody is answered, durably: tell."""
        found = self.admitted.pop(number, None)
        if found is not None:
            peer, command = found
            reply = Failed(0, answer) if isinstance(answer, BedrockishError) else Answered(0, answer)
            clock = self.state.clock.read(self.state.now.wall_ms)
            self.state.send(peer, Forwarded(command, encode_answer(reply), clock))

    def on_forwarded(self, peer: str, message: Forwarded) -> tuple[int, Answer | BedrockishError | None] | None:
        """Take the answer to a command that we sent away: (ticket, what to tell; None: execute it here)."""
        found = self.sent.get(message.command)
        if found is None or found[1] != peer:
            return None
        del self.sent[message.command]
        try:
            reply = decode_reply(message.body)
        except BedrockishError:
            return found[0], None
        if isinstance(reply, Answered):
            return found[0], reply.answer
        if isinstance(reply, Failed) and reply.error.details.get("reason") == "unknown":
            return found[0], None  # a command by name, which we have
        if isinstance(reply, Failed) and not reply.error.retry and reply.error.code not in ("unknown", "damaged"):
            return found[0], reply.error  # it cannot be done, anywhere
        return found[0], None

    def overdue(self, gone: str | None = None) -> list[int]:
        """Take back the tickets of which there is no word for too long, or that are with a node that is gone."""
        now, patience = self.state.now.seconds, 2 * self.state.settings.suspicion_ms / 1000
        late = [command for command, (_, peer, since) in self.sent.items() if peer == gone or now - since > patience]
        return [self.sent.pop(command)[0] for command in late]

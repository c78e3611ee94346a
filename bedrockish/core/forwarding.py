"""A hot key: send the loser's command to where the winner leads.

When transactions of several leaders keep meeting on one key, each commit would be followed by another race. Instead, a
ticket that meets a pending transaction of another leader is forwarded to that leader, which queues it behind its own
and leads it in turn; so the key's commands follow each other at one node, without races, for as long as they come. It
is only a short cut: a command is applied once wherever it runs, and if no word comes back, it is executed here. It is
lent for a while: the other one has given it up by the time at which it is executed here again.
"""

from collections.abc import Mapping

from bedrockish.core.effects import Admit
from bedrockish.core.messages import Forward, Forwarded
from bedrockish.core.state import State
from bedrockish.core.tickets import Stage, Ticket
from bedrockish.errors import BedrockishError, UnavailableError
from bedrockish.requests import Answer
from bedrockish.wire import Answered, Execute, Failed, MalformedCallError, decode_call, decode_reply, encode_call
from bedrockish.wire import encode_reply as encode_answer

BODY_BYTES_MAX = 1 << 20  # a longer command waits where it is
MARGIN_S = 0.5  # what is left of its time for the answer's way back
THE_ONLY = 1  # number of the call in a body; a call has one, though nothing else travels there
AGAIN_MS = 50  # pause of a learner that has nobody to send a command to
FORWARDS_MAX = 2  # of one ticket; then it takes its chances here


class Forwarding:
    """Commands of ours at other leaders, and of others at us."""

    def __init__(self, state: State, tickets: Mapping[int, Ticket]) -> None:
        self.state, self.tickets = state, tickets
        self.sent: dict[str, tuple[int, str, float]] = {}  # command -> our ticket, whom we sent it to, since when
        self.admitted: dict[int, tuple[str, str]] = {}  # ticket here -> who sent it, command
        self.taken: dict[str, int] = {}  # who sends us commands -> clock of the last one
        self._count = 0

    def forward(self, ticket: Ticket, leader: str) -> bool:
        """Send a ticket to the leader of what it met; False if it has to wait here."""
        return self.state.settings.forwarding and ticket.forwards < FORWARDS_MAX and self._send(ticket, leader)

    def write_elsewhere(self, ticket: Ticket) -> BedrockishError | None:
        """Send a learner's ticket, which writes, to a voter: to another one each time; or return why not."""
        state = self.state
        voters = [node for node in state.voters if node in state.peers and state.peers[node].up]
        if voters and not state.trouble and self._send(ticket, voters[ticket.forwards % len(voters)]):
            return None
        if ticket.astray:  # it may have happened where it went: nobody may be told otherwise
            self._pause(ticket)
            return None
        why = f"node {state.me} is a learner, which only reads; write at {', '.join(state.voters)}"
        return UnavailableError(state.trouble or why)

    def _pause(self, ticket: Ticket) -> None:
        ticket.stage = Stage.PAUSED
        self.state.timer(AGAIN_MS, "ticket_again", ticket.number)

    def _send(self, ticket: Ticket, leader: str) -> bool:
        state, request = self.state, ticket.request
        peer = state.peers.get(leader)
        left = ticket.deadline - state.now.seconds - MARGIN_S
        if (
            ticket.number < 0
            or ticket.once
            or ticket.open
            or request.change is not None
            or request.command in self.sent
            or peer is None
            or not peer.up
            or not state.is_voter(leader)
            or left <= MARGIN_S
        ):
            return False
        body = encode_call(Execute(THE_ONLY, request.within(min(left, self._lent_s))))
        if len(body) > BODY_BYTES_MAX:
            return False
        ticket.stage = Stage.FORWARDED
        ticket.forwards += 1
        self.sent[request.command] = (ticket.number, leader, state.now.seconds)
        state.counts["forwarded"] += 1
        state.send(leader, Forward(body, state.tick()))
        return True

    @property
    def _lent_s(self) -> float:
        """How long another leader may try, in seconds: its answer is here before we take the command back.

        If it went on longer, one command would be led at several nodes and be in its own way.
        """
        return 1.5 * self.state.settings.suspicion_ms / 1000

    def on_forward(self, peer: str, message: Forward) -> None:
        """Take a command that met one of ours."""
        try:
            call = decode_call(message.body)
        except MalformedCallError:
            return
        if not isinstance(call, Execute) or message.clock <= self.taken.get(peer, 0):
            return  # it came before: whoever sent it may have been answered, and may have told its client
        self.taken[peer] = message.clock
        if (peer, call.request.command) in self.admitted.values():
            return
        self._count += 1
        self.admitted[-self._count] = (peer, call.request.command)
        self.state.emit(Admit(-self._count, call.request))

    def answered(self, number: int, answer: Answer | BedrockishError) -> None:
        """A command that we took for somebody is answered, durably: tell."""
        found = self.admitted.pop(number, None)
        if found is not None:
            peer, command = found
            reply = Failed(THE_ONLY, answer) if isinstance(answer, BedrockishError) else Answered(THE_ONLY, answer)
            clock = self.state.clock.read(self.state.now.wall_ms)
            self.state.send(peer, Forwarded(command, encode_answer(reply), clock))

    def on_forwarded(self, peer: str, message: Forwarded) -> tuple[Ticket | None, Answer | BedrockishError | None]:
        """Take the answer to a command that we sent away: (whose: a ticket, what to tell; None: execute it here)."""
        found = self.sent.get(message.command)
        if found is None or found[1] != peer:
            return None, None
        del self.sent[message.command]
        ticket = self.tickets.get(found[0])
        if ticket is None or ticket.stage not in (Stage.FORWARDED, Stage.ENDING):
            return None, None
        try:
            reply = decode_reply(message.body)
        except BedrockishError:
            reply = None
        if isinstance(reply, Answered):
            return ticket, reply.answer
        if not isinstance(reply, Failed) or reply.error.code in ("unknown", "damaged"):
            ticket.astray = True
            return ticket, None
        by_name = reply.error.details.get("reason") == "unknown"  # a command by name, which we have
        anywhere = not reply.error.retry and not by_name  # it cannot be done, there or here
        leads = self.state.is_voter(self.state.me)
        if ticket.astray and not leads and ticket.stage is Stage.FORWARDED:
            self._pause(ticket)  # that one did not do it, and another one may have
            return None, None
        return ticket, reply.error if not ticket.astray and (anywhere or not leads) else None

    def overdue(self, gone: str | None = None) -> list[Ticket]:
        """Take back the tickets of which there is no word for too long, or that are with a node that is gone."""
        now, patience = self.state.now.seconds, 2 * self.state.settings.suspicion_ms / 1000
        late = [command for command, (_, peer, since) in self.sent.items() if peer == gone or now - since > patience]
        found = [self.tickets.get(self.sent.pop(command)[0]) for command in late]
        back = [ticket for ticket in found if ticket is not None and ticket.stage is Stage.FORWARDED]
        for ticket in back:
            ticket.astray = True
        return back

"""The client without sockets: it decides which node to ask, what to send, when to retry, and what to tell the caller.

A driver reports events (``opened``, ``received``, ``closed``, …) together with the time, and performs the returned
effects in order. The random numbers for pauses come from the constructor's argument ``draw``. The core never waits.

New calls go out on one *current* link. If a node answers that it is unavailable, the client leaves it: new calls go to
a link to the next address. The old link stays open until its calls are answered, because closing it would make the
outcome of these calls unknown.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, assert_never

from bedrockish.api import wire
from bedrockish.api.requests import STRICT, Request, Token, check_cluster, open_token
from bedrockish.api.temporary import Temporary
from bedrockish.api.url import Address, Target
from bedrockish.client.sansio.effects import Dial, Effect, Finish, HangUp, Send
from bedrockish.client.sansio.retry import (
    Backoff,
    FailureMeaning,
    has_text,
    is_graceful_stop,
    is_refusal,
    judge,
    only_reads,
    out_of_time,
    refused_after_two_losses,
)
from bedrockish.client.sansio.route import Route, voters_of
from bedrockish.client.sansio.transaction_steps import (
    What,
    begins,
    bound_to,
    cancelling,
    closing_step,
    ends,
    is_harmless,
    node_lost,
    outcome_of,
    settle_commit,
    settle_request,
)
from bedrockish.errors import (
    BedrockishError,
    ClientClosedError,
    DamagedError,
    DeadlineError,
    ForgottenError,
    OutcomeUnknownError,
    ProtocolMismatchError,
    TooLargeError,
    UnavailableError,
)
from bedrockish.sqltext.session_values import SessionValues
from bedrockish_journal.model.vector import merge
from bedrockish_net.limits import LinkLimits

IN_FLIGHT_MAX = 64  # the most unanswered calls on a link; with so many, a node reads no further call
DIAL_TIMEOUT_S = 3.0
ONLY_READ_MAX = 1_000  # how many of the latest commands that only read are remembered
PATIENCE_S = 2.5  # time limit of a command's first attempt if there are other nodes; doubled with each attempt
BROKEN_LINKS_MAX = 2  # a call under which this many links broke is not sent again: it may crash nodes
INHERITED = (
    "the transaction or the result: it was opened before a fork and belongs to the parent process, where it continues; "
    "roll it back here, which ends nothing there, and open another"
)
UNCERTAIN = (OutcomeUnknownError, DamagedError)
PAYLOAD_BYTES_MAX = LinkLimits().frame_bytes_max


@dataclass(slots=True)
class _Link:
    address: Address
    is_open: bool = False
    stops_cancelled: bool = False  # whether the node stops cancelled calls
    calls: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Call:
    what: What
    started: float
    deadline: float
    link: int | None = None  # the link on which the call was sent; None while the call is unsent
    lost_attempts: int = 0  # attempts that may have been executed, and whose outcome is unknown
    broken_links: int = 0  # links that broke under the call, not by a graceful stop of their node
    # Why the last link broke, if the call may have crashed nodes. Then it is settled, and not sent again.
    crash_error: BedrockishError | None = None
    shortened: bool = False  # whether the node got only a part of the call's time, to leave time for another node
    tries: int = 0  # failed attempts
    retry_at: float = -math.inf
    error: BedrockishError | None = None

    @property
    def harmless(self) -> bool:
        """Whether the call cannot change anything. This parses the text, so it is computed only when needed."""
        if isinstance(self.what, Request):
            return only_reads(self.what)
        return not isinstance(self.what, wire.Step) or is_harmless(self.what)

    @property
    def name(self) -> str | None:
        """The id of the open transaction or stream whose link the call must use; None if any node can answer."""
        return None if isinstance(self.what, Request) else bound_to(self.what)


@dataclass(slots=True)
class _BoundLink:
    """The link on which a transaction or a streamed result is open. Both end if the link ends."""

    link: int
    what: wire.Step  # the step that opened the transaction or the result
    number: int  # the number of that step's call; 0 if no caller waits for its answer


class ClientCore:
    """All calls of one client, from the moment they are made to their outcome.

    Why so large: Calls, links and the links of open transactions refer to each other, and one event of a link may
    change all three.
    """

    def __init__(
        self, target: Target, draw: Callable[[], float], token: Token | None = None, backoff: Backoff | None = None
    ) -> None:
        self.token = token or Token()
        self.cluster_id = ""
        self.values = SessionValues()
        self.on_commit: Callable[[tuple[str, int], int], None] | None = None  # gets each commit's place and clock
        self.temporary = Temporary()
        self._inherited: frozenset[str] = frozenset()  # transactions and streams that are open in the parent process
        self.is_bound = False  # whether a token or a cursor has bound the session to its cluster
        self.route = Route(target, backoff or Backoff(), draw)
        self._target = target
        self._draw = draw
        self._backoff = backoff or Backoff()
        self._links: dict[int, _Link] = {}
        self._current: int | None = None
        self._calls: dict[int, _Call] = {}
        # The calls that wait to be sent: those that any link can take and that no node has got, in the order in which
        # they were made; and those that wait to be sent again, settle a lost attempt, or need a certain link.
        self._fresh: dict[int, None] = {}
        self._again: set[int] = set()
        self._due = math.inf  # the earliest deadline of a call; it may have ended since
        self._bound_links: dict[str, _BoundLink] = {}
        self._numbers = 0
        self._only_read: OrderedDict[str, None] = OrderedDict()

    # --- events from the caller ---

    def call(self, what: What, timeout_s: float, now: float) -> tuple[int, list[Effect]]:
        """Begin a call; return its number and effects. A later ``Finish`` with this number has the outcome."""
        number, call = self._next_number(), _Call(what, now, now + timeout_s)
        # A SETTLE follows an attempt whose answer was lost: count that attempt.
        call.lost_attempts = int(isinstance(what, wire.Step) and what.op == wire.SETTLE)
        link = self._free_link(call, now)
        self._add(number, call)
        if link is None:
            return number, self._pump(now)
        effects: list[Effect] = []
        self._send(link, self._links[link], number, now, effects)
        return number, effects

    def _free_link(self, call: _Call, now: float) -> int | None:
        """Return the link on which a new call can be sent at once; None if ``_pump`` must choose the link.

        Nearly all calls are sent this way. ``_pump`` would find the same link, but checks all other calls first.
        """
        if self._fresh or self._again or now >= self._due or now >= call.deadline:
            return None
        name = call.name
        if name is not None:
            bound = self._bound_links.get(name)
            return None if bound is None else bound.link
        if self._current is None:
            return None
        link = self._links[self._current]
        return self._current if link.is_open and len(link.calls) < IN_FLIGHT_MAX else None

    def _add(self, number: int, call: _Call) -> None:
        self._calls[number] = call
        if call.name is None and not call.lost_attempts:
            self._fresh[number] = None
        else:
            self._again.add(number)
        if call.deadline < self._due:
            self._due = call.deadline

    def cancel(self, call: int, now: float) -> list[Effect]:
        """Forget a call whose caller no longer waits, and have its node stop it; it may be committed nevertheless.

        Also end the transaction or stream that it has opened, or may have opened.
        """
        one, effects = self._calls.get(call), list[Effect]()
        self._forget(call)
        if one is not None:
            self._stop(call, one, now, effects)
        for bound in [bound for bound in self._bound_links.values() if bound.number == call]:
            self._close_opened(bound.what, bound.link, now)
        return self._pump(now, effects)

    def interrupt(self, now: float) -> list[Effect]:
        """Give up all waiting calls; the error of each says whether it may have been committed."""
        effects: list[Effect] = []
        for number, call in list(self._calls.items()):
            uncertain = not call.harmless and (call.lost_attempts > 0 or call.link is not None)
            error: BedrockishError = DeadlineError("the program interrupted the call; it did not happen")
            if uncertain:
                why = DeadlineError("the program interrupted the call")
                error = out_of_time(call.what, uncertain=True, waited_s=now - call.started, last=why)
            error.details = {**error.details, "interrupted": True}
            self._forget(number)
            self._stop(number, call, now, effects)
            effects.append(Finish(number, error))
        return [*effects, *self._pump(now)]

    def merge_token(self, token: Token) -> None:
        """Merge a token into the session's: the token of an answer, of a read in this process or of another session."""
        self.token = self._merged(token)

    def bind_to_cluster(self, what: str, cluster_id: str) -> None:
        """Bind the session to the cluster of a token or a cursor that the caller gave.

        Args:
            what: name of the token or cursor, for the error.
            cluster_id: the id of its cluster; if it is empty, the session stays unbound.

        Raises:
            ForeignClusterError: the session is bound to another cluster.
        """
        if cluster_id:
            check_cluster(what, cluster_id, self.cluster_id or cluster_id)
            self.cluster_id, self.is_bound = cluster_id, True

    def for_child(self) -> "ClientCore":
        """Return the core of the same session for a forked child, without the parent's links and transactions."""
        core = ClientCore(self._target, self._draw, self.token, self._backoff)
        core.cluster_id, core.is_bound, core.values = self.cluster_id, self.is_bound, replace(self.values)
        core.temporary, core.on_commit = replace(self.temporary), self.on_commit
        core._inherited = self._inherited | frozenset(self._bound_links)
        return core

    def after_reset(self) -> "ClientCore":
        """Return a core without links and calls for the same session, after all of them were given up.

        The numbers of calls continue, so that a late outcome is not taken for that of another call. The name of the
        TEMP objects is kept, so that the next statement reports their loss.
        """
        core = ClientCore(self._target, self._draw, self.token, self._backoff)
        core.cluster_id, core.is_bound, core.values = self.cluster_id, self.is_bound, self.values
        core.temporary, core._inherited, core._numbers = self.temporary, self._inherited, self._numbers
        core.on_commit = self.on_commit
        return core

    def leave(self, now: float, towards: Sequence[Address] = ()) -> list[Effect]:
        """Move to another node, if there is one; to one of ``towards``, if any are given. Sent calls stay on their
        links.
        """
        if self._current is not None:
            self._leave_node(self._current, now, towards)
        return self._pump(now)

    @property
    def address(self) -> Address | None:
        """The address of the node that gets the next call; None while no link is open."""
        link = None if self._current is None else self._links.get(self._current)
        return link.address if link is not None and link.is_open else None

    def has_only_read(self, command: str) -> bool:
        """Return whether a command was answered recently and only read, so that no journal entry records it."""
        return command in self._only_read

    def close(self) -> list[Effect]:
        """Give up all calls and links."""
        effects: list[Effect] = []
        for number, call in list(self._calls.items()):
            error: BedrockishError = ClientClosedError("the client was closed during the call")
            if not call.harmless and (call.lost_attempts or call.link is not None):
                error = out_of_time(call.what, uncertain=True, waited_s=0, last=error)
            effects.append(Finish(number, error))
        effects.extend(HangUp(number) for number in self._links)
        self._calls.clear()
        self._fresh.clear()
        self._again.clear()
        self._links.clear()
        self._current = None
        return effects

    @property
    def has_open(self) -> bool:
        """Whether a transaction or a streamed result is open at a node."""
        return bool(self._bound_links)

    def deadline(self) -> float:
        """Return when to call ``woken`` if nothing else happens; infinity for never."""
        if not self._fresh and not self._again:
            return self._due if self._calls else math.inf
        times, ready = [self._due], False
        for number in (*self._again, *islice(self._fresh, 1)):  # the oldest call is the first to be given up
            call = self._calls[number]
            if call.retry_at > -math.inf:
                times.append(call.retry_at)
            else:
                ready = True
            if not call.lost_attempts or call.harmless:
                times.append(self.route.give_up_at(call.started))
        if ready and self._current is None:
            times.append(self.route.redial_at)
        return min(times)

    # --- events from links and the clock ---

    def opened(self, link: int, info: Mapping[str, Any], now: float) -> list[Effect]:
        """Process the opening of a dialled link, with the information in the node's HELLO; return the effects."""
        one = self._links.get(link)
        if one is not None:
            told = info.get(wire.CLUSTER_ID)
            found = told if isinstance(told, str) else ""
            if found and self.cluster_id and found != self.cluster_id and self._has_acted:
                # This node belongs to another cluster, which lacks the data that the session has read or written.
                error = ProtocolMismatchError(
                    f"{one.address} is now a node of another cluster ({found}) than the one that this session has used "
                    f"({self.cluster_id}); correct the address, or open a new session to use the other cluster"
                )
                return [HangUp(link), *self.closed(link, error, now)]
            self.cluster_id = found or self.cluster_id
            one.is_open, one.stops_cancelled = True, info.get(wire.CANCELS) is True
            self.route.note_open(one.address)
        return self._pump(now)

    @property
    def _has_acted(self) -> bool:
        """Whether this session may have read or written data; until then it may use any cluster at its addresses."""
        return self.is_bound or self.token != Token() or any(call.lost_attempts for call in self._calls.values())

    def closed(self, link: int, error: BedrockishError, now: float) -> list[Effect]:
        """Process the failure to open a link, or the end of an open link; return the effects."""
        effects: list[Effect] = []
        self._end_link(link, error, now, effects)
        return effects + self._pump(now)

    def received(self, link: int, payload: bytes, now: float) -> list[Effect]:
        """Process a payload received on a link; return the effects."""
        if link not in self._links:
            return []  # the client has given up the link
        try:
            reply = wire.decode_reply(payload)
        except ProtocolMismatchError as error:
            return [HangUp(link), *self.closed(link, error, now)]
        if reply.id == wire.LINK_ID:
            reason = reply.error if isinstance(reply, wire.Failed) else ProtocolMismatchError("a reply without a call")
            return [HangUp(link), *self.closed(link, reason, now)]
        effects: list[Effect] = []
        self._process_reply(link, reply, now, effects)
        return self._pump(now, effects)

    def woken(self, now: float) -> list[Effect]:
        """Process the passing of time; return the effects."""
        return self._pump(now)

    # --- replies ---

    def _process_reply(self, link: int, reply: wire.Reply, now: float, effects: list[Effect]) -> None:
        """End the call of a reply, or have it sent again."""
        if isinstance(reply, wire.Answered):
            if reply.answer.token is not self.token:
                # The answer of a cancelled call counts, too: the node assumes that the session has seen the answer.
                self.merge_token(reply.answer.token)
            if reply.answer.place is not None and self.on_commit is not None:
                self.on_commit(reply.answer.place, reply.answer.token.clock)
        call = self._calls.get(reply.id)
        if call is None or call.link != link:
            return
        if isinstance(reply, wire.Failed):
            self._process_failure(link, call, reply, now, effects)
        else:
            effects.append(Finish(reply.id, self._process_success(link, call, reply)))

    def _process_success(
        self, link: int, call: _Call, reply: wire.Answered | wire.Told
    ) -> wire.Answered | wire.Told | BedrockishError:
        """End a call that has succeeded, and return its outcome for the caller."""
        self._forget(reply.id)
        if isinstance(call.what, Request):
            self._note_only_read(call.what, reply)
        elif isinstance(call.what, wire.Step) and call.what.op != wire.STATEMENTS:  # STATEMENTS ends no transaction
            if call.what.op == wire.COMMIT:
                self._note_only_read(call.what.request, reply)
            return self._process_step(link, call, reply)
        return reply

    def _process_failure(self, link: int, call: _Call, reply: wire.Failed, now: float, effects: list[Effect]) -> None:
        """End a call that has failed at a node, or have it sent again, to this node or another one."""
        call.error = reply.error
        if begins(call.what, reply):  # BEGIN has succeeded, and its first statement has failed
            self._bound_links[call.what.request.command] = _BoundLink(link, call.what, reply.id)
            meaning = FailureMeaning.FINAL
        elif self._needs_its_node(call) and (call.harmless or not isinstance(reply.error, UNCERTAIN)):
            if ends(call.what, reply):
                self._bound_links.pop(call.what.request.command, None)
            if voters := voters_of(reply.error):
                self._leave_node(link, now, voters)  # the transaction can then be run again at a voter
            meaning = FailureMeaning.FINAL
        else:
            meaning = self._meaning_of(call, reply.error, now)
        if meaning is FailureMeaning.FINAL:
            self._forget(reply.id)
            effects.append(Finish(reply.id, reply.error))
            return
        if meaning is FailureMeaning.ELSEWHERE:
            self._leave_node(link, now, voters_of(reply.error))
        elif meaning is FailureMeaning.LOST:
            call.lost_attempts += 1
            self._leave_node(link, now)
        self._retry(reply.id, call, now)
        if meaning is FailureMeaning.AGAIN:  # the same node is asked again, after a longer pause
            call.retry_at = now + self._backoff.pause_s(call.tries, self._draw)

    @staticmethod
    def _needs_its_node(call: _Call) -> bool:
        """Return whether only one node can run a call: a transaction executed on the node's file, for example."""
        return call.name is not None or (isinstance(call.what, wire.Step) and bool(call.what.prepared))

    def _meaning_of(self, call: _Call, error: BedrockishError, now: float) -> FailureMeaning:
        shortened = call.shortened and now < call.started + 0.8 * (call.deadline - call.started)
        if isinstance(error, ForgottenError) and call.tries + 1 >= len(self.route.addresses):
            return FailureMeaning.FINAL  # all nodes were asked: none knows the outcome
        return judge(error, lost=call.lost_attempts, harmless=call.harmless, shortened=shortened)

    def _process_step(
        self, link: int, call: _Call, reply: wire.Answered | wire.Told
    ) -> wire.Answered | wire.Told | BedrockishError:
        """Record that a reply begins or ends a transaction or a stream; return the outcome for the caller."""
        if begins(call.what, reply):
            self._bound_links[call.what.request.command] = _BoundLink(link, call.what, reply.id)
        elif ends(call.what, reply):
            self._bound_links.pop(call.what.request.command, None)
        outcome = outcome_of(call.what, reply)
        if call.crash_error is not None and isinstance(outcome, UnavailableError):
            return refused_after_two_losses(call.crash_error)
        return outcome

    def _note_only_read(self, request: Request, reply: wire.Reply) -> None:
        """Record a command that has only read, which no node records; keep the last ``ONLY_READ_MAX``."""
        if isinstance(reply, wire.Answered) and reply.answer.place is None:
            self._only_read[request.command] = None
            if len(self._only_read) > ONLY_READ_MAX:
                self._only_read.popitem(last=False)

    def _retry(self, number: int, call: _Call, now: float) -> None:
        """Have a call sent again after a pause; for a COMMIT, have a step sent instead that settles its outcome."""
        if isinstance(call.what, wire.Step) and call.what.op == wire.COMMIT and not call.harmless:
            self._bound_links.pop(call.what.request.command, None)
            call.what = settle_commit(call.what)
        if call.link is not None and call.link in self._links:
            self._links[call.link].calls.discard(number)
        call.link = None
        self._again.add(number)
        call.tries += 1
        rounds, rest = divmod(call.tries, len(self.route.addresses))
        # In the first round the next node is asked at once; in later rounds each attempt waits.
        call.retry_at = now if rest and not rounds else now + self._backoff.pause_s(max(rounds, 1), self._draw)

    def _leave_node(self, link: int, now: float, towards: Sequence[Address] = ()) -> None:
        if link == self._current and (towards or len(self.route.addresses) > 1):
            self._current = None
            self.route.leave(towards, now)

    def _stop(self, number: int, call: _Call, now: float, effects: list[Effect]) -> None:
        """Have the node of a forgotten call stop it, and end the transaction or stream that it may have opened."""
        link = None if call.link is None else self._links.get(call.link)
        asked = cancelling(call.what, number)
        if link is not None and link.stops_cancelled and asked is not None:
            assert call.link is not None
            effects.append(Send(call.link, wire.encode_call(wire.Ask(self._next_number(), wire.CANCEL, asked=asked))))
        self._close_opened(call.what, call.link, now)

    def _close_opened(self, what: What, link: int | None, now: float) -> None:
        """Send ROLLBACK or CLOSE on the link of an abandoned call, which may have opened a transaction or stream."""
        end = closing_step(what)
        if end is not None and link is not None and link in self._links:
            self._bound_links[end.request.command] = _BoundLink(link, end, 0)
            self._add(self._next_number(), _Call(end, now, now + DIAL_TIMEOUT_S))

    def _forget(self, number: int) -> None:
        call = self._calls.pop(number, None)
        self._fresh.pop(number, None)
        self._again.discard(number)
        if call is not None and call.link in self._links:
            self._links[call.link].calls.discard(number)

    # --- links ---

    def _end_link(self, number: int, error: BedrockishError, now: float, effects: list[Effect]) -> None:
        """Forget a link; have its calls sent again, or end them."""
        link = self._links.pop(number, None)
        if link is None:
            return
        if number == self._current:
            self._current = None
            self.route.leave()
        if not link.is_open:
            self.route.note_failure(link.address, error, now)
            return
        if is_refusal(error):
            self.route.note_refusal(link.address, error, now)
        else:
            self.route.note_end(error)
        self._bound_links = {name: bound for name, bound in self._bound_links.items() if bound.link != number}
        for lost in link.calls:
            call = self._calls[lost]
            is_untaken = bool(error.details.get(wire.UNTAKEN)) or is_refusal(error)
            call.lost_attempts += not is_untaken
            call.broken_links += not (is_refusal(error) or is_graceful_stop(error))
            if call.broken_links >= BROKEN_LINKS_MAX and has_text(call.what):
                if call.harmless or not isinstance(call.what, Request):
                    del self._calls[lost]
                    effects.append(Finish(lost, refused_after_two_losses(error)))
                    continue
                # Settle the outcome. This step has no statements, which may have crashed the nodes.
                call.what, call.crash_error = settle_request(call.what), error
            call.error = error if call.name is None else node_lost(call.what, str(link.address), error)
            self._retry(lost, call, now)

    # --- sending what is due ---

    def _pump(self, now: float, effects: list[Effect] | None = None) -> list[Effect]:
        """Return the given effects, followed by all that are due now."""
        effects = [] if effects is None else effects
        if self._fresh or self._again or now >= self._due:
            self._send_calls(now, effects)
        if len(self._links) > (self._current is not None):
            used = {bound.link for bound in self._bound_links.values()}
            for number, idle in list(self._links.items()):
                if number != self._current and not idle.calls and number not in used:
                    del self._links[number]
                    effects.append(HangUp(number))
        return effects

    def _send_calls(self, now: float, effects: list[Effect]) -> None:
        """End late calls, send the calls that can be sent now, and dial a node if calls wait without any link."""
        self._end_late(now, effects)
        ready = self._due_again(now, effects)
        for number in ready:
            self._calls[number].retry_at = -math.inf  # the call's pause is over, so no further wake-up is needed
        if (ready or self._fresh) and self._current is None:
            self._dial(now, effects)
        link = self._links.get(self._current) if self._current is not None else None
        if link is not None and link.is_open:
            assert self._current is not None
            room = max(0, IN_FLIGHT_MAX - len(link.calls))
            for number in [*ready, *islice(self._fresh, room)][:room]:
                self._send(self._current, link, number, now, effects)

    def _due_again(self, now: float, effects: list[Effect]) -> list[int]:
        """Return the calls to send again that are due; send or end the calls that need a certain link."""
        ready: list[int] = []
        for number in sorted(self._again):
            call = self._calls[number]
            if call.retry_at > now:
                continue
            name = call.name
            if name is None:
                ready.append(number)
            elif name in self._bound_links:
                link = self._bound_links[name].link
                self._send(link, self._links[link], number, now, effects)
            else:
                self._forget(number)
                error = call.error or node_lost(call.what, "another node", self.route.error)
                effects.append(Finish(number, ClientClosedError(INHERITED) if name in self._inherited else error))
        return ready

    def _dial(self, now: float, effects: list[Effect]) -> None:
        if now < self.route.redial_at:
            return
        address = self.route.next(now)
        self._current = self._next_number()
        self._links[self._current] = _Link(address)
        effects.append(Dial(self._current, address, min(DIAL_TIMEOUT_S, self._target.connect_timeout_s)))

    def _send(self, number: int, link: _Link, call_number: int, now: float, effects: list[Effect]) -> None:
        call = self._calls[call_number]
        try:
            payload = self._encode(call_number, call, now)
            if len(payload) > PAYLOAD_BYTES_MAX:
                raise TooLargeError(
                    f"the request has {len(payload)} bytes, and at most {PAYLOAD_BYTES_MAX} can be sent; split it"
                )
        except BedrockishError as error:
            self._forget(call_number)
            effects.append(Finish(call_number, error))
            return
        call.link = number
        self._fresh.pop(call_number, None)
        self._again.discard(call_number)
        link.calls.add(call_number)
        effects.append(Send(number, payload))

    def _encode(self, number: int, call: _Call, now: float) -> bytes:
        what = call.what
        match what:
            case Request() if what.change is not None:
                token, timeout_s, longest_s, read = self._attempt(call, what, now)
                made = replace(what, token=token, timeout_s=timeout_s, longest_s=longest_s, read=read)
                return wire.encode_call(wire.Execute(number, made))
            case Request():
                return wire.encode_request(number, wire.EXECUTE, what, self._attempt(call, what, now))
            case wire.Step():
                attempt = self._attempt(call, what.request, now)
                return wire.encode_request(number, what.op, what.request, attempt, what.prepared, what.owner)
            case wire.Ask():
                return wire.encode_call(replace(what, id=number))
            case _:
                assert_never(what)

    def _attempt(self, call: _Call, request: Request, now: float) -> wire.AttemptFields:
        """Return the fields of a request that the next attempt sends instead of the request's own."""
        # The node gets less time than the caller has left, so that its answer "it did not happen" arrives in time.
        # If there are other nodes, it gets only a part: a node that is cut off from its peers would use all the time to
        # wait for them, and no other node could be asked.
        left = call.deadline - now
        timeout_s = left - min(left / 4, 2.0)
        longest_s, patience_s = timeout_s, PATIENCE_S * 2.0 ** min(call.tries, 30)
        goes_anywhere = call.name is None
        # A transaction that was executed on a node's file is certified there: no other node can execute it again.
        is_prepared = isinstance(call.what, wire.Step) and bool(call.what.prepared)
        call.shortened = goes_anywhere and not is_prepared and len(self.route.addresses) > 1 and timeout_s > patience_s
        if call.shortened:
            timeout_s = patience_s
        # An UPDATE that finds no row is answered from a snapshot, like a read. If an attempt was lost, the snapshot
        # must be new enough to include the commit of that attempt.
        read = (
            STRICT
            if call.lost_attempts and not call.harmless and not isinstance(call.what, wire.Step)
            else request.read
        )
        # The BEGIN of an open transaction has sent the token already.
        token = self._merged(request.token) if goes_anywhere else request.token
        return token, timeout_s, longest_s, read

    def _merged(self, token: Token) -> Token:
        mine = self.token
        # In most cases an answer has the same token as the session, because nothing was committed in between.
        if token is mine or (not token.vector and not token.clock):
            return mine
        if token.vector == mine.vector:
            return token if token.clock > mine.clock else mine
        return Token(merge(mine.vector, token.vector), max(mine.clock, token.clock))

    def _end_late(self, now: float, effects: list[Effect]) -> None:
        """End the calls whose time is over, or for which no node can be reached."""
        is_due = now >= self._due
        if not is_due and self.route.unreachable_since is None:
            return
        for number in sorted(self._calls if is_due else (*self._again, *self._fresh)):
            call = self._calls[number]
            waits_for_link = call.link is None and self.route.unreachable_since is not None
            if now < call.deadline and not waits_for_link:
                continue
            certain = not call.lost_attempts or call.harmless  # no lost attempt can have changed anything
            is_unreachable = waits_for_link and certain and now >= self.route.give_up_at(call.started)
            if now < call.deadline and not is_unreachable:
                continue
            uncertain = not call.harmless and (call.lost_attempts > 0 or call.link is not None)
            if self.route.unreachable_since is not None and (
                call.error is None or (certain and self.route.has_lasting_refusal)
            ):
                error = self.route.unreachable()
            else:
                error = out_of_time(call.what, uncertain=uncertain, waited_s=now - call.started, last=call.error)
            self._forget(number)
            self._close_opened(call.what, call.link, now)
            if isinstance(call.what, wire.Step) and call.what.op in (wire.ROLLBACK, wire.CLOSE):
                self._bound_links.pop(call.what.request.command, None)  # else the link would be kept open
            effects.append(Finish(number, error))
        if is_due:
            self._due = min((call.deadline for call in self._calls.values()), default=math.inf)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers


def open_core(target: Target, draw: Callable[[], float], token: bytes | None) -> ClientCore:
    """Return the core of a client that has seen the commits of a token.

    Raises:
        UsageError: the bytes are not a token.
    """
    core = ClientCore(target, draw)
    seen, cluster_id = open_token(token)
    core.bind_to_cluster("the session token", cluster_id)
    core.merge_token(seen)
    return core

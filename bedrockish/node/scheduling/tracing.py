"""A node's recording for OpenTelemetry: it watches the core's events and effects, and the core knows nothing of it.

A request is a span, and each of its stages one below it, made when the stage is over: its wait, its execution, the
votes, the commit, and the wait for the disk. A BEGIN carries the request's ``traceparent`` to the voters, each of which
adds its vote, and later the entry that it applies. Only the API is used. Without recording (no SDK, or a sampler that
says no) a node pays for a look at whether a span records; a request that is not recorded is not watched, at any node.

A fault in here, or in an exporter, ends the recording, and nothing else.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from bedrockish import __version__
from bedrockish.api.requests import Answer, Request
from bedrockish.api.spans import SCOPE, Value, begin_facts, end_facts, operation_of
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol import messages as say
from bedrockish.errors import BedrockishError, ConfigError
from bedrockish.node.scheduling.faults import Faults
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Transaction, Txid, decode_transaction

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind

logger = logging.getLogger(__name__)

HEARD_MAX = 1_000  # others' transactions whose trace is remembered until their outcome
WAIT_NS_MIN = 100_000  # a shorter wait is not recorded
WAIT, EXECUTE, VOTES, COMMIT, DURABLE = "wait", "execute", "votes", "commit", "durable"  # the stages of a request
VOTE, APPLY = "vote", "apply"  # the work of each node for it
NODE, TXID, OUTCOME = "bedrockish.node", "bedrockish.txid", "bedrockish.outcome"


class OpenSpan(NamedTuple):
    """A piece of work of this node for a request, over when its writes are durable."""

    name: str
    kind: "SpanKind"
    context: "Context"
    since_ns: int
    facts: Mapping[str, Value]


@dataclass(slots=True, eq=False)
class RequestSpan:
    """A request that is recorded.

    Attributes:
        span: its span.
        context: in which its stages are made.
        request: the request itself.
        since_ns: when its present stage began, in nanoseconds since 1970.
        stage: that stage.
        heard: the voters' words on it: a word, facts, and when.
        txid: the last transaction that was begun for it.
    """

    span: "Span"
    context: "Context"
    request: Request
    since_ns: int
    stage: str = WAIT
    heard: list[tuple[str, Mapping[str, Value], int]] = field(default_factory=list)
    txid: Txid | None = None


class Tracing:
    """The recording of one node.

    Args:
        me: the node's name.
        cluster: the cluster's name.
        faults: takes errors of the recording.
        now_ns: returns nanoseconds since 1970.

    Raises:
        ConfigError: the package with OpenTelemetry's API is missing.
    """

    def __init__(self, me: str, cluster: str, faults: Faults, now_ns: Callable[[], int] = time.time_ns) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise ConfigError(
                "traces: the package opentelemetry-api is missing; pip install 'bedrockish[tracing]', or leave out the "
                "key traces"
            ) from error
        self._api, self._propagator = trace, TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer(SCOPE, __version__)
        self._me, self._cluster, self._faults, self._now_ns = me, cluster, faults, now_ns
        self._is_on = True
        self._live: dict[int, RequestSpan] = {}  # by request
        self._groups: dict[int, tuple[int, ...]] = {}  # requests that are executed with one
        self._by_command: dict[str, RequestSpan] = {}
        self._own: dict[Txid, list[RequestSpan]] = {}  # our transactions that ask for votes
        self._heard: OrderedDict[Txid, tuple[Context, int, str]] = OrderedDict()  # others', since when, and whose
        self._open: list[OpenSpan] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            do.Execute: self._execute,
            do.Persist: self._persist,
            do.Send: self._send,
            do.Apply: self._apply,
            do.Reply: lambda effect: self._move(self._live.get(effect.request_id), DURABLE),
            on.Received: self._received,
            on.Assembled: self._assembled,
            **dict.fromkeys((on.Executed, on.Failed, on.ClockWanted, on.Dropped, on.Decided), self._executed),
        }
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            logger.warning(
                "traces is on, and no SDK of OpenTelemetry is set up in this process, so nothing is recorded; start it "
                "with 'opentelemetry-instrument -- bedrockish serve ...' from the package opentelemetry-distro"
            )

    # -- requests --------------------------------------------------------------------------------------------------

    def begin(self, request_id: int, request: Request) -> tuple[Request, RequestSpan | None]:
        """Begin a request's span; return the request as it goes on, which says to others whose part they are."""
        if self._is_on:
            try:
                return self._begin(request_id, request)
            except Exception as error:
                self._failed(error)
        return request, None

    def _begin(self, request_id: int, request: Request) -> tuple[Request, RequestSpan | None]:
        span = self._start(request, operation_of(request))
        if not span.is_recording():
            return (replace(request, trace="") if request.trace else request), None
        request = replace(request, trace=self._traceparent(span))
        one = RequestSpan(span, self._api.set_span_in_context(span), request, self._now_ns())
        self._live[request_id] = self._by_command[request.command] = one
        return request, one

    def ended(self, request_id: int, one: RequestSpan, answer: Answer | BedrockishError | None) -> None:
        """A request is answered; None: the node is leaving."""
        self._live.pop(request_id, None)
        self._groups.pop(request_id, None)
        if one.txid is not None and one in (sharing := self._own.get(one.txid, [])):  # others may have ended it
            sharing.remove(one)
            if not sharing:
                del self._own[one.txid]
        if self._by_command.get(one.request.command) is one:
            del self._by_command[one.request.command]
        try:
            self._move(one, "")
            self._end(one.span, one.request, answer)
        except Exception as error:
            self._failed(error)

    @contextmanager
    def step(self, op: str, request: Request) -> Iterator[tuple[Request, Callable[[Answer], None]]]:
        """Record a step of an open transaction, or of a stream; yield the request as it goes on, and what to tell its
        answer to."""
        span, found = None, list[Answer | BedrockishError]()
        if self._is_on:
            try:
                span = self._start(request, operation_of(request, op))
                request = replace(request, trace=self._traceparent(span) if span.is_recording() else "")
            except Exception as error:
                self._failed(error)
        try:
            yield request, found.append
        except BedrockishError as error:
            found.append(error)
            raise
        finally:
            try:
                if span is not None:
                    self._end(span, request, found[0] if found else None)
            except Exception as error:
                self._failed(error)

    def _start(self, request: Request, operation: str) -> "Span":
        parent = self._propagator.extract({"traceparent": request.trace}) if request.trace else None
        facts: dict[str, Value] = {**begin_facts(request, operation, self._cluster), NODE: self._me}
        return self._tracer.start_span(operation, parent, self._api.SpanKind.SERVER, facts)

    def _end(self, span: "Span", request: Request, answer: Answer | BedrockishError | None) -> None:
        if span.is_recording():
            span.set_attributes(end_facts(request, answer))
            if isinstance(answer, BedrockishError):
                span.set_status(self._api.StatusCode.ERROR, answer.code)
        span.end()

    def _traceparent(self, span: "Span") -> str:
        said = span.get_span_context()
        return f"00-{said.trace_id:032x}-{said.span_id:016x}-{said.trace_flags & 0xFF:02x}"

    # -- what the core is told, and asks ---------------------------------------------------------------------------

    def note(self, what: on.Event | do.Effect) -> None:
        """Look at something that happens at this node, before it does."""
        handler = self._handlers.get(what.__class__)
        if handler is not None and self._is_on:
            try:
                handler(what)
            except Exception as error:
                self._failed(error)

    def take(self) -> list[OpenSpan]:
        """Return the spans that are over as soon as everything that was noted so far is durable."""
        found, self._open = self._open, []
        return found

    def durable(self, spans: Sequence[OpenSpan]) -> None:
        """Record the spans whose writes are durable now."""
        try:
            now_ns = self._now_ns()
            for name, kind, context, since_ns, facts in spans:
                self._tracer.start_span(name, context, kind, {**facts, NODE: self._me}, start_time=since_ns).end(now_ns)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._is_on = False
        for kept in (self._live, self._groups, self._by_command, self._own, self._heard, self._open):
            kept.clear()
        self._faults.caught("recording traces, which ends with it until the node is restarted", error)

    def _move(self, one: RequestSpan | None, stage: str, **facts: Value) -> None:
        """Go on to another stage: the last one is over, and becomes a span."""
        if one is None or one.stage == stage:
            return
        now_ns = self._now_ns()
        if one.stage != WAIT or now_ns - one.since_ns >= WAIT_NS_MIN:
            kind = self._api.SpanKind.CLIENT if one.stage == VOTES else self._api.SpanKind.INTERNAL
            said = {**facts, NODE: self._me}
            span = self._tracer.start_span(one.stage, one.context, kind, said, start_time=one.since_ns)
            for word, more, when_ns in one.heard:
                span.add_event(word, more, when_ns)
            span.end(now_ns)
        one.heard.clear()
        one.stage, one.since_ns = stage, now_ns

    def _execute(self, effect: do.Execute) -> None:
        for request_id in (effect.request_id, *effect.group):
            self._move(self._live.get(request_id), EXECUTE)
        if effect.group and self._live:
            self._groups[effect.request_id] = effect.group

    def _executed(self, event: on.Executed | on.Failed | on.ClockWanted | on.Dropped | on.Decided) -> None:
        for request_id in (event.request_id, *self._groups.pop(event.request_id, ())):
            one = self._live.get(request_id)
            if one is not None and one.stage == EXECUTE:
                self._move(one, WAIT)

    def _persist(self, effect: do.Persist) -> None:
        """Our own vote for a transaction of ours: it is asked of the others, too."""
        transaction = effect.vote.transaction
        if not self._by_command or transaction is None or transaction.txid.leader != self._me:
            return
        if not effect.vote.held or transaction.txid in self._own:
            return
        commands = (transaction.command, *(command for command, _ in transaction.joined))
        found = [self._by_command[command] for command in commands if command in self._by_command]
        if not found or found[0].txid == transaction.txid:
            return  # not recorded, or begun before, and voted on once more by others
        txid = str(transaction.txid)
        for one in found:
            self._move(one, VOTES)
            one.txid = transaction.txid
            one.span.set_attribute(TXID, txid)
            if one is not found[0]:
                one.span.add_link(found[0].span.get_span_context())  # the voters' spans are in that one's trace
        self._own[transaction.txid] = found
        facts = {TXID: txid, OUTCOME: "approved"}
        self._open.append(OpenSpan(VOTE, self._api.SpanKind.INTERNAL, found[0].context, self._now_ns(), facts))

    def _send(self, effect: do.Send) -> None:
        message = effect.message
        match message:
            case say.Rollback(txid) if txid in self._own:
                for one in self._own.pop(txid):
                    self._move(one, WAIT, **{TXID: str(txid), OUTCOME: "given up"})
            case say.Approve(txid) | say.Reject(txid) if txid in self._heard:
                context, since_ns, leader = self._heard[txid]
                if since_ns and leader == effect.peer:
                    self._heard[txid] = context, 0, leader  # its later messages are about something else
                    facts = {TXID: str(txid), **_said(message)}
                    self._open.append(OpenSpan(VOTE, self._api.SpanKind.SERVER, context, since_ns, facts))
            case _:
                pass

    def _received(self, event: on.Received) -> None:
        message = event.message
        match message:
            case say.Begin(body, trace) if trace:
                try:
                    self._begun(event.peer, decode_transaction(body), trace)
                except EntryMalformedError:
                    return  # the core tells the sender
            case say.Approve(txid) | say.Reject(txid) if txid in self._own:
                said = _said(message)
                for one in self._own[txid]:
                    one.heard.append((str(said[OUTCOME]), {NODE: event.peer, **said}, self._now_ns()))
            case _:
                pass

    def _assembled(self, event: on.Assembled) -> None:
        whole = event.known
        if whole is not None and isinstance(whole.message, say.Begin) and whole.message.trace and whole.transaction:
            self._begun(event.peer, whole.transaction, whole.message.trace)

    def _begun(self, leader: str, transaction: Transaction, trace: str) -> None:
        if transaction.txid.leader == leader and transaction.txid not in self._heard:
            context = self._propagator.extract({"traceparent": trace})
            self._heard[transaction.txid] = context, self._now_ns(), leader
            if len(self._heard) > HEARD_MAX:
                self._heard.popitem(last=False)

    def _apply(self, effect: do.Apply) -> None:
        entry = effect.entry
        for one in self._own.pop(entry.txid, ()):
            self._move(one, COMMIT, **{TXID: str(entry.txid), OUTCOME: "committed"})
        heard = self._heard.pop(entry.txid, None)
        if heard is not None:
            facts = {TXID: str(entry.txid), "bedrockish.place": f"{entry.leader}{entry.tick}"}
            self._open.append(OpenSpan(APPLY, self._api.SpanKind.CONSUMER, heard[0], self._now_ns(), facts))


def _said(message: say.Approve | say.Reject) -> dict[str, Value]:
    """Return the facts of a vote, without the keys that it is about, which are data."""
    if isinstance(message, say.Approve):
        return {OUTCOME: "approved"}
    facts: dict[str, Value] = {OUTCOME: "rejected", "bedrockish.reason": say.Reason(message.reason).name}
    if message.other is not None:
        facts["bedrockish.other"] = str(message.other)
    return facts

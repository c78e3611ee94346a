"""Spans of a client's calls, for a program that uses OpenTelemetry, below the span that is current at the call.

A program without it has never imported ``API``, which is the one thing that a call looks at. Recorded spans are told
to the nodes.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bedrockish.api.requests import Request
from bedrockish.api.spans import SCOPE, Value, begin_facts, end_facts, operation_of
from bedrockish.api.url import Target
from bedrockish.api.wire import Answered, Step, Told
from bedrockish.client.sansio.transaction_steps import What
from bedrockish.errors import BedrockishError

API = "opentelemetry.trace"


@contextmanager
def recorded(what: What, target: Target) -> Iterator[tuple[What, Callable[[Answered | Told], Answered | Told]]]:
    """Record a call; yield it as it is to be sent, which says to nodes whose part it is, and what to tell the reply to.

    Only requests and steps of transactions are recorded.
    """
    if not isinstance(what, Request | Step):
        yield what, lambda reply: reply
        return
    api: Any = sys.modules[API]
    request, op = (what, "") if isinstance(what, Request) else (what.request, what.op)
    operation = operation_of(request, op)
    facts: dict[str, Value] = begin_facts(request, operation, target.cluster or "")
    if len(target.addresses) == 1:
        facts |= {"server.address": target.addresses[0].host, "server.port": target.addresses[0].port}
    tracer = api.get_tracer(SCOPE)
    span = tracer.start_span(operation, kind=api.SpanKind.CLIENT, attributes=facts)
    if not span.is_recording():
        yield what, lambda reply: reply
        return

    def answered(reply: Answered | Told) -> Answered | Told:
        span.set_attributes(end_facts(request, reply.answer if isinstance(reply, Answered) else None))
        return reply

    said = span.get_span_context()
    traceparent = f"00-{said.trace_id:032x}-{said.span_id:016x}-{said.trace_flags & 0xFF:02x}"
    traced = replace(request, trace=traceparent)
    try:
        yield traced if isinstance(what, Request) else replace(what, request=traced), answered
    except BedrockishError as error:
        span.set_attributes(end_facts(request, error))
        span.set_status(api.StatusCode.ERROR, error.code)
        raise
    except BaseException as error:  # the program gives up
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(api.StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        span.end()

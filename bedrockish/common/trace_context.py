"""The trace to which a request belongs, in the form ``traceparent`` of W3C's Trace Context. Pure.

The trace is sent as text, so that programs that only pass it on need no library.
"""

import re
from contextvars import ContextVar

_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")

current_traceparent: ContextVar[str] = ContextVar("current_traceparent", default="")
"""The ``traceparent`` of the request that the current task answers; empty if the request came without one."""


def read_traceparent(given: object) -> str:
    """Return a valid ``traceparent`` unchanged; empty for an invalid one, because no request is refused for it."""
    return given if isinstance(given, str) and _PARENT.fullmatch(given) else ""


def trace_fields(traceparent: str) -> dict[str, str]:
    """Return the fields of a log line for a trace: the ids of the trace and of the span; none without a trace."""
    found = _PARENT.fullmatch(traceparent)
    return {} if found is None else {"trace_id": found[1], "span_id": found[2]}

"""Of which trace a request is a part, as W3C's Trace Context writes it: ``traceparent``. Pure.

It travels as text, so that programs that only pass it on need no library.
"""

import re
from contextvars import ContextVar

_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")

came_with: ContextVar[str] = ContextVar("came_with", default="")
"""The ``traceparent`` of what the current task answers, as far as it came with it; empty if with none."""


def read_traceparent(given: object) -> str:
    """Return a valid ``traceparent`` unchanged, and an empty text for an invalid one, which is not a reason to refuse a
    request.
    """
    return given if isinstance(given, str) and _PARENT.fullmatch(given) else ""


def trace_fields(traceparent: str) -> dict[str, str]:
    """Return the fields of a structured log line for a trace: its id and the span's; an empty mapping without a
    trace.
    """
    found = _PARENT.fullmatch(traceparent)
    return {} if found is None else {"trace_id": found[1], "span_id": found[2]}

"""A plugin for the nodes of a test: it sets OpenTelemetry's SDK up, and writes spans to a file next to the node's."""

import os
from pathlib import Path

import apsw
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


def line(span: ReadableSpan) -> str:
    text: str = span.to_json(indent=None)
    return text + "\n"


def register(connection: apsw.Connection) -> None:
    """Add nothing to SQLite."""


provider = TracerProvider()
out = Path(f"spans-{os.getpid()}.jsonl").open("a", encoding="utf-8")  # noqa: SIM115  for as long as the process lives
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=line)))
trace.set_tracer_provider(provider)

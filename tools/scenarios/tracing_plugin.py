"""A plugin that sets OpenTelemetry's SDK up in a node, for the measurement of what recording costs.

Spans are handed on in batches, as an operator's SDK does it, to an exporter that drops them.
"""

import os
from collections.abc import Sequence

import apsw
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

SHARE = "BENCH_TRACES"  # the variable of the environment that says which part of all requests is recorded


class Drop(SpanExporter):
    """Sends nothing anywhere."""

    def export(self, _spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Take spans."""
        return SpanExportResult.SUCCESS


def register(connection: apsw.Connection) -> None:
    """There is nothing to add to SQLite."""


provider = TracerProvider(sampler=ParentBasedTraceIdRatio(float(os.environ[SHARE])))
provider.add_span_processor(BatchSpanProcessor(Drop()))
trace.set_tracer_provider(provider)

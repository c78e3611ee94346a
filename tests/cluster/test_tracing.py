"""Three real nodes with OpenTelemetry's SDK: what a request becomes, across all of them, is one trace."""

import gzip
import json
import logging
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, StaticSampler

import bedrockish.dbapi
from bedrockish import connect, open_client
from bedrockish.api.requests import Request, Statement
from bedrockish.api.url import parse_url
from bedrockish.client import tracing as client_tracing
from bedrockish.errors import BedrockishError, DamagedError
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.tracing import Tracing
from tests.cluster.story import ready
from tools.cluster import LocalCluster, clean_environment, free_ports

pytestmark = pytest.mark.cluster

NODES = {"A", "B", "C"}
RECORDING = "tests.cluster.recording"  # which is for nodes, and is not imported here
INSTRUMENTED = (
    *("-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()"),
    *("--", sys.executable, "-m", "bedrockish.cli.main"),
)
Span = dict[str, Any]


class Switch(StaticSampler):
    """Records everything while these tests run, and nothing in those after them: a process has one SDK."""

    def __init__(self) -> None:
        super().__init__(Decision.RECORD_AND_SAMPLE)

    def end(self) -> None:
        self._decision = Decision.DROP


@pytest.fixture(scope="module")
def mine() -> Iterator[InMemorySpanExporter]:
    """Yield what the client in this process records."""
    exporter, switch = InMemorySpanExporter(), Switch()
    provider = TracerProvider(sampler=switch)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    switch.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, mine: InMemorySpanExporter) -> Iterator[LocalCluster]:
    settings = {"log": {"traces": True, "json": True, "slow_ms": 1}}
    cluster = LocalCluster(tmp_path_factory.mktemp("tracing") / "three", settings=settings)
    cluster.add_http()
    cluster.write_files()
    for node in cluster.nodes:
        node.config.write_text(f'plugins = ["{RECORDING}"]\n' + node.config.read_text())
    try:
        for node in cluster.nodes:
            node.start()
        trio.run(ready, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, note TEXT)")
            db.execute("INSERT INTO item VALUES (1, 'first')")
        yield cluster
    finally:
        cluster.stop()


def of_trace(cluster: LocalCluster, trace_id: str) -> list[Span]:
    """Return the spans of one trace that the nodes have written so far."""
    lines = [line for path in cluster.directory.glob("spans-*.jsonl") for line in path.read_text().splitlines(True)]
    spans: list[Span] = [json.loads(line) for line in lines if line.endswith("\n")]
    return [span for span in spans if span["context"]["trace_id"] == f"0x{trace_id}"]


def wait_for(cluster: LocalCluster, trace_id: str, is_whole: Callable[[list[Span]], bool]) -> list[Span]:
    spans: list[Span] = []
    for _ in range(400):
        spans = of_trace(cluster, trace_id)
        if is_whole(spans):
            return spans
        time.sleep(0.05)
    pytest.fail(f"the trace is not whole: {[(one['name'], node_of(one)) for one in spans]}")


def node_of(span: Span) -> str:
    return str(span["attributes"]["bedrockish.node"])


def named(spans: list[Span], name: str) -> dict[str, Span]:
    return {node_of(span): span for span in spans if span["name"] == name}


def never(damage: DamagedError) -> None:
    raise AssertionError(damage)


def hexed(number: int, digits: int) -> str:
    return f"{number:0{digits}x}"


def the_call(mine: InMemorySpanExporter, trace_id: str, name: str) -> ReadableSpan:
    (found,) = [
        span
        for span in mine.get_finished_spans()
        if span.name == name and span.context and hexed(span.context.trace_id, 32) == trace_id
    ]
    return found


def under_a_span(action: Callable[[], object]) -> str:
    """Do something where a span is current; return its trace."""
    with trace.get_tracer("test").start_as_current_span("the program") as span:
        action()
        return hexed(span.get_span_context().trace_id, 32)


def test_a_write_is_one_trace_from_the_client_to_all_nodes(cluster: LocalCluster, mine: InMemorySpanExporter) -> None:
    """The client's call, the request at its node with its stages, and the vote and the apply at each node."""
    sql = "INSERT INTO item(id, note) VALUES (10, 'a secret')"
    with connect(cluster.url(0, only=True)) as db:
        trace_id = under_a_span(lambda: db.execute(sql, command="traced-1"))

    def is_whole(spans: list[Span]) -> bool:
        return set(named(spans, "vote")) == NODES and set(named(spans, "apply")) == {"B", "C"}

    spans = wait_for(cluster, trace_id, is_whole)
    call = the_call(mine, trace_id, "INSERT")
    assert call.context is not None
    assert call.kind.name == "CLIENT"
    (request,) = named(spans, "INSERT").values()
    assert (node_of(request), request["kind"]) == ("A", "SpanKind.SERVER")
    assert request["parent_id"] == f"0x{hexed(call.context.span_id, 16)}"
    below = [span for span in spans if span is not request]
    assert {span["parent_id"] for span in below} == {request["context"]["span_id"]}
    stages = Counter(span["name"] for span in below if node_of(span) == "A")
    assert set(stages) - {"wait"} == {"execute", "votes", "vote", "commit", "durable"}
    assert (stages["commit"], stages["durable"]) == (1, 1)  # of the others one for each attempt: a machine may be slow
    assert {"db.system.name": "bedrockish", "db.namespace": "bedrockish", "db.operation.name": "INSERT"}.items() <= (
        request["attributes"].items()
    )
    for attributes in (request["attributes"], dict(call.attributes or {})):
        assert attributes["db.query.text"] == "INSERT INTO item(id, note) VALUES (?, …)"
        assert attributes["bedrockish.command"] == "traced-1"
        assert str(attributes["bedrockish.place"]).startswith("A")
    committed = [
        span for span in below if span["attributes"].get("bedrockish.txid") == request["attributes"]["bedrockish.txid"]
    ]
    assert {node_of(span) for span in committed if span["name"] == "vote"} == NODES
    (votes,) = [span for span in committed if span["name"] == "votes"]
    assert votes["attributes"]["bedrockish.outcome"] == "committed"
    assert {(event["name"], event["attributes"]["bedrockish.node"]) for event in votes["events"]} <= {
        ("approved", "B"),
        ("approved", "C"),
    }
    assert votes["events"]
    assert all(one["start_time"] <= one["end_time"] for one in spans)
    assert "secret" not in json.dumps(spans) + "".join(span.to_json() for span in mine.get_finished_spans())


def test_a_header_of_http_goes_on(cluster: LocalCluster) -> None:
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    post(cluster, 1, ["UPDATE item SET note = 'http' WHERE id = 1"], f"00-{trace_id}-{parent}-01")
    spans = wait_for(cluster, trace_id, lambda spans: set(named(spans, "vote")) == NODES)
    (request,) = named(spans, "UPDATE").values()
    assert (node_of(request), request["parent_id"]) == ("B", f"0x{parent}")


@pytest.mark.parametrize(
    "header",
    ["00-0af7651916cd43dd8448eb211c80aaaa-b7ad6b7169203331-00", "00-zz", "ff" * 4_000, "00-" + "0" * 32 + "-1-01"],
)
def test_unsampled_and_malformed_traces_are_answered_and_not_recorded(cluster: LocalCluster, header: str) -> None:
    """A request with a malformed trace begins a trace of its own; a request that its client does not record is not
    recorded at all.
    """
    post(cluster, 0, ["UPDATE item SET note = 'quiet' WHERE id = 1"], header)
    post(cluster, 0, ["SELECT 'the last'"], f"00-{'1' * 31}{len(header) % 10}-b7ad6b7169203331-01")
    wait_for(cluster, f"{'1' * 31}{len(header) % 10}", lambda spans: bool(named(spans, "SELECT")))
    assert not of_trace(cluster, header[3:35])


def post(cluster: LocalCluster, node: int, statements: list[str], traceparent: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.nodes[node].http_port}/db/execute",
        json.dumps(statements).encode(),
        {"Content-Type": "application/json", "traceparent": traceparent},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200


def test_steps_of_a_transaction_and_errors(cluster: LocalCluster, mine: InMemorySpanExporter) -> None:
    """Through the DB-API; traces never contain a rejected text, since its quotes may be misplaced."""

    def work() -> None:
        connection = bedrockish.dbapi.connect(cluster.url(0, only=True))
        try:
            connection.execute("SELECT note FROM item WHERE id = 1").fetchall()
            connection.execute("UPDATE item SET note = 'by steps' WHERE id = 1")
            connection.commit()
            with pytest.raises(bedrockish.dbapi.OperationalError):
                connection.execute("SELECT hunter2 'from my diary")
        finally:
            connection.close()

    trace_id = under_a_span(work)
    spans = wait_for(cluster, trace_id, lambda spans: set(named(spans, "vote")) == NODES)
    names = {span["name"] for span in spans}
    assert {"SELECT", "UPDATE", "COMMIT"} <= names
    failed = [span for span in spans if span["status"]["status_code"] == "ERROR"]
    assert failed
    for span in failed:
        assert span["attributes"]["error.type"] == span["attributes"]["db.response.status_code"] == "sql"
        assert "db.query.text" not in span["attributes"]
    assert "diary" not in json.dumps(spans) + "".join(span.to_json() for span in mine.get_finished_spans())


async def test_requests_that_share_a_transaction_are_linked(cluster: LocalCluster) -> None:
    """Each is a trace of its own; the votes are in one of them, to which the others point."""
    found: set[str] = set()

    async def update(number: int) -> None:
        with trace.get_tracer("test").start_as_current_span("one of many") as span:
            await client.execute("UPDATE item SET note = ? WHERE id = ?", [f"{number}", 20 + number])
            found.add(hexed(span.get_span_context().trace_id, 32))

    async with open_client(cluster.url(2, only=True)) as client:
        for _ in range(50):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(update, number)
            links = [
                link["context"]["trace_id"]
                for trace_id in found
                for span in of_trace(cluster, trace_id)
                for link in span["links"]
            ]
            if links:
                break
        else:
            pytest.fail("no requests shared a transaction")
    assert {link.removeprefix("0x") for link in links} <= found


def test_a_slow_statement_in_the_log_has_its_trace(cluster: LocalCluster) -> None:
    with connect(cluster.url(1, only=True)) as db:
        trace_id = under_a_span(lambda: db.execute("UPDATE item SET note = 'slow' WHERE id = 1"))
    (request,) = named(wait_for(cluster, trace_id, lambda spans: bool(named(spans, "UPDATE"))), "UPDATE").values()
    lines = [json.loads(line) for line in cluster.nodes[1].log.read_text().splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line.get("trace_id") == trace_id]
    assert line["text"].startswith("slow statement")
    assert f"0x{line['span_id']}" == request["context"]["span_id"]


def test_a_program_without_opentelemetry_imports_none_and_says_none() -> None:
    program = (
        "import sys, bedrockish.client.blocking, bedrockish.client.trio_client, bedrockish.dbapi, bedrockish.daemon\n"
        "from bedrockish.api.requests import Request, Statement\n"
        "from bedrockish.api.wire import Execute, encode_call\n"
        "assert b'traceparent' not in encode_call(Execute(1, Request('c', (Statement('SELECT 1'),))))\n"
        "assert bedrockish.client.tracing.API not in sys.modules\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=clean_environment()
    )
    assert done.stdout == "[]\n", done.stderr


def test_missing_opentelemetry_is_reported_in_one_line(tmp_path: Path) -> None:
    """The package with the API; and without an SDK a node serves, and says that it records nothing."""
    config = tmp_path / "A.toml"
    config.write_text(
        f'node = "A"\ndatabase = "A.sqlite"\nlisten = "127.0.0.1:{free_ports(1)[0]}"\n[log]\ntraces = true\n'
    )
    program = "import sys; sys.modules['opentelemetry'] = None; from bedrockish.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--config", str(config), "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=clean_environment(),
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "pip install 'bedrockish[tracing]'" in done.stderr


def test_a_node_without_an_sdk_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with caplog.at_level(logging.WARNING):
        Tracing("A", "c", Faults(Counter(), never))
    assert "nothing is recorded; start it with 'opentelemetry-instrument -- bedrockish serve" in caplog.text


def test_a_fault_of_an_exporter_ends_the_recording_and_nothing_else(
    mine: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counter[str]()
    tracing = Tracing("A", "c", Faults(counts, never))
    request = Request("one", (Statement("SELECT 1"),))
    again, span = tracing.begin(1, request)
    assert span is not None
    assert again.trace

    def fail(*_: object) -> None:
        raise RuntimeError("the disk of the exporter is full")

    monkeypatch.setattr(span.span, "end", fail)
    tracing.ended(1, span, None)
    assert counts["internal_errors"] == 1
    assert tracing.begin(2, request) == (request, None)
    with pytest.raises(BedrockishError), tracing.step("commit", request):
        raise BedrockishError("of the request itself")
    assert counts["internal_errors"] == 1


def test_a_program_that_gives_up_is_told_from_one_that_failed(mine: InMemorySpanExporter) -> None:
    request = Request("given-up", (Statement("SELECT 1"),))

    with pytest.raises(KeyboardInterrupt), client_tracing.recorded(request, parse_url("bedrockish://a:1")):
        raise KeyboardInterrupt
    found = [dict(span.attributes or {}) for span in mine.get_finished_spans()]
    (facts,) = [facts for facts in found if facts.get("bedrockish.command") == "given-up"]
    assert facts["error.type"] == "KeyboardInterrupt"


class Collector(BaseHTTPRequestHandler):
    """The operator's OTLP collector."""

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            data = gzip.decompress(data)
        if self.path == "/v1/traces":
            sent = ExportTraceServiceRequest.FromString(data)
            self.server.spans += [  # type: ignore[attr-defined]
                (span.name, span.trace_id.hex(), {one.key: one.value.string_value for one in span.attributes})
                for resource in sent.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.slow
def test_an_operator_has_nothing_but_the_environment_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/operating.md has it: 'opentelemetry-instrument -- bedrockish serve', and where a collector listens."""
    collector = HTTPServer(("127.0.0.1", 0), Collector)
    collector.spans = []  # type: ignore[attr-defined]
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    cluster = LocalCluster(tmp_path / "three", settings={"log": {"traces": True}})
    cluster.write_files()
    trace_id = "0af7651916cd43dd8448eb211c80319d"
    try:
        for node in cluster.nodes:
            node.program = INSTRUMENTED
            node.start()
        trio.run(ready, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE t(a)")
    finally:
        cluster.stop()  # what is not sent yet is sent at the end
        collector.shutdown()
        collector.server_close()
    spans = collector.spans  # type: ignore[attr-defined]
    (trace_id,) = {found for name, found, _ in spans if name == "CREATE"}
    votes = {facts["bedrockish.node"] for name, found, facts in spans if (name, found) == ("vote", trace_id)}
    assert votes == NODES

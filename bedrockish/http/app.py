"""The HTTP application: paths and their handlers. Handlers run in the node's loop; a thread handles long JSON."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import trio

from bedrockish import __version__
from bedrockish.api.json_forms import (
    pack_answer,
    read_pairs,
    read_question,
    read_request,
    read_shape,
    read_statements,
    write_json,
)
from bedrockish.api.requests import Answer, Request, Statement, decode_results, part_digest
from bedrockish.client.request_builder import new_command, with_settings_of
from bedrockish.client.sansio.retry import only_reads
from bedrockish.errors import BedrockishError, TooLargeError, UsageError
from bedrockish.http.changes import changes
from bedrockish.http.guard import Admission, RequestGuard
from bedrockish.http.libsql.pipeline import Pipelines
from bedrockish.http.libsql.session import DeclaredTypes
from bedrockish.http.messages import (
    JSON,
    NOT_KEPT,
    HttpReply,
    HttpRequest,
    StatusError,
    error_reply,
    json_reply,
    raw_reply,
)
from bedrockish.http.metrics import CONTENT_TYPE, metrics_text
from bedrockish.http.request_memory import RequestMemory, UnfinishedBodies
from bedrockish.http.streamed import streamed
from bedrockish.node.admin.troubles import not_ready
from bedrockish.node.cluster.authentication import Gate
from bedrockish.node.runtime import Runtime
from bedrockish.node.transactions.callers import Owner, caller_of
from bedrockish.sqltext.session_values import SessionValues, asks_values
from bedrockish_net.limits import LinkLimits

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = LinkLimits().frame_bytes_max  # the same bound as for a message of other clients
WRITERS = trio.CapacityLimiter(2)  # threads that write JSON; each holds an answer as bytes, as rows and as text
IN_THREAD_BYTES = 256 << 10  # longer JSON takes milliseconds, and is handled in a thread
KEY = "idempotency-key"
OPERATIONS = (  # method, path, handler
    ("GET", "/", "routes"),
    ("POST", "/db/execute", "execute"),
    ("POST", "/db/query", "query"),
    ("GET", "/db/query", "ask"),
    ("POST", "/db/stream", "stream"),
    ("GET", "/db/stream", "ask_stream"),
    ("POST", "/db/transaction", "transaction"),
    ("GET", "/status", "status"),
    ("GET", "/nodes", "nodes"),
    ("GET", "/changes", "changes"),
    ("GET", "/readyz", "ready"),
    ("GET", "/livez", "alive"),
    ("GET", "/metrics", "metrics"),
)
NOT_FOR_HEAD = {"ask", "ask_stream", "changes"}  # a HEAD request would cause all the work, only to discard the answer

Handler = Callable[[HttpRequest], Awaitable[HttpReply]]


def make_app(node: Runtime, token: str, hosts: frozenset[str], gate: Gate) -> tuple[RequestGuard, Pipelines]:
    """Return the guard that serves a node's requests, and the libSQL endpoints; the caller has to run their ``watch``.

    Args:
        token: the bearer token that callers must send; empty: none is needed.
        hosts: names under which the node may be called if callers need no login.
    """
    admission = Admission(token, gate)
    declared = DeclaredTypes(node, lambda: node.engine.schema_version)

    unfinished = UnfinishedBodies(node.engine.memory)

    def request_memory() -> RequestMemory:
        return RequestMemory(node.engine.memory, node.config.limits.result_bytes_max, unfinished)

    pipelines = Pipelines(node, declared, read_body)
    handlers = Handlers(node, pipelines.routes())
    return RequestGuard(handlers.answer, admission, hosts, node.faults.caught, request_memory, node), pipelines


class Handlers:
    """The endpoints of a node by method and path.

    Args:
        others: the handlers of endpoints that have no method here.
    """

    def __init__(self, node: Runtime, others: Mapping[tuple[str, str], Handler]) -> None:
        self._node = node
        own = {(method, path): getattr(self, name) for method, path, name in OPERATIONS}
        self._handlers: dict[tuple[str, str], Handler] = {**others, **own}
        self._gets_only: set[Handler] = {getattr(self, name) for name in NOT_FOR_HEAD}

    async def answer(self, request: HttpRequest) -> HttpReply:
        """Answer a request; if the request is wrong, with the error."""
        try:
            if request.headers.get("upgrade", "").lower() == "websocket":
                raise StatusError(501, "WebSocket is missing here: give the client an http:, https: or libsql: URL")
            handler = self._handlers.get((request.method, request.path)) or self._find(request)
            return await handler(request)
        except StatusError as error:
            return error_reply(UsageError(error.text), error.status, error.headers)
        except BedrockishError as error:
            return error_reply(error)

    def _find(self, request: HttpRequest) -> Handler:
        if request.method == "HEAD":
            handler = self._handlers.get(("GET", request.path))
            if handler is not None and handler not in self._gets_only:
                return handler
        allowed = sorted({method for method, path in self._handlers if path == request.path})
        if allowed:
            text = f"{request.path} does not answer to {request.method}"
            raise StatusError(405, text, {"allow": ", ".join(allowed)})
        raise StatusError(404, f"there is nothing at {request.path}; docs/http.md lists the paths")

    async def routes(self, _request: HttpRequest) -> HttpReply:
        """List the paths, for a user who opens the address in a browser."""
        paths = sorted({f"{method} {path}" for method, path, _ in OPERATIONS if path != "/"})
        return json_reply({"bedrockish": __version__, "paths": paths})

    async def query(self, request: HttpRequest) -> HttpReply:
        """Run statements that only read."""
        return await self._one(request, *await self._command(request, read_only=True))

    async def ask(self, request: HttpRequest) -> HttpReply:
        """Run the statement in the URL, which only reads."""
        return await self._one(request, *self._question(request))

    async def stream(self, request: HttpRequest) -> HttpReply:
        """Run one statement that only reads, and write its rows as they are read."""
        return await self._streamed(request, *await self._command(request, read_only=True))

    async def ask_stream(self, request: HttpRequest) -> HttpReply:
        """Run the statement in the URL, which only reads, and write its rows as they are read."""
        return await self._streamed(request, *self._question(request))

    async def _streamed(self, request: HttpRequest, command: Request, objects: bool) -> HttpReply:
        streams, owner = self._node.transactions.streams, Owner(request.address)
        return await streamed(streams, owner, command, self._cluster_id, request.check_stay, objects=objects)

    async def transaction(self, request: HttpRequest) -> HttpReply:
        """Run statements as one transaction."""
        return await self._one(request, *await self._command(request, read_only=False))

    async def _one(self, request: HttpRequest, command: Request, objects: bool) -> HttpReply:
        answer = await self._node.submit(command)
        request.memory.add_answer(len(answer.results))
        return await _in_time(
            len(answer.results), lambda: _answered(command.command, answer, self._cluster_id, objects=objects)
        )

    async def execute(self, request: HttpRequest) -> HttpReply:
        """Run statements one after the other, each a transaction of its own; stop at the first that fails."""
        whole, objects = await self._command(request, read_only=False)
        many, token = len(whole.statements) > 1, whole.token
        deadline = trio.current_time() + whole.timeout_s
        answers: list[Answer] = []
        memory, values = request.memory, SessionValues()
        asks = any(map(asks_values, whole.texts))
        for number, statement in enumerate(whole.statements, 1):
            left_s = max(0.001, deadline - trio.current_time())
            name = f"{whole.command}.{number}" if many else whole.command
            try:
                memory.check()
                part = replace(whole, command=name, statements=(statement,), token=token, timeout_s=left_s)
                if many:
                    part = replace(part, digest=part_digest(whole, number))
                if asks:
                    written = replace(statement, sql=values.fill(statement.sql))
                    part = replace(part, statements=(written,))
                answer = await self._node.submit(part)
            except BedrockishError as error:
                error.details = {**error.details, "statement": number, "done": number - 1}
                raise
            answers.append(answer)
            memory.add_answer(len(answer.results))
            if asks:
                values.see(decode_results(answer.results))
            token = answer.token
        return await _in_time(
            memory.answered, lambda: _executed(whole.command, answers, self._cluster_id, objects=objects)
        )

    async def status(self, _request: HttpRequest) -> HttpReply:
        """Return the node's status."""
        return json_reply(self._node.status())

    async def nodes(self, _request: HttpRequest) -> HttpReply:
        """Return the part of the node's status about the members."""
        return json_reply(self._node.status()["nodes"])

    async def changes(self, request: HttpRequest) -> HttpReply:
        """Return the change feed, transaction by transaction."""
        return await changes(self._node, request)

    async def alive(self, _request: HttpRequest) -> HttpReply:
        """Answer at once: this shows that the loop runs."""
        return json_reply({"alive": True})

    async def ready(self, _request: HttpRequest) -> HttpReply:
        """Return whether clients should send requests to this node."""
        status = self._node.status()
        why_not = [*(["this node is stopping"] if self._node.is_leaving else []), *not_ready(status)]
        body = {"ready": not why_not, "reasons": why_not, "troubles": status["troubles"]}
        return json_reply(body, 503 if why_not else 200)

    async def metrics(self, _request: HttpRequest) -> HttpReply:
        """Return all metrics."""
        return HttpReply(metrics_text(self._node), 200, {"content-type": CONTENT_TYPE, **NOT_KEPT})

    @property
    def _cluster_id(self) -> str:
        return self._node.core.state.roster.membership.cluster_id

    async def _command(self, request: HttpRequest, *, read_only: bool) -> tuple[Request, bool]:
        body = await _json_body(request)
        is_long = len(body) > IN_THREAD_BYTES
        statements = await trio.to_thread.run_sync(read_statements, body) if is_long else read_statements(body)
        objects, pairs = read_shape(_pairs(request))
        return self._request(request, statements, pairs, read_only=read_only), objects

    def _question(self, request: HttpRequest) -> tuple[Request, bool]:
        statements, pairs = read_question(_pairs(request))
        objects, pairs = read_shape(pairs)
        asked = read_request(statements, pairs, None, new_command(), self._cluster_id, read_only=True)
        return _for_caller(request, asked), objects

    def _request(
        self, request: HttpRequest, statements: tuple[Statement, ...], pairs: list[tuple[str, str]], *, read_only: bool
    ) -> Request:
        key = request.headers.get(KEY)
        asked = read_request(statements, pairs, key, new_command(), self._cluster_id, read_only=read_only)
        return _for_caller(request, asked)


def _for_caller(request: HttpRequest, command: Request) -> Request:
    """Return a command with its settings and user; mark its request to end with the caller if it only reads."""
    request.ends_with_caller = only_reads(command)
    statements = with_settings_of(command.statements, SessionValues())
    if request.user or statements is not command.statements:
        command = replace(command, user=request.user, statements=statements)
    return command


def _pairs(request: HttpRequest) -> list[tuple[str, str]]:
    return read_pairs(request.query)


async def _json_body(request: HttpRequest) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise StatusError(415, f"the body should be JSON; send the header 'Content-Type: {JSON}'")
    return await read_body(request)


async def read_body(request: HttpRequest) -> bytes:
    """Return the body of a request.

    Raises:
        StatusError: the body has a content encoding.
        TooLargeError: the body is longer than any client may send.
        MemoryFullError: the node has no memory for the body, or the caller has begun too many bodies.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise StatusError(415, f"the body is encoded as {coding[:40]!r}; send it plain, without 'Content-Encoding'")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:18]) > BODY_BYTES_MAX:
        raise _too_large()
    body, memory, caller = bytearray(), request.memory, caller_of(Owner(request.address), request.user)
    try:
        while chunk := await request.piece():
            body += chunk
            memory.add_body(len(chunk), caller)
            if len(body) > BODY_BYTES_MAX:
                raise _too_large()
    finally:
        memory.end_body(caller)
    return bytes(body)


def _too_large() -> TooLargeError:
    return TooLargeError(f"the body has more than {BODY_BYTES_MAX} bytes; split the request")


async def _in_time(size: int, make: Callable[[], bytes]) -> HttpReply:
    if size <= IN_THREAD_BYTES:
        return raw_reply(make())
    return raw_reply(await trio.to_thread.run_sync(make, limiter=WRITERS))


def _answered(command: str, answer: Answer, cluster_id: str, *, objects: bool) -> bytes:
    return write_json({**pack_answer(answer, cluster_id, objects=objects), "command": command})


def _executed(command: str, answers: list[Answer], cluster_id: str, *, objects: bool) -> bytes:
    packed = [pack_answer(answer, cluster_id, objects=objects) for answer in answers]
    results = []
    for one in packed:
        results += [{**result, "place": one["place"]} for result in one["results"]]
    places = [one["place"] for one in packed if one["place"] is not None]
    return write_json(
        {
            "results": results,
            "place": places[-1] if places else None,
            "attempts": sum(one["attempts"] for one in packed),
            "token": packed[-1]["token"],
            "command": command,
        }
    )

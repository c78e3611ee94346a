"""The application: which path is answered how. All in the node's loop; a long piece of JSON is handled in a thread."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from bedrockish.api.json_forms import (
    pack_answer,
    pack_value,
    read_args,
    read_json,
    read_pairs,
    read_question,
    read_request,
    read_shape,
    read_statements,
    write_json,
)
from bedrockish.api.requests import NOTHING, Answer, Named, Statement, decode_results, part_digest
from bedrockish.api.requests import Request as Command
from bedrockish.api.wire import COMMAND_CHARACTERS_MAX
from bedrockish.client.credentials import Entry
from bedrockish.client.request_builder import new_command
from bedrockish.common.access_token import PREFIX
from bedrockish.errors import BedrockishError, TooLargeError, UsageError
from bedrockish.http.changes import changes
from bedrockish.http.cluster import end_transaction, whole_activity, whole_cluster
from bedrockish.http.guard import Admission, Guard, read_login, user_of
from bedrockish.http.libsql.pipeline import Pipelines
from bedrockish.http.libsql.session import DeclaredTypes
from bedrockish.http.libsql.socket import Sockets
from bedrockish.http.metrics import CONTENT_TYPE, metrics_text
from bedrockish.http.openapi import OPERATIONS, Operation, document
from bedrockish.http.purse import Purse, purse_of
from bedrockish.http.replies import JSON, error_reply, json_reply, raw_reply
from bedrockish.http.streamed import streamed
from bedrockish.node.admin.troubles import not_ready
from bedrockish.node.cluster.authentication import Credentials, Gate
from bedrockish.node.event_loop import Runtime
from bedrockish.node.rights import check_seeing, check_upkeep
from bedrockish.sqltext.session_values import SessionValues, asks_values
from bedrockish_net.limits import Limits

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = Limits().frame_bytes_max  # as much as any client can send
WRITERS = trio.CapacityLimiter(2)  # each has an answer as bytes, as rows and as text
IN_THREAD_BYTES = 256 << 10  # a body of this size takes milliseconds
PAGE = {
    "index.html": "text/html",
    "api.html": "text/html",
    "style.css": "text/css",
    "login.js": "text/javascript",
    "app.js": "text/javascript",
    "activity.js": "text/javascript",
    "console.js": "text/javascript",
    "tables.js": "text/javascript",
    "diagram.js": "text/javascript",
    "api.js": "text/javascript",
}
AT = {"/": "index.html", "/api": "api.html"}
KEY = "idempotency-key"


def make_app(
    node: Runtime, token: str, hosts: frozenset[str], gate: Gate, credentials: Credentials
) -> tuple[Starlette, Pipelines]:
    """Return the application of a node, and the keeper of its libSQL streams, whose ``watch`` the caller runs.

    Args:
        node: the node that answers.
        token: the bearer token that callers must send; empty: none is needed.
        hosts: names under which the node may be called if callers need no login.
        gate: knows the users.
        credentials: how the node comes in at its peers.
    """
    handlers = Handlers(node, gate, credentials)
    admission = Admission(token, gate)
    declared = DeclaredTypes(node, lambda: node.engine.schema_version)

    def purse() -> Purse:
        return Purse(node.engine.memory, node.config.limits.result_bytes_max)

    pipelines = Pipelines(node, declared, read_body)
    sockets = Sockets(node, declared, admission.admit_bearer, node.faults.caught, purse)
    page = _page_files()

    async def show(request: Request) -> Response:
        name = request.path_params.get("name") or AT[request.url.path]
        if name not in page:
            raise HTTPException(404)
        return Response(page[name], media_type=PAGE[name], headers={"cache-control": "no-cache"})

    routes: list[BaseRoute] = [
        *(Route(path, show) for path in (*AT, "/page/{name}")),
        Route("/favicon.ico", _nothing),
        *(_route(one, getattr(handlers, one.handler)) for one in OPERATIONS),
        *pipelines.routes(),
        *(WebSocketRoute(path, sockets.serve) for path in ("/", "/v2", "/v3", "/v3-protobuf")),
    ]
    errors: Any = {
        BedrockishError: _on_error,
        HTTPException: _on_http,
        ClientDisconnect: _on_gone,
    }
    guard = Middleware(Guard, admission=admission, hosts=hosts, caught=node.faults.caught, purse=purse, node=node)
    return Starlette(routes=routes, exception_handlers=errors, middleware=[guard]), pipelines


def _route(operation: Operation, handler: Callable[[Request], Awaitable[Response]]) -> Route:
    route = Route(operation.path, handler, methods=[operation.method])
    if operation.runs and route.methods:
        route.methods.discard("HEAD")  # which would do it all, and throw the answer away
    return route


def _page_files() -> dict[str, bytes]:
    folder = files("bedrockish.http") / "page"
    return {name: (folder / name).read_bytes() for name in PAGE}


async def _nothing(_request: Request) -> Response:
    return Response(status_code=204)


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BedrockishError)
    return error_reply(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {
        404: f"there is nothing at {request.url.path}; see /openapi.json",
        405: f"{request.url.path} does not answer to {request.method}",
    }.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # each route knows of its own method only
        ours = {one.method for one in OPERATIONS if one.path == request.url.path}
        headers |= {"Allow": ", ".join(sorted(ours))} if ours else {}
    return error_reply(UsageError(text), error.status_code, headers)


async def _on_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the caller has gone


class Handlers:
    """The handlers of the paths."""

    def __init__(self, node: Runtime, gate: Gate, credentials: Credentials) -> None:
        self._node, self._gate, self._credentials = node, gate, credentials

    async def query(self, request: Request) -> Response:
        """Run statements that only read."""
        return await self._one(request, *await self._command(request, read_only=True))

    async def ask(self, request: Request) -> Response:
        """Run the statement in the URL, which only reads."""
        return await self._one(request, *self._question(request))

    async def stream(self, request: Request) -> Response:
        """Run one statement that only reads, and write its rows as they come."""
        command, objects = await self._command(request, read_only=True)
        return await streamed(self._node.transactions.streams, command, self._cluster_id, objects=objects)

    async def ask_stream(self, request: Request) -> Response:
        """Run the statement in the URL, which only reads, and write its rows as they come."""
        command, objects = self._question(request)
        return await streamed(self._node.transactions.streams, command, self._cluster_id, objects=objects)

    async def transaction(self, request: Request) -> Response:
        """Run statements as one transaction."""
        return await self._one(request, *await self._command(request, read_only=False))

    async def _one(self, request: Request, command: Command, objects: bool) -> Response:
        answer = await self._node.submit(command)
        purse_of(request).add_answer(len(answer.results))
        return await _in_time(
            len(answer.results), lambda: _answered(command.command, answer, self._cluster_id, objects=objects)
        )

    async def command(self, request: Request) -> Response:
        """Call a command of the application's by name."""
        body = await _json_body(request)
        name = request.path_params["name"]
        if len(name) > COMMAND_CHARACTERS_MAX:
            raise UsageError(f"a command's name should be a text of 1 to {COMMAND_CHARACTERS_MAX} characters")
        args = await trio.to_thread.run_sync(read_args, body) if len(body) > IN_THREAD_BYTES else read_args(body)
        command = self._request(request, Named(name, args), _pairs(request), read_only=False)
        answer = await self._node.submit(command)
        purse_of(request).add_answer(len(answer.results))
        return await _in_time(len(answer.results), lambda: _called(command.command, answer, self._cluster_id))

    async def execute(self, request: Request) -> Response:
        """Run statements one after the other, each a transaction of its own; stop at the first that fails."""
        whole, objects = await self._command(request, read_only=False)
        many, token = len(whole.statements) > 1, whole.token
        deadline = trio.current_time() + whole.timeout_s
        answers: list[Answer] = []
        purse, values = purse_of(request), SessionValues()
        asks = any(map(asks_values, whole.texts))
        for number, statement in enumerate(whole.statements, 1):
            left_s = max(0.001, deadline - trio.current_time())
            name = f"{whole.command}.{number}" if many else whole.command
            try:
                purse.check()
                part = replace(whole, command=name, statements=(statement,), token=token, timeout_s=left_s)
                if many:
                    part = replace(part, digest=part_digest(whole, number))
                if asks:
                    written = replace(statement, sql=values.write(statement.sql))
                    part = replace(part, statements=(written,))
                answer = await self._node.submit(part)
            except BedrockishError as error:
                error.details = {**error.details, "statement": number, "done": number - 1}
                raise
            answers.append(answer)
            purse.add_answer(len(answer.results))
            if asks:
                values.see(decode_results(answer.results))
            token = answer.token
        return await _in_time(
            purse.answered, lambda: _executed(whole.command, answers, self._cluster_id, objects=objects)
        )

    async def status(self, _request: Request) -> Response:
        """Say what the node says about itself."""
        return json_reply(self._node.status())

    async def nodes(self, _request: Request) -> Response:
        """Say what the node knows of the members."""
        return json_reply(self._node.status()["nodes"])

    async def events(self, request: Request) -> Response:
        """Say what was lately said and heard."""
        check_seeing(self._node.engine.access, user_of(request))
        return json_reply(self._node.events(_number(dict(_pairs(request)).get("after", "0"))))

    async def changes(self, request: Request) -> Response:
        """Say what was committed, transaction by transaction."""
        return await changes(self._node, request)

    async def cluster(self, request: Request) -> Response:
        """Say what all nodes say."""
        check_seeing(self._node.engine.access, user_of(request))
        after = {}
        for part in filter(None, dict(_pairs(request)).get("after", "").split(",")):
            name, colon, number = part.partition(":")
            if not colon:
                raise UsageError(f"{part!r} should be a node and a number, such as A:17")
            after[name] = _number(number)
        return json_reply(await whole_cluster(self._node, after, self._entry(request)))

    def _entry(self, request: Request) -> Entry:
        """Return the login of this node at the others: without certificates, that of the caller."""
        entry = self._credentials.entry()
        if not self._gate.users:
            return entry
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        user, password = (user_of(request), token) if token.startswith(PREFIX) else read_login(request.headers)
        return replace(entry, user=user, password=password)

    async def activity(self, request: Request) -> Response:
        """Say what all nodes did in the last hour."""
        check_seeing(self._node.engine.access, user_of(request))
        return json_reply(await whole_activity(self._node, self._entry(request)))

    async def end_transaction(self, request: Request) -> Response:
        """End an open transaction, at whichever node it is."""
        check_upkeep(self._node.engine.access, {"do": "end"}, user_of(request))
        asked = read_json(await _json_body(request))
        names = asked if isinstance(asked, dict) else {}
        node, transaction = names.get("node"), names.get("command")
        if names.keys() != {"node", "command"} or not isinstance(node, str) or not isinstance(transaction, str):
            raise UsageError('the body should be {"node": "A", "command": "…"}, as /activity shows them')
        return json_reply(await end_transaction(self._node, node, transaction, self._entry(request)))

    async def alive(self, _request: Request) -> Response:
        """Say that the loop runs."""
        return json_reply({"alive": True})

    async def ready(self, _request: Request) -> Response:
        """Say whether requests should be sent here."""
        status = self._node.status()
        why_not = not_ready(status)
        body = {"ready": not why_not, "reasons": why_not, "troubles": status["troubles"]}
        return json_reply(body, 503 if why_not else 200)

    async def metrics(self, _request: Request) -> Response:
        """Say all numbers."""
        return Response(metrics_text(self._node), headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    async def openapi(self, _request: Request) -> Response:
        """Say what all this is."""
        return json_reply(document())

    @property
    def _cluster_id(self) -> str:
        return self._node.core.state.roster.membership.cluster_id

    async def _command(self, request: Request, *, read_only: bool) -> tuple[Command, bool]:
        body = await _json_body(request)
        statements = (
            await trio.to_thread.run_sync(read_statements, body)
            if len(body) > IN_THREAD_BYTES
            else read_statements(body)
        )
        objects, pairs = read_shape(_pairs(request))
        return self._request(request, statements, pairs, read_only=read_only), objects

    def _question(self, request: Request) -> tuple[Command, bool]:
        statements, pairs = read_question(_pairs(request))
        objects, pairs = read_shape(pairs)
        asked = read_request(statements, pairs, None, new_command(), self._cluster_id, read_only=True)
        return replace(asked, user=user_of(request)), objects

    def _request(
        self, request: Request, work: tuple[Statement, ...] | Named, pairs: list[tuple[str, str]], *, read_only: bool
    ) -> Command:
        key = request.headers.get(KEY)
        asked = read_request(work, pairs, key, new_command(), self._cluster_id, read_only=read_only)
        return replace(asked, user=user_of(request))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"{text!r} should be the number of an event; begin with 0")
    return int(text)


def _pairs(request: Request) -> list[tuple[str, str]]:
    return read_pairs(request.scope["query_string"])


async def _json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise HTTPException(415, f"the body should be JSON; send the header 'Content-Type: {JSON}'")
    return await read_body(request)


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        TooLargeError: it is longer than any client may send.
        MemoryFullError: the node has no memory for it.
    """
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:18]) > BODY_BYTES_MAX:
        raise _too_large()
    body, purse = bytearray(), purse_of(request)
    async for chunk in request.stream():
        body += chunk
        purse.add_body(len(chunk))
        if len(body) > BODY_BYTES_MAX:
            raise _too_large()
    return bytes(body)


def _too_large() -> TooLargeError:
    return TooLargeError(f"the body has more than {BODY_BYTES_MAX} bytes; split the request")


async def _in_time(size: int, make: Callable[[], bytes]) -> Response:
    if size <= IN_THREAD_BYTES:
        return raw_reply(make())
    return raw_reply(await trio.to_thread.run_sync(make, limiter=WRITERS))


def _answered(command: str, answer: Answer, cluster_id: str, *, objects: bool) -> bytes:
    return write_json({**pack_answer(answer, cluster_id, objects=objects), "command": command})


def _called(command: str, answer: Answer, cluster_id: str) -> bytes:
    ((value,),) = decode_results(answer.results)[0].rows
    packed = pack_answer(replace(answer, results=NOTHING), cluster_id)
    del packed["results"]
    return write_json({"value": pack_value(value), **packed, "command": command})


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

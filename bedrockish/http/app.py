"""The application: which path is answered how. All in the node's loop; a long piece of JSON is handled in a thread."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bedrockish.client.entry import Entry
from bedrockish.errors import BedrockishError, TooLargeError, UsageError
from bedrockish.gate import Gate
from bedrockish.http.bodies import pack_answer, pack_value, read_args, read_request, read_statements, write_json
from bedrockish.http.changes import changes
from bedrockish.http.cluster import whole_cluster
from bedrockish.http.guard import Guard
from bedrockish.http.health import reasons
from bedrockish.http.metrics import CONTENT_TYPE, metrics_text
from bedrockish.http.openapi import document
from bedrockish.http.replies import JSON, error_reply, json_reply, raw_reply
from bedrockish.http.streamed import streamed
from bedrockish.requests import NOTHING, Answer, Named, Statement, decode_results, decode_token
from bedrockish.requests import Request as Command
from bedrockish.runtime import Runtime
from bedrockish.wire import COMMAND_CHARACTERS_MAX
from net.limits import Limits

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = Limits().frame_bytes_max  # as much as any client can send
IN_THREAD_BYTES = 256 << 10  # a body of this size takes milliseconds
PAGE = {
    "index.html": "text/html",
    "style.css": "text/css",
    "app.js": "text/javascript",
    "diagram.js": "text/javascript",
}
KEY = "idempotency-key"


def make_app(node: Runtime, token: str, hosts: frozenset[str], gate: Gate, entry: Entry) -> Starlette:
    """Return the application of a node.

    Args:
        node: what answers.
        token: what callers must send; empty: nothing.
        hosts: names under which the node may be called when nobody has to show who they are.
        gate: knows the users.
        entry: how the node comes in at its peers.
    """
    handlers = Handlers(node, entry)
    page = _page_files()

    async def show(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page:
            raise HTTPException(404)
        return Response(page[name], media_type=PAGE[name], headers={"cache-control": "no-cache"})

    routes = [
        Route("/", show),
        Route("/page/{name}", show),
        Route("/favicon.ico", _nothing),
        Route("/db/execute", handlers.execute, methods=["POST"]),
        Route("/db/query", handlers.query, methods=["POST"]),
        Route("/db/stream", handlers.stream, methods=["POST"]),
        Route("/db/transaction", handlers.transaction, methods=["POST"]),
        Route("/db/command/{name}", handlers.command, methods=["POST"]),
        Route("/status", handlers.status),
        Route("/nodes", handlers.nodes),
        Route("/events", handlers.events),
        Route("/changes", handlers.changes),
        Route("/cluster", handlers.cluster),
        Route("/livez", handlers.alive),
        Route("/readyz", handlers.ready),
        Route("/metrics", handlers.metrics),
        Route("/openapi.json", handlers.openapi),
    ]
    errors: Any = {
        BedrockishError: _on_error,
        HTTPException: _on_http,
        ClientDisconnect: _on_gone,
        Exception: _on_bug,
    }
    guard = Middleware(Guard, token=token, hosts=hosts, gate=gate)
    return Starlette(routes=routes, exception_handlers=errors, middleware=[guard])


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
    return error_reply(UsageError(text), error.status_code, error.headers)


async def _on_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


async def _on_bug(_request: Request, _error: Exception) -> Response:
    body = {"code": "internal", "message": "the node has failed to answer; its log says how", "details": {}}
    return raw_reply(write_json(body), 500)


class Handlers:
    """What stands behind the paths."""

    def __init__(self, node: Runtime, entry: Entry) -> None:
        self._node, self._entry = node, entry

    async def query(self, request: Request) -> Response:
        """Run statements that only read."""
        return await self._one(request, read_only=True)

    async def stream(self, request: Request) -> Response:
        """Run one statement that only reads, and write its rows as they come."""
        return await streamed(self._node.transactions.streams, await _command(request, read_only=True))

    async def transaction(self, request: Request) -> Response:
        """Run statements as one transaction."""
        return await self._one(request, read_only=False)

    async def _one(self, request: Request, *, read_only: bool) -> Response:
        command = await _command(request, read_only=read_only)
        answer = await self._node.submit(command)
        return await _in_time(len(answer.results), lambda: _answered(command.command, answer))

    async def command(self, request: Request) -> Response:
        """Call a command of the application's by name."""
        body = await _json_body(request)
        name = request.path_params["name"]
        if len(name) > COMMAND_CHARACTERS_MAX:
            raise UsageError(f"a command's name should be a text of 1 to {COMMAND_CHARACTERS_MAX} characters")
        args = await trio.to_thread.run_sync(read_args, body) if len(body) > IN_THREAD_BYTES else read_args(body)
        command = _request(request, Named(name, args), read_only=False)
        answer = await self._node.submit(command)
        return await _in_time(len(answer.results), lambda: _called(command.command, answer))

    async def execute(self, request: Request) -> Response:
        """Run statements one after the other, each a transaction of its own; stop at the first that fails."""
        whole = await _command(request, read_only=False)
        many, token = len(whole.statements) > 1, whole.token
        deadline = trio.current_time() + whole.timeout_s
        answers: list[Answer] = []
        for number, statement in enumerate(whole.statements, 1):
            left_s = max(0.001, deadline - trio.current_time())
            name = f"{whole.command}.{number}" if many else whole.command
            try:
                answer = await self._node.submit(
                    replace(whole, command=name, statements=(statement,), token=token, timeout_s=left_s)
                )
            except BedrockishError as error:
                error.details = {**error.details, "statement": number, "done": number - 1}
                raise
            answers.append(answer)
            token = decode_token(answer.token.encode())
        size = sum(len(answer.results) for answer in answers)
        return await _in_time(size, lambda: _executed(whole.command, answers))

    async def status(self, _request: Request) -> Response:
        """Say what the node says about itself."""
        return json_reply(self._node.status())

    async def nodes(self, _request: Request) -> Response:
        """Say what the node knows of the members."""
        return json_reply(self._node.status()["nodes"])

    async def events(self, request: Request) -> Response:
        """Say what was lately said and heard."""
        return json_reply(self._node.events(_number(request.query_params.get("after", "0"))))

    async def changes(self, request: Request) -> Response:
        """Say what was committed, transaction by transaction."""
        return await changes(self._node, request)

    async def cluster(self, request: Request) -> Response:
        """Say what all nodes say."""
        after = {}
        for part in filter(None, request.query_params.get("after", "").split(",")):
            name, colon, number = part.partition(":")
            if not colon:
                raise UsageError(f"{part!r} should be a node and a number, such as A:17")
            after[name] = _number(number)
        return json_reply(await whole_cluster(self._node, after, self._entry))

    async def alive(self, _request: Request) -> Response:
        """Say that the loop runs."""
        return json_reply({"alive": True})

    async def ready(self, _request: Request) -> Response:
        """Say whether requests should be sent here."""
        why_not = reasons(self._node.status())
        return json_reply({"ready": not why_not, "reasons": why_not}, 503 if why_not else 200)

    async def metrics(self, _request: Request) -> Response:
        """Say all numbers."""
        return Response(metrics_text(self._node), headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    async def openapi(self, _request: Request) -> Response:
        """Say what all this is."""
        return json_reply(document())


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"{text!r} should be the number of an event; begin with 0")
    return int(text)


async def _command(request: Request, *, read_only: bool) -> Command:
    body = await _json_body(request)
    statements = (
        await trio.to_thread.run_sync(read_statements, body) if len(body) > IN_THREAD_BYTES else read_statements(body)
    )
    return _request(request, statements, read_only=read_only)


def _request(request: Request, work: tuple[Statement, ...] | Named, *, read_only: bool) -> Command:
    key = request.headers.get(KEY)
    return read_request(work, request.query_params.multi_items(), key, uuid.uuid4().hex, read_only=read_only)


async def _json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise HTTPException(415, f"the body should be JSON; send the header 'Content-Type: {JSON}'")
    return await _body(request)


async def _body(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:18]) > BODY_BYTES_MAX:
        raise _too_large()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise _too_large()
    return bytes(body)


def _too_large() -> TooLargeError:
    return TooLargeError(f"the body has more than {BODY_BYTES_MAX} bytes; split the request")


async def _in_time(size: int, make: Callable[[], bytes]) -> Response:
    if size <= IN_THREAD_BYTES:
        return raw_reply(make())
    return raw_reply(await trio.to_thread.run_sync(make))


def _answered(command: str, answer: Answer) -> bytes:
    return write_json({**pack_answer(answer), "command": command})


def _called(command: str, answer: Answer) -> bytes:
    ((value,),) = decode_results(answer.results)[0].rows
    packed = pack_answer(replace(answer, results=NOTHING))
    del packed["results"]
    return write_json({"value": pack_value(value), **packed, "command": command})


def _executed(command: str, answers: list[Answer]) -> bytes:
    packed = [pack_answer(answer) for answer in answers]
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

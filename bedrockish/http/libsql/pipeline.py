"""Hrana over HTTP: pipelines and cursors of requests on streams. A baton names a stream from call to call.

A baton is a random text that is valid for one call; each answer has a new baton. An idle stream with an open
transaction is closed after a while, since a node cannot know that its client has gone. An idle stream without one
stays for a long time, because libSQL's client for Rust, on which npm's and PyPI's ``libsql`` rest, keeps the baton of a
SELECT for ever and does not recover from the refusal of its baton.
"""

import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile
from typing import Any

import trio

from bedrockish.api.json_forms import read_json, write_json
from bedrockish.errors import BedrockishError, UnavailableError, UsageError
from bedrockish.http.libsql.session import DeclaredTypes, LibsqlSession
from bedrockish.http.libsql.structures import ResultUnsayableError, has_infinity, write_error
from bedrockish.http.messages import JSON, NOT_KEPT, HttpReply, HttpRequest, lines_reply
from bedrockish.node.runtime import Runtime
from bedrockish.node.transactions.callers import RULE, Owner, caller_of, has_room

IDLE_S = 10.0
STREAMS_MAX = 1_000
QUIET_MAX = 4_000  # the most idle streams without a transaction, TEMP objects and texts; about 2 KB each
REQUESTS_MAX = 1_000  # the most requests of one pipeline

Body = Callable[[HttpRequest], Awaitable[bytes]]
Handler = Callable[[HttpRequest], Awaitable[HttpReply]]


class NoStreamError(UsageError):
    """Raised for a baton whose stream does not exist."""

    def __init__(self) -> None:
        super().__init__(
            f"there is no stream for this baton: it was used already, or the stream was idle for {IDLE_S:g} s with an "
            "open transaction, or its caller has left too many streams idle, or the node was started again; "
            "uncommitted statements did not happen: open another stream"
        )


@dataclass
class OpenStream:
    """A stream between two calls of its client."""

    session: LibsqlSession  # the stream
    credentials: bytes  # the digest of its caller's credentials; only that caller may continue the stream
    caller: str  # the user or the address whose share of streams it uses


class Pipelines:
    """The HTTP endpoints of libSQL's protocol at one node."""

    def __init__(self, node: Runtime, declared: DeclaredTypes, body: Body) -> None:
        self._node, self._declared, self._body = node, declared, body
        self._kept: dict[str, OpenStream] = {}
        self._quiet: dict[str, OpenStream] = {}  # idle streams that hold little; the oldest first
        self._expiries: deque[tuple[float, str]] = deque()  # each baton, with its time to expire

    def routes(self) -> dict[tuple[str, str], Handler]:
        """Return the endpoints by method and path, for versions 1 to 3."""
        return {
            **{("GET", path): _supported for path in ("/v2", "/v3")},
            **{("POST", f"{path}/pipeline"): self._pipeline for path in ("/v2", "/v3")},
            ("POST", "/v3/cursor"): self._cursor,
            **{("POST", f"/v1/{kind}"): self._alone(kind) for kind in ("execute", "batch")},
        }

    def _alone(self, kind: str) -> Handler:
        """Return the endpoint of version 1 for a single request, which opens a stream and closes it."""

        async def alone(request: HttpRequest) -> HttpReply:
            session = self._new(request)
            session.memory, session.ends = request.memory, True
            try:
                response = await _answer(session, {**await self._read(request), "type": kind})
            except BedrockishError as error:
                return _failed(error)
            finally:
                session.close()
            return _reply({"result": response["result"]})

        return alone

    # -- pipelines -------------------------------------------------------------------------------------------------

    async def _pipeline(self, request: HttpRequest) -> HttpReply:
        requests: Any = None
        try:
            asked = await self._read(request)
            requests = asked.get("requests")
            if not isinstance(requests, list) or not all(isinstance(one, dict) for one in requests):
                raise UsageError("requests should be an array of objects")
            if len(requests) > REQUESTS_MAX:
                raise UsageError(f"a pipeline has {REQUESTS_MAX} requests at most; send several")
            kept = self._take(request, asked.get("baton"))
        except NoStreamError as error:
            if not requests:
                return _failed(error)
            # A client opens another stream after an answer without a baton, but uses its baton again after a 400.
            failed = {"type": "error", "error": write_error(error)}
            return _reply({"baton": None, "base_url": None, "results": [failed] * len(requests)})
        except BedrockishError as error:
            return _failed(error)
        kept.session.memory, kept.session.stays_open = request.memory, False
        results = []
        try:
            for place, one in enumerate(requests):
                kept.session.ends = is_last_work(requests[place + 1 :])
                results.append(await _answered(kept.session, one))
            baton = self._keep(kept)
        except BaseException:
            kept.session.close()
            raise
        return _reply({"baton": baton, "base_url": None, "results": results})

    # -- cursors ---------------------------------------------------------------------------------------------------

    async def _cursor(self, request: HttpRequest) -> HttpReply:
        try:
            asked = await self._read(request)
            kept = self._take(request, asked.get("baton"))
        except NoStreamError as error:
            lines = ({"baton": None, "base_url": None}, {"type": "step_error", "step": 0, "error": write_error(error)})
            return HttpReply(
                b"".join(write_json(line) + b"\n" for line in lines), 200, {"content-type": JSON, **NOT_KEPT}
            )
        except BedrockishError as error:
            return _failed(error)
        try:
            kept.session.memory, kept.session.check_stay = request.memory, request.check_stay
            kept.session.stays_open = False
            entries = await kept.session.open_batch(asked.get("batch") or {})
        except BedrockishError as error:
            kept.session.close()
            return _failed(error)
        return lines_reply(self._lines(kept, entries), JSON)

    async def _lines(self, kept: OpenStream, entries: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
        """Yield the lines of a cursor's answer. Its baton is valid as soon as the last line leaves."""
        baton, is_kept = secrets.token_urlsafe(24), False
        line = write_json({"baton": baton, "base_url": None}) + b"\n"
        try:
            async with aclosing(entries) as found:
                async for entry in found:
                    yield line
                    if entry["type"] == "row" and has_infinity({"rows": [entry["row"]]}):
                        entry = {"type": "error", "error": write_error(ResultUnsayableError())}
                    line = write_json(entry) + b"\n"
            # Keep the stream before the last line leaves: with that line, a client may use the baton at once.
            is_kept = self._keep(kept, baton) is not None
            yield line
        finally:
            if not is_kept:
                kept.session.close()

    # -- batons ----------------------------------------------------------------------------------------------------

    def _new(self, request: HttpRequest) -> LibsqlSession:
        session = LibsqlSession(self._node, self._declared, request.address)
        session.user = request.user
        return session

    async def _read(self, request: HttpRequest) -> dict[str, Any]:
        request.ends_with_caller = True
        found = read_json(await self._body(request))
        if not isinstance(found, dict):
            raise UsageError("the body should be a JSON object")
        return found

    def _take(self, request: HttpRequest, baton: object) -> OpenStream:
        """Remove and return the stream of a baton, or return a new stream; the call owns it until ``_keep``."""
        self._close_idle()
        credentials = sha256(request.headers.get("authorization", "").encode()).digest()
        if baton is not None and not isinstance(baton, str):
            raise UsageError("baton should be a text or null")
        if baton is None or baton in self._quiet:
            caller = caller_of(Owner(request.address), request.user)
            if not has_room(STREAMS_MAX, (one.caller for one in self._kept.values()), caller):
                raise UnavailableError(
                    f"the node has {len(self._kept)} open streams; its limit is {STREAMS_MAX}, of which {RULE}: close "
                    "some, or try again"
                )
            if baton is None:
                return OpenStream(self._new(request), credentials, caller)
        place = self._kept if baton in self._kept else self._quiet
        kept = place.get(baton)
        if kept is None or kept.credentials != credentials:
            raise NoStreamError
        del place[baton]
        return kept

    def _keep(self, kept: OpenStream, baton: str = "") -> str | None:
        """Keep a stream for its next call, and return the baton for it; None if it is closed."""
        if kept.session.closed:
            return None
        baton = baton or secrets.token_urlsafe(24)
        self._kept[baton] = kept
        self._expiries.append((trio.current_time() + IDLE_S, baton))
        return baton

    def _close_idle(self) -> None:
        """Close the streams that were idle for too long. The first to expire are the first that were kept."""
        now = trio.current_time()
        while self._expiries and self._expiries[0][0] <= now:
            _, baton = self._expiries.popleft()
            late = self._kept.pop(baton, None)
            if late is not None and late.session.is_quiet:
                self._keep_quiet(baton, late)
            elif late is not None:
                late.session.close()

    def _keep_quiet(self, baton: str, stream: OpenStream) -> None:
        """Keep an idle stream that holds little; a caller without room for it loses its own oldest one."""
        if not has_room(QUIET_MAX, (one.caller for one in self._quiet.values()), stream.caller):
            oldest = next((own for own, one in self._quiet.items() if one.caller == stream.caller), None)
            if oldest is None:
                stream.session.close()
                return
            self._quiet.pop(oldest).session.close()
        self._quiet[baton] = stream

    async def watch(self) -> None:
        """Close idle streams, until cancelled."""
        while True:
            await trio.sleep(IDLE_S / 4)
            self._close_idle()


def is_last_work(following: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the following requests of a call close the stream, without running a statement first."""
    kinds = list(takewhile(lambda kind: kind != "close", (one.get("type") for one in following)))
    harmless = ("get_autocommit", "close_sql", "store_sql", "describe")
    return len(kinds) < len(following) and all(kind in harmless for kind in kinds)


async def _answer(session: LibsqlSession, asked: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's answer to one request; raise if it has an infinite number, which JSON lacks."""
    response = await session.answer(asked)
    result = response.get("result", {})
    if any(has_infinity(one) for one in (result, *result.get("step_results", ())) if one and "rows" in one):
        raise ResultUnsayableError
    return response


async def _answered(session: LibsqlSession, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"type": "ok", "response": await _answer(session, asked)}
    except BedrockishError as error:
        return {"type": "error", "error": write_error(error)}
    except Exception as unexpected:  # the requests before this one have happened, and their answers must be sent
        return {"type": "error", "error": write_error(session.failed(unexpected))}


def _reply(body: dict[str, Any], status: int = 200) -> HttpReply:
    return HttpReply(write_json(body), status, {"content-type": JSON, **NOT_KEPT})


def _failed(error: BedrockishError) -> HttpReply:
    return _reply(write_error(error), 503 if isinstance(error, UnavailableError) else 400)


async def _supported(_request: HttpRequest) -> HttpReply:
    return HttpReply()

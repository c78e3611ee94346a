"""The login of callers: bearer tokens, users and passwords, and the host names that a node without logins accepts.

A web page of another site can make a browser send requests to any address, and can let its own name point to this
machine. A browser names the site of the page for which it asks: requests for pages of other sites are refused, reads
included. The check of the host name stops the second attack.
"""

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from bedrockish.common.access_token import PREFIX
from bedrockish.common.trace_context import came_with, read_traceparent
from bedrockish.engine.statements.rights import TOKEN
from bedrockish.errors import AuthenticationError, BedrockishError, UsageError
from bedrockish.http.purse import PURSE, Purse
from bedrockish.http.replies import error_reply
from bedrockish.node.cluster.authentication import Gate

OPEN = ("/livez", "/", "/api", "/favicon.ico")  # and the page's files, in which no data is
OPEN_BELOW = "/page/"
LITTLE = 16  # pieces of a body that is not wanted
USER = "bedrockish.user"  # in the scope of a request

HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Admission:
    """The logins that a node accepts.

    Args:
        token: the bearer token that lets a caller in; empty: none does.
        gate: knows the users.
    """

    def __init__(self, token: str, gate: Gate) -> None:
        self.gate, self.token = gate, token.encode()

    @property
    def everybody(self) -> bool:
        """Return whether callers need no login."""
        return not self.token and not self.gate.users

    async def admit_bearer(self, given: str, address: str) -> str:
        """Return the user that a bearer token stands for; empty at a node without logins.

        It is the node's ``http_token``, a token of a user's, or a user and a password as Basic authentication writes
        them: clients of libSQL's protocol have nothing but a token to send.

        Raises:
            AuthenticationError: the token is not valid.
        """
        if self.everybody:
            return ""
        if self.token and hmac.compare_digest(given.encode(errors="replace"), self.token):
            return TOKEN
        if given.startswith(PREFIX):
            return self.gate.admit_token(given, address)
        if self.gate.users and given:
            return await self.admit_login(_login(given), address)
        raise AuthenticationError("send the http_token of the node, or base64 of user:password, as the token")

    async def admit_login(self, login: tuple[str, str], address: str) -> str:
        """Return the user with this name and password.

        Raises:
            AuthenticationError: the name or the password is wrong.
        """
        why = await self.gate.judge(*login, address)
        if why:
            raise AuthenticationError(why)
        return login[0]


class Counts(Protocol):
    """A node that has to know how many requests of HTTP are under way.

    Attributes:
        is_leaving: the node stops, and connections are closed after their answers.
        http_calls: how many requests are under way.
    """

    is_leaving: bool
    http_calls: int


class Guard:
    """Lets through who may ask, puts the page's safety headers on every answer, and lets no bug out of one request."""

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        hosts: frozenset[str],
        caught: Callable[[str, Exception], BedrockishError],
        purse: Callable[[], Purse],
        node: Counts,
    ) -> None:
        self._app, self._admission, self._hosts, self._caught, self._purse = app, admission, hosts, caught, purse
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._node.http_calls += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._node.http_calls -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered, headers_in = False, Headers(scope=scope)
        is_twofold = "content-length" in headers_in and "transfer-encoding" in headers_in

        async def send_safely(message: dict[str, object]) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                headers = message.get("headers", [])
                assert isinstance(headers, list)
                closing = [(b"connection", b"close")] if self._node.is_leaving or is_twofold else []
                message = {**message, "headers": [*headers, *HEADERS, *closing]}
            await send(message)

        caller = scope.get("client")
        if is_twofold:  # what comes after the body may be meant for another server in between: it is not read
            await _read_little(receive)
            error = UsageError("the request has a Content-Length and a Transfer-Encoding; send one of them")
            await error_reply(error, 400)(scope, receive, send_safely)  # type: ignore[arg-type]
            return
        try:
            scope[USER] = await self._admit(scope["path"], Headers(scope=scope), caller[0] if caller else "")
        except UsageError as error:
            status = 401 if isinstance(error, AuthenticationError) else 400
            reply = error_reply(error, status, self._challenge() if status == 401 else None)
            await reply(scope, receive, send_safely)  # type: ignore[arg-type]
            return
        purse = scope[PURSE] = self._purse()
        came_with.set(read_traceparent(Headers(scope=scope).get("traceparent")))  # each request is a task of its own
        try:
            await self._app(scope, receive, send_safely)  # type: ignore[arg-type]
        except Exception as unexpected:
            fault = self._caught(f"{scope['method']} {scope['path']}", unexpected)
            if not is_answered:  # else the connection ends within the answer, which its reader notices
                await error_reply(fault, 500)(scope, receive, send_safely)  # type: ignore[arg-type]
        finally:
            purse.close()

    def _challenge(self) -> dict[str, str]:
        """Return by which schemes a caller can say who it is."""
        basic = ['Basic realm="bedrockish", charset="UTF-8"'] if self._admission.gate.users else []
        return {"www-authenticate": ", ".join(["Bearer", *basic])}

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a WebSocket in, which shows who it is in its first message, unless a foreign page's script opens it."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if is_foreign(headers) or (self._admission.everybody and not is_near(host, self._hosts)):
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            await self._app(scope, receive, send)
        except Exception as unexpected:
            self._caught(f"the WebSocket at {scope['path']}", unexpected)  # the server closes it

    async def _admit(self, path: str, headers: Headers, address: str) -> str:
        """Return the user of a request; empty at a node without logins.

        Raises:
            UsageError: the request is refused.
        """
        is_open = path in OPEN or path.startswith(OPEN_BELOW)
        if not is_open and is_foreign(headers):
            whose = headers.get("origin", "elsewhere")
            raise UsageError(f"a page of {whose} may not use this database; type the address, or ask with a program")
        if self._admission.everybody:
            host = headers.get("host", "")
            if is_near(host, self._hosts):
                return ""
            raise UsageError(f"this node is not called {host!r}; ask by its IP address, or give it an http_token")
        if is_open:
            return ""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip()
        if scheme.lower() == "bearer":
            with suppress(AuthenticationError) if not given.startswith(PREFIX) else nullcontext():
                return await self._admission.admit_bearer(given, address)
        if self._admission.gate.users and scheme.lower() == "basic":
            return await self._admission.admit_login(read_login(headers), address)
        ways = [
            *(["'Authorization: Bearer …' with the http_token of the node"] if self._admission.token else []),
            *(
                ["'Authorization: Basic …' with a user and a password (curl -u user:password)"]
                if self._admission.gate.users
                else []
            ),
        ]
        raise AuthenticationError(f"send the header {' or '.join(ways)}")


async def _read_little(receive: Receive) -> None:
    """Read the beginning of a body, so that the caller reads the answer before it notices that the link is closed."""
    for _ in range(LITTLE):
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return


def user_of(request: Request) -> str:
    """Return the user of a request, as the guard found it; empty at a node without logins."""
    return str(request.scope.get(USER, ""))


def read_login(headers: Headers) -> tuple[str, str]:
    """Return the user and the password of a request; empty texts if it has none."""
    return _login(headers.get("authorization", "").partition(" ")[2].strip())


def _login(given: str) -> tuple[str, str]:
    """Read the credentials of Basic authentication (RFC 7617); malformed ones are empty texts."""
    try:
        user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def is_foreign(headers: Headers) -> bool:
    """Return whether a browser asks on behalf of a page of another site.

    Neither a page nor a proxy can change the header in which a browser names the site; but a browser sends it only
    over TLS or to its own machine.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host", "")


def is_near(host: str, known: frozenset[str]) -> bool:
    """Whether a Host header is one that no foreign name server can have led here: an address, or a name of this net."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.rstrip(".").lower()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in known or name.endswith((".localhost", ".local", ".internal"))
    return True

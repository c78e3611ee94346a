"""Who may ask: the bearer token, users and passwords, and by which names a node without them lets itself be called.

A web page that somebody looks at elsewhere can make a browser send requests to any address, and can let its own name
point to this machine. JSON as content type stops the first (a browser asks before it sends that), the check of the
name the second.
"""

import base64
import binascii
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bedrockish.errors import AuthenticationError, UsageError
from bedrockish.gate import Gate
from bedrockish.http.replies import error_reply

OPEN = ("/livez", "/", "/favicon.ico")  # and the page's files, in which no data is
OPEN_BELOW = "/page/"
HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Guard:
    """Lets through who may ask, and puts the page's safety headers on every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str], gate: Gate) -> None:
        self._app, self._gate = app, gate
        self._token = token.encode()
        self._hosts = hosts
        schemes = [
            *(["Bearer"] if token else []),
            *(['Basic realm="bedrockish", charset="UTF-8"'] if gate.users else []),
        ]
        self._challenge = {"www-authenticate": ", ".join(schemes)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", [])
                assert isinstance(headers, list)
                message = {**message, "headers": [*headers, *HEADERS]}
            await send(message)

        caller = scope.get("client")
        error = await self._refuse(scope["path"], Headers(scope=scope), caller[0] if caller else "")
        if error is not None:
            status = 401 if isinstance(error, AuthenticationError) else 400
            reply = error_reply(error, status, self._challenge if status == 401 else None)
            await reply(scope, receive, send_safely)  # type: ignore[arg-type]
            return
        await self._app(scope, receive, send_safely)  # type: ignore[arg-type]

    async def _refuse(self, path: str, headers: Headers, address: str) -> UsageError | None:
        if not self._token and not self._gate.users:
            host = headers.get("host", "")
            if is_near(host, self._hosts):
                return None
            return UsageError(f"this node is not called {host!r}; ask by its IP address, or give it an http_token")
        if path in OPEN or path.startswith(OPEN_BELOW):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip()
        if self._token and scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), self._token):
            return None
        if self._gate.users and scheme.lower() == "basic":
            why = await self._gate.judge(*_login(given), address)
            return AuthenticationError(why) if why else None
        ways = [
            *(["'Authorization: Bearer …' with the http_token of the node"] if self._token else []),
            *(
                ["'Authorization: Basic …' with a user and a password (curl -u user:password)"]
                if self._gate.users
                else []
            ),
        ]
        return AuthenticationError(f"send the header {' or '.join(ways)}")


def _login(given: str) -> tuple[str, str]:
    """Read what Basic authentication sends (RFC 7617); nonsense is nobody."""
    try:
        user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


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

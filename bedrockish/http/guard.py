"""Who may ask: the bearer token, and the names under which a node without one lets itself be called.

A web page that somebody looks at elsewhere can make a browser send requests to any address, and can let its own name
point to this machine. JSON as content type stops the first (a browser asks before it sends that), the check of the
name the second.
"""

import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bedrockish.errors import UsageError
from bedrockish.http.replies import error_reply

OPEN = ("/livez", "/", "/favicon.ico")  # and the page's files, in which no data is
OPEN_BELOW = "/page/"
HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class UnauthorizedError(UsageError):
    """Raised when a request lacks the token that the node's configuration asks for. Nothing happened."""

    code = "unauthorized"


class Guard:
    """Lets through who may ask, and puts the page's safety headers on every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts

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

        error = self._refuse(scope["path"], Headers(scope=scope))
        if error is not None:
            status = 401 if isinstance(error, UnauthorizedError) else 400
            reply = error_reply(error, status, {"www-authenticate": "Bearer"} if status == 401 else None)
            await reply(scope, receive, send_safely)  # type: ignore[arg-type]
            return
        await self._app(scope, receive, send_safely)  # type: ignore[arg-type]

    def _refuse(self, path: str, headers: Headers) -> UsageError | None:
        host = headers.get("host", "")
        if not self._token and not is_near(host, self._hosts):
            return UsageError(f"this node is not called {host!r}; ask by its IP address, or give it an http_token")
        if not self._token:
            return None
        if path in OPEN or path.startswith(OPEN_BELOW):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            return None
        return UnauthorizedError("send the header 'Authorization: Bearer …' with the http_token of the node")


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

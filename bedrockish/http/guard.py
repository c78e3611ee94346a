"""The login of callers: bearer tokens, users and passwords, and the host names that a node without logins accepts.

A web page of another site can make a browser send requests to any address, and can let its own name point to this
machine. Against the first attack, requests are refused if the browser names another site as their origin, reads
included. Against the second, the host name is checked.
"""

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import lru_cache, partial

from bedrockish.common.access_token import PREFIX, read_token
from bedrockish.common.trace_context import current_traceparent, read_traceparent
from bedrockish.engine.statements.rights import TOKEN
from bedrockish.errors import AuthenticationError, BedrockishError, UsageError
from bedrockish.http.messages import CallerGoneError, HttpReply, HttpRequest, Write, error_reply
from bedrockish.http.request_memory import RequestMemory
from bedrockish.node.cluster.authentication import Gate
from bedrockish.node.runtime import Runtime
from bedrockish_net.handshake import BROKEN

OPEN = ("/livez", "/")  # paths without a login: they contain no data
HOST_CHARACTERS_MAX = 300  # of a Host header; a name has at most 253, and a port 5

Headers = Mapping[str, str]


class Admission:
    """The logins that a node accepts.

    Args:
        token: the bearer token with which a caller is admitted; empty: no token is accepted.
    """

    def __init__(self, token: str, gate: Gate) -> None:
        self.gate, self.token = gate, token.encode()

    @property
    def needs_no_login(self) -> bool:
        """Return whether callers need no login."""
        return not self.token and not self.gate.users

    async def admit_bearer(self, given: str, address: str) -> str:
        """Return the user of a bearer token; empty at a node without logins.

        The token is the node's ``http_token``, a user's token, or a user and a password as Basic authentication writes
        them: clients of libSQL's protocol can send a token only.

        Raises:
            AuthenticationError: the token is not valid.
        """
        if self.needs_no_login:
            return ""
        if self.token and hmac.compare_digest(given.encode(errors="replace"), self.token):
            return TOKEN
        if given.startswith(PREFIX):
            return self.gate.admit_token(given, address)
        if self.gate.users and given:
            return await self.admit_login(_login(given), address)
        raise AuthenticationError("send the http_token of the node, or base64 of user:password, as the token")

    def token_of(self, headers: Headers) -> str:
        """Return the user's token by which a caller was admitted; empty if it was admitted otherwise."""
        if not self.gate.users:
            return ""
        given = headers.get("authorization", "").partition(" ")[2].strip()
        token = given if given.startswith(PREFIX) else _login(given)[1]
        return token if token.startswith(PREFIX) and read_token(token) is not None else ""

    async def admit_login(self, login: tuple[str, str], address: str) -> str:
        """Return the user with this name and password.

        Raises:
            AuthenticationError: the name or the password is wrong.
        """
        why = await self.gate.judge(*login, address)
        if why:
            raise AuthenticationError(why)
        return login[0]


class RequestGuard:
    """The guard of requests: checks their logins, and answers an unexpected exception as an internal error."""

    def __init__(
        self,
        answer: Callable[[HttpRequest], Awaitable[HttpReply]],  # answers an admitted request
        admission: Admission,  # the logins that the node accepts
        hosts: frozenset[str],  # names under which the node may be called if callers need no login
        caught: Callable[..., BedrockishError],  # turns an unexpected exception into an error
        memory: Callable[[], RequestMemory],  # begins the count of the memory of one request
        node: Runtime,  # counts the requests
    ) -> None:
        self._answer, self._admission, self._hosts = answer, admission, hosts
        self._caught, self._memory, self._node = caught, memory, node

    async def serve(self, request: HttpRequest, write: Write) -> None:
        """Answer a request."""
        self._node.http_calls += 1
        request.memory = self._memory()
        try:
            await self._serve(request, write)
        except (CallerGoneError, *BROKEN):
            raise
        except Exception as unexpected:
            what, is_late = f"{request.method} {request.path}", request.method == "POST"
            await write(error_reply(self._caught(what, unexpected, is_late=is_late), 500))
        finally:
            request.memory.close()
            self._node.http_calls -= 1

    async def _serve(self, request: HttpRequest, write: Write) -> None:
        try:
            request.user = await self._admit(request)
        except UsageError as error:
            status = 401 if isinstance(error, AuthenticationError) else 400
            await write(error_reply(error, status, self._challenge() if status == 401 else None))
            return
        token = self._admission.token_of(request.headers)
        if token:
            request.stay = partial(self._admission.gate.admit_token, token, "")
        current_traceparent.set(read_traceparent(request.headers.get("traceparent")))
        await write(await self._answer(request))

    def _challenge(self) -> dict[str, str]:
        """Return the header that names the accepted schemes of authentication."""
        basic = ['Basic realm="bedrockish", charset="UTF-8"'] if self._admission.gate.users else []
        return {"www-authenticate": ", ".join(["Bearer", *basic])}

    async def _admit(self, request: HttpRequest) -> str:
        """Return the user of a request; empty at a node without logins."""
        path, headers = request.path, request.headers
        is_open = path in OPEN
        if not is_open and is_foreign(headers):
            site = headers.get("origin", "another site")
            raise UsageError(f"a page of {site} may not use this database; type the address, or use a program")
        if self._admission.needs_no_login:
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
                return await self._admission.admit_bearer(given, request.address)
        if self._admission.gate.users and scheme.lower() == "basic":
            return await self._admission.admit_login(_login(given), request.address)
        schemes = ["'Authorization: Bearer …' with the http_token of the node"] if self._admission.token else []
        if self._admission.gate.users:
            schemes.append("'Authorization: Basic …' with a user and a password (curl -u user:password)")
        raise AuthenticationError(f"send the header {' or '.join(schemes)}")


def _login(given: str) -> tuple[str, str]:
    """Return the user and the password of Basic authentication (RFC 7617); empty texts if they are malformed."""
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
    """Return whether the Host header is an IP address or a local name, to which no foreign name server can lead a
    caller.
    """
    return _is_near(host, known) if len(host) <= HOST_CHARACTERS_MAX else False


@lru_cache(100)
def _is_near(host: str, known: frozenset[str]) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.rstrip(".").lower()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in known or name.endswith((".localhost", ".local", ".internal"))
    return True

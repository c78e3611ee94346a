"""A request and its reply, as the handlers of HTTP see them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from bedrockish.api.json_forms import status_of, write_error, write_json
from bedrockish.errors import BedrockishError
from bedrockish.http.request_memory import RequestMemory

JSON = "application/json"
NOT_KEPT = {"cache-control": "no-store"}

Body = bytes | AsyncGenerator[bytes]


class CallerGoneError(Exception):
    """Raised when the caller has ended the connection in the middle of its request."""


class StatusError(Exception):
    """Raised to answer a request with a status of HTTP's own, not with an error of the database.

    Args:
        status: the status, from 400 on.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


class HttpRequest:
    """A request whose head has arrived; its body may still be in transit.

    Args:
        target: path and query, unchanged.
        headers: values by name in small letters; several of one name are joined by commas.
        address: the caller's host.
        more: waits for more of the body. Raises CallerGoneError.

    Attributes:
        path: the path, with its percent signs decoded.
        query: the part of the target behind the question mark, unchanged.
        user: the caller's user; empty at a node without logins.
        memory: the memory that the node holds for this request.
        stay: raises AuthenticationError when the caller's token has expired; None if the caller has no token.
        came_bytes: how many bytes of the body have arrived.
        is_whole: whether the whole body has arrived.
        is_old: whether the caller speaks HTTP/1.0, which has no chunks.
        is_upgrade: whether the caller offers another protocol for this connection.
        is_kept_alive: whether the caller wants to send another request on this connection.
        ends_with_caller: whether to cancel the request after its caller has gone; not a write, which may be half done.
    """

    memory: RequestMemory
    stay: Callable[[], object] | None = None
    user = ""
    came_bytes = 0
    is_upgrade = False
    is_whole = is_old = is_kept_alive = ends_with_caller = False

    def __init__(
        self, method: str, target: bytes, headers: dict[str, str], address: str, more: Callable[[], Awaitable[None]]
    ) -> None:
        self.method, self.headers, self.address = method, headers, address
        path, _, self.query = target.partition(b"?")
        self.path = path.decode("latin-1")
        self._more, self._came = more, bytearray()

    def check_stay(self) -> None:
        """Check that the caller may still read the rest of a long reply.

        Raises:
            AuthenticationError: the caller's token has expired.
        """
        if self.stay is not None:
            self.stay()

    def add(self, data: bytes) -> None:
        """Add a part of the body that has arrived."""
        self._came += data
        self.came_bytes += len(data)

    async def piece(self) -> bytes:
        """Return all further bytes of the body that have arrived; wait for some if needed. Return b"" at its end.

        Raises:
            CallerGoneError: the caller has gone.
            UsageError: the body breaks the rules of HTTP.
        """
        while not self._came and not self.is_whole:
            await self._more()
        found = bytes(self._came)
        self._came.clear()
        return found


class HttpReply:
    """The reply to a request.

    Args:
        body: the body; a generator is written as fast as the caller reads it, and is closed in any case.
        headers: names in small letters, and values; Content-Length and the headers for safety are added.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: Body = b"", status: int = 200, headers: Mapping[str, str] = NOT_KEPT) -> None:
        self.body, self.status, self.headers = body, status, headers


Write = Callable[[HttpReply], Awaitable[None]]


def json_reply(value: object, status: int = 200) -> HttpReply:
    """Return a value as a reply that no cache keeps."""
    return raw_reply(write_json(value), status)


_JSON_HEADERS = {"content-type": JSON, **NOT_KEPT}


def raw_reply(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpReply:
    """Return JSON as a reply that no cache keeps."""
    return HttpReply(body, status, {**_JSON_HEADERS, **headers} if headers else _JSON_HEADERS)


def error_reply(
    error: BedrockishError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> HttpReply:
    """Return an error as a reply; by default with the status that belongs to it."""
    status = status or status_of(error)
    later = {"retry-after": "1"} if status == 503 else {}
    return raw_reply(write_error(error), status, {**later, **(headers or {})})


def lines_reply(lines: AsyncGenerator[bytes], kind: str) -> HttpReply:
    """Return a body of this media type that is written as fast as it is read."""
    return HttpReply(lines, 200, {"content-type": kind, **NOT_KEPT})

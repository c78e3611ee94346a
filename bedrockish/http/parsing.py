"""Requests from the bytes of one connection, read by llhttp (``httptools``), with a bound on each part that is kept.
This module does no input or output.

llhttp refuses all that two servers could understand differently: two lengths, a length next to chunks, bare line ends.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import NoReturn
from urllib.parse import unquote

import httptools

from bedrockish.errors import UsageError
from bedrockish.http.messages import HttpRequest, StatusError

HEAD_BYTES_MAX = 64 << 10  # limit of a head, a trailer, or the line before a part of a body; one read may exceed it
HEADERS_MAX = 200
PIPELINED_MAX = 64  # the most requests that a caller may send before it has read the answer of the first


class Parser:
    """The requests of one connection.

    Args:
        more: waits until ``feed`` has been called with more bytes.
    """

    def __init__(self, address: str, more: Callable[[], Awaitable[None]]) -> None:
        self._address, self._more = address, more
        # The requests whose heads have arrived, and that wait for their answers.
        self.requests: deque[HttpRequest] = deque()
        self.fault: StatusError | None = None  # the error that ended the reading; None before
        self._current: HttpRequest | None = None  # the request whose body is not whole yet
        self._url, self._headers, self._count = b"", dict[str, str](), 0
        self._is_past_upgrade = False  # whether the head that is being parsed was made by ``_pass_upgrade``
        self._stalled = 0  # bytes since the last head or part of a body
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Parse bytes that have arrived from the caller."""
        before, self._stalled = self._stalled + len(data), -1
        try:
            self._feed(data)
        except (httptools.HttpParserError, StatusError) as error:
            if self.fault is None:
                is_later = data.startswith(b"PRI * HTTP/2")
                why = "it is HTTP/2, which this node does not speak" if is_later else error
                self.fault = StatusError(400, f"the request is not valid HTTP/1.1: {why}")
            self._current = None
        if self._stalled < 0:
            self._stalled = before
            if before > HEAD_BYTES_MAX and self.fault is None:
                self.fault = StatusError(431, f"the head of a request has more than {HEAD_BYTES_MAX} bytes")

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            if self._current is None:
                return
            self._pass_upgrade(self._current)

    def _pass_upgrade(self, request: HttpRequest) -> None:
        """Continue with HTTP/1.1 after a request that offers another protocol, as the first request of some clients
        does.

        llhttp takes the bytes that follow for the other protocol, but here they are the body. So a new parser first
        gets a made-up head, which announces a body of the same length.
        """
        self._parser, self._is_past_upgrade = httptools.HttpRequestParser(self), True
        names = ("content-length", "transfer-encoding")
        lengths = [f"{name}: {request.headers[name]}\r\n" for name in names if name in request.headers]
        self._parser.feed_data(f"POST / HTTP/1.1\r\n{''.join(lengths)}\r\n".encode("latin-1"))

    def check(self) -> None:
        """Check that the rest of a body can be read.

        Raises:
            UsageError: the caller has sent invalid HTTP.
        """
        if self.fault is not None:
            raise UsageError(self.fault.text)

    # -- what llhttp calls -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a new head."""
        if len(self.requests) >= PIPELINED_MAX:
            self._refuse(400, f"{PIPELINED_MAX} requests wait for their answers; read them first")
        self._url, self._headers, self._count = b"", {}, 0

    def on_url(self, url: bytes) -> None:
        """Add a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; headers after a body are ignored."""
        if self._current is not None:
            return
        self._count += 1
        if self._count > HEADERS_MAX:
            self._refuse(431, f"the request has more than {HEADERS_MAX} headers")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        before = self._headers.get(key)
        if before is not None and key == "host":
            self._refuse(400, "the request has two Host headers")
        self._headers[key] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        """Make the request."""
        self._stalled = 0
        if self._is_past_upgrade:
            return
        parser, headers = self._parser, self._headers
        if "host" not in headers and parser.get_http_version() != "1.0":
            self._refuse(400, "the request has no Host header")
        target = self._url
        if target[:1] != b"/":  # a proxy may send the whole URL
            target = self._path_of(target) if b"://" in target else target
        request = HttpRequest(parser.get_method().decode(), target, headers, self._address, self._more)
        if "%" in request.path:
            request.path = unquote(request.path)
        request.is_old = parser.get_http_version() == "1.0"
        request.is_kept_alive = parser.should_keep_alive()
        request.is_upgrade = parser.should_upgrade()
        self._current = request
        self.requests.append(request)

    def _path_of(self, url: bytes) -> bytes:
        try:
            found = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            self._refuse(400, "the URL of the request is malformed")
        return bytes(found.path or b"/") + (b"?" + found.query if found.query else b"")

    def on_body(self, data: bytes) -> None:
        """Add a part of the body."""
        self._stalled = 0
        assert self._current is not None
        self._current.add(data)

    def on_message_complete(self) -> None:
        """Mark the request as whole."""
        self._stalled = 0
        request = self._current
        if request is None or (request.is_upgrade and not self._is_past_upgrade):
            return
        request.is_whole, self._current, self._is_past_upgrade = True, None, False

    def _refuse(self, status: int, text: str) -> NoReturn:
        self.fault = StatusError(status, text)
        raise self.fault

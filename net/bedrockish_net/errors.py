"""All errors that net raises on purpose, named by the end that caused them.

A protocol error is *Local* when our own code asked for an illegal move, and *Remote* when the other end made one; the
remote kind carries the bytes to answer before closing. The rest are the ways in which a link cannot be had or ends.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Why an end closes a link: the stable word in a GOODBYE. Newer programs may send words that are not here."""

    SHUTDOWN = "shutdown"  # nothing is wrong
    MALFORMED = "malformed"  # bytes that are not what they should be
    TOO_LARGE = "too_large"  # a frame over the limit
    UNKNOWN_KIND = "unknown_kind"  # a frame kind that this version does not have
    UNEXPECTED = "unexpected"  # a known frame at the wrong moment
    PROTOCOL = "protocol"  # a HELLO of something else than bedrockish
    VERSION = "version"  # the two ends speak different versions
    CLUSTER = "cluster"  # the two ends belong to different clusters
    WRONG_NODE = "wrong_node"  # the dialler meant another node
    TRUNCATED = "truncated"  # the stream ended inside a frame
    REFUSED = "refused"  # the accepter does not want this one
    UNKNOWN_MEMBER = "unknown_member"  # a peer that is not of the cluster
    CERTIFICATE = "certificate"  # the certificate is of another node
    REVOKED = "revoked"  # the certificate is on the list of revoked ones
    AUTHENTICATION = "authentication"  # a wrong password, or none
    TIMEOUT = "timeout"  # too slow, or silent
    OVERFLOW = "overflow"  # the outbox is full
    REPLACED = "replaced"  # a newer link of the same node took over
    LOST = "lost"  # the stream broke; never sent, only told


class NetError(Exception):
    """Base of everything that net raises on purpose. Anything else that comes out is a bug of ours."""


class ProtocolError(NetError):
    """Base of the two protocol errors; never raised itself, because it would not tell whose fault it is."""

    def __init__(self, message: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("raise LocalProtocolError or RemoteProtocolError")
        super().__init__(message)


class LocalProtocolError(ProtocolError):
    """Raised when our own code asks a connection for a move its state does not have. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """Raised when the other end breaks the protocol. The connection is over: send ``answer``, then close.

    Attributes:
        code: the stable word that the answer tells.
        answer: bytes to send before closing; empty when there is nothing to say any more.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code: str = code
        self.message = message
        self.answer = b""


class FrameTooLargeError(RemoteProtocolError):
    """Raised when a frame announces more bytes than the limit. Nothing of it was stored.

    Attributes:
        length: bytes announced.
        limit: bytes allowed.
    """

    def __init__(self, length: int, limit: int, hint: str) -> None:
        super().__init__(Code.TOO_LARGE, f"a frame of {length} bytes is over the limit of {limit}{hint}")
        self.length, self.limit = length, limit


class UnknownKindError(RemoteProtocolError):
    """Raised when a frame is of a kind that this version does not have.

    Attributes:
        kind: the number found.
    """

    def __init__(self, kind: int) -> None:
        super().__init__(Code.UNKNOWN_KIND, f"frame kind {kind} is unknown here; is the other end newer?")
        self.kind = kind


class VersionMismatchError(RemoteProtocolError):
    """Raised when the two ends speak different versions of the protocol. Upgrade the older program.

    Attributes:
        local: the version this end speaks.
        remote: what the other end said it speaks, as text.
    """

    def __init__(self, local: int, remote: str) -> None:
        super().__init__(
            Code.VERSION, f"versions {local} and {remote} of the protocol cannot talk; upgrade the older program"
        )
        self.local, self.remote = local, remote


class WiringError(RemoteProtocolError):
    """Raised when both ends speak well but should not be connected: another cluster, or another node than was meant.

    Attributes:
        expected: the name that this end expected.
        found: the name that the other end gave.
    """

    def __init__(self, code: str, message: str, expected: str | None, found: str | None) -> None:
        super().__init__(code, message)
        self.expected, self.found = expected, found


class LinkClosedError(NetError):
    """Raised when a link is over and something more is asked of it. Unsent messages are lost.

    Attributes:
        code: the stable word.
        reason: why it is over, for people.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class DialError(NetError):
    """Raised when no link could be opened: the address refuses connections, the name is unknown, or no answer came in
    time.
    """


class TlsError(DialError):
    """Raised when the other end answers, but TLS with it cannot be had: a certificate is missing, unknown or of another
    name, or only one end speaks TLS.
    """


class RefusedError(NetError):
    """Raised when the other end answered our HELLO with a GOODBYE; and by an accepter's own rule, to refuse someone.

    Attributes:
        code: the stable word.
        message: what the refusing end says about it.
        info: what else it says, for a program.
    """

    def __init__(self, code: str, message: str, info: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.info = code, message, info or {}


class ListenError(NetError):
    """Raised when an address cannot be listened on. The text says what to do."""

"""All errors that net raises on purpose, named by the end that caused them.

A protocol error is *Local* if our own code sent an illegal event, and *Remote* if the other end did; a remote error has
the bytes to answer before closing. The other errors are reasons why a link cannot be opened, or ends.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """The reason why an end closes a link, as a stable word in a GOODBYE. Newer programs may send other words."""

    SHUTDOWN = "shutdown"  # an orderly stop, not an error
    MALFORMED = "malformed"  # bytes that cannot be decoded
    TOO_LARGE = "too_large"  # a frame over the limit
    UNKNOWN_KIND = "unknown_kind"  # a frame kind that this version does not have
    UNEXPECTED = "unexpected"  # a known frame at the wrong moment
    PROTOCOL = "protocol"  # a HELLO of another protocol than bedrockish's
    VERSION = "version"  # the two ends speak different versions
    CLUSTER = "cluster"  # the two ends belong to different clusters
    WRONG_NODE = "wrong_node"  # the dialler meant another node
    TRUNCATED = "truncated"  # the stream ended inside a frame
    REFUSED = "refused"  # the accepter refuses this caller
    UNKNOWN_MEMBER = "unknown_member"  # a peer that is not a member of the cluster
    CERTIFICATE = "certificate"  # the certificate is of another node
    REVOKED = "revoked"  # the certificate is on the list of revoked ones
    AUTHENTICATION = "authentication"  # a wrong password, or none
    TIMEOUT = "timeout"  # too slow, or silent
    OVERFLOW = "overflow"  # the outbox is full
    REPLACED = "replaced"  # a newer link of the same node took over
    LOST = "lost"  # the stream broke; only in our own errors, never sent


class NetError(Exception):
    """Base of all errors that net raises on purpose. Any other exception is a bug."""


class LocalProtocolError(NetError):
    """Raised when our own code sends an event that the state of the connection does not allow. Nothing was sent."""


class RemoteProtocolError(NetError):
    """Raised when the other end breaks the protocol. The connection is over: send ``answer``, then close.

    Attributes:
        code: the stable word in the answer.
        answer: bytes to send before closing; empty if no answer is allowed.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code: str = code
        self.message = message
        self.answer = b""


class LinkClosedError(NetError):
    """Raised by operations on a link that has ended. Unsent messages are lost.

    Attributes:
        code: the stable word of the reason.
        reason: the reason, in words.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class DialError(NetError):
    """Raised when no link could be opened: it was refused, the name is unknown, or no answer arrived in time."""


class TlsError(DialError):
    """Raised when the other end answers but the TLS handshake fails: a certificate is missing, unknown or of another
    name, or only one end speaks TLS.
    """


class RefusedError(NetError):
    """Raised when the other end answers our HELLO with a GOODBYE, and by an accepter's callback to refuse a caller.

    Attributes:
        code: the stable word of the reason.
        message: the reason of the refusing end, in words.
        info: further information of the refusing end, for programs.
    """

    def __init__(self, code: str, message: str, info: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.info = code, message, info or {}


class ListenError(NetError):
    """Raised when the node cannot listen on an address. The text says what to do."""

"""The limits of a client's links, and the meaning of a link's end for a caller; for each driver."""

from bedrockish.errors import AuthenticationError, BedrockishError, ProtocolMismatchError, UnavailableError
from bedrockish_net.errors import Code, LinkClosedError, RefusedError, RemoteProtocolError, TlsError
from bedrockish_net.limits import Limits

# Stricter than between nodes: an answer that is given up too early is asked for again elsewhere, at little cost.
LIMITS = Limits(ping_seconds=1.0, silence_seconds=4.0)
FOREIGN_CODES = ("version", "protocol", "cluster", "wrong_node")  # another node of the list may fit, waiting will not


def explain_end(error: Exception) -> BedrockishError:
    """Say what a link's end means to a caller."""
    if isinstance(error, RefusedError) and error.code in (Code.AUTHENTICATION, Code.CERTIFICATE, Code.REVOKED):
        return AuthenticationError(error.message.removeprefix("the other end refused: "))
    if isinstance(error, TlsError):
        return AuthenticationError(str(error))
    if isinstance(error, RefusedError | LinkClosedError | RemoteProtocolError) and error.code in FOREIGN_CODES:
        return ProtocolMismatchError(str(error))
    if isinstance(error, RemoteProtocolError):
        return ProtocolMismatchError(f"what answers is no node: {error}")
    return UnavailableError(str(error), **({"reason": error.code} if isinstance(error, LinkClosedError) else {}))

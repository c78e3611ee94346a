"""The limits of a client's links, and the error for a caller when a link ends; for both drivers."""

from bedrockish.errors import AuthenticationError, BedrockishError, ProtocolMismatchError, UnavailableError
from bedrockish_net.errors import Code, LinkClosedError, RefusedError, RemoteProtocolError, TlsError
from bedrockish_net.limits import LinkLimits

# These times are shorter than those between nodes: if a client gives up a link too early, its calls go to another node
# at little cost.
LIMITS = LinkLimits(ping_seconds=1.0, silence_seconds=4.0)
FOREIGN_CODES = ("version", "protocol", "cluster", "wrong_node")  # lasting refusals: only another address helps


def explain_end(error: Exception) -> BedrockishError:
    """Return the error for a caller when its link has ended with ``error``."""
    if isinstance(error, RefusedError) and error.code in (Code.AUTHENTICATION, Code.CERTIFICATE, Code.REVOKED):
        return AuthenticationError(error.message.removeprefix("the other end refused: "))
    if isinstance(error, TlsError):
        return AuthenticationError(str(error))
    if isinstance(error, RefusedError | LinkClosedError | RemoteProtocolError) and error.code in FOREIGN_CODES:
        return ProtocolMismatchError(str(error))
    if isinstance(error, RemoteProtocolError):
        return ProtocolMismatchError(f"the program at this address is not a node: {error}")
    return UnavailableError(str(error), **({"reason": error.code} if isinstance(error, LinkClosedError) else {}))

"""The events of a connection, in either direction: one frozen dataclass each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PROTOCOL = "bedrockish"
VERSION = 1
NAME_CHARACTERS_MAX = 64
PING_BYTES_MAX = 64

Role = Literal["peer", "client"]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first event of each end: its own name, and the name of the node that it expects at the other end."""

    node: str
    """Name of the node; a client may use any name, which identifies it in logs."""
    cluster: str | None
    """Name of the cluster; None, from a client, for any cluster."""
    role: Role = "peer"
    to: str | None = None
    """Name of the node that the dialler expects; None for any node."""
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further information for the other program, as plain CBOR data. It may hold a password, so
    it is never printed."""


@dataclass(frozen=True, slots=True)
class Data:
    """One message. This package does not interpret its content."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """A request for a sign of life. The receiver answers with ``response()``."""

    token: bytes = b""

    def response(self) -> "Pong":
        """Return the answer, with the same token."""
        return Pong(self.token)


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a Ping."""

    token: bytes = b""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last event of an end, with its reason. Only the end of the stream may follow."""

    code: str
    message: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further information about the reason, as plain CBOR data."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream ended between two frames."""


Event = Hello | Data | Ping | Pong | Goodbye | Closed
EVENTS: tuple[type[Event], ...] = (Hello, Data, Ping, Pong, Goodbye, Closed)

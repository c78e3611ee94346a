"""Every number a link is bounded by, in one place, so that tests and configurations can name them."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """How much, and for how long, one link may take.

    Attributes:
        frame_bytes_max: longest payload of one frame once both ends have said HELLO.
        hello_bytes_max: longest payload before that, and so the most that a stranger can make us keep.
        outbox_bytes_max: largest queue for a slow reader at the other end.
        inbox_bytes_max: largest queue for our own consumer; above it, we stop reading from the stream.
        hello_seconds: how long a handshake may take, connecting included.
        ping_seconds: after so much silence we ask whether the other end is alive.
        silence_seconds: the link ends after so much silence in which the other end accepted no bytes either.
        goodbye_seconds: how long closing may wait for the last bytes to leave.
    """

    frame_bytes_max: int = 64 * MIB
    hello_bytes_max: int = 64 * KIB
    outbox_bytes_max: int = 64 * MIB
    inbox_bytes_max: int = 16 * MIB
    hello_seconds: float = 5.0
    ping_seconds: float = 2.0
    silence_seconds: float = 8.0
    goodbye_seconds: float = 1.0

    def __post_init__(self) -> None:
        assert 0 < self.hello_bytes_max <= self.frame_bytes_max < 1 << 32
        assert 0 < self.ping_seconds < self.silence_seconds

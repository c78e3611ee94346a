"""All limits of a link in one place, so that tests and configurations can set them."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """The limits of one link in bytes and seconds."""

    frame_bytes_max: int = 64 * MIB  # the longest payload of a frame after both ends have sent HELLO
    # The longest payload before both ends have sent HELLO, and so the most memory that a stranger can occupy.
    hello_bytes_max: int = 64 * KIB
    outbox_bytes_max: int = 64 * MIB  # the most bytes that wait to be sent to a slow reader at the other end
    # The most bytes that wait for our own consumer; above this limit, the link stops reading from the stream.
    inbox_bytes_max: int = 16 * MIB
    hello_seconds: float = 5.0  # the longest time of a handshake, connecting included
    ping_seconds: float = 2.0  # the silence of the other end after which a Ping is sent
    silence_seconds: float = 8.0  # the silence after which the link ends, if the other end has accepted no bytes either
    goodbye_seconds: float = 1.0  # the longest time that closing waits for the last bytes to be sent

    def __post_init__(self) -> None:
        assert 0 < self.hello_bytes_max <= self.frame_bytes_max < 1 << 32
        assert 0 < self.ping_seconds < self.silence_seconds

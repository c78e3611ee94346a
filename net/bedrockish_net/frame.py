"""Frames, which separate the messages in a stream of bytes.

A frame is the length of its payload (4 bytes, big-endian), its kind (1 byte) and the payload. The length comes first so
that a reader can refuse a frame that is too long before the payload arrives.
"""

from enum import IntEnum
from struct import Struct

from bedrockish_net.errors import Code, RemoteProtocolError

HEADER = Struct(">IB")
LENGTH_BYTES = 4
SHORT_BYTES = 4 << 10  # up to this size, copying a payload twice is faster than a memoryview
KEPT_BYTES = 1 << 20  # if the buffer has more returned bytes than this, they are removed at once


class FrameKind(IntEnum):
    """The kind of a frame. Zero is not a kind, so that a run of zero bytes is malformed."""

    HELLO = 1
    DATA = 2
    PING = 3
    PONG = 4
    GOODBYE = 5


_DATA, _HEADER_BYTES = int(FrameKind.DATA), HEADER.size
_KINDS = {int(kind): kind for kind in FrameKind}


def encode_frame(kind: FrameKind, payload: bytes) -> bytes:
    """Return the bytes of one frame."""
    return HEADER.pack(len(payload), kind) + payload


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # the longest allowed payload, in bytes; may be changed between frames
        self._buffer = bytearray()
        self._at = 0  # the offset of the first byte that was not returned yet

    def __len__(self) -> int:
        """Return the number of buffered bytes that were not returned yet."""
        return len(self._buffer) - self._at

    @property
    def holds_any(self) -> bool:
        """Whether the buffer holds bytes that were not returned yet."""
        return len(self._buffer) > self._at

    def feed(self, data: bytes) -> None:
        """Store more bytes without parsing them."""
        if self._at:  # done once per read, not per frame: the unread bytes are moved once even after many small frames
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def take_data(self, data: bytes) -> list[bytes]:
        """Store more bytes, and return the payloads of all frames up to the first one that cannot be returned.

        That is a frame of another kind than DATA, or incomplete, or too long. That frame and all later bytes stay.
        """
        size = len(data)
        if not self._buffer and size >= _HEADER_BYTES:  # most reads return one whole frame, which need not be buffered
            length, kind = HEADER.unpack_from(data)
            if kind == _DATA and length == size - _HEADER_BYTES and length <= self.limit:
                return [data[_HEADER_BYTES:]]
        self.feed(data)
        found: list[bytes] = []
        while (payload := self.next_data()) is not None:
            found.append(payload)
        if self._at == len(self._buffer):
            self.clear()
        return found

    def clear(self) -> None:
        """Discard all buffered bytes."""
        self._buffer, self._at = bytearray(), 0

    def next_frame(self) -> tuple[FrameKind, bytes] | None:
        """Return the next whole frame, or None if more bytes are needed.

        Raises:
            RemoteProtocolError: the next frame announces more than ``limit`` bytes, in its first 4 bytes, or its kind
                is unknown. Its payload need not have arrived.
        """
        buffer, start = self._buffer, self._at
        held = len(buffer) - start
        if held < LENGTH_BYTES:
            return None
        length = int.from_bytes(buffer[start : start + LENGTH_BYTES], "big")
        if length > self.limit:
            hint = _foreigner(bytes(buffer[start : start + LENGTH_BYTES]))
            text = f"a frame of {length} bytes is over the limit of {self.limit}{hint}"
            raise RemoteProtocolError(Code.TOO_LARGE, text)
        if held == LENGTH_BYTES:
            return None
        kind = _KINDS.get(buffer[start + LENGTH_BYTES])
        if kind is None:
            text = f"frame kind {buffer[start + LENGTH_BYTES]} is unknown here; is the other end newer?"
            raise RemoteProtocolError(Code.UNKNOWN_KIND, text)
        end = start + HEADER.size + length
        if end > len(buffer):
            return None
        return kind, self._cut_payload(start + HEADER.size, end)

    def next_data(self) -> bytes | None:
        """Return the payload of the next frame if it is a whole DATA frame within the limit; else None, keeping it."""
        buffer, first = self._buffer, self._at + _HEADER_BYTES
        held = len(buffer)
        if held < first:
            return None
        length, kind = HEADER.unpack_from(buffer, self._at)
        end = first + length
        if kind != _DATA or length > self.limit or end > held:
            return None
        return self._cut_payload(first, end)

    def _cut_payload(self, start: int, end: int) -> bytes:
        buffer = self._buffer
        if end - start <= SHORT_BYTES:
            payload = bytes(buffer[start:end])
        else:
            with memoryview(buffer) as view:  # copies once; a slice of the buffer would copy twice
                payload = bytes(view[start:end])
        self._at = end
        if end > KEPT_BYTES:  # free a long frame now, because the other end may not send another one
            del buffer[:end]
            self._at = 0
        return payload

    def check_end(self) -> None:
        """Check that the stream does not end inside a frame.

        Raises:
            RemoteProtocolError: the stream ends inside a frame.
        """
        if len(self):
            raise RemoteProtocolError(Code.TRUNCATED, f"the stream ended inside a frame, {len(self)} bytes into it")


def _foreigner(start: bytes) -> str:
    """Return a hint if the first bytes are TLS or HTTP, a common mistake that is hard to see; else an empty text."""
    if start[:2] == b"\x16\x03":
        return "; these bytes are TLS: one end uses it and the other does not"
    if start in (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP", b"OPTI"):
        return "; these bytes are HTTP, which is not spoken on this port"
    return ""

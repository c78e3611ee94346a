"""A connection: the events that two ends may send to each other, and when, without I/O.

Two rules:
1. ``TRANSITIONS`` is the same table for both ends. A missing cell is a protocol error; no other list of illegal events
   exists.
2. ``_check_order`` has the two rules that a table cannot express: the accepter sends HELLO second, and only HELLO and
   GOODBYE are sent until both ends have sent HELLO.

``receive_data`` stores bytes. ``next_event`` parses one event and changes the remote end's state. ``send`` changes the
state of our end and returns bytes.
"""

from enum import Enum, auto

from bedrockish_net.codec import decode_event, encode_event
from bedrockish_net.errors import Code, LocalProtocolError, RemoteProtocolError
from bedrockish_net.events import Closed, Data, Event, Goodbye, Hello, Ping, Pong
from bedrockish_net.frame import HEADER, FrameKind, FrameReader
from bedrockish_net.limits import LinkLimits

_DATA = int(FrameKind.DATA)


class ConnectionState(Enum):
    """The state of one end, which decides the events that the end may send."""

    HELLO = auto()
    """The end has not sent HELLO."""
    OPEN = auto()
    """The end may send any event."""
    CLOSING = auto()
    """The end has sent GOODBYE, and sends no further events."""
    CLOSED = auto()
    """The end's half of the stream has ended."""


class Side(Enum):
    """The role of our end: the dialler, which sends HELLO first, or the accepter."""

    DIALLER = auto()
    ACCEPTER = auto()


TRANSITIONS: dict[ConnectionState, dict[type[Event], ConnectionState]] = {
    ConnectionState.HELLO: {
        Hello: ConnectionState.OPEN,
        Goodbye: ConnectionState.CLOSING,
        Closed: ConnectionState.CLOSED,
    },
    ConnectionState.OPEN: {
        Data: ConnectionState.OPEN,
        Ping: ConnectionState.OPEN,
        Pong: ConnectionState.OPEN,
        Goodbye: ConnectionState.CLOSING,
        Closed: ConnectionState.CLOSED,
    },
    ConnectionState.CLOSING: {Closed: ConnectionState.CLOSED},
    ConnectionState.CLOSED: {},
}


class Connection:
    """One end's view of one connection.

    Args:
        side: whether we dialled or accepted.
        local: our HELLO. A dialler checks the answer against its ``to``. An accepter may send another HELLO with more
            fields, whose node and cluster are checked against this one.
    """

    def __init__(self, side: Side, local: Hello, limits: LinkLimits | None = None) -> None:
        self.side = side
        self.local = local
        self.local_state = ConnectionState.HELLO  # the state of our end
        self.remote_state = ConnectionState.HELLO  # the state of the other end
        self.is_open = False  # whether both ends may send messages
        self.remote: Hello | None = None  # the other end's HELLO; None before it arrived
        self._limits = limits or LinkLimits()
        self._frames = FrameReader(self._limits.hello_bytes_max)
        self._ended = False
        self._failure: RemoteProtocolError | None = None

    @property
    def half_bytes(self) -> int:
        """The number of received bytes of an incomplete frame."""
        return len(self._frames)

    def forget(self) -> None:
        """Discard the bytes of an incomplete frame, the rest of which will not be read."""
        self._frames.clear()

    def receive_data(self, data: bytes) -> None:
        """Store bytes from the other end; ``b""`` means that its half of the stream has ended.

        Raises:
            LocalProtocolError: the stream had ended before.
        """
        if self._ended:
            raise LocalProtocolError("bytes cannot come after the end of the stream")
        if data:
            self._frames.feed(data)
        else:
            self._ended = True

    def receive_messages(self, data: bytes) -> list[bytes]:
        """Store bytes from the other end, and return the messages with which the stored bytes begin.

        Messages are the most frequent events, and change no state, so they skip the table of states. If ``has_more``,
        the caller gets the events after these messages from ``next_event``. The errors are those of ``receive_data``.
        """
        if self.is_open and data and not self._ended:
            return self._frames.take_data(data)
        self.receive_data(data)
        return []

    @property
    def has_more(self) -> bool:
        """Whether ``next_event`` has input: bytes, the end of the stream, or an earlier protocol error."""
        return self._frames.holds_any or self._ended or self._failure is not None

    def next_event(self) -> Event | None:
        """Return the next event of the other end, or None if more bytes are needed.

        Raises:
            RemoteProtocolError: the other end broke the protocol. The caller sends the error's ``answer`` and closes;
                later calls raise the error without an answer.
        """
        if self._failure is not None:
            raise RemoteProtocolError(self._failure.code, self._failure.message)
        if self.is_open:  # DATA is the most frequent event and changes no state, so it skips the tables
            payload = self._frames.next_data()
            if payload is not None:
                return Data(payload)
            if not (self._ended or self._frames.holds_any):
                return None
        try:
            event = self._parse()
            if event is not None:
                self._follow_remote(event)
        except RemoteProtocolError as error:
            self._failure = error
            error.answer = self._answer(error)
            raise
        return event

    def send(self, event: Event) -> bytes:
        """Change the state of our end by an event, and return the bytes to send.

        Raises:
            LocalProtocolError: the state of the connection does not allow the event, or its frame exceeds a limit. The
                state is unchanged.
        """
        state = self._move(self.local_state, event)
        self._check_order(event)
        data = encode_event(event, self._limits)
        self.local_state = state
        self._update_is_open()
        return data

    def send_data(self, payload: bytes) -> bytes:
        """Return the bytes of one message, as ``send(Data(payload))`` does, without the tables on an open connection.

        The errors are those of ``send``.
        """
        if self.is_open and len(payload) <= self._limits.frame_bytes_max:
            return HEADER.pack(len(payload), _DATA) + payload
        return self.send(Data(payload))

    def send_data_head(self, size: int) -> bytes:
        """Return the frame's head for a message of ``size`` bytes. The errors are those of ``send``."""
        if not self.is_open or size > self._limits.frame_bytes_max:
            self.send(Data(bytes(size)))
        return HEADER.pack(size, _DATA)

    def _parse(self) -> Event | None:
        frame = self._frames.next_frame()
        if frame is not None:
            return decode_event(*frame)
        if not self._ended or self.remote_state is ConnectionState.CLOSED:
            return None
        self._frames.check_end()
        return Closed()

    def _follow_remote(self, event: Event) -> None:
        """Change the remote end's state by one event."""
        try:
            state = self._move(self.remote_state, event)
        except LocalProtocolError as error:
            raise RemoteProtocolError(Code.UNEXPECTED, str(error)) from error
        talks = isinstance(event, (Data, Ping, Pong))
        if talks and self.local_state is ConnectionState.HELLO:
            raise RemoteProtocolError(Code.UNEXPECTED, f"{_name(event)} came before our HELLO was answered or sent")
        if isinstance(event, Hello):
            if self.side is Side.DIALLER and self.local_state is ConnectionState.HELLO:
                raise RemoteProtocolError(Code.UNEXPECTED, "the accepter said HELLO before the dialler did")
            self._check_wiring(event)
            self.remote = event
        self.remote_state = state
        self._update_is_open()

    def _move(self, state: ConnectionState, event: Event) -> ConnectionState:
        try:
            return TRANSITIONS[state][type(event)]
        except KeyError:
            raise LocalProtocolError(f"{_name(event)} is not possible in state {state.name}") from None

    def _check_order(self, event: Event) -> None:
        if isinstance(event, Hello):
            if self.side is Side.ACCEPTER and self.remote_state is not ConnectionState.OPEN:
                raise LocalProtocolError("an accepter says HELLO only after the dialler did")
        elif isinstance(event, (Data, Ping, Pong)) and not self.is_open:
            raise LocalProtocolError(f"{_name(event)} is not possible: the other end is in {self.remote_state.name}")

    def _check_wiring(self, remote: Hello) -> None:
        """Check that the two ends belong together; a mistake in a configuration must be a clear error at both ends."""
        local = self.local
        any_cluster = (local.role == "client" and local.cluster is None) or (
            remote.role == "client" and remote.cluster is None
        )
        if remote.cluster != local.cluster and not any_cluster:
            raise RemoteProtocolError(
                Code.CLUSTER,
                f"{local.node!r} is of cluster {local.cluster!r}, {remote.node!r} of cluster {remote.cluster!r}; "
                "check the addresses",
            )
        if self.side is Side.ACCEPTER and remote.to not in (None, local.node):
            raise RemoteProtocolError(
                Code.WRONG_NODE,
                f"{remote.node!r} wanted {remote.to!r}, but this is {local.node!r}; check the address of {remote.to!r}",
            )
        if self.side is Side.DIALLER and local.to not in (None, remote.node):
            raise RemoteProtocolError(
                Code.WRONG_NODE,
                f"{local.node!r} wanted {local.to!r}, but {remote.node!r} answered; check the address of {local.to!r}",
            )

    def _update_is_open(self) -> None:
        """Update ``is_open`` after a change of either state."""
        self.is_open = self.local_state is ConnectionState.OPEN and self.remote_state is ConnectionState.OPEN
        if self.is_open:
            self._frames.limit = self._limits.frame_bytes_max

    def _answer(self, error: RemoteProtocolError) -> bytes:
        """Close our end because the other end broke the protocol, and return the bytes of a GOODBYE, if allowed."""
        self.remote_state = ConnectionState.CLOSED
        self.is_open = False
        if Goodbye not in TRANSITIONS[self.local_state]:
            return b""
        self.local_state = ConnectionState.CLOSING
        return encode_event(Goodbye(error.code, error.message), self._limits)


def _name(event: Event) -> str:
    return type(event).__name__.upper()

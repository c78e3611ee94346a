"""Two connections, whose bytes the test passes on."""

from dataclasses import replace

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedrockish_net.codec import encode_event
from bedrockish_net.connection import TRANSITIONS, Connection, ConnectionState, Side
from bedrockish_net.errors import Code, LocalProtocolError, RemoteProtocolError
from bedrockish_net.events import EVENTS, Closed, Data, Event, Goodbye, Hello, Ping, Pong
from bedrockish_net.frame import HEADER, FrameKind, FrameReader, encode_frame
from bedrockish_net.limits import LinkLimits

A = Hello("A", "shop", to="B", info={"port": 1})
B = Hello("B", "shop", to="A")
SMALL = LinkLimits(frame_bytes_max=1000, hello_bytes_max=300)
EXAMPLES: dict[type[Event], Event] = {
    Hello: A,
    Data: Data(b"x"),
    Ping: Ping(b"1"),
    Pong: Pong(b"1"),
    Goodbye: Goodbye("shutdown", "done"),
    Closed: Closed(),
}


class Pair:
    """A dialler, an accepter, and a wire that delivers at once."""

    def __init__(self, dialler: Hello = A, accepter: Hello = B, limits: LinkLimits | None = None) -> None:
        self.a = Connection(Side.DIALLER, dialler, limits)
        self.b = Connection(Side.ACCEPTER, accepter, limits)

    def send(self, sender: Connection, event: Event) -> list[Event]:
        """Send an event, and return the other end's events."""
        data = sender.send(event)
        receiver = self.b if sender is self.a else self.a
        receiver.receive_data(data)
        return drain(receiver)

    def open(self) -> "Pair":
        assert self.send(self.a, self.a.local) == [self.a.local]
        assert self.send(self.b, self.b.local) == [self.b.local]
        return self


def drain(connection: Connection) -> list[Event]:
    return list(iter(connection.next_event, None))


def take(connection: Connection, data: bytes, *, as_messages: bool) -> list[Event]:
    """Give a connection bytes; return their events, read in one of the two ways."""
    if not as_messages:
        connection.receive_data(data)
        return drain(connection)
    found: list[Event] = [*map(Data, connection.receive_messages(data))]
    return found + drain(connection) if connection.has_more else found


def in_state(state: ConnectionState, side: Side = Side.DIALLER) -> Connection:
    """Return a connection whose two ends are both in this state, as far as the protocol lets them."""
    pair = Pair()
    if state is ConnectionState.HELLO:
        return pair.a if side is Side.DIALLER else pair.b
    pair.open()
    connection, other = (pair.a, pair.b) if side is Side.DIALLER else (pair.b, pair.a)
    if state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
        pair.send(other, Goodbye("shutdown"))
        connection.send(Goodbye("shutdown"))
    if state is ConnectionState.CLOSED:
        connection.receive_data(b"")
        assert drain(connection) == [Closed()]
        connection.send(Closed())
    return connection


def test_two_connections_exchange_hellos_messages_a_ping_and_a_goodbye() -> None:
    """HELLO both ways, messages, a ping, a goodbye, the end."""
    pair = Pair().open()
    assert pair.a.remote == B
    assert pair.b.remote == A
    assert pair.send(pair.a, Data(b"one")) == [Data(b"one")]
    assert pair.send(pair.b, Ping(b"?")) == [Ping(b"?")]
    assert pair.send(pair.a, Ping(b"?").response()) == [Pong(b"?")]
    assert pair.send(pair.a, Goodbye("shutdown", "night")) == [Goodbye("shutdown", "night")]
    pair.b.receive_data(b"")
    assert drain(pair.b) == [Closed()]
    assert drain(pair.b) == []
    assert (pair.a.local_state, pair.b.remote_state) == (ConnectionState.CLOSING, ConnectionState.CLOSED)


@pytest.mark.parametrize("state", ConnectionState)
def test_table_of_states_covers_every_local_event(state: ConnectionState) -> None:
    """Moves in the table lead to their state; all others raise LocalProtocolError and change nothing."""
    for event_type in EVENTS:
        connection = in_state(state)
        assert connection.local_state is state
        event = EXAMPLES[event_type]
        if event_type in TRANSITIONS[state]:
            connection.send(event)
            assert connection.local_state is TRANSITIONS[state][event_type]
        else:
            with pytest.raises(LocalProtocolError):
                connection.send(event)
            assert connection.local_state is state


@pytest.mark.parametrize("state", ConnectionState)
def test_table_of_states_covers_every_remote_event(state: ConnectionState) -> None:
    """The table of the local events holds for the other end, whose illegal moves are RemoteProtocolErrors with an
    answer.
    """
    for event_type in set(EVENTS) - {Closed}:
        connection = in_state(state, Side.ACCEPTER)
        if state is ConnectionState.CLOSED:
            with pytest.raises(LocalProtocolError, match="after the end"):
                connection.receive_data(b"x")
            continue
        event = EXAMPLES[event_type]
        connection.receive_data(_bytes_of(event))
        if event_type in TRANSITIONS[state]:
            assert drain(connection) == [event]
            assert connection.remote_state is TRANSITIONS[state][event_type]
        else:
            with pytest.raises(RemoteProtocolError, match="not possible in state") as caught:
                drain(connection)
            assert caught.value.code == Code.UNEXPECTED
            assert bool(caught.value.answer) == (state is not ConnectionState.CLOSING)
            with pytest.raises(RemoteProtocolError) as again:
                connection.next_event()
            assert again.value.answer == b""


@pytest.mark.parametrize("state", [ConnectionState.HELLO, ConnectionState.OPEN, ConnectionState.CLOSING])
def test_stream_end_is_handled_in_every_state(state: ConnectionState) -> None:
    connection = in_state(state)
    connection.receive_data(b"")
    assert drain(connection) == [Closed()]
    assert connection.remote_state is ConnectionState.CLOSED


@pytest.mark.parametrize("length", range(1, 8))
def test_stream_end_inside_a_frame_is_a_remote_error(length: int) -> None:
    pair = Pair().open()
    pair.a.receive_data(encode_frame(FrameKind.DATA, b"abc")[:length])
    pair.a.receive_data(b"")
    with pytest.raises(RemoteProtocolError, match=f"inside a frame, {length} bytes into it") as caught:
        drain(pair.a)
    assert caught.value.code == Code.TRUNCATED


def test_accepter_speaks_second_and_data_waits_for_both_hellos() -> None:
    """The accepter sends HELLO second, and until both links are open only HELLO and GOODBYE are sent."""
    pair = Pair()
    with pytest.raises(LocalProtocolError, match="only after the dialler"):
        pair.b.send(B)
    pair.a.send(A)
    with pytest.raises(LocalProtocolError, match="the other end is in HELLO"):
        pair.a.send(Data(b"early"))
    pair.b.receive_data(_bytes_of(A) + _bytes_of(Data(b"early")))
    with pytest.raises(RemoteProtocolError, match="before our HELLO"):
        drain(pair.b)
    eager = Connection(Side.DIALLER, A)
    eager.receive_data(_bytes_of(B))
    with pytest.raises(RemoteProtocolError, match="before the dialler did"):
        drain(eager)


@settings(deadline=None)
@given(st.data(), st.booleans())
def test_every_way_of_cutting_the_wire_gives_the_same_events(data: st.DataObject, as_messages: bool) -> None:
    """However the bytes are cut into reads, the same events come in the same order."""
    events: list[Event] = data.draw(
        st.lists(st.one_of(st.builds(Data, st.binary(max_size=40)), st.builds(Ping, st.binary(max_size=8))), max_size=8)
    )
    events.append(Goodbye("shutdown", "end"))
    pair = Pair().open()
    wire = b"".join(pair.a.send(event) for event in events)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=12)))
    seen: list[Event] = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        if start != end:
            seen += take(pair.b, wire[start:end], as_messages=as_messages)
    assert seen + take(pair.b, b"", as_messages=as_messages) == [*events, Closed()]


def test_frame_that_arrives_byte_by_byte_is_read() -> None:
    pair = Pair()
    seen = []
    for byte in _bytes_of(A):
        pair.b.receive_data(bytes([byte]))
        seen += drain(pair.b)
    assert seen == [A]


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=400), st.booleans(), st.booleans())
def test_random_bytes_raise_nothing_but_remote_errors(noise: bytes, is_open: bool, dialling: bool) -> None:
    pair = Pair(limits=SMALL)
    if is_open:
        pair.open()
    _feed_and_check(pair.a if dialling else pair.b, noise)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=400), st.binary(max_size=40), st.booleans())
def test_random_bytes_raise_the_same_error_by_receive_messages(noise: bytes, more: bytes, is_open: bool) -> None:
    told = []
    for as_messages in (False, True):
        pair, seen = Pair(limits=SMALL), list[Event]()
        if is_open:
            pair.open()
        code = ""
        for data in filter(None, (noise, more)):
            try:
                seen += take(pair.b, data, as_messages=as_messages)
            except RemoteProtocolError as error:
                code = code or error.code
        told.append((code, seen if not code else None, pair.b.is_open))
    assert told[0] == told[1]


short_text = st.text("ab\n\x1b\u00e9\U0001f600", max_size=5)
cbor_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | short_text | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short_text, inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["protocol", "version", "role", "node", "cluster", "to", "info", "code", "message", "new"])


@settings(deadline=None)
@given(st.dictionaries(keys, cbor_values), st.sampled_from(FrameKind), st.booleans())
def test_random_maps_raise_nothing_but_remote_errors(
    changed: dict[str, object], kind: FrameKind, is_open: bool
) -> None:
    pair = Pair()
    if is_open:
        pair.open()
    good = {"protocol": "bedrockish", "version": 1, "role": "peer", "node": "A", "cluster": "shop"}
    _feed_and_check(pair.b, encode_frame(kind, cbor2.dumps({**good, **changed})))


def _feed_and_check(connection: Connection, noise: bytes) -> None:
    connection.receive_data(noise)
    connection.receive_data(b"")
    answer, code = b"", ""
    try:
        drain(connection)
    except RemoteProtocolError as error:
        answer, code = error.answer, error.code
    reader = FrameReader(1 << 20)
    reader.feed(answer)
    frame = reader.next_frame()
    assert frame is None or (frame[0] is FrameKind.GOODBYE and cbor2.loads(frame[1])["code"] == code)


def test_huge_version_number_is_refused() -> None:
    """Python refuses to print very long numbers, so an error text must not try."""
    for key in ("protocol", "version", "role", "node"):
        packed = {"protocol": "bedrockish", "version": 1, "role": "peer", "node": "A", key: 10**5000}
        connection = Connection(Side.ACCEPTER, B)
        connection.receive_data(encode_frame(FrameKind.HELLO, cbor2.dumps(packed)))
        with pytest.raises(RemoteProtocolError):
            connection.next_event()


@pytest.mark.parametrize(
    ("dialler", "accepter", "code", "text"),
    [
        (replace(A, cluster="mall"), B, Code.CLUSTER, "'B' is of cluster 'shop', 'A' of cluster 'mall'"),
        (replace(A, cluster=None), B, Code.CLUSTER, "of cluster None"),
        (replace(A, to="C"), B, Code.WRONG_NODE, "'A' wanted 'C', but this is 'B'"),
    ],
)
def test_wrong_addresses_are_reported_at_both_ends(dialler: Hello, accepter: Hello, code: Code, text: str) -> None:
    pair = Pair(dialler, accepter)
    pair.b.receive_data(pair.a.send(dialler))
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        pair.b.next_event()
    pair.a.receive_data(caught.value.answer)
    assert drain(pair.a) == [Goodbye(code, str(caught.value))]
    assert (pair.b.local_state, pair.b.remote_state) == (ConnectionState.CLOSING, ConnectionState.CLOSED)


def test_dialler_rejects_an_unexpected_node() -> None:
    pair = Pair(replace(A, to=None), B)
    pair.a.local = A
    pair.send(pair.a, replace(A, to=None))
    pair.a.receive_data(pair.b.send(replace(B, node="Z")))
    with pytest.raises(RemoteProtocolError, match="'A' wanted 'B', but 'Z' answered") as caught:
        pair.a.next_event()
    assert caught.value.code == Code.WRONG_NODE


def test_client_hello_without_a_cluster_name_is_accepted() -> None:
    assert Pair(Hello("shell", None, "client"), B).open().a.remote == B


def test_another_version_is_a_typed_error_that_names_both() -> None:
    pair = Pair()
    pair.b.receive_data(
        encode_frame(FrameKind.HELLO, cbor2.dumps({"protocol": "bedrockish", "version": 7, "node": []}))
    )
    with pytest.raises(RemoteProtocolError, match="versions 1 and 7") as caught:
        pair.b.next_event()
    assert caught.value.code == Code.VERSION


def test_unknown_keys_in_a_hello_are_ignored() -> None:
    pair = Pair()
    packed = {"protocol": "bedrockish", "version": 1, "role": "peer", "node": "A", "cluster": "shop", "color": "red"}
    pair.b.receive_data(encode_frame(FrameKind.HELLO, cbor2.dumps(packed)))
    assert drain(pair.b) == [Hello("A", "shop")]


def test_control_characters_in_a_goodbye_are_replaced() -> None:
    pair = Pair().open()
    assert pair.send(pair.a, Goodbye("x", "\x1b[2Jbye\n")) == [Goodbye("x", "\ufffd[2Jbye\ufffd")]


def test_frame_of_an_unknown_kind_is_refused() -> None:
    pair = Pair().open()
    pair.b.receive_data(HEADER.pack(0, 9))
    with pytest.raises(RemoteProtocolError, match="frame kind 9 is unknown") as caught:
        pair.b.next_event()
    assert caught.value.code == Code.UNKNOWN_KIND


def test_limits_hold_from_the_first_four_bytes() -> None:
    """Before HELLO the small limit holds, after it the large one; nothing is stored for a frame that is too long."""
    pair = Pair(limits=SMALL)
    pair.b.receive_data((301).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="301 bytes is over the limit of 300"):
        pair.b.next_event()
    pair = Pair(limits=SMALL).open()
    assert pair.send(pair.a, Data(bytes(1000))) == [Data(bytes(1000))]
    with pytest.raises(LocalProtocolError, match="1001 bytes is over the limit of 1000"):
        pair.a.send(Data(bytes(1001)))
    pair.b.receive_data((1001).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="1001 bytes is over the limit of 1000") as caught:
        pair.b.next_event()
    assert caught.value.code == Code.TOO_LARGE
    with pytest.raises(LocalProtocolError, match="HELLO of"):
        Connection(Side.DIALLER, A, SMALL).send(replace(A, info={"x": "y" * 300}))


@pytest.mark.parametrize(("start", "hint"), [(b"\x16\x03\x01\x00", "TLS"), (b"GET ", "HTTP")])
def test_frame_reader_names_the_other_protocol_of_foreign_bytes(start: bytes, hint: str) -> None:
    reader = FrameReader(100)
    reader.feed(start)
    with pytest.raises(RemoteProtocolError, match=hint):
        reader.next_frame()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300)), st.integers(1, 50))
def test_frame_reader_returns_the_sent_payloads(payloads: list[bytes], step: int) -> None:
    wire = b"".join(encode_frame(FrameKind.DATA, payload) for payload in payloads)
    reader = FrameReader(300)
    got: list[bytes] = []
    for at in range(0, len(wire), step):
        reader.feed(wire[at : at + step])
        got += (payload for _, payload in iter(reader.next_frame, None))
    assert got == payloads
    reader.check_end()


def test_frame_reader_drops_returned_bytes() -> None:
    reader = FrameReader(1000)
    for _ in range(100):
        reader.feed(encode_frame(FrameKind.DATA, bytes(1000)))
        assert reader.next_frame() == (FrameKind.DATA, bytes(1000))
    assert len(reader._buffer) < 3000


def test_frame_reader_keeps_nothing_of_messages_that_were_taken() -> None:
    reader, wire = FrameReader(1000), encode_frame(FrameKind.DATA, bytes(1000))
    assert reader.take_data(wire) == [bytes(1000)]
    assert reader.take_data(wire + wire[:500]) == [bytes(1000)]
    assert reader.take_data(wire[500:]) == [bytes(1000)]
    assert not reader._buffer


def _bytes_of(event: Event) -> bytes:
    """Encode an event like an end that ignores its state."""
    return encode_event(event, LinkLimits())

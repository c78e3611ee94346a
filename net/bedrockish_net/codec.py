"""Encodes events as frames and decodes them. No other file knows the contents of a frame.

Unknown keys of a map are ignored, so that a newer program can send further keys to an older one.
"""

from typing import Any, assert_never

import cbor2

from bedrockish_net import events
from bedrockish_net.errors import Code, LocalProtocolError, RemoteProtocolError
from bedrockish_net.frame import FrameKind, encode_frame
from bedrockish_net.limits import LinkLimits

MESSAGE_CHARACTERS_MAX = 1000


def encode_event(event: events.Event, limits: LinkLimits) -> bytes:
    """Return the frame of an event; empty bytes for ``Closed``, which is the end of the stream.

    Raises:
        LocalProtocolError: the frame exceeds a limit, so that the other end would refuse it.
    """
    match event:
        case events.Data(payload):
            return _checked(FrameKind.DATA, payload, limits.frame_bytes_max)
        case events.Ping(token):
            return _checked(FrameKind.PING, token, events.PING_BYTES_MAX)
        case events.Pong(token):
            return _checked(FrameKind.PONG, token, events.PING_BYTES_MAX)
        case events.Hello():
            return _checked(FrameKind.HELLO, _pack_hello(event), limits.hello_bytes_max)
        case events.Goodbye(code, message, info):
            packed: dict[str, Any] = {"code": str(code), "message": message[:MESSAGE_CHARACTERS_MAX]}
            packed |= {"info": dict(info)} if info else {}
            return _checked(FrameKind.GOODBYE, cbor2.dumps(packed), limits.hello_bytes_max)
        case events.Closed():
            return b""
        case _:
            assert_never(event)


def decode_event(kind: FrameKind, payload: bytes) -> events.Event:
    """Return the event of a frame.

    Raises:
        RemoteProtocolError: the payload does not fit the frame's kind, or is a HELLO of another version.
    """
    match kind:
        case FrameKind.DATA:
            return events.Data(payload)
        case FrameKind.PING | FrameKind.PONG:
            if len(payload) > events.PING_BYTES_MAX:
                raise RemoteProtocolError(
                    Code.MALFORMED, f"{kind.name} has {len(payload)} bytes; the limit is {events.PING_BYTES_MAX}"
                )
            return events.Ping(payload) if kind is FrameKind.PING else events.Pong(payload)
        case FrameKind.HELLO:
            return _unpack_hello(_unpack_map(kind, payload))
        case FrameKind.GOODBYE:
            packed = _unpack_map(kind, payload)
            message = _text(packed, "message", MESSAGE_CHARACTERS_MAX, default="")
            return events.Goodbye(_text(packed, "code"), message, _info(kind, packed))
        case _:
            assert_never(kind)


def _checked(kind: FrameKind, payload: bytes, limit: int) -> bytes:
    if len(payload) > limit:
        raise LocalProtocolError(f"{kind.name} of {len(payload)} bytes is over the limit of {limit}")
    return encode_frame(kind, payload)


def _pack_hello(hello: events.Hello) -> bytes:
    return cbor2.dumps(
        {
            "protocol": events.PROTOCOL,
            "version": events.VERSION,
            "role": hello.role,
            "node": hello.node,
            "cluster": hello.cluster,
            "to": hello.to,
            "info": dict(hello.info),
        }
    )


def _unpack_hello(packed: dict[Any, Any]) -> events.Hello:
    # Protocol and version are checked first, because in another version any other key may have another meaning.
    if packed.get("protocol") != events.PROTOCOL:
        raise RemoteProtocolError(
            Code.PROTOCOL, f"the other end speaks {_show(packed.get('protocol'))}, not {events.PROTOCOL}"
        )
    version = packed.get("version")
    if type(version) is not int or version != events.VERSION:
        text = f"versions {events.VERSION} and {_show(version)} of the protocol cannot talk; upgrade the older program"
        raise RemoteProtocolError(Code.VERSION, text)
    role = packed.get("role")
    if role not in ("peer", "client"):
        raise RemoteProtocolError(Code.MALFORMED, f"HELLO has role {_show(role)}; peer and client are known")
    node = _text(packed, "node")
    if role == "peer" and not node:
        raise RemoteProtocolError(Code.MALFORMED, "HELLO of a peer has no name in it")
    return events.Hello(
        node, _optional(packed, "cluster"), role, _optional(packed, "to"), _info(FrameKind.HELLO, packed)
    )


def _info(kind: FrameKind, packed: dict[Any, Any]) -> dict[str, Any]:
    info = packed.get("info", {})
    if not isinstance(info, dict):
        raise RemoteProtocolError(Code.MALFORMED, f"{kind.name} has an info that is not a map")
    return info


def _unpack_map(kind: FrameKind, payload: bytes) -> dict[Any, Any]:
    try:
        packed = cbor2.loads(payload)
    except Exception as error:
        # CBOR's tags build dates, patterns and fractions, whose constructors raise various errors for bad input.
        raise RemoteProtocolError(Code.MALFORMED, f"{kind.name} is not CBOR: {error!s:.200}") from error
    if not isinstance(packed, dict):
        raise RemoteProtocolError(Code.MALFORMED, f"{kind.name} is not a CBOR map")
    return packed


def _show(value: object) -> str:
    """Return any value as a short text. A number of a thousand digits, for example, cannot be printed."""
    if isinstance(value, str) or (isinstance(value, int) and abs(value) < 1 << 64):
        return ascii(value)[:80]
    return f"a {type(value).__name__}"


def _optional(packed: dict[Any, Any], key: str) -> str | None:
    return None if packed.get(key) is None else _text(packed, key)


def _text(packed: dict[Any, Any], key: str, limit: int = events.NAME_CHARACTERS_MAX, default: object = None) -> str:
    """Return a text of a map, checked for length, with unprintable characters replaced, because it may be logged."""
    value = packed.get(key, default)
    if not isinstance(value, str) or len(value) > limit:
        raise RemoteProtocolError(Code.MALFORMED, f"{key} should be a text of up to {limit} characters")
    return "".join(each if each.isprintable() else "\ufffd" for each in value)

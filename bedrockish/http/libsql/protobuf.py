"""Hrana's Protobuf encoding, to and from the shapes of its JSON encoding. Pure.

Every structure is handled in the JSON form alone, so that there is one reader of each; this module is only about bytes.
Its input comes from strangers: every length and type is checked, and unknown fields are skipped as the
specification wants. The field numbers are those of the appendix of HRANA_3_SPEC.md.
"""

import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bedrockish.errors import UsageError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
DEPTH_MAX = 32  # of conditions inside conditions
_DOUBLE = struct.Struct("<d")

Fields = dict[int, list[int | bytes]]
Reader = Callable[[Any], Any]


class MalformedProtobufError(UsageError):
    """Raised when a body is not the Protobuf message that it should be. Nothing happened."""

    code = "protobuf"


# -- the wire format -----------------------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    raise MalformedProtobufError(f"a number at byte {at} does not end")


def _fields(data: bytes) -> Fields:
    """Split a message into its fields: for each number the values that were sent, in order."""
    found: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind in (FIXED64, FIXED32, BYTES):
            length, at = (8, at) if kind == FIXED64 else (4, at) if kind == FIXED32 else _varint(data, at)
            if length > len(data) - at:
                raise MalformedProtobufError(f"field {number} at byte {at} is longer than the message")
            value = data[at : at + length]
            at += length
        else:
            raise MalformedProtobufError(f"field {number} at byte {at} is of the unknown type {kind}")
        found.setdefault(number, []).append(value)
    return found


def _tag(number: int, kind: int) -> bytes:
    return _number(number << 3 | kind)


def _number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return _number(len(message)) + message


def _put(number: int, message: bytes) -> bytes:
    return _tag(number, BYTES) + delimited(message)


def _put_text(number: int, text: str | None) -> bytes:
    return b"" if text is None else _put(number, text.encode())


def _put_number(number: int, value: int) -> bytes:
    return _tag(number, VARINT) + _number(value)


def _zigzag(value: int) -> int:
    return value << 1 ^ value >> 63


# -- reading -------------------------------------------------------------------------------------------------------


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise MalformedProtobufError("a field should be a message, a text or bytes, and is a number")
    return value


def _text(value: object) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise MalformedProtobufError(f"a text is not UTF-8: {error.reason} at byte {error.start}") from error


def _unsigned(value: object) -> int:
    if not isinstance(value, int):
        raise MalformedProtobufError("a field should be a number, and is bytes")
    return value


def _int32(value: object) -> int:
    low = _unsigned(value) & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def _one(fields: Fields, number: int, read: Reader, default: Any = None) -> Any:
    return read(fields[number][-1]) if number in fields else default


def _many(fields: Fields, number: int, read: Reader) -> list[Any]:
    return [read(value) for value in fields.get(number, ())]


def _either(fields: Fields, table: Mapping[int, tuple[str, Reader]]) -> dict[str, Any]:
    """Read a message of which one part is sent: that part, with its name as ``type``."""
    for number, (name, read) in table.items():
        if number in fields:
            return {"type": name, **read(fields[number][-1])}
    raise MalformedProtobufError(f"none of {', '.join(name for name, _ in table.values())} is there")


def _value(data: object) -> dict[str, Any]:
    fields = _fields(_bytes(data))
    if 2 in fields:
        raw = _unsigned(fields[2][-1])
        return {"type": "integer", "value": str(raw >> 1 ^ -(raw & 1))}
    if 3 in fields:
        raw_double = _bytes(fields[3][-1])
        if len(raw_double) != _DOUBLE.size:
            raise MalformedProtobufError("a float should have 8 bytes")
        return {"type": "float", "value": _DOUBLE.unpack(raw_double)[0]}
    if 4 in fields:
        return {"type": "text", "value": _text(fields[4][-1])}
    if 5 in fields:
        return {"type": "blob", "base64": base64.b64encode(_bytes(fields[5][-1])).decode()}
    if 1 in fields:
        return {"type": "null"}
    raise MalformedProtobufError("a value has no type")


def _named(data: object) -> dict[str, Any]:
    fields = _fields(_bytes(data))
    return {"name": _one(fields, 1, _text, ""), "value": _one(fields, 2, _value, {"type": "null"})}


def _statement(data: object) -> dict[str, Any]:
    fields = _fields(_bytes(data))
    return {
        "sql": _one(fields, 1, _text),
        "sql_id": _one(fields, 2, _int32),
        "args": _many(fields, 3, _value),
        "named_args": _many(fields, 4, _named),
        "want_rows": bool(_one(fields, 5, _unsigned, 1)),
    }


def _condition(data: object, depth: int = 0) -> dict[str, Any]:
    if depth > DEPTH_MAX:
        raise MalformedProtobufError(f"a condition has more than {DEPTH_MAX} others inside each other")
    fields = _fields(_bytes(data))

    def inner(part: object) -> dict[str, Any]:
        return _condition(part, depth + 1)

    def listed(part: object) -> dict[str, Any]:
        return {"conds": _many(_fields(_bytes(part)), 1, inner)}

    return _either(
        fields,
        {
            1: ("ok", lambda step: {"step": _unsigned(step)}),
            2: ("error", lambda step: {"step": _unsigned(step)}),
            3: ("not", lambda part: {"cond": inner(part)}),
            4: ("and", listed),
            5: ("or", listed),
            6: ("is_autocommit", lambda _: {}),
        },
    )


def _step(data: object) -> dict[str, Any]:
    fields = _fields(_bytes(data))
    return {"condition": _one(fields, 1, _condition), "stmt": _one(fields, 2, _statement, {})}


def _batch(data: object) -> dict[str, Any]:
    return {"steps": _many(_fields(_bytes(data)), 1, _step)}


def _request(**parts: tuple[int, Reader]) -> Reader:
    """Return a reader of a stream request with these parts, each with its number and its reader."""

    def read(data: object) -> dict[str, Any]:
        fields = _fields(_bytes(data))
        return {name: _one(fields, number, how) for name, (number, how) in parts.items()}

    return read


def _stored(data: object) -> dict[str, Any]:
    fields = _fields(_bytes(data))
    return {"sql_id": _one(fields, 1, _int32, 0), "sql": _one(fields, 2, _text, "")}


_TEXT = _request(sql=(1, _text), sql_id=(2, _int32))
_REQUESTS: dict[int, tuple[str, Reader]] = {
    1: ("close", lambda _: {}),
    2: ("execute", _request(stmt=(1, _statement))),
    3: ("batch", _request(batch=(1, _batch))),
    4: ("sequence", _TEXT),
    5: ("describe", _TEXT),
    6: ("store_sql", _stored),
    7: ("close_sql", _stored),
    8: ("get_autocommit", _request()),
}


def read_pipeline(data: bytes) -> dict[str, Any]:
    """Read a ``PipelineReqBody``.

    Raises:
        MalformedProtobufError: the bytes are something else.
    """
    fields = _fields(data)
    requests = _many(fields, 2, lambda part: _either(_fields(_bytes(part)), _REQUESTS))
    return {"baton": _one(fields, 1, _text), "requests": requests}


def read_cursor(data: bytes) -> dict[str, Any]:
    """Read a ``CursorReqBody``.

    Raises:
        MalformedProtobufError: the bytes are something else.
    """
    fields = _fields(data)
    return {"baton": _one(fields, 1, _text), "batch": _one(fields, 2, _batch, {"steps": []})}


# -- writing -------------------------------------------------------------------------------------------------------


def _write_error(error: Mapping[str, Any]) -> bytes:
    return _put_text(1, error["message"]) + _put_text(2, error.get("code"))


def _write_value(value: Mapping[str, Any]) -> bytes:
    match value["type"]:
        case "integer":
            return _put_number(2, _zigzag(int(value["value"])))
        case "float":
            return _tag(3, FIXED64) + _DOUBLE.pack(value["value"])
        case "text":
            return _put_text(4, value["value"])
        case "blob":
            return _put(5, base64.b64decode(value["base64"] + "=="))
        case _:
            return _put(1, b"")


def _write_row(row: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(_put(1, _write_value(value)) for value in row)


def _write_columns(number: int, columns: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(_put(number, _put_text(1, one["name"]) + _put_text(2, one["decltype"])) for one in columns)


def _write_counts(first: int, result: Mapping[str, Any]) -> bytes:
    rowid = result["last_insert_rowid"]
    last = b"" if rowid is None else _put_number(first + 1, _zigzag(int(rowid)))
    return _put_number(first, result["affected_row_count"]) + last


def _write_result(result: Mapping[str, Any]) -> bytes:
    rows = b"".join(_put(2, _write_row(row)) for row in result["rows"])
    return _write_columns(1, result["cols"]) + rows + _write_counts(3, result)


def _write_batch(result: Mapping[str, Any]) -> bytes:
    def kept(number: int, found: Sequence[Any], write: Callable[[Any], bytes]) -> bytes:
        pairs = ((place, one) for place, one in enumerate(found) if one is not None)
        return b"".join(_put(number, _put_number(1, place) + _put(2, write(one))) for place, one in pairs)

    return kept(1, result["step_results"], _write_result) + kept(2, result["step_errors"], _write_error)


def _write_described(result: Mapping[str, Any]) -> bytes:
    params = b"".join(_put(1, _put_text(1, one["name"])) for one in result["params"])
    flags = _put_number(3, result["is_explain"]) + _put_number(4, result["is_readonly"])
    return params + _write_columns(2, result["cols"]) + flags


def write_entry(entry: Mapping[str, Any]) -> bytes:
    """Return a ``CursorEntry``."""
    match entry["type"]:
        case "step_begin":
            return _put(1, _put_number(1, entry["step"]) + _write_columns(2, entry["cols"]))
        case "step_end":
            return _put(2, _write_counts(1, entry))
        case "step_error":
            return _put(3, _put_number(1, entry["step"]) + _put(2, _write_error(entry["error"])))
        case "row":
            return _put(4, _write_row(entry["row"]))
        case _:
            return _put(5, _write_error(entry["error"]))


def _write_response(response: Mapping[str, Any]) -> bytes:
    match response["type"]:
        case "execute":
            inner = _put(1, _write_result(response["result"]))
        case "batch":
            inner = _put(1, _write_batch(response["result"]))
        case "describe":
            inner = _put(1, _write_described(response["result"]))
        case "get_autocommit":
            inner = _put_number(1, response["is_autocommit"])
        case _:
            inner = b""
    return _put(_NUMBERS[response["type"]], inner)


_NUMBERS = {name: number for number, (name, _) in _REQUESTS.items()}


def write_pipeline(body: Mapping[str, Any]) -> bytes:
    """Return a ``PipelineRespBody``."""
    results = []
    for result in body["results"]:
        if result["type"] == "ok":
            results.append(_put(3, _put(1, _write_response(result["response"]))))
        else:
            results.append(_put(3, _put(2, _write_error(result["error"]))))
    return write_cursor_head(body) + b"".join(results)


def write_cursor_head(body: Mapping[str, Any]) -> bytes:
    """Return a ``CursorRespBody``."""
    return _put_text(1, body["baton"]) + _put_text(2, body["base_url"])


def write_error(error: Mapping[str, Any]) -> bytes:
    """Return an ``Error``."""
    return _write_error(error)

"""Mutates valid CBOR payloads, texts and bytes. Pure: the random generator is an argument."""

import copy
import random
from typing import Any

import apsw
import cbor2

DEPTH_MAX = 6
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**63), -(2**70)),
    *(1.5, float("nan"), float("inf"), "", "a", "A", "\ud7ff", "\0", "x" * 300, b"", b"\0" * 40, b"\xff" * 5),
    *(
        [],
        {},
        [[]],
        {"a": 1},
        {1: 2},
        [None] * 50,
        cbor2.CBORTag(0, "x"),
        cbor2.CBORTag(4, [10**6, 1]),
        cbor2.undefined,
    ),
    *(cbor2.CBORTag(30, [1, 0]), cbor2.CBORTag(258, [[1]]), cbor2.CBORTag(2, b"\xff" * 100), cbor2.CBORSimpleValue(99)),
)
KEYS: tuple[Any, ...] = ("x", 0, "op", "id", b"b", "statements", "command", "timeout")


def mutated_value(value: Any, luck: random.Random, depth: int = 0) -> Any:
    """Return a decoded value with one random change, such as a missing item or a value of another type."""
    if luck.random() < 0.15 or depth > DEPTH_MAX:
        return luck.choice(ODD)
    if isinstance(value, dict) and value:
        return _mutated_map(value, luck, depth)
    if isinstance(value, list | tuple) and value:
        found, place, way = list(value), luck.randrange(len(value)), luck.random()
        if way < 0.1:
            found.pop(place)
        elif way < 0.15:
            found.insert(place, copy.copy(found[place]))
        else:
            found[place] = mutated_value(found[place], luck, depth + 1)
        return found
    if isinstance(value, bytes) and value:
        return _mutated_bytes(value, luck, depth)
    if isinstance(value, int) and luck.random() < 0.5:
        return value + luck.choice((-1, 1, 2**32, -(2**32)))
    return luck.choice(ODD)


def _mutated_map(value: dict[Any, Any], luck: random.Random, depth: int) -> dict[Any, Any]:
    found, key, way = dict(value), luck.choice(list(value)), luck.random()
    if way < 0.1:
        found.pop(key)
    elif way < 0.15:
        found[luck.choice(KEYS)] = luck.choice(ODD)
    else:
        found[key] = mutated_value(found[key], luck, depth + 1)
    return found


def _mutated_bytes(value: bytes, luck: random.Random, depth: int) -> bytes:
    """Return bytes with a change in the CBOR value that they encode, or with one bit flipped."""
    if luck.random() < 0.7:
        try:
            inner = cbor2.loads(value)
            if isinstance(inner, list | dict):
                return cbor2.dumps(mutated_value(inner, luck, depth + 1))
        except Exception:
            pass  # the bytes are not CBOR
    found = bytearray(value)
    found[luck.randrange(len(found))] ^= 1 << luck.randrange(8)
    return bytes(found)


def mutated(payload: bytes, luck: random.Random) -> bytes:
    """Return a payload with a few random bytes, or with a change in its decoded value."""
    if not payload:
        return b"\0"
    if luck.random() < 0.15:
        found = bytearray(payload)
        for _ in range(luck.randint(1, 4)):
            found[luck.randrange(len(found))] = luck.randrange(256)
        return bytes(found[: luck.randint(1, len(found))]) if luck.random() < 0.3 else bytes(found)
    try:
        return cbor2.dumps(mutated_value(cbor2.loads(payload), luck))
    except Exception:
        return payload[: len(payload) // 2]  # the inserted value cannot be encoded


NAMES = "t x id sqlite_schema bedrockish_journal bedrockish_meta"
FUNCTIONS = (
    "count( max( random( printf( zeroblob( json_each( group_concat( cluster_clock( transaction_clock( skip_locked("
)
VALUES = """? ?1 :a $b @c 1 0 -1 9223372036854775808 1e999 '' 'a' "t" [t] `t` x'00'"""
SIGNS = "( ) , ; * = < > || + - / % ~ -- /* */ . ::"
WORDS = (*sorted(apsw.keywords), *f"{NAMES} {FUNCTIONS} {VALUES} {SIGNS}".split())


def odd_text(luck: random.Random, fine: tuple[str, ...]) -> str:
    """Return a text that is SQL, or resembles SQL."""
    way = luck.randrange(9)
    if way == 0:
        text = luck.choice(fine)
        return text[: luck.randrange(len(text))] + luck.choice(("\0", "\ud800", "\ufeff", "'", '"', "/*", ";", "\x1a"))
    if way == 1:
        deep = luck.choice((50, 900, 20_000))
        return "SELECT " + "(" * deep + "1" + ")" * deep
    if way == 2:
        return "SELECT " + luck.choice((" OR ", "+", "||", ",", " UNION SELECT ")).join(
            ["x"] * luck.choice((10, 3_000))
        )
    if way == 3:
        return f"SELECT '{'é' * luck.choice((1, 100, 300_000))}'"
    if way == 4:
        return luck.choice(fine).replace(" ", luck.choice(("\0", " ", "/**/", "\t", "\n")), luck.randrange(1, 4))
    if way == 5:
        return "".join(
            chr(luck.choice((luck.randrange(128), luck.randrange(0x800), luck.randrange(0x11_0000)))) for _ in range(30)
        )
    return " ".join(luck.choice(WORDS) for _ in range(luck.randrange(1, 25)))

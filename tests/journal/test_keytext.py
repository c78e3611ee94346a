"""Keys in readable form."""

import pytest

from bedrockish.access_sets.key_encoding import Spec, column_key, encode, table_key
from bedrockish_journal.model.key_text import TEXT_MAX, key_text, read_columns, rowid_bytes
from tests.engine.index_keys import index_prefix


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (0, "0"),
        (-7, "-7"),
        ((1 << 63) - 1, "9223372036854775807"),
        (-(1 << 63), "-9223372036854775808"),
        (1.5, "1.5"),
        (-2.25, "-2.25"),
        (float("inf"), "inf"),
        ("Alice", "'Alice'"),
        ("a\0b", r"'a\x00b'"),
        (b"\0\x01\xff", "x'0001ff'"),
    ],
)
def test_key_text_prints_every_kind_of_value(value: object, text: str) -> None:
    assert key_text(b"t:x\0" + encode(value)) == text


def test_columns_are_listed_and_long_ones_cut() -> None:
    assert key_text(table_key("account", 17)) == "17"
    assert key_text(column_key(b"u:account\0" + encode(17), "größe")) == "17, column größe"
    assert key_text(index_prefix("by_name", ["A", 3], [Spec(), Spec()])) == "'A', 3"
    assert len(key_text(table_key("t", 1) + encode("x" * 500))) == TEXT_MAX


@pytest.mark.parametrize("tail", [b"\xff", b"\x10\x00", b"\x20no end", b"\x30"])
def test_malformed_key_is_shown_in_hex(tail: bytes) -> None:
    assert key_text(b"t:x\0" + tail) == f"x'{tail.hex()}'"


@pytest.mark.parametrize("power", range(64))
def test_a_rowid_is_as_the_engine_writes_it(power: int) -> None:
    for rowid in (1 << power, (1 << power) - 1, -(1 << power), 1 - (1 << power), (1 << power) // 3):
        if -(1 << 63) <= rowid < 1 << 63:
            assert rowid_bytes(rowid) == encode(rowid)


def test_key_text_of_several_columns_is_parsed_back() -> None:
    row = [None, 7, -0.5, "a\0b", b"\0\xff", (1 << 63) - 1, float("inf")]
    assert read_columns(b"".join(map(encode, row))) == row
    descending = index_prefix("i", row, [Spec(descending=True)] * len(row)).partition(b"\0")[2]
    assert read_columns(descending) == row
    assert read_columns(encode(1) + b"\x20no end") is None

"""docs/wire.md says what the code does."""

import re
from pathlib import Path

from bedrockish_net.connection import describe_table
from bedrockish_net.frame import Kind
from bedrockish_net.limits import KIB, MIB, Limits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
BETWEEN = re.compile(r"(?<=<!-- states -->\n).*(?=<!-- end of states -->)", re.DOTALL)


def test_the_table_of_states_is_current() -> None:
    """If it is not: paste what ``bedrockish_net.connection.describe_table()`` returns between the two markers."""
    found = BETWEEN.search(PAGE.read_text())
    assert found is not None
    assert found[0].strip() == describe_table()


def test_the_kinds_are_all_there() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [(kind.value, kind.name) for kind in Kind]


def test_the_numbers_are_the_defaults() -> None:
    page, limits = PAGE.read_text(), Limits()
    for text in (
        f"at most {limits.hello_bytes_max // KIB} KiB until",
        f"at most {limits.frame_bytes_max // MIB} MiB (configurable)",
        f"no HELLO within {limits.hello_seconds:g} s",
        f"nothing heard for {limits.ping_seconds:g} s | PING",
        f"no bytes accepted and none received for {limits.silence_seconds:g} s | GOODBYE",
        f"{limits.outbox_bytes_max // MIB} MiB are waiting for it | between",
        f"{limits.inbox_bytes_max // MIB} MiB are waiting for it | stops",
    ):
        assert text in page

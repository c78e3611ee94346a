"""docs/wire.md agrees with the code."""

import re
from pathlib import Path

from bedrockish_net.connection import TRANSITIONS
from bedrockish_net.events import EVENTS
from bedrockish_net.frame import FrameKind
from bedrockish_net.limits import KIB, MIB, LinkLimits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
BETWEEN = re.compile(r"(?<=<!-- states -->\n).*(?=<!-- end of states -->)", re.DOTALL)


def describe_table() -> str:
    """Return the table of states as markdown, as the page must have it."""
    lines = ["| state | " + " | ".join(event.__name__ for event in EVENTS) + " |"]
    lines.append("|---" * (len(EVENTS) + 1) + "|")
    for state, row in TRANSITIONS.items():
        cells = (row[event].name if event in row else "—" for event in EVENTS)
        lines.append(f"| **{state.name}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_page_has_the_current_table_of_states() -> None:
    """After a change paste the result of ``describe_table()`` between the two markers."""
    found = BETWEEN.search(PAGE.read_text())
    assert found is not None
    assert found[0].strip() == describe_table()


def test_wire_page_lists_all_kinds_of_frames() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [(kind.value, kind.name) for kind in FrameKind]


def test_wire_page_has_the_default_limits() -> None:
    page, limits = PAGE.read_text(), LinkLimits()
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

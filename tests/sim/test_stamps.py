"""The law of transaction clocks, on invented calls."""

import cbor2

from bedrockish.api.requests import Answer, Request, Statement, Token
from bedrockish_journal.model.entry import Entry
from tools.sim.clients import Call
from tools.sim.history import late_stamp


def asked(command: str, began: float, ended: float | None, clock: int, *, again: bool = False) -> Call:
    """Return a call that only asked for a clock."""
    request = Request(command, (Statement("clock", ()),))
    results = cbor2.dumps([[[["clock", 0, clock]]], {}, [], 0])
    answer = Answer(results, Token(), None, 1) if ended is not None else None
    return Call("c", request, began, ended=ended, answer=answer, again=again)


def nowhere(_: tuple[str, int]) -> Entry | None:
    return None


def test_stamp_check_accepts_clocks_that_rise_with_acknowledgement() -> None:
    """The check also accepts overlapping calls in any order, and a call without an answer."""
    calls = [asked("a", 0, 1, 10), asked("b", 2, 4, 12), asked("c", 3, 5, 11), asked("d", 6, None, 0)]
    assert late_stamp(calls, nowhere, ()) == (3, "")


def test_stamp_check_reports_a_clock_that_is_not_later() -> None:
    """Equal is not later."""
    _, story = late_stamp([asked("a", 0, 1, 10), asked("b", 2, 3, 10)], nowhere, ())
    assert story == "b was told a, after a was acknowledged"


def test_old_and_interactive_stamps_are_exempt() -> None:
    """The clock of a repeated command and of an interactive transaction may be an old one."""
    calls = [asked("a", 0, 1, 10), asked("b", 2, 3, 9, again=True), asked("c", 2, 3, 8)]
    assert late_stamp(calls, nowhere, {"c"}) == (1, "")
    assert late_stamp([asked("a", 0, 1, 10), asked("b", 2, 3, 9)], nowhere, {"a"}) == (1, "")

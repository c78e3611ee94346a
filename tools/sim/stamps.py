"""The law of transaction clocks: later than everything that was acknowledged to anybody before it was asked for.

Commits are acknowledged, and also clocks: a client that only asked for one was told that the next one is later.
"""

from collections.abc import Callable, Collection, Iterable

import cbor2

from bedrockish_journal.model.entry import Entry
from tools.sim.clients import Call
from tools.sim.database import wants_clock

Told = Callable[[tuple[str, int]], Entry | None]


def late_stamp(calls: Iterable[Call], told: Told, talked: Collection[str]) -> tuple[int, str]:
    """Return how many clocks were told, and the first that is not later than an earlier acknowledgement.

    Args:
        calls: of all clients.
        told: what a client was told by a place.
        talked: commands that were open transactions: they ask for a clock when they like, and commit later.
    """
    known = list(calls)
    moments = [(call.began, 0, number) for number, call in enumerate(known)]
    moments += [(call.ended, 1, number) for number, call in enumerate(known) if call.ended is not None]
    count, latest, before = 0, 0, {}
    for _, ends, number in sorted(moments):
        call = known[number]
        if not ends:
            before[number] = latest
            continue
        if call.request.command in talked and call.answer is not None and call.answer.place is None:
            continue  # the model's open transactions do not ask; their commit is checked
        clock = _clock(call, told)
        # One that was asked for again may be an old one: its clock is that of long ago.
        if clock and wants_clock(call.request) and not call.again and call.request.command not in talked:
            count += 1
            if clock <= before[number]:
                return count, f"{call.request.command} was told {clock:x}, after {before[number]:x} was acknowledged"
        latest = max(latest, clock)
    return count, ""


def _clock(call: Call, told: Told) -> int:
    """Return the clock that a client knows of from its answer; 0 for none."""
    if call.answer is None:
        return 0
    if call.answer.place is not None:
        entry = told(call.answer.place)
        return entry.txid.clock if entry is not None else 0
    found = cbor2.loads(call.answer.results)[0]
    return int(found[0][0][2]) if call.request.statements[0].sql == "clock" and found else 0

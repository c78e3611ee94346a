"""The law of transaction clocks: each is later than all acknowledgements before its request, to any client.

Commits are acknowledgements, and so are clocks: a client that asked only for a clock may rely on later clocks being
greater.
"""

from collections.abc import Callable, Collection, Iterable

import cbor2

from bedrockish_journal.model.entry import Entry
from tools.sim.clients import Call
from tools.sim.database import wants_clock

Told = Callable[[tuple[str, int]], Entry | None]


def late_stamp(calls: Iterable[Call], told: Told, talked: Collection[str]) -> tuple[int, str]:
    """Return the number of clocks in answers, and the story of the first that breaks the law, or an empty text.

    Args:
        calls: the calls of all clients.
        told: returns the entry that an answer's place stands for.
        talked: commands that were interactive transactions, which draw their clock earlier than they commit.
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
            continue  # an open transaction's clock is checked at its commit
        clock = _clock(call, told)
        # A command that was sent again may have happened at its first attempt, with an earlier clock.
        if clock and wants_clock(call.request) and not call.again and call.request.command not in talked:
            count += 1
            if clock <= before[number]:
                return count, f"{call.request.command} was told {clock:x}, after {before[number]:x} was acknowledged"
        latest = max(latest, clock)
    return count, ""


def _clock(call: Call, told: Told) -> int:
    """Return the clock that a client knows from its answer; 0 if the answer has no clock."""
    if call.answer is None:
        return 0
    if call.answer.place is not None:
        entry = told(call.answer.place)
        return entry.txid.clock if entry is not None else 0
    found = cbor2.loads(call.answer.results)[0]
    return int(found[0][0][2]) if call.request.statements[0].sql == "clock" and found else 0

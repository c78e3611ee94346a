"""A moment in a cluster's history, as of which a database is restored.

The state as of a clock or a time is that of the change feed up to there: every transaction whose clock is not later,
and the schema that was in force. This state is causally complete, since the transactions that a transaction has seen
have smaller clocks. The state as of a vector is that of a node that has applied each timeline up to the vector's tick.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bedrockish_journal.model.clock import CLOCK_READ_LIMIT, milliseconds, pack
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import MomentError
from bedrockish_journal.model.vector import Vector, covers

FORMS = (
    "give a clock such as 7529850000000000000, a time with its zone such as 2026-11-23T14:03:00+01:00, or places such "
    "as A:12,B:3"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\d{4}-?\d\d-?\d\d")
_PLACE = re.compile(r"([^:,]+):([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment, given as a clock or as a vector; the other field is None."""

    text: str  # the moment as typed
    clock: int | None = None  # the last clock that is included
    # The last included tick of each timeline; of a timeline that the vector does not name, no entry is included.
    vector: Vector | None = None

    def has(self, entry: Entry) -> bool:
        """Return whether an entry was in the journal at this moment.

        Raises:
            MomentError: the entry is included and an entry that it has seen is not: no node was ever in that state.
        """
        if self.clock is not None:
            return entry.txid.clock <= self.clock
        assert self.vector is not None, "a moment has a clock or a vector"
        if entry.tick > self.vector.get(entry.leader, 0):
            return False
        for node, tick in entry.after.items():
            if self.vector.get(node, 0) < tick:
                raise MomentError(
                    f"{self.text} is not a moment: {entry.leader}{entry.tick} has seen {node}{tick}, which is not in "
                    f"it; name {node}:{tick} too, or an earlier tick of {entry.leader}"
                )
        return True

    def includes(self, applied: Vector, latest: int) -> bool:
        """Return whether all entries of a file are included in this moment.

        Args:
            applied: the vector that the file has applied.
            latest: the greatest clock of the file's transactions and of the activations of its schemas.
        """
        if self.clock is not None:
            return latest <= self.clock
        assert self.vector is not None, "a moment has a clock or a vector"
        return covers(self.vector, applied)


def parse_moment(text: str, now_ms: int) -> Moment:
    """Return the moment of a text: a clock (inclusive), a time (exclusive), or a vector of places.

    Args:
        now_ms: the present Unix time in milliseconds; a later time is refused.

    Raises:
        MomentError: the text has another form, or its time is in the future.
    """
    text = text.strip()
    if re.fullmatch("[0-9]+", text):
        clock = int(text)
        if clock >= CLOCK_READ_LIMIT:
            raise MomentError(f"{text} is beyond the range of clocks; {FORMS}")
        return Moment(text, clock=clock)
    if _DATE.match(text):
        return Moment(text, clock=_clock_before(text, now_ms))
    found = [_PLACE.fullmatch(part.strip()) for part in text.split(",")]
    places = [(match[1], int(match[2])) for match in found if match is not None]
    vector = dict(places)
    if len(places) != len(found) or len(vector) != len(places):
        raise MomentError(f"{text!r} is not a moment; {FORMS}")
    return Moment(text, vector={node: tick for node, tick in vector.items() if tick})


def _clock_before(text: str, now_ms: int) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise MomentError(f"{text!r} is not a time ({error}); {FORMS}") from error
    if moment.tzinfo is None:
        raise MomentError(f"{text!r} does not say in which zone; append Z for UTC, or an offset such as +01:00")
    unix_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if unix_ms > now_ms:
        raise MomentError(f"{text} is in the future: now it is {time_text(pack(now_ms))}")
    if unix_ms <= 0:
        raise MomentError(f"{text} is before any cluster; {FORMS}")
    return pack(unix_ms) - 1


def time_text(clock: int) -> str:
    """Return the time of a clock, in UTC, in a form that ``parse_moment`` reads."""
    unix_ms = milliseconds(clock)
    if unix_ms > 253402300799999:
        return "after the year 9999"
    return (_EPOCH + timedelta(milliseconds=unix_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""The modes of a node, by the work that it still does when something is wrong: serving, read-only, damaged, repairing.

Each fault that stops a node from doing all of its work raises an *alarm* here, under a name, and clears it when it is
over; the worst alarm decides. This is the only such mechanism: a full disk, an entry that fits nowhere and tables that
differ from the journal are all alarms. Pure.

| mode      | reads | leads | votes | applies | answers for its journal and its promises |
|-----------|-------|-------|-------|---------|------------------------------------------|
| serving   | yes   | yes   | yes   | yes     | yes                                      |
| read-only | yes   | no    | no    | yes     | yes                                      |
| damaged   | no    | no    | no    | no      | only what it has in its journal          |
| repairing | no    | no    | no    | no      | only what it has in its journal          |

A node that does not vote is as safe as one that is down: its earlier approvals are in its file and stay true, because
an approval rests on the keys that transactions read and wrote, never on the content of rows.
"""

from collections.abc import Mapping
from enum import IntEnum

import cbor2

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.value import value

# The names of alarms.
DISK_FULL = "disk_full"  # nothing can be written
UNAPPLICABLE = "entry_unapplicable"  # a decided entry fits nowhere
DAMAGED_TABLES = "damaged_tables"  # the tables differ from those that the journal makes
UNPROVEN = "unproven_copy"  # the tables are a copy that was not compared with its journal yet


class Mode(IntEnum):
    """How much a node still does; a greater one is less."""

    SERVING = 0
    READ_ONLY = 1
    DAMAGED = 2
    REPAIRING = 3

    @property
    def label(self) -> str:
        """The word for people and for status."""
        return self.name.lower().replace("_", "-")


@value
class Alarm:
    """Something that is wrong with a node.

    Attributes:
        mode: how much the node still does because of it.
        reason: for people: the fault and the remedy.
        details: plain facts for programs, such as ``table`` and ``key``.
    """

    mode: Mode
    reason: str
    details: Mapping[str, str | int]


class Health:
    """The alarms of one node, by name; the worst of them decides what it does.

    Args:
        alarms: those that its file keeps from before the start.

    Attributes:
        alarms: all of them, by name; changed only here, because the rest follows from it and is asked at every step.
        worst: the alarm that decides; None while all is well.
        name: its name; empty while all is well.
        mode: what the node does.
        reason: why it does not do more, for people; empty if it does everything.
        reads: whether its tables may answer reads.
        writes: whether it may lead transactions and vote on those of others.
        applies: whether it may put decided entries into its tables and its journal.
    """

    def __init__(self, alarms: Mapping[str, Alarm] | None = None) -> None:
        self.alarms: dict[str, Alarm] = dict(alarms or {})
        self._follow()

    def set_alarm(self, name: str, mode: Mode, reason: str, **details: str | int) -> Alarm:
        """Raise an alarm, or replace an earlier one of that name; return it."""
        assert mode is not Mode.SERVING, f"alarm {name} would change nothing"
        alarm = self.alarms[name] = Alarm(mode, reason, details)
        self._follow()
        return alarm

    def clear_alarm(self, name: str) -> None:
        """Clear an alarm; nothing happens if it is not raised."""
        self.alarms.pop(name, None)
        self._follow()

    def _follow(self) -> None:
        """Derive the attributes from the alarms."""
        # The worst one; of two that are as bad, the one that was raised first.
        self.name: str = max(self.alarms, key=lambda name: self.alarms[name].mode, default="")
        self.worst: Alarm | None = self.alarms.get(self.name)
        self.mode: Mode = Mode.SERVING if self.worst is None else self.worst.mode
        self.reason: str = "" if self.worst is None else self.worst.reason
        self.reads: bool = self.mode <= Mode.READ_ONLY
        self.writes: bool = self.mode is Mode.SERVING
        # The entries to apply are decided already: a node that left them out would only fall behind.
        self.applies: bool = self.mode <= Mode.READ_ONLY


def encode_alarm(alarm: Alarm) -> bytes:
    """Return the bytes in which a node's file keeps an alarm."""
    return cbor2.dumps([int(alarm.mode), alarm.reason, dict(alarm.details)])


def decode_alarm(data: bytes) -> Alarm:
    """Return the alarm that ``encode_alarm`` wrote.

    Raises:
        EntryMalformedError: the bytes are something else.
    """
    try:
        mode, reason, details = cbor2.loads(data)
        return Alarm(Mode(mode), str(reason), dict(details))
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(data)} bytes are no alarm: {error}") from error

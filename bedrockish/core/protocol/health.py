"""The modes of a node: serving, read-only, damaged, repairing. A mode is the work that a node with a fault still does.

A fault that stops a part of a node's work raises an *alarm* under a name, and its end clears the alarm; the worst alarm
determines the mode. A full disk, an entry that no node can apply and tables that differ from the journal are all
alarms. This module is pure.

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
DISK_FULL = "disk_full"  # the disk has no room for writes
UNAPPLICABLE = "entry_unapplicable"  # a decided entry cannot be applied
DAMAGED_TABLES = "damaged_tables"  # the tables differ from the state that the journal describes
UNPROVEN = "unproven_copy"  # the tables are a copy that is not yet compared with its journal


class Mode(IntEnum):
    """The work that a node still does; a greater mode does less."""

    SERVING = 0
    READ_ONLY = 1
    DAMAGED = 2
    REPAIRING = 3

    @property
    def label(self) -> str:
        """The mode's name in the status and in messages."""
        return self.name.lower().replace("_", "-")


@value
class Alarm:
    """A fault of a node."""

    mode: Mode  # the mode of the node while the alarm is raised
    reason: str  # the fault and the remedy, in words
    details: Mapping[str, str | int]  # plain facts for programs, such as ``table`` and ``key``


class Health:
    """The alarms of one node; the worst of them determines its mode.

    Args:
        alarms: the alarms stored in the node's file.
    """

    def __init__(self, alarms: Mapping[str, Alarm] | None = None) -> None:
        # All alarms, by name; changed only by the methods here, because the other attributes are derived from them.
        self.alarms: dict[str, Alarm] = dict(alarms or {})
        self._derive()

    def set_alarm(self, name: str, mode: Mode, reason: str, **details: str | int) -> Alarm:
        """Raise an alarm, or replace an earlier one of that name; return it."""
        assert mode is not Mode.SERVING, f"alarm {name} would change nothing"
        alarm = self.alarms[name] = Alarm(mode, reason, details)
        self._derive()
        return alarm

    def clear_alarm(self, name: str) -> None:
        """Clear an alarm; nothing happens if it is not raised."""
        self.alarms.pop(name, None)
        self._derive()

    def _derive(self) -> None:
        # The name of the worst alarm; of several with the same mode, the first in ``alarms``.
        self.name: str = max(self.alarms, key=lambda name: self.alarms[name].mode, default="")
        self.worst: Alarm | None = self.alarms.get(self.name)  # determines the mode; None if no alarm is raised
        self.mode: Mode = Mode.SERVING if self.worst is None else self.worst.mode
        self.reason: str = "" if self.worst is None else self.worst.reason
        self.reads: bool = self.mode <= Mode.READ_ONLY  # whether its tables may answer reads
        self.writes: bool = self.mode is Mode.SERVING  # whether it may lead transactions and vote on those of others
        # Whether it may write decided entries to its tables and its journal. A read-only node applies entries: they are
        # decided already, and without them it would fall behind.
        self.applies: bool = self.mode <= Mode.READ_ONLY


def encode_alarm(alarm: Alarm) -> bytes:
    """Encode an alarm, as a node's file stores it."""
    return cbor2.dumps([int(alarm.mode), alarm.reason, dict(alarm.details)])


def decode_alarm(data: bytes) -> Alarm:
    """Return the alarm that ``encode_alarm`` wrote.

    Raises:
        EntryMalformedError: the bytes are not an alarm.
    """
    try:
        mode, reason, details = cbor2.loads(data)
        return Alarm(Mode(mode), str(reason), dict(details))
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(data)} bytes are not an alarm: {error}") from error

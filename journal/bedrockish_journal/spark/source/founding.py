"""The beginning of a journal: the founders of the cluster, and the marks of removed entries.

``bedrockish_journal.storage.pruning`` removes entries. These records have rows in tables, too, but no entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import cbor2

from bedrockish_journal.model.errors import EntryMalformedError, JournalError
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.transaction import parse_txid
from bedrockish_journal.spark.source.plans import Ask
from bedrockish_journal.storage.file_claims import skipped

# A running node shows its own tables only to a statement with their name in its text, and not in a parameter.
_HAS = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{}'"
_META = "SELECT value FROM bedrockish_meta WHERE key = ?"
_MARKS = "SELECT leader, tick, hash, clock, origin FROM bedrockish_pruned ORDER BY leader"

Member = tuple[int, str, str, bool, str, list[tuple[str, int]]]


class Mark(NamedTuple):
    """The last removed entry of a timeline, and the greatest (clock, origin) that was removed from it."""

    leader: str
    tick: int
    hash: bytes
    clock: int
    origin: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """A node's record of the time before its journal."""

    founding: object = None  # the encoded membership of the cluster's founding; None if the file lacks it
    changed: object = None  # the encoded memberships of removed entries; None without such entries
    marks: tuple[Mark, ...] = ()  # a mark for each timeline whose first entries were removed
    # Clock and origin of each transaction that the node skipped by an operator's decision.
    void: frozenset[tuple[int, str]] = frozenset()

    @property
    def cluster(self) -> str:
        """The id of the cluster; empty if the founding is missing or malformed."""
        try:
            return read_membership(_bytes(self.founding)).cluster_id
        except EntryMalformedError:
            return ""

    def members(self, path: str) -> Iterator[tuple[str | None, int | None, Member]]:
        """Yield timeline, tick and member of each membership that no entry of the journal made.

        Raises:
            EntryMalformedError: a membership is malformed.
        """
        try:
            if self.founding is not None:
                for member in decode_members(_bytes(self.founding)):
                    yield None, None, member
            if self.changed is not None:
                for leader, changes in sorted(cbor2.loads(_bytes(self.changed)).items()):
                    for tick, membership in changes:
                        for member in decode_members(_bytes(membership)):
                            yield str(leader), int(tick), member
        except (EntryMalformedError, cbor2.CBORError, ValueError, TypeError, AttributeError) as error:
            raise EntryMalformedError(
                f"the memberships before the journal in {path} cannot be read: {error}"
            ) from error


def read_beginning(ask: Ask, path: str) -> Beginning:
    """Return the beginning of a journal.

    Raises:
        JournalError: the journal's marks are malformed.
    """
    founding = changed = None
    void: frozenset[tuple[int, str]] = frozenset()
    if _has(ask, "bedrockish_meta"):
        founding, changed = (
            next((row[0] for row in ask(_META, (key,))), None) for key in ("bootstrap", "pruned_members")
        )
        void = frozenset((txid.clock, txid.leader) for txid in map(parse_txid, skipped(ask)))
    marks = tuple(Mark._make(row) for row in ask(_MARKS, ())) if _has(ask, "bedrockish_pruned") else ()
    for mark in marks:
        if list(map(type, mark)) != [str, int, bytes, int, str] or mark.tick < 1 or len(mark.hash) != 32:
            raise JournalError(
                f"{path}: the row of timeline {mark.leader!r} in bedrockish_pruned is malformed; fill this node again"
            )
    return Beginning(founding, changed, marks, void)


def _has(ask: Ask, table: str) -> bool:
    return any(row[0] for row in ask(_HAS.format(table), ()))


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise EntryMalformedError(f"a membership should be bytes, not {type(value).__name__}")
    return value


def decode_members(data: bytes) -> list[Member]:
    """Return each member of an encoded membership as (version, name, address, voter, store, retired timelines).

    Raises:
        EntryMalformedError: the bytes are not a membership.
    """
    said = read_membership(data)
    retired = sorted(said.retired.items())
    return [
        (said.version, node, one.address, one.voter, one.store, retired) for node, one in sorted(said.members.items())
    ]

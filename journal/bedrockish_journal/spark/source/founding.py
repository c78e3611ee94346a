"""The beginning of a journal: the founders of the cluster, and the marks of removed entries.

``bedrockish_journal.storage.pruning`` removes entries. These records have rows in tables, too, but no entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bedrockish_journal.model.errors import EntryMalformedError, JournalError
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.transaction import parse_txid
from bedrockish_journal.storage.file_claims import Ask, PrunedBeginning, has, marks, removed_memberships, skipped, value

Member = tuple[int, str, str, bool, str, list[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class FoundingRecords:
    """A node's records of the time before the first entry of its journal."""

    founding: object = None  # the encoded membership of the cluster's founding; None if the file lacks it
    changed: object = None  # the encoded memberships of removed entries; None if the file lacks them
    marks: tuple[PrunedBeginning, ...] = ()  # a mark for each timeline whose first entries were removed
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
            for leader, changes in sorted(removed_memberships(self.changed).items()):
                for tick, membership in changes:
                    for member in decode_members(membership):
                        yield leader, tick, member
        except EntryMalformedError as error:
            raise EntryMalformedError(
                f"the memberships before the journal in {path} cannot be read: {error}"
            ) from error


def read_beginning(ask: Ask, path: str) -> FoundingRecords:
    """Return the records of the time before the first entry of a journal.

    Raises:
        JournalError: the journal's marks are malformed.
    """
    founding = changed = None
    void: frozenset[tuple[int, str]] = frozenset()
    if has(ask, "bedrockish_meta"):
        founding, changed = value(ask, "bootstrap"), value(ask, "pruned_members")
        void = frozenset((txid.clock, txid.leader) for txid in map(parse_txid, skipped(ask)))
    try:
        return FoundingRecords(founding, changed, marks(ask), void)
    except EntryMalformedError as error:
        raise JournalError(f"{path}: {error}") from error


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

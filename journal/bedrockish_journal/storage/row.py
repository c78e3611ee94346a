"""A row of the journal, from a file or from a node: the bytes of an entry, and columns that repeat some of its fields.

Readers must not trust the columns, which exist for searches. ``entry`` decodes the bytes, which are hashed.
"""

from typing import NamedTuple

from bedrockish_journal.model.entry import Entry, decode_entry
from bedrockish_journal.model.errors import EntryMalformedError

_INT64 = 1 << 63


class JournalRow(NamedTuple):
    """A row of the journal; the fields are the columns of the table ``bedrockish_journal``."""

    seq: int
    leader: str
    tick: int
    clock: int
    origin: str
    command: str
    kind: str
    repeat: int
    applied_ms: int
    label: bytes
    body: bytes
    prev: bytes
    hash: bytes

    @property
    def is_well_typed(self) -> bool:
        """Whether the values have the types of their columns, which SQLite does not enforce."""
        return [*map(type, self)] == _TYPES

    def entry(self) -> Entry:
        """Return the entry that label and body encode, with a check of its hash.

        Raises:
            EntryMalformedError: the bytes are not an entry, or do not have the stored hash.
        """
        return hashed_entry(self.prev, self.label, self.body, self.hash)


COLUMNS = ", ".join(JournalRow._fields)
_TYPES = [JournalRow.__annotations__[name] for name in JournalRow._fields]


def hashed_entry(prev: bytes, label: bytes, body: bytes, digest: bytes) -> Entry:
    """Return the decoded entry of stored bytes.

    Raises:
        EntryMalformedError: the bytes are not an entry, or their hash is not ``digest``.
    """
    if not label:
        raise EntryMalformedError(
            "its pack is damaged or missing; run `bedrockish journal verify` on the file and fill the node again"
        )
    entry = decode_entry(prev, label, body)
    if entry.hash != digest:
        raise EntryMalformedError(
            f"{entry.leader}{entry.tick} differs from the written entry: its hash is {entry.hash.hex()[:12]}…, not "
            f"{bytes(digest).hex()[:12]}…; run `bedrockish journal verify` on the file and fill the node again"
        )
    return entry


def decode_bounded(prev: bytes, label: bytes, body: bytes) -> Entry:
    """Return the decoded entry of stored bytes, whose numbers fit into integers of SQLite; its hash is not compared.

    Raises:
        EntryMalformedError: the bytes are not an entry, or a number is too large.
    """
    try:
        entry = decode_entry(prev, label, body)
    except (RecursionError, OverflowError, TypeError, AttributeError) as error:
        raise EntryMalformedError(f"its bytes are not an entry: {error!r}") from error
    transaction = entry.transaction
    numbers = (transaction.config, transaction.activates, transaction.safe, transaction.schema, entry.tick)
    if max(*entry.after.values(), *entry.quorum.values(), *numbers) >= _INT64:
        raise EntryMalformedError("it has a tick, a version or a clock beyond 2^63")
    return entry

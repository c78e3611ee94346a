"""A row of the journal, from a file or from a node: the bytes of an entry, and columns that repeat some of its fields.

Readers must not trust the columns, which exist for searches. ``entry`` decodes the bytes, which are hashed.
"""

from typing import NamedTuple

from bedrockish_journal.model.entry import Entry, decode_entry
from bedrockish_journal.model.errors import EntryMalformedError


class Stored(NamedTuple):
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

    def entry(self) -> Entry:
        """Return the decoded entry.

        Raises:
            EntryMalformedError: the bytes are not an entry, or do not have the stored hash.
        """
        return hashed_entry(self.prev, self.label, self.body, self.hash)


COLUMNS = ", ".join(Stored._fields)


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

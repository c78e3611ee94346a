"""One row of the journal as it lies in a file or comes from a node: columns that say what bytes say, and the bytes.

Nothing in it is believed. The columns are there to search by; ``entry`` reads the bytes, which are what was hashed.
"""

from typing import NamedTuple

from bedrockish_journal.model.entry import Entry, decode_entry
from bedrockish_journal.model.errors import EntryMalformedError


class Stored(NamedTuple):
    """A row of the journal; the names are those of the columns of the table ``bedrockish_journal``."""

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
        """Decode the entry.

        Raises:
            EntryMalformedError: the bytes are not an entry, or not the one that was hashed.
        """
        return hashed_entry(self.prev, self.label, self.body, self.hash)


COLUMNS = ", ".join(Stored._fields)


def hashed_entry(prev: bytes, label: bytes, body: bytes, digest: bytes) -> Entry:
    """Decode an entry that was stored under a hash.

    Raises:
        EntryMalformedError: the bytes are not an entry, or not the one that was hashed.
    """
    if not label:
        raise EntryMalformedError(
            "what it is packed in is damaged, or gone; run `bedrockish journal verify` on the file and fill the node "
            "again"
        )
    entry = decode_entry(prev, label, body)
    if entry.hash != digest:
        raise EntryMalformedError(
            f"{entry.leader}{entry.tick} is not what was written: its hash is {entry.hash.hex()[:12]}…, not "
            f"{bytes(digest).hex()[:12]}…; run `bedrockish journal verify` on the file and fill the node again"
        )
    return entry

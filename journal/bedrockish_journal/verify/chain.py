"""The check that each timeline is a chain: ticks are consecutive, ``prev`` of each entry is the hash of the entry
before it, and each hash is the hash of the content stored with it.

Findings are data, not exceptions, because an auditor wants all findings of all files at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bedrockish_journal.model.entry import GENESIS, entry_hash
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.storage.row import JournalRow


@dataclass(slots=True)
class Chains:
    """The ends of all timelines of one journal while its entries are checked one after the other."""

    node: str  # the node that has the journal, for the findings
    # Last tick and *recomputed* hash of each timeline.
    heads: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def check(self, row: JournalRow) -> Iterator[Finding]:
        """Yield the faults of the next entry, and advance as if it were right, so that each fault is reported once."""
        leader, tick = row.leader, row.tick
        before, head = self.heads.get(leader, (0, GENESIS))
        if tick != before + 1:
            span = f"{leader}{before + 1}" + (f" to {leader}{tick - 1}" if tick > before + 2 else "")
            what = f"{span} missing before it" if tick > before else f"it comes after {leader}{before}"
            yield self._finding("density", row, f"{leader}{tick} is out of place: {what}")
        elif row.prev != head:
            text = f"{leader}{tick} continues {_short(row.prev)}, but the entry before it is {_short(head)}"
            yield self._finding("link", row, text)
        digest = entry_hash(row.prev, row.label, row.body)
        if digest != row.hash:
            yield self._finding(
                "hash",
                row,
                f"{leader}{tick} is stored with the hash {_short(row.hash)}, but its bytes have {_short(digest)}",
            )
        self.heads[leader] = max(tick, before), digest

    def _finding(self, check: str, row: JournalRow, text: str) -> Finding:
        return Finding(check, self.node, row.leader, row.tick, text=text)


def _short(digest: bytes) -> str:
    return f"{digest.hex()[:12]}…"

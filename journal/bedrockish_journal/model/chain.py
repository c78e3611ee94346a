"""The check that each timeline is a chain: consecutive ticks, each entry continuing the hash of the one before it, each
hash the hash of the content stored with it.

Findings are data, not exceptions: an auditor wants all of them, from every file at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bedrockish_journal.model.entry import GENESIS, entry_hash


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a law.

    Attributes:
        check: which law is broken: ``hash``, ``link``, ``density``, ``bytes``, ``columns``, ``label``, ``causality``,
            ``clock``, ``txid``, ``command``, ``quorum``, ``members``, ``fork``, ``lost`` …
        node: whose file it was found in.
        leader: the timeline.
        tick: the place in it.
        txid: the transaction, printed.
        table: the table, when it is about rows.
        key: the row, printed.
        text: what was found, where, for a person.
    """

    check: str
    node: str
    leader: str | None = None
    tick: int | None = None
    txid: str | None = None
    table: str | None = None
    key: str | None = None
    text: str = ""


class Link(Protocol):
    """An entry as stored: the bytes and their alleged place."""

    @property
    def leader(self) -> str:
        """The timeline."""

    @property
    def tick(self) -> int:
        """The place in it."""

    @property
    def prev(self) -> bytes:
        """The hash that it continues."""

    @property
    def label(self) -> bytes:
        """The label's bytes."""

    @property
    def body(self) -> bytes:
        """The transaction's bytes."""

    @property
    def hash(self) -> bytes:
        """The hash that it is stored with."""


@dataclass(slots=True)
class Chains:
    """The ends of all timelines of one journal, while it is walked through.

    Attributes:
        node: whose journal it is, for the findings.
        heads: last tick and *recomputed* hash of each timeline.
    """

    node: str
    heads: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def check(self, link: Link) -> Iterator[Finding]:
        """Yield what is wrong with the next entry, and move on as if it were right, so that a fault is told once."""
        leader, tick = link.leader, link.tick
        before, head = self.heads.get(leader, (0, GENESIS))
        if tick != before + 1:
            span = f"{leader}{before + 1}" + (f" to {leader}{tick - 1}" if tick > before + 2 else "")
            what = f"{span} missing before it" if tick > before else f"it comes after {leader}{before}"
            yield self._finding("density", link, f"{leader}{tick} is out of place: {what}")
        elif link.prev != head:
            yield self._finding(
                "link",
                link,
                f"{leader}{tick} continues {_short(link.prev)}, but the entry before it is {_short(head)}",
            )
        digest = entry_hash(link.prev, link.label, link.body)
        if digest != link.hash:
            yield self._finding(
                "hash", link, f"{leader}{tick} is stored with the hash {_short(link.hash)} and is {_short(digest)}"
            )
        self.heads[leader] = max(tick, before), digest

    def _finding(self, check: str, link: Link, text: str) -> Finding:
        return Finding(check, self.node, link.leader, link.tick, text=text)


def check_run(links: Iterable[Link], node: str = "") -> list[Finding]:
    """Return what is wrong with a run of entries that begins at tick 1 of each of its timelines."""
    chains = Chains(node)
    return [finding for link in links for finding in chains.check(link)]


def _short(digest: bytes) -> str:
    return f"{digest.hex()[:12]}…"

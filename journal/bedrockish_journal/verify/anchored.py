"""Reads anchors, and compares journals with them: the entries that an anchor covers must still be there, unchanged.

The hash of an entry covers its whole timeline up to the entry. So if the hash at an anchored place is the same, and
every entry continues the one before it (the law ``link``), no entry up to the place was changed, removed or added.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import apsw

from bedrockish_journal.model.anchor import Anchor, AnchorError, AnchorStatement, parse_anchors
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.storage.file_claims import PrunedBeginning, memberships
from bedrockish_journal.storage.pruning import marks
from bedrockish_journal.storage.store import read_meta

LAW = "anchor"
BYTES_MAX = 256 << 20  # limit of a file; an hourly anchor of five nodes adds a megabyte in some three weeks
_HASH = "SELECT hash FROM bedrockish_journal WHERE leader = ? AND tick = ?"


@dataclass(slots=True)
class Anchored:
    """The result of comparing journals with anchors."""

    anchors: int = 0  # the number of checked anchors
    places: int = 0  # the number of heads in these anchors
    # The number of heads that could not be checked, because every given file has removed their entries.
    removed: int = 0
    findings: list[Finding] = field(default_factory=list)  # the faults


def read_anchors(path: str | os.PathLike[str]) -> list[Anchor]:
    """Return the anchors of a file, to which ``bedrockish anchor`` adds lines.

    Raises:
        AnchorError: the file cannot be read, or a line is not an anchor or does not continue the line before it.
    """
    name = os.fspath(path)
    try:
        if os.path.getsize(name) > BYTES_MAX:
            raise AnchorError(name, f"{name} is longer than {BYTES_MAX >> 20} MiB; begin another file of anchors")
        with open(name, "rb") as file:
            return parse_anchors(file.read(), name)
    except OSError as error:
        raise AnchorError(name, f"the anchors in {name} cannot be read: {error.strerror}") from error


def founders_hash(db: apsw.Connection) -> str:
    """Return the SHA-256 of the membership of the founders as a file has it, in hexadecimal."""
    return sha256(_bootstrap(db)).hexdigest()


def head_hash(db: apsw.Connection, leader: str, tick: int) -> bytes | None:
    """Return the hash of the entry at a place, which may be the last removed one; None if the file lacks the entry."""
    row = db.execute(_HASH, (leader, tick)).fetchone()
    if row is not None:
        return row[0] if isinstance(row[0], bytes) else b""
    mark = _marks(db).get(leader)
    return mark.hash if mark is not None and mark.tick == tick else None


def check_anchors(files: Mapping[str, apsw.Connection], anchors: Sequence[Anchor]) -> Anchored:
    """Compare the files of nodes with anchors, and return the result.

    Args:
        files: open files, by node.
    """
    told = Anchored(len(anchors))
    removed = {node: _marks(db) for node, db in files.items()}
    founders = {node: founders_hash(db) for node, db in files.items()}
    voters = {
        node: {said.version: tuple(said.voters) for _, _, said in memberships(db.execute)} for node, db in files.items()
    }
    for anchor in anchors:
        said = anchor.statement
        told.findings += _check_founders(said, founders)
        told.findings += _check_voters(said, voters)
        for leader, (tick, digest) in said.heads.items():
            told.places += 1
            told.findings += _check_place(said, files, removed, leader, tick, digest, told)
    return told


def _check_place(
    said: AnchorStatement,
    files: Mapping[str, apsw.Connection],
    removed: Mapping[str, Mapping[str, PrunedBeginning]],
    leader: str,
    tick: int,
    digest: str,
    told: Anchored,
) -> Iterator[Finding]:
    has, gone = False, True
    for node, db in files.items():
        mark = removed[node].get(leader)
        if mark is not None and mark.tick > tick:
            continue  # the file no longer has the entry or its hash
        gone = False
        found = head_hash(db, leader, tick)
        if found is None:
            continue  # a node may be behind
        has = True
        if found.hex() != digest:
            text = (
                f"{leader}{tick} has the hash {found.hex()[:12]}…, but anchor {said.number} says {digest[:12]}…: this "
                "entry or an earlier one was changed"
            )
            yield Finding(LAW, node, leader, tick, text=text)
    told.removed += gone
    if not has and not gone:
        text = f"{leader}{tick}, which anchor {said.number} has, is in no file given: the end of the timeline is gone"
        yield Finding(LAW, ", ".join(files), leader, tick, text=text)


def _check_founders(said: AnchorStatement, founders: Mapping[str, str]) -> Iterator[Finding]:
    for node, digest in founders.items():
        if digest != said.founders:
            text = f"the founding membership differs from that of anchor {said.number}; it is altered or foreign"
            yield Finding(LAW, node, text=text)


def _check_voters(said: AnchorStatement, voters: Mapping[str, Mapping[int, tuple[str, ...]]]) -> Iterator[Finding]:
    """Yield a finding for each file whose membership has other voters than the anchor names."""
    for node, known in voters.items():
        here = known.get(said.members)
        if here is not None and here != said.voters:
            text = (
                f"anchor {said.number} names {', '.join(said.voters)} as the voters of membership {said.members}, "
                f"which are {', '.join(here)}"
            )
            yield Finding(LAW, node, text=text)


def _marks(db: apsw.Connection) -> dict[str, PrunedBeginning]:
    try:
        return marks(db)
    except EntryMalformedError:  # another law reports it
        return {}


def _bootstrap(db: apsw.Connection) -> bytes:
    """Return the encoded membership of the founders; empty if the file lacks it."""
    found = read_meta(db, "bootstrap")
    return found if isinstance(found, bytes) else b""

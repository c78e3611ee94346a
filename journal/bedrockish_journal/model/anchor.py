"""Anchors: the ends of a cluster's journals at a moment, confirmed by its voters and kept out of the nodes' reach.

An attacker with write access to all files of a cluster can make journals that break no law: by cutting their ends, or
by replacing an answer and computing all hashes again. Only a record outside of the cluster reveals such an attack.

An anchor file has one anchor per line, a JSON object: ``statement``, a text, and ``signatures``, the voters that
confirmed it, each with the value null; releases before 0.3.0 wrote a signature there. A statement names the hash of the
line before it. So lines can be appended, but no line can be changed or removed from the middle, as in a transparency
log (RFC 6962).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from bedrockish_journal.model.errors import JournalFileError

VERSION = 1
FIRST = "0" * 64  # ``previous`` of the first anchor of a file
STATEMENT_BYTES_MAX = 1 << 20
_HASH = re.compile(r"[0-9a-f]{64}")


class AnchorError(JournalFileError):
    """Raised when anchors cannot be read, or were altered."""


@dataclass(frozen=True, slots=True)
class AnchorStatement:
    """The ends of the journals, as the voters confirm them."""

    cluster: str  # the id of the cluster
    number: int  # the number of the anchor in its file, from 1
    previous: str  # the SHA-256 of the line before the anchor, in hexadecimal; ``FIRST`` for the first anchor
    wall_ms: int  # milliseconds since 1970 by the wall clock of the program that requested the anchor
    clock: int  # the safe time of the node that was asked: no further commit can get a clock up to it
    founders: str  # the SHA-256 of the membership of the founders, in hexadecimal
    members: int  # the version of the membership in force
    voters: tuple[str, ...]  # the names of the voters of that membership, sorted
    heads: Mapping[str, tuple[int, str]]  # for each timeline its last tick, and the hash of that entry in hexadecimal

    @property
    def quorum(self) -> int:
        """The number of voters that is a majority: an entry that a majority holds is never lost."""
        return len(self.voters) // 2 + 1

    def text(self) -> str:
        """Return the text that the voters confirm."""
        return json.dumps({"anchor": VERSION, **asdict(self)}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A line of an anchor file."""

    text: str  # the statement as it was confirmed
    statement: AnchorStatement  # the decoded statement
    confirmed: Mapping[str, Any] = field(default_factory=dict)  # voter -> null, or its old signature

    def line(self) -> str:
        """Return the line of the file, without its end."""
        return json.dumps({"statement": self.text, "signatures": dict(sorted(self.confirmed.items()))})


def read_statement(text: str) -> AnchorStatement:
    """Return the statement of a text that ``AnchorStatement.text`` wrote.

    Raises:
        ValueError: the text is not such a statement.
    """
    if len(text) > STATEMENT_BYTES_MAX:
        raise ValueError(f"a statement has at most {STATEMENT_BYTES_MAX} characters")
    said = _parsed(text)
    if not isinstance(said, dict) or type(said.get("anchor")) is not int:
        raise ValueError("this is not the statement of an anchor")
    if said["anchor"] > VERSION:
        raise ValueError(f"the anchor is of version {said['anchor']}, and this release reads versions up to {VERSION}")
    texts: list[Any] = [said.get(name) for name in ("cluster", "previous", "founders")]
    numbers: list[Any] = [said.get(name) for name in ("number", "wall_ms", "clock", "members")]
    voters, heads = said.get("voters"), said.get("heads")
    if (
        not all(isinstance(one, str) for one in texts)
        or not all(type(one) is int and one >= 0 for one in numbers)
        or not all(_HASH.fullmatch(one) for one in texts[1:])
        or not isinstance(voters, list)
        or not all(isinstance(one, str) for one in voters)
        or len(set(voters)) < len(voters)
        or not isinstance(heads, dict)
        or not all(_is_head(one) for one in heads.values())
    ):
        raise ValueError("a field of the statement is missing or wrong")
    packed = {leader: (tick, digest) for leader, (tick, digest) in heads.items()}
    cluster, previous, founders = texts
    number, wall_ms, clock, members = numbers
    return AnchorStatement(cluster, number, previous, wall_ms, clock, founders, members, tuple(voters), packed)


def _is_head(one: object) -> bool:
    return (
        isinstance(one, list)
        and len(one) == 2
        and type(one[0]) is int
        and one[0] > 0
        and isinstance(one[1], str)
        and _HASH.fullmatch(one[1]) is not None
    )


def parse_anchors(data: bytes, name: str) -> list[Anchor]:
    """Return the anchors of a file, whose lines must continue each other.

    Args:
        name: the file's name, for errors.

    Raises:
        AnchorError: a line is not an anchor, or does not continue the one before it.
    """
    found: list[Anchor] = []
    previous = FIRST
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            anchor = _read_line(line)
        except ValueError as error:
            raise AnchorError(
                name, f"line {number} of {name} is not an anchor: {error}; take another copy of it"
            ) from None
        said = anchor.statement
        if (said.number, said.previous) != (number, previous):
            raise AnchorError(
                name, f"line {number} of {name} does not continue the line before it: the file was altered or cut"
            )
        if found and said.cluster != found[0].statement.cluster:
            raise AnchorError(name, f"line {number} of {name} is of another cluster; keep a file for each")
        previous = line_hash(line)
        found.append(anchor)
    if rest:
        raise AnchorError(
            name, f"{name} ends within line {len(lines) + 1}, whose end is lacking; run 'bedrockish anchor' again"
        )
    return found


def _read_line(line: bytes) -> Anchor:
    said = _parsed(line.decode("utf-8"))
    if not isinstance(said, dict) or not isinstance(said.get("statement"), str):
        raise ValueError("it has no statement")
    confirmed = said.get("signatures")
    if not isinstance(confirmed, dict) or not all(one is None or isinstance(one, dict) for one in confirmed.values()):
        raise ValueError("it does not say who confirmed it")
    anchor = Anchor(said["statement"], read_statement(said["statement"]), confirmed)
    if anchor.line().encode() != line:  # an anchor has one spelling, so nothing can be hidden in another spelling
        raise ValueError("it does not have the canonical form")
    return anchor


def line_hash(line: bytes) -> str:
    """Return the hash of a line without its newline; the next anchor contains this hash."""
    return sha256(line).hexdigest()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None

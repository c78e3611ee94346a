"""Anchors: the ends of a cluster's journals at a moment, signed by its nodes and kept outside, out of their reach.

An attacker with write access to all files of a cluster can make journals in which no law is broken: cut their ends, or
put another answer in and hash everything again. Only a record outside of the cluster reveals that. An anchor file has
one anchor a line, each a JSON object: ``statement``, the text that was signed, and ``signatures``, by node. A statement
names the hash of the line before it, so that lines can be added, but none removed from the middle or changed, as in a
transparency log (RFC 6962 has the idea).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from bedrockish_journal.model.errors import JournalFileError

VERSION = 1
SIGNED_AS = b"bedrockish anchor 1\n"  # comes before a statement that is signed, so that it cannot be taken for another
FIRST = "0" * 64  # what the first anchor of a file comes after
STATEMENT_BYTES_MAX = 1 << 20
_HASH = re.compile(r"[0-9a-f]{64}")


class AnchorError(JournalFileError):
    """Raised when anchors cannot be read, or are not what was written."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The signed statement.

    Attributes:
        cluster: the id of the cluster.
        number: of the anchor in its file, from 1.
        previous: the SHA-256 of the line before it, in hexadecimal; ``FIRST`` for the first.
        wall_ms: milliseconds since 1970 by the wall clock of the program that asked for it.
        clock: the safe clock of the node that was asked: no commit up to it can appear any more.
        founders: the SHA-256 of the membership of the founders, in hexadecimal.
        members: the version of the membership in force.
        voters: the names of those who vote in it, sorted.
        heads: for each timeline its last tick, and the hash of that entry in hexadecimal.
    """

    cluster: str
    number: int
    previous: str
    wall_ms: int
    clock: int
    founders: str
    members: int
    voters: tuple[str, ...]
    heads: Mapping[str, tuple[int, str]]

    @property
    def quorum(self) -> int:
        """How many of the voters are a majority: what so many of them hold is never lost."""
        return len(self.voters) // 2 + 1

    def text(self) -> str:
        """Return what is signed."""
        return json.dumps({"anchor": VERSION, **asdict(self)}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of one node.

    Attributes:
        certificates: the node's own first, then those between it and the authority; PEM.
        signature: of ``SIGNED_AS`` and the statement, in hexadecimal.
    """

    certificates: str
    signature: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """A line of an anchor file.

    Attributes:
        text: the statement, as it was signed.
        statement: what it says.
        signatures: by node; a node that has no certificate signs nothing, and has None.
    """

    text: str
    statement: Statement
    signatures: Mapping[str, Signature | None] = field(default_factory=dict)

    def line(self) -> str:
        """Return the line of the file, without its end."""
        signed = {node: one and asdict(one) for node, one in sorted(self.signatures.items())}
        return json.dumps({"statement": self.text, "signatures": signed})


def read_statement(text: str) -> Statement:
    """Read what ``Statement.text`` wrote.

    Raises:
        ValueError: it is something else.
    """
    if len(text) > STATEMENT_BYTES_MAX:
        raise ValueError(f"a statement has at most {STATEMENT_BYTES_MAX} characters")
    said = _parsed(text)
    if not isinstance(said, dict) or type(said.get("anchor")) is not int:
        raise ValueError("this is no statement of an anchor")
    if said["anchor"] > VERSION:
        raise ValueError(f"the anchor is of version {said['anchor']}, of a later release; this one knows {VERSION}")
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
        raise ValueError("a field of the statement is missing, or is not what it should be")
    packed = {leader: (tick, digest) for leader, (tick, digest) in heads.items()}
    cluster, previous, founders = texts
    number, wall_ms, clock, members = numbers
    return Statement(cluster, number, previous, wall_ms, clock, founders, members, tuple(voters), packed)


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
        data: all that is in it.
        name: of the file, for errors.

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
            raise AnchorError(name, f"line {number} of {name} is no anchor: {error}; take another copy of it") from None
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
        raise AnchorError(name, f"{name} ends within line {len(lines) + 1}: its writing was cut off; anchor once more")
    return found


def _read_line(line: bytes) -> Anchor:
    said = _parsed(line.decode("utf-8"))
    if not isinstance(said, dict) or not isinstance(said.get("statement"), str):
        raise ValueError("it has no statement")
    signatures: dict[str, Signature | None] = {}
    packed = said.get("signatures")
    if not isinstance(packed, dict):
        raise ValueError("it has no signatures")
    for node, one in packed.items():
        signatures[node] = None if one is None else read_signature(one)
    anchor = Anchor(said["statement"], read_statement(said["statement"]), signatures)
    if anchor.line().encode() != line:  # so there is one way to write it, and nothing can be hidden in another
        raise ValueError("it is not written as anchors are")
    return anchor


def read_signature(packed: object) -> Signature:
    """Read one signature.

    Raises:
        ValueError: the bytes are malformed.
    """
    if not isinstance(packed, dict):
        raise ValueError("a signature should be an object")
    certificates, signature = packed.get("certificates"), packed.get("signature")
    if not isinstance(certificates, str) or not isinstance(signature, str):
        raise ValueError("a signature should have certificates and a signature")
    bytes.fromhex(signature)
    return Signature(certificates, signature)


def line_hash(line: bytes) -> str:
    """Return what the next anchor says of a line, which is given without its end."""
    return sha256(line).hexdigest()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None

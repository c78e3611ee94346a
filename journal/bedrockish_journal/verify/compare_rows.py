"""Compares the rows of nodes in a range of a table: finds the rows that differ, and the nodes in the minority. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cbor2

from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.verify.row_digests import RangeDigest

UNREADABLE = "a page that cannot be read"


@value
class DifferingRow:
    """A row that differs between nodes, although all of them have applied all transactions that have written it."""

    table: str  # the table; empty for the definition of a table or an index
    key: str  # the row's key as text
    nodes: Mapping[str, str]  # the digest of the row at each node; empty if the node lacks the row
    # The nodes whose row differs from that of most members of the cluster; empty without a majority.
    minority: tuple[str, ...]

    def __str__(self) -> str:
        what = f"row {self.key} of {self.table}" if self.table else f"the definition of {self.key}"
        if not self.minority:
            groups = ", ".join(f"{node} has {digest or 'none'}" for node, digest in sorted(self.nodes.items()))
            return f"{what} differs, and no majority says which is right: {groups}"
        lacks = [node for node in self.minority if self.nodes.get(node) == ""]
        verb = "is missing" if len(lacks) == len(self.minority) else "differs"
        return f"{what} {verb} at {', '.join(self.minority)}: most nodes have another one"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing one range."""

    differences: list[DifferingRow]  # rows that differ
    # The number of rows that could not be compared, because a transaction has written them in the meantime.
    open: int = 0
    why_not: str = ""  # the reason why the range could not be compared; empty if it was compared


def alike(answers: Mapping[str, RangeDigest]) -> bool:
    """Return whether all nodes have the same rows in a range, even if they have applied different vectors."""
    found = list(answers.values())
    return not any(one.unreadable for one in found) and len({(one.digest, one.count) for one in found}) == 1


def common(answers: Mapping[str, RangeDigest]) -> dict[str, int]:
    """Return the vector that all nodes have applied."""
    vectors: Sequence[Vector] = [one.vector for one in answers.values()]
    leaders = {leader for vector in vectors for leader in vector}
    return {leader: min(vector.get(leader, 0) for vector in vectors) for leader in leaders}


def compare(table: str, answers: Mapping[str, RangeDigest], members: int) -> Comparison:
    """Compare the listed rows of a range.

    Args:
        answers: the answer of each node to a question whose vector ``beyond`` all of these nodes cover.
        members: the number of members of the cluster; a majority of them decides which row is right.
    """
    unreadable = sorted(node for node, one in answers.items() if one.unreadable)
    if unreadable:
        facts = {node: one.unreadable for node, one in answers.items()}
        return Comparison([DifferingRow(table, UNREADABLE, facts, tuple(unreadable))])
    if len({one.schema for one in answers.values()}) > 1:
        return Comparison([], why_not="the schema is being changed")
    why_not = next((one.incomparable for one in answers.values() if one.incomparable), "")
    if why_not:
        return Comparison([], why_not=why_not)
    touched = {key for one in answers.values() for key in one.touched}
    keys = {key for one in answers.values() for key in one.rows}
    differences, left_open = [], 0
    for key in sorted(keys):
        rows = {node: one.rows.get(key, b"").hex() for node, one in answers.items()}
        if len(set(rows.values())) == 1:
            continue
        if key in touched:
            left_open += 1
            continue
        differences.append(DifferingRow(table, print_key(key), rows, minority(rows, members)))
    return Comparison(differences, left_open)


def minority(rows: Mapping[str, str], members: int) -> tuple[str, ...]:
    """Return the nodes whose row differs from the row of most members; no node if no majority has equal rows."""
    row, count = Counter(rows.values()).most_common(1)[0]
    if 2 * count <= members:
        return ()
    return tuple(sorted(node for node, other in rows.items() if other != row))


def print_key(key: bytes) -> str:
    """Return a key as text: ``7`` for a rowid or a key of one column, ``('p', 3)`` for a key of several columns."""
    values = cbor2.loads(key)
    return repr(values[0]) if len(values) == 1 else repr(tuple(values))

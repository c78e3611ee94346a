"""The merging of executed transactions into one, if no two of them conflict.

A round of votes costs every node nearly the same, whether it decides one transaction or ten. Two transactions that do
not conflict have the same effect in either order, and also as one transaction.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bedrockish.api.requests import Request, digest_of
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.transaction import ROWS

MERGED_BYTES = 24 << 10  # the most bytes of changes and results that are merged, so that no group is sent in pieces
MoveUp = Callable[[str, Prepared], Prepared | None]
Join = Callable[[Sequence[bytes]], tuple[bytes, tuple[int, ...]]]


def may_share(prepared: Prepared) -> bool:
    """Return whether a transaction is small enough to be merged with others, and changes rows."""
    return not prepared.readonly and len(prepared.changes) <= MERGED_BYTES


def merge(
    # A request and its transaction, which the other transactions join; returned unchanged if none can join.
    first: tuple[Request, Prepared],
    # Further requests of the same isolation, each with a function that returns its transaction.
    others: Iterable[tuple[Request, Callable[[], Prepared]]],
    move_up: MoveUp,  # returns a command's transaction on the base of the newest commits; None if it conflicts with one
    join: Join,  # joins encoded changes, and counts the changes of each transaction
) -> Prepared:
    """Merge transactions into the first one; leave out those that cannot be merged."""
    request, prepared = first
    moved = move_up(request.command, prepared)
    if moved is None:
        return prepared  # the core finds its conflict and reports it
    merger = _Merger(request, moved)
    for other, prepare in others:
        try:
            one = move_up(other.command, prepare())
        except BedrockishError:
            continue  # its client gets the error when the request is executed alone
        if one is not None:
            merger.add(other, one)
    return merger.merged(join) if merger.is_several else prepared


class _Merger:
    """The transactions merged so far; at the beginning only the first one."""

    def __init__(self, request: Request, prepared: Prepared) -> None:
        self._requests, self._parts = [request], [prepared]
        keys = prepared.access_set
        self._reads, self._writes = set(keys.read_points), set(keys.write_points)
        self._with_ranges = [keys] if keys.has_ranges else []
        self._bytes = _size(prepared)

    @property
    def is_several(self) -> bool:
        """Whether any transaction has joined the first one."""
        return len(self._parts) > 1

    def add(self, request: Request, prepared: Prepared) -> None:
        """Add a transaction, unless it cannot be merged or conflicts with one added before."""
        first, keys, size = self._parts[0], prepared.access_set, _size(prepared)
        if self._bytes + size > MERGED_BYTES or not (_can_merge(first) and _can_merge(prepared)):
            return
        if (prepared.base, prepared.schema, prepared.config) != (first.base, first.schema, first.config):
            return
        # A command that was sent twice would happen twice here: its id only prevents that two transactions commit.
        if any(request.command == one.command for one in self._requests) or self._conflicts(keys):
            return
        self._requests.append(request)
        self._parts.append(prepared)
        self._bytes += size
        self._reads |= keys.read_points
        self._writes |= keys.write_points
        if keys.has_ranges:
            self._with_ranges.append(keys)

    def _conflicts(self, keys: AccessSet) -> bool:
        """Return whether a transaction conflicts with one added before."""
        writes = self._writes
        if not (writes.isdisjoint(keys.write_points) and writes.isdisjoint(keys.read_points)):
            return True
        if not self._reads.isdisjoint(keys.write_points):
            return True
        others = [one.access_set for one in self._parts] if keys.has_ranges else self._with_ranges
        return any(conflict(keys, other) is not None for other in others)

    def merged(self, join: Join) -> Prepared:
        """Return all transactions as one; for ``join``, see ``merge``."""
        first, *others = self._parts
        changes, shares = join([one.changes for one in self._parts])
        sets = [one.access_set for one in self._parts]
        keys = AccessSet(
            frozenset(self._reads),
            tuple(dict.fromkeys(one for keys in sets for one in keys.read_ranges)),
            frozenset(self._writes),
            tuple(dict.fromkeys(one for keys in sets for one in keys.write_ranges)),
        )
        users = tuple(one.user for one in self._requests)
        return replace(
            first,
            access_set=keys,
            changes=changes,
            joined=tuple((one.command, part.result) for one, part in zip(self._requests[1:], others, strict=True)),
            shares=shares,
            users=users if any(users) else (),
            digests=tuple(map(digest_of, self._requests)),
        )


def _can_merge(prepared: Prepared) -> bool:
    """Return whether a transaction changes rows, has no spans, no clock and no delay, and is not merged already."""
    return prepared.kind == ROWS and not (
        prepared.readonly or prepared.clock or prepared.spans or prepared.joined or prepared.delay_ms
    )


def _size(prepared: Prepared) -> int:
    return len(prepared.changes) + len(prepared.result)

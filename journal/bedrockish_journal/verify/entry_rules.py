"""The rules for one entry, given the entries that the same node applied before it. Pure; ``verify`` calls it.

The state is one vector, a few numbers for each entry (its clock, the ticks that it had seen, the nodes that approved
it) and the memberships, so that a journal of millions of entries can be checked. The names of the laws are those of
``bedrockish_journal.model.laws``.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping

from bedrockish_journal.model.entry import Entry, decode_entry, wrong_fields
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.model.membership import Membership, read_membership
from bedrockish_journal.model.rights import lacking
from bedrockish_journal.model.transaction import MEMBERS
from bedrockish_journal.model.written import changed_unwritten
from bedrockish_journal.storage.file_claims import PrunedBeginning
from bedrockish_journal.storage.row import JournalRow
from bedrockish_journal.verify.chain import Chains

MakeFinding = Callable[..., Finding]
_CLOCK_MAX = (1 << 64) - 1
_GAP_MAX = 1_000_000  # a larger gap, as before an altered tick, gets no clocks: they could fill the memory


def quorum(voters: int) -> int:
    """Return the number of ``voters`` that must approve a transaction: max(n//2 + 1, (n + f)//2), f = (n - 1)//2."""
    return max(voters // 2 + 1, (voters + (voters - 1) // 2) // 2)


def majority(voters: int) -> int:
    """Return the number of ``voters`` that must have held an adopted transaction."""
    return voters // 2 + 1


class _RunningMaximum:
    """The running maximum of a number over the ticks of a timeline, stored only at ticks where it grows."""

    __slots__ = ("_ticks", "_values")

    def __init__(self) -> None:
        self._ticks, self._values = array("Q"), array("Q")

    def add(self, tick: int, value: int) -> None:
        """Add the number of a tick. Ticks only grow; a tick out of order is left out, and another law reports it."""
        if not self._ticks or (value > self._values[-1] and tick > self._ticks[-1]):
            self._ticks.append(tick)
            self._values.append(value)

    def up_to(self, tick: int) -> int:
        """Return the highest number up to a tick; 0 before the first number."""
        place = bisect_right(self._ticks, tick)
        return self._values[place - 1] if place else 0


class EntryRules:
    """The checks of one node's journal, entry by entry in the order in which the node applied them.

    Why so large: Each rule uses one entry and facts of the entries before it, which one pass collects for all rules.
    """

    def __init__(
        self,
        node: str,  # the node whose journal is checked
        founding: bytes | None,  # the encoded membership of the founders; None if the file lacks it
        # Returns the body that was applied for (clock, origin) before a place in the order; used for second labels.
        original: Callable[[int, str, int], bytes | None],
        removed: Mapping[str, PrunedBeginning] | None = None,  # the marks of timelines whose first entries were removed
        *,
        # Returns whether the same entry was checked in another file, so that its changes need not be decoded again.
        is_checked: Callable[[JournalRow], bool] = lambda _row: False,
        # All memberships of the file, by version; they have the rights of the users.
        memberships: Mapping[int, Membership] | None = None,
    ) -> None:
        """Start at an empty database, or at the beginning of the file's journal."""
        self._memberships = memberships or {}
        self._is_checked = is_checked
        # timeline -> node -> last tick of the node that entries had seen
        self._seen_ticks: dict[str, dict[str, _RunningMaximum]] = {}
        # timeline -> node -> the node's tick when it approved entries
        self._approval_ticks: dict[str, dict[str, _RunningMaximum]] = {}
        self.node, self.original = node, original
        self.chains = Chains(node)
        self.applied: dict[str, int] = {}
        self.entries = self.repeats = self.adopted = 0
        self.entry: Entry | None = None  # the entry that was checked last; None if it cannot be decoded
        self.was_checked = False  # whether this entry was checked before, in another file
        self._clocks: dict[str, array[int]] = {}  # timeline -> the highest clock up to each tick
        self._ticks_before: dict[str, int] = {}  # timeline -> the number of ticks that are missing before ``_clocks``
        self._removed = dict(removed or {})
        self._members: dict[int, dict[str, bool]] = {}
        self._retired: dict[str, int] = {}  # timelines that vectors omit -> the membership that retired them
        self._end_ticks: dict[str, int] = {}  # retired timelines -> the last tick, which the membership change had seen
        self._member_changes: list[tuple[str, int, int]] = []  # leader, tick and version of each membership change
        self._founding = founding
        self._founding_version = 0

    @property
    def nodes(self) -> list[str]:
        """Every node that leads a timeline or ever was a member, sorted."""
        return sorted({*self.applied, *(node for members in self._members.values() for node in members)})

    def begin(self) -> Iterator[Finding]:
        """Yield the faults of the file's beginning, before the first entry."""
        if self._founding is None:
            yield Finding("members", self.node, text="the file lacks the founding membership: no quorum can be judged")
            return
        try:
            founding = read_membership(self._founding)
        except EntryMalformedError as error:
            yield Finding("members", self.node, text=f"the founding membership cannot be read: {error}")
        else:
            self._learn_members(founding)
            self._founding_version = founding.version
        for leader, mark in self._removed.items():
            yield from self._begin_at(leader, mark)

    def _begin_at(self, leader: str, mark: PrunedBeginning) -> Iterator[Finding]:
        self.chains.heads[leader] = mark.tick, mark.hash
        self.applied[leader] = mark.tick
        self._clocks[leader], self._ticks_before[leader] = array("Q", [mark.clock]), mark.tick - 1
        for tick, changes in mark.changed:
            try:
                membership = read_membership(changes)
            except EntryMalformedError as error:
                text = f"the membership of {leader}{tick}, which was removed, cannot be read: {error}"
                yield Finding("members", self.node, leader, tick, text=text)
            else:
                self._learn_members(membership)
                self._member_changes.append((leader, tick, membership.version))

    def _learn_members(self, membership: Membership) -> None:
        self._members[membership.version] = {node: one.voter for node, one in membership.members.items()}
        self._retired.update(membership.retired)

    def end(self) -> Iterator[Finding]:
        """Yield the faults that show after the last entry."""
        for leader, mark in self._removed.items():
            if self.applied[leader] == mark.tick:
                text = f"{leader} is removed up to {leader}{mark.tick}, its last entry, which no node removes"
                yield Finding("density", self.node, leader, mark.tick, text=text)

    def check(self, row: JournalRow) -> Iterator[Finding]:
        """Yield the faults of the next entry."""
        yield from self.chains.check(row)
        self.entries += 1
        self.repeats += bool(row.repeat)

        def finding(check: str, text: str) -> Finding:
            txid = f"{row.origin}-{row.clock:x}"
            return Finding(check, self.node, row.leader, row.tick, txid, text=f"{row.leader}{row.tick} {text}")

        clock = _CLOCK_MAX
        self.entry = None
        try:
            self.entry = entry = decode_entry(row.prev, row.label, row.body)
        except EntryMalformedError as error:
            yield finding("bytes", f"cannot be read: {error}")
        else:
            clock = entry.txid.clock
            self.adopted += entry.adopted_from is not None
            yield from self._columns(row, entry, finding)
            self.was_checked = self._is_checked(row)
            if not self.was_checked:
                membership = self._memberships.get(entry.transaction.config)
                for law, wrong in (
                    ("bytes", wrong_fields(entry.transaction)),
                    ("users", lacking(membership, entry.transaction)),
                    ("writes", changed_unwritten(entry.transaction)),
                ):
                    if wrong is not None:
                        yield finding(law, wrong)
            yield from self._label(entry, finding)
            if entry.tick > self._end_ticks.get(entry.leader, entry.tick) and not row.repeat:
                yield finding(
                    "members", f"is in a timeline that was retired at its tick {self._end_ticks[entry.leader]}"
                )
            yield from self._causality(entry, finding)
            yield from self._closure(entry, finding)
            yield from self._approvals(entry, finding)
            yield from self._once(row, entry, finding)
            yield from self._quorum(entry, finding)
            if entry.transaction.kind == MEMBERS:
                yield from self._membership(row, entry, finding)
            self._record(entry)
        self._advance(row.leader, row.tick, clock)

    @property
    def memberships(self) -> Mapping[int, Mapping[str, bool]]:
        """The memberships of the journal: version -> name of each member -> whether it votes."""
        return self._members

    @property
    def retired(self) -> Mapping[str, int]:
        """The timelines that vectors omit, each with the membership that retired it."""
        return self._retired

    def _record(self, entry: Entry) -> None:
        """Record the vector that an entry had seen, and its approvers."""
        for numbers, kept in ((entry.after, self._seen_ticks), (entry.quorum, self._approval_ticks)):
            of = kept.setdefault(entry.leader, {})
            for node, tick in numbers.items():
                if tick <= _CLOCK_MAX:
                    of.setdefault(node, _RunningMaximum()).add(entry.tick, tick)

    def _advance(self, leader: str, tick: int, clock: int) -> None:
        clocks = self._clocks.setdefault(leader, array("Q"))
        highest = clocks[-1] if clocks else 0
        # A clock that cannot be decoded must not make every later entry look wrong.
        highest = highest if clock == _CLOCK_MAX else max(highest, clock)
        ahead = tick - self._ticks_before.get(leader, 0) - len(clocks)
        if ahead == 1:
            clocks.append(highest)
        elif 0 < ahead <= _GAP_MAX:  # entries are missing, as reported before, and their clocks are unknown
            clocks.extend([highest] * ahead)
        self.applied[leader] = max(tick, self.applied.get(leader, 0))

    def _columns(self, row: JournalRow, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        transaction = entry.transaction
        pairs = (
            ("leader", row.leader, entry.leader),
            ("tick", row.tick, entry.tick),
            ("clock", row.clock, entry.txid.clock),
            ("origin", row.origin, entry.txid.leader),
            ("command", row.command, transaction.command),
            ("kind", row.kind, transaction.kind),
        )
        for name, column, truth in pairs:
            if column != truth:
                yield finding("columns", f"has the {name} {column!r} in its column and {truth!r} in its bytes")

    def _label(self, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        origin = entry.txid.leader
        if entry.adopted_from is None:
            if entry.leader != origin:
                yield finding("label", f"commits a transaction of {origin} without saying that it adopted it")
            if entry.quorum.get(entry.leader) != entry.tick:
                yield finding("quorum", f"lacks its leader's own approval at tick {entry.tick}")
            for node, tick in entry.quorum.items():
                if tick < entry.after.get(node, 0):
                    seen = entry.after[node]
                    yield finding(
                        "approval", f"was approved by {node} at {node}{tick}, but it had seen {node}{seen} already"
                    )
        elif entry.adopted_from != origin:  # a leader may adopt its own transaction, which it had to recover
            yield finding("label", f"is adopted from {entry.adopted_from}, but its transaction is of {origin}")

    def _causality(self, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        after, clock = entry.after, entry.txid.clock
        for node, tick in after.items():
            if self.applied.get(node, 0) < tick:
                yield finding("causality", f"was applied before {node}{tick}, which is in its base")
            elif (latest := self._latest(node, tick)) >= clock:
                yield finding("clock", f"has the clock {clock:x}, not later than {latest:x} in {node}1 to {node}{tick}")

    def _closure(self, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        """Yield a finding for the first tick that an entry's predecessors had seen, but its own vector lacks."""
        after, config = entry.after, entry.transaction.config
        for node, tick in after.items():
            if tick <= self._ticks_before.get(node, 0) + 1 and node in self._removed:
                continue  # the vectors of removed entries are gone
            for other, saw in self._seen_ticks.get(node, {}).items():
                seen = saw.up_to(tick)
                if seen > after.get(other, 0) and not (
                    other not in after and self._retired.get(other, config + 1) <= config
                ):
                    text = f"had seen {node}{tick}, but not {other}{seen}, which {node}{tick} had seen"
                    yield finding("closure", text)
                    return

    def _approvals(self, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        """Yield a finding if an entry, such as A5, had seen another leader's entry that A approved at A5 or later."""
        for node, tick in entry.after.items():
            given = self._approval_ticks.get(node, {}).get(entry.leader)
            if given is not None and node != entry.leader and (at := given.up_to(tick)) >= entry.tick:
                late = f"only at {entry.leader}{at}"
                yield finding(
                    "approval", f"had seen {node}{tick}, but {entry.leader} approved an entry up to that one {late}"
                )

    def _latest(self, node: str, tick: int) -> int:
        clocks = self._clocks[node]
        place = tick - self._ticks_before.get(node, 0)
        return clocks[min(place, len(clocks)) - 1] if clocks and place > 0 else 0

    def _once(self, row: JournalRow, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        first = self.original(*entry.txid, row.seq) if row.repeat else None
        if (
            row.repeat
            and first is None
            and entry.txid.clock > max((m.clock for m in self._removed.values()), default=0)
        ):
            yield finding("txid", f"is said to repeat {entry.txid}, which was not applied before it")
        elif first is not None and first != entry.transaction.body:
            yield finding("txid", f"repeats {entry.txid} with another content")

    def _quorum(self, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        config = entry.transaction.config
        if not self._members:
            return  # ``begin`` has reported it
        seen = (version for leader, tick, version in self._member_changes if entry.after.get(leader, 0) >= tick)
        expected = max(seen, default=self._founding_version)
        if config != expected:
            yield finding(
                "quorum", f"counts by membership {config}, but membership {expected} was in force at its base"
            )
        members = self._members.get(config)
        if members is None:
            yield finding("quorum", f"counts by membership {config}, which is not in the journal")
            return
        voters = {node for node, voter in members.items() if voter}
        approved = voters.intersection(entry.quorum)
        for stranger in sorted(voters.symmetric_difference(entry.quorum) - voters):
            yield finding("quorum", f"counts {stranger}, which is not a voter of its membership")
        need = quorum(len(voters)) if entry.adopted_from is None else majority(len(voters))
        if len(approved) < need:
            verb = "approved" if entry.adopted_from is None else "held"
            names = ", ".join(sorted(approved)) or "no voter"
            yield finding(
                "quorum", f"was {verb} by {names}: {len(approved)} of {len(voters)} voters, {need} are needed"
            )

    def _membership(self, row: JournalRow, entry: Entry, finding: MakeFinding) -> Iterator[Finding]:
        try:
            membership = read_membership(entry.transaction.changes)
        except EntryMalformedError as error:
            yield finding("members", f"has a membership that cannot be read: {error}")
            return
        config, version = entry.transaction.config, membership.version
        if not row.repeat and version != config + 1:
            yield finding("members", f"makes membership {version} out of membership {config}")
        for leader in membership.retired.keys() - self._retired.keys():
            # Entries under this membership count as having seen the whole timeline, so the change must have seen it.
            self._end_ticks[leader] = entry.after.get(leader, 0)
            if entry.after.get(leader, 0) < self.applied.get(leader, 0):
                seen, held = entry.after.get(leader, 0), self.applied[leader]
                yield finding(
                    "members", f"retires the timeline {leader} at {leader}{seen}, and it goes on to {leader}{held}"
                )
        self._learn_members(membership)
        self._member_changes.append((entry.leader, entry.tick, version))

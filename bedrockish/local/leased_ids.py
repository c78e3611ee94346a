"""Row ids that a node leases to a program, for the rows of its transactions."""

import threading

import apsw

from bedrockish.engine.statements.rowid_allocator import LEASE_MAX, AutoIds, IdsNeededError

__all__ = ["LEASE", "LEASE_MAX", "GivenIds", "IdsNeededError", "LeasedIds"]
LEASE = 64  # the least number of ids in one lease


class GivenIds(threading.local):
    """The row ids that the current statement of this thread has given out, with their tables."""

    def __init__(self) -> None:
        self.ids: list[tuple[str, int]] = []
        self.is_short = False  # whether the statement needed one more id than was leased


class LeasedIds(AutoIds):
    """Row ids that the node has leased to this process: no other transaction of the cluster gets them."""

    def __init__(self) -> None:
        super().__init__()
        # A number that changes with the schema: a table of the same name may then be a different table.
        self.version = 0
        self._leases: dict[str, list[int]] = {}  # table -> leased ids, in falling order: the next id is the last
        self.given = GivenIds()  # the ids given out by the current statement of each thread

    def twin(self) -> "LeasedIds":
        """Return an allocator for another connection that uses the same leases."""
        other = LeasedIds()
        other._home, other._highest, other._leases = self, self._highest, self._leases
        other.given = self.given
        return other

    def note_lease(self, table: str, ids: list[int]) -> None:
        """Record ids that the node has leased for a table, in rising order and above all earlier ones."""
        self._leases.setdefault(table, [])[:0] = ids[::-1]  # changed in place, as in ``give_back``

    def give_back(self, ids: list[tuple[str, int]]) -> None:
        """Put unused ids back into the leases, for later rows."""
        back: dict[str, list[int]] = {}
        for table, found in ids:
            back.setdefault(table, []).append(found)
        for table, those in back.items():
            leased = self._leases.get(table)
            if leased is not None:
                leased += those  # changed in place, because another thread may take an id from this list now
                leased.sort(reverse=True)

    def take_back_given(self) -> None:
        """Put the ids of this thread's statement back into the leases, because the statement had no effect."""
        self.give_back(self.given.ids)
        self.given.ids.clear()

    def forget_leases(self) -> None:
        """Forget all leases, after a change of the schema or a fork."""
        self.version += 1
        self._leases.clear()

    def _next(self, db: apsw.Connection, table: str) -> int | None:
        above = self._in_table(db, table)
        leased = self._leases.get(table, [])
        while leased:
            found = leased.pop()
            if found > above:
                self._seen[table] = found  # the ids of a statement rise, as in ``AutoIds``
                self.given.ids.append((table, found))
                return found
        self.given.is_short = True
        raise IdsNeededError("the lease of ids is used up", table=table, above=above)

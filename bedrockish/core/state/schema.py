"""The version of the schema in force here, and the change that is scheduled."""

from bedrockish_journal.model.changes import decode_statements
from bedrockish_journal.model.transaction import Transaction

GATHERING_BYTES_MAX = 1_000  # a longer change counts as one of definitions


class SchemaState:
    """The schema version in force here, and the scheduled change.

    A scheduled change is applied and not yet in force. It comes into force at the same clock at every node.

    Invariants:
        At most one change is scheduled: a leader begins a second change only when the first is in force there.
    """

    def __init__(self, version: int) -> None:
        self.version = version  # the version in force here
        self._same_tables_since = version  # the oldest version after which every change has only gathered statistics
        self.scheduled: Transaction | None = None  # the change that is applied and not yet in force, or None

    def is_behind(self, clock: int) -> bool:
        """Return whether a transaction or read with this clock needs a schema that is not in force here yet."""
        return self.scheduled is not None and self.scheduled.activates <= clock

    def fits(self, version: int) -> bool:
        """Return whether the tables of a version are those of the version in force: it has at most other statistics."""
        return self._same_tables_since <= version <= self.version

    @property
    def is_gathering(self) -> bool:
        """Whether the scheduled change, if there is one, only gathers statistics."""
        return self.scheduled is not None and _only_gathers(self.scheduled)

    def schedule(self, change: Transaction) -> None:
        """Schedule an applied change for its activation."""
        # A second change would need the schema version, and an activation clock, that exist only after the first.
        assert self.scheduled is None, f"{self.scheduled} is not in force yet"
        self.scheduled = change

    def activate(self) -> Transaction:
        """Put the scheduled change in force, and return it."""
        change, self.scheduled = self.scheduled, None
        assert change is not None
        self.advance(change)
        return change

    def advance(self, change: Transaction) -> None:
        """Increment the version: a change is in force now, at its activation or, without one, when it is applied."""
        assert self.scheduled is None
        self.version += 1
        if not _only_gathers(change):
            self._same_tables_since = self.version


def _only_gathers(change: Transaction) -> bool:
    """Return whether a change of the schema only gathers statistics, which change no result."""
    changes = change.changes
    is_short = len(changes) <= GATHERING_BYTES_MAX  # a change with rows may have 32 MiB, which take long to decode
    return is_short and all(sql.lstrip()[:7].upper() == "ANALYZE" for sql in decode_statements(changes))

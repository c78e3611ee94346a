"""The version of the schema in force here, and the change that is to come into force."""

from bedrockish_journal.model.transaction import Transaction


class Schema:
    """The schema version, and a change of it: applied first, in force later, at its activation clock at every node.

    Attributes:
        version: the version in force here.
        scheduled: the change that is applied and not yet in force, or None.

    Invariants:
        At most one change is scheduled: no leader gets a second change decided before the first is in force at it.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.scheduled: Transaction | None = None

    def is_behind(self, clock: int) -> bool:
        """Return whether a transaction or read with this clock needs a schema that is not in force here yet."""
        return self.scheduled is not None and self.scheduled.activates <= clock

    def schedule(self, change: Transaction) -> None:
        """Wait for the activation of a change, which is applied."""
        # A second change would wait for a clock, and run on a version, that exists only after the first.
        assert self.scheduled is None, f"{self.scheduled} is not in force yet"
        self.scheduled = change

    def activate(self) -> Transaction:
        """Put the scheduled change in force, and return it."""
        change, self.scheduled = self.scheduled, None
        assert change is not None
        self.advance()
        return change

    def advance(self) -> None:
        """Count a change that came into force: the scheduled one, or one that is in force as soon as it is applied."""
        assert self.scheduled is None
        self.version += 1

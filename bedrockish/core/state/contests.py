"""Which nodes' transactions have met at which table or index of late: who competes for the same rows."""

from collections.abc import Iterable

MEMORY_S = 10.0  # how long a meeting counts
OBJECTS_MAX = 1_000


class Contests:
    """The last time, in seconds, at which another leader's transaction was in the way of one of ours, by object."""

    def __init__(self) -> None:
        self._met: dict[str, dict[str, float]] = {}

    def note(self, name: str, leader: str, seconds: float) -> None:
        """A transaction of ours has lost a run to one of another leader's."""
        if name not in self._met and len(self._met) >= OBJECTS_MAX:
            self._met.clear()
        self._met.setdefault(name, {})[leader] = seconds

    def rivals(self, names: Iterable[str], seconds: float) -> set[str]:
        """Return the leaders that were met at any of these objects not long ago."""
        met = (pair for name in names for pair in self._met.get(name, {}).items())
        return {leader for leader, at in met if seconds - at < MEMORY_S}

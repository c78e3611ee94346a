"""The answers to ``skip_locked()`` about rows that committed or pending transactions write, from the core's state."""

from bedrockish.core.state.state import State
from bedrockish.engine.statements.row_locks import Base, ForeignTransactions
from bedrockish_journal.model.access_set import AccessSet


class ContestedRows(ForeignTransactions):
    """Looks up, in the state of the core, which keys other transactions write."""

    def __init__(self, state: State) -> None:
        self._state = state

    def is_writing(self, key: bytes, base: Base | None) -> bool:
        """Return whether a pending transaction, or a commit that is not in ``base``, writes a key."""
        state = self._state
        if state.votes.pending.is_writing(key):
            return True
        # Only the loop passes a base: other threads may not read the conflict window, which the loop changes.
        return base is not None and any(state.commit_window.conflicts(AccessSet(frozenset({key})), dict(base)))

    def share(self, objects: tuple[str, ...]) -> tuple[int, int]:
        """Return this node's place, by name, among the nodes that contend for these objects; and their number."""
        state = self._state
        nodes = sorted(state.contests.rivals(objects, state.clock.now.seconds) | {state.me})
        return nodes.index(state.me), len(nodes)

    def seconds(self) -> float:
        """Return the time of the node's last step, in seconds."""
        return self._state.clock.now.seconds

"""The commits that an open transaction sees, and those that its answers reveal."""

from bedrockish.api.requests import Token
from bedrockish.core.coordinator.revalidation import AccessSets
from bedrockish.core.state.state import State
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.node.scheduling.durability import Durable
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.open import Open
from bedrockish_journal.model.vector import Vector, covers


class Visibility:
    """The answers of open transactions at one node."""

    def __init__(self, engine: Engine, state: State, interactive: Interactive, durable: Durable) -> None:
        self._engine, self._state, self._interactive, self._durable = engine, state, interactive, durable

    def is_current(self, session: Session) -> bool:
        """Return whether no commit after the snapshot of a serializable transaction has written what it has read."""
        if session.snapshot is None or session.behind or session.clock or not session.serializable:
            return False
        applied, sets = self._engine.applied, session.sets
        assert session.base is not None
        assert sets is not None
        if session.base != applied:
            newer = self._state.commit_window.newer_than(session.base)
            session.behind = newer is None or any(
                one.is_in(applied) and sets.conflicts_with(one.access_set) is not None for one in newer
            )
        return not session.behind

    def move_up(self, session: Session, before: Vector) -> bool:
        """Move a transaction that has only read to a snapshot of the last batch; return whether that is possible.

        ``before``: the vector that was applied when all reads but the last one were still current; the last read is
        repeated. No entry applied after it, even during a wait for the batch, may touch anything that was read.
        """
        engine, flushed = self._engine, self._engine.flushed
        if (
            engine.batch.is_away
            or engine.batch.is_dirty
            or flushed.schema != session.schema
            or session.snapshot is None
        ):
            return False
        assert session.sets is not None
        if self._is_touched(session.sets, before):
            return False
        self._interactive.take_snapshot(session)
        session.behind = False
        return True

    def _is_touched(self, sets: AccessSets, before: Vector) -> bool:
        """Return whether a commit that a vector lacks conflicts with the reads of a transaction."""
        window = self._state.commit_window
        newer = window.newer_than(before)
        if newer is not None:
            return any(sets.conflicts_with(one.access_set) is not None for one in newer)
        # Hundreds of commits later, the first of them are packed, and found by their keys only.
        return window.has_dropped(before) or next(window.conflicts(sets.access_set(), before), None) is not None

    def wait_for_disk(self, one: Open) -> steps.Steps[None]:
        """Wait until the client's answer depends on durable commits only.

        The answer needs no wait if it would be the same without the commits here that are not durable yet.
        """
        session, state, durable = one.session, self._state, self._engine.durable
        base = session.base
        if base is None:
            return
        if isinstance(session.workspace, OverlayTransaction) and state.clock.value <= state.clock.ceiling:
            return  # ``told`` is the transaction's snapshot, which was durable at its begin
        on_snapshot = session.snapshot is not None and not session.wrote
        seen = base if on_snapshot else self._engine.applied
        if state.clock.value > state.clock.ceiling:  # the answer may contain a value of the clock
            yield self._durable
        elif covers(durable, seen):
            one.told = base
        elif self._is_the_same(session, seen, durable):
            one.told = durable
        else:
            one.told = base
            yield self._durable

    def _is_the_same(self, session: Session, seen: Vector, durable: Vector) -> bool:
        """Return whether a transaction's results would be the same without the commits that are not durable."""
        newer = self._state.commit_window.newer_than(durable)
        if newer is None or session.sets is None or session.workspace is not None or session.looked_behind:
            return False
        return all(session.sets.conflicts_with(one.access_set, reads=True) is None for one in newer if one.is_in(seen))

    def token(self, one: Open) -> Token:
        """Return the token of the commits that a transaction's answers depend on."""
        return Token() if one.told is None else Token(one.told, self._state.read_clock())

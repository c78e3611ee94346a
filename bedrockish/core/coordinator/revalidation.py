"""Revalidation: whether an earlier execution would have the same result on the newest commits.

Interactive transactions cannot be executed again, because their clients have acted on the answers; and large executions
take too long to repeat. As long as no later commit writes a key that the execution has read or written, it would have
the same result on the newest data. So its base moves up to the newest commits, and it is led as if it was just
executed. After a later commit that writes such a key, an interactive transaction fails, and any other request is
executed again.
"""

from dataclasses import replace
from typing import Protocol

from bedrockish.core.coordinator.request import MEMBERS_OR_USERS, InFlight, readable
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.commit_window import NEVER, CommitWindow
from bedrockish.core.state.conflict_records import note_conflict
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError, ConflictError, schema_changed
from bedrockish_journal.model.access_set import LAST_CLOCK, AccessSet, Range, clock_key
from bedrockish_journal.model.transaction import MEMBERS, ROWS
from bedrockish_journal.model.vector import Vector

KEEPS_BASE = -1  # as ``config``: every change of the members outside the base is a conflict


def overtaken(
    state: State, access_set: AccessSet, base: Vector, spans: tuple[Range, ...] = (), *, config: int
) -> ConflictError | None:
    """Return the error for a transaction that conflicts with a commit outside its base; None if it can go on.

    Args:
        base: the full vector of the commits that it has seen.
        spans: as in ``Prepared``.
        config: the version of the membership by which its user's rights were checked, or will be; or ``KEEPS_BASE``.
    """
    # The conflict window has dropped commits that this base lacks: these cannot be compared, and count as a conflict.
    if state.commit_window.has_dropped(base):
        window_s = state.settings.conflict_window_ms / 1000
        return ConflictError(
            f"the transaction's snapshot is older than {window_s:g} s, and rows that it read may have changed since; "
            "it did not happen: run it again"
        )
    found = first_conflict(state.commit_window, access_set, base, spans, config)
    if found is None:
        return None
    note_conflict(state.counts, access_set, found.key)
    state.note_rival(found.key, found.other)
    return lost_to(state, found)


def first_conflict(
    window: CommitWindow, access_set: AccessSet, base: Vector, spans: tuple[Range, ...], config: int = 0
) -> Conflict | None:
    """Return a commit outside a base that conflicts with an access set, or None.

    The access set of a statement over much of a table has whole indexes as written ranges: ``spans``. A commit that
    only wrote in them, for example the index entry of another new row, does not conflict with the statement; a commit
    that read in them does. For ``config`` see ``overtaken``.
    """
    if spans:
        written = tuple(one for one in access_set.write_ranges if one not in spans)
        access_set = replace(access_set, write_ranges=written)
        found = next(window.readers(spans, base), None)
        if found is not None:
            return found
    conflicts = window.conflicts(access_set, base)
    return next((one for one in conflicts if config < window.member_changes.get(one.other, NEVER)), None)


class AccessSets(Protocol):
    """The reads and writes of an open transaction so far."""

    def conflicts_with(self, writer: AccessSet) -> bytes | None:
        """Return a key that the writer writes and this transaction has read, looked up or written, or None."""

    def overwrites(self, reader: AccessSet) -> bytes | None:
        """Return a key that the reader has read or looked up and this transaction writes, or None."""

    def rests_on(self) -> AccessSet:
        """Return the keys whose later writes invalidate the transaction, as the reads of an access set."""

    def access_set(self) -> AccessSet:
        """Return the access set to certify."""


def invalidated(state: State, sets: AccessSets, base: Vector) -> ConflictError | None:
    """Return the error for an open transaction if a commit outside its base conflicts with it; else None.

    A commit conflicts if it wrote keys that the transaction depends on, or read keys that the transaction writes. Its
    reads count because of foreign keys: the delete of a parent does not read the children, and only the insert of a
    child reads the parent.
    """
    config = state.roster.membership.version  # rights are checked again before the next statement, and at COMMIT
    # Usually few commits; each is compared with the transaction's reads and writes so far.
    newer = state.commit_window.newer_than(base)
    if newer is None:
        return overtaken(state, sets.access_set(), base, config=config)
    for known in newer:
        if state.commit_window.member_changes.get(known.txid, NEVER) <= config:
            continue
        key = sets.conflicts_with(known.access_set) or sets.overwrites(known.access_set)
        if key is not None:
            note_conflict(state.counts, sets.rests_on(), key)
            state.note_rival(key, known.txid)
            return lost_to(state, Conflict(known.txid, key))
    return None


def lost_to(state: State, found: Conflict) -> ConflictError:
    """Return the error for a transaction that conflicts with another one."""
    name = MEMBERS_OR_USERS if found.other in state.commit_window.member_changes else readable(found.object)
    return ConflictError(
        f"{found.other} of {found.other.leader} has changed {name} since the transaction began; the transaction did "
        "not happen: run it again",
        table=name,
        key=found.key.hex(),
        other=str(found.other),
        leader=found.other.leader,
    )


def lost(state: State, command: str, prepared: Prepared) -> ConflictError | None:
    """Return the error if an earlier execution might have another result now, else None."""
    schema, now = state.schema, state.clock.read()
    reads_schema = clock_key(LAST_CLOCK) in prepared.access_set.read_points
    moves = prepared.kind == ROWS and not (prepared.clock or reads_schema)
    is_old = prepared.schema != schema.version
    if is_old and not (moves and schema.fits(prepared.schema)):
        return schema_changed()
    # A change that only gathers statistics is not a conflict, although it writes the clocks that row transactions read.
    if moves and (is_old or schema.is_gathering):
        now = 0
    access_set, config = _rests_on(command, prepared, now)
    return overtaken(state, access_set, prepared.base, prepared.spans, config=config)


def _rests_on(command: str, prepared: Prepared, now: int) -> tuple[AccessSet, int]:
    """Return two arguments of ``overtaken`` for an execution: the access set to compare, and ``config``.

    ``now`` is a present clock; not needed if the execution only read.
    """
    access_set = prepared.access_set
    if not prepared.readonly:
        # The check includes the command id and a present clock: the command may have happened elsewhere, or a schema
        # change may have come into force.
        access_set = claim(access_set, (command,), prepared.kind, now, LAST_CLOCK)
    # A membership change replaces the whole membership, so it would undo a change that its base lacks.
    return access_set, KEEPS_BASE if prepared.clock or prepared.kind == MEMBERS else prepared.config


def moved_up(state: State, command: str, prepared: Prepared) -> Prepared | None:
    """Return an execution with its base moved up, as ``move`` does; None if it might have another result now.

    It changes no counter and reads no clock, so that a driver may call it between two steps. The core checks again.
    """
    if prepared.schema != state.schema.version or state.commit_window.has_dropped(prepared.base):
        return None
    access_set, config = _rests_on(command, prepared, LAST_CLOCK)  # LAST_CLOCK: every schema change conflicts
    if first_conflict(state.commit_window, access_set, prepared.base, prepared.spans, config) is not None:
        return None
    return replace(prepared, base=dict(state.timelines.applied))


def move(state: State, inflight: InFlight, prepared: Prepared) -> Prepared | BedrockishError:
    """Return an execution with its base moved up to the newest commits; an error if these might change its result."""
    if not inflight.once and prepared.schema != state.schema.version:
        return schema_changed()  # unlike an open transaction's, a request's keys do not show reads of the schema
    error = lost(state, inflight.request.command, prepared)
    if error is not None:
        return error
    # With a transaction clock the base stays: all of its commits must be below that clock.
    if prepared.clock or (prepared.base == state.timelines.applied and prepared.schema == state.schema.version):
        return prepared
    return replace(prepared, base=dict(state.timelines.applied), schema=state.schema.version)

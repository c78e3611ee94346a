"""Deliberate faults of the rules on top of the agreement: reads and sessions, transaction clocks, members, open
transactions, schema changes, damaged rows. See ``faulty``.
"""

from bedrockish.core import node
from bedrockish.core.coordinator import commit_clock, coordinator, read_checks, reservations, schema_barrier
from bedrockish.core.coordinator import revalidation as once
from bedrockish.core.recovery import recovery
from bedrockish.core.replica import apply_queue, safe_time, voter
from bedrockish.core.state import membership, roster, state
from bedrockish.node.cluster import incarnations
from tools.editing import Fault, fault
from tools.sim import database, operator
from tools.sim.options import CROWDED

_State, _Coordinator, _Voter = state.State, coordinator.Coordinator, voter.Voter
_VETO = "found or state.votes.own_ends.vetoes(transaction)"
_RESERVED = "(state.reserved and Conflict(Txid(state.reserved[0], state.me), NO_KEY))"
DUELS = {"suspect_every_s": 0.004, "suspicion_ms": 200, "delay_ms": 5.0, "sync_ms": 0.5, "hot": 0.5, "load_s": 1.5}
_ALTERS = {  # without flips, because a schema change has another result on a damaged row, which breaks another law
    **{"alter": 0.2, "delay_ms": 5.0, "schema_delay_ms": 2, "load_s": 2.0, "voters": 3, "flip_every_s": 0.0}
}
_CHANGES = {"changes_every_s": 0.1, "load_s": 3.0, "voters": 3, "heartbeat_ms": 50, "delay_ms": 5.0, "dead": 0}
_RESTORED = {
    **{"faults": ("restore", "restore", "crash_all", "crash", "one_way"), "fault_every_s": 0.1, "voters": 3, "dead": 0},
    **{"load_s": 4.0, "clients": 10, "think_ms": 5.0, "sync_ms": 1.0, "delay_ms": 5.0, "heartbeat_ms": 50},
}
_MOVED = "__import__('dataclasses').replace(prepared, base=dict(self.state.timelines.applied))"
_LARGE = {
    **{"piece_bytes": 40, "voters": 3, "hot": 0.9, "keys": 4, "clients": 10, "think_ms": 2.0, "delay_ms": 3.0},
    **{"talks": 0.0, "alter": 0.0, "load_s": 2.0, "dead": 0, "faults": ()},
}
_TALKS = {"talks": 0.7, "voters": 3, "hot": 0.5, "delay_ms": 5.0, "load_s": 3.0}
_COMPARED = {
    **{"calm": True, "compare_ms": 100.0, "clients": 6, "think_ms": 20.0, "delay_ms": 1.0, "sync_ms": 0.5, "hot": 0.0},
    **{"keys": 40, "closing_lag_ms": 50, "heartbeat_ms": 20, "load_s": 3.0},
}
_STEADY = {**_COMPARED, "compare_ms": 0.0, "load_s": 14.0, "think_ms": 40.0, "delay_ms": 20.0, "clients": 10}
_JOURNAL = {
    **{"calm": True, "voters": 5, "journal": 0.9, "clients": 12, "wander": 1.0, "think_ms": 5.0, "delay_ms": 10.0},
    **{"hot": 0.0, "keys": 40, "faults": ("slow_link", "one_way"), "fault_every_s": 0.05, "load_s": 2.0},
    **{"ask_rest_ms": 10, "sync_ms": 0.5, "ordered": False},
}
_STAMPS = {
    **{"calm": True, "stamps": 0.5, "clients": 8, "wander": 0.0, "think_ms": 20.0, "delay_ms": 1.0, "hot": 0.0},
    **{"keys": 40, "faults": ("partition", "slow_link"), "fault_every_s": 0.3, "load_s": 3.0, "closing_lag_ms": 3_000},
    **{"suspicion_ms": 2_000, "follows_wall": False},
}
_FLIPS = {
    **{"voters": 3, "flip_every_s": 0.03, "alter": 0.0, "hot": 0.5, "keys": 3, "clients": 6, "think_ms": 5.0},
    **{"faults": (), "suspect_every_s": 0.0, "load_s": 2.0, "timeout_s": 2.0, "delay_ms": 1.0, "sync_ms": 0.5},
}
_ORPHANS = {
    **{**_FLIPS, "delay_ms": 5.0, "faults": ("crash_some", "one_way", "reset"), "fault_every_s": 0.05, "dead": 1},
    **{"suspect_every_s": 0.005, "suspicion_ms": 50, "heartbeat_ms": 20},
}
_Reservations = reservations.Reservations

USES: dict[str, Fault] = {
    "the name of a former voter is given again": fault(
        "no other file gets the name of a node that voted before",
        (membership, "_add", " or node in old.former", ""),
        **{**_CHANGES, "names_again": 0.9, "comings": 0.8},
    ),
    "others hold back for ever": fault(
        "every reservation ends after its time",
        (_Reservations, "choose", "held is not None and now >= self._until", "False"),
        **CROWDED,
    ),
    "others hold back all the time": fault(
        "reservations have a share of the time at each node",
        (_Reservations, "_honour", "0 < wanted_s <= left_s", "True"),
        **{**CROWDED, "reserve_ms": 1_000, "load_s": 12.0, "faults": ()},
    ),
    "a reservation rejects others": fault(
        "votes do not depend on reservations", (_Voter, "_judge", _VETO, f"{_VETO} or {_RESERVED}"), **CROWDED
    ),
    "a comparison never ends": fault(
        "closed time goes on when rows were compared",
        (_Voter, "_judge", "state.votes.comparing.pop(txid, None)", "state.votes.comparing.get(txid)"),
        **_COMPARED,
    ),
    "the cut waits for an idle moment": fault(
        "safe time goes on while clients write",
        (safe_time.SafeTime, "_should_move_cut", "return True  # a transaction", "return False  # something"),
        **_STEADY,
    ),
    "sessions ignore their tokens": fault(
        "a session waits for the commits in its token", (_State, "has_seen", "return covers", "return True or covers")
    ),
    "strict reads skip the majority": fault(
        "a strict read asks a majority",
        (read_checks.ReadChecks, "begin", "if len(read.counted) >= state.roster.majority:", "if True:"),
    ),
    "pending transactions delay no read of the journal": fault(
        "a strict read of the journal waits for the pending transactions of a majority",
        (
            read_checks.ReadChecks,
            "on_check",
            "self._others_outside(base) if",
            "[one for one in self._others_outside(base) if one not in state.votes.pending] if",
        ),
        **_JOURNAL,
    ),
    "the journal is read as it is here": fault(
        "a strict read of the journal asks a majority",
        (read_checks.ReadChecks, "begin", "if prepared.reads_system and", "if False and"),
        **_JOURNAL,
    ),
    "two voters at once": fault(
        "a membership change adds or removes one voter at a time",
        (
            membership,
            "_promote",
            "members[member.node] = replace(member, voter=True)",
            "members.update({node: replace(one, voter=True) for node, one in members.items()})",
        ),
        **{**_CHANGES, "learners": 2},
    ),
    "a change conflicts with nothing": fault(
        "a membership change conflicts with everything",
        (coordinator, "claim", "(EVERYTHING,) if kind == MEMBERS else", ""),
        **_CHANGES,
    ),
    "a change may lose the quorum": fault(
        "a membership change leaves enough live voters for a quorum",
        (membership, "_check_votes", "if len(alive) < needed and not change.force:", "if False:"),
        (membership, "_check_cost", "if after < before:", "if False:"),
        **{**_CHANGES, "faults": ("kill",), "fault_every_s": 0.5, "load_s": 9.0, "voters": 4, "think_ms": 100.0},
    ),
    "the old voters go on counting": fault(
        "a node counts by the membership that it has applied",
        (roster.Roster, "set_membership", "self.voters = membership", "self.voters = self.voters or membership"),
        **_CHANGES,
    ),
    "a node that no majority has admitted reports closed time": fault(
        "a restarted node reports no closed time before a majority has admitted it",
        (safe_time.SafeTime, "_report", "if state.roster.claims_time else", "if not state.roster.barred else"),
        **{"faults": ("crash", "kill"), "fault_every_s": 0.1, "voters": 5, "heartbeat_ms": 20, "load_s": 2.0},
    ),
    "a voter that forgot its promises is admitted": fault(
        "a voter that lost its file, or returns with an older one, is refused",
        (incarnations.Incarnations, "judge", "if not code:", "if True:"),
        **{**_CHANGES, "faults": ("wipe", "restore", "crash"), "fault_every_s": 0.1},
    ),
    "an older file that has grown is admitted": fault(
        "a restored file is recognized by its starts, also after further writes",
        (incarnations, "lacks", "if not starts or not seen.start:", "if True:"),
        **{**_RESTORED, "load_s": 8.0},
    ),
    "learners vote": fault(
        "only voters lead and approve",
        (roster.Roster, "is_voter", "member is not None and member.voter", "member is not None"),
        **{**DUELS, "learners": 2, "voters": 3, "wander": 1.0},
    ),
    "changed reads do not matter": fault(
        "an interactive transaction is lost when a row that it read has changed",
        (once, "overtaken", "found = first_conflict(", "found = None and first_conflict("),
        **_TALKS,
    ),
    "a large transaction ignores others' commits": fault(
        "a large transaction is begun again only if its effect would be the same",
        (_Coordinator, "_begin_again", "moved = move(self.state, inflight, prepared)", f"moved = {_MOVED}"),
        **_LARGE,
    ),
    "a settled command still happens": fault(
        "the empty transaction that settles a command conflicts with it",
        (coordinator, "claim", "map(command_key, commands)", "()"),
        (_State, "happened", "for command in commands:", "for command in ():"),
        **{**_TALKS, "faults": ("one_way", "pause"), "fault_every_s": 0.05, "timeout_s": 0.3},
    ),
    "snapshot skips test 3": fault(
        "at isolation snapshot, too, the first to commit a row wins",
        (_Voter, "_judge", f"found = {_VETO}", f"found = None if transaction.isolation == 'snapshot' else {_VETO}"),
        (
            _Coordinator,
            "_certify",
            "found = next(state.commit_window.conflicts(access_set, prepared.base), None)",
            "found = None if inflight.request.isolation == 'snapshot' else "
            "next(state.commit_window.conflicts(access_set, prepared.base), None)",
        ),
        **{"snapshots": 1.0, "execute_ms": 5.0, "delay_ms": 5.0, "hot": 0.9, "talks": 0.0},
    ),
    "clocks are not read": fault(
        "a transaction conflicts with a schema change in force at its clock",
        (coordinator, "claim", "(clock_key(clock),)", "()"),
        **_ALTERS,
    ),
    "transactions do not wait for a schema change": fault(
        "a transaction waits for the schema of its clock",
        (schema_barrier.SchemaBarrier, "blocks", "scheduled is None or", "True or"),
        **_ALTERS,
    ),
    "a schema change comes too soon": fault(
        "a schema change is activated when no earlier transaction can appear",
        (safe_time.SafeTime, "advance", "is_behind(clock.safe)", "is_behind(state.clock.closed)"),
        **_ALTERS,
    ),
    "an execution on an older schema is led": fault(
        "a transaction that was executed on an older schema is executed again",
        (_Coordinator, "_executed", "if prepared.schema != state.schema.version and (", "if False and ("),
        **{**_ALTERS, "execute_ms": 5.0},
    ),
    "a follower does not reach the schema": fault(
        "an entry of the next schema activates this schema before it is applied",
        (apply_queue.ApplyQueue, "_reach_schema", "if needed == state", "if False and needed == state"),
        **_ALTERS,
    ),
    "a session does not wait for a schema": fault(
        "a session sees all schema changes in its token",
        (_State, "has_seen", "self.schema.is_behind(token.clock)", "False"),
        **{**_ALTERS, "wander": 1.0, "clients": 10, "think_ms": 5.0, "faults": ("one_way", "slow_link", "slow_disk")},
        **{"fault_every_s": 0.1, "lose": 0.1, "heartbeat_ms": 50, "talks": 0.0, "dead": 0},
    ),
    "transaction clocks skip the majority": fault(
        "a transaction clock is later than a majority's clocks",
        (commit_clock.ClockQuorum, "ask", "if len(found.answered) >= state.roster.majority:", "if True:"),
        **_STAMPS,
    ),
    "voters do not compare rows": fault(
        "a voter approves a transaction only if its before-images equal the voter's rows",
        (_Voter, "_check_rows", "self.state.why_rows_differ(transaction)", "''"),
        **_FLIPS,
    ),
    "rows are not compared for a recovery": fault(
        "a voter compares rows before it holds a transaction for a recovery",
        (recovery.Recovery, "_try_to_hold", 'if state.why_rows_differ(transaction) != "":', "if False:"),
        **_ORPHANS,
    ),
    "rows are not compared when they are applied": fault(
        "a row is changed only if it equals the commit's before-image",
        (database, "apply", "if rows.get(key, NOTHING) != tuple(before):", "if False:"),
        **_FLIPS,
    ),
    "a damaged node votes": fault(
        "a node with damaged tables does not vote",
        (roster.Roster, "is_voter", " or not self.health.writes", ""),
        (node.Node, "_receive", "state.health.applies or isinstance(message, HEARD_WHEN_DAMAGED)", "True"),
        **_FLIPS,
    ),
    "a copy is not proven": fault(
        "a node serves from a copy only if a replay of its journal gives the same tables",
        (operator.Operator, "_join", "elif not image.flipped:", "elif True:"),
        **{**_FLIPS, "changes_every_s": 0.05, "load_s": 4.0, "scrub_s": 20.0, "flip_every_s": 0.1, "heartbeat_ms": 50}
        | {"faults": ("wipe",), "fault_every_s": 0.5},
    ),
}

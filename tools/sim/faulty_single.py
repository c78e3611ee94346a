"""Deliberate faults of rules for a single node's reaction to a message. See ``faulty`` and ``faulty_moments``.

Each fault has a test in ``tests.core.test_one_node`` or a module next to it, which must fail without the rule.
"""

from bedrockish.core.coordinator import (
    abort,
    attempts,
    commit_clock,
    contention,
    coordinator,
    reads,
    replies,
    request,
    revalidation,
    schema_barrier,
)
from bedrockish.core.recovery import judge, recovery
from bedrockish.core.replica import apply_queue, voter
from bedrockish.core.state import clock, commit_window, membership, packed_commits, roster, state, votes
from tools.sim.editing import Moment, fault

_State, _Voting, _Recovery = state.State, voter.Voting, recovery.Recovery
_Coordinator, _ApplyQueue = coordinator.Coordinator, apply_queue.ApplyQueue
_HERE = "tests.core.test_one_node"
_ITS_OWN = "if given_up.leader == txid.leader:"


def _here(rule: str, owner: object, name: str, old: str, new: str, test: str) -> Moment:
    return Moment(fault(rule, (owner, name, old, new)), f"{_HERE}:{test}")


SINGLE: dict[str, Moment] = {
    "a body on its way is no answer": Moment(
        fault(
            "a recovery waits for a voter that fetches its body",
            (_Recovery, "check", " and not self._is_travelling(round_)", ""),
        ),
        "tests.core.test_large:test_recovery_waits_for_a_voter_that_fetches_its_body",
    ),
    "safe time of now": Moment(
        fault(
            "a transaction tells up to which clock its snapshot has all commits",
            (request, "make_transaction", "state.safe_of(prepared.base)", "state.clock.safe"),
        ),
        "tests.core.test_once:test_transaction_names_the_safe_time_of_its_snapshot",
    ),
    # -- votes -------------------------------------------------------------------------------------------------------
    "a repeated BEGIN is judged anew": Moment(
        fault("what was approved stays so", (_Voting, "_consider", "if vote is not None and vote.held:", "if False:")),
        "trace voter_restarts",
    ),
    "a BEGIN rolls back anybody's": _here(
        "a BEGIN carries rollbacks of its leader only",
        *(_Voting, "_consider", _ITS_OWN, "if True:"),
        "test_a_begin_brings_no_rollback_of_somebody_else",
    ),
    "a RECOVER rolls back anybody's": _here(
        "a RECOVER carries rollbacks of its leader only",
        *(_Recovery, "_answer", _ITS_OWN, "if True:"),
        "test_a_begin_brings_no_rollback_of_somebody_else",
    ),
    "a RECOVER rolls nothing back": _here(
        "who is asked to hold takes in what the leader had given up",
        *(_Recovery, "_answer", _ITS_OWN, "if False:"),
        "test_a_recover_brings_the_rollbacks_of_its_leader",
    ),
    "an older membership's is judged": _here(
        "what was begun before a change of the members and is not in its base never commits",
        *(_Voting, "_consider", "if transaction.config < state.roster.membership.version:", "if False:"),
        "test_a_begin_of_an_older_membership_is_over",
    ),
    "everybody's approval counts": _here(
        "a voter's approval counts",
        *(attempts.Attempts, "on_approve", " and self.state.roster.is_voter(peer)", ""),
        "test_an_approval_of_one_that_is_no_voter_does_not_count",
    ),
    "own transactions do not meet": _here(
        "a leader tests against its own pending transactions",
        *(
            contention.Contention,
            "before",
            "if found.other not in",
            "if found.other.leader != state.me and found.other not in",
        ),
        "test_leader_does_not_begin_against_its_own_pending_conflict",
    ),
    "AHEAD is never said": _here(
        "nothing is approved whose clock is far ahead",
        *(_Voting, "_untimely", "if ahead:", "if False:"),
        "test_a_clock_that_is_far_ahead_is_turned_down",
    ),
    # -- recoveries --------------------------------------------------------------------------------------------------
    "accepting does not promise": _here(
        "who accepts at a ballot has promised it",
        *(_Recovery, "_promise", "vote.promised = message.ballot", "vote.promised += 0"),
        "test_acceptance_implies_a_promise",
    ),
    "what is held is looked at again": _here(
        "what was approved is held, whatever the rows are now",
        *(_Recovery, "_stand", "if vote.held:", "if False:"),
        "test_approval_stands_after_damage_to_its_rows",
    ),
    "a restarted leader gives up what it has promised": _here(
        "a leader that has promised to a recovery gives nothing up",
        *(abort.Rollbacks, "restart", " and vote.promised < 2", ""),
        "test_a_leader_that_has_promised_gives_nothing_up_after_a_restart",
    ),
    "too few are no reason": Moment(
        fault(
            "what less than a quorum can have approved is aborted",
            (judge, "judge", "if len(approvers) < quorum", "if False"),
        ),
        "tests.core.test_judge:clauses_hold",
    ),
    # -- the order of things -----------------------------------------------------------------------------------------
    "the hash of a COMMIT is not looked at": _here(
        "a COMMIT continues the timeline that is here",
        *(_ApplyQueue, "_take_commit", "if entry.hash != message.hash:", "if False:"),
        "test_a_commit_with_another_hash_is_not_taken",
    ),
    "prev of a fetched entry is not looked at": _here(
        "a fetched entry continues the timeline that is here",
        *(_ApplyQueue, "on_entries", "if prev != self.state.timelines.heads.get(leader, GENESIS):", "if False:"),
        "test_a_fetched_entry_that_does_not_continue_is_not_taken",
    ),
    "a commit of what was rolled back is taken": _here(
        "who is told two outcomes says so, and stops",
        *(_ApplyQueue, "_take", "if state.votes.outcomes.get(txid) is False:", "if False:"),
        "test_commit_of_a_rolled_back_transaction_stops_the_node",
    ),
    "a COMMIT does not move the clock": _here(
        "what is begun after a commit was taken is younger",
        *(_State, "take", "self.clock.adjust(txid.clock)", "pass"),
        "test_taking_a_commit_moves_the_clock",
    ),
    "early COMMITs are dropped": _here(
        "a COMMIT ahead of a gap is kept until the gap is closed",
        *(_ApplyQueue, "on_commit", "if len(early) < EARLY_MAX:", "if False:"),
        "test_a_commit_that_comes_early_is_kept",
    ),
    "outcomes of what waits are forgotten": _here(
        "an outcome is known until it is in the journal",
        *(votes.Votes, "forget", " and txid not in waiting", ""),
        "test_outcome_of_a_waiting_commit_is_not_forgotten",
    ),
    "a node that joins is at home at once": _here(
        "a new node answers when it has caught up",
        *(roster.Roster, "has_joined", "if covers(applied, told.vector):", "if True:"),
        "test_a_node_that_joins_is_at_home_when_it_has_caught_up",
    ),
    "a restart knows no floor": _here(
        "a node knows how far its window reaches",
        *(commit_window.CommitWindow, "reaches_back_to", "self.floor[leader] = ", "_ = "),
        "test_a_restart_knows_how_far_its_window_reaches",
    ),
    "a second place does not count": Moment(
        fault(
            "a commit is in a base under any of its places",
            (packed_commits.Known, "is_in", "_is_among(self.places, base)", "_is_among(self.places[:1], base)"),
        ),
        "trace race_rolled_back_counted_out",
    ),
    # -- clients -----------------------------------------------------------------------------------------------------
    "one attempt that is over is all": _here(
        "nothing happened when no attempt is open",
        *(replies.Replies, "ended", " and not inflight.open", ""),
        "test_a_client_is_told_that_nothing_happened_when_the_last_attempt_is_over",
    ),
    "did not happen is told with attempts open": Moment(
        fault(
            "nothing happened when no attempt is open",
            (_Coordinator, "past_deadline", "if inflight.open:", "if False:"),
        ),
        "tests.core.test_once:test_without_a_majority_nobody_can_tell",
    ),
    "an open transaction outlives its schema": _here(
        "an open transaction ends with the schema that it ran on",
        *(revalidation, "lost", "if prepared.schema != state.schema.version:", "if False:"),
        "test_an_open_transaction_ends_with_its_schema",
    ),
    "an open transaction outlives the window": _here(
        "an open transaction ends when its snapshot is older than the window",
        *(revalidation, "overtaken", "if state.commit_window.has_dropped(base):", "if False:"),
        "test_an_open_transaction_does_not_get_older_than_the_window",
    ),
    "strict reads of old snapshots are answered": _here(
        "who has dropped what came after a snapshot does not certify it",
        *(reads.Reading, "on_check", "if not covers(message.vector, state.commit_window.floor):", "if False:"),
        "test_a_strict_read_on_too_old_a_snapshot_is_not_certified",
    ),
    "every stamp fits": Moment(
        fault(
            "a clock that was told names one transaction",
            (commit_clock.ClockQuorum, "fits", "return clock > max(", "return True or clock > max("),
        ),
        "tests.core.test_clocking:test_a_told_clock_names_one_transaction_only",
    ),
    "who is asked for a clock does not move up": Moment(
        fault(
            "who tells its clock has moved up to that of who asks",
            (commit_clock.ClockQuorum, "on_ask", "state.hear_clock(peer, message.clock) and ", ""),
        ),
        "tests.core.test_clocking:test_clock_question_is_answered_unless_too_far_ahead",
    ),
    "a schema change is in force at its own clock": _here(
        "a schema change is in force after its own clock",
        *(schema_barrier, "activation_clock", "clock_offset_ms))) + 1", "clock_offset_ms)))"),
        "test_a_schema_change_is_in_force_after_its_own_clock",
    ),
    "any wall clock is believed": _here(
        "a wall clock is followed as far as most others are near",
        *(clock.Clock, "set_now", "wall_ms = max(0, min(wall_ms, most))", "pass"),
        "test_a_wall_clock_is_followed_as_far_as_others_are_near",
    ),
    # -- members -----------------------------------------------------------------------------------------------------
    "a learner is promoted however far behind": _here(
        "a voter has caught up",
        *(membership, "_promote", "if behind is None or behind > BEHIND_MAX:", "if False:"),
        "test_a_learner_that_is_far_behind_is_not_promoted",
    ),
    "a name comes back on another file": _here(
        "a timeline has one file",
        *(membership, "_add", "if used and (", "if False and ("),
        "test_a_name_that_has_led_does_not_come_back_on_another_file",
    ),
}

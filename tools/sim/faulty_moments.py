"""Deliberate faults of rules that matter only in situations that random worlds seldom reach. See ``faulty``.

Each fault has its own test, or its own trace in ``tests/traces``, which must fail without the rule.
"""

from bedrockish.core import node
from bedrockish.core.coordinator import (
    abort,
    attempts,
    commit_clock,
    contention,
    coordinator,
    reservations,
    wait_queue,
)
from bedrockish.core.recovery import judge, recovery
from bedrockish.core.replica import apply_queue, safe_time, times, voter
from bedrockish.core.state import clock, commit_window, pending, roster, state, timelines, votes
from tools.sim.editing import Moment, fault
from tools.sim.faulty_reads import READS
from tools.sim.faulty_single import SINGLE

_State, _Voting, _Recovery, _Rollbacks = state.State, voter.Voting, recovery.Recovery, abort.Rollbacks
_BALLOTS, _CLAUSES = "tests.core.test_ballots", "tests.core.test_judge:clauses_hold"
_TOGETHER = "tests.core.test_together"
_RETIRED = "tests.core.test_retired"
_RESERVED, _Reservations = "tests.core.test_reservations", reservations.Reservations
_OTHER_BALLOT = " or round_.ballot != message.ballot"


def _clause(rule: str, old: str, new: str) -> Moment:
    return Moment(fault(rule, (judge, "judge", old, new)), _CLAUSES)


MOMENTS: dict[str, Moment] = {
    # -- what a recovery may propose ---------------------------------------------------------------------------------
    "the lowest accepted ballot wins": _clause("of accepted decisions the highest ballot counts", "max(acc", "min(acc"),
    "one less has to hold it": _clause(
        "a majority has to hold what is committed", ">= majority(len(voters)):", ">= majority(len(voters)) - 1:"
    ),
    "never is no reason": _clause(
        "who met a commit that it had not seen rules it out",
        "if any(answer.standing",
        "if False and any(answer.standing",
    ),
    "its leader is no reason": _clause("a leader that answers has not committed", "if leader in answers:", "if False:"),
    "nobody is counted out": _clause("who is out of reach and leads a rival has not approved", " - bound)", ")"),
    "old snapshots are welcome": Moment(
        fault(
            "nobody votes on a snapshot older than the conflict window",
            (_Voting, "_untimely", "clock > moved(transaction.safe, state.settings.conflict_window_ms)", "False"),
        ),
        "tests.core.test_one_node:test_voter_rejects_snapshots_older_than_the_conflict_window",
    ),
    "old snapshots are begun on": Moment(
        fault(
            "nobody begins on a snapshot older than the conflict window",
            (
                coordinator.Coordinator,
                "_lead",
                "state.clock.read() > moved(state.clock.safe, state.settings.conflict_window_ms)",
                "False",
            ),
        ),
        "tests.core.test_one_node:test_leader_does_not_begin_on_snapshots_older_than_the_conflict_window",
    ),
    "window forgotten early": Moment(
        fault(
            "the conflict window reaches back to every base that V16 lets pass",
            (safe_time.SafeTime, "_forget", "moved(settled, -state.settings.conflict_window_ms)", "settled"),
        ),
        "tests.core.test_dropped:test_window_keeps_settled_commits_for_a_whole_window",
    ),
    "what waits is in the journal": Moment(
        fault(
            "a commit that is taken and waits is not told as rolled back",
            (_Voting, "tell_outcome", "self.apply_queue.place_of(txid) if known is None", "None if known is None"),
        ),
        "tests.core.test_settled:test_late_waiting_commit_is_not_reported_as_rolled_back",
    ),
    "forgotten ends are none": Moment(
        fault(
            "nobody is counted out for what somebody may have forgotten",
            (judge, "judge", " if blocker.clock > forgotten", ""),
        ),
        "trace race_forgotten_end_counted_out",
    ),
    "its own leader is counted out": _clause("a leader has approved its own", " - {leader}", ""),
    "a quorum may be missing": _clause("less than a quorum cannot have committed", "< quorum", "<= quorum"),
    "ends by an accepted abort are not told": Moment(
        fault(
            "who has accepted a rival's abort says so",
            (
                _Recovery,
                "_ended_against",
                "state.votes.aborting.conflicts(transaction.access_set, transaction.txid)",
                "()",
            ),
        ),
        "trace own_run_is_no_rival",
    ),
    "ends by a commit are not told": Moment(
        fault(
            "who knows a rival's commit says so",
            (
                _Recovery,
                "_ended_against",
                "list(state.commit_window.any_conflicts(transaction.access_set, above=state.clock.safe))",
                "[]",
            ),
        ),
        "trace leader_dies_and_conflicts",
    ),
    "a decided abort is not told": Moment(
        fault(
            "who has decided an abort tells everybody",
            (_Recovery, "_decided", "state.outbox.send_all(Outcome(", "str(("),
        ),
        "trace each_waits_for_the_other",
    ),
    # -- ballots -----------------------------------------------------------------------------------------------------
    "acceptances are volatile": Moment(
        fault("an acceptance is durable", (_Recovery, "on_accept", "self.state.votes.persist(vote)", "pass")),
        f"{_BALLOTS}:test_an_acceptance_survives_a_restart",
    ),
    "accepted rollbacks are volatile": Moment(
        fault("an accepted rollback is durable", (votes.Votes, "accept_rollback", "self.persist(vote)", "pass")),
        f"{_BALLOTS}:test_an_accepted_rollback_survives_a_restart",
    ),
    "decided rollbacks are forgotten": Moment(
        fault(
            "a decided rollback is known after a restart",
            (votes.Votes, "restore", "if vote.accepted is not None and vote.accepted == (ENDED, False):", "if False:"),
        ),
        f"{_BALLOTS}:test_a_decided_rollback_is_known_after_a_restart",
    ),
    "acceptances of other ballots count": Moment(
        fault("an acceptance counts for its ballot", (_Recovery, "on_accepted", _OTHER_BALLOT, "")),
        f"{_BALLOTS}:test_an_acceptance_of_another_ballot_does_not_count",
    ),
    "promises of other ballots count": Moment(
        fault("a promise counts for its ballot", (_Recovery, "on_promise", _OTHER_BALLOT, "")),
        f"{_BALLOTS}:test_a_promise_of_another_ballot_does_not_count",
    ),
    "a refusal teaches nothing": Moment(
        fault(
            "who is refused tries above that", (_Recovery, "on_refused", "max(vote.promised, message.promised)", "0")
        ),
        f"{_BALLOTS}:test_refused_recoverer_retries_above_the_promised_ballot",
    ),
    "any acceptance is one of the rollback": Moment(
        fault("a rollback is ballot 1", (_Rollbacks, "on_accepted", "message.ballot == 1 and ", "")),
        f"{_BALLOTS}:test_only_an_acceptance_of_ballot_1_is_one_of_the_rollback",
    ),
    "all recover at one ballot": Moment(
        fault("a ballot belongs to one node", (_Recovery, "start", " + voters.index(state.me)", "")),
        "trace abort_accepted_is_still_pending",
    ),
    "an older membership's is recovered": Moment(
        fault(
            "what was begun before a change of the members and is not in its base never commits",
            (_Recovery, "_promise", "if transaction.config < state.roster.membership.version:", "if False:"),
        ),
        f"{_BALLOTS}:test_transaction_of_an_older_membership_is_not_recovered",
    ),
    "a restarted leader rolls nothing back": Moment(
        fault(
            "a leader gives up after a restart what it had in flight",
            (_Rollbacks, "restart", "and vote.promised < 2", "and False"),
        ),
        "trace commit_is_not_told_before_it_is_durable",
    ),
    "what a commit dooms goes on": Moment(
        fault(
            "a leader gives up what conflicts with a commit that it had not seen",
            (
                attempts.Attempts,
                "abort_conflicting",
                "attempt.counting and not committed",
                "False and not committed",
            ),
        ),
        "trace abort_accepted_is_still_pending",
    ),
    "waits for its own given up one": Moment(
        fault(
            "what a leader has given up is not in its own way",
            (contention.Contention, "before", "if found.other not in self.rollbacks:", "if True:"),
        ),
        "trace own_run_is_no_rival",
    ),
    # -- clocks ------------------------------------------------------------------------------------------------------
    "what is equal to closed is approved": Moment(
        fault(
            "nothing is approved at closed",
            (_Voting, "_untimely", "clock <= state.clock.closed", "clock < state.clock.closed"),
        ),
        f"{_BALLOTS}:test_voter_approves_nothing_at_or_below_closed",
    ),
    "no floor in TOO LATE": Moment(
        fault("nothing is approved below a restart", (_Voting, "_untimely", " or clock <= state.clock.floor", "")),
        "trace crash_before_durable",
    ),
    "a new clock may be closed": Moment(
        fault("a new clock is above what is closed", (clock.Clock, "tick", "self.adjust(self.closed)", "pass")),
        f"{_BALLOTS}:test_new_clock_is_above_closed",
    ),
    "the ceiling is kept too late": Moment(
        fault(
            "a ceiling is kept before what it allows",
            (
                _State,
                "keep_ceiling",
                "self.outbox.emit_first(",
                "self.outbox.emit(",
            ),
        ),
        f"{_BALLOTS}:test_the_ceiling_is_kept_before_anything_is_said",
    ),
    "an end is as old as its transaction": Moment(
        fault(
            "test 5 counts from when an end was learned",
            (votes.Votes, "end", "self.clock.read())", "max(txid.clock, self.own_ends.latest))"),
        ),
        f"{_BALLOTS}:test_an_end_counts_from_when_it_was_learned",
    ),
    "own ends are forgotten with safe time": Moment(
        fault(
            "an own end is kept until its time is closed",
            (pending.OwnEnds, "forget", "self._ended and self._ended[0][0] <= closed", "self._ended"),
        ),
        f"{_BALLOTS}:test_an_end_is_kept_until_its_time_is_closed",
    ),
    "test 5 passes what is equal": Moment(
        fault(
            "an end learned at a transaction's clock counts",
            (pending.OwnEnds, "vetoes", "self._at[txid] >= transaction", "self._at[txid] > transaction"),
        ),
        "trace race_counted_out_too_early",
    ),
    "a stamp may be below own ends": Moment(
        fault(
            "a clock that was told is above own ends",
            (commit_clock.ClockQuorum, "fits", ", state.votes.own_ends.latest", ""),
        ),
        f"{_BALLOTS}:test_a_clock_that_was_told_is_later_than_own_ends",
    ),
    "cut may be above closed": Moment(
        fault(
            "cut stays below closed",
            (
                times,
                "times",
                "min(_reached([word[0] for word in others], closed, majority, counts=counts), closed)",
                "_reached([word[0] for word in others], closed, majority, counts=counts)",
            ),
        ),
        f"{_BALLOTS}:test_cut_stays_at_or_below_own_closed",
    ),
    "one voter less closes time": Moment(
        fault(
            "a majority closes time",
            (times, "_reached", "clocks[majority - 1]", "clocks[max(0, majority - 2)]"),
        ),
        "trace old_snapshot",
    ),
    "a forgetful voter closes time": Moment(
        fault(
            "who has lost its promises closes nothing",
            (
                safe_time.SafeTime,
                "_report",
                "(state.clock.closed, state.clock.cut) if state.roster.claims_time else (0, 0)",
                "(state.clock.closed, state.clock.cut)",
            ),
        ),
        "tests.core.test_member_changes:test_safe_time_ignores_closed_of_an_amnesiac_voter",
    ),
    # -- timelines that are retired ----------------------------------------------------------------------------------
    "who still hears it has it whole": Moment(
        fault(
            "a timeline is retired when every member counts without its leader",
            (timelines.Timelines, "whole", "peer is None or peer.config != membership.version", "peer is None"),
        ),
        f"{_RETIRED}:test_timeline_that_every_member_has_whole_can_be_retired",
    ),
    "what some member lacks is whole": Moment(
        fault(
            "a timeline is retired when every member has told to have the same of it",
            (timelines.Timelines, "whole", "peer.applied.get(leader, 0) == tick", "True"),
        ),
        f"{_RETIRED}:test_timeline_that_every_member_has_whole_can_be_retired",
    ),
    "what is retired looks unseen": Moment(
        fault(
            "what stands in a retired timeline is in every base",
            (apply_queue.ApplyQueue, "_retire", "state.commit_window.retire(leaders, txid)", "pass"),
        ),
        f"{_RETIRED}:test_commits_of_a_retired_timeline_are_in_every_base",
    ),
    "what is retired looks seen by all": Moment(
        fault(
            "an open transaction without the retirement is compared with what was retired",
            (commit_window.CommitWindow, "retire", "EVERYWHERE if found is None else found.places", "EVERYWHERE"),
        ),
        f"{_RETIRED}:test_retired_commit_is_outside_a_base_without_the_retirement",
    ),
    "rights are checked once": Moment(
        fault(
            "a transaction goes on over a change of users if the rights of its user are checked again",
            (apply_queue.ApplyQueue, "_change_members", "0 if old.users == membership.users else ", "0 and "),
        ),
        "tests.core.test_member_changes:test_change_of_users_needs_a_check_of_rights",
    ),
    "a vector is said in short too soon": Moment(
        fault(
            "a vector leaves a timeline out only if it has its retirement",
            (timelines.Timelines, "in_short", " and covers(vector, self.retirement)", ""),
        ),
        f"{_RETIRED}:test_later_transactions_omit_retired_timelines",
    ),
    "who lacks the retirement is told in short": Moment(
        fault(
            "who has not applied a retirement is told where the timeline ends",
            (safe_time.SafeTime, "_knows_retired", "self.state.roster.peers[peer].config >= max", "0 <= max"),
        ),
        f"{_RETIRED}:test_members_that_know_the_retirement_get_short_vectors",
    ),
    "what is retired grows": Moment(
        fault(
            "a retired timeline takes nothing more",
            (apply_queue.ApplyQueue, "on_commit", " or leader in self.state.roster.membership.retired", ""),
        ),
        f"{_RETIRED}:test_a_retired_timeline_takes_nothing_more",
    ),
    "what was said is not taken back": Moment(
        fault(
            "who says that it has closed nothing takes back what it said",
            (safe_time.SafeTime, "_cover", "max(known.closed, closed) if closed else 0", "max(known.closed, closed)"),
        ),
        "tests.core.test_member_changes:test_amnesiac_node_revokes_its_closed",
    ),
    # -- the order of things -----------------------------------------------------------------------------------------
    "a repeat below safe is none": Moment(
        fault(
            "what is safe is applied already",
            (
                apply_queue.ApplyQueue,
                "_apply",
                "txid.clock <= state.clock.safe or state.is_applied(txid)",
                "state.is_applied(txid)",
            ),
        ),
        "trace commit_ahead_of_a_gap",
    ),
    "a change of the members ends nothing": Moment(
        fault(
            "a change of the members ends what is pending and not in its base",
            (apply_queue.ApplyQueue, "_change_members", "if transaction.config < membership.version:", "if False:"),
        ),
        "tests.core.test_member_changes:test_pending_transaction_of_the_old_membership_ends_with_the_change",
    ),
    "a demoted voter goes on with its recoveries": Moment(
        fault(
            "safe time ends a recovery of a node that has lost its vote",
            (_Recovery, "check", "for txid in [txid for txid in self.rounds if", "for txid in [txid for txid in () if"),
        ),
        "tests.core.test_member_changes:test_demoted_voter_drops_its_recovery_when_safe_time_decides",
    ),
    "a removed accuser goes on accusing": Moment(
        fault(
            "the word of a node that is no member any more bars nobody",
            (
                roster.Roster,
                "set_membership",
                "for node, reason in self.accused.items() if node in self.peers}",
                "for node, reason in self.accused.items()}",
            ),
        ),
        "tests.core.test_member_changes:test_an_accusation_ends_when_the_accuser_is_removed",
    ),
    "a removed voter lets others in": Moment(
        fault(
            "who has let in and left does not count",
            (roster.Roster, "set_membership", "self.let_in &= self.peers.keys() | {self.me}", "pass"),
        ),
        "tests.core.test_member_changes:test_the_word_of_a_removed_voter_lets_nobody_in",
    ),
    "another file inherits what was told": Moment(
        fault(
            "what one file has told is not held to be of another one",
            (roster.Roster, "set_membership", "if not _is_other_file(before, membership, node)", "if True"),
        ),
        "tests.core.test_member_changes:test_a_learner_on_another_file_has_told_nothing_yet",
    ),
    "what is dropped leaves no floor": Moment(
        fault(
            "who has dropped commits knows how far",
            (commit_window.CommitWindow, "_drop", "floor[leader] = max(tick, floor.get(leader, 0))", "pass"),
        ),
        f"{_BALLOTS}:test_dropped_commits_leave_a_floor",
    ),
    "a voter compares with what it has dropped": Moment(
        fault(
            "a voter approves nothing that has not seen what is dropped",
            (
                voter.Voting,
                "_consider",
                "if not covers(transaction.base, state.commit_window.floor)",
                "if False",
            ),
        ),
        "tests.core.test_dropped:test_voter_rejects_bases_that_lack_a_dropped_commit",
    ),
    "a leader compares with what it has dropped": Moment(
        fault(
            "a leader begins nothing that has not seen what is dropped",
            (coordinator.Coordinator, "_certify", "not covers(prepared.base, state.commit_window.floor)", "False"),
        ),
        "tests.core.test_dropped:test_leader_begins_nothing_whose_base_lacks_a_dropped_commit",
    ),
    "the rest of the voters is never asked": Moment(
        fault(
            "the other voters get BEGIN when the first are late",
            (attempts.Attempts, "begin_rest", "if attempt is None or", "if True or"),
        ),
        "tests.core.test_quorum_first:test_other_voter_gets_begin_when_the_first_is_late",
    ),
    # -- who goes first ----------------------------------------------------------------------------------------------
    "nobody holds back": Moment(
        fault(
            "others hold back for a reservation",
            (_Reservations, "blocks", "held is None or inflight", "held is not None or inflight"),
        ),
        f"{_RESERVED}:test_a_strict_read_of_a_busy_table_is_answered",
    ),
    "the last reservation goes first": Moment(
        fault(
            "the oldest reservation is honoured",
            (_Reservations, "choose", "first = min(waiting", "first = max(waiting"),
        ),
        f"{_RESERVED}:test_the_oldest_goes_first_and_each_has_its_turn",
    ),
    "a reservation has no end": Moment(
        fault(
            "a reservation ends after its time",
            (_Reservations, "choose", "held is not None and now >= self._until", "False"),
        ),
        f"{_RESERVED}:test_constant_reservations_get_a_quarter_of_the_time",
    ),
    "reservations have all the time": Moment(
        fault("reservations have a share of the time", (_Reservations, "_honour", "0 < wanted_s <= left_s", "True")),
        f"{_RESERVED}:test_reservation_waits_for_the_rest_of_the_share",
    ),
    "who asks for no time goes first": Moment(
        fault("who asks for no time keeps nobody from his turn", (_Reservations, "choose", "if one.for_ms and", "if")),
        f"{_RESERVED}:test_malformed_reservations_cost_no_more_than_the_share",
    ),
    "a reservation is told with the next heartbeat": Moment(
        fault(
            "a reservation is told at once",
            (node.Node, "_answer", "if self.coordinator.contention.reservations.is_news:", "if False:"),
        ),
        f"{_RESERVED}:test_it_is_told_at_once_and_so_is_its_end",
    ),
    "who goes first stands last": Moment(
        fault(
            "who goes first stands before those who are held back for its sake",
            (wait_queue.WaitQueue, "wait", "if inflight.goes_first:", "if False:"),
        ),
        f"{_RESERVED}:test_reserving_request_goes_before_those_held_back_for_it",
    ),
    "who goes first does not pause": Moment(
        fault(
            "who goes first pauses while what others had begun ends",
            (contention.Contention, "pause", "after_ms = self.reservations.settling_ms()", "after_ms = 1.0"),
        ),
        f"{_RESERVED}:test_reserving_request_pauses_for_transactions_begun_earlier",
    ),
    "who goes first waits for nobody": Moment(
        fault(
            "who goes first waits for what others had begun",
            (coordinator.Coordinator, "_take_up", "found is None and inflight.goes_first", "False"),
        ),
        f"{_RESERVED}:test_reserving_request_pauses_for_transactions_begun_earlier",
    ),
    **READS,
    # -- shared transactions -----------------------------------------------------------------------------------------
    "ids of shared commands are not claimed": Moment(
        fault(
            "a shared transaction claims all its ids",
            (coordinator.Coordinator, "_lead", "if prepared.joined:", "if False:"),
        ),
        f"{_BALLOTS}:test_a_shared_transaction_claims_the_ids_of_all_its_commands",
    ),
    "one command twice in a transaction": Moment(
        fault(
            "a command is once in a transaction",
            (wait_queue.WaitQueue, "group", "and other.request.command not in commands", ""),
        ),
        "tests.core.test_shared_transactions:test_one_command_sent_twice_happens_once",
    ),
    "isolations are mixed": Moment(
        fault(
            "a transaction has one isolation",
            (wait_queue.WaitQueue, "group", "and other.request.isolation == inflight.request.isolation", ""),
        ),
        "tests.core.test_shared_transactions:test_commands_of_different_isolation_do_not_share_a_transaction",
    ),
    "shared although one has gone": Moment(
        fault(
            "who is told that nothing happened is in no transaction",
            (wait_queue.WaitQueue, "joined", "if len(found) < len(commands):", "if False:"),
        ),
        f"{_BALLOTS}:test_ended_transaction_is_not_shared",
    ),
    "who came together waits together": Moment(
        fault(
            "nobody waits for what is in another one's way",
            (coordinator.Coordinator, "_goes_alone", "again = bool(prepared.joined)", "return False"),
        ),
        f"{_TOGETHER}:test_conflict_of_one_joined_command_holds_only_that_one",
    ),
    "a group turned down is led again as it was": Moment(
        fault(
            "of a group that was turned down each goes alone",
            (attempts.Attempts, "give_up", "if inflight.is_free]", "if False]"),
        ),
        f"{_TOGETHER}:test_a_group_that_is_turned_down_is_led_one_by_one_and_the_next_is_smaller",
    ),
    "who came together waits for a slow one": Moment(
        fault(
            "nobody waits for what is executed in a worker",
            (coordinator.Coordinator, "moved_to_worker", "self.together.part(inflight)", "pass"),
        ),
        f"{_TOGETHER}:test_one_that_is_executed_in_a_worker_keeps_nobody",
    ),
    "an id too old keeps those that came with it": Moment(
        fault(
            "only the command that was forgotten is told so",
            (
                coordinator.Coordinator,
                "_lead",
                "if self._goes_alone(inflight, prepared):\n            return self._take_up(inflight)\n        "
                "return self._happ",
                "return self._happ",
            ),
        ),
        f"{_TOGETHER}:test_a_command_too_old_to_be_looked_up_keeps_nobody",
    ),
    **SINGLE,
}

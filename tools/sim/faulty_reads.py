"""Deliberate faults of the rules of reads and sessions. See ``faulty`` and ``faulty_moments``."""

from bedrockish.core.coordinator import coordinator, reads, replies, request
from bedrockish.core.state.state import State
from tools.sim.editing import Moment, fault

_SHARED = "tests.core.test_shared_reads"
_NEWER = "tests.core.test_newer"
_BALLOTS = "tests.core.test_ballots"

READS: dict[str, Moment] = {
    "a strict read is compared with what its node has dropped": Moment(
        fault(
            "a node certifies its own strict read only against what it remembers",
            (reads.Reading, "begin", "state.roster.certifies_reads and can_tell", "state.roster.certifies_reads"),
        ),
        "tests.core.test_dropped:test_strict_read_is_not_certified_against_dropped_commits",
    ),
    "a strict read joins an older question": Moment(
        fault(
            "a strict read shares only a question that is asked after it arrived",
            (reads.Reading, "begin", "self.waiting.append(read)", "self.questions[self._shared].reads.append(read)"),
        ),
        f"{_SHARED}:test_read_that_arrives_after_a_question_is_not_answered_by_it",
    ),
    "a shared question is about one read": Moment(
        fault(
            "a question is about all reads that share it",
            (reads.Reading, "_ask", "if len(reads) > 1:", "if False:"),
        ),
        f"{_SHARED}:test_one_read_in_the_way_of_a_commit_does_not_spoil_the_others",
    ),
    "a question about every key ignores what is pending": Moment(
        fault(
            "a pending transaction is in the way of a question about every key",
            (reads.Reading, "_others_outside", "and not self.state.votes.pending.transactions", "and True"),
        ),
        f"{_NEWER}:test_transaction_that_is_pending_at_the_voter_may_be_newer",
    ),
    "a question about every key ignores commits": Moment(
        fault(
            "a commit outside the state is in the way of a question about every key",
            (reads.Reading, "_others_outside", "and not newer and", "and"),
        ),
        f"{_NEWER}:test_commit_that_has_not_arrived_may_be_newer",
    ),
    "a question about every key goes to no voter": Moment(
        fault(
            "a majority answers a question about every key",
            (reads.Reading, "ask_newer", "state.roster.majority - len(clear)", "0"),
        ),
        f"{_NEWER}:test_commit_that_has_not_arrived_may_be_newer",
    ),
    "a late voter is waited for": Moment(
        fault(
            "the other voters are asked when the first is late",
            (reads.Reading, "ask_rest", "if question is None:", "if True:"),
        ),
        f"{_NEWER}:test_late_voter_is_not_waited_for",
    ),
    "strict refusals skip the majority": Moment(
        fault(
            "a strict refusal is true of some moment between question and answer",
            (coordinator.Coordinator, "_failed", "inflight.request.read != STRICT", "True"),
        ),
        "tests.core.test_refusals:test_strict_refusal_is_never_based_on_old_data",
    ),
    "strict reads ignore what is pending": Moment(
        fault(
            "a strict read waits for what is pending",
            (reads.Reading, "_in_the_way", ", *state.votes.pending.conflicts(reads_only))", ",)"),
        ),
        "trace read_levels",
    ),
    "strict reads ignore commits": Moment(
        fault(
            "a strict read has seen all commits",
            (reads.Reading, "_in_the_way", "*state.commit_window.conflicts(reads_only, base), ", "*(), "),
        ),
        "trace read_levels",
    ),
    "strict reads need no schema": Moment(
        fault(
            "a strict read has seen every schema change on its way",
            (reads.Reading, "begin", " | {clock_key(LAST_CLOCK)}", ""),
        ),
        "tests.core.test_schema_waits:test_strict_reads_do_not_wait_for_each_other",
    ),
    "a session is content with the cut": Moment(
        fault(
            "safe time stands in for a token",
            (State, "has_seen", "self.clock.safe >= token.clock", "self.clock.cut >= token.clock"),
        ),
        f"{_BALLOTS}:test_a_session_waits_until_its_time_is_safe",
    ),
    "a read's token forgets its session": Moment(
        fault(
            "a token has all that its session has seen",
            (replies.Replies, "answer_read", "merge(prepared.base, seen.vector)", "prepared.base"),
        ),
        f"{_BALLOTS}:test_read_token_covers_the_sessions_token",
    ),
    "a write's token has not its base": Moment(
        fault("a write has seen its base", (request, "committed", "merge(transaction.base, ", "merge(")),
        f"{_BALLOTS}:test_the_token_of_a_write_has_its_base",
    ),
}

"""The tests can fail: with a rule of the protocol taken away, a written conversation changes or a seed breaks a law.

``python -m tools.mutations`` goes through all faults, with as much time as it is given.
"""

from pathlib import Path

import pytest

from tests.traces.grammar import play
from tools.mutations import Hunter
from tools.sim.editing import in_force
from tools.sim.faulty import FAULTS

TRACES = Path(__file__).resolve().parents[1] / "traces"
IN_TRACES = {
    "plain majority at 7": "seven_voters",
    "no test 3": "voter_restarts",
    "no test 4": "leader_dies_and_conflicts",
    "no test 5": "race_counted_out_too_early",
    "no test of its own": "late_approval",
    "too late is not": "crash_before_durable",
    "COMMIT ahead of a gap counts": "commit_ahead_of_a_gap",
    "repeat rewrites rows": "leader_dies_committed",
    "no command key": "retry_elsewhere",
    "rollbacks dropped": "rollback_rides_along",
    "give up frees at once": "rollback_rides_along",
    "rolled back told early": "leader_dies_undecided",
    "accepted abort ends pending": "abort_accepted_is_still_pending",
    "holds without tests": "each_waits_for_the_other",
    "exclusion ignores what is known": "race_rolled_back_counted_out",
    "known outcome still accepts": "race_seen_commit_counted_out",
    "decided by one": "leader_dies_committed",
    "accepted values ignored": "abort_accepted_is_still_pending",
    "tokens are not looked at": "session_after_a_lost_label",
    "strict reads ask nobody": "read_levels",
}
SOON_IN_SEEDS = (
    "quorum less one",
    "reply before durable",
    "COMMIT before durable",
    "after ignored",
    "judged by one",
    "two voters at once",
    "the old voters go on counting",
    "who forgot is let in",
    "an older file that has grown is let in",
    "learners vote",
    "snapshot skips test 3",
    "reports believed at once",
    "clocks are not read",
    "nobody waits for a schema change",
)


@pytest.mark.parametrize("name", IN_TRACES)
def test_a_trace_notices(name: str) -> None:
    """A conversation that was written for this rule goes another way without it."""
    text = (TRACES / f"{IN_TRACES[name]}.txt").read_text()
    assert play(text) == text
    with in_force(FAULTS[name]):
        try:
            happens = play(text)
        except AssertionError:  # the core's own, or the trace asks for a message that is not there
            happens = ""
    assert happens != text


@pytest.mark.parametrize("name", SOON_IN_SEEDS)
def test_a_seed_notices(name: str) -> None:
    """A law breaks in one of a few worlds, and in the same world no law breaks with the rule in force."""
    catch = Hunter(seconds=600, worlds=40).in_worlds(FAULTS[name])
    assert catch.law
    assert not catch.unsound


def test_all_faults_fit_the_code() -> None:
    """What each fault replaces is there, once."""
    for fault in FAULTS.values():
        with in_force(fault):
            pass

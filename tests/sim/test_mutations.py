"""The tests can fail: with a rule of the protocol taken away, a written conversation changes or a seed breaks a law.

``python -m tools.mutations`` goes through all faults, with as much time as it is given.
"""

from pathlib import Path

import pytest

from bedrockish.core.state import roster
from tests.traces.grammar import play
from tools.editing import fault, in_force
from tools.faulty import FAULTS
from tools.mutations import Hunter, main
from tools.sim.options import Options
from tools.sim.world import LawBrokenError, World

TRACES = Path(__file__).resolve().parents[1] / "traces"
IN_TRACES = {
    "plain majority at 7": "seven_voters",
    "no test 3": "voter_restarts",
    "no test 4": "leader_dies_and_conflicts",
    "no test 5": "race_counted_out_too_early",
    "no test of its own": "late_approval",
    "a BEGIN below closed time is approved": "crash_before_durable",
    "BEGIN before its vote at five": "five_wait_for_the_vote",
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
    "sessions ignore their tokens": "session_after_a_lost_label",
    "strict reads skip the majority": "read_levels",
}
SOON_IN_SEEDS = (
    "quorum less one",
    "reply before durable",
    "COMMIT before durable",
    "BEGIN before its vote at five",
    "BEGIN before its ceiling",
    "BEGIN before its base",
    "after ignored",
    "judged by one",
    "two voters at once",
    "the old voters go on counting",
    "a voter that forgot its promises is admitted",
    "learners vote",
    "snapshot skips test 3",
    "reports believed at once",
    "clocks are not read",
    "pending transactions delay no read of the journal",
    "the journal is read as it is here",
    "transactions do not wait for a schema change",
    "transaction clocks skip the majority",
    "a leader counts after it gave up",
    "a BEGIN below closed time is approved",
    "a comparison never ends",
    "voters do not compare rows",
    "rows are not compared for a recovery",
    "rows are not compared when they are applied",
    "a damaged node votes",
)


@pytest.mark.parametrize("name", IN_TRACES)
def test_a_trace_detects_each_fault(name: str) -> None:
    """A conversation that was written for this rule goes another way without it."""
    text = (TRACES / f"{IN_TRACES[name]}.txt").read_text()
    assert play(text) == text
    with in_force(FAULTS[name]):
        try:
            happens = play(text)
        except AssertionError:  # an assertion of the core, or a step of the trace whose message is missing
            happens = ""
    assert happens != text


@pytest.mark.parametrize("name", SOON_IN_SEEDS)
def test_a_seed_detects_each_fault(name: str) -> None:
    """One of a few worlds breaks a law, and the same world breaks none with the rule in force."""
    catch = Hunter(seconds=600, worlds=100).in_worlds(FAULTS[name])
    assert catch.law
    assert not catch.unsound


def test_all_faults_fit_the_code() -> None:
    """The text that each fault replaces occurs exactly once."""
    for one in FAULTS.values():
        with in_force(one):
            pass


@pytest.mark.slow
def test_all_faults_are_caught(capsys: pytest.CaptureFixture[str]) -> None:
    """The test runs the whole list, in four minutes of a processor."""
    assert main([]) == 0, capsys.readouterr().out


def test_summary_names_the_catcher_of_each_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary has a line for each fault, and says at the end that all were detected."""
    assert main(["quorum less one", "learners vote", "--ways"]) == 0
    told = capsys.readouterr().out
    assert "A: submit" in told
    assert "| quorum less one | model check | `meet-3` |" in told
    assert "| learners vote | simulator | seed " in told
    assert "2 faults, 0 not caught" in told


def test_undetected_fault_gives_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The fault of this test changes nothing."""
    nothing = fault("nothing", (roster, "approvals_needed", "majority(voters)", " majority(voters)"), load_s=0.2)
    monkeypatch.setitem(FAULTS, "nothing", nothing)
    assert main(["nothing", "--seeds", "2"]) == 1
    assert "| nothing | simulator | 2 worlds |" in capsys.readouterr().out


def test_law_broken_without_the_fault_counts_as_not_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run reports the broken law and fails."""
    world = World(Options(1))
    monkeypatch.setattr("tools.mutations.run_seed", lambda _: (LawBrokenError("one outcome", "by itself"), world))
    assert main(["learners vote", "--seeds", "3"]) == 1
    told = capsys.readouterr().out
    assert "**not caught**" in told
    assert "breaks a law without any fault: seed 1: one outcome: by itself" in told


def test_scope_that_breaks_without_the_fault_is_not_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test the quorum is too small with and without the fault."""
    monkeypatch.setattr(roster, "approvals_needed", lambda _voters: 1)
    catch = Hunter(seconds=60, worlds=1).in_scope(FAULTS["no test 4"], "meet-3")
    assert not catch.law
    assert catch.unsound.startswith("meet-3: no concurrent conflicting commits")

"""Whole clusters in one process: whatever a seed does to them, the laws hold.

A seed that fails is played again, event by event, with ``tools/simulate --seed N -v``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bedrockish.core.settings import approvals_needed
from tools.sim.options import Options, draw_hard_options, draw_options, draw_wide_options
from tools.sim.world import World
from tools.simulate import run_seed

ROOT = Path(__file__).resolve().parents[2]
QUICK = range(1, 41)
LONG = range(1_000, 1_600)


@pytest.mark.parametrize("start", range(QUICK.start, QUICK.stop, 5))
def test_laws_hold(start: int) -> None:
    """No law of the database breaks in any of these worlds."""
    for seed in range(start, start + 5):
        broken, world = run_seed(draw_wide_options(seed))
        assert broken is None, f"seed {seed}: {broken}"
        assert world.counts["answers"] > 0


@pytest.mark.parametrize("start", range(QUICK.start, QUICK.stop, 10))
def test_laws_hold_in_hard_worlds(start: int) -> None:
    """Nor in small, hot ones, full of needless recoveries and restarts."""
    for seed in range(start, start + 10):
        broken, _ = run_seed(draw_hard_options(seed))
        assert broken is None, f"hard seed {seed}: {broken}"


@pytest.mark.parametrize("start", [1, 4])
def test_every_transaction_runs_on_the_schema_of_its_clock(start: int) -> None:
    """With clocks apart by all that is allowed, a delay shorter than a message's way, and leaders that die."""
    for seed in range(start, start + 3):
        faults = ("crash", "kill", "pause", "one_way", "reset")
        options = draw_hard_options(seed).with_(
            alter=0.2, schema_delay_ms=2, delay_ms=30.0, skew_ms=2_500, faults=faults, fault_every_s=0.2, load_s=1.5
        )
        broken, world = run_seed(options)
        assert broken is None, f"seed {seed}: {broken}"
        assert world.counts["schema changes"] > 0


@pytest.mark.parametrize("voters", range(1, 8))
def test_no_more_files_are_lost_than_can_be_replaced(voters: int) -> None:
    """However many are wiped: a change of the members needs a quorum of approvals, and who forgot gives none."""
    options = Options(3, voters=voters, faults=("wipe",), fault_every_s=0.05, load_s=2.0, heartbeat_ms=30)
    broken, world = run_seed(options)
    assert broken is None
    spare = voters - approvals_needed(voters)
    assert world.counts["files lost"] >= min(1, spare)
    for voter in world.voters[:spare]:
        world.machines[voter].forgot = True
    before = world.counts["files lost"]
    for _ in range(20):
        world.faults._wipe()
    assert world.counts["files lost"] == before


@pytest.mark.parametrize("seed", [2, 11, 17])
def test_a_seed_is_one_story(seed: int) -> None:
    """The same seed makes the same events, to the byte."""
    options = draw_wide_options(seed).with_(load_s=2.0)
    stories = []
    for _ in range(2):
        world = World(options)
        world.run()
        stories.append((world.digest.digest(), dict(world.counts)))
    assert stories[0] == stories[1]


def test_a_seed_is_one_story_in_every_process() -> None:
    """What is printed for a seed on one machine is what happens on another: no order of a hash gets into it."""
    told = set()
    for number in ("1", "2"):
        command = [sys.executable, "-m", "tools.simulate", "--once", "--seed", "12"]
        found = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": number}, capture_output=True, text=True, check=True
        )
        told.add(next(line for line in found.stdout.splitlines() if line.startswith("story ")))
    assert len(told) == 1


@pytest.mark.slow
@pytest.mark.parametrize("start", range(LONG.start, LONG.stop, 20))
def test_laws_hold_for_long(start: int) -> None:
    """No law of the database breaks in many more worlds."""
    for seed in range(start, start + 20):
        broken, _ = run_seed(draw_options(seed), twice=True)
        assert broken is None, f"seed {seed}: {broken}"

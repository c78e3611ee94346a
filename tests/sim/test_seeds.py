"""Whole clusters in one process: the laws hold in the world of every seed.

``tools/simulate --seed N -v`` repeats a failing seed and prints its events.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bedrockish.core.state.settings import approvals_needed
from tools.sim.history import Histories
from tools.sim.options import CONVERSING, CROWDED, Options, draw_hard_options, draw_options, draw_wide_options
from tools.sim.world import LawBrokenError, World
from tools.simulate import run_seed

ROOT = Path(__file__).resolve().parents[2]
QUICK = range(1, 25)
LONG = range(1_000, 1_600)


@pytest.mark.parametrize("start", range(QUICK.start, QUICK.stop, 6))
def test_laws_hold_in_random_worlds(start: int) -> None:
    """No law of the database breaks in any of these worlds."""
    for seed in range(start, start + 6):
        broken, world = run_seed(draw_wide_options(seed))
        assert broken is None, f"seed {seed}: {broken}"
        assert world.counts["answers"] > 0


@pytest.mark.parametrize("start", range(QUICK.start, QUICK.stop, 12))
def test_laws_hold_in_hard_worlds(start: int) -> None:
    """Hard worlds are small and hot, with many needless recoveries and restarts."""
    for seed in range(start, start + 12):
        broken, _ = run_seed(draw_hard_options(seed))
        assert broken is None, f"hard seed {seed}: {broken}"


def test_leader_recovers_a_transaction_promised_to_a_dead_recovery() -> None:
    """The recovering node died before it asked the leader, and the other voters hold a rival and approve no more."""
    broken, _ = run_seed(draw_options(80_455))
    assert broken is None, str(broken)


@pytest.mark.parametrize("start", [1, 4])
def test_every_transaction_runs_on_the_schema_of_its_clock(start: int) -> None:
    """Clocks differ by the allowed maximum, the delay is shorter than a message's transit, and leaders die."""
    changed = 0
    for seed in range(start, start + 3):
        faults = ("crash", "kill", "pause", "one_way", "reset")
        options = draw_hard_options(seed).with_(
            alter=0.2, schema_delay_ms=2, delay_ms=30.0, skew_ms=2_500, faults=faults, fault_every_s=0.2, load_s=1.5
        )
        broken, world = run_seed(options)
        assert broken is None, f"seed {seed}: {broken}"
        changed += world.counts["schema changes"]
    assert changed > 0


@pytest.mark.parametrize("voters", range(1, 8))
def test_simulator_wipes_only_as_many_files_as_a_quorum_permits(voters: int) -> None:
    """Any number of files could be lost, but a membership change needs a quorum of approvals, and an amnesiac node
    gives none.
    """
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


@pytest.mark.parametrize("start", [1, pytest.param(13, marks=pytest.mark.slow)])
def test_laws_hold_when_nodes_restart_on_older_files(start: int) -> None:
    """In these worlds nodes mostly restart on older files, and clients write there, so that the older file grows."""
    put_back = 0
    for seed in range(start, start + 12):
        options = draw_hard_options(seed).with_(
            voters=3, dead=0, faults=("restore", "restore", "crash_all", "crash", "one_way"), fault_every_s=0.1
        )
        options = options.with_(load_s=4.0, clients=10, think_ms=5.0, sync_ms=1.0, delay_ms=5.0, heartbeat_ms=50)
        broken, world = run_seed(options)
        assert broken is None, f"seed {seed}: {broken}"
        put_back += world.counts["files put back"]
    assert put_back > 0


def test_lost_file_may_lose_a_place_but_not_its_transaction() -> None:
    """An acknowledged commit is found under another label if only its lost leader had the first one."""
    broken, world = run_seed(Options(3, load_s=1.0))
    assert broken is None
    histories = Histories(world, world.laws.calls)
    histories._timelines()
    histories._acknowledged()
    place = next(call.answer.place for call in world.laws.calls if call.answer is not None and call.answer.place)
    entry = histories.entries.pop(place)
    with pytest.raises(LawBrokenError, match="acknowledged is for ever"):
        histories._acknowledged()
    world.machines[place[0]].forgot = True
    histories._acknowledged()
    del histories.first[entry.txid]
    with pytest.raises(LawBrokenError, match="acknowledged is for ever"):
        histories._acknowledged()


@pytest.mark.parametrize("start", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_laws_hold_when_most_begins_are_too_late(start: int) -> None:
    """The closing lag is half the delay of a BEGIN, until all machines are fast enough at the end."""
    assert Options(0).pace_at_rest == 1.0
    for seed in range(start, start + 6):
        options = draw_hard_options(seed).with_(
            voters=7, dead=0, delay_ms=20.0, sync_ms=20.0, closing_lag_ms=20, piece_bytes=0
        )
        broken, world = run_seed(options.with_(heartbeat_ms=20, load_s=0.5, timeout_s=0.3))
        assert broken is None, f"seed {seed}: {broken}"
        assert world.network.pace == 0.25


@pytest.mark.parametrize("seed", [2, 11, 17])
def test_seed_gives_the_same_run(seed: int) -> None:
    """Compare two runs of a seed, byte by byte."""
    options = draw_wide_options(seed).with_(load_s=2.0)
    stories = []
    for _ in range(2):
        world = World(options)
        world.run()
        stories.append((world.digest.digest(), dict(world.counts)))
    assert stories[0] == stories[1]


def test_seed_gives_the_same_run_in_every_process() -> None:
    """Compare the output of a seed in several processes: no order of hashes may enter."""
    told = set()
    for number in ("1", "2"):
        command = [sys.executable, "-m", "tools.simulate", "--once", "--seed", "12"]
        found = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": number}, capture_output=True, text=True, check=True
        )
        told.add(next(line for line in found.stdout.splitlines() if line.startswith("story ")))
    assert len(told) == 1


def test_request_for_many_rows_is_not_starved() -> None:
    """Commands over many rows lose all the time, and nodes die, pause or jump in time."""
    asked = 0
    for seed in range(1, 7):
        broken, world = run_seed(Options(seed, **CROWDED))
        assert broken is None, f"seed {seed}: {broken}"
        asked += world.counts["reservations"]
    assert asked > 0


def test_interactive_transactions_that_read_the_same_range_are_merged() -> None:
    """Voters drop the votes and the access sets of transactions that have merged, also after recoveries."""
    merged = 0
    for seed in range(1, 7):
        broken, world = run_seed(Options(seed, faults=("kill", "pause", "partition"), **CONVERSING))
        assert broken is None, f"seed {seed}: {broken}"
        merged += world.counts["merged"]
    assert merged > 20


@pytest.mark.slow
@pytest.mark.parametrize("start", range(LONG.start, LONG.stop, 20))
def test_laws_hold_in_many_random_worlds(start: int) -> None:
    """No law of the database breaks in many more worlds."""
    for seed in range(start, start + 20):
        broken, _ = run_seed(draw_options(seed), twice=True)
        assert broken is None, f"seed {seed}: {broken}"


def test_node_pauses_while_a_schema_change_without_delay_waits() -> None:
    """Without a pause a node would do nothing else (seed 3009)."""
    broken, world = run_seed(draw_options(3009))
    assert broken is None
    assert world.counts["events"] < 100_000

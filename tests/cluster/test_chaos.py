"""A slice of chaos: clients on all nodes, nodes killed, stopped and cut off, and the checker over what clients saw.

Longer runs: ``python -m tools.chaos``.
"""

from pathlib import Path

import pytest

from tools.chaos.run import Plan, run

pytestmark = pytest.mark.cluster


async def chaos(plan: Plan, directory: Path, operations: int) -> None:
    verdict = await run(plan, directory)
    assert not verdict.wrong, "\n".join([*verdict.wrong, f"seed {plan.seed}, files in {directory}"])
    assert verdict.counts["update ok"] > operations


async def test_three_nodes_under_all_faults(tmp_path: Path) -> None:
    await chaos(Plan(nodes=3, seconds=20, seed=3), tmp_path, 30)


async def test_programs_on_the_files_of_nodes_under_all_faults(tmp_path: Path) -> None:
    await chaos(Plan(nodes=3, seconds=20, seed=4, by_file=True), tmp_path, 30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
async def test_five_nodes_under_all_faults(seed: int, tmp_path: Path) -> None:
    await chaos(Plan(nodes=5, seconds=60, seed=seed), tmp_path, 100)


@pytest.mark.slow
async def test_flipped_bits_are_healed(tmp_path: Path) -> None:
    """Bits that change in the files of nodes that were killed: nothing differs in the end, because it was repaired."""
    verdict = await run(Plan(nodes=3, seconds=40, seed=3, faults=("kill", "flip")), tmp_path)
    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert verdict.counts["flipped bits"] > 0
    assert verdict.counts["times that a node was filled again"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "pause", "partition"])
async def test_one_fault_by_itself(fault: str, tmp_path: Path) -> None:
    await chaos(Plan(nodes=3, seconds=60, seed=7, faults=(fault,)), tmp_path, 100)

"""Broken input at every interface of real nodes for a while: no node ends, all tables stay equal, and no error is
internal.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import clean_environment
from tools.fuzz.__main__ import examine
from tools.fuzz.lab import lab

ROOT = Path(__file__).resolve().parents[2]


def bench(seconds: int, seed: int) -> None:
    command = [sys.executable, "-m", "tools.fuzz", "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False, timeout=240 + seconds
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    assert done.stdout.splitlines()[-1] == "well"


@pytest.mark.cluster
@pytest.mark.parametrize("seconds", [10, pytest.param(120, marks=pytest.mark.slow)])
def test_nodes_survive_nonsense_at_every_interface(seconds: int) -> None:
    bench(seconds, 1)


@pytest.mark.cluster
def test_fuzzer_reports_a_node_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fourth member is down as well, so the others have no quorum: the fuzzer reports that, too."""
    monkeypatch.setattr("tools.fuzz.__main__.ANSWER_S", 1.0)
    with lab(tmp_path / "nodes") as made:
        made.nodes[1].kill()
        findings = examine(made)
    assert any(finding.startswith("B has ended") for finding in findings)
    assert any(finding.startswith("A does not write") for finding in findings)

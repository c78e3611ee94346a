"""The command line of the audit: its report, its statuses and its messages."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bedrockish.cli.audit import Report, audit
from tests.spark.test_audits import spoil
from tests.spark.worlds import honest

ROOT = Path(__file__).resolve().parents[2]


def test_audit_that_cannot_run_ends_with_3(tmp_path: Path) -> None:
    ended = CliRunner().invoke(audit, [str(tmp_path / "none.db")])
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert "no such file" in ended.stderr


@pytest.mark.parametrize("missing", ["duckdb", "pyarrow"])
def test_missing_package_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    paths = [str(path) for path in honest(10).write(tmp_path)]
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    ended = CliRunner().invoke(audit, paths)
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr.startswith(f"error: {missing} is not installed; pip install 'bedrockish[audit]', or")


@pytest.mark.parametrize(("memory", "said"), [("lots", "is not a size"), ("3MB", "needs more memory than 3MB")])
def test_too_small_memory_of_duckdb_is_an_error(tmp_path: Path, memory: str, said: str) -> None:
    paths = [str(path) for path in honest(10).write(tmp_path)]
    ended = CliRunner().invoke(audit, ["--memory", memory, *paths])
    assert ended.exit_code == 3
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_strict_counts_information_as_faults(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(("txid", "table", "key"))
    behind = {"check": "lost", "level": "information", "node": "B", "text": "B ends at tick 3 of timeline A", **nothing}
    for strict, holds in ((False, True), (True, False)):
        report = Report(strict=strict, as_json=False)
        report.add("lost", "nodes hold the same entries", [behind], {"fault": 0, "information": 1})
        report.end()
        said = capsys.readouterr().out
        assert report.wrong is not holds
        assert said.startswith("  lost       ok" if holds else "  lost       1 finding")
        assert said.endswith("the journals hold\n" if holds else "something is wrong\n")


def test_audit_prints_its_report_and_nothing_else(tmp_path: Path) -> None:
    world = honest(60)
    paths = world.write(tmp_path)
    spoil(paths[1], "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = 5")
    program = "from bedrockish.cli.audit import audit; audit()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, paths), "--json"],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, "")
    report = json.loads(ended.stdout)
    assert report["holds"] is False
    assert report["nodes"] == ["A", "B", "C"]
    broken = {check["check"]: check["findings"] for check in report["checks"] if not check["holds"]}
    (missing,) = broken["density"]
    assert (missing["node"], missing["leader"], missing["tick"], missing["text"]) == ("B", "A", 5, "A5 is missing")
    assert (missing["txid"], missing["table"]) == (str(world.drafts["A", 5].txid), "accounts")
    assert missing["key"].startswith('{"id":')
    assert set(broken) == {"density", "causality"}

"""The errors on a machine where Spark cannot start, and the command ``bedrockish audit``."""

import builtins
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bedrockish.cli.audit import ReportPrinter, audit
from bedrockish_journal.audit import duck
from bedrockish_journal.spark.session import SparkUnavailableError, check_installed, check_java
from tests.spark.test_audits import spoil
from tests.spark.worlds import honest

ROOT = Path(__file__).resolve().parents[2]


def java(directory: Path, says: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return directory


def test_missing_java_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match=r"no java on the PATH.*openjdk-17-jre-headless"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match="has no bin/java"):
        check_java()


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19'])
def test_check_java_accepts_a_supported_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, says)))
    check_java()


@pytest.mark.parametrize(
    ("says", "why"),
    [('java version "1.8.0_402"', "is Java 8"), ('openjdk version "11.0.2"', "is Java 11"), ("hello", "does not say")],
)
def test_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, why: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, says)))
    with pytest.raises(SparkUnavailableError, match=why):
        check_java()


def test_missing_pyspark_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "pyspark":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SparkUnavailableError, match=r"pip install 'bedrockish\[spark\]'"):
        check_installed("pyspark", "pyarrow")


FORKING = """
import os, sys
from bedrockish_journal.spark.session import make_directory
directory = make_directory()
if os.fork() == 0:
    sys.exit()
os.wait()
print(directory.exists(), directory)
"""


def test_only_the_process_of_a_session_removes_its_directory() -> None:
    told = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True).stdout
    there, directory = told.split()
    assert there == "True"
    assert not Path(directory).exists()


def test_audit_that_cannot_run_ends_with_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = CliRunner().invoke(audit, [str(tmp_path / "none.db")])
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert "no such file" in ended.stderr
    paths = honest(10).write(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ended = CliRunner().invoke(audit, ["--engine", "spark", *(str(path) for path in paths)])
    assert ended.exit_code == 3
    assert "Spark needs Java 17" in ended.stderr


@pytest.mark.parametrize(
    ("engine", "missing"), [("duckdb", "duckdb"), ("duckdb", "pyarrow"), ("spark", "pyspark"), ("spark", "pyarrow")]
)
def test_missing_package_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, missing: str
) -> None:
    paths = [str(path) for path in honest(10).write(tmp_path)]
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    ended = CliRunner().invoke(audit, ["--engine", engine, *paths])
    assert (ended.exit_code, ended.stdout) == (3, "")
    extra = "audit" if engine == "duckdb" else "spark"
    assert ended.stderr.startswith(f"error: {missing} is not installed; pip install 'bedrockish[{extra}]', or")


@pytest.mark.parametrize(("memory", "said"), [("lots", "is not a size"), ("3MB", "needs more memory than 3MB")])
def test_too_small_memory_of_duckdb_is_an_error(tmp_path: Path, memory: str, said: str) -> None:
    paths = [str(path) for path in honest(10).write(tmp_path)]
    ended = CliRunner().invoke(audit, ["--memory", memory, *paths])
    assert ended.exit_code == 3
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_audit_option_strict_counts_information_as_faults(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(("txid", "table", "key"))
    behind = {"check": "lost", "level": "information", "node": "B", "text": "B ends at tick 3 of timeline A", **nothing}
    for strict, holds in ((False, True), (True, False)):
        report = ReportPrinter(strict=strict, as_json=False)
        report.add("lost", "nodes hold the same entries", [behind], {"fault": 0, "information": 1})
        report.end()
        said = capsys.readouterr().out
        assert report.wrong is not holds
        assert said.startswith("  lost       ok" if holds else "  lost       1 finding")
        assert said.endswith("the journals hold\n" if holds else "something is wrong\n")


@pytest.mark.parametrize(
    "engine",
    ["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])],  # quickly seen in test_wheel
)
def test_audit_prints_its_report_and_nothing_else(tmp_path: Path, engine: str) -> None:
    world = honest(60)
    paths = world.write(tmp_path)
    spoil(paths[1], "DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = 5")
    program = "from bedrockish.cli.audit import audit; audit()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, paths), "--json", "--engine", engine],
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


def test_interrupted_duckdb_query_raises_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DuckDB raises a RuntimeError for Ctrl-C in a query, which a user would take for a bug."""

    def interrupted(*_: object) -> None:
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr(duck, "_ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(duck.run_audits([str(path) for path in honest(10).write(tmp_path)], 1))

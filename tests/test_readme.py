"""The commands, the configuration and the example of the README are run."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bedrockish import connect
from tests.cluster.test_init import running
from tests.test_tidy import ROOT
from tools.cluster import free_ports

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the commands of the shell blocks, without their comments, and those quoted in the text."""
    typed = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    quoted = re.findall(r"`((?:tools/|bedrockish )[^`]*)`", README)
    return list(dict.fromkeys(line for line in [*typed, *quoted] if line))


# How each command of the README is tried. A new one must be put here, or the test below fails.
HELP = {
    "tools/test": ["tools/test", "--help"],
    "tools/demo": [sys.executable, "-m", "tools.demonstration.cluster", "--help"],
    "tools/demo your.sqlite": [sys.executable, "-m", "tools.demonstration.cluster", "--help"],
    "pip install .": [sys.executable, "-m", "pip", "install", "--help"],  # tools/test has done it, or nothing would run
    "tools/bench": [sys.executable, "-m", "tools.bench", "--help"],
    "tools/bench peers": [sys.executable, "-m", "tools.bench", "peers", "--help"],
    "tools/bench list": [sys.executable, "-m", "tools.bench", "--help"],
    "bedrockish init try 127.0.0.1:7401 127.0.0.1:7402 127.0.0.1:7403": [
        *(sys.executable, "-m", "bedrockish.cli.main"),
        *("init", "--help"),
    ],
    "cd try/A && bedrockish serve --config A.toml": [sys.executable, "-m", "bedrockish.cli.main", "serve", "--help"],
    "bedrockish import old.db": [sys.executable, "-m", "bedrockish.cli.main", "import", "--help"],
    "bedrockish journal": [sys.executable, "-m", "bedrockish.cli.main", "journal", "--help"],
    "bedrockish audit": [sys.executable, "-m", "bedrockish.cli.main", "audit", "--help"],
}


def run(*command: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s)


def test_every_command_of_the_readme_is_tried() -> None:
    """The table above and the README name the same commands."""
    assert sorted(commands()) == sorted(HELP)


@pytest.mark.parametrize("command", sorted(HELP))
def test_command_exists_and_explains_itself(command: str) -> None:
    """Each command of the README can be started, and says how it is used."""
    done = run(*HELP[command])
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


@pytest.mark.parametrize("program", ["test", "demo", "bench"])
def test_programs_name_the_missing_python(program: str, tmp_path: Path) -> None:
    """With no Python that is new enough, one line says which was found and which is needed."""
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.9;; *) exit 1;; esac\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", ROOT / "tools" / program],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "BEDROCKISH_PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Python 3.11 or newer" in done.stderr
    assert f"{old} is 3.9" in done.stderr


@pytest.mark.cluster
def test_init_command_and_example_of_the_readme_work(tmp_path: Path) -> None:
    """The README's ``init`` makes three nodes, and they run its example."""
    (example,) = blocks("python")
    (first,) = re.findall(r"^with .*", example, flags=re.MULTILINE)
    (on_cluster,) = re.findall(r"`(with bedrockish\.connect\(.*?\) as db:)`", README)
    (line,) = (line for line in commands() if line.startswith("bedrockish init"))
    given = sorted(set(re.findall(r"\b74\d\d\b", line + on_cluster)))
    assert len(given) == 3
    ports = {port: str(free) for port, free in zip(given, free_ports(3), strict=True)}

    def moved(text: str) -> str:
        return re.sub(r"\b74\d\d\b", lambda match: ports[match[0]], text)

    _, command, place, *nodes = moved(line).split()
    made = run(sys.executable, "-m", "bedrockish.cli.main", command, str(tmp_path / place), *nodes)
    assert made.returncode == 0, made.stderr
    with running(tmp_path / place):
        with connect(f"bedrockish://{','.join(nodes)}/?connect_timeout=30") as db:
            db.execute("SELECT 1")
        for text in (example, moved(example.replace(first, on_cluster))):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(text, {})
            assert said.getvalue() == "[(1, 70), (2, 30)]\n"


@pytest.mark.cluster
def test_short_demo_keeps_its_promises(tmp_path: Path) -> None:
    """The demo keeps every promise, with a node killed and started again, in a few seconds and without Spark."""
    place = str(tmp_path / "demo")
    done = run(
        sys.executable, "-m", "tools.demonstration.cluster", "--seconds", "5", "--no-audit", "--dir", place, limit_s=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "promises kept" in done.stdout


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.spark
def test_full_demo_keeps_its_promises(tmp_path: Path) -> None:
    """The demo as people see it, with the audit in Spark."""
    done = run(sys.executable, "-m", "tools.demonstration.cluster", "--dir", str(tmp_path / "demo"), limit_s=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "promises kept" in done.stdout


@pytest.mark.slow
@pytest.mark.cluster
def test_bench_reports_every_workload_and_node_count() -> None:
    """The benchmark measures every workload, and its counts equal the tables."""
    done = run(sys.executable, "-m", "tools.bench", "--seconds", "0.5", "--clients", "1,6", "--json", limit_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"commits"') == 4 * 3

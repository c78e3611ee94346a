"""The tests in several processes, as ``tools/test`` runs them: the report at the end, Ctrl-C, and ports."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_tidy import ROOT
from tests.test_tools import running
from tools import cluster
from tools.check import SHARED
from tools.cluster import PORTS_HELD, adjacent_ports, clean_environment, free_ports

TELLS_ITS_PROCESS = """
import os
from pathlib import Path

def test_it():
    Path({place!r}, Path(__file__).stem).write_text(str(os.getpid()))
"""
FAILS = """
import pytest

def test_it():
    wanted = {"of": "the whole failure"}
    assert wanted == {}

@pytest.mark.slow
def test_another():
    pass
"""
NEEDS_JAVA = """
import pytest

@pytest.mark.spark
def test_it():
    pass
"""
INTERRUPTS = """
import signal
import subprocess
import sys

from click.testing import CliRunner

from bedrockish.cli.main import main

def test_it():
    CliRunner().invoke(main, ["--version"])
    ended = subprocess.run([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"], timeout=60)
    assert ended.returncode == -signal.SIGINT
"""
WAITS = """
from pathlib import Path

import pytest
import trio

from tests.cluster.story import ready
from tools import cluster as nodes
from tools.cluster import local_cluster

nodes.fork = None  # the processes are looked for by their commands

@pytest.mark.parametrize("number", range(6))
async def test_it(number):
    place = Path({place!r}, f"{number}")
    with local_cluster(place, "A") as cluster:
        await ready(cluster)
        (place / "ready").touch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
"""


def command(place: Path, files: dict[str, str]) -> list[str]:
    """Write test files; return the arguments with which pytest runs them as the project's tests."""
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text.replace("{place!r}", repr(str(place))))
    given = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(place), "-p", "tests.conftest"]
    return ["pytest", *SHARED, *given, "--basetemp", str(place / "temporary"), str(place / "tests")]


def test_parallel_test_run_has_one_summary_and_one_process_for_spark(tmp_path: Path) -> None:
    """A failure is named at once and printed in full at the end; the status shows it; counts are of all processes."""
    told = {f"tests/spark/test_{name}.py": TELLS_ITS_PROCESS for name in "abc"}
    given = command(tmp_path, {**told, "tests/cluster/test_d.py": TELLS_ITS_PROCESS, "tests/test_e.py": FAILS})
    done = subprocess.run(
        [sys.executable, "-m", *given], cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 4 passed, 1 skipped" in done.stdout.splitlines()[-1]
    before, after = re.split(r"^=+ FAILURES =+$", done.stdout, flags=re.MULTILINE)
    assert "FAILED tests/test_e.py::test_it: AssertionError: assert {'of': 'the whole failure'} == {}" in before
    assert "'of': 'the whole failure'" in after
    processes = {path.name: path.read_text() for path in tmp_path.glob("test_?")}
    assert processes["test_a"] == processes["test_b"] == processes["test_c"] != processes["test_d"]


def test_skipped_tests_are_reported_at_the_end(tmp_path: Path) -> None:
    """A process that has run no test itself reports them, too."""
    ran = [sys.executable, "-m", *command(tmp_path, {"tests/test_a.py": NEEDS_JAVA}), "-n", "1"]
    environment = clean_environment() | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(ran, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "NOTE" in done.stdout
    assert "\n1 SKIPPED: no Spark here: " in done.stdout


def test_named_tests_run_in_one_process(tmp_path: Path) -> None:
    """The tests begin at once, as with plain pytest; an unknown name is reported."""
    *given, folder = command(tmp_path, {"tests/test_a.py": TELLS_ITS_PROCESS})
    for named, status, said in (
        (f"{folder}/test_a.py", 0, "collected 1 item"),
        (f"{folder}/test_b.py", 4, f"file or directory not found: {folder}/test_b.py"),
    ):
        ran = [sys.executable, "-m", *given, named]
        done = subprocess.run(ran, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
        assert said in done.stdout + done.stderr
        assert done.returncode == status
        assert "workers" not in done.stdout


@pytest.mark.parametrize("processes", [0, 1])
def test_ctrl_c_works_in_tests_although_their_shell_ignores_it(tmp_path: Path, processes: int) -> None:
    given = command(tmp_path, {"tests/test_a.py": INTERRUPTS})
    ran = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-m", *given, "-n", str(processes)]
    done = subprocess.run(ran, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.cluster
def test_ctrl_c_ends_the_run_and_its_nodes(tmp_path: Path) -> None:
    """The interrupted test does not count as failed, after which the next tests would start nodes of their own."""
    given = command(tmp_path, {f"tests/test_{name}.py": WAITS.replace('f"', f'f"{name}') for name in "ab"})
    program = f"from tools.check import run; run('tests', {given!r})"
    with (tmp_path / "said").open("w") as said:
        run = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=clean_environment(),
            stdout=said,
            stderr=said,
            process_group=0,
        )
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("*/ready"))) < 2 and run.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        started = running(tmp_path / "a0") + running(tmp_path / "b0")
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(60) == -signal.SIGINT
    finally:
        run.kill()
        run.wait()
        left = running(tmp_path)
        for process in left:
            os.kill(process, signal.SIGKILL)
    assert len(started) == 2, (tmp_path / "said").read_text()
    assert not left
    assert {path.parent.name for path in tmp_path.glob("*/A.log")} == {"a0", "b0"}


@pytest.mark.parametrize("found", [free_ports, adjacent_ports])
def test_port_found_free_stays_free(found: Callable[[int], list[int]]) -> None:
    """The system gives the port to no other program; a program that names it gets it, also later, until its release."""
    first, port = found(2)
    assert port == first + 1 or found is free_ports
    with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("127.0.0.1", port))
    assert caught.value.errno == errno.EADDRINUSE
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
    free_ports(PORTS_HELD)
    assert len(cluster._held) == PORTS_HELD, "it is given back when as many others are held"

"""Systems other than Linux, which are imitated in a process without the calls that they lack."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tools.cluster import local_cluster

MACOS = """
import os, sys, time
del os.eventfd, os.eventfd_read, os.eventfd_write, os.fdatasync, os.posix_fallocate, time.CLOCK_BOOTTIME
import trio
sys.platform = "darwin"
"""
WINDOWS = """
import os, select, sys
del os.fork, os.register_at_fork, select.poll
import click, trio  # with the parts that know the real system
sys.platform = "win32"
sys.modules["fcntl"] = sys.modules["resource"] = None
"""
REFUSED = "needs Linux, and this system is {}; run nodes on Linux or in containers, and connect by URL"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with local_cluster(tmp_path_factory.mktemp("systems"), ("A",)) as cluster:
        trio.run(cluster.wait_all_ready)
        yield cluster.url()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a program that is not refused makes its files there


def run(system: str, program: str) -> str:
    """Return the output of a program on another system; the last line is its error, if there is one."""
    found = subprocess.run([sys.executable, "-c", system + program], capture_output=True, text=True, timeout=60)
    return (found.stdout + found.stderr).strip().splitlines()[-1]


def test_dbapi_by_url_uses_no_call_that_macos_lacks(url: str) -> None:
    program = f"import bedrockish.dbapi as d; print(d.connect({url!r}).execute('SELECT 7').fetchone())"
    assert run(MACOS, program) == "(7,)"


@pytest.mark.parametrize(
    "program",
    [
        "bedrockish.node()",
        "bedrockish.connect('A.sqlite')",
        "import bedrockish.dbapi; bedrockish.dbapi.connect('/tmp/A.sqlite')",
        "from bedrockish.cli import serve; trio.run(serve.run_until_signal, None, None)",
    ],
)
def test_nodes_and_their_files_are_refused_outside_linux(program: str) -> None:
    assert run(MACOS, f"import bedrockish; {program}").endswith(REFUSED.format("darwin"))


def test_option_local_of_a_url_is_ignored_outside_linux(url: str) -> None:
    program = f"print(bedrockish.connect({url!r} + '?local=/tmp/A.sqlite').execute('SELECT 7').rows)"
    assert run(MACOS, f"import bedrockish; {program}") == "[(7,)]"


def test_blocking_client_names_another_way_where_there_is_no_poll() -> None:
    said = run(WINDOWS, "import bedrockish; bedrockish.connect('bedrockish://127.0.0.1:1')")
    assert said.endswith("this client needs poll(), which Python lacks on win32; use bedrockish.open_client or HTTP")


def test_commands_by_url_name_another_way_on_windows() -> None:
    said = run(WINDOWS, "from bedrockish.cli.main import main; main(['nodes', 'bedrockish://127.0.0.1:1'])")
    assert said.startswith("error: this client needs poll(), which Python lacks on win32; ")


def test_commands_that_lock_files_name_the_system_on_windows() -> None:
    said = run(WINDOWS, "from bedrockish.cli.main import main; main(['compact', 'A.sqlite'])")
    assert said == "error: this needs Linux or macOS: Python on win32 has no module fcntl"

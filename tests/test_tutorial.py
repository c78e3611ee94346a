"""The tutorials work: a shell runs their commands unchanged, and the output is the printed one."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_tidy import ROOT
from tools.cluster import clean_environment, free_ports

PAGES = ("tutorial", *(f"tutorial-{name}" for name in ("sqlite3", "sqlalchemy", "django", "libsql", "http")))
BLOCK = re.compile(r"^```(sh|text)( \w+)?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
PORTS = ("7401", "7402", "7403", "4001", "4002", "4003", "8000")
SHIM = '#!/bin/sh\nexec "{python}" {module}"$@"\n'
LIMIT_S = 180


def script(page: str) -> tuple[str, list[list[str]]]:
    """Return the commands of a page, with a line between any two blocks, and the expected output of each block."""
    lines = ["set -eu", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"]  # also where it fails midway
    said: list[list[str]] = []
    for kind, note, text in BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text()):
        if kind == "text":
            said[-1] = text.splitlines()
        elif note.strip() != "install":  # it is installed here
            said.append([])
            lines += [text.replace("\nwait\n", "\nwait || true\n") if note.strip() == "stop" else text]
            lines += [f"echo end-of-block-{len(said)}"]
    return "\n".join(lines), said


@pytest.mark.parametrize("page", PAGES)
def test_tutorial_starts_and_kills_nodes_and_shows_output(page: str) -> None:
    commands, said = script(page)
    assert "bedrockish serve" in commands
    assert "kill -9" in commands
    assert sum(map(bool, said)) >= 4
    assert "pip install" not in commands


def install_modules(place: Path) -> None:
    """Install the JavaScript clients in the versions that are pinned in tests/libsql."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here: the JavaScript client is not tried")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tests" / "libsql" / name, place)
    npm = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(npm, cwd=place, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_tutorial_run(page: str, tmp_path: Path) -> None:
    """The tutorial runs three nodes and an application, kills a node, and starts it again."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("bedrockish", "-m bedrockish.cli.main "), ("python", "")):
        (programs / name).write_text(SHIM.format(python=sys.executable, module=module))
        (programs / name).chmod(0o755)
    commands, said = script(page)
    free = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    # In one pass: a free port may have one of the page's in it.
    commands = re.sub("|".join(PORTS), lambda found: free[found[0]], commands)
    place = tmp_path / "tutorial"
    place.mkdir()
    if page == "tutorial-libsql":
        install_modules(place)
    environment = {**clean_environment(), "PATH": f"{programs}:{os.environ['PATH']}"}
    running = subprocess.Popen(
        ["bash", "-c", commands],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complained = running.communicate(timeout=LIMIT_S)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)  # the shell and the nodes that it started
            running.communicate()
    assert running.returncode == 0, complained + printed
    for number, expected in enumerate(said, 1):
        block, _, printed = printed.partition(f"end-of-block-{number}\n")
        found = block.splitlines()
        for line in expected:
            assert line in found, f"block {number} does not print {line!r} but:\n{block}\n{complained}"

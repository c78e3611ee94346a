"""The tutorial works: its commands are run in a shell as they stand there, and print what it says they print."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_tidy import ROOT
from tools.cluster import clean_environment, free_ports

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(sh|text)( \w+)?\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
PORTS = ("7401", "7402", "7403", "4001")
SHIM = '#!/bin/sh\nexec "{python}" {module}"$@"\n'
LIMIT_S = 180


def script() -> tuple[str, list[list[str]]]:
    """Return the commands, a line between any two blocks, and what each block must print."""
    lines = ["set -eu"]
    said: list[list[str]] = []
    for kind, note, text in BLOCK.findall(PAGE):
        if kind == "text":
            said[-1] = text.splitlines()
        elif note.strip() != "install":  # it is installed here
            said.append([])
            lines += [text.replace("\nwait\n", "\nwait || true\n") if note.strip() == "stop" else text]
            lines += [f"echo end-of-block-{len(said)}"]
    return "\n".join(lines), said


def test_the_page_has_what_the_test_looks_for() -> None:
    commands, said = script()
    assert "bedrockish serve" in commands
    assert sum(map(bool, said)) >= 5
    assert "pip install" not in commands


@pytest.mark.cluster
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """Three nodes, an application, a node killed under it and brought back."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("bedrockish", "-m bedrockish.cli.main "), ("python", "")):
        (programs / name).write_text(SHIM.format(python=sys.executable, module=module))
        (programs / name).chmod(0o755)
    commands, said = script()
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        commands = commands.replace(port, str(free))
    place = tmp_path / "tutorial"
    place.mkdir()
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

"""Nodes of tests, forked from a process that has imported the program: the import takes longer than a node's start.

Each node is a process of its own all the same, with its own files, signals and end, and runs ``main`` from the
beginning. The process of the tests becomes its parent, and waits for it as for any other.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.cluster import SOURCES, LocalNode, clean_environment

PROGRAM = "bedrockish.cli.main"
IMPORTED = ("bedrockish.cli.serve", "bedrockish.cli.join", "bedrockish.daemon", "bedrockish.http.serving")
PR_SET_CHILD_SUBREAPER = 36


class Forked(subprocess.Popen[bytes]):
    """A process that this one has not started, but whose parent it is."""

    def __init__(self, pid: int, command: Sequence[str]) -> None:
        self.pid, self.args, self.returncode = pid, command, None
        self.stdin = self.stdout = self.stderr = None
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25
        self._communication_started = False
        self._child_created = True


class Forks:
    """The process from which nodes are forked; it ends with the process that has made it."""

    def __init__(self) -> None:
        self._link, its = socket.socketpair()
        self._lines = self._link.makefile("rw")
        self._lock = threading.Lock()
        self._environment = clean_environment()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.forked", str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the tests
                env=self._environment,
            )

    def start(self, node: LocalNode, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes] | None:
        """Fork a node; return None for one that is not of this program, or that needs an interpreter of its own."""
        environment = clean_environment(node.sources)
        if node.sources != SOURCES or node.program != ("-m", PROGRAM) or self._differs(environment):
            return None
        asked = {
            "arguments": list(arguments),
            "directory": str(node.directory),
            "log": str(log),
            "environment": environment,
            "files_max": node.files_max,
        }
        with self._lock, _adopting():
            self._lines.write(json.dumps(asked) + "\n")
            self._lines.flush()
            return Forked(int(self._lines.readline()), arguments)

    def close(self) -> None:
        """End the process."""
        self._lines.close()
        self._link.close()
        self._process.wait()

    def _differs(self, environment: Mapping[str, str]) -> bool:
        """Return whether Python reads something else from an environment when it starts."""
        return any(
            self._environment.get(name) != environment.get(name)
            for name in self._environment.keys() | environment.keys()
            if name.startswith(("PYTHON", "LD_"))
        )


class _adopting:  # noqa: N801  a block
    """Become the parent of processes whose parent ends in this block."""

    def __enter__(self) -> None:
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def __exit__(self, *_: object) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork until the link ends; return what is asked of this process if it is a fork."""
    lines = link.makefile("rw")
    for line in lines:
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(writer, b"%d" % pid)
                os._exit(0)
            os.close(reader)
            os.close(writer)
            link.detach()
            asked: dict[str, Any] = json.loads(line)
            return asked
        os.close(writer)
        pid = int(os.read(reader, 20))
        os.close(reader)
        os.waitpid(between, 0)  # the fork has its new parent from here on
        lines.write(f"{pid}\n")
        lines.flush()
    return None


def _become(asked: Mapping[str, Any]) -> None:
    """Be as a process is that was started for this."""
    os.setpgid(0, 0)
    os.chdir(asked["directory"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 4096)
    if asked["files_max"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked["files_max"], asked["files_max"]))
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path.insert(0, asked["directory"])  # as ``python -m`` has it
    sys.argv[:] = [PROGRAM, *asked["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()


def main() -> None:
    """Serve as the process that is forked."""
    for name in (PROGRAM, *IMPORTED):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        _become(asked)
        sys.exit(importlib.import_module(PROGRAM).main())


if __name__ == "__main__":
    main()

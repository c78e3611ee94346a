"""Nodes and commands of tests, forked from processes that have imported the program: imports take longer than a start.

Each node or command is a process of its own all the same, with its own files, signals and end, and runs ``main`` from
the beginning. The process of the tests becomes its parent, and waits for it as for any other.
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
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.cluster import SOURCES, LocalNode, clean_environment

PROGRAM = "bedrockish.cli.main"
NODES = "bedrockish.cli.serve bedrockish.cli.join bedrockish.daemon bedrockish.http.serving"
# Without optional packages, which may start threads.
COMMANDS = (
    "bedrockish.cli.shell.command bedrockish.cli.shell.session bedrockish.cli.status bedrockish.cli.user "
    "bedrockish.cli.member bedrockish.cli.verify bedrockish.cli.journal bedrockish.cli.backup bedrockish.cli.changes "
    "bedrockish.client.blocking bedrockish.client.trio_client bedrockish_journal.verify.verify"
)
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
    """A process that has imported some modules, and forks on demand; it ends with the process that has made it."""

    def __init__(self, imported: str) -> None:
        self._link, its = socket.socketpair()
        self._lines = self._link.makefile("rw")
        self._environment = clean_environment()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.forked", str(its.fileno()), *imported.split()],
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
        outputs = ("", str(log), str(log))
        return self._fork(list(arguments), str(node.directory), outputs, environment, node.files_max)

    def run(
        self, arguments: Sequence[str], stdin: str, directory: Path, environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str] | None:
        """Run a command until it ends; return None for one that needs an interpreter of its own."""
        if self._differs(environment):
            return None
        with tempfile.TemporaryDirectory() as place:
            given, output, errors = (Path(place, name) for name in ("stdin", "stdout", "stderr"))
            given.write_text(stdin)
            process = self._fork(list(arguments), str(directory), (str(given), str(output), str(errors)), environment)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired as late:
                process.kill()
                process.wait()
                late.output, late.stderr = output.read_bytes(), errors.read_bytes()
                raise
            return subprocess.CompletedProcess(arguments, process.returncode, output.read_text(), errors.read_text())

    def _fork(
        self,
        arguments: list[str],
        directory: str,
        files: tuple[str, str, str],
        environment: dict[str, str],
        files_max: int = 0,
    ) -> Forked:
        """Fork a process with these files as standard input, output and error; an empty name stands for no input."""
        asked = {
            "arguments": arguments,
            "directory": directory,
            "files": files,
            "environment": environment,
            "files_max": files_max,
        }
        with _lock, _adopting():
            self._lines.write(json.dumps(asked) + "\n")
            self._lines.flush()
            return Forked(int(self._lines.readline()), arguments)

    def close(self) -> None:
        """Stop the process."""
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


_lock = threading.Lock()  # guards the processes, and whether this one adopts
_made: dict[str, Forks] = {}


def forks(imported: str) -> Forks:
    """Return the process that has imported these modules; start it at the first call."""
    with _lock:
        if imported not in _made:
            _made[imported] = Forks(imported)
        return _made[imported]


def close_forks() -> None:
    """End all such processes."""
    while _made:
        _made.popitem()[1].close()


def program(
    *arguments: object, stdin: str = "", cwd: Path | None = None, timeout: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``bedrockish`` with arguments until it ends."""
    given, settings = [*map(str, arguments)], {**clean_environment(), **environment}
    done = forks(COMMANDS).run(given, stdin, cwd or Path.cwd(), settings, timeout)
    if done is not None:
        return done
    return subprocess.run(
        [sys.executable, "-m", PROGRAM, *given],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env=settings,
    )


class _adopting:  # noqa: N801  a block
    """Become, inside the block, the parent of processes whose own parent ends."""

    def __enter__(self) -> None:
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def __exit__(self, *_: object) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork on request until the link ends; in a fork, return the request."""
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
    """Give this process the state of one that was started for the request."""
    os.setpgid(0, 0)
    os.chdir(asked["directory"])
    for number, name in enumerate(asked["files"]):
        if name:
            os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT if number else os.O_RDONLY, 0o644), number)
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
    for name in (PROGRAM, *sys.argv[2:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        _become(asked)
        sys.exit(importlib.import_module(PROGRAM).main())


if __name__ == "__main__":
    main()

"""Real nodes on this machine: processes, sockets and files, for the demo, the benchmark and the chaos.

When its block ends, also by an error, Ctrl-C or SIGTERM, a cluster stops all processes that it started, and no others.
"""

import contextlib
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT, ROOT / "journal", ROOT / "net")  # where a process finds the packages of the checkout
READY_S = 60.0
STOP_S = 10.0
PORTS_HELD = 64  # more ports than any test uses at a time; each port is an open file of this process
OURS = (".sqlite", ".sqlite.lock", ".sqlite-wal", ".sqlite-shm", ".sqlite-node", ".sqlite-sock", ".toml", ".log")


def processor_s(process: int) -> float:
    """Return the processor time of a process, in seconds; NaN on systems without ``/proc``."""
    told = Path(f"/proc/{process}/stat")
    if not told.exists():
        return math.nan
    fields = told.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Ending:
    """Lets SIGTERM end this program as Ctrl-C does, but never between the start of a process and its registration."""

    def __init__(self) -> None:
        self.is_starting = self.is_wanted = False

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        self.is_wanted = True
        if not self.is_starting:
            handler = signal.getsignal(signal.SIGINT)  # the handler of the running loop, if there is one
            (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Delay SIGTERM to the end of the block, which starts a process and registers it."""
        self.is_starting = True
        try:
            yield
        finally:
            self.is_starting = False
            if self.is_wanted:
                signal.raise_signal(signal.SIGTERM)


_ending = _Ending()
fork: "Callable[[LocalNode, Sequence[str], Path], subprocess.Popen[bytes] | None] | None" = None
"""A faster start of nodes in tests; None or a result of None: a new process is started (``tests.forked``)."""


def end_in_order() -> None:
    """Make SIGTERM end this program like Ctrl-C, so that the block that has started nodes stops them.

    Call this before an event loop runs, so that the loop handles Ctrl-C even in a background job, which at first
    ignores it.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _ending)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class DemoError(Exception):
    """Raised when the machine, the arguments or a node do not meet the program's needs; the text says which."""


def unwrap(error: BaseException) -> BaseException:
    """Return the first error of the groups that trio puts around errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def clean_environment(sources: Sequence[Path] = SOURCES) -> dict[str, str]:
    """Return the environment for a program of the project: it imports from this checkout, and has no user's settings.

    Another checkout is named by ``sources``, the folders from which the program imports. Bytecode is cached even where
    the environment forbids it, as container images do: compiling is half of a node's start time.
    """
    unwanted = ("BEDROCKISH_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    path = [*map(str, sources), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


_held: deque[int] = deque()  # descriptors of sockets: the system closes them when this program ends


def free_ports(count: int) -> list[int]:
    """Return free ports, which the system gives to no other program while this one holds them.

    Otherwise another program that asks for a free port could get the port of a node that is down or not started yet.
    Each is held by a socket that is bound and does not listen: a server can still bind the port by its number, with
    ``SO_REUSEADDR``. The last ``PORTS_HELD`` ports are held.
    """
    ports = []
    for _ in range(count):
        with socket.socket() as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
            _held.append(each.detach())
    _hold_the_last()
    return ports


def adjacent_ports(count: int) -> list[int]:
    """Return free ports in a row, held as those of :func:`free_ports` are."""
    while True:
        (first,) = free_ports(1)
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError, OverflowError):
            row = [opened.enter_context(socket.socket()) for _ in range(count - 1)]
            for port, each in enumerate(row, first + 1):
                each.bind(("127.0.0.1", port))  # without SO_REUSEADDR, so that it fails for a port that is held
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for the server's bind
            _held.extend(each.detach() for each in row)
            _hold_the_last()
            return [*range(first, first + count)]


def _hold_the_last() -> None:
    while len(_held) > PORTS_HELD:
        os.close(_held.popleft())


@dataclass
class LocalNode:
    """One node: where its files are, and its process while it runs."""

    name: str
    port: int
    directory: Path
    http_port: int | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    sources: Sequence[Path] = SOURCES  # the sources of the node's release
    program: Sequence[str] = ("-m", "bedrockish.cli.main")
    files_max: int = 0  # files that the process may have open; 0: as many as this program

    @property
    def database(self) -> Path:
        return self.directory / f"{self.name}.sqlite"

    @property
    def config(self) -> Path:
        return self.directory / f"{self.name}.toml"

    @property
    def log(self) -> Path:
        """The path of the file to which the process writes its output."""
        return self.directory / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        """The state of the process: True while it runs."""
        return self.process is not None and self.process.poll() is None

    def start(self, *arguments: str) -> None:
        """Start the process, by default with ``serve``; ``wait_ready`` waits until it answers."""
        assert not self.is_running
        end_in_order()
        given = [*(arguments or ("serve",)), "--config", str(self.config)]
        if fork is not None:
            self.process = fork(self, given, self.log)
            if self.process is not None:
                return
        command = [sys.executable, *self.program, *given]
        if self.files_max:
            command = ["sh", "-c", f'ulimit -n {self.files_max} && exec "$@"', "sh", *command]
        with self.log.open("ab") as log, _ending.starting():
            # In a separate process group, so that Ctrl-C reaches only this program, which then stops its nodes in
            # order.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                cwd=self.directory,
                env=clean_environment(self.sources),
            )

    def kill(self) -> None:
        """End the process by SIGKILL, so that it cannot end in order."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def processor_s(self) -> float:
        """Return the processor time of the node, in seconds; NaN on systems without ``/proc``."""
        assert self.process is not None
        return processor_s(self.process.pid)

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-8:])


class LocalCluster:
    """A cluster of node processes on this machine."""

    def __init__(
        self,
        directory: Path,
        names: Sequence[str] = ("A", "B", "C"),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        directory = directory.absolute()
        self.directory = directory
        self.settings = settings or {}  # section of the configuration -> key -> value
        self.login = ""  # the part of URLs before the hosts: user:password@
        self.options = ""  # the part of URLs behind the hosts, such as ca=ca.pem
        self.by_file = False  # whether the URLs of a first node also name its file, which clients then open
        self.nodes = [
            LocalNode(name, port, directory) for name, port in zip(names, free_ports(len(names)), strict=True)
        ]

    def add_http(self) -> None:
        """Give every node a port for HTTP; call this before the files are written."""
        taken = {node.port for node in self.nodes}
        ports = [port for port in free_ports(2 * len(self.nodes)) if port not in taken]
        for node, port in zip(self.nodes, ports, strict=False):
            node.http_port = port

    def processor_s(self) -> float:
        """Return the processor time of the running nodes, in seconds."""
        return sum(node.processor_s() for node in self.nodes if node.is_running)

    def memory_mib(self) -> float:
        """Return the average resident memory of the running nodes, in MiB; NaN on systems without ``/proc``."""
        told = [Path(f"/proc/{node.process.pid}/statm") for node in self.nodes if node.process and node.is_running]
        if not all(one.exists() for one in told):
            return math.nan
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return statistics.fmean(int(one.read_text().split()[1]) * page_bytes for one in told) / (1 << 20)

    def url(self, first: int | None = None, *, only: bool = False, options: str = "") -> str:
        """Return the URL of the cluster with the node ``first`` in front; with ``only``, that of this node alone."""
        order = self.nodes if first is None else [*self.nodes[first:], *self.nodes[:first]]
        hosts = ",".join(f"127.0.0.1:{n.port}" for n in (order[:1] if only else order))
        file = f"local={self.nodes[first].database}" if self.by_file and first is not None else ""
        given = [*filter(None, [options.removeprefix("/?"), self.options, file])]
        return f"bedrockish://{self.login}{hosts}" + (f"/?{'&'.join(given)}" if given else "")

    def peer_address(self, node: LocalNode, peer: LocalNode) -> str:
        """Return the address at which a node finds a peer; in some subclasses it is that of a proxy."""
        assert peer is not node
        return f"127.0.0.1:{peer.port}"

    def write_files(self, head: str = "") -> None:
        """Make the directory and the configurations; remove only the files of an earlier run.

        Args:
            head: a line for each node's configuration, before its sections.

        Raises:
            DemoError: the directory contains files that this program did not write.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        mine = {f"{node.name}{suffix}" for node in self.nodes for suffix in OURS}
        others = sorted(path.name for path in self.directory.iterdir() if path.name not in mine)
        if others:
            raise DemoError(f"{self.directory} has other files in it ({', '.join(others[:3])}); name a new directory")
        for path in self.directory.iterdir():
            path.unlink()
        for node in self.nodes:
            peers = [f'{peer.name} = "{self.peer_address(node, peer)}"' for peer in self.nodes if peer is not node]
            lines = [f'node = "{node.name}"', f'database = "{node.database.name}"', f'listen = "127.0.0.1:{node.port}"']
            lines += filter(None, [head])
            lines += [f'http = "127.0.0.1:{node.http_port}"'] if node.http_port else []
            lines += ["", "[peers]", *peers]
            for section, values in self.settings.items():
                lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
            node.config.write_text("\n".join(lines) + "\n")

    @contextlib.contextmanager
    def running(self, head: str = "") -> Iterator[Self]:
        """Write the files, start all nodes, and stop them at the end; the caller waits until they answer.

        For ``head`` see ``write_files``.
        """
        self.write_files(head)
        try:
            for node in self.nodes:
                node.start()
            yield self
        finally:
            self.stop()

    async def wait_ready(self, node: int) -> dict[str, Any]:
        """Wait until a node answers, and return its status.

        Raises:
            DemoError: the node ended, or does not answer in time.
        """
        this = self.nodes[node]
        deadline = trio.current_time() + READY_S
        while True:
            if not this.is_running:
                raise DemoError(f"node {this.name} ended instead of serving; its log ends:\n{this.last_words()}")
            try:
                async with open_client(self.url(node, only=True, options="/?connect_timeout=2")) as client:
                    return await client.status(timeout=2)
            except BedrockishError as error:
                if trio.current_time() > deadline:
                    said = f"node {this.name} does not answer after {READY_S:.0f} s ({error}); its log ends:"
                    raise DemoError(f"{said}\n{this.last_words()}") from error
            await trio.sleep(0.1)

    async def wait_all_ready(self) -> None:
        """Wait until every node answers. The errors are those of ``wait_ready``."""
        for node in range(len(self.nodes)):
            await self.wait_ready(node)

    async def status(self, node: LocalNode, seconds: float = 3.0) -> dict[str, Any] | None:
        """Ask a node for its status; None if it does not answer."""
        try:
            async with open_client(f"bedrockish://127.0.0.1:{node.port}/?connect_timeout=1&discover=no") as client:
                return await client.status(timeout=seconds)
        except BedrockishError:
            return None

    async def join(self, name: str, *options: str) -> LocalNode:
        """Start a node that joins the cluster, and return it when it is a member.

        Raises:
            DemoError: the node ended, or has not joined in time.
        """
        node = LocalNode(name, free_ports(1)[0], self.directory)
        lines = f'node = "{name}"\ndatabase = "{node.database.name}"\nlisten = "127.0.0.1:{node.port}"\n'
        node.config.write_text(lines)
        node.start("join", self.url(), *options)
        try:
            with trio.fail_after(READY_S):
                while await self.status(node) is None:
                    if not node.is_running:
                        raise DemoError(f"node {name} ended instead of joining; its log ends:\n{node.last_words()}")
                    await trio.sleep(0.1)
        except trio.TooSlowError:
            raise DemoError(f"node {name} has not joined after {READY_S:.0f} s") from None
        finally:
            self.nodes.append(node)
        return node

    async def wait_level(self, seconds: float) -> str:
        """Wait until all nodes have applied the same entries and no transaction is pending; else return the reason."""
        wrong = ""
        with trio.move_on_after(seconds):
            while True:
                wrong = _differences([await self.status(node) for node in self.nodes])
                if not wrong:
                    return ""
                await trio.sleep(0.1)
        return wrong or "no answer"

    def stop(self) -> None:
        """Ask every node to end, and wait; kill each node that does not end in time, and note it in the node's log."""
        running = [node for node in self.nodes if node.is_running]
        for node in running:
            assert node.process is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.process.pid, signal.SIGTERM)
        for node in running:
            assert node.process is not None
            try:
                node.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                node.kill()
                with node.log.open("a") as log:
                    log.write(f"did not end within {STOP_S:.0f} s of SIGTERM and was killed\n")


def _differences(found: Sequence[dict[str, Any] | None]) -> str:
    answers = [one for one in found if one is not None]
    if len(answers) < len(found):
        return f"{len(found) - len(answers)} nodes do not answer"
    vectors = {one["node"]: one["applied"] for one in answers}
    if any(vector != answers[0]["applied"] for vector in vectors.values()):
        return f"the nodes have applied different things: {vectors}"
    doubt = {one["node"]: one["in_doubt"] for one in answers if one["in_doubt"]}
    return f"still in doubt: {doubt}" if doubt else ""


def local_cluster(
    directory: Path, names: Sequence[str] = ("A", "B", "C"), *, http: bool = False
) -> contextlib.AbstractContextManager[LocalCluster]:
    """Start nodes, and stop them at the end of the block; with ``http``, they also serve HTTP.

    The errors are those of ``LocalCluster.write_files``.
    """
    cluster = LocalCluster(directory, names)
    if http:
        cluster.add_http()
    return cluster.running()

"""A real node as a child process of a program: for tests, scripts, notebooks and applications of one machine.

The child runs ``bedrockish serve``. It ends with the ``with`` block, with ``stop``, and with the program, even a
killed one: the child reads a pipe that only the program has open, and stops when the pipe ends. A process that the
program forks closes its copy of the pipe, and neither stops the node nor removes its files.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import weakref
from collections.abc import Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from bedrockish.api.url import check_path
from bedrockish.client.blocking import Connection, connect
from bedrockish.common.forks import watch_forks
from bedrockish.common.machine import check_linux, why_refused
from bedrockish.errors import ConfigError, UnavailableError
from bedrockish.local.page import Published, socket_path
from bedrockish_net.local_socket import NAME_BYTES_MAX, has_short_name

READY_S, STOP_S, LOOK_S = 60.0, 20.0, 0.02
SQLITE = b"SQLite format 3\0"  # the first bytes of each SQLite file
_SERVE = """
import os, shutil, signal, sys, threading

over = threading.Event()

def watch():
    while os.read(0, 4096):
        pass
    over.set()
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=watch, daemon=True).start()
config, folder, *sys.path = sys.argv[1:]
sys.argv = ["bedrockish", "serve", "--config", config]
from bedrockish.cli.main import main
try:
    main()
finally:
    if folder and over.is_set():  # the program may have been killed
        shutil.rmtree(folder, ignore_errors=True)
"""
_ALONE = """node = "A"
database = "A.sqlite"
listen = "{address}"

[peers]
A = "{address}"
"""


class Node:
    """A node that this program has started. Get one from ``bedrockish.node``; stop it after use."""

    def __init__(self, config: str | PathLike[str] | None = None) -> None:
        folder = ""
        try:
            python, places = _interpreter(), [*_places()]
            if config is None:
                folder = tempfile.mkdtemp(prefix="bedrockish-")
                os.chmod(folder, 0o700)  # a umask such as 0277 takes even the owner's right to write
                place = Path(folder) / "A.toml"
                place.write_text(_ALONE.format(address=_free_address()), encoding="utf-8")
            else:
                place = _absolute(Path(os.fspath(config or "")))
            self.path = _database(place)  # the node's file
            self.log = place.with_suffix(".log")  # path of the node's log file
            self._process = self._begin([python, "-P", "-c", _SERVE, place.name, folder, *places], place.parent)
        except BaseException as error:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                advice = why_refused(error) or "give the node a folder that this user may write"
                where = "" if error.filename is None else f"{error.filename}: "
                raise ConfigError(f"a node cannot be started: {where}{error.strerror}; {advice}") from error
            raise
        self._finalizer = weakref.finalize(self, _stop, self._process, folder, os.getpid())
        watch_forks(self)
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def _begin(self, command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                process_group=0,  # Ctrl-C reaches the program, which then stops its node
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def process(self) -> int:
        """Id of the node's process."""
        return self._process.pid

    @property
    def url(self) -> str:
        """URL of the node's Unix socket, for programs and tools of this machine that take a URL."""
        return f"bedrockish://{quote(socket_path(os.path.abspath(self.path)), safe='')}/"

    def connect(self, *, token: bytes | None = None) -> Connection:
        """Open a session on the node's file. See ``bedrockish.connect``."""
        return connect(self.path, token=token)

    def stop(self) -> None:
        """Stop the node gracefully, and remove the files of a temporary node; a second call does nothing.

        Calls on connections that are still open raise errors afterwards. In a forked process, ``stop`` does nothing.
        """
        self._finalizer()

    def after_fork(self) -> None:
        """Leave the node to the process that has started it."""
        self._finalizer.detach()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _wait_ready(self) -> None:
        until = time.monotonic() + READY_S
        while True:
            if self._process.poll() is not None:
                raise ConfigError(f"the node has ended at its start: {self._last_words()}")
            if self._serves():
                return
            if time.monotonic() > until:
                raise UnavailableError(f"the node does not serve within {READY_S:g} s: {self._last_words()}")
            time.sleep(LOOK_S)

    def _serves(self) -> bool:
        try:
            published = Published(str(self.path))
        except UnavailableError:
            return False
        try:
            facts = published.facts()
            if facts.process != self._process.pid or facts.why_not:
                return False
            connect(self.path).close()
        except UnavailableError:
            return False
        finally:
            published.close()
        return True

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-8:]) or "its log is empty"


def node(config: str | PathLike[str] | None = None) -> Node:
    """Start a real node as a child process: ``with bedrockish.node() as node: db = node.connect()``.

    Args:
        config: path of the node's configuration; None for a temporary single node, whose files are removed at its end.

    Raises:
        ConfigError: the configuration cannot be used.
        UnavailableError: the node does not serve in time.
        UnsupportedError: this system is not Linux.
    """
    check_linux("a node")
    return Node(config)


def _interpreter() -> str:
    """Return the Python that runs the child.

    Raises:
        ConfigError: the program has no Python to start: it is frozen, or a program in C that embeds Python.
    """
    for one in (sys.executable, os.path.join(sys.exec_prefix, "bin", "python3")):
        is_python = one and re.search("python|pypy", os.path.basename(one)) and os.access(one, os.X_OK)
        if is_python and not hasattr(sys, "frozen"):
            return one
    raise ConfigError(
        f"a node needs Python, and this program is {sys.executable or 'of another kind'}; start the node by "
        "'bedrockish serve', and connect to its path"
    )


def _places() -> Iterator[str]:
    """Yield the absolute places from which the program imports."""
    for one in sys.path:
        with suppress(OSError):  # a relative place, if the current directory was removed
            yield os.path.abspath(one)


def _absolute(config: Path) -> Path:
    try:
        return config.absolute()
    except OSError as error:
        raise ConfigError(f"{config} is relative to a folder that was removed; give an absolute path") from error


def _free_address() -> str:
    for family, host, text in ((socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")):
        with suppress(OSError), socket.socket(family) as one:
            one.bind((host, 0))
            return f"{text}:{one.getsockname()[1]}"
    raise ConfigError("a temporary node needs 127.0.0.1 or ::1, and this machine has neither; run 'ip link set lo up'")


def _database(config: Path) -> Path:
    advice = "give the path of a node's configuration, which 'bedrockish init' makes, or none for a temporary node"
    check_path(str(config), "the node's configuration")
    try:
        data = config.read_bytes()
    except OSError as error:
        raise ConfigError(f"{config} cannot be read: {error.strerror}; {advice}") from error
    if data.startswith(SQLITE):
        raise ConfigError(f"{config} is a database of SQLite, not a configuration; {advice}")
    try:
        named: Any = tomllib.loads(data.decode("utf-8-sig")).get("database")
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{config} is not TOML: {error}; correct it, or {advice}") from error
    if not isinstance(named, str):
        raise ConfigError(f"{config} names no database; add the key 'database' with the path of a file")
    path = config.parent / check_path(named, f"{config}: database")
    if not has_short_name(socket_path(path)):  # the node would serve other machines, and no program of this one
        longest = NAME_BYTES_MAX - len(socket_path(""))
        why = f"programs can open only a file whose name has at most {longest} bytes; shorten it"
        raise ConfigError(f"{config}: {named}: {why}")
    return path


def _stop(process: "subprocess.Popen[bytes]", folder: str, owner: int) -> None:
    if os.getpid() != owner:  # forked by C code, which has not called ``after_fork``
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if folder:
        with suppress(FileNotFoundError):  # a node that ends in order has removed the folder itself
            shutil.rmtree(folder)

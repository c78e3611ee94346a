"""A private PostgreSQL on this machine, for ``tools/bench local``: one server, durable commits, reached by its socket.

Debian has what it needs: ``apt-get install postgresql`` and, in the environment that runs this, ``pip install
psycopg2-binary``.
"""

import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.cluster import DemoError, free_ports

PROGRAMS = "/usr/lib/postgresql/*/bin"
OPTIONS = ("listen_addresses=", "max_connections=300", "shared_buffers=128MB", "synchronous_commit=on")


def programs() -> Path | None:
    """Return the folder of the server's programs; None if the server or psycopg2 is not installed."""
    found = sorted(Path("/").glob(f"{PROGRAMS.lstrip('/')}/postgres"))
    return found[-1].parent if found and importlib.util.find_spec("psycopg2") else None


def connect(where: str) -> Any:
    """Return a connection to the server at ``FOLDER:PORT``, whose socket is in the folder."""
    folder, _, port = where.rpartition(":")
    made = importlib.import_module("psycopg2").connect(host=folder, port=port, user="postgres", dbname="postgres")
    made.autocommit = True
    return made


@contextlib.contextmanager
def postgres(directory: Path) -> Iterator[str]:
    """Run a server, and yield its address for ``connect``.

    Raises:
        DemoError: PostgreSQL is not installed, or cannot be started.
    """
    bin_folder = programs()
    if bin_folder is None:
        raise DemoError(
            "PostgreSQL is not here; install it: apt-get install postgresql; and pip install psycopg2-binary"
        )
    directory.mkdir(parents=True)
    as_owner: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        shutil.chown(directory, "postgres")
        as_owner = ["runuser", "-u", "postgres", "--"]
    data, port = directory / "data", free_ports(1)[0]
    control = [*as_owner, str(bin_folder / "pg_ctl"), "-D", str(data), "-w", "-l", str(directory / "log")]
    options = " ".join(f"-c {one}" for one in (*OPTIONS, f"unix_socket_directories={directory}", f"port={port}"))
    for command in (
        [*as_owner, str(bin_folder / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres"],
        [*control, "-o", options, "start"],
    ):
        done = subprocess.run(command, capture_output=True, cwd="/", check=False)
        if done.returncode:
            raise DemoError(f"PostgreSQL cannot be started: {done.stderr.decode(errors='replace')[-500:]}")
    try:
        yield f"{directory}:{port}"
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], capture_output=True, cwd="/", check=False)

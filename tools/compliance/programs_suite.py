"""Small programs on libraries that others wrote: on three nodes, and on plain SQLite."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import DemoError, clean_environment
from tools.compliance.nodes import three_nodes
from tools.compliance.outcomes import Outcomes, read_record

LIMIT_S = 10 * 60
LIBRARIES = ("sqlmodel", "flask_sqlalchemy", "pandas", "dataset", "records", "celery", "sqlite_utils", "datasette")


def missing() -> str | None:
    """Return which libraries are not installed, or None."""
    away = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    return f"{', '.join(away)} not installed; pip install 'bedrockish[programs]'" if away else None


def release() -> str:
    """Return that the lock says which releases they are."""
    return "as locked"


def _run(directory: Path, url: str, file: Path, only: Sequence[str]) -> Outcomes:
    record = directory / "programs.json"
    command = [sys.executable, "-P", "-m", "tools.compliance.programs_run", str(record), "--url", url]
    command += ["--file", str(file), *(["--only", *only] if only else [])]
    done = subprocess.run(
        command,
        cwd=directory,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if not record.exists():
        raise DemoError(f"the programs did not run; their output ends:\n{done.stderr[-2_000:]}")
    return read_record(record)


def run_ours(directory: Path, only: Sequence[str] = ()) -> Outcomes:
    """Run the programs on three nodes; ``only`` are names.

    Raises:
        DemoError: they could not be run to their end.
    """
    with three_nodes(directory / "cluster") as cluster:
        first, *others = (f"127.0.0.1:{node.port}" for node in cluster.nodes)
        url = f"bedrockish://{first}/?{'&'.join(f'host={other}' for other in others)}"
        return _run(directory, url, cluster.nodes[0].database, only)


def run_plain(directory: Path) -> Outcomes:
    """Run the programs on a SQLite file.

    Raises:
        DemoError: they could not be run to their end.
    """
    file = directory / "plain.sqlite"
    return _run(directory, f"sqlite:///{file}", file, ())

"""The public suite for PEP 249, ``dbapi20`` (on PyPI as dbapi-compliance): on three nodes, and on plain SQLite."""

import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tools.cluster import DemoError, clean_environment
from tools.compliance.nodes import three_nodes
from tools.compliance.outcomes import Outcomes, read_record

PACKAGE = "dbapi-compliance"
LIMIT_S = 10 * 60


def missing() -> str | None:
    """Return what is to be installed, or None."""
    return None if importlib.util.find_spec("dbapi20") else f"{PACKAGE} is not installed; pip install {PACKAGE}"


def release() -> str:
    """Return the release of the suite."""
    return f"{PACKAGE} {version(PACKAGE)}"


def _run(directory: Path, *arguments: str) -> Outcomes:
    record = directory / "dbapi20.json"
    command = [sys.executable, "-P", "-m", "tools.compliance.dbapi20_run", str(record), *arguments]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if not record.exists():
        raise DemoError(f"dbapi20 did not run; its output ends:\n{done.stderr[-2_000:]}")
    return read_record(record)


def run_ours(directory: Path) -> Outcomes:
    """Run the suite with our DB-API on three nodes.

    Raises:
        DemoError: it could not be run to its end.
    """
    with three_nodes(directory / "cluster") as cluster:
        return _run(directory, "--url", cluster.url())


def run_plain(directory: Path) -> Outcomes:
    """Run the suite with sqlite3.

    Raises:
        DemoError: it could not be run to its end.
    """
    return _run(directory)

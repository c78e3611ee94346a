"""CPython's own tests of ``sqlite3``: those of the interpreter that runs this, whose licence they keep."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import DemoError, clean_environment
from tools.compliance.nodes import three_nodes
from tools.compliance.outcomes import Outcomes, read_record

LIMIT_S = 20 * 60


def release() -> str:
    """Return the release of the tests: the interpreter's, without the number of its repairs."""
    return f"CPython {sys.version_info.major}.{sys.version_info.minor}"


def missing() -> str | None:
    """Return how to get the tests, or None if they are installed."""
    if importlib.util.find_spec("test") and importlib.util.find_spec("test.test_sqlite3"):
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"this interpreter came without its tests; Debian: apt install libpython{version}-testsuite"


def _run(directory: Path, arguments: Sequence[str]) -> Outcomes:
    record = directory / "cpython.json"
    command = [sys.executable, "-P", "-m", "tools.compliance.cpython_run", str(record), *arguments]
    with (directory / "cpython.txt").open("w+") as output:
        # In a separate directory, because the tests make files in the current one.
        subprocess.run(
            command,
            cwd=directory,
            env=clean_environment(),
            stdout=output,
            stderr=output,
            timeout=LIMIT_S,
            check=False,
        )
        output.seek(0)
        lines = output.read().splitlines()
    if not record.exists():
        raise DemoError("the tests of sqlite3 did not run; the output ends:\n" + "\n".join(lines[-20:]))
    return read_record(record)


def run_ours(directory: Path, only: Sequence[str] = ()) -> Outcomes:
    """Run the tests with our DB-API in the place of sqlite3, on three nodes; ``only`` are parts of names.

    Raises:
        DemoError: they could not be run to their end.
    """
    with three_nodes(directory / "cluster") as cluster:
        chosen = ["--only", *only] if only else []
        return _run(directory, ["--url", cluster.url(), *chosen])


def run_by_path(directory: Path, only: Sequence[str] = ()) -> Outcomes:
    """Run the tests as ``run_ours`` does, by the path of a node's file.

    Raises:
        DemoError: they could not be run to their end.
    """
    with three_nodes(directory / "cluster") as cluster:
        chosen = ["--only", *only] if only else []
        return _run(directory, ["--url", str(cluster.nodes[0].database), *chosen])


def run_plain(directory: Path) -> Outcomes:
    """Run the tests as they are.

    Raises:
        DemoError: they could not be run to their end.
    """
    return _run(directory, [])

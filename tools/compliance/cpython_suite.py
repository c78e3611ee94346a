"""CPython's own tests of ``sqlite3``: those of the interpreter that runs this, whose licence they keep."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.compliance.nodes import record_of, three_nodes
from tools.compliance.outcomes import Outcomes

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


def run_ours(directory: Path, only: Sequence[str] = (), *, by_path: bool = False) -> Outcomes:
    """Run the tests with our DB-API in the place of sqlite3, on three nodes.

    Args:
        directory: an empty one, for the files of the run.
        only: parts of names, to run only tests with one of them.
        by_path: connect by the path of a node's file instead of the URL.

    Raises:
        DemoError: they could not be run to their end.
    """
    record = directory / "cpython.json"
    with three_nodes(directory / "cluster") as cluster:
        url = str(cluster.nodes[0].database) if by_path else cluster.url()
        chosen = ["--only", *only] if only else []
        command = [sys.executable, "-P", "-m", "tools.compliance.cpython_run", str(record), url, *chosen]
        return record_of("CPython's suite of sqlite3", command, record, directory, LIMIT_S)

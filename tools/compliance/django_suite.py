"""Django's own tests, which its source distribution has, against three nodes."""

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tools.cluster import DemoError
from tools.compliance.nodes import record_of, three_nodes
from tools.compliance.outcomes import Outcomes

LIMIT_S = 40 * 60
PLUGIN = "bedrockish.django.functions"
# The tests of the database backend; the rest of the suite tests requests, templates and forms. A line is run at once:
# the tables of all its models are made in one transaction, which for hundreds of them would hold up the nodes.
CHOSEN = """\
aggregation annotations backends
basic bulk_create constraints
dates datetimes db_functions
delete expressions expressions_case
expressions_window from_db_value get_or_create
indexes introspection lookup
many_to_many many_to_one one_to_one
ordering prefetch_related queries
raw_query select_for_update select_related
transaction_hooks transactions update
schema
migrations
""".splitlines()


def release() -> str:
    """Return the release of the tests."""
    return f"Django {version('django')}"


def fetch(directory: Path) -> Path:
    """Get the source distribution of the Django that is installed, from the package index; return its tests.

    Raises:
        DemoError: it could not be had.
    """
    installed = version("django")
    wanted = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"Django=={installed}"]
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(directory), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    archives = list(directory.glob("*.tar.gz"))
    if done.returncode or not archives:
        raise DemoError(f"the source distribution of Django {installed} could not be had:\n{done.stderr.strip()}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(directory, filter="data")
    return next(directory.glob("*/tests/runtests.py")).parent


def _run(directory: Path, clusters: Sequence[str], groups: Sequence[str]) -> Outcomes:
    tests = fetch(directory)
    found: Outcomes = {}
    for number, group in enumerate(groups):
        found |= _run_group(tests, directory / f"django-{number}", clusters, group.split())
    return found


def _run_group(tests: Path, name: Path, clusters: Sequence[str], labels: Sequence[str]) -> Outcomes:
    record = name.with_suffix(".json")
    settings = {"SUITE_CLUSTERS": " ".join(clusters), "SUITE_RECORD": str(record)}
    options = ["--settings=tools.compliance.django_settings", "--parallel=1", "--noinput"]
    command = [sys.executable, "runtests.py", *options, *labels]
    return record_of(f"Django's suite of {', '.join(labels)}", command, record, tests, LIMIT_S, settings)


def run_ours(directory: Path, groups: Sequence[str] = ()) -> Outcomes:
    """Run Django's tests on three nodes, and on a further node for tests with two databases.

    Raises:
        DemoError: the tests did not run to their end.
    """
    with (
        three_nodes(directory / "default", [PLUGIN]) as default,
        three_nodes(directory / "other", [PLUGIN], names="A") as other,
    ):
        return _run(directory, [default.url(), other.url()], groups or CHOSEN)

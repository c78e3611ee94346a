"""The test suites of other projects; each is run in a process of its own, against nodes of its own.

A suite drops all tables. The tests of CPython are those of the interpreter that runs this, whose licence they keep;
SQLAlchemy's dialect suite ships in its wheel, and Django's tests in its source distribution.
"""

import importlib.util
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import trio

from tools.cluster import ROOT, DemoError, LocalCluster, clean_environment
from tools.compliance.outcomes import Outcomes, read_record

NONE: Mapping[str, str] = {}
CPYTHON_S, SQLALCHEMY_S, DJANGO_S = 20 * 60, 30 * 60, 40 * 60
SQLALCHEMY = ROOT / "tests" / "sqlalchemy_suite"
DATABASE, RECORD = "SUITE_DATABASE", "SUITE_RECORD"
SQLALCHEMY_PLUGINS = ("-p", "sqlalchemy.testing.plugin.pytestplugin", "-p", "tests.sqlalchemy_suite.plugin")
DJANGO_PLUGIN = "bedrockish.django.functions"
# The tests of the database backend; the rest of the suite tests requests, templates and forms. Each line is one run,
# which creates the tables of all its models in one transaction: hundreds of tables would block the nodes.
DJANGO_GROUPS = """\
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


@contextmanager
def three_nodes(directory: Path, plugins: Sequence[str] = (), *, names: str = "ABC") -> Iterator[LocalCluster]:
    """Start nodes, wait until they answer, and stop them at the end of the block.

    Raises:
        DemoError: a node does not answer in time.
    """
    head = f"plugins = [{', '.join(map(repr, plugins))}]" if plugins else ""
    with LocalCluster(directory, tuple(names)).running(head) as cluster:
        trio.run(cluster.wait_all_ready)
        yield cluster


def record_of(
    name: str, command: Sequence[str], record: Path, cwd: Path, limit_s: float, settings: Mapping[str, str] = NONE
) -> Outcomes:
    """Run a suite in a separate process, and return the outcomes that it has recorded.

    Args:
        command: the command of the process.
        record: the file that the process writes; its output goes to a file next to it.
        cwd: the working directory, in which suites make files.
        settings: variables for its environment.

    Raises:
        DemoError: the suite did not run to its end.
    """
    environment = {**clean_environment(), **settings}
    with record.with_suffix(".txt").open("w+") as output:
        subprocess.run(command, cwd=cwd, env=environment, stdout=output, stderr=output, timeout=limit_s, check=False)
        output.seek(0)
        lines = output.read().splitlines()
    if not record.exists():
        ended = "\n".join(lines[-20:])
        raise DemoError(f"{name} did not run to its end; the output ends:\n{ended}")
    return read_record(record)


def cpython_release() -> str:
    """Return the major and minor version of the interpreter, whose tests are run."""
    return f"CPython {sys.version_info.major}.{sys.version_info.minor}"


def cpython_missing() -> str | None:
    if importlib.util.find_spec("test") and importlib.util.find_spec("test.test_sqlite3"):
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"this interpreter came without its tests; Debian: apt install libpython{version}-testsuite"


def run_cpython(directory: Path, only: Sequence[str] = (), *, by_path: bool = False) -> Outcomes:
    """Run CPython's tests of sqlite3 with our DB-API in its place, on three nodes.

    Args:
        directory: an empty directory for the files of the run.
        only: run only the tests whose names contain one of these texts; empty for all.
        by_path: connect by the path of a node's file instead of the URL.

    Raises:
        DemoError: the tests did not run to their end.
    """
    record = directory / "cpython.json"
    with three_nodes(directory / "cluster") as cluster:
        url = str(cluster.nodes[0].database) if by_path else cluster.url()
        chosen = ["--only", *only] if only else []
        command = [sys.executable, "-P", "-m", "tools.compliance.cpython_run", str(record), url, *chosen]
        return record_of("CPython's suite of sqlite3", command, record, directory, CPYTHON_S)


def run_suite(database: str, url: str, directory: Path, arguments: Sequence[str]) -> Outcomes:
    """Run SQLAlchemy's suite; return the outcome of each test.

    Raises:
        DemoError: the suite did not run to its end.
    """
    directory.mkdir()
    record = directory / "record.json"
    options = ["-c", str(SQLALCHEMY / "setup.cfg"), *SQLALCHEMY_PLUGINS, "--dburi", url]
    command = [sys.executable, "-m", "pytest", *options, str(SQLALCHEMY), "-q", "--tb=line", "-rN", *arguments]
    settings = {DATABASE: database, RECORD: str(record)}
    found = record_of("SQLAlchemy's suite", command, record, directory, SQLALCHEMY_S, settings)
    return {test: (outcome, reason_of(reason)) for test, (outcome, reason) in found.items()}


def run_sqlalchemy(directory: Path, arguments: Sequence[str] = (), *, by_path: bool = False) -> Outcomes:
    """Run SQLAlchemy's suite against three nodes of its own.

    Args:
        directory: the directory for the files of the run.
        arguments: further arguments for pytest.
        by_path: connect by the path of a node's file instead of the URL.

    Raises:
        DemoError: the suite did not run to its end.
    """
    with three_nodes(directory / "cluster") as cluster:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        url = f"bedrockish:///{cluster.nodes[0].database}" if by_path else f"bedrockish://[{hosts}]/"
        return run_suite("bedrockish", url, directory / "bedrockish", arguments)


def run_plain(directory: Path, arguments: Sequence[str] = ()) -> Outcomes:
    """Run SQLAlchemy's suite against plain SQLite. The errors are those of ``run_sqlalchemy``."""
    return run_suite("sqlite", "sqlite:///suite.db", directory / "sqlite", arguments)


def left_out(ours: Outcomes, plain: Outcomes) -> Counter[str]:
    """Return why tests that plain SQLite passes are skipped on a cluster, each reason with its number of tests."""
    skipped = {test for test, (outcome, _) in plain.items() if outcome == "passed"} - {
        test for test, (outcome, _) in ours.items() if outcome != "skipped"
    }
    whole = {test: ("", f"CLASS: {test.partition('::')[0]} is left out as a whole") for test in skipped}
    return Counter(reason_of(ours.get(test, whole[test])[1]) for test in skipped)


def failures(outcomes: Outcomes) -> dict[str, str]:
    return {test: reason for test, (outcome, reason) in outcomes.items() if outcome == "failed"}


def reason_of(text: str) -> str:
    """Return why a test is skipped, without the test's name; if the text has one of our own reasons, only this."""
    found = re.search(r"(ATTACH|TEMPORARY|REGEXP): .*", text)
    if found:
        return found[0]
    why = re.sub(r"^'.*?\((?:call|setup)\)' : ", "", text)
    return why.replace("marked as skip", "the suite's requirements do not ask it of SQLite")


def django_release() -> str:
    """Return the release of Django, whose tests are run."""
    return f"Django {version('django')}"


def fetch_django(directory: Path) -> Path:
    """Download the source distribution of the installed Django from the package index; return the folder of its tests.

    Raises:
        DemoError: the package index does not give the source distribution.
    """
    installed = version("django")
    wanted = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"Django=={installed}"]
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(directory), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    archives = list(directory.glob("*.tar.gz"))
    if done.returncode or not archives:
        raise DemoError(f"the source distribution of Django {installed} is missing:\n{done.stderr.strip()}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(directory, filter="data")
    return next(directory.glob("*/tests/runtests.py")).parent


def _run_group(tests: Path, name: Path, clusters: Sequence[str], labels: Sequence[str]) -> Outcomes:
    record = name.with_suffix(".json")
    settings = {"SUITE_CLUSTERS": " ".join(clusters), RECORD: str(record)}
    options = ["--settings=tools.compliance.django_settings", "--parallel=1", "--noinput"]
    command = [sys.executable, "runtests.py", *options, *labels]
    return record_of(f"Django's suite of {', '.join(labels)}", command, record, tests, DJANGO_S, settings)


def run_django(directory: Path, groups: Sequence[str] = ()) -> Outcomes:
    """Run Django's tests on three nodes, and on a further node for tests with two databases.

    Raises:
        DemoError: the tests did not run to their end.
    """
    with (
        three_nodes(directory / "default", [DJANGO_PLUGIN]) as default,
        three_nodes(directory / "other", [DJANGO_PLUGIN], names="A") as other,
    ):
        tests, found = fetch_django(directory), Outcomes()
        for number, group in enumerate(groups or DJANGO_GROUPS):
            place = directory / f"django-{number}"
            found |= _run_group(tests, place, [default.url(), other.url()], group.split())
        return found


@dataclass(frozen=True)
class Suite:
    """A test suite of another project, and how to run it."""

    name: str  # the suite's name on the command line
    release: Callable[[], str]  # returns the installed release; expectations are for one release
    run_ours: Callable[[Path], Outcomes]  # runs it against three nodes in a directory
    missing: Callable[[], str | None] = lambda: None  # returns what has to be installed first, or None
    same_as: str = ""  # the suite whose file of expectations counts for this suite, too

    @property
    def expectations(self) -> str:
        """The name of the suite's file of expectations."""
        return self.same_as or self.name


def sqlalchemy_release() -> str:
    """Return the release of SQLAlchemy, whose tests are run."""
    return f"SQLAlchemy {version('sqlalchemy')}"


_CPYTHON_BY_PATH = partial(run_cpython, by_path=True)
_SQLALCHEMY_BY_PATH = partial(run_sqlalchemy, by_path=True)
SUITES = {
    one.name: one
    for one in (
        Suite("cpython", cpython_release, run_cpython, cpython_missing),
        Suite("cpython_path", cpython_release, _CPYTHON_BY_PATH, cpython_missing),
        Suite("sqlalchemy", sqlalchemy_release, run_sqlalchemy),
        Suite("sqlalchemy_path", sqlalchemy_release, _SQLALCHEMY_BY_PATH, same_as="sqlalchemy"),
        Suite("django", django_release, run_django),
    )
}

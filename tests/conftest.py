"""The selection of tests: long ones only on request, Spark's only with Java.

``tools/test`` shares the files out among several processes (pytest-xdist), each of which runs one test after the other;
plain ``pytest`` is one process. A test may not need a port, a file or a processor to itself.
"""

import gc
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from bedrockish_journal.spark.session import why_no_java
from tests.forked import NODES, close_forks, forks
from tools import cluster
from tools.cluster import LocalNode

hypothesis.settings.register_profile("unhurried", deadline=None)  # a busy machine is not a failure
hypothesis.settings.load_profile("unhurried")

# Images of containers forbid it. Then every node and command of a test would compile the program again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell makes its background commands ignore Ctrl-C. Commands that a test runs in this process would block it then,
# and all programs that are started later would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

NO_SPARK = "no Spark here: "
YOUNG_COLLECTIONS = 200  # collections of young objects after which the garbage may take memory worth a full collection
PROCESSES = 4  # two processors are busy then, most of the time
SPARK = "tests/spark/"  # starts a Java machine in the process of the tests
SLOWEST_FIRST = (
    SPARK,
    "tests/cluster/",
    "tests/test_",
    "tests/sim/",
    "tests/modelcheck/",
    "tests/local/",
    "tests/sqlalchemy/",
)

collect_ignore = ["sqlalchemy_suite"]  # has a pytest plugin of its own; `python -m tools.compliance` runs it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption("--rewrite", action="store_true", help="write what happened into trace files; then read the diff")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of processes in which ``tools/test`` runs the tests; 0 for this one alone.

    Those with real nodes wait for more than half of the time. A file or a test that is named is run here, and so is
    what is not there, which pytest names itself.
    """
    return PROCESSES if all(map(os.path.isdir, config.args)) else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    """Distribute whole files, since the tests of a file share fixtures, and all of Spark's files as one."""
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = lambda nodeid: SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]
    return scheduler


def why_no_spark() -> str | None:
    """Return why the Spark tests cannot run here, or None if they can."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; pip install 'bedrockish[spark]'"
    return why_no_java() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes; the last files shall be short ones
        starts = (*SLOWEST_FIRST, "")
        items.sort(key=lambda item: next(i for i, start in enumerate(starts) if item.nodeid.startswith(start)))
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes long; run with --slow"))
    spark = [item for item in items if item.get_closest_marker("spark")]
    if spark and (reason := why_no_spark()):
        for item in spark:
            item.add_marker(pytest.mark.skip(reason=f"{NO_SPARK}{reason}"))


def pytest_collection_finish() -> None:
    """Collect all garbage between two tests only, since one such collection takes 0.3 s of a test's processor time.

    The statement under test would be over its budget of 0.01 or 0.05 s then, and take another path.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 1 << 30)


@pytest.hookimpl(trylast=True)  # once the fixtures of the file are gone
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path or gc.get_count()[2] > YOUNG_COLLECTIONS:
        gc.collect()


def _fork(node: LocalNode, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes] | None:
    return forks(NODES).start(node, arguments, log)


cluster.fork = _fork


def pytest_unconfigure() -> None:
    close_forks()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Let Ctrl-C end the run: a nursery hands it on in a group, which would be a failure of this test alone."""
    try:
        return (yield)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):
            raise KeyboardInterrupt from group
        raise


@pytest.hookimpl(trylast=True)  # once the reporter is there
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(_Names(config))


class _Names:
    """Names each test that fails as it fails, and why; several processes tell no file in which the points are."""

    def __init__(self, config: pytest.Config) -> None:
        self.terminal: pytest.TerminalReporter = config.pluginmanager.getplugin("terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.terminal.verbosity <= 0:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.partition("\n")[0] if crash else report.when
            self.terminal.write_line(f"\nFAILED {report.nodeid}: {why}", red=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tests skipped for a missing requirement, by the reports, since other processes may have run them."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(one[2].removeprefix("Skipped: ") for one in skipped if isinstance(one, tuple))
    for reason, count in reasons.items():
        if reason.startswith(NO_SPARK):
            terminalreporter.section("NOTE", sep="!", red=True)
            terminalreporter.write_line(f"{count} SKIPPED: {reason}")

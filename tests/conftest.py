"""Which tests run where: long ones only when asked for, Spark's only where there is a Java for it."""

import importlib.util
import os
import sys

import hypothesis
import pytest

from tests.http.browser import find_browser
from tools.java import ADVICE, find_java

hypothesis.settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("unhurried")

# Images of containers forbid it. Every node and command that a test starts would compile the program anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

collect_ignore = ["sqlalchemy_suite"]  # has a pytest plugin of its own; `python -m tools.compliance` runs it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption("--rewrite", action="store_true", help="write what happened into trace files; then read the diff")


def why_no_spark() -> str | None:
    """Return why the Spark tests cannot run here, or None if they can."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; pip install 'bedrockish[spark]'"
    java, found = find_java()
    return None if java else f"{found}; {ADVICE}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="takes long; run with --slow"))
    browser = [item for item in items if "browser" in item.keywords]
    if browser and find_browser() is None:
        config.stash[NO_BROWSER] = f"{len(browser)} browser tests SKIPPED: no chromium found; apt-get install chromium"
        for item in browser:
            item.add_marker(pytest.mark.skip(reason="no chromium found"))
    spark = [item for item in items if "spark" in item.keywords]
    if spark and (reason := why_no_spark()):
        config.stash[NO_SPARK] = f"{len(spark)} Spark tests SKIPPED: {reason}"
        for item in spark:
            item.add_marker(pytest.mark.skip(reason=reason))


NO_SPARK, NO_BROWSER = pytest.StashKey[str](), pytest.StashKey[str]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for key in (NO_SPARK, NO_BROWSER):
        if note := config.stash.get(key, None):
            terminalreporter.section("NOTE", sep="!", red=True)
            terminalreporter.write_line(note)

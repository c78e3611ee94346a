"""The suites that others wrote, and how each is run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tools.compliance import cpython_suite, django_suite, sqlalchemy_suite
from tools.compliance.outcomes import Outcomes

Run = Callable[[Path], Outcomes]


@dataclass(frozen=True)
class Suite:
    """A suite."""

    name: str  # its name on the command line
    release: Callable[[], str]  # returns the installed release; expectations are for one release
    run_ours: Run  # runs it against three nodes in a directory
    missing: Callable[[], str | None] = lambda: None  # returns what has to be installed first, or None
    same_as: str = ""  # the suite with the same expectations

    @property
    def expectations(self) -> str:
        """The name of its file of expectations."""
        return self.same_as or self.name


def _sqlalchemy() -> str:
    return f"SQLAlchemy {version('sqlalchemy')}"


_CPYTHON_BY_PATH = partial(cpython_suite.run_ours, by_path=True)
_SQLALCHEMY_BY_PATH = partial(sqlalchemy_suite.run_ours, by_path=True)
SUITES = {
    one.name: one
    for one in (
        Suite("cpython", cpython_suite.release, cpython_suite.run_ours, cpython_suite.missing),
        Suite("cpython_path", cpython_suite.release, _CPYTHON_BY_PATH, cpython_suite.missing),
        Suite("sqlalchemy", _sqlalchemy, sqlalchemy_suite.run_ours),
        Suite("sqlalchemy_path", _sqlalchemy, _SQLALCHEMY_BY_PATH, same_as="sqlalchemy"),
        Suite("django", django_suite.release, django_suite.run_ours),
    )
}

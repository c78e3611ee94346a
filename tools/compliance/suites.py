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
    heading: str  # the heading of its part of the page
    title: str  # its description
    release: Callable[[], str]  # returns the installed release; expectations are for one release
    run_ours: Run  # runs it against three nodes in a directory
    run_plain: Run | None = None  # runs it against plain SQLite; None where that makes no sense
    missing: Callable[[], str | None] = lambda: None  # returns what has to be installed first, or None
    selection: str = "all"  # the part of it that runs, for the page
    same_as: str = ""  # the suite with the same expectations

    @property
    def expectations(self) -> str:
        """The name of its file of expectations."""
        return self.same_as or self.name


SUITES = {
    one.name: one
    for one in (
        Suite(
            "cpython",
            "CPython",
            "`test_sqlite3`, CPython's own tests of `sqlite3`, with our [DB-API](dbapi.md) in its place",
            cpython_suite.release,
            cpython_suite.run_ours,
            cpython_suite.run_plain,
            cpython_suite.missing,
        ),
        Suite(
            "cpython_path",
            "CPython by path",
            "The same suite, connected by the path of a [node's file](local.md)",
            cpython_suite.release,
            partial(cpython_suite.run_ours, by_path=True),
            missing=cpython_suite.missing,
        ),
        Suite(
            "sqlalchemy",
            "SQLAlchemy",
            "The dialect suite that ships with SQLAlchemy, on [our dialect](sqlalchemy.md)",
            lambda: f"SQLAlchemy {version('sqlalchemy')}",
            sqlalchemy_suite.run_ours,
            sqlalchemy_suite.run_plain,
        ),
        Suite(
            "sqlalchemy_path",
            "SQLAlchemy by path",
            "The same suite, connected by the path of a [node's file](local.md)",
            lambda: f"SQLAlchemy {version('sqlalchemy')}",
            partial(sqlalchemy_suite.run_ours, by_path=True),
            same_as="sqlalchemy",
        ),
        Suite(
            "django",
            "Django",
            "The tests in Django's source distribution, on [our backend](migrating.md#django)",
            django_suite.release,
            django_suite.run_ours,
            django_suite.run_plain,
            selection=f"{len(' '.join(django_suite.CHOSEN).split())} test packages that depend most on the database",
        ),
    )
}

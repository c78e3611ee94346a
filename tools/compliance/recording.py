"""Records the outcome of each test that ``unittest`` runs."""

import signal
import unittest
from typing import Any

from tools.compliance.outcomes import FAILED, PASSED, SKIPPED, Outcomes

TEST_S = 120  # a test that takes longer has failed


class TooLongError(Exception):
    """Raised in a test that takes longer than ``TEST_S``."""


def ring(*_: Any) -> None:
    raise TooLongError(f"takes longer than {TEST_S} s")


class Recording(unittest.TestResult):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outcomes: Outcomes = {}

    def name_of(self, test: Any) -> str:
        """Return the name under which a test is recorded."""
        return str(test.id())

    def record(self, test: Any, outcome: str, why: str = "") -> None:
        """Record the outcome of a test; the first outcome counts."""
        self.outcomes.setdefault(self.name_of(test), (outcome, why))

    def record_error(self, test: Any, err: Any) -> None:
        """Record a failure by the exception that was raised."""
        kind, value, _ = err
        lines = (str(value).strip() or "no text").splitlines()
        self.record(test, FAILED, f"{kind.__name__}: {lines[0][:300]}")

    def startTest(self, test: Any) -> None:
        """Set the alarm that ends the test after ``TEST_S``."""
        super().startTest(test)
        signal.signal(signal.SIGALRM, ring)
        signal.alarm(TEST_S)

    def stopTest(self, test: Any) -> None:
        """Record a test without an outcome as passed."""
        signal.alarm(0)
        super().stopTest(test)
        self.record(test, PASSED)

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.record_error(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.record_error(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """Record a failure within a test."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.record_error(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self.record(test, SKIPPED, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        """Record an expected failure, which does not count as a failure."""
        super().addExpectedFailure(test, err)
        self.record(test, SKIPPED, "expected to fail")

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self.record(test, FAILED, "passes unexpectedly")

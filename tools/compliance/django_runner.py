"""Django's own test runner, which records the outcome of each test in the file that ``SUITE_RECORD`` names."""

import json
import os
import unittest
from pathlib import Path

from django.test.runner import DiscoverRunner

from tools.compliance.recording import Recording


class Result(Recording, unittest.TextTestResult):
    """Prints as Django's tests do, and writes all outcomes to a file at the end."""

    def stopTestRun(self) -> None:
        super().stopTestRun()
        Path(os.environ["SUITE_RECORD"]).write_text(json.dumps(self.outcomes))


class Runner(DiscoverRunner):
    """The test runner that the settings name."""

    def get_resultclass(self) -> type[Result]:
        return Result

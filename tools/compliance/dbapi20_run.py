"""Runs the public suite for PEP 249, ``dbapi20``: ``python -m tools.compliance.dbapi20_run RECORD [--url URL]``."""

import argparse
import json
import sqlite3
import unittest
from pathlib import Path
from typing import Any

import dbapi20

import bedrockish.dbapi
from tools.compliance.recording import Recording


class Recorder(Recording):
    """Notes a test by its name alone: all of them are in one class."""

    def name_of(self, test: Any) -> str:
        """Return the name of a test."""
        return str(test.id()).rpartition(".")[2]


def run(driver: Any, database: str, record: Path) -> None:
    """Run the suite with a module of PEP 249 on a database, and write what became of each test."""
    settings = {"driver": driver, "connect_args": (database,)}
    case = type("Dbapi20", (dbapi20.DatabaseAPI20Test,), settings)
    recorder = Recorder()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(recorder)
    record.write_text(json.dumps(recorder.outcomes, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.compliance.dbapi20_run", description=__doc__)
    parser.add_argument("record", type=Path, help="a file for what became of each test, as JSON")
    parser.add_argument("--url", help="of the cluster; without it, plain sqlite3 on a file beside the record")
    asked = parser.parse_args()
    if asked.url is None:
        run(sqlite3, str(asked.record.with_suffix(".sqlite")), asked.record)
    else:
        run(bedrockish.dbapi, asked.url, asked.record)

"""Shared parts of the tests of indexes that are built next to a table."""

from pathlib import Path

import apsw
import pytest

from bedrockish.access_sets.system_names import PASSING
from bedrockish.engine.storage.index_build import Build
from bedrockish.errors import ConstraintError
from bedrockish_journal.model.entry import Entry
from tests.engine.nodes import TestNode


def begin(node: TestNode, entry: Entry) -> Build:
    """Start the builds of a decided schema change."""
    node.save()
    plan = node.engine.builds.plan(entry.transaction)
    assert plan is not None
    return node.engine.builds.start(plan, entry.txid)


def read_sound(node: TestNode) -> apsw.Connection:
    """Check that SQLite finds no fault and the build left no table; return a connection for further checks."""
    node.save()
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert not {name for (name,) in reader.execute("SELECT name FROM sqlite_schema")} & PASSING
    return reader


def rolled_back(node: TestNode) -> None:
    """Let SQLite roll back the whole open batch because of one request."""
    with pytest.raises(ConstraintError):
        node.prepare("INSERT INTO t(n) VALUES (123456)", "INSERT OR ROLLBACK INTO other VALUES (1), (1)")


def follow(inline: TestNode, node: TestNode, entry: Entry, activated: int) -> None:
    """Apply one node's entries at another, and put the change in force in order, after so many entries."""
    for number, made in enumerate(node.entries):
        if number == activated:
            assert inline.engine.activate(entry.txid) == ""
        inline.apply(made)
    if len(node.entries) == activated:
        assert inline.engine.activate(entry.txid) == ""


def copy_of(node: TestNode, target: Path) -> Path:
    """Copy a node's file and its write-ahead log as they are now, as a killed process leaves them; return the copy."""
    for suffix in ("", "-wal"):
        target.with_name(target.name + suffix).write_bytes(node.path.with_name(node.path.name + suffix).read_bytes())
    return target

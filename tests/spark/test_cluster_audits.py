"""A real cluster with a long life: its journals pass every audit, and each planted fault is named."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from bedrockish_journal.model.entry import Entry
from bedrockish_journal.storage.store import scan_timeline
from tests.spark.lifetime import counts, lifetime
from tests.spark.test_audits import audit, spoil
from tools.cluster import ROOT, clean_environment

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TICK = 40  # a tick in the middle of A's timeline


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return lifetime(tmp_path_factory.mktemp("life") / "cluster")


@pytest.fixture
def paths(files: list[Path], tmp_path: Path) -> list[Path]:
    """Copies, to be tampered with."""
    return [Path(shutil.copy(path, tmp_path)) for path in files]


def test_unaltered_journals_have_no_findings(files: list[Path]) -> None:
    assert [path.stem for path in files] == ["A", "D", "E"]
    found = counts(files[0])
    assert found["adopted"] > 0
    assert found["members"] >= 5
    assert found["schema"] >= 4
    command = [sys.executable, "-m", "bedrockish.cli.main", "audit", *map(str, files), "--strict", "--json"]
    ended = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, check=False, timeout=600)
    report = json.loads(ended.stdout)
    assert [check for check in report["checks"] if check["findings"]] == []
    assert (ended.returncode, report["holds"]) == (0, True)


def test_a_row_edited_behind_the_journal_is_named(paths: list[Path]) -> None:
    with closing(sqlite3.connect(paths[1])) as db:
        (row,) = db.execute("SELECT max(id) FROM t").fetchone()
        db.execute("UPDATE t SET n = n + 1 WHERE id = ?", (row,))
        db.commit()
    command = [sys.executable, "-m", "bedrockish.cli.main", "journal", "verify", "--tables", "--json"]
    ended = subprocess.run(
        [*command, *map(str, paths)], cwd=ROOT, env=clean_environment(), capture_output=True, check=False
    )
    told = {file: one["differences"] for file, one in json.loads(ended.stdout)["tables"].items()}
    (text,) = told.pop(str(paths[1]))
    assert not any(told.values())
    said = re.fullmatch(rf"in the row {row} of t, n is 1 and should be 0; (\w+) wrote it last \((.+)\)", text)
    assert said is not None, text
    with closing(sqlite3.connect(paths[0])) as db:
        query = "SELECT origin || '-' || printf('%x', clock) FROM bedrockish_journal WHERE leader || tick = ?"
        assert db.execute(query, (said[1],)).fetchone() == (said[2],)


def forge(path: Path, how: Callable[[Entry], Entry]) -> None:
    """Change an entry in a journal, and all hashes after it, so that the chain is right."""
    db = apsw.Connection(str(path))
    prev = None
    for entry in list(scan_timeline(db, "A", TICK)):
        made = how(entry) if prev is None else entry
        made = Entry(
            made.leader, made.tick, made.quorum, made.transaction, made.adopted_from, prev or entry.prev
        )  # fmt: skip
        prev = made.hash
        db.execute(
            "UPDATE bedrockish_journal SET label = ?, body = ?, prev = ?, hash = ? WHERE leader = 'A' AND tick = ?",
            (made.label, made.transaction.body, made.prev, made.hash, made.tick),
        )
    db.close()


def raised(entry: Entry) -> Entry:
    base = dict(entry.after)
    base["A"] = TICK + 3
    return replace(entry, transaction=replace(entry.transaction, base=base, body=b""))


SWAP = f"""UPDATE bedrockish_journal SET leader = CASE leader WHEN 'A' THEN 'B' ELSE 'A' END
  WHERE tick = {TICK} AND leader IN ('A', 'B')"""
REMOVE = f"DELETE FROM bedrockish_journal WHERE leader = 'A' AND tick = {TICK}"
FLIP = f"""UPDATE bedrockish_journal SET body = CAST(substr(body, 1, length(body) - 1) || x'7f' AS BLOB)
  WHERE leader = 'A' AND tick = {TICK}"""
TAMPERINGS: list[tuple[str, str, Callable[[Path], None]]] = [
    ("density", "is missing", lambda path: spoil(path, REMOVE)),
    ("hash", "does not match its hash", lambda path: spoil(path, FLIP)),
    ("causality", "was applied before", lambda path: forge(path, raised)),
    ("quorum", "shows approvals of 1 of", lambda path: forge(path, lambda one: replace(one, quorum={"A": one.tick}))),
    ("columns", "in its column and", lambda path: spoil(path, SWAP)),
]  # fmt: skip


@pytest.mark.parametrize(("check", "text", "tamper"), TAMPERINGS, ids=[check for check, _, _ in TAMPERINGS])
def test_spark_audit_names_each_planted_fault(
    paths: list[Path], check: str, text: str, tamper: Callable[[Path], None]
) -> None:
    with closing(sqlite3.connect(paths[0])) as db:
        query = "SELECT origin || '-' || printf('%x', clock) FROM bedrockish_journal WHERE leader = 'A' AND tick = ?"
        (txid,) = db.execute(query, (TICK,)).fetchone()
    tamper(paths[1])
    found = audit(paths, check)
    one = next(one for one in found if (one.leader, one.tick) == ("A", TICK))
    assert text in one.text
    assert (one.node, one.table) == ("D", "t")
    assert one.key is not None
    assert one.txid == txid or check == "columns"  # another transaction has that place now

"""A real cluster that had everything happen to it: its journals pass every audit, and an edited row is named."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bedrockish.cli.audit import _replay
from tests.spark.lifetime import counts, lifetime
from tools.cluster import ROOT, clean_environment

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.slow]


def test_honest_journals_are_silent_and_an_edited_row_is_named(tmp_path: Path) -> None:
    paths = lifetime(tmp_path / "cluster")
    assert [path.stem for path in paths] == ["A", "D", "E"]
    found = counts(paths[0])
    assert found["adopted"] > 0
    assert found["members"] >= 5
    assert found["schema"] >= 4
    command = [sys.executable, "-m", "bedrockish.cli.main", "audit", *map(str, paths), "--strict", "--replay", "--json"]
    ended = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, check=False, timeout=600)
    report = json.loads(ended.stdout)
    assert [check for check in report["checks"] if check["findings"]] == []
    assert (ended.returncode, report["holds"]) == (0, True)
    with closing(sqlite3.connect(paths[1])) as db:
        (row,) = db.execute("SELECT max(id) FROM t").fetchone()
        db.execute("UPDATE t SET n = n + 1 WHERE id = ?", (row,))
        db.commit()
    (one,), levels = _replay({path.stem: str(path) for path in paths}, 20)
    assert (one["node"], one["table"], one["key"]) == ("D", "t", str(row))
    wrote = f"{one['leader']}{one['tick']}"
    assert one["text"] == f"in the row {row} of t, n is 1 and should be 0; {wrote} wrote it last"
    with closing(sqlite3.connect(paths[0])) as db:
        query = "SELECT origin || '-' || printf('%x', clock) FROM bedrockish_journal WHERE leader || tick = ?"
        assert db.execute(query, (wrote,)).fetchone() == (one["txid"],)
    assert levels == {"fault": 1, "information": 0}

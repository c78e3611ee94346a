"""Files of processes that were killed in a transaction of SQLite's rollback mode."""

import sqlite3
from contextlib import closing
from pathlib import Path


def leave_unfinished(path: Path) -> Path:
    """Change a file as such a process does: half of a transaction is in it, and a rollback journal is next to it."""
    journal = path.with_name(f"{path.name}-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        db.execute("PRAGMA cache_size = 5")
        db.execute("PRAGMA cache_spill = 5")
        db.execute("BEGIN")
        db.execute(
            "CREATE TABLE unfinished AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200) "
            "SELECT i, randomblob(3000) AS data FROM n"
        )
        left = {one: one.read_bytes() for one in (path, journal)}
        db.execute("ROLLBACK")
    for one, data in left.items():
        one.write_bytes(data)
    return journal

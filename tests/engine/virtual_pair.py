"""Two engines that apply each other's entries, for tests of virtual tables."""

from pathlib import Path
from typing import Any

import apsw

from tests.engine.nodes import Sql, TestNode

TABLES = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage = 0 ORDER BY name"
TERMS = ("alpha", "beta", "gamma", "alp*", "delta OR alpha", "title : beta", '"alpha beta"')


class Pair:
    """Two nodes; what either runs is applied at the other one at once."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.nodes = [TestNode(folder / f"{name}.db", name, **options) for name in ("A", "B")]

    def run(self, at: int, *statements: Sql) -> list[list[tuple[Any, ...]]]:
        """Run a request at one node and apply its entry at the other; return the rows of each statement."""
        node, other = self.nodes[at], self.nodes[1 - at]
        count = len(node.entries)
        results = node.run(*statements)
        for entry in node.entries[count:]:
            other.apply(entry)
        return [result.rows for result in results]

    def query(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, which both nodes must give alike, in their open batches."""
        one, two = (node.engine._db.execute(sql, params).fetchall() for node in self.nodes)
        assert one == two, sql
        return one

    def check(self) -> None:
        """Check that each node's virtual tables are sound, and equal on both nodes."""
        for node in self.nodes:
            check_virtual(node.engine._db)
        for name, _ in self.query(TABLES):
            self.query(f'SELECT rowid, * FROM "{name}" ORDER BY rowid')

    def close(self) -> None:
        for node in self.nodes:
            node.engine.close()


def check_virtual(db: apsw.Connection) -> None:
    """Check that the FTS5 tables of a database are sound and answer like new ones made from the same rows."""
    tables: list[Any] = db.execute(TABLES).fetchall()
    for name, sql in tables:
        if "fts5(" not in sql.lower():
            continue
        quoted = f'"{name}"'
        db.execute(f"INSERT INTO {quoted}({quoted}, rank) VALUES ('integrity-check', 1)", can_cache=False)
        if "unindexed" in sql.lower():
            continue
        columns: Any = db.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
        names = ", ".join(f'"{column}"' for (column,) in columns)
        fresh = apsw.Connection(":memory:")
        fresh.execute(f"CREATE VIRTUAL TABLE made USING fts5({names}{', tokenize=porter' * ('porter' in sql)})")
        fresh.executemany(
            f"INSERT INTO made(rowid, {names}) VALUES (?{', ?' * len(columns)})",
            db.execute(f"SELECT rowid, {names} FROM {quoted}").fetchall(),
        )
        for term in TERMS:
            if "title" in term and ("title",) not in columns:
                continue
            query = "SELECT rowid, round(bm25({0}), 9) FROM {0} WHERE {0} MATCH ? ORDER BY rowid"
            found = db.execute(query.format(quoted), (term,)).fetchall()
            assert found == fresh.execute(query.format("made"), (term,)).fetchall(), (name, term)
        fresh.close()

"""SQLite's statements and PRAGMAs, one line each: the same at a connection of a cluster, different, or refused.

``tests/cluster/test_sql_surface.py`` runs each line on a node and on SQLite; ``tools.docs`` writes the table of
docs/sql.md from it.
"""

from typing import NamedTuple

SAME, DIFFERS, REFUSED = "as in SQLite", "differs", "refused"


class Line(NamedTuple):
    """A line of the table."""

    name: str  # the name of the statement or PRAGMA in SQLite's documentation
    verdict: str  # ``SAME``, ``DIFFERS`` or ``REFUSED``
    statements: tuple[str, ...]  # run in this order on a connection of their own; the verdict is about the last one
    how: str = ""  # the difference, or the reason of the refusal and the way out


def _same(name: str, *statements: str) -> Line:
    return Line(name, SAME, statements)


def _differs(name: str, how: str, *statements: str) -> Line:
    return Line(name, DIFFERS, statements, how)


def _refused(name: str, how: str, *statements: str) -> Line:
    return Line(name, REFUSED, statements, how)


def _pragma(name: str, argument: str = "") -> Line:
    return _same(f"PRAGMA {name}", f"PRAGMA {name}{argument}")


def _of_node(name: str, value: str, how: str = "the node's; setting it changes nothing") -> Line:
    return _differs(f"PRAGMA {name}", how, f"PRAGMA {name} = {value}")


SETUP = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, n CHECK (n < 100))",
    "CREATE INDEX i ON t(n)",
    "INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)",
    "CREATE VIEW v AS SELECT n FROM t",
)
"""Run before each line."""

_ONE_FILE = (
    "not every node has that file; attach it on a connection by [the path of a node's file](local.md#other-files), or "
    "copy its rows in by INSERTs"
)
_DEFINITION = "a node has the schema on which the cluster agreed; change it by ALTER, DROP and CREATE"

STATEMENTS = (
    _same("ALTER TABLE", "ALTER TABLE t ADD COLUMN x DEFAULT 7", "ALTER TABLE t RENAME x TO y", "SELECT * FROM t"),
    _same("ANALYZE", "ANALYZE", "SELECT stat FROM sqlite_stat1 WHERE idx = 'i'"),
    _refused("ATTACH DATABASE", _ONE_FILE, "ATTACH ':memory:' AS other"),
    _same("BEGIN TRANSACTION", "BEGIN IMMEDIATE", "UPDATE t SET n = 1", "ROLLBACK", "SELECT * FROM t"),
    _same("COMMIT TRANSACTION", "BEGIN", "UPDATE t SET n = 1", "COMMIT", "SELECT * FROM t"),
    _same("CREATE INDEX", "CREATE UNIQUE INDEX j ON t(n) WHERE n > 5", "SELECT n FROM t INDEXED BY j WHERE n > 5"),
    _same("CREATE TABLE", "CREATE TABLE u(a INT, b TEXT) STRICT", "INSERT INTO u VALUES (1, 'x')", "SELECT * FROM u"),
    _same("CREATE TEMP TABLE", "CREATE TEMP TABLE own AS SELECT n FROM t", "SELECT * FROM own"),
    _same("CREATE TRIGGER", "CREATE TRIGGER r AFTER INSERT ON t BEGIN UPDATE t SET n = 5 WHERE id = 1; END",
          "INSERT INTO t VALUES (9, 9)", "SELECT * FROM t"),
    _same("CREATE VIEW", "CREATE VIEW w AS SELECT sum(n) AS n FROM t", "SELECT * FROM w"),
    _differs("CREATE VIRTUAL TABLE", "FTS5, fts5vocab, R*Tree, geopoly, vec0 and vec1; other modules are refused",
             "CREATE VIRTUAL TABLE f USING fts5(a)"),
    _same("DELETE", "DELETE FROM t WHERE id = 1 RETURNING n"),
    _same("DETACH DATABASE", "DETACH main"),
    _same("DROP INDEX", "DROP INDEX i"),
    _same("DROP TABLE", "DROP VIEW v", "DROP TABLE t", "SELECT name FROM sqlite_schema WHERE name = 't'"),
    _same("DROP TRIGGER", "CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; END", "DROP TRIGGER r"),
    _same("DROP VIEW", "DROP VIEW v"),
    _same("END TRANSACTION", "BEGIN", "DELETE FROM t", "END", "SELECT * FROM t"),
    _differs("EXPLAIN", "shows the program of the text as it was sent", "EXPLAIN SELECT * FROM t"),
    _same("EXPLAIN QUERY PLAN", "EXPLAIN QUERY PLAN SELECT * FROM t WHERE n = 1"),
    _differs("INSERT", "a row without an id gets [one of its node's](#ids)", "INSERT INTO t(n) VALUES (7)"),
    _same("ON CONFLICT clause", "INSERT OR IGNORE INTO t VALUES (1, 1)", "SELECT * FROM t"),
    _same("REINDEX", "REINDEX t"),
    _same("RELEASE SAVEPOINT", "SAVEPOINT s", "UPDATE t SET n = 2", "RELEASE s", "SELECT * FROM t"),
    _same("REPLACE", "REPLACE INTO t VALUES (1, 11)", "SELECT * FROM t"),
    _same("RETURNING clause", "UPDATE t SET n = n + 1 RETURNING id, n"),
    _same("ROLLBACK TRANSACTION", "BEGIN", "DELETE FROM t", "ROLLBACK", "SELECT * FROM t"),
    _same("SAVEPOINT", "SAVEPOINT s", "DELETE FROM t", "ROLLBACK TO s", "RELEASE s", "SELECT * FROM t"),
    _same("SELECT", "SELECT n, row_number() OVER (ORDER BY n DESC) FROM t ORDER BY n"),
    _same("UPDATE", "UPDATE t SET n = t.n + 1 FROM v WHERE t.n = v.n", "SELECT * FROM t"),
    _same("UPSERT", "INSERT INTO t VALUES (1, 1) ON CONFLICT DO UPDATE SET n = excluded.n", "SELECT * FROM t"),
    _differs("VACUUM", "changes nothing: a node gives pages back by itself, as `bedrockish compact` does", "VACUUM"),
    _refused("VACUUM INTO", "it would copy one node's own tables; take a [backup](operating.md#back-up)",
             "VACUUM INTO 'copy.sqlite'"),
    _same("VALUES", "VALUES (1, 'x'), (2, 'y')"),
    _same("WITH clause", "WITH RECURSIVE c(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM c LIMIT 5) SELECT * FROM c"),
)  # fmt: skip

PRAGMAS = (
    _of_node("analysis_limit", "100", "every node looks at about 1,000 rows of each index; setting it changes nothing"),
    _same("PRAGMA application_id", "PRAGMA application_id = 7", "PRAGMA application_id"),
    _of_node("auto_vacuum", "1"),
    _of_node("automatic_index", "0"),
    _of_node("busy_timeout", "100", "no client locks the database: a statement waits as long as its client says"),
    _of_node("cache_size", "100"),
    _of_node("cache_spill", "100"),
    _same("PRAGMA case_sensitive_like", "PRAGMA case_sensitive_like = ON", "SELECT 'a' LIKE 'A', 'a' LIKE 'a'"),
    _of_node("cell_size_check", "1"),
    _of_node("checkpoint_fullfsync", "1"),
    _differs("PRAGMA collation_list", "has those of the plugins of the nodes", "PRAGMA collation_list"),
    _differs("PRAGMA compile_options", "those of the node's SQLite", "PRAGMA compile_options"),
    _refused("PRAGMA count_changes", "deprecated by SQLite; `changes()` and `rowcount` have the number",
             "PRAGMA count_changes = ON"),
    _differs("PRAGMA data_version", "of one connection of the node, perhaps another each time", "PRAGMA data_version"),
    _differs("PRAGMA database_list", "names the node's file", "PRAGMA database_list"),
    _differs("PRAGMA defer_foreign_keys", "outside of a transaction, for its request only",
             "PRAGMA defer_foreign_keys = ON"),
    _of_node("empty_result_callbacks", "1", "has no meaning in today's interfaces, and changes nothing"),
    _pragma("encoding"),
    _pragma("foreign_key_check"),
    _pragma("foreign_key_list", "(t)"),
    _differs("PRAGMA foreign_keys", "on from the beginning; [off](#what-is-different) for changes of the schema",
             "PRAGMA foreign_keys"),
    _differs("PRAGMA freelist_count", "of the node's file", "PRAGMA freelist_count"),
    _refused("PRAGMA full_column_names", "deprecated by SQLite; name columns by AS",
             "PRAGMA full_column_names = ON"),
    _of_node("fullfsync", "1"),
    _differs("PRAGMA function_list", "has those of the cluster and of plugins, too", "PRAGMA function_list"),
    _of_node("hard_heap_limit", "9"),
    _refused("PRAGMA ignore_check_constraints", "rows would break constraints that others rely on; drop the CHECK",
             "PRAGMA ignore_check_constraints = ON"),
    _of_node("incremental_vacuum", "9"),
    _pragma("index_info", "(i)"),
    _pragma("index_list", "(t)"),
    _pragma("index_xinfo", "(i)"),
    _pragma("integrity_check"),
    _of_node("journal_mode", "DELETE", "always `wal`"),
    _of_node("journal_size_limit", "9"),
    _differs("PRAGMA legacy_alter_table", "for ALTER to the end of a transaction, and refused outside of one",
             "PRAGMA legacy_alter_table"),
    _of_node("locking_mode", "EXCLUSIVE", "always `normal`"),
    _of_node("max_page_count", "9"),
    _of_node("mmap_size", "9"),
    _differs("PRAGMA module_list", "has more modules than may be used", "PRAGMA module_list"),
    _differs("PRAGMA optimize", "`ANALYZE` of all tables, if SQLite's own would look at any table", "PRAGMA optimize"),
    _differs("PRAGMA page_count", "of the node's file", "PRAGMA page_count"),
    _of_node("page_size", "8192"),
    _pragma("pragma_list"),
    _same("PRAGMA query_only", "PRAGMA query_only = ON", "DELETE FROM t"),
    _pragma("quick_check"),
    _of_node("read_uncommitted", "1", "off: no transaction sees what another has not committed"),
    _same("PRAGMA recursive_triggers", "PRAGMA recursive_triggers = ON", "PRAGMA recursive_triggers"),
    _of_node("reverse_unordered_selects", "1", "changes nothing: an order that is not asked for may be any"),
    _refused("PRAGMA schema_version", _DEFINITION, "PRAGMA schema_version = 9"),
    _of_node("secure_delete", "1", "the node's; see [erasure](erasure.md)"),
    _refused("PRAGMA short_column_names", "deprecated by SQLite; name columns by AS",
             "PRAGMA short_column_names = OFF"),
    _of_node("shrink_memory", "1"),
    _of_node("soft_heap_limit", "9"),
    _of_node("synchronous", "OFF", "always 2: each commit is durable before it is acknowledged"),
    _pragma("table_info", "(t)"),
    _differs("PRAGMA table_list", "has TEMP views of the node, too", "PRAGMA table_list"),
    _pragma("table_xinfo", "(t)"),
    _of_node("temp_store", "2"),
    _of_node("temp_store_directory", "'/tmp'"),
    _of_node("threads", "2"),
    _refused("PRAGMA trusted_schema", "triggers and views would do something else for one client; it stays on",
             "PRAGMA trusted_schema = OFF"),
    _same("PRAGMA user_version", "PRAGMA user_version = 7", "PRAGMA user_version"),
    _of_node("wal_autocheckpoint", "9"),
    _of_node("wal_checkpoint", "9", "changes nothing: a node copies its log into its file by itself"),
    _refused("PRAGMA writable_schema", _DEFINITION, "PRAGMA writable_schema = ON"),
)  # fmt: skip


def surface() -> list[str]:
    """Return the tables of docs/sql.md."""
    lines: list[str] = []
    for title, table in (("statement", STATEMENTS), ("PRAGMA", PRAGMAS)):
        lines += [f"| {title} | at a connection of a cluster |", "|---|---|"]
        for line in table:
            how = f"{line.verdict}: {line.how}" if line.how else line.verdict
            lines.append(f"| `{line.name.removeprefix('PRAGMA ')}` | {how} |")
        lines.append("")
    return lines[:-1]

"""The PRAGMAs that a client may use, and the reasons for which others are refused."""

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import apsw

from bedrockish.errors import SqlError
from bedrockish.sqltext.session_settings import LIKE, TRIGGERS, first_setting, is_on
from bedrockish.sqltext.session_values import NOTHING
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk

WORDS_MAX = 12  # the PRAGMAs that a node answers or replicates have fewer tokens
READABLE = frozenset(
    {
        *("application_id", "collation_list", "compile_options", "data_version", "database_list", "encoding"),
        *("foreign_key_check", "foreign_key_list", "foreign_keys", "freelist_count", "function_list", "index_info"),
        *("index_list", "index_xinfo", "integrity_check", "module_list", "page_count", "page_size", "pragma_list"),
        *("quick_check", "schema_version", "table_info", "table_list", "table_xinfo", "user_version"),
        *("auto_vacuum", "automatic_index", "busy_timeout", "cache_size", "defer_foreign_keys", "journal_mode"),
        *("legacy_alter_table", "locking_mode", "query_only", "read_uncommitted", "recursive_triggers", "synchronous"),
        *("temp_store", "wal_autocheckpoint", "cache_spill", "case_sensitive_like", "count_changes"),
        *("full_column_names", "ignore_check_constraints", "short_column_names", "trusted_schema", "writable_schema"),
        "temp_store_directory",
    }
)
WITH_ARGUMENT = frozenset(
    {
        *("foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo", "integrity_check"),
        *("quick_check", "table_info", "table_list", "table_xinfo"),
        # SQLite ignores the argument of the PRAGMAs below.
        *("collation_list", "compile_options", "data_version", "database_list", "freelist_count", "function_list"),
        *("module_list", "page_count", "pragma_list"),
    }
)
_FIXED = {
    "case_sensitive_like": False,
    "count_changes": False,
    "full_column_names": False,
    "ignore_check_constraints": False,
    "query_only": False,
    "short_column_names": True,
    "trusted_schema": True,
    "writable_schema": False,
}
"""The PRAGMAs that change the meaning of statements: name -> its value at the nodes, the only one that may be set."""
_WAYS = {
    "ignore_check_constraints": "drop the CHECK that the rows break",
    "schema_version": "change the schema by ALTER, DROP and CREATE",
    "trusted_schema": "leave it on",
    "writable_schema": "change the schema by ALTER, DROP and CREATE",
}
"""PRAGMA -> the advice in the error that refuses it."""
_OTHER_WAY = "settings belong in the node's configuration, and only PRAGMAs that read, such as table_info, are allowed"
REPLICATED = ("user_version", "application_id")
"""PRAGMAs that set a number in the file; replicated like a definition, because migration tools store versions there."""

DEFER, LEGACY = "defer_foreign_keys", "legacy_alter_table"
SETTINGS = frozenset({DEFER, LEGACY, "foreign_keys"})
"""Settings that a request may make, and that end with it."""
LATER = frozenset({DEFER, LEGACY})
"""Settings that SQLite changes while it compiles the PRAGMA; it then forgets broken foreign keys."""

KEYS_OFF = (
    "foreign keys are always enforced for rows; PRAGMA foreign_keys = OFF is for transactions that change the schema, "
    "and PRAGMA defer_foreign_keys = ON checks them at the end of a transaction; a dump is loaded by "
    "'sqlite3 new.db < dump.sql' and 'bedrockish import new.db'"
)
LEGACY_ON = (
    "PRAGMA legacy_alter_table = ON is for ALTER in a transaction that changes the schema; send it after BEGIN, or in "
    "one request with the ALTER"
)


# The answers to PRAGMAs of programs written for SQLite. A node's settings are fixed, and already serve their purpose.
ANSWERED = {
    "analysis_limit": "0 AS analysis_limit",
    "auto_vacuum": None,
    "automatic_index": None,
    "busy_timeout": "0 AS timeout",
    "cache_size": None,
    "cache_spill": None,
    "cell_size_check": "0 AS cell_size_check",
    "checkpoint_fullfsync": "0 AS checkpoint_fullfsync",
    "empty_result_callbacks": "0 AS empty_result_callbacks",
    "encoding": None,
    "fullfsync": "0 AS fullfsync",
    "hard_heap_limit": "0 AS hard_heap_limit",
    "incremental_vacuum": None,
    "journal_mode": "'wal' AS journal_mode",
    "journal_size_limit": "-1 AS journal_size_limit",
    "locking_mode": "'normal' AS locking_mode",
    "max_page_count": "1073741823 AS max_page_count",
    "mmap_size": "0 AS mmap_size",
    "page_size": None,
    "read_uncommitted": None,
    "recursive_triggers": None,
    "reverse_unordered_selects": "0 AS reverse_unordered_selects",
    "secure_delete": "0 AS secure_delete",
    "shrink_memory": None,
    "soft_heap_limit": "0 AS soft_heap_limit",
    "synchronous": "2 AS synchronous",
    "temp_store": None,
    "temp_store_directory": None,
    "threads": "0 AS threads",
    "wal_autocheckpoint": "1000 AS wal_autocheckpoint",
    "wal_checkpoint": "0 AS busy, -1 AS log, -1 AS checkpointed",
}
"""PRAGMA -> its answer; None: a text that sets it gets no result, and SQLite itself answers a query."""

_SHAPES = {"word": "v", "quoted": "v", "string": "v", "number": "n", "blob": "?", "param": "?"}
_ARGUMENT = re.compile(r"=(?:[+-]?n|v)|\((?:[+-]?n|v)\)")
_BEGUN = re.compile(r"=(?:[+-]n?|n|v)?|\((?:(?:[+-]?n|v)\)?|[+-])?")
_SETS_SILENTLY = frozenset(
    {
        *("cell_size_check", "checkpoint_fullfsync", "empty_result_callbacks", "fullfsync"),
        *("reverse_unordered_selects", "synchronous"),
    }
)
_ACTS = frozenset({"incremental_vacuum", "shrink_memory"})  # PRAGMAs that also act without a value


def lacks_statistics(db: apsw.Connection) -> bool:
    """Return whether SQLite's own PRAGMA optimize would gather statistics of a user's table now."""
    found = db.execute("PRAGMA main.optimize(0x10003)")  # flags: examine all tables, only list the statements
    return any('"main"."bedrockish_' not in str(sql) for (sql,) in found)


def answered(sql: str, lacks_statistics: Callable[[], bool]) -> str:
    """Return a text with its first statement replaced by a SELECT of the answer, if it is a PRAGMA of ``ANSWERED``.

    VACUUM and REINDEX become ``NOTHING``. PRAGMA optimize becomes ANALYZE if statistics are lacking. Any
    other text is returned unchanged.

    Programs written for SQLite begin with such PRAGMAs. At a node these are needless (each commit is durable before it
    is acknowledged, and readers do not block the writer) or have no meaning.

    Raises:
        SqlError: the PRAGMA has other tokens than a value.
    """
    first = first_word(sql)
    if first not in ("PRAGMA", "REINDEX", "VACUUM"):
        return sql
    try:
        words = list(islice(walk(sql), WORDS_MAX))
    except NotTokensError:
        return sql
    end = next((place for place, token in enumerate(words) if token.text == ";"), len(words))
    rest = sql[words[end].start :] if end < len(words) else ""
    # VACUUM or REINDEX: a node returns free pages to the disk, and checks its indexes, by itself.
    if first != "PRAGMA":
        return sql if any(token.is_word("INTO") for token in words[:end]) else NOTHING + rest
    at = 3 if words[2:3] and words[2].text == "." else 1
    name = (words[at].name or "").lower() if at < end else ""
    if name in ANSWERED or name == "optimize":
        _check_argument(words[at + 1 : end], sql)
    if name == "optimize":
        return ("ANALYZE" if lacks_statistics() else NOTHING) + rest
    # The guard refuses a text that switches a setting on in a form that ``first_setting`` does not recognize.
    if name not in ANSWERED or (name == TRIGGERS and first_setting(sql) is None and turns_on(sql)):
        return sql
    sets = at + 1 < end and words[at + 1].text in ("=", "(")
    answer = ANSWERED[name]
    if answer is None and not sets and name not in _ACTS:
        return sql  # SQLite itself answers a query
    silent = answer is None or (sets and name in _SETS_SILENTLY)
    return (NOTHING if silent else f"SELECT {answer}") + rest


def _check_argument(found: list[SqlToken], sql: str) -> None:
    """Check that a PRAGMA's name is followed by no token (``found``), or by one value: ``= value`` or ``(value)``.

    Without this check, a statement after a missing semicolon would be dropped with the PRAGMA.

    Raises:
        SqlError: SQLite's text for the first other token, or for a missing one.
    """
    shape = "".join(_SHAPES.get(token.kind, token.text[0]) for token in found)
    if not shape or _ARGUMENT.fullmatch(shape):
        return
    begun = _BEGUN.match(shape)
    at = begun.end() if begun is not None else 0
    if at == len(found):
        raise SqlError("incomplete input", sql=sql)
    raise SqlError(f'near "{found[at].text}": syntax error', sql=sql, offset=found[at].start)


def refusal(name: str, argument: str | None, database: str | None) -> str | None:
    """Return why a PRAGMA is refused, or None; ``argument`` is None for a query."""
    known = name.lower()
    if argument is None or known in WITH_ARGUMENT:
        allowed = known in READABLE
    elif known in _FIXED:
        allowed = is_on(argument) == _FIXED[known]
    elif known in REPLICATED:
        allowed = database in (None, "main")
    else:
        allowed = known in SETTINGS
    if allowed:
        return None
    if known in (LIKE, TRIGGERS):
        return (
            f"PRAGMA {name} is a setting of a session, and the client of the session keeps it: send the statement "
            f"'PRAGMA {name} = ON', in these words, on a connection, or over HTTP at the start of a request"
        )
    return f"PRAGMA {name} would change this node only; {_WAYS.get(known, _OTHER_WAY)}"


def given(sql: str) -> tuple[str, str]:
    """Return the name and the value of a PRAGMA that sets a value; two empty texts for any other text."""
    if first_word(sql) != "PRAGMA":
        return "", ""
    try:
        words = [token for token in islice(walk(sql), WORDS_MAX) if token.text != ";"]
    except NotTokensError:
        return "", ""
    at = 3 if words[2:3] and words[2].text == "." else 1
    if not words[at + 1 : at + 2] or words[at + 1].text not in ("=", "("):
        return "", ""
    value = "".join(token.text for token in words[at + 2 :]).rstrip(")")
    return (words[at].name or "").lower(), value.strip("'\"").lower()


def is_replicated(sql: str) -> bool:
    """Return whether a text is a PRAGMA whose new value is replicated."""
    return given(sql)[0] in REPLICATED


def turns_on(sql: str) -> bool:
    """Return whether a PRAGMA switches its setting on."""
    return is_on(given(sql)[1])


def of_schema_only(sql: str) -> str:
    """Return why a PRAGMA is refused in a transaction that changes no schema; an empty text if it is allowed there."""
    name, value = given(sql)
    if name == "foreign_keys" and not is_on(value):
        return KEYS_OFF
    return LEGACY_ON if name == LEGACY and is_on(value) else ""


def asks(sql: str, name: str = DEFER) -> bool:
    """Return whether a text is a query of a PRAGMA of ``SETTINGS``."""
    return first_word(sql) == "PRAGMA" and name in sql.lower() and not given(sql)[0]


def apply(db: apsw.Connection, sql: str) -> None:
    """Run a PRAGMA of ``SETTINGS``, never from the statement cache: compiling the PRAGMA is what sets the setting."""
    cursor = db.cursor()
    cursor.execute(sql, can_cache=False)
    cursor.close(True)


def settle(db: apsw.Connection) -> None:
    """Undo the settings of a request or transaction.

    SQLite itself ends the deferral at a COMMIT or ROLLBACK. But statements that were compiled during the deferral would
    report a broken key late, and leave the row in its table. The PRAGMA makes SQLite compile them again.
    """
    defer(db, on=False)


def defer(db: apsw.Connection, *, on: bool) -> None:
    """Make SQLite check foreign keys at the end of the transaction, or with each statement."""
    apply(db, f"PRAGMA {DEFER} = {int(on)}")


def statistics(db: apsw.Connection) -> list[tuple[Any, ...]]:
    """Return the statistics that ANALYZE has gathered of users' tables."""
    kept = db.execute("SELECT name FROM main.sqlite_schema WHERE name IN ('sqlite_stat1', 'sqlite_stat4')").fetchall()
    rows = (db.execute(f"SELECT * FROM main.{name} WHERE tbl NOT GLOB 'bedrockish_*'") for (name,) in kept)
    return sorted((row for found in rows for row in found), key=repr)


def numbers(db: apsw.Connection) -> tuple[object, ...]:
    """Return the file's counter of schema changes and its replicated settings, to detect a change of any of them."""
    return tuple(db.pragma(name) for name in ("schema_version", *REPLICATED))

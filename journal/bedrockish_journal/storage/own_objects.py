"""The names of the tables and indexes that a node creates in its file; another program may have added others."""

from collections.abc import Iterator

import apsw

PREFIX = "bedrockish_"
TABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("journal", "joined", "past", "pruned", "packed", "schema", "meta", "vote", "piece", "building", "bare"),
        *("building_data", "building_idx", "building_docsize", "building_config"),  # the shadow tables of an FTS5 index
    )
)
_INDEXES = ("journal_place", "journal_command", "journal_txid", "journal_repeat", "packed_place", "built")
INDEXES = frozenset(f"{PREFIX}{name}" for name in _INDEXES)
_OBJECTS = "SELECT type, name, tbl_name FROM main.sqlite_schema WHERE name LIKE 'bedrockish#_%' ESCAPE '#'"


def is_own(kind: str, name: str, table: str) -> bool:
    """Return whether SQLite or a node created an object; False for a trigger, a view or a table of another name."""
    name, table = name.lower(), table.lower()
    if name.startswith("sqlite_"):
        return True
    return (kind == "table" and name in TABLES) or (kind == "index" and name in INDEXES and table in TABLES)


def strange_objects(db: apsw.Connection) -> Iterator[str]:
    """Yield each object that has a node's prefix but that no node creates, such as ``trigger bedrockish_x on t``."""
    for kind, name, table in db.execute(_OBJECTS):
        if not is_own(str(kind), str(name), str(table)):
            yield f"{kind} {name}" + (f" on {table}" if name != table else "")

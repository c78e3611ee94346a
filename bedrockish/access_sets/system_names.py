"""The names that belong to bedrockish itself, and that a user's schema and statements may not use.

A node keeps its votes and its journal in tables of the same file. A statement or definition that refers to these
tables, or uses their names, could change or stop this bookkeeping, on every node at once. Only the tables that are
documented for readers can be read.
"""

from collections.abc import Iterable, Mapping

from bedrockish.access_sets.definitions import Definitions
from bedrockish.errors import UnsupportedError
from bedrockish.sqltext.tokenizer import NotTokensError, tokens

PREFIX = "bedrockish_"
OUR_NAMES = "names that begin with bedrockish_ belong to the database itself; choose another name"
READERS = frozenset(f"{PREFIX}{name}" for name in ("changes", "journal", "joined", "pruned", "schema", "users"))
# Tables that clients may query: in them, the change feed finds the first and the last clock of the complete journal,
# and a resumed import finds which of its commands were committed.
ASKED = frozenset(f"{PREFIX}{name}" for name in ("meta", "past"))
# Names of the tables on which an index is built online (``storage.index_build``): they are temporary, and exist at each
# node at a different time.
STAND_IN, STAND_IN_INDEX, BARE = (f"{PREFIX}{name}" for name in ("building", "built", "bare"))
SHADOWS = ("data", "idx", "docsize", "config")  # shadow tables of an FTS5 index on the rows of a table
PASSING = frozenset({STAND_IN, STAND_IN_INDEX, BARE, *(f"{STAND_IN}_{name}" for name in SHADOWS)})
# Forbidden in statements, even as aliases and names of common table expressions.
HIDDEN = frozenset(f"{PREFIX}{name}" for name in ("vote", "rows", "open_journal", "open_meta", "unpacked")) | PASSING


def is_ours(name: str) -> bool:
    """Return whether a table of this name belongs to bedrockish itself."""
    return name.lower().startswith(PREFIX)


def may_be_read(name: str) -> bool:
    """Return whether a view or a trigger may read a table of this name."""
    return not is_ours(name) or name.lower() in READERS


def may_be_asked(name: str) -> bool:
    """Return whether a query may read a table of this name."""
    return may_be_read(name) or name.lower() in ASKED


def hidden_name(sql: str) -> str:
    """Return the first name in a statement that no statement may use; empty without one."""
    if PREFIX not in sql.lower():
        return ""
    try:
        found = tokens(sql)
    except NotTokensError:
        return ""  # the text has an error, which SQLite itself reports
    for token in found:
        if token.kind in ("word", "quoted") and (token.name or "").lower() in HIDDEN:
            return token.name or ""
    return ""


def references(definitions: Definitions, parents: Mapping[str, Iterable[str]]) -> tuple[str, str, str] | None:
    """Return an object of a schema that refers to a table of bedrockish itself, as (kind, name, how); else None.

    SQLite reports foreign keys: ``parents`` has the tables to which each table refers. SQLite resolves the names in
    views and triggers only on use, so their text is searched for any name, in any quotes. CHECKs, generated columns and
    indexes cannot name other tables.
    """
    for table, named in parents.items():
        for parent in named:
            if parent.startswith((PREFIX, "sqlite_")):
                return "table", table, f"has a foreign key to {parent}"
    for row in definitions.latent:
        if PREFIX not in (row.sql or "").lower():
            continue
        try:
            spelled = [token.name for token in tokens(row.sql or "") if token.name is not None]
        except NotTokensError as error:
            return row.kind, row.name, f"has a text that cannot be read ({error}) and may name a table"
        for one in spelled:
            if not may_be_read(one):
                return row.kind, row.name, f"names {one}"
    return None


def check_references(definitions: Definitions, parents: Mapping[str, Iterable[str]]) -> None:
    """Check that a schema does not refer to the tables of bedrockish itself; see ``references``.

    Raises:
        UnsupportedError: an object refers to one of them.
    """
    found = references(definitions, parents)
    if found is not None:
        kind, name, how = found
        raise UnsupportedError(
            f"{kind} {name} {how}, which belongs to the database itself; leave it out (views and queries may read "
            f"{', '.join(sorted(READERS))})",
            **{kind: name},
        )

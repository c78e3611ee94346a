"""Finds the settings of a session that change the effect of a statement.

Most statements have the same effect with and without the settings. The node runs such a statement without them, because
switching a setting makes SQLite compile all other statements of the connection again.
"""

from collections.abc import Callable
from typing import Any

import apsw

from bedrockish.access_sets.definitions import Definitions, folded
from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.engine.statements.compiled import SCHEMA, TEMPORARY, WRITE, Compiled
from bedrockish.errors import UnsupportedError
from bedrockish.sqltext.session_settings import LIKE, NONE, TRIGGERS, Settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.tokenizer import NotTokensError, walk

_DEFINED = (
    "PRAGMA case_sensitive_like: this statement compares with LIKE, and so does the {kind} {name} that it uses, where "
    "LIKE ignores the case of ASCII letters at every node; use GLOB there or here, or switch the PRAGMA off"
)


def settled(
    piece: Compiled,  # the statement, compiled without settings
    settings: Settings,
    db: apsw.Connection,  # the connection that has compiled the statement
    definitions: Definitions,
    again: Callable[[], Compiled],  # compiles the statement again
    *,
    has_more: bool = False,  # whether the connection may have triggers that are not in ``definitions``
) -> Compiled:
    """Return a statement with the settings of its session that it needs.

    Raises:
        UnsupportedError: the statement needs a case-sensitive LIKE, and a definition that it uses has LIKE as well.
        BedrockishError: as ``Guard.compile``.
    """
    if first_word(piece.sql) == "EXPLAIN":
        piece.settings = settings
        return piece
    found: Settings = NONE
    if TRIGGERS in settings and piece.kind in (WRITE, TEMPORARY) and not piece.defines_temporary:
        tables = {folded(name) for name in piece.writes}
        if (has_more or any(map(definitions.has_triggers, tables))) and _needs_triggers(db, piece):
            with in_force(db, frozenset({TRIGGERS})):
                piece = again()
            found |= {TRIGGERS}
    if LIKE in settings and piece.compares and (piece.kind != SCHEMA or piece.is_create_as_select):
        _check_definitions(definitions, piece)
        found |= {LIKE}
    piece.settings = found
    return piece


def _check_definitions(definitions: Definitions, piece: Compiled) -> None:
    for name in sorted(piece.reads | piece.writes | piece.tables):
        for row in definitions.by_table.get(folded(name), ()):
            if row.kind in ("table", "index") and _has_like(row.sql):
                raise UnsupportedError(_DEFINED.format(kind=row.kind, name=row.name), sql=piece.sql, table=row.table)


def _has_like(sql: str | None) -> bool:
    """Return whether a definition uses LIKE; True if it cannot be read."""
    if sql is None or "like" not in sql.lower():
        return False
    try:
        return any((token.name or token.text).lower() == "like" for token in walk(sql))
    except NotTokensError:
        return True


def _needs_triggers(db: apsw.Connection, piece: Compiled) -> bool:
    """Return whether recursive_triggers may change the effect of a statement.

    With the setting, a trigger may fire itself, and REPLACE fires delete triggers. The bytecode shows both: the
    instruction that fires a trigger inside a trigger has a flag against recursion, and a REPLACE that fires triggers
    has other instructions.
    """
    plain = _program(db, piece)
    with in_force(db, frozenset({TRIGGERS})):
        other = _program(db, piece)
    if plain is None or other is None or len(plain) != len(other):
        return True
    inner = False
    for one, two in zip(plain, other, strict=True):
        inner = inner or (one[0] == 0 and one is not plain[0])
        if one[1] == "Program" and inner and one[6]:
            return True
        if one[:6] != two[:6] or (one[1] != "Program" and one[6] != two[6]):
            return True
    return False


def _program(db: apsw.Connection, piece: Compiled) -> list[Any] | None:
    """Return the programs of a statement and its triggers; None if SQLite cannot print them."""
    cursor = db.cursor()
    cursor.row_trace = cursor.exec_trace = None
    try:
        # Not cached: a compiled EXPLAIN does not notice a later change of the schema.
        return cursor.execute("EXPLAIN " + piece.sql, (None,) * len(piece.names), can_cache=False).fetchall()
    except (UnicodeDecodeError, apsw.SQLError):  # a trigger may name a missing table, which compiling reports
        return None
    finally:
        cursor.close(True)

"""The constants of ``sqlite3`` beyond PEP 249: SQLite's numeric constants, and the names of its result codes."""

import sqlite3

import apsw

CODES: dict[int, str] = {
    number: name
    for mapping in (apsw.mapping_result_codes, apsw.mapping_extended_result_codes)
    for number, name in mapping.items()
    if isinstance(number, int) and isinstance(name, str)
}


def constant(name: str) -> int:
    """Return the value of a SQLite constant, such as ``SQLITE_CONSTRAINT_UNIQUE``.

    Raises:
        AttributeError: SQLite has no such constant.
    """
    found = getattr(apsw, name, None)
    if not isinstance(found, int):
        found = getattr(sqlite3, name, None)
    if not isinstance(found, int):
        raise AttributeError(f"module 'bedrockish.dbapi' has no attribute {name!r}")
    return found

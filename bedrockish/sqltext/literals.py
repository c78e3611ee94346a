"""Values written as SQL. Pure."""

import math

Value = None | int | float | str | bytes


def literal(value: Value) -> str:
    """Return the SQL literal of a value.

    SQLite reads a statement only up to its first NUL, so a text with a NUL is written as the cast of a blob.

    >>> literal("it's")
    "'it''s'"
    >>> literal("a\\0")
    "CAST(X'6100' AS TEXT)"
    """
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"X'{value.hex()}'"
        case float():
            return repr(value) if math.isfinite(value) else "9.0e+999" if value > 0 else "-9.0e+999"
        case str() if "\0" in value:
            return literal_in_hex(value)
        case str():
            return "'" + value.replace("'", "''") + "'"
    return str(value)


def literal_in_hex(text: str) -> str:
    """Return a literal of a text without any of its characters: the cast of a blob in hexadecimal digits."""
    return f"CAST(X'{text.encode().hex()}' AS TEXT)"

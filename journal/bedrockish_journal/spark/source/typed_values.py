"""Typed columns for the rows of a SQLite table: their names and types, and the handling of values that do not fit.

A column of SQLite may have values of any type; columns of Arrow and Spark have one type. A column gets the type
of its declaration. A value that does not fit is NULL there and is stored in ``_other``, so no value is lost. A column
without a type can have the text '12' and the integer 12 as two values, so its numbers are stored in ``_other`` as well.
The data source (option ``rows``) and ``read_journal`` have the same columns by these rules.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bedrockish_journal.model.changes import INT64, Value
from bedrockish_journal.spark.source.json_rows import row_text

INTEGER, REAL, TEXT, BLOB, MOMENT = "integer", "real", "text", "blob", "moment"
ANY = "any"  # the type of a column without affinity: texts, and numbers as texts
INSERT, PREIMAGE, POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
OWN: Mapping[str, str] = {  # columns besides the user's; Delta has ``_change_type``, too
    "_change_type": TEXT,
    "_key": TEXT,
    "_commit_clock": INTEGER,
    "_commit_origin": TEXT,
    "_commit_seq": INTEGER,
    "_committed_at": MOMENT,
    "_command": TEXT,
    "_user": TEXT,
    "_rowid": INTEGER,
    "_other": TEXT,
}
SPARK: Mapping[str, str] = {INTEGER: "BIGINT", REAL: "DOUBLE", TEXT: "STRING", BLOB: "BINARY", MOMENT: "TIMESTAMP"}
SPARK = {**SPARK, ANY: SPARK[TEXT]}
_PLAIN = {INTEGER: int, REAL: float, TEXT: str, BLOB: bytes, ANY: str}


def column_type(declared: str) -> str:
    """Return the type of a column by its declared type and SQLite's rules of affinity; a NUMERIC column is text.

    Args:
        declared: the type; empty for ANY in a STRICT table, which has no affinity either.
    """
    if not declared:
        return ANY
    upper = declared.upper()
    if "INT" in upper:
        return INTEGER
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return TEXT
    if "BLOB" in upper:
        return BLOB
    return REAL if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else TEXT


def kept_type(first: str, later: str) -> str:
    """Return the type of a column that was declared first with one type and later with another.

    The first type stays. But a text column that is later declared without affinity becomes ``ANY``, for numbers.
    """
    return ANY if first == TEXT and later in (ANY, BLOB) else first


def fit(values: Sequence[Value], kind: str) -> tuple[Sequence[Any], dict[int, Value]]:
    """Return values converted to a column's type, and the values for ``_other`` by their places.

    A value that does not fit becomes NULL. A number in a column of type ``ANY`` becomes a text, and is in ``_other``.
    """
    if {*map(type, values)} <= {_PLAIN[kind], type(None)} and (kind != INTEGER or _is_narrow(values)):
        return values, {}
    fitted, other = list[Any](), dict[int, Value]()
    for place, value in enumerate(values):
        converted = _converted(value, kind)
        if (converted is None and value is not None) or (kind == ANY and not isinstance(value, str | None)):
            other[place] = value
        fitted.append(converted)
    return fitted, other


def _is_narrow(values: Sequence[Any]) -> bool:
    numbers = [value for value in values if value is not None]
    return not numbers or -INT64 <= min(numbers) <= max(numbers) < INT64


def _converted(value: Value, kind: str) -> Any:
    """Return a value converted to its column's type; None if it does not fit."""
    match value:
        case int() if kind == INTEGER and -INT64 <= value < INT64:
            return value
        case float() if kind == REAL:
            return value
        case int() if kind == REAL and -INT64 <= value < INT64 and int(float(value)) == value:
            return float(value)
        case str() if kind in (TEXT, ANY):
            return value
        case bytes() if kind == BLOB:
            return value
        case int() | float() if kind in (TEXT, ANY) and math.isfinite(value):
            return repr(value)
    return None


def other_texts(others: Mapping[int, Mapping[str, Value]], count: int) -> list[str | None]:
    """Return the column ``_other`` of ``count`` rows: the values that do not fit, by column name, as JSON."""
    found: list[str | None] = [None] * count
    for place, values in others.items():
        found[place] = row_text(tuple(values), tuple(values.values()))
    return found

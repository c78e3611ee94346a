"""Rows as lossless JSON text, because Spark parses JSON in the JVM, faster than Python builds typed rows.

An integer is a JSON number of up to 64 bits. A float always has a point or an exponent (``5.0``), in the shortest form
that parses to the same bits. Text is a JSON string, and NULL is ``null``. Other values are objects, which cannot be
confused with a SQLite value: ``{"$blob": "<base64>"}`` and ``{"$float": "inf"}`` or ``"-inf"``.
"""

import base64
import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from typing import Any

from bedrockish_journal.model.changes import Row, Value
from bedrockish_journal.model.errors import EntryMalformedError


def row_text(columns: Sequence[str], row: Row | None) -> str | None:
    """Return a row as a JSON object in the order of its columns; None if ``row`` is None."""
    if row is None:
        return None
    return _template(tuple(columns)) % tuple(map(_text, row))


def row_texts(columns: Sequence[str], texts: Sequence[Sequence[str]], count: int) -> list[str]:
    """Return ``count`` rows as JSON objects, from the texts of the values of each column."""
    template = _template(tuple(columns))
    return [template % row for row in zip(*texts, strict=True)] if columns else [template] * count


def value_texts(values: Sequence[Value]) -> list[str]:
    """Return values as JSON; fast for values of the same type, as those of a column mostly are."""
    types: set[type] = {*map(type, values)}
    text: Callable[[Any], str] = int.__repr__ if types == {int} else _quoted if types == {str} else _text
    return list(map(text, values))


@lru_cache(maxsize=1024)
def _template(columns: tuple[str, ...]) -> str:
    names = [f"{_quoted(column)}:".replace("%", "%%") for column in columns]
    return "{" + ",".join([f"{name}%s" for name in names]) + "}"


def _text(value: Value) -> str:
    # Not json.dumps, which would create an encoder for every row and takes three times as long.
    if isinstance(value, str):
        return _quoted(value)
    if value is None:
        return "null"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'{{"$float":"{value}"}}'
    return f'{{"$blob":"{base64.b64encode(value).decode()}"}}'


def parse_row(text: str) -> dict[str, Value]:
    """Return the row that ``row_text`` encoded, with SQLite's values.

    Raises:
        EntryMalformedError: the text is not such a row.
    """
    try:
        return {column: _value(plain) for column, plain in json.loads(text).items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise EntryMalformedError(f"{text[:80]!r} is not a row: {error}") from error


def _value(plain: Any) -> Value:
    if not isinstance(plain, dict):
        return plain  # type: ignore[no-any-return]
    if "$blob" in plain:
        return base64.b64decode(plain["$blob"], validate=True)
    return float(plain["$float"])

"""Recognizes INSERTs of one row of literals, such as those of a dump, which differ only in their values.

With parameters in place of the literals, such statements have one text, so that it is compiled and analysed once:

    INSERT INTO t(a, b) VALUES ('it''s', -5)        INSERT INTO t(a, b) VALUES (?, ?)        with "it's" and -5
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from bedrockish.sqltext.statement_ends import HIDING

TEXT_MAX, FORM_MAX = 16_000, 2_000
"""The longest text of literals, and the longest text with parameters, in characters."""

BLANKS = " \t\n\f\r"
"""The characters that SQLite takes for blanks; a regular expression's ``\\s`` also matches others."""

# Possessive repetitions: no text takes longer than its length.
_S = f"[{BLANKS}]"
_NAME = r"(?:[A-Za-z_][A-Za-z0-9_]*+|\"[^\"]*+(?:\"\"[^\"]*+)*+\")"
_LITERAL = r"(?:'[^']*+(?:''[^']*+)*+'|[-+]?[0-9]++(?:\.[0-9]*+)?+|[xX]'[0-9A-Fa-f]*+'|NULL)"
_INSERT = re.compile(
    rf"({_S}*+INSERT{_S}++(?:OR{_S}++(?:IGNORE|REPLACE|ABORT){_S}++)?INTO{_S}++(?:{_NAME}\.)?({_NAME}){_S}*+"
    rf"(?:\(({_S}*+{_NAME}(?:{_S}*+,{_S}*+{_NAME})*+){_S}*+\){_S}*+)?VALUES{_S}*+)"
    rf"\(({_S}*+{_LITERAL}{_S}*+(?:,{_S}*+{_LITERAL}{_S}*+){{0,{FORM_MAX // 3}}}+)\){_S}*+;?{_S}*+",
    re.IGNORECASE | re.ASCII,
)
_ONE_NAME = re.compile(_NAME)
_ONE = re.compile(_LITERAL, re.IGNORECASE | re.ASCII)
_DIGITS_MAX = 17  # SQLite reads decimals of more digits with another rounding than Python, now and then
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

Value = int | float | str | bytes


def with_parameters(sql: str) -> tuple[str, tuple[Value, ...]] | None:
    """Return an INSERT of one row of literals as a text with parameters, and the values; None for another text.

    NULL stays in the text: a node assigns an id to a row whose INTEGER PRIMARY KEY is NULL. So does a command of a
    virtual table, which is an INSERT into a column of the table's name or ``cmd``: its words decide how it runs.
    """
    found = _INSERT.fullmatch(sql) if len(sql) <= TEXT_MAX else None
    if found is None or "\0" in sql or not (sql.isascii() or _is_utf_8(sql)):
        return None
    names = [name.strip('"').lower() for name in _ONE_NAME.findall(found[3] or "")]
    if "cmd" in names or found[2].strip('"').lower() in names:
        return None
    values: list[Value] = []
    marks: list[str] = []
    for literal in _ONE.findall(found[4]):
        if literal[0] in "nN":
            marks.append("NULL")
            continue
        value = _value_of(literal)
        if value is None:
            return None
        values.append(value)
        marks.append("?")
    form = f"{found[1]}({', '.join(marks)})"
    return (form, tuple(values)) if values and len(form) <= FORM_MAX else None


def _value_of(literal: str) -> Value | None:
    """Return the value of a literal; None for NULL, and for a literal that Python may read otherwise than SQLite."""
    first = literal[0]
    if first in "nN":
        return None
    if first == "'":
        return literal[1:-1].replace("''", "'")
    if first in "xX":
        return bytes.fromhex(literal[2:-1]) if len(literal) % 2 else None
    if "." in literal:
        return float(literal) if len(literal) <= _DIGITS_MAX + 1 else None
    value = int(literal) if len(literal) < 21 else _MOST + 1
    return value if _LEAST <= value <= _MOST else None


class LongerLists(NamedTuple):
    """A statement with longer lists of values than another one, whose last values it repeats."""

    sql: str
    parameters: int  # their number
    convert: Callable[[Sequence[Any]], Sequence[Any]]  # makes its parameters from those of the other statement


LIST_MIN = 5  # a statement needs a list of so many values or rows to get longer lists
LONGER_MAX = 10_000  # parameters of a statement with longer lists

_NAME_IN_TEXT = r"[^\x00-@\[-^`{-\x7f][^\x00-\x23%-/:-@\[-^`{-\x7f]*+"  # as in ``tokenizer``
_VALUE = rf"(?:\?(?![0-9])|{_LITERAL}(?![.0-9A-Za-z_$\x80-\U0010ffff]))"
_LIST = rf"\({_S}*+{_VALUE}(?:{_S}*+,{_S}*+{_VALUE})*+{_S}*+\)"
_PARTS = re.compile(
    rf"(?P<list>IN{_S}*+{_LIST})|(?P<rows>VALUES{_S}*+{_LIST}(?:{_S}*+,{_S}*+{_LIST})*+(?!{_S}*+,))"
    rf"|(?P<param>\?)|{_NAME_IN_TEXT}|{HIDING}",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_ONE_LIST, _ONE_VALUE = re.compile(_LIST, re.IGNORECASE | re.ASCII), re.compile(_VALUE, re.IGNORECASE | re.ASCII)
_INSERTS = re.compile(rf"{_S}*+(?:INSERT|REPLACE)\b", re.IGNORECASE | re.ASCII)


def with_longer_lists(sql: str, count: int) -> LongerLists | None:
    """Return a statement with lists of one of few lengths, which reads the same keys; None without a long list.

    Lists are those of ``IN (?, 'a', …)`` and the rows of ``INSERT … VALUES (?, ?), (?, ?), …``. A parameter stands for
    each of their values, and the last value or row is repeated: a list with repetitions has the same members, and the
    constraints of a repeated row look up the same keys. With LIMIT, a repeated row could end the statement earlier.

    Args:
        count: the number of the statement's parameters, none of which has a name or number.
    """
    if sql.count(",") < LIST_MIN - 1 or "\0" in sql or "limit" in sql.lower():
        return None
    parts: list[str] = []
    places: list[int] = []  # for each parameter of the longer statement, the index of its value
    literals: list[Value | None] = []  # the values after those of the parameters
    at = given = 0
    has_long = False
    for found in _PARTS.finditer(sql):
        if found["param"]:
            places.append(given)
            given += 1
        if found.lastgroup not in ("list", "rows"):
            continue
        begin = sql.index("(", found.start())
        if found["list"]:
            items = [[value] for value in _ONE_VALUE.findall(sql, begin, found.end())]
        elif _INSERTS.match(sql) is None or sql[: found.start()].rstrip(BLANKS).endswith("("):
            return None
        else:
            items = [_ONE_VALUE.findall(row) for row in _ONE_LIST.findall(sql, begin, found.end())]
        for text in chain.from_iterable(items):
            if text == "?":
                places.append(given)
                given += 1
                continue
            value = _value_of(text)
            if value is None and text[0] not in "nN":
                return None
            places.append(count + len(literals))
            literals.append(value)
        width = len(items[-1])
        length = longer_length(len(items))
        places += places[-width:] * (length - len(items))
        marks = ", ".join("?" * width)
        parts += (
            sql[at:begin],
            f"({', '.join([marks] * length)})" if found["list"] else ", ".join([f"({marks})"] * length),
        )
        at = found.end()
        has_long = has_long or len(items) >= LIST_MIN
    if not has_long or given != count or len(places) > LONGER_MAX:
        return None
    pick, ending = itemgetter(*places), tuple(literals)
    return LongerLists("".join([*parts, sql[at:]]), len(places), lambda params: pick((*params, *ending)))


def longer_length(length: int) -> int:
    """Return the first of 1, 2, 3, 4, 6, 8, 12, 16, 24, … that is not less than a length."""
    power = 1 << (length - 1).bit_length()
    return power if length > power // 4 * 3 else power // 4 * 3


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which SQLite refuses
        return False
    return True

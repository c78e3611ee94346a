"""Texts that differ only in their values share a form, so that they are compiled, or analysed, once.

The form of a text of literals has parameters in their place, and the same result:

    UPDATE t SET a = 'it''s' WHERE id = -5      UPDATE t SET a = ? WHERE id = ?       with "it's" and -5
    INSERT INTO t(a) VALUES (1), (NULL)         INSERT INTO t(a) VALUES (?), (NULL)   with 1

``with_longer_lists`` returns a form that serves for analysis alone.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from bedrockish.sqltext.statement_ends import HIDING

TEXT_MAX, FORM_MAX = 32_000, 4_000
"""The longest text of literals, and the longest text with parameters, in characters."""
CACHED_MAX, CACHED_TEXT_MAX = 500, 2_000  # the forms of so many texts up to this length are cached
LONG_CACHED_MAX = 16  # the forms of so many longer texts are cached: one run of a text looks for its form repeatedly

BLANKS = " \t\n\f\r"
"""The characters that SQLite takes for blanks; a regular expression's ``\\s`` also matches others."""

# Possessive repetitions: no text takes longer than its length.
_S = f"[{BLANKS}]"
_NAME = r"[^\x00-@\[-^`{-\x7f][^\x00-\x23%-/:-@\[-^`{-\x7f]*+"  # as in ``tokenizer``
_QUOTED = r"\"[^\"]*+(?:\"\"[^\"]*+)*+\"|`[^`]*+`|\[[^\]]*+\]"
_LITERAL = (
    r"(?:'[^']*+(?:''[^']*+)*+'|[-+]?[0-9]++(?:\.[0-9]*+)?+|[xX]'[0-9A-Fa-f]*+'|NULL)"
    r"(?![.0-9A-Za-z_$\x80-\U0010ffff])"
)
_LITERALS = rf"\({_S}*+{_LITERAL}(?:{_S}*+,{_S}*+{_LITERAL})*+{_S}*+\)"
_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII
# Keywords after which ``-`` and ``+`` are signs.
_NO_NAMES = {"ALL", "AND", "BETWEEN", "BY", "CASE", "COLLATE", "DISTINCT", "ELSE", "END", "ESCAPE", "EXCEPT", "EXISTS"}
_NO_NAMES |= {"FROM", "GLOB", "GROUP", "HAVING", "IN", "INTERSECT", "IS", "LIKE", "LIMIT", "MATCH", "NOT", "OFFSET"}
_NO_NAMES |= {"ON", "OR", "ORDER", "REGEXP", "RETURNING", "SELECT", "SET", "THEN", "UNION", "USING", "VALUES", "WHEN"}
_NO_NAMES |= {"WHERE", "WINDOW"}
_OPERATOR = rf"(?:<>|!=|==|<=|>=|[=<>*]|[-+]{_S})"
_FORM_PARTS = re.compile(
    rf"(?P<values>(?P<left>{_NAME}|{_QUOTED}){_S}*+{_OPERATOR}{_S}*+{_LITERAL}"
    rf"|BETWEEN{_S}*+{_LITERAL}(?:{_S}*+AND{_S}*+{_LITERAL})?+|IN{_S}*+{_LITERALS})"
    rf"|(?P<rows>VALUES{_S}*+{_LITERALS}(?:{_S}*+,{_S}*+{_LITERALS})*+(?!{_S}*+,))"
    rf"|(?P<word>{_NAME})|(?P<open>\()|(?P<close>\))|(?P<other>--|/\*|[?:@$\#;])|{HIDING}",
    _FLAGS,
)
_LITERAL_OR_NAME = re.compile(rf"({_LITERAL})|{_QUOTED}|{_NAME}", _FLAGS)
_HAS_LITERAL = re.compile("['0-9]")
_BEGINNING = re.compile(rf"{_S}*+(SELECT|INSERT|REPLACE|UPDATE|DELETE)\b", _FLAGS)
_TARGET = re.compile(
    rf"{_S}*+(?:INSERT|REPLACE){_S}++(?:OR{_S}++[A-Z]++{_S}++)?(?:INTO{_S}*+)?(?:(?:{_NAME}|{_QUOTED}){_S}*+\.{_S}*+)?"
    rf"({_NAME}|{_QUOTED}){_S}*+(?:AS\b{_S}*+(?:{_NAME}|{_QUOTED}){_S}*+)?(?:\(([^()]*+)\))?",
    _FLAGS,
)
_ONE_NAME = re.compile(rf"{_QUOTED}|{_NAME}", _FLAGS)
_DIGITS_MAX = 17  # SQLite reads decimals of more digits with another rounding than Python, now and then
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

Value = int | float | str | bytes
Form = tuple[str, tuple[Value, ...]]

# The places of a text. Only the literals of ``_TERMS`` become parameters: an expression in the result names its column,
# and GROUP BY and ORDER BY may repeat an expression of the result.
_OTHER, _TERMS, _RESULT, _IN_RESULT = range(4)
_PLACES = dict.fromkeys(("WHERE", "SET", "ON"), _TERMS) | dict.fromkeys(
    ("FROM", "UNION", "EXCEPT", "INTERSECT"), _OTHER
)
_PLACES |= dict.fromkeys(("SELECT", "RETURNING", "GROUP", "HAVING", "ORDER", "LIMIT", "WINDOW"), _RESULT)


def with_parameters(sql: str) -> Form | None:
    """Return the form of one SELECT, INSERT, UPDATE or DELETE, and its values; None for a text without one.

    Literals become parameters in the rows of VALUES, and where they are compared with, or assigned to, a column. NULL
    stays in the text: a node assigns an id to a row whose INTEGER PRIMARY KEY is NULL. So does a command of a virtual
    table, which is an INSERT into a column of the table's name or ``cmd``: its words decide how it runs.

    With its form, SQLite cannot use a partial index whose condition compares with a literal of the text, nor an index
    on an expression that has one.
    """
    if len(sql) > TEXT_MAX:
        return None
    return _cached_form(sql) if len(sql) <= CACHED_TEXT_MAX else _cached_long_form(sql)


def _form(sql: str) -> Form | None:
    begins = _BEGINNING.match(sql) if _HAS_LITERAL.search(sql) else None
    if begins is None or "\0" in sql or not (sql.isascii() or _is_utf_8(sql)):
        return None
    inserts = begins[1][0] in "iIrR"
    if inserts and _is_command(sql):
        return None
    end = len(sql.rstrip(BLANKS + ";"))
    parts: list[str] = []
    values: list[Value] = []
    at, place, before, room = 0, _OTHER, "", FORM_MAX  # ``room``: where the text is too long if no literal follows
    around: list[int] = []  # the places around each open parenthesis

    for found in _FORM_PARTS.finditer(sql, 0, end):
        if found.start() > room:
            return None
        kind = found.lastgroup
        name = found["left"] if kind == "values" else found["word"]
        word = name.upper() if name else ""
        if kind == "word" or word in _NO_NAMES:
            if place != _IN_RESULT and word in _PLACES and (word, before) != ("FROM", "DISTINCT"):
                place = _PLACES[word]
            before = word
        elif kind == "open":
            around.append(place)
            place = _IN_RESULT if place in (_RESULT, _IN_RESULT) else place
        elif kind == "close":
            if not around:
                return None
            place = around.pop()
        elif kind == "other":
            return None
        elif (kind == "values" and place == _TERMS) or (kind == "rows" and inserts and not around):
            marked = _marked(found[0], values)
            if marked is None:
                return None
            parts += sql[at : found.start()], marked
            at = found.end()
            room += len(found[0]) - len(marked)
    form = "".join([*parts, sql[at:end]])
    return (form, tuple(values)) if values and len(form) <= FORM_MAX else None


_cached_form, _cached_long_form = lru_cache(CACHED_MAX)(_form), lru_cache(LONG_CACHED_MAX)(_form)


def _marked(part: str, values: list[Value]) -> str | None:
    """Return a part of a text with parameters for its literals, and append their values.

    Return None for an odd literal, and if the form becomes too long.
    """
    parts: list[str] = []
    at = length = 0
    for found in _LITERAL_OR_NAME.finditer(part):
        literal = found[1]
        if literal is None or literal[0] in "nN":
            continue
        value = _value_of(literal)
        length += found.start() - at + 1
        if value is None or length > FORM_MAX:
            return None
        values.append(value)
        parts += part[at : found.start()], "?"
        at = found.end()
    return "".join([*parts, part[at:]])


def _is_command(sql: str) -> bool:
    """Return whether an INSERT may be a command of a virtual table."""
    found = _TARGET.match(sql)
    if found is None:
        return True
    names = [name.strip('"`[]').lower() for name in _ONE_NAME.findall(found[2] or "")]
    return "cmd" in names or found[1].strip('"`[]').lower() in names


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

_VALUE = rf"(?:\?(?![0-9])|{_LITERAL})"
_LIST = rf"\({_S}*+{_VALUE}(?:{_S}*+,{_S}*+{_VALUE})*+{_S}*+\)"
_PARTS = re.compile(
    rf"(?P<list>IN{_S}*+{_LIST})|(?P<rows>VALUES{_S}*+{_LIST}(?:{_S}*+,{_S}*+{_LIST})*+(?!{_S}*+,))"
    rf"|(?P<nested>\({_S}*+VALUES\b)|(?P<param>\?)|{_NAME}|{HIDING}",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_ONE_LIST, _ONE_VALUE = re.compile(_LIST, re.IGNORECASE | re.ASCII), re.compile(_VALUE, re.IGNORECASE | re.ASCII)
_EXTREME = re.compile(rf"\b(?:MIN|MAX){_S}*+\(", _FLAGS)
_INSERTS = re.compile(rf"{_S}*+(?:INSERT|REPLACE)\b", re.IGNORECASE | re.ASCII)


def with_longer_lists(sql: str, count: int) -> LongerLists | None:
    """Return a statement with lists of one of few lengths, which reads the same keys; None without a long list.

    Lists are those of ``IN (?, 'a', …)`` and the rows of ``INSERT … VALUES (?, ?), (?, ?), …``. A parameter stands for
    each of their values, and the last value or row is repeated: a list with repetitions has the same members, and the
    constraints of a repeated row look up the same keys. With LIMIT, or for a minimum or maximum of all rows, SQLite may
    end a loop early; where it ends is found only for the statement itself.

    Args:
        count: the number of the statement's parameters, none of which has a name or number.
    """
    if sql.count(",") < LIST_MIN - 1 or "\0" in sql:
        return None
    if "limit" in (lower := sql.lower()) or ("group" not in lower and _EXTREME.search(sql) is not None):
        return None
    parts: list[str] = []
    places: list[int] = []  # for each parameter of the longer statement, the index of its value
    literals: list[Value | None] = []  # the values after those of the parameters
    at = given = 0
    has_long, inserts = False, _INSERTS.match(sql) is not None
    for found in _PARTS.finditer(sql):
        if found["param"]:
            places.append(given)
            given += 1
        if found["nested"]:
            return None
        if found.lastgroup not in ("list", "rows"):
            continue
        begin = sql.index("(", found.start())
        if found["list"]:
            items = [[value] for value in _ONE_VALUE.findall(sql, begin, found.end())]
        elif not inserts:
            return None
        else:
            items = [_ONE_VALUE.findall(row) for row in _ONE_LIST.findall(sql, begin, found.end())]
        if len(places) + len(items) * len(items[0]) > LONGER_MAX:
            return None
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

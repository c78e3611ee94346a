"""Recognizes INSERTs of one row of literals, such as those of a dump, which differ only in their values.

With parameters in place of the literals, such statements have one text, so that it is compiled and analysed once:

    INSERT INTO t(a, b) VALUES ('it''s', -5)        INSERT INTO t(a, b) VALUES (?, ?)        with "it's" and -5
"""

import re

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
        first = literal[0]
        if first in "nN":
            marks.append("NULL")
            continue
        value: Value
        if first == "'":
            value = literal[1:-1].replace("''", "'")
        elif first in "xX":
            if len(literal) % 2 == 0:
                return None
            value = bytes.fromhex(literal[2:-1])
        elif "." in literal:
            value = float(literal)
            if len(literal) > _DIGITS_MAX + 1:
                return None
        else:
            value = int(literal) if len(literal) < 21 else _MOST + 1
            if not _LEAST <= value <= _MOST:
                return None
        values.append(value)
        marks.append("?")
    form = f"{found[1]}({', '.join(marks)})"
    return (form, tuple(values)) if values and len(form) <= FORM_MAX else None


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which SQLite refuses
        return False
    return True

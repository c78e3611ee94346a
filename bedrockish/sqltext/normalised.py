"""Statements without their values: a text without user data, the same for statements that differ only in values."""

from bedrockish.sqltext.tokenizer import NotTokensError, walk

CHARACTERS_MAX = 500
TOKENS_MAX = 2_000  # tokens of a text that are read, in about a millisecond; ``…`` replaces the rest
MORE = "…"
VALUE = "?"
_TIGHT_BEFORE = frozenset({",", ")", ".", ";"})
_TIGHT_AFTER = frozenset({"(", "."})


def normalised(sql: str) -> str:
    """Return a text with ``?`` for each value and parameter, without comments, and with shortened lists of values.

    ``…`` replaces all but the first of several values or rows of values: 3 rows give the same text as 300 rows.
    Names and keywords stay unchanged. A long result is cut and ends with ``…``. The result is only ``…`` if SQLite's
    tokenizer would refuse the text.
    """
    parts: list[str] = []
    length = 0
    try:
        for number, token in enumerate(walk(sql)):
            text = VALUE if token.kind in ("string", "number", "blob", "param") else token.text
            if number > TOKENS_MAX:
                parts.append(MORE)
                break
            if text == ")" and _folds_row(parts):
                continue
            if text == VALUE and _folds_value(parts):
                continue
            parts.append(text)
            length += len(text) + 1
            if length > CHARACTERS_MAX:
                return f"{_join(parts)[:CHARACTERS_MAX]} {MORE}"
    except NotTokensError:
        return MORE  # with unbalanced quotes, an apparent name may be a value
    return _join(parts)


def _folds_value(parts: list[str]) -> bool:
    """Return whether the next value belongs to a list that has a value already: ``?, ?`` becomes ``?, …``."""
    if parts[-1:] != [","]:
        return False
    if parts[-2:] == [MORE, ","]:
        parts.pop()
        return True
    if parts[-2:] == [VALUE, ","] and len(parts) > 2 and parts[-3] == "(":
        parts.append(MORE)
        return True
    return False


def _folds_row(parts: list[str]) -> bool:
    """Return whether the row that ends now follows another row of values: ``(?, …), (?, …)`` becomes ``(?, …), …``."""
    begin = len(parts) - 1
    while begin >= 0 and parts[begin] in (VALUE, ",", MORE):
        begin -= 1
    if begin < 2 or parts[begin] != "(" or parts[begin - 1] != ",":
        return False
    if parts[begin - 2] == ")":
        parts[begin:] = [MORE]
        return True
    if parts[begin - 2] == MORE:
        del parts[begin - 1 :]
        return True
    return False


def _join(parts: list[str]) -> str:
    written: list[str] = []
    for place, part in enumerate(parts):
        before = parts[place - 1] if place else "("
        if part not in _TIGHT_BEFORE and before not in _TIGHT_AFTER and not (part == "(" and _calls(before)):
            written.append(" ")
        written.append(part)
    return "".join(written)


def _calls(before: str) -> bool:
    return before.isidentifier() and before.upper() not in _KEYWORDS


_KEYWORDS = frozenset({"AND", "AS", "BY", "CASE", "CHECK", "ELSE", "EXISTS", "FROM", "IN", "JOIN", "KEY", "NOT", "ON"})
_KEYWORDS |= {"OR", "OVER", "SELECT", "SET", "THEN", "UNION", "ALL", "UNIQUE", "USING", "VALUES", "WHEN", "WHERE"}

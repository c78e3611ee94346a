"""The PRAGMAs of a session that change the meaning of its statements: ``case_sensitive_like``, ``recursive_triggers``.

SQLite keeps these settings for a connection. A session of a cluster keeps them itself, and writes the settings that are
on before the text of each statement, because any node may run it. So caches by text, such as the cache of plans,
distinguish the settings. A node of a release without these settings refuses statements with such a prefix. Pure.
"""

import re

from bedrockish.sqltext.known_texts import remembered

LIKE, TRIGGERS = "case_sensitive_like", "recursive_triggers"
Settings = frozenset[str]
NONE: Settings = frozenset()

_PREFIXES = {LIKE: f"PRAGMA {LIKE}=1;", TRIGGERS: f"PRAGMA bedrockish_{TRIGGERS}=1;"}
# Possessive quantifiers, because backtracking over a run of blanks could take time cubic in its length.
_BLANK = r"(?:\s|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
_VALUE = rf"{_BLANK}([+-]?\s*+[0-9.][\w.]*+|\w++|'[^']*+'|\"[^\"]*+\"){_BLANK}"
_FIRST = re.compile(
    rf"\s*+PRAGMA\s++(?:main\s*+\.\s*+)?({LIKE}|{TRIGGERS}){_BLANK}(?:={_VALUE}|\({_VALUE}\){_BLANK})?(?:;|$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"0x([0-9a-f]{1,100})|([0-9]{1,100})")


def split_settings(sql: str) -> tuple[Settings, int]:
    """Return the settings that a session has written before a text, and the position at which the text itself begins.

    >>> split_settings("PRAGMA case_sensitive_like=1;SELECT 1")[1]
    29
    """
    if not sql.startswith("PRAGMA "):
        return NONE, 0
    found, at = set[str](), 0
    for name, prefix in _PREFIXES.items():
        if sql.startswith(prefix, at):
            found.add(name)
            at += len(prefix)
    return frozenset(found), at


def without_settings(sql: str) -> str:
    """Return a text without the settings that a session has written before it."""
    at = split_settings(sql)[1]
    return sql[at:] if at else sql


def with_settings(sql: str, settings: Settings) -> str:
    """Return a text with settings before it.

    >>> with_settings("SELECT 1", frozenset({"case_sensitive_like"}))
    'PRAGMA case_sensitive_like=1;SELECT 1'
    """
    return "".join(prefix for name, prefix in _PREFIXES.items() if name in settings) + sql if settings else sql


@remembered
def first_setting(sql: str) -> tuple[str, bool | None, int] | None:
    """Return the setting with which a text begins: its name, new value (None for a query) and end; else None.

    >>> first_setting("PRAGMA recursive_triggers = ON"), first_setting("SELECT 1")
    (('recursive_triggers', True, 30), None)
    """
    found = _FIRST.match(sql)
    if found is None:
        return None
    given = found[2] if found[2] is not None else found[3]
    return found[1].lower(), None if given is None else is_on(given), found.end()


def is_on(value: str) -> bool:
    """Return whether SQLite takes the value of a PRAGMA as true.

    >>> [is_on(one) for one in ("ON", "'yes'", "2", "0", "-1", "maybe")]
    [True, True, True, False, False, False]
    """
    word = value.strip().strip("'\"").lower().removeprefix("+")
    number = _NUMBER.match(word)
    if number is None:
        return word in ("on", "yes", "true")
    hexadecimal, decimal = number.groups()
    found = int(hexadecimal, 16) if hexadecimal else int(decimal)
    return 0 < found < 1 << (32 if hexadecimal else 31)  # SQLite takes a larger number as 0

"""The kind of a statement by its text, by which a connection decides whether to open a transaction. Pure.

A wrong kind can only make the node refuse a statement: the node itself asks SQLite for the kind.
"""

import re
from itertools import islice

from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import is_on, without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.tokenizer import NotTokensError, walk

READ, WRITE, SCHEMA, PRAGMA, OTHER = "read", "write", "schema", "pragma", "other"

_KINDS = {
    **dict.fromkeys(("SELECT", "VALUES", "EXPLAIN"), READ),
    **dict.fromkeys(("INSERT", "UPDATE", "DELETE", "REPLACE"), WRITE),
    **dict.fromkeys(("CREATE", "ALTER", "DROP"), SCHEMA),
}
_SETS_NUMBER = re.compile(r"PRAGMA\s+(?:main\s*\.\s*)?(user_version|application_id)\s*[=(]", re.IGNORECASE)
_SWITCH = re.compile(
    r"\s*+PRAGMA\s++(?:main\s*+\.\s*+)?(foreign_keys|legacy_alter_table)\s*+"
    r"(?:[=(]\s*+['\"]?(\w++)['\"]?\s*+\)?\s*+)?;?\s*+",
    re.IGNORECASE,
)
_BUSY_TIMEOUT = re.compile(
    r"\s*+PRAGMA\s++(?:main\s*+\.\s*+)?busy_timeout\s*+(?:[=(]\s*+['\"]?([+-]?\d{1,9})['\"]?\s*+\)?\s*+)?;?\s*+",
    re.IGNORECASE,
)
_QUERY_ONLY = re.compile(
    r"\s*+PRAGMA\s++(?:main\s*+\.\s*+)?query_only\s*+(?:[=(]\s*+['\"]?(\w++)['\"]?\s*+\)?\s*+)?;?\s*+", re.IGNORECASE
)


def switch_of(sql: str) -> tuple[str, bool | None] | None:
    """Return the name and new value (None for a query) of PRAGMA foreign_keys or legacy_alter_table; else None.

    >>> switch_of("PRAGMA foreign_keys = OFF"), switch_of("PRAGMA foreign_keys(2)")
    (('foreign_keys', False), ('foreign_keys', True))
    """
    found = _SWITCH.fullmatch(sql)
    if found is None:
        return None
    value = found[2]
    return found[1].lower(), None if value is None else is_on(value)


def query_only_of(sql: str) -> tuple[bool | None] | None:
    """Return the new value (None for a query) of a PRAGMA query_only, in a tuple; None for other statements.

    >>> query_only_of("PRAGMA query_only = 1"), query_only_of("PRAGMA query_only"), query_only_of("SELECT 1")
    ((True,), (None,), None)
    """
    found = _QUERY_ONLY.fullmatch(sql)
    return None if found is None else (None if found[1] is None else is_on(found[1]),)


def busy_timeout_of(sql: str) -> tuple[int | None] | None:
    """Return the milliseconds (None for a query) of a PRAGMA busy_timeout, in a tuple; None for other statements.

    >>> busy_timeout_of("PRAGMA busy_timeout = 700"), busy_timeout_of("PRAGMA busy_timeout")
    ((700,), (None,))
    """
    found = _BUSY_TIMEOUT.fullmatch(sql)
    return None if found is None else (None if found[1] is None else max(int(found[1]), 0),)


def optimizes(sql: str) -> bool:
    """Return whether a statement is PRAGMA optimize, which may write statistics.

    >>> optimizes("PRAGMA main.optimize(2)"), optimizes("PRAGMA table_info(optimize)")
    (True, False)
    """
    if "optimize" not in sql.lower():
        return False
    try:
        names = [(one.name or one.text).lower() for one in islice(walk(without_settings(sql)), 4)]
    except NotTokensError:
        return False
    return names[:2] == ["pragma", "optimize"] or names[2:] == [".", "optimize"]


@remembered
def verb_of(sql: str) -> str:
    """Return the verb of a statement in upper case; after ``WITH``, the verb behind the common table expressions."""
    word = first_word(sql)
    if word == "PRAGMA":
        sql = without_settings(sql)
        word = first_word(sql)
    return _verb_after_with(sql) if word == "WITH" else word


@remembered
def kind_of(sql: str) -> str:
    """Return the kind of a statement: ``read``, ``write``, ``schema``, ``pragma`` or ``other``."""
    verb = verb_of(sql)
    if verb == "PRAGMA":
        return SCHEMA if _SETS_NUMBER.search(sql) else PRAGMA
    return _KINDS.get(verb, OTHER)


def inserts(sql: str) -> bool:
    """Return whether a statement is an INSERT or REPLACE, which sets ``lastrowid``."""
    return verb_of(sql) in ("INSERT", "REPLACE")


def _verb_after_with(sql: str) -> str:
    """Return the verb after common table expressions: the first one outside of all parentheses."""
    depth = 0
    try:
        for token in walk(sql):
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0 and token.is_word("INSERT", "UPDATE", "DELETE", "REPLACE", "SELECT", "VALUES"):
                return token.text.upper()
    except NotTokensError:
        pass
    return "SELECT"

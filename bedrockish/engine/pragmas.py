"""Which PRAGMAs a client may use, and why not the others."""

import apsw

from bedrockish.engine.tokens import NotTokensError, tokens

READABLE = frozenset(
    {
        *("application_id", "collation_list", "compile_options", "data_version", "database_list", "encoding"),
        *("foreign_key_check", "foreign_key_list", "foreign_keys", "freelist_count", "function_list", "index_info"),
        *("index_list", "index_xinfo", "integrity_check", "module_list", "page_count", "page_size", "pragma_list"),
        *("quick_check", "schema_version", "table_info", "table_list", "table_xinfo", "user_version"),
        "defer_foreign_keys",
    }
)
WITH_ARGUMENT = frozenset(
    {
        *("foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo", "integrity_check"),
        *("quick_check", "table_info", "table_list", "table_xinfo"),
    }
)
REPLICATED = ("user_version", "application_id")
"""Kept in the file and set on every node, like a definition: migrations note there how far they came."""

DEFER = "defer_foreign_keys"
SETTINGS = frozenset({DEFER, "foreign_keys"})
"""What may be set and is forgotten when the request is over."""

_ON = frozenset({"1", "on", "yes", "true"})


def refusal(name: str, argument: str | None, database: str | None) -> str | None:
    """Return why a PRAGMA is refused, or None; ``argument`` is None if it only asks."""
    known = name.lower()
    if argument is None or known in WITH_ARGUMENT:
        allowed = known in READABLE
    elif known in REPLICATED:
        allowed = database in (None, "main")
    elif known == "foreign_keys":
        if argument.lower() in _ON:
            return None
        return "foreign keys are always enforced here; use PRAGMA defer_foreign_keys = ON to check them at the end"
    else:
        allowed = known == DEFER
    if allowed:
        return None
    return (
        f"PRAGMA {name} would change this node only; settings belong in the node's configuration, "
        "and only PRAGMAs that read, such as table_info, are allowed"
    )


def is_replicated(sql: str) -> bool:
    """Whether a text is a PRAGMA that every node is to set."""
    try:
        words = [token for token in tokens(sql) if token.text != ";"]
    except NotTokensError:
        return False
    if not words or not words[0].is_word("PRAGMA"):
        return False
    name, equals = (words[3:4], words[4:5]) if words[2:3] and words[2].text == "." else (words[1:2], words[2:3])
    return bool(equals) and equals[0].text in ("=", "(") and (name[0].name or "").lower() in REPLICATED


def apply(db: apsw.Connection, sql: str) -> None:
    """Run a PRAGMA of ``SETTINGS``: SQLite does so when it compiles it, so never from the statement cache."""
    cursor = db.cursor()
    cursor.execute(sql, can_cache=False)
    cursor.close(True)


def settle(db: apsw.Connection) -> None:
    """Take back what a request has set."""
    apply(db, f"PRAGMA {DEFER} = 0")


def numbers(db: apsw.Connection) -> tuple[object, ...]:
    """Return what tells whether a schema statement has changed anything."""
    return tuple(db.pragma(name) for name in ("schema_version", *REPLICATED))

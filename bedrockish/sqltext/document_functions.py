"""Finds calls of SQLite's functions whose result depends on whether an argument is a JSON document or a text."""

from itertools import pairwise

from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.tokenizer import NotTokensError, tokens

_FUNCTIONS = frozenset(
    f"{prefix}_{name}"
    for prefix in ("json", "jsonb")
    for name in ("array", "object", "quote", "set", "insert", "replace", "array_insert")
)


@remembered
def reads_documents(sql: str) -> bool:
    """Return whether an SQL text may call a function of ``_FUNCTIONS``; True for a text that cannot be tokenized."""
    if "json" not in sql.lower():
        return False
    try:
        found = list(tokens(sql))
    except NotTokensError:
        return True
    return any((one.name or "").lower() in _FUNCTIONS and after.text == "(" for one, after in pairwise(found))

"""The catalogue as clients see it: only users' tables, unless a statement names a system table.

A program that lists tables would treat the node's system tables like users' tables, and offer to drop or rename them.
"""

from functools import lru_cache

from bedrockish.access_sets.system_names import PREFIX
from bedrockish.sqltext.tokenizer import Cut, NotTokensError, Token, tokens, with_queries

_OWN = f"NOT GLOB '{PREFIX}*'"  # not LIKE, whose meaning a session may have changed
_COLUMNS = "SELECT {}type, name, tbl_name, rootpage, sql FROM main."
_WORD = PREFIX.rstrip("_")
# A common table expression hides the table of the same name, unless the table's name is qualified.
_FILTERED = {
    "sqlite_master": f"sqlite_master AS NOT MATERIALIZED ({_COLUMNS}sqlite_master WHERE tbl_name {_OWN})",
    "sqlite_schema": f"sqlite_schema AS NOT MATERIALIZED ({_COLUMNS}sqlite_schema WHERE tbl_name {_OWN})",
    "pragma_table_list": f"""pragma_table_list AS NOT MATERIALIZED
  (SELECT schema, name, type, ncol, wr, strict FROM main.pragma_table_list WHERE name {_OWN})""",
}
_TABLE_LIST = f"SELECT schema, name, type, ncol, wr, strict FROM pragma_table_list WHERE name {_OWN}"
_ROWID = frozenset({"rowid", "oid", "_rowid_"})


@lru_cache(500)
def with_users_tables(sql: str) -> str:
    """Return a statement that lists tables, changed so that it lists only users' tables.

    The statement is returned unchanged if it names a system table, or asks for all columns and for rowids. Only a
    single statement that reads is changed.
    """
    lower = sql.lower()
    if _WORD in lower or not ("sqlite_master" in lower or "sqlite_schema" in lower or "table_list" in lower):
        return sql
    try:
        found = tokens(sql)
    except NotTokensError:
        return sql  # SQLite itself reports the error
    if found and found[-1].text == ";":
        found = found[:-1]
    if not found or any(token.text == ";" for token in found):
        return sql
    if found[0].is_word("PRAGMA"):
        names = [(token.name or token.text).lower() for token in found[1:]]
        return _TABLE_LIST if names in (["table_list"], ["main", ".", "table_list"]) else sql
    if not found[0].is_word("SELECT", "WITH"):
        return sql
    asks_rowid = any((token.name or "").lower() in _ROWID for token in found)
    stars = any(token.text == "*" and found[place - 1].text != "(" for place, token in enumerate(found))
    return sql if asks_rowid and stars else _filtered(sql, found, "rowid, " if asks_rowid else "")


def _filtered(sql: str, found: list[Token], rowid: str) -> str:
    """Return a SELECT with the catalogues that it reads filtered, and without the qualifier in front of their names."""
    cuts: list[Cut] = []
    tables: set[str] = set()
    for place, token in enumerate(found):
        name = (token.name or "").lower() if token.kind in ("word", "quoted") else ""
        following = found[place + 1].text if place + 1 < len(found) else ""
        if name not in _FILTERED or (name.startswith("pragma_") and following == "("):
            continue
        tables.add(name)
        if place >= 2 and found[place - 1].text == "." and (found[place - 2].name or "").lower() == "main":
            cuts.append((found[place - 2].start, token.start, ""))
    if not tables:
        return sql
    texts = ", ".join(_FILTERED[table].format(rowid) for table in sorted(tables))
    return with_queries(sql, found, texts, cuts)

"""The catalogue as clients see it: only users' tables, unless a statement names a system table.

A program that lists tables would treat the node's system tables like users' tables, and offer to drop or rename them.
"""

from bedrockish.access_sets.system_names import PREFIX
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.tokenizer import Cut, NotTokensError, SqlToken, tokens, with_queries
from bedrockish_journal.storage.table_layout import ROWID_NAMES

_OWN = f"NOT GLOB '{PREFIX}*'"  # not LIKE, whose meaning a session may have changed
_WORD = PREFIX.rstrip("_")
# A common table expression hides the table of the same name, unless the table's name is qualified.
_LISTED = f"SELECT schema, name, type, ncol, wr, strict FROM {{}}pragma_table_list WHERE name {_OWN}"
_TEMPORARY = frozenset({"sqlite_temp_master", "sqlite_temp_schema"})
_FILTERED = frozenset({"sqlite_master", "sqlite_schema", "pragma_table_list", *_TEMPORARY})
_VERBS = ("SELECT", "WITH", "VALUES", "INSERT", "REPLACE", "UPDATE", "DELETE")  # of statements that may have a WITH


@remembered
def with_users_tables(sql: str) -> str:
    """Return a statement that lists tables, changed so that it lists only users' tables.

    The statement is returned unchanged if it names a system table, or asks for all columns and for rowids. Only PRAGMA
    table_list and a single statement that reads or changes rows are changed.
    """
    lower = sql.lower()
    if _WORD in lower or not any(
        part in lower for part in ("sqlite_master", "sqlite_schema", "table_list", "sqlite_t")
    ):
        return sql
    try:
        found = tokens(sql)
    except NotTokensError:
        return sql  # the text has an error, which SQLite itself reports
    if found and found[-1].text == ";":
        found = found[:-1]
    if not found or any(token.text == ";" for token in found):
        return sql
    if found[0].is_word("PRAGMA"):
        names = [(token.name or token.text).lower() for token in found[1:]]
        if names not in (["table_list"], ["main", ".", "table_list"], ["temp", ".", "table_list"]):
            return sql
        listed = _LISTED.format("")
        return listed if len(names) == 1 else f"{listed} AND schema = '{names[0]}'"
    if not found[0].is_word(*_VERBS):
        return sql
    asks_rowid = any((token.name or "").lower() in ROWID_NAMES for token in found)
    stars = any(token.text == "*" and found[place - 1].text != "(" for place, token in enumerate(found))
    return sql if asks_rowid and stars else _filtered(sql, found, "rowid, " if asks_rowid else "")


def _filtered(sql: str, found: list[SqlToken], rowid: str) -> str:
    """Return the statement with a common table, which lists only users' tables, for each catalogue that it names."""
    cuts: list[Cut] = []
    schemas: dict[str, str] = {}
    for place, token in enumerate(found):
        name = (token.name or "").lower() if token.kind in ("word", "quoted") else ""
        if name not in _FILTERED:
            continue
        follow = [one.text for one in found[place + 1 : place + 3]]
        is_called = name.startswith("pragma_") and follow[:1] == ["("]
        if is_called and follow != ["(", ")"]:
            continue  # the argument names the table
        schema = "temp" if name in _TEMPORARY else "main"
        if place >= 2 and found[place - 1].text == ".":
            qualifier = (found[place - 2].name or "").lower()
            if qualifier in ("main", "temp"):
                schema = qualifier
                cuts.append((found[place - 2].start, token.start, ""))
        if is_called:
            cuts.append((found[place + 1].start, found[place + 2].end, ""))  # a common table takes no parentheses
        if schemas.setdefault(name, schema) != schema:
            return sql  # the text names the same table in two schemas, and one common table cannot replace both
    if not schemas:
        return sql
    texts = ", ".join(_filter(name, schemas[name], rowid) for name in sorted(schemas))
    return with_queries(sql, found, texts, cuts)


def _filter(name: str, schema: str, rowid: str) -> str:
    """Return the common table expression that hides a catalogue of a schema."""
    if name == "pragma_table_list":
        return f"{name} AS NOT MATERIALIZED ({_LISTED.format('main.')})"
    columns = f"{rowid}type, name, tbl_name, rootpage, sql"
    return f"{name} AS NOT MATERIALIZED (SELECT {columns} FROM {schema}.{name} WHERE tbl_name {_OWN})"

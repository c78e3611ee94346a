"""``.dump``: tables as a script of SQL that this shell and sqlite3 both run."""

from collections.abc import Iterator, Mapping

from bedrockish.api.requests import Rows
from bedrockish.cli.output import literal
from bedrockish.cli.shell.session import Shell
from bedrockish.errors import BedrockishError, UsageError
from bedrockish.transfer.load_database import DEFER, REST_ORDER, knots, parents_first
from bedrockish_journal.model.plain_names import is_users, quote
from bedrockish_journal.storage.virtual_tables import is_virtual, made_after_rows, parse_virtual, shadow_names

BLOCK_ROWS = 500  # rows of one transaction
SCHEMA = f"SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND {is_users()} ORDER BY name"
COLUMNS = (
    "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c "
    f"WHERE m.type = 'table' AND c.hidden = 0 AND {is_users('m.name')} ORDER BY m.name, c.cid"
)
TABLES = "PRAGMA table_list"
PARENTS = (
    'SELECT m.name, f."table" FROM sqlite_schema m, pragma_foreign_key_list(m.name) f '
    f"WHERE m.type = 'table' AND {is_users('m.name')}"
)


def dump(shell: Shell, words: list[str]) -> None:
    """Print the schema and the rows of all tables, or of the named tables, as of one moment.

    Raises:
        UsageError: a named table does not exist.
        BedrockishError: the rows cannot be read.
    """
    schema, columns, parents, listed = (list(shell.query(sql)) for sql in (SCHEMA, COLUMNS, PARENTS, TABLES))
    hidden = {str(row[1]) for row in listed if row[0] == "main" and row[2] == "shadow"}
    made = {str(name): str(sql) for kind, name, _, sql in schema if kind == "table"}
    virtual = {name: parse_virtual(name, sql) for name, sql in made.items() if is_virtual(sql)}
    hidden.update(name for name in made if name.lower() in shadow_names(virtual.values()))
    schema = [one for one in schema if one[2] not in hidden]
    made = {name: sql for name, sql in made.items() if name not in hidden}
    indexes = {name: made_after_rows(name, sql) for name, sql in made.items()}
    tables = {name: sql for name, sql in made.items() if not indexes[name]}
    numbered = [name for name, one in virtual.items() if name in tables and one.names_rowid]
    columns = [(name, "rowid") for name in numbered] + columns
    by_key = {name.lower(): name for name in tables}
    missing = [word for word in words if word.lower() not in by_key]
    if missing:
        raise UsageError(f"there is no table {missing[0]!r}; .tables lists what there is")
    references: dict[str, set[str]] = {name: set() for name in tables}
    for child, parent in parents:
        if parent.lower() in by_key:
            references[child].add(by_key[parent.lower()])
    circles = knots(references)
    chosen = {by_key[word.lower()] for word in words} or set(tables)
    names = [name for name in parents_first(tables, references) if name in chosen]
    found = _rows(shell, {name: [str(c) for table, c in columns if table == name] for name in names})
    marks = {name: virtual[name].marks for name in names if name in virtual}
    for name in names:
        shell.say(tables[name] + ";")
    tied = [name for name in names if name in circles]
    for number, name in enumerate(names):
        if name not in circles:
            _print_block(shell, [name], found, marks, BLOCK_ROWS)
        elif circles[name].isdisjoint(names[number + 1 :]):
            _print_block(shell, [one for one in tied if one in circles[name]], found, marks, 0)
    for sql in () if words else [sql for made_later in indexes.values() for sql in made_later]:
        shell.say(f"{sql};")
    rest = [one for one in schema if one[0] != "table" and (not words or one[2] in chosen)]
    for _, _, _, sql in sorted(rest, key=lambda one: REST_ORDER.index(str(one[0]))):
        shell.say(f"{sql};")


def _rows(shell: Shell, tables: dict[str, list[str]]) -> dict[str, Rows]:
    """Read all rows in one transaction."""
    texts = [f"SELECT {', '.join(map(quote, columns))} FROM {quote(name)}" for name, columns in tables.items()]
    if not texts:
        return {}
    try:
        results = shell.connection.transact(texts, read=shell.read)
    except BedrockishError as error:
        raise type(error)(f"{error.message}; 'bedrockish export' writes tables of any size", **error.details) from error
    return dict(zip(tables, results, strict=True))


def _print_block(
    shell: Shell, names: list[str], found: dict[str, Rows], marks: Mapping[str, Mapping[str, str]], rows_max: int
) -> None:
    """Print rows as transactions of ``rows_max`` rows; 0: as one transaction that checks references at its end."""
    lines = [
        f"INSERT INTO {quote(name)}({','.join(map(quote, found[name].columns))}) VALUES({','.join(values)});"
        for name in names
        for values in _values(found[name], marks.get(name, {}))
    ]
    step = rows_max or max(1, len(lines))
    for start in range(0, len(lines), step):
        shell.say("\n".join(["BEGIN;", *([] if rows_max else [DEFER + ";"]), *lines[start : start + step], "COMMIT;"]))


def _values(rows: Rows, marks: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the values of each row as SQL: literals, in the functions that some columns of virtual tables need."""
    needed = [marks.get(column, "?") for column in rows.columns]
    for row in rows:
        yield [mark.replace("?", literal(value)) for mark, value in zip(needed, row, strict=True)]

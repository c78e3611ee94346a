"""``.dump``: tables as a script of SQL that this shell and sqlite3 both run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bedrockish.api.requests import Rows
from bedrockish.cli.output import literal
from bedrockish.cli.shell.session import Shell
from bedrockish.errors import BedrockishError, UsageError
from bedrockish.transfer.load_database import DEFER, REST_ORDER, parents_first, reference_cycles
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


@dataclass(frozen=True)
class _Content:
    """The objects of a database that a script has to make again."""

    tables: dict[str, str]  # table -> its definition; without indexes such as those of FTS5 that are made after rows
    later: list[str]  # the definitions of these indexes
    columns: dict[str, list[str]]  # table -> the columns whose values are printed
    marks: dict[str, Mapping[str, str]]  # virtual table -> column -> the SQL in which the value replaces "?"
    references: dict[str, set[str]]  # table -> the tables to which its foreign keys refer
    rest: list[tuple[str, str, str]]  # kind, table and definition of each index, view and trigger

    def chosen(self, words: list[str]) -> list[str]:
        """Return the named tables, or all, in the order in which their rows are printed.

        Raises:
            UsageError: a named table does not exist.
        """
        by_key = {name.lower(): name for name in self.tables}
        missing = [word for word in words if word.lower() not in by_key]
        if missing:
            raise UsageError(f"there is no table {missing[0]!r}; .tables lists what there is")
        wanted = {by_key[word.lower()] for word in words} or set(self.tables)
        return [name for name in parents_first(self.tables, self.references) if name in wanted]


def _read_content(shell: Shell) -> _Content:
    schema, columns, parents, listed = (list(shell.query(sql)) for sql in (SCHEMA, COLUMNS, PARENTS, TABLES))
    made = {str(name): str(sql) for kind, name, _, sql in schema if kind == "table"}
    virtual = {name: parse_virtual(name, sql) for name, sql in made.items() if is_virtual(sql)}
    hidden = {str(row[1]) for row in listed if row[0] == "main" and row[2] == "shadow"}
    hidden.update(name for name in made if name.lower() in shadow_names(virtual.values()))
    later = {name: made_after_rows(name, sql) for name, sql in made.items() if name not in hidden}
    tables = {name: made[name] for name, indexes in later.items() if not indexes}
    by_key = {name.lower(): name for name in tables}
    shown: dict[str, list[str]] = {name: [] for name in tables}
    for name in tables:
        if name in virtual and virtual[name].names_rowid:
            shown[name].append("rowid")
    for table, column in columns:
        if table in shown:
            shown[str(table)].append(str(column))
    references: dict[str, set[str]] = {name: set() for name in tables}
    for child, parent in parents:
        if str(parent).lower() in by_key:
            references[str(child)].add(by_key[str(parent).lower()])
    return _Content(
        tables,
        [sql for indexes in later.values() for sql in indexes],
        shown,
        {name: one.marks for name, one in virtual.items() if name in tables},
        references,
        [(kind, table, sql) for kind, _, table, sql in schema if kind != "table" and table not in hidden],
    )


def dump(shell: Shell, words: list[str]) -> None:
    """Print the schema and the rows of all tables, or of the named tables, as of one moment.

    Raises:
        UsageError: a named table does not exist.
        BedrockishError: the rows cannot be read.
    """
    content = _read_content(shell)
    names = content.chosen(words)
    found = _rows(shell, {name: content.columns[name] for name in names})
    for name in names:
        shell.say(content.tables[name] + ";")
    cycles = reference_cycles(content.references)
    for place, name in enumerate(names):
        if name not in cycles:
            _print_block(shell, [name], found, content.marks, BLOCK_ROWS)
        elif cycles[name].isdisjoint(names[place + 1 :]):  # at the last of the tables that refer to each other
            _print_block(shell, [one for one in names if one in cycles[name]], found, content.marks, 0)
    for sql in () if words else content.later:
        shell.say(f"{sql};")
    for _, table, sql in sorted(content.rest, key=lambda one: REST_ORDER.index(one[0])):
        if not words or table in names:
            shell.say(f"{sql};")


def _rows(shell: Shell, tables: dict[str, list[str]]) -> dict[str, Rows]:
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

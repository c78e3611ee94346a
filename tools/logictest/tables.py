"""Definitions for a generated file: tables of every kind, indexes, views and triggers."""

from tools.logictest.luck import COLLATIONS, STRICT_TYPES, TYPES, Luck, Table

ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")
RAISES = ("IGNORE", "ABORT, 'no'")
CLAUSES = ("", "", "", " ON CONFLICT IGNORE", " ON CONFLICT REPLACE", " ON CONFLICT ABORT")


def table(luck: Luck, name: str, parents: list[Table]) -> tuple[str, Table]:
    """Return CREATE TABLE, and the description of the table."""
    strict = luck.chance(15)
    kind = luck.one(("id", "id", "id", "autoincrement", "pair", "without", "without", "none", "text"))
    names = ["a", "b", "c", luck.one(("d", '"two words"', '"select"'))]
    parts, made = [], Table(name, list(names))
    if kind in ("id", "autoincrement"):
        parts.append("id INTEGER PRIMARY KEY" + (" AUTOINCREMENT" if kind == "autoincrement" else luck.one(CLAUSES)))
        made.columns.insert(0, "id")
        made.key = made.needs = ["id"]
    for column in names:
        fixed = "TEXT" if kind == "text" and column == "c" else ""  # an INTEGER would be an id
        parts.append(_column(luck, column, fixed, strict=strict))
    if luck.chance(35):
        form = luck.one(("STORED", "VIRTUAL")) if kind != "without" else "STORED"
        kind_of = " ANY" if strict else luck.one(("", " TEXT", " INTEGER"))
        parts.append(f"g{kind_of} AS ({luck.expr(['a', 'b', 'c'], 1)}) {form}{luck.maybe(15, ' UNIQUE')}")
        made.read.append("g")
    if kind == "pair":
        parts.append(f"PRIMARY KEY (a, b{luck.maybe(40, ' DESC')}){luck.one(CLAUSES)}")
        made.key = ["a", "b"]
    elif kind == "without":
        made.key = luck.one((["a"], ["a", "b"], ["b", "a"]))
        keyed = ", ".join(column + luck.maybe(25, " DESC") + luck.maybe(20, " COLLATE NOCASE") for column in made.key)
        parts.append(f"PRIMARY KEY ({keyed})")
    elif kind == "text":
        parts.append("PRIMARY KEY (c)")
        made.key = ["c"]
    if luck.chance(25):
        parts.append(f"UNIQUE ({', '.join(luck.some(names, 1, 2))}){luck.one(CLAUSES)}")
    if luck.chance(25):
        parts.append(f"CHECK ({luck.one(names)} IS NOT {luck.value()})")
    usable = [parent for parent in parents if parent.needs == ["id"]]
    if usable and luck.chance(60):
        parts.append(_foreign_key(luck, luck.one(usable), luck.one(names)))
    if made.needs and luck.chance(20):
        parts.append(_foreign_key(luck, made, "b"))
    made.deferred = any("INITIALLY DEFERRED" in part for part in parts)
    ends = [*(["WITHOUT ROWID"] if kind == "without" else []), *(["STRICT"] if strict else [])]
    return f"CREATE TABLE {name}({', '.join(parts)}) {', '.join(ends)}".rstrip(), made


def _column(luck: Luck, name: str, fixed: str, *, strict: bool) -> str:
    text = f"{name} {fixed or luck.one(STRICT_TYPES[-2:] + ('ANY',) * 3 if strict else TYPES)}".rstrip()
    if luck.chance(20):
        text += f" COLLATE {luck.one(COLLATIONS)}"
    if luck.chance(12):
        text += f" NOT NULL{luck.one(CLAUSES)}"
    if luck.chance(25):
        text += luck.one((" DEFAULT 1", " DEFAULT NULL", " DEFAULT 'x'", " DEFAULT (abs(-3) + 1)", " DEFAULT x'00'"))
    if luck.chance(8):
        text += f" UNIQUE{luck.one(CLAUSES)}"
    if luck.chance(8):
        text += f" CHECK (typeof({name}) <> '{luck.one(('real', 'blob'))}')"
    return text


def _foreign_key(luck: Luck, parent: Table, column: str) -> str:
    actions = f"{luck.maybe(80, f' ON DELETE {luck.one(ACTIONS)}')}{luck.maybe(70, f' ON UPDATE {luck.one(ACTIONS)}')}"
    deferred = luck.one(("", "", " DEFERRABLE INITIALLY DEFERRED", " DEFERRABLE INITIALLY IMMEDIATE"))
    return f"FOREIGN KEY ({column}) REFERENCES {parent.name}(id){actions}{deferred}"


def index(luck: Luck, name: str, of: Table) -> str:
    """Return CREATE INDEX."""
    parts = []
    for column in luck.some(of.all, 1, 3):
        expression = luck.one((f"lower({column})", f"abs({column})", f"{column} + 1", f"coalesce({column}, 0)"))
        part = expression if luck.chance(25) else column
        parts.append(part + luck.maybe(25, f" COLLATE {luck.one(COLLATIONS)}") + luck.maybe(25, " DESC"))
    where = luck.maybe(35, f" WHERE {_simple(luck, of)}")
    return f"CREATE {luck.maybe(25, 'UNIQUE ')}INDEX {name} ON {of.name}({', '.join(parts)}){where}"


def _simple(luck: Luck, of: Table) -> str:
    column = luck.one(of.all)
    return luck.one((f"{column} IS NOT NULL", f"{column} > 2", f"{column} IN (1, 2, 'a')", f"{column} = 'b'"))


def view(luck: Luck, name: str, tables: list[Table]) -> tuple[str, Table]:
    """Return CREATE VIEW, and the description of the view."""
    first, second = luck.one(tables), luck.one(tables)
    x, y = luck.one(first.all), luck.one(second.all)
    body = luck.one(
        (
            f"SELECT p.{x}, p.{luck.one(first.all)}, {luck.value()} FROM {first.name} p",
            f"SELECT p.{x}, q.{y}, 1 FROM {first.name} p JOIN {second.name} q ON p.{x} = q.{y}",
            f"SELECT {x}, count(*), max({luck.one(first.all)}) FROM {first.name} GROUP BY {x}",
            f"WITH w(x, y, z) AS (SELECT {x}, 1, 2 FROM {first.name} UNION SELECT {y}, 3, 4 FROM {second.name}) "
            "SELECT * FROM w",
            f"SELECT {x}, row_number() OVER (ORDER BY {x}, {luck.one(first.all)}), 0 FROM {first.name}",
        )
    )
    return f"CREATE VIEW {name}(x, y, z) AS {body}", Table(name, [], ["x", "y", "z"], is_view=True)


def trigger(luck: Luck, name: str, of: Table, log: str, others: list[Table]) -> str:
    """Return CREATE TRIGGER; what it writes has ids of its own, or goes to the log."""
    event = luck.one(("INSERT", "UPDATE", "DELETE"))
    row = {"INSERT": ["new"], "UPDATE": ["old", "new"], "DELETE": ["old"]}[event]
    columns = [f"{luck.one(row)}.{column}" for column in of.columns]
    given = luck.one(columns)
    if event == "UPDATE" and luck.chance(40):
        event += f" OF {luck.one(of.columns)}"
    moment = luck.one(("AFTER", "AFTER", "BEFORE"))
    when = luck.maybe(40, f" WHEN {luck.predicate(columns, 1)}")
    target = luck.one(others)
    column = luck.one(target.columns)
    body = luck.one(
        (
            *(f"INSERT INTO {log}(what, a, b) VALUES ('{name}', {given}, {luck.expr(columns, 1)})",) * 3,
            f"UPDATE {target.name} SET {column} = {luck.expr(columns, 1)} WHERE {luck.one(target.all)} = {given}",
            f"DELETE FROM {target.name} WHERE {luck.one(target.all)} = {given} AND {luck.one(target.all)} > 3",
            f"SELECT RAISE({luck.one(RAISES)}) WHERE {given} = {luck.value()}",
        )
    )
    return f"CREATE TRIGGER {name} {moment} {event} ON {of.name}{when} BEGIN {body}; END"


def instead(luck: Luck, name: str, of: Table, log: str) -> str:
    """Return CREATE TRIGGER for a view that can be written."""
    body = f"INSERT INTO {log}(what, a, b) VALUES ('{name}', new.x, {luck.expr(['new.x', 'new.y'], 1)})"
    return f"CREATE TRIGGER {name} INSTEAD OF INSERT ON {of.name} BEGIN {body}; END"

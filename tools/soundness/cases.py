"""Random schemas, rows, statements and changes for the test of the read-set analysis.

Everything is chosen through a ``Source`` from a few values and columns that a case prefers, so that its rows,
statements and changes often concern the same data.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bedrockish.sqltext.session_settings import LIKE, NONE, TRIGGERS, Settings

T = TypeVar("T")

VALUES: tuple[Any, ...] = (
    1, 2, 3, None, 0, 4, 5, 6, "a", "b", "1", 2.0, 1.5, 3.5, -1, "A", "B", "2", "3.0", "a ", "ab", "abc", "", b"", b"a",
    b"1", 10**17 + 1, 10**17, 1e17, "é", "x\0y", "X\0Y", "x\0z", -2.5, "5 ", 9007199254740993, 9007199254740992.0,
    -9223372036854775808, 9223372036854775807, 1e300,
)  # fmt: skip
THEMES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("", ("a", "b")),
    ("text collate nocase", ("a", "A", "b", "B")),
    ("text collate rtrim", ("a", "a ", "ab")),
    ("text", (2, "2", 2.0)),
    ("int", (2, "2", "2.0")),
    ("", (2, "2", b"2")),
    ("real", (10**17, 10**17 + 1, 1e17)),
    ("text collate nocase", ("x\0y", "X\0Z", "x")),
)
"""A type for the columns of interest, and values that are equal under it and not under others, or the reverse."""
TYPES = ("", "int", "text", "text collate nocase", "text collate rtrim", "real", "numeric", "blob", "integer")
STRICT_TYPES = ("any", "int", "text", "real", "blob", "text collate nocase", "any collate rtrim")
COLUMNS = ("c0", "c1", "c2")


class Source:
    """The random choices of one case, each made by drawing a small whole number."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        # ``type``: the most frequent type of these columns.
        self.type, alike = self.choice(THEMES)
        null = (None,) if self.chance(25) else ()
        # The values of this case: few, so that rows, parameters and changes often have the same ones.
        self.pool: tuple[Any, ...] = (1, 2, *alike, *null, *(self.choice(VALUES) for _ in range(self.below(4))))
        # The columns that this case prefers in indexes and conditions.
        self.hot: tuple[str, ...] = (self.choice((*COLUMNS, "id")), self.choice((*COLUMNS, "id")))

    def below(self, count: int) -> int:
        return self._draw(count)

    def choice(self, options: Sequence[T]) -> T:
        return options[self._draw(len(options))]

    def chance(self, percent: int) -> bool:
        return self._draw(100) >= 100 - percent

    def value(self) -> Any:
        return self.choice(self.pool)

    def column(self) -> str:
        return self.choice(self.hot) if self.chance(75) else self.choice((*COLUMNS, "id"))


@dataclass(frozen=True)
class Case:
    """A database, and the statements and changes to try on it."""

    ddl: list[str]
    rows: list[tuple[str, tuple[Any, ...]]]
    queries: list[tuple[str, tuple[Any, ...]]]
    changes: list[tuple[str, tuple[Any, ...]]]
    temporary: list[str] = field(default_factory=list)  # statements that make TEMP objects once the rows are there
    settings: Settings = NONE  # the settings of the session that runs the queries


def make_case(source: Source) -> Case:
    """Draw a whole case."""
    ddl = _schema(source)
    rows = [_insert_t(source, "insert or ignore") for _ in range(2 + source.below(10))]
    rows += [_insert_u(source, number) for number in range(5 - source.below(5))]
    rows += [("insert or ignore into log(k, n) values (?, 0)", (source.value(),)) for _ in range(source.below(4))]
    queries = [_query(source, ddl) for _ in range(4 - source.below(4))]
    changes = [_change(source) for _ in range(8 - source.below(8))]
    temporary: list[str] = []
    if source.chance(20):
        table = source.choice(("t", "t", "u", "log"))
        queries = [(_with_temporary(source, sql, table), params) for sql, params in queries]
        temporary = _temporary(source, table)
    settings = source.choice(_SETTINGS) if source.chance(40) else NONE
    if TRIGGERS in settings:
        ddl += [_own_trigger(source, number) for number in range(1 + source.below(2))]
    return Case(ddl, rows, queries, changes, temporary, settings)


_SETTINGS = (frozenset({LIKE}), frozenset({TRIGGERS}), frozenset({TRIGGERS}), frozenset({LIKE, TRIGGERS}))


def _own_trigger(source: Source, number: int) -> str:
    """Return a trigger that fires itself where recursive triggers are on, or a trigger that a REPLACE fires."""
    value = source.choice(("c0", "c1", "id"))
    event, body = source.choice(
        (
            ("delete", f"delete from t where c1 = old.{value}"),
            ("delete", f"update log set n = n + 1 where k = old.{value}"),
            ("delete", f"insert or ignore into log(k, n) select z, 1 from u where t_id = old.{value}"),
            ("update", f"update t set c2 = 'b' where c0 = new.{value} and c2 is not 'b'"),
            ("update", f"delete from t where c0 = (select z from u where t_id = new.{value})"),
            ("insert", f"replace into t(c0, c1, c2) select t_id, z, 1 from u where id = new.c0 and id < {number + 3}"),
        )
    )
    return f"create trigger own{number} {source.choice(('after', 'before'))} {event} on t begin {body}; end"


def _temporary(source: Source, table: str) -> list[str]:
    """Return the statements that make a TEMP table with the rows of a table, perhaps with an index and triggers."""
    column = {"t": source.choice(("id", *COLUMNS)), "u": "t_id", "log": "k"}[table]
    found = [f"create temp table own as select * from {table}"]
    found += [f"create index temp.own_column on own({column})"] if source.chance(50) else []
    if source.chance(40):
        found.append(
            "create temp trigger own_trigger after insert on log when is_statement() "
            f"begin insert into own({column}) select new.k from u where t_id = new.k; end"
        )
    if source.chance(40):
        found.append(
            "create temp trigger other_trigger after insert on own begin "
            f"insert or ignore into log(k, n) select u.z, 1 from u where u.t_id = new.{column}; end"
        )
    return found


def _with_temporary(source: Source, sql: str, table: str) -> str:
    """Return a statement with the TEMP table at one of the places where it names the table."""
    places = [found.span() for found in re.finditer(rf"\b{table}\b(?!\()", sql)]
    if not places:
        return sql
    start, end = source.choice(places)
    return f"{sql[:start]}own as {table}{sql[end:]}" if source.chance(60) else f"{sql[:start]}own{sql[end:]}"


def _schema(source: Source) -> list[str]:
    strict = source.chance(12)
    types = STRICT_TYPES if strict else TYPES
    columns = ", ".join(
        f"{name} {source.type if name in source.hot and not strict and source.chance(70) else source.choice(types)}"
        for name in COLUMNS
    )
    suffix = " strict" if strict else ""
    kind = source.choice(("rowid", "rowid", "text", "none", "without", "composite"))
    if kind == "rowid":
        keyed = f"id integer primary key, {columns}"
    elif kind == "text":
        keyed = f"id {source.choice(types[2:])} primary key, {columns}"
    elif kind == "none":
        keyed = f"{columns}, id {source.choice(types)} unique"
    elif kind == "without":
        order = source.choice(("", " desc", " collate nocase"))
        keyed = f"id {source.choice(types)} not null, {columns}, primary key(id{order})"
    else:
        keyed = f"{columns}, id {source.choice(types)}, primary key(id, c1 desc)"
    if kind in ("without", "composite"):
        suffix = " without rowid" + (", strict" if strict else "")
    generated = ""
    if source.chance(20):
        form = source.choice(("stored", "virtual"))
        generated = f", g {'any' if strict else ''} as ({source.choice(('c0', 'c1 || c0', 'coalesce(c2, 0)'))}) {form}"
    key = ", primary key("
    keyed = keyed.replace(key, f"{generated}{key}") if key in keyed else keyed + generated
    ddl = [f"create table t({keyed}){suffix}"]
    reference = ""
    if kind != "composite" and source.chance(45):
        action = source.choice(
            ("", " on delete cascade", " on delete set null on update cascade", " on delete restrict")
        )
        reference = f" references t(id){action}{source.choice(('', '', ' deferrable initially deferred'))}"
    ddl.append(f"create table u(id integer primary key, t_id {source.choice(('', 'int', 'text'))}{reference}, z text)")
    ddl.append(source.choice(("create table log(k, n)", "create table log(k primary key, n) without rowid")))
    if "without" not in ddl[-1] and source.chance(60):
        ddl.append("create index lk on log(k)")
    ddl += ["create index ut on u(t_id)"] if source.chance(50) else []
    ddl += ["create index uz on u(z)"] if source.chance(50) else []
    ddl += [_index(source, number, bool(generated)) for number in range(4 - source.below(4))]
    ddl += [_trigger(source, number) for number in range(2 + source.below(3) if source.chance(40) else 0)]
    return [*ddl, *_VIEWS, *(source.choice(_INSTEAD[event]).format(event) for event in _INSTEAD)]


_VIEWS = (
    "create view v as select t.id as a, t.c0 as b, u.z as z, u.id as uid from t left join u on u.t_id = t.id",
    "create view vv as select v.a, v.b, log.n from v join log on log.k = v.z",
)
_INSTEAD = {
    "insert": (
        "create trigger vi instead of {} on v begin "
        "insert or ignore into log(k, n) select z, 1 from u where t_id = new.b; end",
        "create trigger vi instead of {} on v begin update u set z = new.a where id = new.b; end",
    ),
    "update": (
        "create trigger vu instead of {} on v begin update u set z = new.z where id = old.uid; end",
        "create trigger vu instead of {} on v begin update log set n = 7 where k = old.b; end",
    ),
    "delete": (
        "create trigger vd instead of {} on v begin delete from u where id = old.uid; end",
        "create trigger vd instead of {} on v begin delete from log where k in (select n from vv where a = old.a); end",
    ),
}


def _index(source: Source, number: int, generated: bool) -> str:
    unique = "unique " if source.chance(30) else ""
    parts = []
    for _ in range(1 + source.below(3)):
        name = "g" if generated and source.chance(20) else source.column()
        order = source.choice(("", "", "", " desc", " collate nocase", " collate rtrim", " collate backwards"))
        parts.append(name + order)
    if source.chance(25):
        order = source.choice(("", "", " desc", " collate nocase", " collate backwards"))
        parts[source.below(len(parts))] = source.choice(_EXPRESSIONS) + order
    where = source.choice((" where c0 > 2", " where c1 is not null")) if source.chance(25) else ""
    return f"create {unique}index i{number} on t({', '.join(parts)}){where}"


_EXPRESSIONS = ("abs(c0)", "lower(c1)", "c0 || 'x'", "coalesce(c2, 0)", "cast(c0 as text)", "c0 + 1", "-c2")


def _trigger(source: Source, number: int) -> str:
    table = source.choice(("t", "u"))
    event = source.choice(("insert", "update", "delete"))
    row = "old" if event == "delete" else "new"
    value = f"{row}.{'c0' if table == 't' else 'z'}"
    # An id that SQLite assigns may differ, so no result may depend on it.
    own = value if event == "insert" else f"{row}.id"
    body = source.choice(
        (
            f"insert into log(k, n) values ({value}, 1) on conflict do nothing",
            f"update log set n = n + 1 where k = {value}",
            f"insert or ignore into log(k, n) select z, (select count(*) from u) from u where t_id = {value}",
            f"update u set z = {value} where t_id = {value}",
            f"select raise(ignore) where exists (select 1 from log where k = {value})",
            f"update log set n = n + (select count(*) from t where c0 = {value}) where k in "
            f"(select z from u where t_id = {own})",
            f"delete from log where k = (select c1 from t where id = {value}); update u set z = 'c' where id = {own}",
            f"insert or replace into log(k, n) select c1, {own} from t where c0 = {value} order by id limit 1",
            f"update log set n = n + 1 where k = (select c0 from t where id = {own})",
            f"update log set n = n + 1 where k = (select z from u where id = {own})",
            "update log set n = n + 1 where k = (select id from u where z <> 'a' order by id limit 1)",
            f"update log set n = n + 1 where k = (select c1 from t where id = {own} and c0 is not null)",
            f"delete from log where k = (select z from u where id = {own})",
            f"update log set n = n + 1 where k = +{row}.id",
            f"update log set n = n + 1 where k in (select z from u where t_id = +{row}.id)",
            f"update log set n = 9 where k = {row}.{'c1' if table == 't' else 't_id'}",
        )
    )
    return f"create trigger r{number} {source.choice(('after', 'before'))} {event} on {table} begin {body}; end"


# ---------------------------------------------------------------------- statements


class _Writer:
    """Writes expressions, collecting the parameters in order."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.params: list[Any] = []

    def value(self) -> str:
        value = self.source.value()
        is_odd = value is None or isinstance(value, bytes) or (isinstance(value, str) and "\0" in value)
        if self.source.chance(70) or is_odd:
            self.params.append(value)
            return "?"
        return repr(value)

    def predicate(self, prefix: str = "") -> str:
        source = self.source
        column = prefix + source.column()
        form = source.below(16) - 2
        if form < 4:
            return f"{column} {source.choice(('=', '=', 'is', '<>'))} {self.value()}"
        if form < 6:
            return f"{column} {source.choice(('<', '<=', '>', '>='))} {self.value()}"
        if form < 7:
            return f"{column} between {self.value()} and {self.value()}"
        if form < 9:
            return f"{column} in ({self.value()}, {self.value()}, {self.value()})"
        if form < 10:
            return f"{column} {source.choice(('like', 'glob'))} '{source.choice(('a%', 'A%', '1%', 'a*', 'A*'))}'"
        if form < 11:
            return f"{column} is {source.choice(('not null', 'null'))}"
        if form < 12:
            collation = source.choice(("nocase", "binary", "rtrim"))
            return f"{column} {source.choice(('=', '>'))} {self.value()} collate {collation}"
        if form < 13:
            return f"({column}, {prefix}c1) {source.choice(('=', '>', '<='))} ({self.value()}, {self.value()})"
        if source.chance(50):
            return f"{source.choice(('abs', 'lower'))}({column}) = {self.value()}"
        form_of = source.choice(_EXPRESSIONS)
        for name in COLUMNS:
            form_of = form_of.replace(name, prefix + name)
        return f"{form_of} {source.choice(('=', '=', 'is', '>', '<='))} {self.value()}"

    def where(self, prefix: str = "") -> str:
        text = self.predicate(prefix)
        for _ in range(self.source.below(3)):
            text = f"{text} {self.source.choice(('and', 'and', 'or'))} {self.predicate(prefix)}"
        return text


_ORDERS = (
    "", "", " order by c0", " order by id desc", " order by c1 desc, c2", " order by c0 limit 2", " limit 1",
    " order by c0 collate nocase limit 1 offset 1",
)  # fmt: skip

# W stands for a condition on t, X for one on t when joined, O for an order, S for an assignment, V for a value,
# N for a small number.
_READS = (
    "select * from t where W O",
    "select * from t where W O",
    "select * from t where W O",
    "select c0, c1 from t where W",
    "select count(*) from t where W",
    "select max(id), min(c0) from t where W",
    "select max(id) from t",
    "select min(c0) from t",
    "select count(*) from t",
    "select c0, count(*), group_concat(c1) from t where W group by c0",
    "select distinct c1 from t where W",
    "select u.id, t.* from u join t on t.id = u.t_id where X",
    "select * from t left join u on u.t_id = t.id where X",
    "select * from u left join t on u.t_id = t.id and X",
    "select a.id, b.c0 from t a join t b on a.c0 = b.c1 order by 1, 2",
    "select * from t where exists (select 1 from u where u.t_id = t.id) and W",
    "select * from u where t_id in (select id from t where W)",
    "select * from u where t_id not in (select id from t where id is not null)",
    "select * from t where id = (select t_id from u where id = 2)",
    "select * from (select c0, id from t where W limit 3) union select z, id from u where z = 'a'",
    "select id from t where W intersect select t_id from u",
    "with recursive w(x) as (select 1 union select id from t, w where c0 = w.x limit 9) select * from w",
    "with q as materialized (select * from t where W) select * from q a, q b",
    "select id, row_number() over (order by c0, id), sum(c1) over (partition by c2 order by id) from t where W",
    "select * from t, json_each('[1, 2]') j where t.id = j.value",
    "select (select z from u where u.id = t.id), c0 from t where W",
    "select u.id, t.c0, n from u join t on t.id = u.t_id join log on log.k = t.c0 where X",
    "select t.*, u.z, n from t left join u on u.t_id = t.id left join log on log.k = u.z where X",
    "select t.id, z, n from t left join u on u.t_id = t.id left join log on log.k is u.z where X",
    "select * from t where c0 in (select z from u where t_id = V)",
    "select * from t where id in (select t_id from u where z = 'a' union select V) order by id",
    "select * from t where id = (select t_id from u where id = V limit 1) and W",
    "select (select n from log where k = t.c0), id from t where W",
    "select * from t a join t b on b.c0 = a.c1 and b.c2 > a.c0 where a.id = V",
    "select a.id, b.id from t a join t b on b.c0 > a.c0 where a.id = V order by 1, 2",
    "select * from t join u on u.t_id between t.c0 and t.c1 where t.id = V",
    "select t.id, u.id from t join u on u.t_id > t.c0 and u.t_id < t.c1 order by 1, 2",
    "select u.id, t.id from u join t on t.c0 between u.id and 4 order by 1, 2",
    "select * from t a join t b on (b.id = a.c0 or b.c1 = a.c0) where a.id = V",
    "select * from u join t using (id) where u.z = 'b'",
    "with recursive w(x) as (select V union select t.c1 from t, w where t.c0 = w.x) select * from w order by 1",
    "with recursive w(x, n) as (select V, 0 union all select t.c1, n + 1 from t join w on t.id = w.x where n < 4) "
    "select * from w order by n, 1",
    "select exists (select 1 from t where c0 = V and c1 = V)",
    "select id from t where c0 = V order by id limit 1",
    "select id, c1 from t where c0 = V and c2 > V order by id desc limit 2",
    "select id, c1 from t where c0 = V and c1 <> V order by id limit 1 offset 1",
    "select id, c1 from t where c0 >= V and c2 is V order by c0 desc, id desc limit 2",
    "select * from t where c1 is not null and c0 < V order by c0 limit 1",
    "select * from t where c0 > 2 order by id limit 1",
    "select id from t where c2 >= V order by id limit N",
    "select id from t where c0 = V order by c1, id limit N offset N",
    "select max(c0) from t where c0 < V",
    "select min(id) from u where z = 'b'",
    "select max(c1) from t where c0 = V and c2 = V",
    "select * from t where c0 >= V order by c0, id limit 2",
    "select max(c1) from t where c0 = V",
    "select min(id), max(id) from t where c0 > V",
    "select min(c1) from t",
    "select t.c0, count(u.id), sum(u.id) from t left join u on u.t_id = t.id where X group by t.id",
    "select * from t where exists (select 1 from u join log on log.k = u.z where u.t_id = t.c0) and W",
    "select * from (select distinct z from u where t_id = V) q join log on log.k = q.z",
    "select * from t where (c0, c1) in (select t_id, z from u)",
    "select t.id, u.z from t join u on u.id = t.c0 where t.c1 = V order by t.id limit N",
    "select t.id, u.z from t join u on u.id = t.c0 order by t.id desc limit N",
    "select t.id, u.z from t left join u on u.id = t.c0 where t.c1 >= V order by t.id limit N",
    "select t.id, u.z, v.z from t left join u on u.id = t.c0 left join u v on v.id = u.t_id order by t.id limit N",
    "select t.id, u.z, v.z from t join u on u.id = t.c0 join u v on v.id = t.c1 where t.c2 = V order by t.id limit N",
    "select a.id, b.id from u a left join u b on b.id = a.t_id and b.z = 'a' where a.z <> 'c' order by a.id limit N",
    "select q.id, u.z from (select id, c0 from t where c1 = V order by id limit 2) q left join u on u.id = q.c0",
    "select q.id, u.z from (select id, c0 from t where c2 > V order by id limit N) q join u on u.t_id = q.c0",
    "select id from t where g = V",
    "select id, g from t where g > V order by g limit N",
    "select u.id, t.id from u join t on lower(t.c1) = u.z",
    "select u.id, t.id from u join t on t.g = u.t_id where X",
    "select id from t where lower(c1) = V",
    "select id from t where c0 || 'x' in (V, V)",
    "select * from v where a = V",
    "select * from v where b = V or uid = V order by uid",
    "select * from vv where a = V",
    "select * from v where z in (select k from log where n = V) order by a, uid limit N",
    "select id from t where W except select t_id from u where z = 'a'",
    "select t_id from u where id = V union all select c0 from t where id = V",
    "select t.id, u.id, u.z from t right join u on u.t_id = t.id where u.z = 'a'",
    "select t.id, u.id, u.z from t full join u on u.t_id = t.c0",
    "select id from t where c0 = V or c1 = V",
    "select id, c2 from t where c0 = V or c2 > V or id = V",
    "select id from t where (c0 = V or c1 = V) and c2 is not null limit N",
    "select t.id, u.id from u join t on (t.c0 = u.t_id or t.c1 = u.id) where u.z = 'a'",
    "select * from t where exists (select 1 from u where (u.t_id = t.id or u.z = t.c0)) and id = V",
    "select * from t where id = (select max(t_id) from u where z = 'a')",
    "select * from t where c0 in (select min(t_id) from u group by z)",
    "select n from log where k = (select min(c0) from t where W)",
    "select n from log where k = (select max(c1) from t where c0 = V)",
    "select (select n from log where k = (select max(z) from u where t_id = t.id)) from t where W",
    "select t.id, u.z from t join u on u.id = t.c0 where u.z = 'a' order by t.id limit N",
    "select t.id, u.z from t join u on u.id = t.c0 where u.z <> 'b' and t.c1 = V order by t.id desc limit N",
    "select t.id, u.z from t join u on u.id = t.c0 where u.t_id > V and t.c2 is not V order by t.id limit N offset N",
    "select t.id, u.z from t join u on u.id = t.c0 where u.t_id is V order by t.id limit N",
    "select t.id, u.z from t left join u on u.id = t.c0 where u.t_id is null order by t.id limit N",
    "select a.id, c.id from u a join u b on b.id = a.t_id join u c on c.id = b.t_id where c.z = 'a' and b.z <> 'c' "
    "order by a.id limit N",
    "select a.id, c.id from u a join u b on b.id = a.t_id left join u c on c.id = b.t_id where b.z = 'a' "
    "order by a.id desc limit N",
    "select id, lag(c0) over w, (select z from u where u.id = t.c0) from t where W window w as (order by c1, id)",
    "select min(c0) from t where c1 = V",
    "select min(c1), id from t",
    "select u.id, (select min(c0) from t where t.c1 = u.t_id) from u where z = 'a'",
    "select typeof(c0), c0 from t where id = V",
    "select c0, typeof(c1) from t where id in (V, V)",
    "select 1 from t where id = V",
    "select typeof(c2) from t where id = V and c0 is not V",
    "select g from t where id = V",
    "select z from u where id = N",
    "select typeof(t_id) from u where id in (N, N)",
    "select t.c1, n from t join log on log.k = t.c0 where t.id = V",
    "select u.id, typeof(t.c1) from u join t on t.id = u.t_id where u.z = 'a'",
    "select u.id, t.c0 from u left join t on t.id = u.t_id and t.c1 is not V where u.t_id = V",
    "select (select typeof(c2) from t where t.id = u.t_id), z from u where id = N",
    "select exists (select 1 from t where id = V), (select count(*) from log where k = V)",
    "with q as (select c0 from t where id = V) select n from log join q on k = q.c0",
)
_WRITES = (
    "update t set S where W",
    "update t set S where W returning *",
    "update or ignore t set S where W",
    "update or replace t set S where W",
    "delete from t where W",
    "delete from t where W returning c0",
    "delete from t",
    "update t set c0 = u.z from u where u.t_id = t.id",
    "insert into log(k, n) select z, 1 from u where t_id in (select id from t where W)",
    "insert or ignore into log(k, n) select c0, id from t where W",
    "insert into u(t_id, z) select id, c0 from t where W",
    "delete from u where id = 1",
    "update u set t_id = 2 where id in (1, 2)",
    "update u set z = 'a' where t_id = 1",
    "insert into u values (7, V, 'b')",
    "insert into u values (8, V, 'a')",
    "insert into u(t_id, z) values (V, 'a')",
    "insert into u(t_id, z) values (V, 'a'), (V, 'b')",
    "insert or ignore into u(t_id, z) select c0, 'b' from t where W",
    "insert or replace into t(c0, c1, c2) values (V, V, V)",
    "update u set t_id = V where id = 2",
    "insert or ignore into u values (2, 1, 'c')",
    "delete from t where id in (select t_id from u where id = V)",
    "update t set c0 = V where id = 1",
    "update t set c0 = V, c1 = V where id in (1, 2)",
    "update u set z = 'a' where t_id = V",
    "update t set c1 = V, c0 = case when id > 1 then (select b.id from t b where b.c1 = V order by b.id limit 1) "
    "else c0 end",
    "delete from log where k in (select z from u join t on t.id = u.t_id where X)",
    "update t set c0 = u.z, c1 = n from u join log on log.k = u.z where u.t_id = t.id and u.id = V",
    "update t set c2 = (select z from u where u.t_id = t.id limit 1) where W",
    "update t set c1 = V where id = (select id from t where c0 = V order by id limit 1) returning id",
    "delete from t where id in (select id from t where c0 = V order by id desc limit 2) returning id",
    "update t set c0 = V where c1 = (select min(c1) from t where c0 = V)",
    "update t set c0 = (select max(c0) from t b where b.c1 = t.c0) where W",
    "insert into log(k, n) select c0, 1 from t where id in (select t_id from u where z = 'a') "
    "on conflict do update set n = n + (select count(*) from u where t_id = log.k)",
    "insert or replace into log(k, n) select u.z, t.c0 from t join u on u.t_id = t.id where X",
    "insert into log(k, n) values (V, 1) returning (select count(*) from u where t_id = log.k)",
    "update u set z = 'b' where id = V returning (select c0 from t where t.id = u.t_id)",
    "update v set z = 'c' where a = V",
    "update v set z = b where uid in (select id from u where t_id = V)",
    "delete from v where b = V",
    "insert into v(a, b) values (V, V)",
    "insert into v(a, b) select id, t_id from u where z = 'a'",
    "update t set c0 = V where id = (select min(id) from t where c1 = V) returning id",
    "update t set c2 = V where id = (select max(t_id) from u where z = 'b')",
    "update u set z = (select max(c0) from t where t.id = u.t_id) where id in (select min(id) from u group by z)",
    "delete from log where k = (select max(z) from u where t_id = V)",
    "update u set z = 'c' where t_id = V or z = 'a'",
    "delete from t where c0 = V or c1 = V",
    "insert into log(k, n) select c0, 1 from t where id = V",
    "update log set n = (select typeof(c1) from t where id = V) where k = V",
    "update u set z = (select typeof(c0) from t where t.id = u.t_id) where id = N returning z",
    "insert or ignore into log(k, n) values (V, (select z from u where id = N))",
)
_SETS = ("c0 = 1", "c1 = c0", "c0 = c2", "id = 3", "c2 = coalesce(c2, 0)")
_CONFLICTS = ("", "or ignore ", "or replace ")
_UPSERTS = (
    " on conflict do update set c2 = excluded.c2",
    " on conflict do nothing",
    " on conflict(id) do update set c0 = t.c0",
)


def _query(source: Source, ddl: list[str]) -> tuple[str, tuple[Any, ...]]:
    form = source.below(10)
    if form < 2:
        sql, params = _insert_t(source, "insert " + source.choice(_CONFLICTS))
        sql += source.choice(("", " returning c0"))
        return sql, params
    if form < 3 and "composite" not in ddl[0]:
        sql, params = _insert_t(source, "insert")
        return sql + source.choice(_UPSERTS), params
    template = source.choice(_READS if form < 7 else _WRITES)
    writer = _Writer(source)
    sql = ""
    for part in _split(template):
        if part in ("W", "X"):
            sql += writer.where("t." if part == "X" else "")
        elif part == "O":
            sql += source.choice(_ORDERS)
        elif part == "V":
            sql += writer.value()
        elif part == "N":
            sql += "?"
            writer.params.append(1 + source.below(2))
        elif part == "S":
            sql += source.choice(_SETS)
        else:
            sql += part
    return sql, tuple(writer.params)


def _split(template: str) -> list[str]:
    parts = [""]
    for word in template.split(" "):
        if word.rstrip("),") in ("W", "X", "O", "S", "V", "N"):
            parts += [word[0], word[1:] + " "]
        else:
            parts[-1] += word + " "
    return parts


def _insert_t(source: Source, verb: str) -> tuple[str, tuple[Any, ...]]:
    return f"{verb} into t(id, c0, c1, c2) values (?, ?, ?, ?)", tuple(source.value() for _ in range(4))


def _insert_u(source: Source, number: int) -> tuple[str, tuple[Any, ...]]:
    return "insert or ignore into u values (?, ?, ?)", (number, source.value(), source.choice(("a", "b", "c")))


def _column_change(source: Source) -> tuple[str, tuple[Any, ...]]:
    """Change one column of one row, perhaps to a value that is equal and has another type."""
    if source.chance(25):
        return "update u set z = ? where id = ?", (source.choice(("a", "b", "c")), source.below(7))
    column = source.choice(COLUMNS)
    made = source.choice(("?", f"coalesce({column} + 0.0, ?)", f"coalesce(cast({column} as int), ?)"))
    return f"update or ignore t set {column} = {made} where id = ?", (source.value(), source.value())


def _change(source: Source) -> tuple[str, tuple[Any, ...]]:
    form = source.below(15)
    if form >= 12:
        return _column_change(source)
    if form < 3:
        return _insert_t(source, f"insert or {source.choice(('ignore', 'replace'))}")
    if form < 5:
        column = source.column()
        asked = source.choice(("id", "id", *COLUMNS))
        return f"update or {source.choice(('ignore', 'replace'))} t set {column} = ? where {asked} = ?", (
            source.value(),
            source.value(),
        )
    if form < 6:
        return f"update or ignore t set {source.choice(COLUMNS)} = ? where c0 = ?", (source.value(), source.value())
    if form < 7:
        return "delete from t where id = ?", (source.value(),)
    if form < 8:
        return "delete from t where c1 = ?", (source.value(),)
    if form < 9:
        return "insert or replace into u values (?, ?, ?)", (
            source.below(7),
            source.value(),
            source.choice(("a", "b", "c")),
        )
    if form < 10:
        return "update u set t_id = ? where id = ?", (source.value(), source.below(7))
    if form < 11:
        return "delete from u where id = ?", (source.below(7),)
    return source.choice(("insert or ignore into log(k, n) values (?, 5)", "delete from log where k = ?")), (
        source.value(),
    )

"""Random schemas and statements that try every kind of constraint, index, conflict clause and trigger."""

from dataclasses import dataclass
from typing import Any

from bedrockish.api.requests import SERIALIZABLE, SNAPSHOT
from bedrockish.sqltext.session_settings import NONE, Settings
from tools.soundness import cases as soundness_cases
from tools.soundness.cases import Source

Sql = tuple[str, tuple[Any, ...]]

RUN, DECIDE, DELIVER, OPEN, STATEMENT, COMMIT = "run", "decide", "deliver", "open", "statement", "commit"
_KINDS = (RUN,) * 7 + (DECIDE,) * 5 + (DELIVER,) * 5 + (OPEN, COMMIT) + (STATEMENT,) * 3

_CLAUSES = ("", "", "", " on conflict replace", " on conflict ignore", " on conflict abort", " on conflict fail")
_VERBS = ("insert", "insert", "insert or replace", "insert or ignore", "insert or abort", "insert or fail", "replace")
_UPDATES = ("update", "update", "update or replace", "update or ignore", "update or fail")
_EXPRESSIONS = (
    "lower(e)", "plain(e)", "abs(k)", "k % 2, lower(e)", "e collate nocase", "e collate backwards", "e collate rtrim",
    "k", "e", "g", "g collate nocase, k", "coalesce(k, e)", "k || '/' || e", "CASE WHEN k > 1 THEN e END desc",
    "n", "k, n", "id + 1", "json_extract(e, '$.a')", "cast(k as text)", "cast(k as real)", "typeof(k), e",
)  # fmt: skip
_WHERES = ("", "", "", " where k is not null", " where n > 1", " where json_valid(e)", " where e like 'a%'")
_TEXTS = ("a", "A", "a ", "b", "ab", "Ab", None, '{"a": 1}', '{"a": "x"}', "1", 1)


@dataclass(frozen=True)
class Step:
    """The next step of one node; ``choice`` modulo the number of candidates selects one of them."""

    kind: str
    node: int
    choice: int
    isolation: str
    statements: list[Sql]


@dataclass(frozen=True)
class Case:
    """A schema, its first rows and the steps; ``luck`` draws the order in which all commits are applied at the end.

    Half of the steps run with ``settings``, the settings of a session.
    """

    ddl: list[str]
    rows: list[Sql]
    steps: list[Step]
    luck: int
    settings: Settings = NONE


def make_case(source: Source) -> Case:
    """Draw a whole case."""
    base = soundness_cases.make_case(source)
    ddl = [*base.ddl, *_schema(source)]
    rows = [*base.rows[: source.below(8)], *(_insert_x(source, "insert or ignore") for _ in range(source.below(5)))]
    steps = [_step(source, ddl) for _ in range(20 + source.below(60))]
    return Case(ddl, rows, steps, source.below(1000), base.settings)


def _step(source: Source, ddl: list[str]) -> Step:
    kind = source.choice(_KINDS)
    count = 1 + source.below(2) if kind == RUN else int(kind == STATEMENT)
    isolation = source.choice((SNAPSHOT, SNAPSHOT, SERIALIZABLE))
    return Step(kind, source.below(3), source.below(12), isolation, [_statement(source, ddl) for _ in range(count)])


def _statement(source: Source, ddl: list[str]) -> Sql:
    if source.chance(75):
        return _on_x(source)
    return soundness_cases._change(source) if source.chance(50) else soundness_cases._query(source, ddl)


def _schema(source: Source) -> list[str]:
    choice, chance = source.choice, source.chance
    unique = f" unique{choice(_CLAUSES)}" if chance(30) else ""
    check = f" check ({choice(('k is not 3', 'typeof(k) <> 7', 'coalesce(k, 0) < 9', 'length(e) < 9', 'e <> n'))})"
    null = f" not null{choice(_CLAUSES)} default 5" if chance(15) else ""
    k = f"k {choice(('', 'int', 'text', 'real', 'numeric'))}{null}{unique}{check if chance(40) else ''}"
    e = f"e {choice(('', 'text', 'text collate nocase', 'text collate rtrim', 'text collate backwards'))}"
    action = choice(("", " on delete cascade", " on delete set null", " on delete set default", " on update cascade"))
    n = f"n int{f' references p(id){action}' if chance(40) else ''}{choice(('', ' deferrable initially deferred'))}"
    n = n if "references" in n else "n int"
    kind = choice(("id integer primary key", "id integer primary key", "id integer primary key autoincrement", "id int",
                   "id text primary key", "id collate nocase primary key"))  # fmt: skip
    rowid = kind.startswith("id integer") or "primary" not in kind or chance(60)
    form = choice(("virtual", "stored")) if rowid else "stored"
    of = choice(("lower(e)", "k + 1", "plain(k)", "coalesce(n, e)", "k"))
    g = f"g {choice(('', 'text', 'int'))} as ({of}) {form}"
    g += choice(("", "", " unique", " check (g is not 4)"))
    last = f", unique(e, n){choice(_CLAUSES)}" if chance(20) else ""
    ddl = [
        f"create table p(id integer primary key, code {choice(('', 'text', 'text collate nocase'))} unique)",
        f"create table x({kind}, {k}, {e}, {n}, {g}{last}){'' if rowid else ' without rowid'}",
        "create table note(id integer primary key, what unique, n default 0)",
    ]
    if chance(40):
        ddl.append(f"create table y(id integer primary key, x references x(id){action}, code text references p(code))")
    if chance(50):
        ddl.append(f"create index x_many on x({choice(('n', 'k', 'e, n', 'n, k'))})")
    for number in range(source.below(4)):
        unique = "unique " if chance(70) else ""
        ddl.append(f"create {unique}index x{number} on x({choice(_EXPRESSIONS)}){choice(_WHERES)}")
    return [*ddl, *(_trigger(source, number) for number in range(source.below(3)))]


def _trigger(source: Source, number: int) -> str:
    event = source.choice(("insert", "update", "update of k", "delete"))
    row = "old" if event == "delete" else "new"
    body = source.choice(
        (
            f"insert or ignore into note(what) values ({row}.k)",
            f"insert or replace into note(what, n) values ({row}.e, random())",
            f"insert into note(what) values ({row}.k) on conflict(what) do update set n = n + 1",
            f"update x set n = n + 1 where id = {row}.id and n < 3",
            f"update or ignore x set e = 'b' where k = {row}.k and e = 'a'",
            f"delete from x where e = {row}.e and id <> {row}.id",
            f"insert or ignore into p(id, code) values ({row}.n, {row}.e)",
            f"select raise(abort, 'no') where {row}.k = 4",
            f"select raise(ignore) where {row}.k = 2",
        )
    )
    return f"create trigger x_r{number} {source.choice(('after', 'before'))} {event} on x begin {body}; end"


def _value(source: Source) -> Any:
    return source.choice((1, 2, 3, 4, 1, 2, None)) if source.chance(70) else source.value()


def _insert_x(source: Source, verb: str) -> Sql:
    params = (_value(source), _value(source), source.choice(_TEXTS), _value(source))
    return f"{verb} into x(id, k, e, n) values (?, ?, ?, ?)", params


def _several(source: Source) -> Sql:
    """Return a statement that changes adjacent rows, far from the ids that single-row statements use."""
    first, form = source.choice((100, 200)), source.below(4)
    if form < 1:
        k = source.choice(("?2", "?2", "?2 || i"))
        numbers = "with m(i) as (values (1), (2), (3), (4))"
        return f"{numbers} insert into x(id, k, e, n) select ?1 + i, {k}, null, ?3 from m", (first, _value(source), 1)
    where = f"where id between {first} and {first + 9}"
    if form < 2:
        return f"delete from x {where}", ()
    sets = source.choice(("n = ?", "n = n + ?", "k = ?", "k = k || ?", "e = ?", "id = id + 10 + 0 * ?"))
    return f"update x set {sets} {where}", (source.choice((1, 2, None, "a")),)


def _on_x(source: Source) -> Sql:
    form = source.below(18)
    choice = source.choice
    if form >= 14:
        return _several(source)
    if form < 4:
        return _insert_x(source, choice(_VERBS))
    if form < 5:
        sql, params = _insert_x(source, "insert")
        target = choice(("", "", "(id)", "(k)", "(lower(e))", "(g)"))
        does = choice(("update set k = excluded.k, n = x.n + 1", "nothing")) if target else "nothing"
        return f"{sql} on conflict{target} do {does}", params
    if form < 8:
        sets = choice(("k = ?", "e = ?", "n = ?", "id = ?", "k = k + 1, e = ?", "e = lower(e), n = ?"))
        value = choice(_TEXTS) if "e = ?" in sets else _value(source)
        where = choice(("id = ?", "k = ?", "n > ?", "lower(e) = ?", "g = ?", "1 or ?"))
        return f"{choice(_UPDATES)} x set {sets} where {where}", (value, _value(source))
    if form < 9:
        return f"delete from x where {choice(('id = ?', 'k = ?', 'e > ?', '1 or ?'))}", (_value(source),)
    if form < 10:
        params = (choice(("", "a", " ")), _value(source))
        return f"{choice(_VERBS)} into x(k, e, n) select k, e || ?, n from x where n < ?", params
    if form < 11:
        return f"{choice(_VERBS)} into p values (?, ?)", (_value(source), choice(_TEXTS))
    if form < 12:
        return choice(("delete from p where id = ?", "update p set id = id + 1 where id = ?")), (_value(source),)
    if form < 13:
        return "update or ignore p set code = ? where id = ?", (choice(_TEXTS), _value(source))
    return f"{choice(_VERBS)} into y values (?, ?, ?)", (_value(source), _value(source), choice(_TEXTS))

"""Small cases in which one particular mistake shows, that a random search would need very long to come upon."""

from typing import Any

from bedrockish.sqltext.session_settings import LIKE, TRIGGERS, Settings
from tools.soundness.cases import Case

_T = "create table t(id integer primary key, c0, c1)"
_U = "create table u(id integer primary key, t_id, z)"
_LOG = ("create table log(k, n)", "create index lk on log(k)")
Given = tuple[str, tuple[Any, ...]]


def _t(*rows: tuple[Any, ...]) -> list[Given]:
    return [("insert into t values (?, ?, ?)", row) for row in rows]


def _u(*rows: tuple[Any, ...]) -> list[Given]:
    return [("insert into u values (?, ?, ?)", row) for row in rows]


def _case(ddl: tuple[str, ...], rows: list[Given], query: str, change: str, settings: Settings = frozenset()) -> Case:
    return Case(list(ddl), rows, [(query, ())], [(change, ())], settings=settings)


_ON_T = "create trigger r{} after {} on t begin {}; end"
_ON_U = "create trigger r{} after {} on u begin {}; end"

WITNESSES: dict[str, Case] = {
    "a REPLACE fires a trigger that looks something up": _case(
        (_T, *_LOG, _ON_T.format(0, "delete", "update log set n = n + 1 where k = old.c0")),
        _t((1, 7, 0)),
        "replace into t values (1, 8, 0)",
        "insert into log values (7, 0)",
        frozenset({TRIGGERS}),
    ),
    "a trigger fires itself and looks up what its first run has changed": _case(
        (
            _T,
            *_LOG,
            _ON_T.format(0, "delete", "delete from t where c0 = old.id; update log set n = n + 1 where k = old.c1"),
        ),
        _t((1, 0, 5), (2, 1, 6), (3, 2, 7)),
        "delete from t where id = 1",
        "insert into log values (7, 0)",
        frozenset({TRIGGERS}),
    ),
    "a LIKE that tells the case goes by an index of its collation": _case(
        ("create table t(id integer primary key, c0 text, c1)", "create index ti on t(c0)"),
        _t((1, "ab", 5), (2, "AB", 6)),
        "select id from t where c0 like 'a%'",
        "insert into t values (3, 'ac', 0)",
        frozenset({LIKE}),
    ),
    "a trigger reads a row that the statement has changed": _case(
        (_T, *_LOG, _ON_T.format(0, "update", "update log set n = 1 where k = (select c0 from t where id = new.id)")),
        _t((1, 1, 0)),
        "update t set c0 = 5 where id = 1",
        "insert into log values (5, 0)",
    ),
    "a row that an outer join misses is looked for by NULL": _case(
        (_T, _U, "create index ut on u(t_id)", *_LOG),
        _t((1, 1, 1)),
        "select t.id, n from t left join u on u.t_id = t.id left join log on log.k is u.z where t.id = 1",
        "insert into log values (null, 3)",
    ),
    "two programs fire triggers with other values": _case(
        (
            _T,
            _U,
            *_LOG,
            _ON_T.format(0, "insert", "insert into u values (new.id, 7, 0)"),
            _ON_U.format(1, "insert", "update log set n = 2 where k = new.t_id"),
        ),
        [],
        "insert into t values (1, 3, 4)",
        "insert into log values (7, 0)",
    ),
    "both ends of a range come from another row": _case(
        (_T, _U, "create index ut on u(t_id)"),
        _t((1, 1, 5)),
        "select u.id from t join u on u.t_id between t.c0 and t.c1 where t.id = 1",
        "insert into u values (1, 3, 0)",
    ),
    "a loop ends by what the statement has written": _case(
        (_T,),
        _t((1, 0, 9), (2, 0, 0), (3, 0, 0), (5, 0, 9)),
        "update t set c1 = 0, c0 = case when id > 1 then (select id from t where c1 = 9 order by id limit 1) end "
        "where id in (1, 2)",
        "update t set c1 = 9 where id = 3",
    ),
    "a loop in a trigger ends by what the statement has written": _case(
        (
            _U,
            *_LOG,
            _ON_U.format(
                0, "update", "update log set n = n + 1 where k = (select id from u where z <> 'a' order by id limit 1)"
            ),
        ),
        [*_u((1, 0, "b"), (2, 0, "b"), (5, 0, "b")), ("insert into log values (5, 0)", ())],
        "update u set z = 'a' where id in (1, 2)",
        "insert into u values (3, 0, 'b')",
    ),
    "a loop ends with its second row": _case(
        (_T,),
        _t((1, 1, 0), (3, 1, 0), (5, 1, 0)),
        "select id from t where c0 = 1 order by id limit 2",
        "delete from t where id = 3",
    ),
    "a loop passes a row over": _case(
        (_T,),
        _t((1, 1, 0), (3, 1, 0), (5, 1, 0)),
        "select id from t where c0 = 1 order by id limit 1 offset 1",
        "delete from t where id = 3",
    ),
    "a loop passes rows that do not count": _case(
        (_T,),
        _t((1, 2, 0), (3, 1, 0), (5, 1, 0)),
        "select id from t where c0 = 1 order by id limit 1",
        "delete from t where id = 3",
    ),
    "a loop goes backward": _case(
        (_T,),
        _t((1, 1, 0), (3, 1, 0), (5, 1, 0)),
        "select id from t where c0 = 1 order by id desc limit 2",
        "delete from t where id = 3",
    ),
    "a recursive query goes round several times": _case(
        ("create table f(id integer primary key, up integer)", "create index fu on f(up)"),
        [(f"insert into f values ({number}, {number - 1})", ()) for number in (1, 2, 3)],
        "with recursive w(x) as (select 1 union select f.id from f join w on f.up = w.x) select * from w order by 1",
        "insert into f values (4, 3)",
    ),
    "a join has three levels": _case(
        (_T, _U, "create index ut on u(t_id)", *_LOG),
        [*_t((1, 1, 1)), *_u((1, 1, 8))],
        "select t.id, n from t join u on u.t_id = t.c0 join log on log.k = u.z where t.id = 1",
        "insert into log values (8, 3)",
    ),
    "an end of a range is compared as it is": Case(
        ["create table t(id integer primary key, c0 text, c1)", "create index tc on t(c0)", _U],
        _t((2, "2", 0)),
        [
            (
                "select (select z from u where u.id = t.id), c0 from t "
                "where c0 = ? or (c1 < ? and c0 between ? and 2.0)",
                (2.0, 2.0, 2),
            )
        ],
        [("insert into u values (2, 2, 'b')", ())],
    ),
    "an index on an expression": _case(
        (_T, "create index tl on t(lower(c0))"),
        _t((1, "A", 0)),
        "select id from t where lower(c0) = 'b'",
        "insert into t values (2, 'B', 0)",
    ),
    "a trigger looks something up by an automatic id": _case(
        (_T, *_LOG, _ON_T.format(0, "insert", "update log set n = 2 where k = +new.id")),
        _t((1, 1, 0)),
        "insert into t(c0, c1) values (3, 4)",
        "insert into log values (2, 0)",
    ),
    "a row without a partner does not count": _case(
        (_T, _U),
        [*_t((1, 9, 0), (3, 1, 0), (5, 1, 0)), *_u((1, 0, "b"))],
        "select t.id, u.z from t join u on u.id = t.c0 order by t.id limit 1",
        "delete from t where id = 3",
    ),
    "the second of two rows leads to another": _case(
        (_T, "create index tc on t(c0)", _U, "create index ut on u(t_id)"),
        _t((1, 1, 6), (2, 1, 7)),
        "select u.id from t join u on u.t_id = t.c1 where t.c0 = 1 order by 1",
        "insert into u values (1, 7, 0)",
    ),
    "a cursor is opened on the index of each term of an OR": _case(
        (_T, "create index t0 on t(c0)", "create index t1 on t(c1)"),
        _t((1, 1, 0), (2, 0, 2)),
        "select id from t where c0 = 1 or c1 = 2",
        "insert into t values (3, 7, 2)",
    ),
    "the highest of some values leads to another row": _case(
        (_T, "create index t0 on t(c0)", *_LOG),
        _t((1, 1, 6), (2, 1, 7)),
        "select n from log where k = (select max(c1) from t where c0 = 1)",
        "insert into log values (7, 0)",
    ),
    "a partner of another kind does not count": _case(
        (_T, _U),
        [*_t((1, 1, 0), (3, 2, 0), (5, 2, 0)), *_u((1, 0, "a"), (2, 0, "b"))],
        "select t.id, u.z from t join u on u.id = t.c0 where u.z = 'b' order by t.id limit 1",
        "delete from t where id = 3",
    ),
    "a partner's partner of another kind does not count": _case(
        (_T, _U),
        [*_t((1, 1, 0), (3, 3, 0), (5, 3, 0)), *_u((1, 2, "a"), (2, 0, "a"), (3, 4, "a"), (4, 0, "b"))],
        "select t.id, v.z from t join u on u.id = t.c0 join u v on v.id = u.t_id where v.z = 'b' order by t.id limit 1",
        "delete from t where id = 3",
    ),
    "a trigger on a view takes its values from rows": _case(
        (
            _T,
            *_LOG,
            "create view w as select id, c0 from t",
            "create trigger r0 instead of update on w begin update log set n = 1 where k = old.c0; end",
        ),
        _t((1, 5, 0)),
        "update w set c0 = 3 where id = 1",
        "insert into log values (5, 0)",
    ),
    "a column gets an equal value of another type": _case(
        (_T,), _t((1, 2, 0)), "select typeof(c0) from t where id = 1", "update t set c0 = 2.0 where id = 1"
    ),
    "a generated column changes with its source": _case(
        ("create table t(id integer primary key, c0, c1, g as (c0) stored)",),
        [("insert into t(id, c0, c1) values (1, 2, 0)", ())],
        "select g from t where id = 1",
        "update t set c0 = 5 where id = 1",
    ),
    "two rows of one table are read, and other columns of each": _case(
        (_T,),
        _t((1, 1, 1), (2, 2, 2)),
        "select a.c0, b.c1 from t a join t b on b.id = 2 where a.id = 1",
        "update t set c0 = 9 where id = 1",
    ),
    "a row that is missed is looked for again": _case(
        (_T, _U), _t((1, 7, 0)), "select t.id, u.z from t left join u on u.id = t.c0", "insert into u values (7, 1, 2)"
    ),
    "a row gets another id": _case(
        (_T,), _t((1, 2, 0)), "select c1 from t where id = 1", "update t set id = 3 where id = 1"
    ),
}

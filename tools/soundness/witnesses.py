"""Small cases for mistakes that a random search would need very long to find, and that no unit test finds."""

from typing import Any

from bedrockish.sqltext.session_settings import LIKE, TRIGGERS, Settings
from tools.soundness.cases import Case

_T = "create table t(id integer primary key, c0, c1)"
_U = "create table u(id integer primary key, t_id, z)"
_LOG = ("create table log(k, n)", "create index lk on log(k)")
Given = tuple[str, tuple[Any, ...]]


def _t(*rows: tuple[Any, ...]) -> list[Given]:
    return [("insert into t values (?, ?, ?)", row) for row in rows]


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
        [("insert into u values (1, 0, 'b'), (2, 0, 'b'), (5, 0, 'b')", ()), ("insert into log values (5, 0)", ())],
        "update u set z = 'a' where id in (1, 2)",
        "insert into u values (3, 0, 'b')",
    ),
    "a loop goes backward": _case(
        (_T,),
        _t((1, 1, 0), (3, 1, 0), (5, 1, 0)),
        "select id from t where c0 = 1 order by id desc limit 2",
        "delete from t where id = 3",
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
    "a column gets an equal value of another type": _case(
        (_T,), _t((1, 2, 0)), "select typeof(c0) from t where id = 1", "update t set c0 = 2.0 where id = 1"
    ),
    "a row that is missed is looked for again": _case(
        (_T, _U), _t((1, 7, 0)), "select t.id, u.z from t left join u on u.id = t.c0", "insert into u values (7, 1, 2)"
    ),
    "a row gets another id": _case(
        (_T,), _t((1, 2, 0)), "select c1 from t where id = 1", "update t set id = 3 where id = 1"
    ),
}

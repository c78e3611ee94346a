"""The ends of statements equal those of SQLite's ``sqlite3_complete``, and are found in linear time."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedrockish.cli.shell.script import items
from bedrockish.engine.statements.guard import Guard
from bedrockish.errors import SqlError, UsageError
from bedrockish.sqltext.statement_ends import (
    check_statement,
    count_parentheses,
    first_word,
    is_blank,
    is_complete,
    is_single,
    spans,
    split,
)
from bedrockish.sqltext.statement_kinds import kind_of, switch_of, verb_of
from bedrockish.sqltext.transaction_control import parse_control
from tests.engine.nodes import TestNode

PIECES = (
    *("CREATE ", "TEMP ", "TRIGGER ", "EXPLAIN ", "QUERY PLAN ", "BEGIN ", "END", "end", "ENDED", ";", ";", " ", "\n"),
    *("SELECT 1", "x", "'", '"', "`", "[", "]", "--", "/*", "*/", "/", "'a;b'", "/* ; */", "$x", "\ufeff", "é"),
)
Look = Callable[[str], object]
LOOKS: list[Look] = [
    check_statement, is_single, is_blank, is_complete, verb_of, kind_of, switch_of, parse_control, first_word,
    lambda sql: list(split(sql)), lambda sql: list(items(sql, "x")),
]  # fmt: skip


@settings(max_examples=2_000, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_statements_end_where_sqlite_ends_them(sql: str) -> None:
    begin = 0
    for _, end in spans(sql):
        whole = sqlite3.complete_statement(sql[begin:end])
        assert whole or end == len(sql)
        begin = end
    if not sql.startswith("\ufeff"):  # sqlite3_complete takes it for part of a word
        for place, character in enumerate(sql):
            if character == ";" and sqlite3.complete_statement(sql[: place + 1]) and "\ufeff" not in sql[: place + 1]:
                assert is_complete(sql[: place + 1])


def test_semicolons_in_a_trigger_do_not_end_its_statement() -> None:
    body = "SELECT 1; ;; /* END; */ UPDATE a SET b = ';' WHERE c; SELECT CASE WHEN 1 THEN 2 END; "
    trigger = f"/* a */ CREATE -- b\n TEMP TRIGGER t AFTER INSERT ON a BEGIN {body} END /* c */ ;"
    assert list(split(f"SELECT 1; {trigger} ; SELECT 2")) == ["SELECT 1;", trigger.removeprefix("/* a */ "), "SELECT 2"]
    assert list(split(trigger[:-1])) == [trigger.removeprefix("/* a */ ")[:-1].rstrip()]


TEXTS = {
    "semicolons in a string": lambda n: "INSERT INTO t VALUES ('" + "a;" * n + "')",
    "body of a trigger": lambda n: "CREATE TRIGGER a AFTER INSERT ON b BEGIN " + "SELECT 1; " * n + "END",
    "semicolons in a trigger": lambda n: "CREATE TRIGGER a AFTER INSERT ON b BEGIN SELECT 1" + ";" * n + " END",
    "semicolons": lambda n: ";" * n + "SELECT 1",
    "statements": lambda n: "SELECT 1;" * n,
    "comments": lambda n: "/**/" * n + "SELECT 1",
    "comments and a keyword": lambda n: "/**/" * n + "COMMITS",
    "lines of comments": lambda n: "--\n" * n + "PRAGMA foreign_keys",
    "comment that does not end": lambda n: "SELECT 1 /*" + "*" * n,
    "beginnings of comments": lambda n: "/* " * n,
    "quotes": lambda n: "SELECT '" + "''" * n,
    "brackets": lambda n: "[" * n,
    "blanks": lambda n: " " * n,
    "savepoint": lambda n: "SAVEPOINT " + "a " * n,
}


@pytest.mark.parametrize("text", TEXTS)
def test_parsing_time_is_linear_in_the_text(text: str) -> None:
    for look in LOOKS:
        spent = []
        for count in (20_000, 80_000):
            sql, tries = TEXTS[text](count), []
            for _ in range(3):  # other programs evict this one's memory from the cache of the processor
                began = time.process_time()
                with suppress(UsageError):
                    look(sql)
                tries.append(time.process_time() - began)
            spent.append(min(tries))
        assert spent[1] < max(0.25, 10 * spent[0]), spent


def test_guard_compiles_a_script_in_a_time_that_grows_with_it() -> None:
    guard = Guard(apsw.Connection(":memory:"))
    spent = []
    for count in (2_000, 8_000):
        sql, at = "SELECT 1;" * count, 0
        began = time.process_time()
        while at < len(sql):
            _, at = guard.compile_next(sql, at)
        spent.append(time.process_time() - began)
    assert spent[1] < max(1.0, 8 * spent[0]), spent


@pytest.mark.parametrize("before", [";", "/* a */;", "-- a\n; ", ";;", "\ufeff;", "; /* b; */ ;"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x FROM t", "INSERT INTO t VALUES (2)", "UPDATE t SET x = 3", "PRAGMA table_info(t)", "EXPLAIN SELECT 1",
        "CREATE TABLE u(x)", "SELECT x FROM t WHERE x = (SELECT max(x) FROM t) LIMIT 1", "PRAGMA user_version = 2",
        "PRAGMA journal_mode = WAL",
    ],
)  # fmt: skip
def test_semicolons_before_a_statement_change_nothing(node: TestNode, before: str, sql: str) -> None:
    node.run("CREATE TABLE t(x)", "INSERT INTO t VALUES (1)")
    assert [result.rows for result in node.run(before + sql)] == [
        result.rows for result in node.run(sql.replace("u(", "v("))
    ]


@pytest.mark.parametrize("sql", ["SELECT 1;\0", "SELECT 1; \0SELECT 2", "\0", ";\0", "SELECT 'a\0b'; SELECT 1"])
def test_nul_in_a_script_is_refused_with_its_place(node: TestNode, sql: str) -> None:
    assert "\0" in "".join(split(sql))
    with pytest.raises(SqlError, match="NUL"):
        node.run(sql)


def test_many_statements_in_one_text_see_each_other(node: TestNode) -> None:
    node.run("CREATE TABLE t(x)")
    results = node.run("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2) ;;-- c\n SELECT sum(x) FROM t; /* d */")
    assert [result.rows for result in results] == [[], [], [(3,)]]


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("INSERT INTO t(a) VALUES (1), ((2)), (f(3))", 6),
        ("INSERT INTO t VALUES ('((' || \"((\" || `((` || [((]) -- ((\n/* (( */", 1),
        ("SELECT '((((", 0),
    ],
)
def test_count_parentheses_ignores_strings_and_comments(sql: str, count: int) -> None:
    assert count_parentheses(sql) == count

"""One text, one statement: several are refused before anything is sent."""

from typing import Any

import pytest

import bedrockish
from bedrockish.client.request_builder import Statements, make_request
from bedrockish.errors import UnsupportedError, UsageError
from bedrockish.sqltext.statement_ends import check_statement
from bedrockish.sqltext.transaction_control import SAVEPOINT, Control, parse_control, savepoint_of
from tests.processor import at_most

TRIGGER = "CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE b SET n = n + 1; DELETE FROM c; END"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT 1;",
        "SELECT 1 ; -- the end; really",
        "SELECT 1; /* ; */ ;;\n",
        "SELECT 'a;b', \"c;d\", [e;f], `g;h`, 'it''s; so' FROM t;",
        "/* a; b */ SELECT 1 -- c; d\n + 1",
        "SELECT 'never closed; at all",
        TRIGGER,
        f"-- makes; it\nEXPLAIN {TRIGGER};\n",
        ";SELECT 1",
    ],
)
def test_text_with_one_statement_is_accepted(sql: str) -> None:
    assert check_statement(sql) == sql


@pytest.mark.parametrize(
    ("sql", "second"),
    [
        ("SELECT 1; SELECT 2", "SELECT 2"),
        ("INSERT INTO t VALUES (';'); DELETE FROM t;", "DELETE FROM t;"),
        ("SELECT 1; -- and\n SELECT 2;", "SELECT 2;"),
        (f"{TRIGGER}; DROP TABLE a", "DROP TABLE a"),
        (";SELECT 1;\nSELECT 2", "SELECT 2"),
    ],
)
def test_several_statements_are_refused(sql: str, second: str) -> None:
    with pytest.raises(UsageError, match="one statement") as caught:
        check_statement(sql)
    assert sql[caught.value.details["offset"] :] == second


def test_request_with_two_statements_in_a_text_is_refused() -> None:
    """A node would execute both, and the client would take the two results for an error."""
    several: list[Statements] = [["SELECT 1; SELECT 2"], [("SELECT ?; SELECT 2", (1,)), "SELECT 3"]]
    for statements in several:
        with pytest.raises(UsageError, match="list of texts"):
            make_request("c", statements, "session", "serializable", 1)


@pytest.mark.parametrize("sql", [None, 1, "", " \n"])
def test_text_without_a_statement_is_refused(sql: object) -> None:
    with pytest.raises(UsageError, match="an SQL text"):
        check_statement(sql)


def test_large_text_is_parsed_once() -> None:
    """The time is linear: a megabyte of semicolons in a string stays far below the bound."""
    with at_most(10):
        check_statement("INSERT INTO t VALUES ('" + "a;" * 500_000 + "')")
        check_statement("INSERT INTO t VALUES ('" + "a'';" * 250_000 + "');" + " ;--;\n" * 100_000)


@pytest.mark.parametrize("sql", [["SELECT 1"], ("SELECT 1",), None, 5, b"SELECT 1", {"sql": "SELECT 1"}])
def test_statement_that_is_not_a_text_is_a_usage_error(sql: object) -> None:
    with pytest.raises(UsageError, match="should be an SQL text, not"):
        parse_control(sql)  # type: ignore[arg-type]


NO_LISTS: list[tuple[Any, str]] = [
    ([("SELECT 1",)], r"statement 1 should be an SQL text, or a pair of a text and its parameters; write \(sql"),
    (["SELECT 1", ("SELECT 2", (), 3)], "statement 2 should be"),
    ([None], "statement 1 should be"),
    ([5], "statement 1 should be"),
    ([(1, 2)], "a statement should be an SQL text, not 1"),
    (5, r"the statements should be a list, not int; write \[sql\]"),
]


def test_list_of_other_values_is_refused_in_every_call() -> None:
    """The caller gets no error of Python's own for the wrong number of values."""
    with bedrockish.node() as node:
        for where in (node.path, node.url):
            with bedrockish.connect(where) as db:
                for given, said in NO_LISTS:
                    for call in (db.transact, db.begin().run):
                        with pytest.raises(UsageError, match=said):
                            call(given)


@pytest.mark.parametrize("sql", ["BEGIN", "commit;", "ROLLBACK"])
def test_operations_of_a_transaction_are_no_statements_within_it(sql: str) -> None:
    with pytest.raises(UnsupportedError, match="use the operation of that name"):
        savepoint_of(sql, None)
    assert savepoint_of('SAVEPOINT ""', None) == Control(SAVEPOINT, "")
    assert savepoint_of("SELECT 1", None) is None

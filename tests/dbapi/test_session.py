"""The statements that open transactions, and those that are repeated when a node dies between BEGIN and the first
statement.
"""

from typing import Any, cast

import pytest

from bedrockish.api.requests import Rows
from bedrockish.dbapi import session as session_module
from bedrockish.dbapi.session import FIRST_TRIES, Session
from bedrockish.errors import BedrockishError, ConstraintError, DeadlineError, UnavailableError
from bedrockish.sqltext.statement_ends import is_single, split
from bedrockish.sqltext.statement_kinds import OTHER, PRAGMA, READ, SCHEMA, WRITE, inserts, kind_of


class Held:
    """A transaction whose first statement fails with a given error."""

    here = None

    def __init__(self, failure: BedrockishError | None) -> None:
        self.failure, self.is_open, self.rolled_back = failure, True, False

    def run(self, statements: list[Any], *, timeout: float) -> list[Rows]:
        if self.failure is not None:
            self.is_open = isinstance(self.failure, ConstraintError)
            raise self.failure
        return [Rows((), [], 1) for _ in statements]

    def rollback(self) -> None:
        self.rolled_back = True


class Link:
    """A client whose transactions fail one after another."""

    def __init__(self, *failures: BedrockishError | None) -> None:
        self.begun: list[Held] = []
        self._failures = list(failures)

    def begin(self, **_: Any) -> Held:
        self.begun.append(Held(self._failures.pop(0)))
        return self.begun[-1]


def session(*failures: BedrockishError | None) -> tuple[Session, Link]:
    link = Link(*failures)
    return Session(cast(Any, link), "session", 5.0, lambda sql: None), link


def test_first_statement_is_repeated_at_another_node_after_its_node_is_lost() -> None:
    one, link = session(UnavailableError("gone"), UnavailableError("gone"), None)
    assert one.run("INSERT INTO t VALUES (1)", None, WRITE).rowcount == 1
    assert [held.rolled_back for held in link.begun] == [True, True, False]
    assert one.in_transaction


def test_session_gives_up_after_its_last_attempt() -> None:
    one, link = session(*[UnavailableError("gone")] * FIRST_TRIES)
    with pytest.raises(UnavailableError):
        one.run("INSERT INTO t VALUES (1)", None, WRITE)
    assert len(link.begun) == FIRST_TRIES


def test_first_statement_is_not_repeated_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt to reach a node that has stopped takes the timeout."""
    now = iter((0.0, 3.0, 6.0))
    monkeypatch.setattr(session_module, "monotonic", lambda: next(now))
    one, link = session(*[UnavailableError("no node can be reached")] * FIRST_TRIES)
    with pytest.raises(UnavailableError):
        one.run("INSERT INTO t VALUES (1)", None, WRITE)
    assert len(link.begun) == 2


@pytest.mark.parametrize("failure", [DeadlineError("late"), ConstraintError("UNIQUE")])
def test_session_does_not_retry_definite_failures(failure: BedrockishError) -> None:
    one, link = session(failure, None)
    with pytest.raises(type(failure)):
        one.run("INSERT INTO t VALUES (1)", None, WRITE)
    assert len(link.begun) == 1


def test_session_never_repeats_a_later_statement_of_a_transaction() -> None:
    one, link = session(None, None)
    one.run("INSERT INTO t VALUES (1)", None, WRITE)
    link.begun[0].failure = UnavailableError("gone")
    with pytest.raises(UnavailableError):
        one.run("INSERT INTO t VALUES (2)", None, WRITE)
    assert len(link.begun) == 1


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT 1", READ),
        ("  -- x\n/* y */ ; insert into t values (1)", WRITE),
        ("WITH a AS (SELECT 'DELETE'), b AS (VALUES (1)) UPDATE t SET x = 1", WRITE),
        ("WITH a AS (SELECT 1) SELECT * FROM a", READ),
        ("with 'unfinished", READ),
        ("drop table t", SCHEMA),
        ("PRAGMA user_version = 5", SCHEMA),
        ("PRAGMA user_version", PRAGMA),
        ("PRAGMA table_info(t)", PRAGMA),
        ("VACUUM", OTHER),
        ("", OTHER),
    ],
)
def test_dbapi_recognises_the_kinds_of_statements(sql: str, kind: str) -> None:
    assert kind_of(sql) == kind
    assert inserts(sql) is ("insert" in sql)


def test_scripts_are_split_at_the_ends_of_statements() -> None:
    script = "SELECT ';' ; -- a; b\n; CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; SELECT 2; END; SELECT 3"
    assert [piece.split()[0] for piece in split(script)] == ["SELECT", "CREATE", "SELECT"]
    assert is_single("SELECT 1;;  ")
    assert not is_single("SELECT 1; SELECT 2")

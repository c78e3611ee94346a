"""Several requests share a transaction: each gets its answer, and some need a transaction of their own."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bedrockish.api.requests import SNAPSHOT, Request, Result, decode_results
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution import prepared_size
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.errors import ConstraintError
from bedrockish_journal.model.changes import decode_changes
from tests.engine.nodes import Limits, Sql, TestNode, ids_like_sqlite, request

SCHEMA = """
CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT UNIQUE, balance INTEGER NOT NULL CHECK (balance >= 0));
CREATE TABLE note(id INTEGER PRIMARY KEY AUTOINCREMENT, account REFERENCES account(id) DEFERRABLE INITIALLY DEFERRED,
  text);
CREATE TABLE total(id INTEGER PRIMARY KEY, n, twice AS (2 * n));
CREATE TRIGGER counted AFTER INSERT ON note BEGIN UPDATE total SET n = n + 1; END;
INSERT INTO total(id, n) VALUES (1, 0);
INSERT INTO account(id, owner, balance) VALUES (1, 'one', 10), (2, 'two', 20)
"""
ADD = "UPDATE account SET balance = balance + 1 WHERE id = 1 RETURNING balance"
HOUR_S = 3600.0


def start(path: Path) -> TestNode:
    node = ids_like_sqlite(TestNode(path))
    *schema, accounts = SCHEMA.split(";\n")
    node.run(";\n".join(schema[:-1]) + ";")
    node.run(schema[-1])
    node.run(accounts)
    return node


@pytest.fixture
def bank(tmp_path: Path) -> TestNode:
    return start(tmp_path / "bank.db")


def together(node: TestNode, *requests: Request) -> Prepared:
    return node.engine.execute_together(requests, HOUR_S)


def named(*statements: Sql) -> list[Request]:
    return [request(statement, command=f"c{number}") for number, statement in enumerate(statements)]


def results(prepared: Prepared) -> list[list[Result]]:
    return [decode_results(prepared.result), *(decode_results(result) for _, result in prepared.joined)]


def test_each_request_sees_the_changes_of_those_before(bank: TestNode) -> None:
    before = bank.tables()
    prepared = together(bank, *named(ADD, ADD, ADD))
    assert [one[0].rows for one in results(prepared)] == [[(11,)], [(12,)], [(13,)]]
    assert [command for command, _ in prepared.joined] == ["c1", "c2"]
    assert [change.after for change in decode_changes(prepared.changes)] == [(1, "one", n) for n in (11, 12, 13)]
    assert bank.tables() == before


def test_changes_of_each_request_can_be_told_apart(bank: TestNode) -> None:
    """The shares are known even if a trigger makes the change, or if one request changes no row."""
    prepared = together(
        bank,
        *named(
            ADD,
            "UPDATE account SET balance = 0 WHERE id = 77",
            "INSERT INTO account(id, owner, balance) VALUES (3, 'three', 0), (4, 'four', 0)",
            ADD,
        ),
    )
    assert prepared.shares == (1, 0, 2, 1)
    assert len(decode_changes(prepared.changes)) == 4


def test_merged_changes_cannot_be_told_apart(bank: TestNode) -> None:
    """Only the final rows of a table with VIRTUAL columns are known."""
    prepared = together(bank, *named("INSERT INTO note(text) VALUES ('a')", "INSERT INTO note(text) VALUES ('b')"))
    assert len(prepared.joined) == 1
    assert prepared.shares == ()


def test_only_writes_is_true_for_texts_that_have_run_as_plain_writes(bank: TestNode) -> None:
    """A text must not be a query, set a setting, ask for its transaction's properties, or change the schema."""
    insert = "INSERT INTO account(id, owner, balance) VALUES (?, ?, 0)"
    assert not bank.engine.only_writes([ADD])
    bank.prepare(ADD)
    bank.prepare((insert, (7, "seven")))
    bank.prepare("SELECT 1")
    bank.prepare("CREATE TABLE more(x)")
    bank.engine.scope.tick = lambda: 1
    bank.prepare("UPDATE account SET owner = transaction_id() WHERE id = 2")
    assert bank.engine.only_writes([ADD, insert])
    for other in ("SELECT 1", "CREATE TABLE more(x)", "UPDATE account SET owner = transaction_id() WHERE id = 2"):
        assert not bank.engine.only_writes([ADD, other])


def test_only_writes_is_true_for_a_text_that_has_run_with_other_literals(bank: TestNode) -> None:
    for number in (1, 2):
        bank.prepare(f"UPDATE account SET balance = balance + 1 WHERE id = {number}")
        bank.prepare(f"SELECT owner FROM account WHERE id = {number}")
    assert bank.engine.only_writes([f"UPDATE account SET balance = balance + 7 WHERE id = {one}" for one in (1, 2, 3)])
    assert not bank.engine.only_writes(["SELECT owner FROM account WHERE id = 3"])
    assert not bank.engine.only_writes(["UPDATE account SET balance = balance - 7 WHERE id = 3"])


SOME: list[Sql] = [
    ADD,
    ("UPDATE account SET balance = balance - ? WHERE id = 2", (3,)),
    "INSERT INTO account(id, owner, balance) VALUES (3, 'three', 0) ON CONFLICT DO UPDATE SET balance = balance + 5",
    "DELETE FROM account WHERE id = 3 RETURNING owner",
    "INSERT INTO note(account, text) SELECT id, owner FROM account ORDER BY id",
    "UPDATE note SET text = text || '!' WHERE account = 1",
    "DELETE FROM note WHERE id = (SELECT min(id) FROM note)",
    "INSERT OR REPLACE INTO account(id, owner, balance) VALUES (1, 'two', 100)",
    "INSERT OR IGNORE INTO account(id, owner, balance) VALUES (9, 'two', 9)",
]


@pytest.mark.parametrize("seed", range(20))
def test_joined_requests_equal_serial_execution(tmp_path: Path, seed: int) -> None:
    luck = Random(seed)
    one, other = start(tmp_path / "one.db"), start(tmp_path / "other.db")
    for _ in range(4):
        requests = named(*(luck.choice(SOME) for _ in range(luck.randint(2, 8))))
        while requests:
            texts = [[(each.sql, each.params) for each in single.statements] for single in requests]
            try:
                prepared = together(one, *requests)
            except ConstraintError:  # the first request stands alone, and fails alone
                with pytest.raises(ConstraintError):
                    other.run(*texts[0])
                requests = requests[1:]
                continue
            one.apply(one.entry(prepared))
            done = 1 + len(prepared.joined)
            assert results(prepared) == [other.run(*text) for text in texts[:done]]
            assert one.tables() == other.tables()
            requests = requests[done:]
            if requests:
                with pytest.raises(ConstraintError):
                    other.prepare(*texts[done])


@pytest.mark.parametrize(
    ("apart", "error"),
    [
        ("UPDATE account SET balance = balance - 1000 WHERE id = 1", ConstraintError),
        ("INSERT INTO note(account, text) VALUES (77, 'of nobody')", ConstraintError),
        ("UPDATE account SET owner = transaction_id() WHERE id = 2", None),
        ("UPDATE account SET balance = transaction_clock() WHERE id = 2", ClockNeededError),
        ("CREATE TABLE more(x)", None),
        ("PRAGMA defer_foreign_keys = ON; UPDATE account SET balance = 1 WHERE id = 2", None),
        ("SELECT * FROM account", None),
        ("UPDATE nothing SET x = 1", Exception),
    ],
)
def test_group_ends_before_a_request_that_needs_its_own_transaction(
    bank: TestNode, apart: str, error: type[Exception] | None
) -> None:
    bank.engine.scope.tick = lambda: 1
    requests = named(ADD, ADD, apart, ADD)
    prepared = together(bank, *requests)
    assert [command for command, _ in prepared.joined] == ["c1"]
    assert len(decode_changes(prepared.changes)) == 2
    if error is None:
        assert together(bank, *requests[2:]) == bank.engine.execute(requests[2])
        return
    with pytest.raises(error):
        together(bank, *requests[2:])


def test_access_set_of_a_group_has_all_reads_and_writes_of_its_requests(bank: TestNode) -> None:
    whole = together(
        bank, *named(ADD, "UPDATE total SET n = (SELECT sum(balance) FROM account WHERE id > 1)")
    ).access_set
    alone = bank.prepare(ADD).access_set
    other = bank.prepare("UPDATE total SET n = (SELECT sum(balance) FROM account WHERE id > 1)").access_set
    assert whole.write_points >= alone.write_points | other.write_points
    assert set(whole.read_ranges) >= {*alone.read_ranges, *other.read_ranges}


def test_too_large_group_is_split(tmp_path: Path) -> None:
    """Each request is within the limit, but their sum is not."""
    node = TestNode(tmp_path / "node.db", limits=Limits(changes_bytes=3000))
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
    requests = named(*((f"INSERT INTO t VALUES ({number}, zeroblob(900))", ()) for number in range(8)))
    prepared = together(node, *requests)
    assert 1 <= len(prepared.joined) < 7


def test_results_of_a_group_are_sent_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer goes to every node with the transaction: together they have to fit, too."""
    node = TestNode(tmp_path / "node.db")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    monkeypatch.setattr(prepared_size, "BYTES_MAX", 3000)
    requests = named(*(f"INSERT INTO t VALUES ({number}) RETURNING zeroblob(900)" for number in range(8)))
    prepared = together(node, *requests)
    assert len(prepared.joined) == 1


def test_group_ends_when_its_time_budget_is_used(bank: TestNode) -> None:
    ticks = iter(range(10**9))
    governor = bank.engine._executor.governor
    governor.budget._limits = replace(governor.limits, busy=lambda: float(next(ticks)))
    prepared = bank.engine.execute_together(named(*[ADD] * 50), 20.0)
    assert len(prepared.joined) < 20


def test_group_at_snapshot_isolation_certifies_no_reads(bank: TestNode) -> None:
    read = "UPDATE total SET n = (SELECT sum(balance) FROM account)"
    requests = [replace(one, isolation=SNAPSHOT) for one in named(read, read)]
    assert not together(bank, *requests).access_set.read_ranges

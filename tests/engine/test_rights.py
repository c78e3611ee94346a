"""What a compiled statement needs of a user, and what those who are no admins read instead of secrets."""

from dataclasses import replace

import pytest

from bedrockish.api.requests import Statement
from bedrockish.engine.statements.rights import Access, opened
from bedrockish.errors import ForbiddenError, UnsupportedError
from bedrockish_journal.model.membership import ADMIN, OWNER, READER, WRITER, UserSaid
from tests.engine.nodes import TestNode, request

USERS = {"none": 0, "reader": READER, "writer": WRITER, "owner": OWNER, "admin": ADMIN}


@pytest.fixture
def shop(node: TestNode) -> TestNode:
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)", "CREATE TABLE other(x)")
    node.engine.access.learn({name: UserSaid("", role, 1) for name, role in USERS.items()} | {"gone": None}, ["A"])
    return node


def needs(node: TestNode, sql: str) -> int:
    """Return the least role with which a statement runs."""
    enough = []
    for name, role in USERS.items():
        try:
            list(node.engine._executor.pieces(Statement(sql), name))
        except ForbiddenError:
            continue
        enough.append(role)
    assert enough == sorted(USERS.values())[-len(enough) :], "each may do what those before it may"
    return min(enough)


@pytest.mark.parametrize(
    ("sql", "role"),
    [
        ("SELECT * FROM item", READER),
        ("SELECT 1", READER),
        ("EXPLAIN DELETE FROM item", READER),
        ("PRAGMA table_info(item)", READER),
        ("SELECT * FROM bedrockish_users", READER),
        ("SELECT count(body) FROM bedrockish_journal", READER),
        ("SELECT hash FROM bedrockish_journal", READER),
        ("SELECT count(body) FROM 'bedrockish_journal'", ADMIN),
        ("INSERT INTO other SELECT body FROM bedrockish_journal", ADMIN),
        ("INSERT INTO other SELECT value FROM bedrockish_meta", ADMIN),
        ("INSERT INTO item(name) VALUES ('x')", WRITER),
        ("UPDATE item SET name = 1", WRITER),
        ("DELETE FROM item", WRITER),
        ("SELECT 1; DELETE FROM item", WRITER),
        ("REPLACE INTO other VALUES (1)", WRITER),
        ("WITH a AS (SELECT 1) INSERT INTO other SELECT * FROM a", WRITER),
        ("CREATE TABLE more(x)", OWNER),
        ("CREATE TABLE IF NOT EXISTS item(x)", OWNER),
        ("DROP TABLE IF EXISTS absent", OWNER),
        ("ALTER TABLE item ADD COLUMN more", OWNER),
        ("CREATE INDEX i ON item(name)", OWNER),
        ("CREATE VIEW v AS SELECT 1", OWNER),
        ("PRAGMA user_version = 7", OWNER),
    ],
)
def test_what_a_statement_needs(shop: TestNode, sql: str, role: int) -> None:
    """Also the second time, when it was compiled for somebody else before."""
    assert needs(shop, sql) == role
    assert needs(shop, sql) == role


def test_without_users_everybody_may_everything(node: TestNode) -> None:
    node.run("CREATE TABLE t(x)")
    assert node.engine.access.of("") is None
    node.run("INSERT INTO t VALUES (1)")


def test_who_is_who() -> None:
    access = Access()
    access.bootstrap = ("ann", "gone")
    access.learn({"will": UserSaid("", WRITER, 1), "gone": None}, ["A"])
    roles = {
        "will": WRITER,
        "client:will": WRITER,  # a certificate
        "certificate:will": -1,  # not made for a client of that name
        "node:A": ADMIN,
        "node:B": -1,
        "A": -1,
        "ann": ADMIN,
        "client:ann": -1,
        "gone": -1,
        "client:gone": -1,
        "": -1,
        "(http_token)": ADMIN,
        "eve": -1,
    }
    found = {}
    for name in roles:
        rights = access.of(name)
        assert rights is not None
        found[name] = rights.role
    assert found == roles


def test_a_request_is_judged_each_time_it_runs(shop: TestNode) -> None:
    """What was compiled and run before is refused when the right is gone, and by the error that names it."""
    insert = replace(request("INSERT INTO item(name) VALUES ('x')"), user="writer")
    shop.engine.execute(insert)
    shop.engine.access.learn({"writer": UserSaid("", READER, 1)}, [])
    with pytest.raises(ForbiddenError, match="writer needs the role writer; an admin gives it with 'bedrockish user"):
        shop.engine.execute(insert)
    with pytest.raises(ForbiddenError, match="does not know eve"):
        shop.engine.execute(replace(insert, user="eve"))
    with pytest.raises(ForbiddenError, match="does not know who asks"):
        shop.engine.execute(replace(insert, user=""))


@pytest.mark.parametrize("name", ["bedrockish_open_journal", '"bedrockish_open_meta"', "[BEDROCKISH_OPEN_META]"])
def test_nobody_takes_the_names_under_which_there_are_no_secrets(shop: TestNode, name: str) -> None:
    """Else a CTE of that name could read what is secret, and SQLite would say that ours does."""
    for user in ("reader", "admin"):
        with pytest.raises(UnsupportedError, match="belongs to the database itself"):
            list(shop.engine._executor.pieces(Statement(f"WITH {name} AS (SELECT 1) SELECT * FROM {name}"), user))


def test_only_names_are_replaced() -> None:
    assert opened("SELECT 'bedrockish_journal', x FROM t") == "SELECT 'bedrockish_journal', x FROM t"
    assert opened("SELECT 1") == "SELECT 1"
    found = opened("/* bedrockish_meta */ select 'bedrockish_journal', j.seq FROM Bedrockish_Journal AS j -- end")
    assert found.startswith("/* bedrockish_meta */ WITH bedrockish_open_journal AS NOT MATERIALIZED (")
    assert found.endswith(") select 'bedrockish_journal', j.seq FROM bedrockish_open_journal AS j -- end")
    assert "bedrockish_open_meta" not in found
    found = opened("WITH RECURSIVE a AS (SELECT * FROM bedrockish_meta) SELECT * FROM a")
    assert found.startswith("WITH RECURSIVE bedrockish_open_meta AS NOT MATERIALIZED (")
    assert found.endswith("), a AS (SELECT * FROM bedrockish_open_meta) SELECT * FROM a")

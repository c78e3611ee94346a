"""The rights that a compiled statement needs, and the replacements that users other than admins read instead of
secrets.
"""

from dataclasses import replace

import pytest

from bedrockish.api.requests import Statement
from bedrockish.engine.statements.rights import Access, opened
from bedrockish.errors import ForbiddenError, SqlError, UnsupportedError
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
            list(node.engine._executor.texts.pieces(Statement(sql), name))
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
def test_statement_needs_the_rights_of_its_tables(shop: TestNode, sql: str, role: int) -> None:
    """The needed role is the same the second time, when the statement is compiled already."""
    assert needs(shop, sql) == role
    assert needs(shop, sql) == role


def test_optimize_is_a_hint_that_only_an_owner_gives(node: TestNode) -> None:
    """Programs run it at their end, so for a reader it does nothing; ANALYZE is an order, and is refused."""
    node.run("CREATE TABLE item(name)", "CREATE INDEX i ON item(name)")
    node.run("INSERT INTO item(name) VALUES ('x'), ('y')")
    node.engine.access.learn({name: UserSaid("", role, 1) for name, role in USERS.items()}, ["A"])

    def writes(sql: str, user: str) -> bool:
        return any(
            piece.required_role >= OWNER for piece, _ in node.engine._executor.texts.pieces(Statement(sql), user)
        )

    assert [writes("PRAGMA optimize", user) for user in ("reader", "writer", "owner", "admin")] == [
        False,
        False,
        True,
        True,
    ]
    with pytest.raises(ForbiddenError):
        writes("ANALYZE", "writer")


def test_cluster_without_users_has_no_limits_of_rights(node: TestNode) -> None:
    node.run("CREATE TABLE t(x)")
    assert node.engine.access.of("") is None
    node.run("INSERT INTO t VALUES (1)")


def test_logins_map_to_roles() -> None:
    access = Access()
    access.bootstrap = ("ann", "gone")
    access.learn({"will": UserSaid("", WRITER, 1), "gone": None}, ["A"])
    roles = {
        "will": WRITER,
        "client:will": WRITER,  # a client's certificate
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


def test_rights_of_a_request_are_checked_at_each_execution(shop: TestNode) -> None:
    """A statement that ran before is refused after the right is gone, and the error names the right."""
    insert = replace(request("INSERT INTO item(name) VALUES ('x')"), user="writer")
    shop.engine.execute(insert)
    shop.engine.access.learn({"writer": UserSaid("", READER, 1)}, [])
    with pytest.raises(ForbiddenError, match="writer needs the role writer; an admin gives it with 'bedrockish user"):
        shop.engine.execute(insert)
    with pytest.raises(ForbiddenError, match="does not know eve"):
        shop.engine.execute(replace(insert, user="eve"))
    with pytest.raises(ForbiddenError, match="does not know this caller"):
        shop.engine.execute(replace(insert, user=""))


def test_error_names_a_valid_command_that_grants_the_right() -> None:
    """The command in the error is valid also for a certificate's user, with a colon in the name, and any table."""
    access = Access()
    access.learn({"app": UserSaid("", READER, 1), "una": UserSaid("", 0, 1, {"item": READER})}, [])
    by_password, by_certificate = access.of("app"), access.of("client:app")
    assert by_password is not None
    assert by_certificate is not None
    for rights in (by_password, by_certificate):
        told = rights.lacks(ADMIN, "this").message
        assert told.endswith(f"for which {rights.user} needs the role admin; {GIVES} URL app admin'")
    told = by_certificate.lacks(WRITER, "this", "my table").message
    assert told.endswith("URL app writer --table 'my table''")
    stranger = access.of("client:bob")
    assert stranger is not None
    told = stranger.lacks(READER, "this").message
    assert told.endswith("an admin makes that user with 'bedrockish user add URL bob'"), told


GIVES = "an admin gives it with 'bedrockish user grant"


@pytest.mark.parametrize("name", ["bedrockish_open_journal", '"bedrockish_open_meta"', "[BEDROCKISH_OPEN_META]"])
def test_names_of_hidden_tables_cannot_be_reused(shop: TestNode, name: str) -> None:
    """Otherwise a CTE of that name could read secrets, and SQLite would report a read of the permitted table."""
    for user in ("reader", "admin"):
        with pytest.raises(UnsupportedError, match="belongs to the database itself"):
            list(shop.engine._executor.texts.pieces(Statement(f"WITH {name} AS (SELECT 1) SELECT * FROM {name}"), user))


def test_names_of_system_tables_are_replaced_except_in_literals_and_comments() -> None:
    assert opened("SELECT 'bedrockish_journal', x FROM t") == "SELECT 'bedrockish_journal', x FROM t"
    assert opened("SELECT 1") == "SELECT 1"
    found = opened("/* bedrockish_meta */ select 'bedrockish_journal', j.seq FROM Bedrockish_Journal AS j -- end")
    assert found.startswith("/* bedrockish_meta */ WITH bedrockish_open_journal AS NOT MATERIALIZED (")
    assert found.endswith(") select 'bedrockish_journal', j.seq FROM bedrockish_open_journal AS j -- end")
    assert "bedrockish_open_meta" not in found
    found = opened("WITH RECURSIVE a AS (SELECT * FROM bedrockish_meta) SELECT * FROM a")
    assert found.startswith("WITH RECURSIVE bedrockish_open_meta AS NOT MATERIALIZED (")
    assert found.endswith("), a AS (SELECT * FROM bedrockish_open_meta) SELECT * FROM a")


@pytest.fixture
def ledger(node: TestNode) -> TestNode:
    """Ann reads "account" and changes "note"; nothing else is hers."""
    node.run(
        "CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT)",
        "CREATE TABLE note(id INTEGER PRIMARY KEY, x)",
        "CREATE TABLE secret(id INTEGER PRIMARY KEY, x)",
        "CREATE TABLE parent(id INTEGER PRIMARY KEY)",
        "CREATE TABLE child(x REFERENCES parent(id) ON DELETE CASCADE)",
        "CREATE TABLE watched(x)",
        "CREATE TRIGGER t AFTER INSERT ON watched BEGIN INSERT INTO secret(x) VALUES (new.x); END",
        "CREATE VIEW account_view AS SELECT owner FROM account",
        "CREATE VIEW note_of AS SELECT x FROM note",
        "CREATE VIEW secret_view AS SELECT x FROM secret",
    )
    tables = {"Account": READER, "note": WRITER, "watched": WRITER, "secret_view": READER, "parent": WRITER}
    node.engine.access.learn({"ann": UserSaid("", 0, 1, tables), "rita": UserSaid("", READER, 1, {"note": WRITER})}, [])
    return node


@pytest.mark.parametrize(
    ("sql", "lacks"),
    [
        ("SELECT 1", ""),
        ("SELECT * FROM account", ""),
        ("SELECT a.owner FROM ACCOUNT AS a JOIN note USING (id)", ""),
        ("SELECT * FROM account_view", ""),
        ("SELECT count(*) FROM account, json_each('[1]')", ""),
        ("INSERT INTO note(x) SELECT owner FROM account", ""),
        ("UPDATE note SET x = 1 WHERE id IN (SELECT id FROM account)", ""),
        ("SELECT name FROM sqlite_master", ""),
        ("PRAGMA table_info(secret)", ""),
        ("SELECT * FROM secret", "secret"),
        ("SELECT 1 FROM secret", "secret"),
        ("SELECT count(*) FROM secret", "secret"),
        ("SELECT EXISTS (SELECT 1 FROM main.secret)", "secret"),
        ("SELECT * FROM account UNION SELECT * FROM secret", "secret"),
        ("SELECT (SELECT max(x) FROM secret) FROM account", "secret"),
        ("SELECT owner FROM account WHERE id IN secret_view", "secret"),
        ("SELECT * FROM secret_view", "secret"),
        ("SELECT count(*) FROM secret_view", "secret"),
        ("WITH secret_view AS (SELECT x FROM secret) SELECT * FROM secret_view", "secret"),
        ("WITH account_view AS (SELECT x FROM secret) SELECT * FROM account_view", "secret"),
        ("INSERT INTO note(x) SELECT x FROM secret", "secret"),
        ("UPDATE note SET x = (SELECT x FROM secret)", "secret"),
        ("INSERT INTO note(x) VALUES (1) RETURNING (SELECT x FROM secret)", "secret"),
        ("INSERT INTO account(owner) VALUES ('ann')", "account"),
        ("DELETE FROM account", "account"),
        ("INSERT INTO watched VALUES (1)", "secret"),
        ("DELETE FROM parent", "child"),
        ("EXPLAIN SELECT * FROM secret", "secret"),
        ("SELECT * FROM bedrockish_changes", "bedrockish_changes"),
        ("SELECT * FROM bedrockish_users", "bedrockish_users"),
        ("SELECT command FROM bedrockish_journal", "bedrockish_journal"),
        ("SELECT * FROM dbstat", "dbstat"),
        ("SELECT * FROM sqlite_sequence", "sqlite_sequence"),
        ("PRAGMA foreign_key_check", "PRAGMA foreign_key_check"),
        ("SELECT * FROM pragma_foreign_key_check", "pragma_foreign_key_check"),
        ("CREATE TABLE more(x)", "schema"),
    ],
)
def test_roles_for_single_tables_limit_every_access(ledger: TestNode, sql: str, lacks: str) -> None:
    """Every access counts, also by views, triggers and foreign keys: they run with the rights of the caller."""
    for _ in range(2):
        if not lacks:
            list(ledger.engine._executor.texts.pieces(Statement(sql), "ann"))
            continue
        with pytest.raises((ForbiddenError, SqlError), match=f"{lacks}|no such table"):
            list(ledger.engine._executor.texts.pieces(Statement(sql), "ann"))


def test_role_for_all_tables_and_role_for_one_table_add_up(ledger: TestNode) -> None:
    pieces = ledger.engine._executor.texts.pieces
    for sql in ("SELECT * FROM secret", "INSERT INTO note(x) SELECT x FROM secret"):
        list(pieces(Statement(sql), "rita"))
    with pytest.raises(
        ForbiddenError, match=r"changes account, for which rita needs the role writer; .* --table account"
    ):
        list(pieces(Statement("DELETE FROM account"), "rita"))
    list(pieces(Statement("SELECT * FROM note_of"), "ann"))


def test_a_name_is_folded_as_sqlite_does(node: TestNode) -> None:
    """Two names that are two tables for SQLite are two here, too."""
    node.run('CREATE TABLE "é"(x)', 'CREATE TABLE "É"(x)', "CREATE TABLE Plain(x)")
    node.engine.access.learn({"ann": UserSaid("", 0, 1, {"é": READER, "PLAIN": READER})}, [])
    list(node.engine._executor.texts.pieces(Statement('SELECT * FROM "é", plain'), "ann"))
    with pytest.raises(ForbiddenError, match="reads É"):
        list(node.engine._executor.texts.pieces(Statement('SELECT * FROM "É"'), "ann"))

"""PRAGMAs that applications send: the replicated ones, those for one request, and the refused ones."""

import apsw
import pytest

from bedrockish.engine.statements.pragmas import is_replicated
from bedrockish.errors import ConstraintError, SqlError, UnsupportedError
from bedrockish.sqltext.session_settings import first_setting
from bedrockish_journal.model.transaction import ROWS
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode


def test_the_version_of_a_migration_is_set_on_every_node(make_node: MakeNode) -> None:
    first, second = make_node("A"), make_node("B")
    first.run("CREATE TABLE t(x)", "PRAGMA user_version = 7; PRAGMA main.application_id(42)")
    for entry in first.entries:
        second.apply(entry)
    for node in (first, second):
        assert node.rows("PRAGMA user_version") == [(7,)]
        assert node.rows("PRAGMA application_id") == [(42,)]
    assert second.engine.schema_version == 1


def test_setting_user_version_is_a_schema_change_unless_it_is_unchanged(node: TestNode) -> None:
    assert not node.prepare("PRAGMA user_version = 3").readonly
    assert node.rows("PRAGMA user_version") == [(0,)]
    node.run("PRAGMA user_version = 3")
    assert node.prepare("PRAGMA user_version = 3").readonly


@pytest.mark.parametrize("sql", ["ANALYZE", "PRAGMA optimize"])
def test_gathering_the_same_statistics_again_changes_nothing(node: TestNode, sql: str) -> None:
    """SQLite's own PRAGMA optimize analyses an empty table, and one with an empty index, each time."""
    node.run("CREATE TABLE bare(x)", "CREATE TABLE t(x)", "CREATE INDEX large ON t(x) WHERE x > 100")
    node.run("INSERT INTO t VALUES (1), (2)")
    assert not node.prepare(sql).readonly
    node.run(sql)
    assert node.prepare(sql).readonly
    node.run("INSERT INTO bare VALUES (1)")
    assert not node.prepare(sql).readonly


@pytest.mark.parametrize("value", ["ON", "1", "true", "yes"])
def test_foreign_keys_may_be_switched_on_anywhere(node: TestNode, value: str) -> None:
    node.run(f"PRAGMA foreign_keys = {value}; CREATE TABLE t(x)")
    results = node.run(f"PRAGMA foreign_keys = {value}", "INSERT INTO t VALUES (1)", "PRAGMA foreign_keys")
    assert [result.rows for result in results] == [[], [], [(1,)]]


@pytest.mark.parametrize("pragma", ["legacy_alter_table = OFF", "writable_schema = 0", "trusted_schema = ON"])
def test_present_value_of_a_setting_may_be_set(node: TestNode, pragma: str) -> None:
    assert node.run(f"PRAGMA {pragma}")[0].rows == []


@pytest.fixture
def family(node: TestNode) -> TestNode:
    node.run("CREATE TABLE parent(id INTEGER PRIMARY KEY)", "CREATE TABLE child(parent REFERENCES parent(id))")
    return node


CHILD, PARENT = "INSERT INTO child VALUES (1)", "INSERT INTO parent VALUES (1)"


def test_foreign_keys_may_be_deferred_for_one_request(family: TestNode) -> None:
    defer = "PRAGMA defer_foreign_keys = ON"
    with pytest.raises(ConstraintError):
        family.run(CHILD, PARENT)
    for _ in range(3):  # once compiled, and then from the list of known texts
        with pytest.raises(ConstraintError, match="deferred"):
            family.run(defer, CHILD)
        assert family.prepare(defer, CHILD, PARENT).kind == ROWS
        with pytest.raises(ConstraintError):  # the earlier request has no effect any more
            family.run(CHILD, PARENT)
    with pytest.raises(ConstraintError):
        family.run(defer, "PRAGMA defer_foreign_keys = OFF", CHILD, PARENT)
    with pytest.raises(UnsupportedError):
        family.run(defer + "; PRAGMA case_sensitive_like = ON")
    with pytest.raises(ConstraintError):
        family.run(CHILD, PARENT)


@pytest.mark.parametrize(
    ("sql", "is_one"),
    [
        ("PRAGMA user_version = 1", True),
        ("pragma main . [USER_VERSION](1);", True),
        ("/* up */ PRAGMA application_id=1", True),
        ("PRAGMA user_version", False),
        ("PRAGMA main.user_version;", False),
        ("PRAGMA", False),
        ("PRAGMA table_info(user_version)", False),
        ("SELECT 'PRAGMA user_version = 1", False),
        ("", False),
    ],
)
def test_pragma_is_replicated_only_if_it_sets_a_number_of_the_file(sql: str, is_one: bool) -> None:
    assert is_replicated(sql) is is_one


@pytest.mark.parametrize(
    "text",
    [
        "journal_mode = WAL\nINSERT INTO t VALUES (1)",
        "synchronous = OFF SELECT 1",
        "cache_size = -2000 x",
        "busy_timeout(5) x",
        "busy_timeout(5",
        "mmap_size =",
        "optimize x",
        "temp_store = - x",
        "journal_mode = x'00'",
        "case_sensitive_like = ON SELECT 1",
        "recursive_triggers = ON\nINSERT INTO t VALUES (1)",
    ],
)
def test_a_pragma_without_a_semicolon_before_the_next_statement_is_refused(node: TestNode, text: str) -> None:
    """Otherwise the next statement would be left out without an error."""
    sql = f"PRAGMA {text}"
    with pytest.raises(apsw.Error) as plain:
        apsw.Connection(":memory:").execute(f"EXPLAIN {sql}")
    assert first_setting(sql) is None
    if text.startswith(("case", "recursive")):
        return  # the client sends the text to a node, which refuses it
    with pytest.raises(SqlError) as ours:
        node.run(sql)
    assert ours.value.message == str(plain.value)


@pytest.mark.parametrize(
    "value", [" = ON", "=1;", "(yes)", " = 'on' -- a", "/* a */ = /* b */ true /* c */ ;", "( +1 )"]
)
def test_a_setting_of_a_session_may_have_comments(value: str) -> None:
    found = first_setting(f"PRAGMA recursive_triggers{value}")
    assert found is not None
    assert found[:2] == ("recursive_triggers", True)

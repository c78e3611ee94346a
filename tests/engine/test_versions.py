"""Schema changes in a node's file: noted when committed, run when activated, the same in every replay."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from bedrockish.api.requests import Token
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage.moment_row import QUERY, FileMoment, read
from bedrockish.local.snapshots import may_see
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.moment import Moment
from bedrockish_journal.model.transaction import Transaction, Txid, decode_transaction
from bedrockish_journal.storage.schema_history import ACTIVE, FAILED, SCHEDULED, SchemaStanding
from bedrockish_journal.verify.replay import digest, replay
from bedrockish_journal.verify.restore import restore
from bedrockish_journal.verify.verify import verify
from tests.engine.nodes import Sql, TestNode


def decide(node: TestNode, *statements: Sql, after: int = 10) -> Entry:
    """Commit a schema change that comes into force later."""
    entry = node.entry(node.prepare(*statements))
    made = entry.transaction
    changed = replace(made, activates=made.txid.clock + after, body=b"")
    entry = Entry(node.node, entry.tick, entry.quorum, changed, None, entry.prev)
    node.head = entry.hash
    node.apply(entry)
    node.entries.append(entry)
    return entry


def history(node: TestNode) -> list[Any]:
    return node.rows("SELECT version, state, failure, statements FROM bedrockish_schema ORDER BY version")


def shown(node: TestNode) -> FileMoment:
    [(text,)] = node.engine._db.execute(QUERY).fetchall()
    moment = read(text)
    assert moment is not None
    return moment


@pytest.fixture
def shop(node: TestNode) -> TestNode:
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)")
    node.run("INSERT INTO item VALUES (1, 'a'), (2, 'b')")
    return node


def test_a_change_waits_for_its_activation(shop: TestNode) -> None:
    entry = decide(shop, "ALTER TABLE item ADD COLUMN price INTEGER DEFAULT 7", "PRAGMA user_version = 3")
    assert shop.engine.versions.standing(entry.txid) == SchemaStanding(SCHEDULED, "")
    shop.run("INSERT INTO item VALUES (3, 'c')")  # still on the old schema
    assert (shop.engine.schema_version, shop.rows("PRAGMA user_version")) == (1, [(0,)])
    assert shop.engine.versions.activate(entry.txid) == ""
    assert shop.engine.versions.standing(entry.txid) == SchemaStanding(ACTIVE, "")
    assert shop.rows("SELECT id, price FROM item") == [(1, 7), (2, 7), (3, 7)]
    assert (shop.engine.schema_version, shop.rows("PRAGMA user_version")) == (2, [(3,)])
    assert history(shop)[1][3] == "ALTER TABLE item ADD COLUMN price INTEGER DEFAULT 7;\nPRAGMA user_version = 3"


def test_scheduled_change_is_in_the_moment_of_a_snapshot(shop: TestNode) -> None:
    """A program on the file that has seen the change elsewhere must not use this snapshot."""
    shop.engine.flush()
    entry = decide(shop, "DROP TABLE item")
    shop.engine.flush()
    moment = shown(shop)
    assert (moment.schema, moment.following) == (1, entry.transaction.activates)
    assert not may_see(moment, Token(moment.vector, entry.transaction.activates))
    assert may_see(moment, Token(moment.vector, entry.transaction.activates - 1))
    shop.engine.versions.activate(entry.txid)
    shop.engine.flush()
    moment = shown(shop)
    assert (moment.schema, moment.in_force, moment.following) == (2, entry.transaction.activates, None)


def test_constraint_failure_at_activation_changes_nothing_but_the_version(shop: TestNode, tmp_path: Path) -> None:
    """If duplicates arrive between the decision and the activation, the whole change fails, and the version goes up."""
    entry = decide(shop, "CREATE TABLE other(x)", "CREATE UNIQUE INDEX one_name ON item(name)")
    shop.run("INSERT INTO item VALUES (3, 'a')")
    before = shop.tables()
    failure = shop.engine.versions.activate(entry.txid)
    assert failure == "UNIQUE constraint failed: item.name"
    assert shop.tables() == before
    assert shop.engine.schema_version == 2
    assert [row[1] for row in history(shop)] == [ACTIVE, FAILED]
    shop.run("INSERT INTO item VALUES (4, 'a')")
    shop.engine.flush()
    made = replay([shop.path], tmp_path / "made.sqlite")
    assert made.digest == digest(shop.path)


def test_scheduled_change_survives_a_restart(shop: TestNode) -> None:
    entry = decide(shop, "CREATE INDEX by_name ON item(name)")
    shop.engine.flush()
    shop.engine.close()
    shop.engine = Engine.open(shop.path, founding=None)
    recovered = shop.engine.recover()
    assert recovered.scheduled is not None
    assert (recovered.schema, recovered.scheduled.txid, recovered.scheduled.activates) == (
        1,
        entry.txid,
        entry.txid.clock + 10,
    )
    assert shop.engine.versions.activate(entry.txid) == ""
    shop.engine.flush()
    assert shop.engine.recover().scheduled is None
    assert shop.engine.recover().schema == 2


def test_activation_is_repeated_with_its_batch(shop: TestNode) -> None:
    """If a request makes SQLite roll back the open batch, the engine repeats the batch with its activation."""
    entry = decide(shop, "ALTER TABLE item ADD COLUMN n")
    shop.engine.versions.activate(entry.txid)
    with pytest.raises(Exception, match="UNIQUE"):
        shop.run("INSERT OR ROLLBACK INTO item VALUES (1, 'z', 0)")
    assert shop.engine.schema_version == 2
    assert shop.rows("SELECT n FROM item WHERE id = 1") == [(None,)]


def test_a_replay_brings_a_schema_change_into_force_at_the_clock_of_the_nodes(shop: TestNode, tmp_path: Path) -> None:
    entry = decide(shop, "CREATE TABLE log(text)", "ALTER TABLE item RENAME COLUMN name TO title")
    shop.run("INSERT INTO item VALUES (9, 'old schema')")
    shop.engine.flush()
    # in the replay the change waits, too
    assert replay([shop.path], tmp_path / "before.sqlite").digest == digest(shop.path)
    shop.engine.versions.activate(entry.txid)
    shop.engine.flush()
    # no statement has run on the new schema yet
    assert replay([shop.path], tmp_path / "just.sqlite").digest == digest(shop.path)
    shop.run("INSERT INTO item(id, title) VALUES (10, 'new schema')")
    shop.run("INSERT INTO log VALUES ('x')")
    shop.engine.flush()
    for number, draw in enumerate((None, Random(1).random, Random(2).random)):
        made = replay([shop.path], tmp_path / f"{number}.sqlite", draw=draw)
        assert (made.digest, made.statements) == (digest(shop.path), 3)
    assert not [found for found in verify([shop.path]).findings if found.check not in ("members", "quorum")]


def test_a_restore_has_the_schema_of_its_moment(shop: TestNode, tmp_path: Path) -> None:
    """A decided change is in force from its clock on, even if no statement has run on it."""
    early, made = tmp_path / "early.sqlite", tmp_path / "made.sqlite"

    def restored(until: Moment | None) -> list[str]:
        """Restore from a backup in which the change waits, and backwards from the journal's end."""
        shop.engine.flush()
        found = []
        for backup in (early, shop.path):
            found.append(restore(backup, made, journals=[shop.path], until=until).digest)
            made.unlink()
        return found

    entry = decide(shop, "ALTER TABLE item ADD COLUMN price INTEGER DEFAULT 7", after=2)
    shop.engine.flush()
    shop.engine.background.snapshot_to(early)
    shop.run("INSERT INTO item VALUES (3, 'c')")
    shop.engine.flush()
    before, less = digest(shop.path), Moment("less", vector={"A": shop.tick - 1})
    shop.engine.versions.activate(entry.txid)
    shop.engine.set_meta("safe", entry.transaction.activates)
    shop.engine.flush()
    after, just = digest(shop.path), Moment("just", vector={"A": shop.tick})
    at_once = Moment("at once", clock=entry.transaction.activates)
    earlier = Moment("earlier", clock=entry.transaction.activates - 1)
    assert before != after
    assert restored(earlier) == [before] * 2
    assert restored(at_once) == restored(just) == restored(None) == [after] * 2
    shop.run("INSERT INTO item VALUES (4, 'd', 8)")
    assert shop.entries[-1].txid.clock == at_once.clock
    shop.engine.flush()
    assert restored(at_once) == restored(None) == [digest(shop.path)] * 2
    assert restored(earlier) == [before] * 2
    assert restored(just) == [after] * 2
    restore(early, made, journals=[shop.path], until=less)  # the omitted commits ran on the old schema
    assert apsw.Connection(str(made)).execute("SELECT * FROM item").fetchall() == [(1, "a"), (2, "b")]


def test_dropping_a_parent_table_treats_children_as_sqlite_does(shop: TestNode, tmp_path: Path) -> None:
    """DROP TABLE first deletes the rows, with the actions of foreign keys, at each node and in a replay."""
    shop.run("CREATE TABLE part(item INTEGER REFERENCES item(id) ON DELETE SET NULL)")
    shop.run("INSERT INTO part VALUES (1), (2)")
    entry = decide(shop, "DROP TABLE item")
    shop.engine.versions.activate(entry.txid)
    assert shop.rows("SELECT * FROM part") == [(None,), (None,)]
    shop.engine.flush()
    assert replay([shop.path], tmp_path / "made.sqlite").digest == digest(shop.path)


def test_encoded_transaction_has_its_activation_clock(shop: TestNode) -> None:
    plain = shop.entry(shop.prepare("CREATE TABLE t(x)")).transaction
    later = replace(plain, activates=99, body=b"")
    assert decode_transaction(later.body).activates == 99
    assert decode_transaction(plain.body).activates == 0
    assert isinstance(later, Transaction)
    assert later.txid == Txid(plain.txid.clock, "A")

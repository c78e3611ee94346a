"""The journal's tables: appended entries are found by every query, and files are opened or refused."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import cbor2
import pytest

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.errors import (
    EntryMalformedError,
    FileMissingError,
    FileUnreadableError,
    JournalFileError,
    NoJournalError,
    NotDatabaseError,
)
from bedrockish_journal.model.transaction import Transaction, Txid, decode_transaction
from bedrockish_journal.storage import store
from bedrockish_journal.storage.pruning import remove


def make(leader: str, tick: int, clock: int, prev: bytes = GENESIS, origin: str = "", body: bytes = b"") -> Entry:
    transaction = Transaction(
        Txid(clock, origin or leader), {}, 0, 0, 0, f"c{clock}", "serializable", "rows", AccessSet(), body, b""
    )
    return Entry(leader, tick, {leader: tick}, transaction, origin or None, prev)


@pytest.fixture
def db() -> Iterator[apsw.Connection]:
    db = apsw.Connection(":memory:")
    store.create(db)
    yield db
    db.close()


def fill(db: apsw.Connection, entries: list[Entry], repeats: tuple[int, ...] = ()) -> None:
    for place, entry in enumerate(entries):
        store.append(db, entry, repeat=place in repeats, applied_ms=7)


def test_empty_journal_has_no_heads(db: apsw.Connection) -> None:
    assert store.heads(db) == {}
    assert store.applied(db) == {}
    assert list(store.scan(db)) == []
    assert store.read(db, "A", 1, 100) == []


def test_appended_entries_are_found_by_place_and_txid(db: apsw.Connection) -> None:
    a1, b1 = make("A", 1, 10), make("B", 1, 11)
    a2 = make("A", 2, 12, a1.hash)
    b2 = make("B", 2, 10, b1.hash, origin="A")
    fill(db, [a1, b1, a2, b2], repeats=(3,))
    assert list(store.scan(db)) == [a1, b1, a2, b2]
    assert list(store.scan_timeline(db, "B")) == [b1, b2]
    assert store.heads(db) == {"A": (2, a2.hash), "B": (2, b2.hash)}
    assert store.applied(db) == {"A": 2, "B": 2}
    assert store.find_command(db, "c10") == a1
    assert store.find_command(db, "none") is None
    assert store.find_txid(db, Txid(10, "A")) == [a1, b2]
    assert store.find_txid(db, Txid(10, "B")) == []
    assert store.find_places(db, Txid(10, "A")) == [a1.place, b2.place]
    assert store.find_places(db, Txid(10, "B")) == []
    assert [row.entry() for row in store.tail_stored(db, 10)] == [b1, a2]
    assert [row.entry() for row in store.tail_stored(db, 9)] == [a1, b1, a2, b2]
    *_, stored = store.scan_stored(db)
    assert stored.entry() == b2
    assert (stored.repeat, stored.applied_ms, stored.origin) == (1, 7, "A")


def test_find_command_finds_each_command_of_a_shared_transaction(db: apsw.Connection) -> None:
    """A command is not found a second time under another label, nor after its transaction was removed."""
    a1 = make("A", 1, 10)
    shared = replace(a1.transaction, joined=(("second", b"two"), ("third", b"three")), body=b"")
    assert decode_transaction(shared.body) == shared
    a1 = replace(a1, transaction=shared, hash=b"")
    b1 = replace(make("B", 1, 10, origin="A"), transaction=shared, hash=b"")
    fill(db, [a1, b1], repeats=(1,))
    assert [store.find_command(db, command) for command in shared.commands] == [a1, a1, a1]
    found = store.find_command(db, "third")
    assert found is not None
    assert [found.transaction.result_of(command) for command in shared.commands] == [b"", b"two", b"three"]
    assert remove(db, {"A": 1}) == 1
    assert store.find_command(db, "third") is None


@pytest.mark.parametrize("shares", [1, [1], [1, 2, 3], [1, -1], [1, "1"], [1, True], [1, 1.0], [0, 1 << 63]])
def test_malformed_counts_of_changes_for_each_command_are_refused(shares: object) -> None:
    whole = replace(make("A", 1, 10).transaction, joined=(("second", b"two"),), shares=(3, 0), body=b"")
    assert decode_transaction(whole.body) == whole
    fields = cbor2.loads(whole.body)
    fields[16] = shares
    with pytest.raises(EntryMalformedError):
        decode_transaction(cbor2.dumps(fields))


def test_author_is_the_last_optional_field_of_a_transaction() -> None:
    """Empty fields at the end are left out."""
    plain = make("A", 1, 10).transaction
    assert len(cbor2.loads(plain.body)) == 14
    mine = replace(plain, users=("ann",), body=b"")
    assert cbor2.loads(mine.body)[14:] == [0, [], [], ["ann"]]
    assert (decode_transaction(mine.body), decode_transaction(mine.body).user_of("c10")) == (mine, "ann")
    shared = replace(plain, joined=(("second", b""), ("third", b"")), users=("ann", "", "bob"), body=b"")
    assert decode_transaction(shared.body) == shared
    assert [shared.user_of(command) for command in (*shared.commands, "none", None)] == ["ann", None, "bob", None, None]


@pytest.mark.parametrize("users", [1, [], [1, 2], ["ann"], ["ann", 1], ["", ""], ["ann", "bob", "eve"]])
def test_malformed_list_of_users_is_refused(users: object) -> None:
    whole = replace(make("A", 1, 10).transaction, joined=(("second", b"two"),), users=("ann", "bob"), body=b"")
    assert decode_transaction(whole.body) == whole
    fields = cbor2.loads(whole.body)
    fields[17] = users
    with pytest.raises(EntryMalformedError):
        decode_transaction(cbor2.dumps(fields))


def test_body_has_the_digests_of_requests_behind_the_users() -> None:
    plain = make("A", 1, 10).transaction
    assert (plain.digests, plain.digest_of("c10")) == ((), b"")
    one = replace(plain, digests=(bytes(16),), body=b"")
    assert cbor2.loads(one.body)[14:] == [0, [], [], [], [bytes(16)]]
    assert (decode_transaction(one.body), one.digest_of("c10"), one.digest_of("none")) == (one, bytes(16), b"")
    shared = replace(one, joined=(("second", b"two"),), digests=(b"1" * 16, b"2" * 16), users=("", "bob"), body=b"")
    assert decode_transaction(shared.body) == shared
    assert shared.digest_of("second") == b"2" * 16


@pytest.mark.parametrize("digests", [1, [], [1], [b"short"], ["1" * 16], [bytes(16)] * 2])
def test_malformed_digests_are_refused(digests: object) -> None:
    fields = cbor2.loads(replace(make("A", 1, 10).transaction, digests=(bytes(16),), body=b"").body)
    fields[18] = digests
    with pytest.raises(EntryMalformedError):
        decode_transaction(cbor2.dumps(fields))


@pytest.mark.parametrize("joined", [1, [1], [["a"]], [["a", "b"]], [[b"a", b"b"]], [["a", b"b", 1]]])
def test_malformed_joined_commands_are_refused(joined: object) -> None:
    whole = replace(make("A", 1, 10).transaction, joined=(("second", b"two"),), body=b"")
    fields = cbor2.loads(whole.body)
    fields[15] = joined
    with pytest.raises(EntryMalformedError):
        decode_transaction(cbor2.dumps(fields))


def test_reading_stops_at_the_limit_and_at_a_gap(db: apsw.Connection) -> None:
    entries = [make("A", 1, 1, body=bytes(1000))]
    for tick in (2, 3, 5):
        entries.append(make("A", tick, tick, entries[-1].hash, body=bytes(1000)))
    fill(db, entries)
    assert [entry.tick for entry in store.read(db, "A", 1, 1)] == [1]
    assert [entry.tick for entry in store.read(db, "A", 2, 2500)] == [2, 3]
    assert [entry.tick for entry in store.read(db, "A", 1, 1 << 20)] == [1, 2, 3]
    assert store.read(db, "A", 4, 1 << 20) == []
    assert [entry.tick for entry in store.read(db, "A", 5, 0)] == [5]


def test_queries_for_heads_use_indexes_and_no_scans(db: apsw.Connection) -> None:
    """Each step of the plan is a search by an index; nothing walks over the journal."""
    plan = [
        str(row[3]) for query in (store._HEADS, store._APPLIED) for row in db.execute(f"EXPLAIN QUERY PLAN {query}")
    ]
    assert not [step for step in plan if step.startswith("SCAN") and "leaders" not in step]
    for query in (store._TXID, store._TAIL):
        plan = [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {query}", (1, "A")[: query.count("?2") + 1])]
        assert not [step for step in plan if step.startswith("SCAN")]


def test_appending_a_place_or_transaction_twice_fails(db: apsw.Connection) -> None:
    a1 = make("A", 1, 10)
    fill(db, [a1])
    for entry in (make("A", 1, 11), make("A", 2, 10, a1.hash)):
        with pytest.raises(apsw.ConstraintError):
            store.append(db, entry, repeat=False, applied_ms=0)


def test_a_clock_that_sqlite_cannot_order_is_refused(db: apsw.Connection) -> None:
    with pytest.raises(EntryMalformedError, match="below 2"):
        store.append(db, make("A", 1, 1 << 63), repeat=False, applied_ms=0)
    store.append(db, make("A", 1, (1 << 63) - 1), repeat=False, applied_ms=0)


def test_an_entry_that_was_altered_is_not_read(db: apsw.Connection) -> None:
    fill(db, [make("A", 1, 10)])
    db.execute("UPDATE bedrockish_journal SET prev = ?", (b"\1" * 32,))
    with pytest.raises(EntryMalformedError, match="differs from the written entry"):
        store.read(db, "A", 1, 100)


def refused(path: Path, error: type[JournalFileError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        store.open_readonly(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)


def test_files_without_a_journal_are_refused_with_the_reason(tmp_path: Path) -> None:
    refused(tmp_path / "none.db", FileMissingError, "no such file")
    refused(tmp_path, FileUnreadableError, "not a file")
    (tmp_path / "empty.db").touch()
    refused(tmp_path / "empty.db", NotDatabaseError, "is empty")
    (tmp_path / "text.db").write_text("this is a text, and long enough to be looked at as a database" * 40)
    refused(tmp_path / "text.db", NotDatabaseError, "not a SQLite database")
    plain = apsw.Connection(str(tmp_path / "plain.db"))
    plain.execute("CREATE TABLE a(b)")
    plain.close()
    refused(tmp_path / "plain.db", NoJournalError, "without a journal")


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is readable for root")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret.db"
    file.write_bytes(b"x" * 100)
    file.chmod(0)
    refused(file, FileUnreadableError, "may not be read")


def test_the_file_of_a_running_node_is_read(tmp_path: Path) -> None:
    file = tmp_path / "it's 100% a?b#c.db"
    node = apsw.Connection(str(file))
    node.execute("PRAGMA journal_mode = WAL")
    store.create(node)
    entry = make("A", 1, 1)
    fill(node, [entry])
    node.execute("BEGIN IMMEDIATE")
    fill(node, [make("A", 2, 2, entry.hash)])
    reader = store.open_readonly(file)
    assert list(store.scan(reader)) == [entry]
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("DELETE FROM main.bedrockish_journal")
    node.execute("COMMIT")
    assert store.applied(reader) == {"A": 2}
    reader.close()
    node.close()


KILLED = """
import os, signal, sys, apsw
from bedrockish_journal.storage import store
from tests.journal.test_store import fill, make
db = apsw.Connection(sys.argv[1])
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA wal_autocheckpoint = 0")
store.create(db)
fill(db, [make("A", 1, 1)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_that_a_killed_node_left_is_read_with_its_wal(tmp_path: Path) -> None:
    file = tmp_path / "node.db"
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    wal = Path(f"{file}-wal")
    size = wal.stat().st_size
    assert size > 0
    for _ in range(2):
        reader = store.open_readonly(file)
        assert store.applied(reader) == {"A": 1}
        reader.close()
        assert wal.stat().st_size == size


def test_journal_read_ends_before_a_damaged_entry(db: apsw.Connection) -> None:
    """The scan returns the entries before it; a scan that begins at it names it."""
    entries = [make("A", 1, 10)]
    for tick in (2, 3):
        entries.append(make("A", tick, 10 + tick, entries[-1].hash))
    fill(db, entries)
    db.execute("UPDATE bedrockish_journal SET body = CAST(substr(body, 2) AS BLOB) WHERE tick = 2")
    assert store.read(db, "A", 1, 1 << 20) == entries[:1]
    with pytest.raises(EntryMalformedError):
        store.read(db, "A", 2, 1 << 20)
    assert store.read(db, "A", 3, 1 << 20) == entries[2:]


def test_clock_before_keeps_the_newest_entries_by_number_and_bytes(db: apsw.Connection) -> None:
    """``clock_before`` counts the entries and their bytes; a second label does not count."""
    entries = [make("A", 1, 10)]
    for tick in range(2, 6):
        entries.append(make("A", tick, 10 * tick, entries[-1].hash, body=bytes(1_000)))
    fill(db, [*entries, make("B", 1, 50, origin="A")], repeats=(5,))
    assert store.clock_before(db, 5, 1 << 20) == 0
    assert store.clock_before(db, 4, 1 << 20) == 10
    assert store.clock_before(db, 2, 1 << 20) == 30
    assert store.clock_before(db, 5, 3_000) == 30
    assert store.clock_before(db, 0, 0) == 50

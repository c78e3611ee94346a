"""Ids of commands: those of removed commits are kept, and those that contain their time can be forgotten."""

import uuid
from dataclasses import replace

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.command_id import make_id, time_ms
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.storage import pruning, store

DAY_MS = 24 * 3_600_000
MADE_MS = 1_700_000_000_000


def test_ids_of_removed_commands_are_remembered_and_those_that_tell_their_time_can_be_forgotten() -> None:
    """Kept ids are found; a possibly forgotten id gives another answer than an unknown one."""
    db = apsw.Connection(":memory:")
    store.create(db)
    db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value)")
    ids = [make_id(MADE_MS + day * DAY_MS, bytes(9) + bytes([day])) for day in range(3)]
    ids[1] = str(uuid.UUID(ids[1]))
    entries: list[Entry] = []
    for number, command in enumerate([*ids, "order-7", "last"], 1):
        joined = (("0-joined", b""),) if command == "order-7" else ()
        made = replace(transaction(number, command), joined=joined, body=b"")
        prev = entries[-1].hash if entries else GENESIS
        entries.append(Entry("A", number, {"A": number}, made, None, prev))
        store.append(db, entries[-1], repeat=False, applied_ms=0)
    before = {command: store.command_txid(db, command) for command in [*ids, "order-7", "0-joined", "last"]}
    assert None not in before.values()
    assert pruning.remove(db, {"A": 4}) == 4
    assert {command: store.command_txid(db, command) for command in before} == before
    assert store.find_command(db, ids[0]) is None
    assert store.command_txid(db, "never") is None
    assert pruning.forgotten_ms(db) == 0
    assert not pruning.old_commands(db, MADE_MS - 1, 100)
    assert [*pruning.old_commands(db, MADE_MS + 2 * DAY_MS, 1)] == ids[:1]
    old = pruning.old_commands(db, MADE_MS + DAY_MS, 100)
    assert old == {ids[0]: MADE_MS, ids[1]: MADE_MS + DAY_MS}
    pruning.forget_commands(db, old)
    assert pruning.forgotten_ms(db) == MADE_MS + DAY_MS
    left = {command: store.command_txid(db, command) for command in before}
    assert left == {**before, ids[0]: None, ids[1]: None}


def test_command_ids_that_only_resemble_uuid7_do_not_affect_others() -> None:
    """Ids that resemble a UUID of version 7 are remembered, without effect on other ids."""
    db = apsw.Connection(":memory:")
    store.create(db)
    db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value)")
    real = [make_id(MADE_MS, bytes(9) + bytes([number])) for number in range(3)]
    real.append(str(uuid.UUID(make_id(MADE_MS, b"hyphenated"))))
    wrong = [make_id(1, bytes(10)).replace("8", "0"), "0" * 12 + "7" + "0" * 19, f"00000000-0000-7000-0000-{'0' * 12}"]
    wrong += [real[0].upper().replace("A", "B"), "0" * 12 + "7" + "é" * 19]
    wrong = [one for one in wrong if time_ms(one) is None]
    assert len(wrong) >= 4
    query = "INSERT INTO bedrockish_past(command, clock, origin) VALUES (?, 1, 'A')"
    db.executemany(query, [(one,) for one in [*real, *wrong]])
    forgotten = 0
    while old := pruning.old_commands(db, MADE_MS, 2):
        pruning.forget_commands(db, old)
        forgotten += len(old)
    assert forgotten == len(real)
    assert {command for (command,) in db.execute("SELECT command FROM bedrockish_past")} == set(wrong)


def transaction(number: int, command: str) -> Transaction:
    txid = Txid(1000 + number, "A")
    return Transaction(txid, {}, 0, 0, 0, command, "serializable", ROWS, AccessSet(), b"", b"")


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_uuid7_command_id_has_its_creation_time(unix_ms: int, random: bytes) -> None:
    command = make_id(unix_ms, random)
    assert uuid.UUID(command).version == 7
    assert uuid.UUID(command).variant == uuid.RFC_4122
    assert time_ms(command) == time_ms(str(uuid.UUID(command))) == unix_ms


OTHERS = {"order-7": "order-7", "empty": "", "hex": uuid.uuid4().hex, "hyphenated": str(uuid.uuid4())}
OTHERS |= {"zeros": "0" * 32, "no digits": "x" + "0" * 31}


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)  # drawn ids in names would be others in each process
def test_ids_other_than_uuid7_have_no_time(command: str) -> None:
    assert time_ms(command) is None

"""Transactions and entries: decoding and encoding give the same bytes, and wrong types are refused."""

import contextlib
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import (
    AT_ONCE_BYTES,
    INSERT,
    PIECE,
    Change,
    decode_changes,
    decode_changes_in_pieces,
    decode_statements,
    encode_changes,
    encode_statements,
)
from bedrockish_journal.model.clock import CLOCK_READ_LIMIT
from bedrockish_journal.model.entry import GENESIS, Entry, decode_entry, decode_label, entry_hash
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import KINDS, Transaction, Txid, decode_transaction, head, parse_txid

U63 = st.integers(0, CLOCK_READ_LIMIT - 1)
names = st.text(max_size=5)
keys = st.binary(max_size=4)
spans = st.lists(st.tuples(keys, keys), max_size=2).map(tuple)
access_sets = st.builds(AccessSet, st.frozensets(keys, max_size=3), spans, st.frozensets(keys, max_size=3), spans)
transactions = st.builds(
    Transaction,
    st.builds(Txid, U63, names),
    st.dictionaries(names, st.integers(1, 1 << 40), max_size=4),
    U63,
    U63,
    U63,
    names,
    st.sampled_from(["serializable", "snapshot"]),
    st.sampled_from(sorted(KINDS)),
    access_sets,
    st.binary(max_size=20),
    st.binary(max_size=20),
)
entries = st.builds(
    Entry,
    names,
    st.integers(1, 1 << 40),
    st.dictionaries(names, st.integers(0, 1 << 40), max_size=4),
    transactions,
    st.none() | names,
    st.binary(min_size=32, max_size=32),
)
values = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | names | st.binary(max_size=9)


@given(transactions)
def test_a_transaction_is_decoded_from_its_own_bytes(transaction: Transaction) -> None:
    again = decode_transaction(transaction.body)
    assert again.body == transaction.body
    assert (again.txid, again.base, again.command) == (transaction.txid, transaction.base, transaction.command)
    assert again.access_set.pack() == transaction.access_set.pack()


@given(entries)
def test_an_entry_is_decoded_from_three_byte_strings(entry: Entry) -> None:
    again = decode_entry(entry.prev, entry.label, entry.transaction.body)
    assert (again.place, again.quorum, again.adopted_from) == (entry.place, entry.quorum, entry.adopted_from)
    assert again.hash == entry.hash == entry_hash(entry.prev, entry.label, entry.transaction.body)
    assert decode_label(entry.label)[:3] == (entry.leader, entry.tick, entry.txid)


@given(entries, st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_the_hash(entry: Entry, place: int, mask: int) -> None:
    parts = [entry.prev, entry.label, entry.transaction.body]
    joined = bytearray(b"".join(parts))
    joined[place % len(joined)] ^= mask
    cut = len(entry.prev), len(entry.prev) + len(entry.label)
    try:
        again = decode_entry(bytes(joined[: cut[0]]), bytes(joined[cut[0] : cut[1]]), bytes(joined[cut[1] :]))
    except EntryMalformedError:
        return
    assert again.hash != entry.hash


@given(st.binary(max_size=60))
def test_malformed_entry_raises_a_typed_error(data: bytes) -> None:
    for decode in (decode_transaction, decode_changes, decode_statements, decode_label):
        with contextlib.suppress(EntryMalformedError):
            decode(data)
    with pytest.raises(EntryMalformedError):
        decode_entry(GENESIS, data, data)


json_like: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | names | keys | st.floats() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(json_like, min_size=13, max_size=14))
def test_cbor_that_is_not_a_transaction_raises_a_typed_error(packed: list[Any]) -> None:
    with contextlib.suppress(EntryMalformedError):
        decode_transaction(cbor2.dumps(packed))


@given(json_like)
def test_cbor_that_is_not_a_list_of_changes_raises_a_typed_error(packed: Any) -> None:
    for decode in (decode_changes, decode_statements, decode_label):
        with contextlib.suppress(EntryMalformedError):
            decode(cbor2.dumps(packed))


@given(st.integers(0), st.integers(1, 255))
def test_flipped_bytes_of_changes_raise_a_typed_error(place: int, mask: int) -> None:
    data = bytearray(encode_changes([Change("t", ("a", "b"), "UPDATE", 1, 2, (1, "x"), (2.5, b"y"))]))
    data[place % len(data)] ^= mask
    with contextlib.suppress(EntryMalformedError):
        decode_changes(bytes(data))


rows = st.none() | st.tuples(values, values)
changes = st.builds(
    Change,
    names,
    st.just(("a", "b")),
    st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    rows,
    rows,
)


@given(st.lists(changes, max_size=4))
def test_changes_are_decoded_with_the_types_of_their_values(made: list[Change]) -> None:
    assert repr(decode_changes(encode_changes(made))) == repr(made)


def test_statements_of_a_schema_change_are_decoded() -> None:
    assert decode_statements(encode_statements(["CREATE TABLE a(b)", ""])) == ["CREATE TABLE a(b)", ""]


@given(st.builds(Txid, U63, st.text(min_size=1, max_size=4)))
def test_a_txid_is_read_as_printed(txid: Txid) -> None:
    assert parse_txid(str(txid)) == txid


@pytest.mark.parametrize("text", ["", "A", "A-", "-1f", "A-xyz"])
def test_malformed_txid_is_refused(text: str) -> None:
    with pytest.raises(EntryMalformedError):
        parse_txid(text)


def test_changes_are_encoded_as_one_array_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long list encoded in pieces has the same bytes as one encoded at once."""
    monkeypatch.setattr("bedrockish_journal.model.changes.PIECE", 4)
    columns = {"a": ("id", "text"), "b": ("id",)}
    for count in (0, 1, 3, 4, 5, 8, 23, 24, 255, 256, 257, 65_536):
        made = [
            Change("b", columns["b"], "INSERT", number, number, None, (number,))
            if number % 3 == 1
            else Change("a", columns["a"], "UPDATE", number, number, (number, "x"), (number, None))
            for number in range(count)
        ]
        names = list(dict.fromkeys(change.table for change in made))
        heads = [[name, list(columns[name])] for name in names]
        rows = [[names.index(one.table), one.op, one.rowid, one.rowid_after, one.before, one.after] for one in made]
        assert encode_changes(made) == cbor2.dumps([heads, rows]), count


def test_head_of_an_array_is_encoded_as_in_cbor() -> None:
    """The heads are compared at every number of items at which a head becomes longer."""
    for count in (0, 1, 23, 24, 255, 256, 65_535, 65_536):
        assert cbor2.dumps([None] * count) == head(4, count) + b"\xf6" * count
    assert head(4, (1 << 32) - 1) == b"\x9a\xff\xff\xff\xff"


@given(st.integers(0, 4), st.integers(0, 3_000), st.integers(0, 300), st.integers())
@settings(max_examples=60, deadline=None)
def test_changes_decoded_in_pieces_are_those_decoded_at_once(tables: int, rows: int, size: int, seed: int) -> None:
    luck = Random(seed)
    changes = [
        Change(f"t{luck.randint(0, tables)}", ("id", "x"), INSERT, number, number, None, (number, luck.randbytes(size)))
        for number in range(rows)
    ]
    data = encode_changes(changes)
    pieces = [*decode_changes_in_pieces(data)]
    assert [change for piece in pieces for change in piece] == changes == decode_changes(data)
    assert all(len(piece) <= PIECE for piece in pieces) or len(data) <= AT_ONCE_BYTES


def test_changes_that_are_cut_or_garbled_are_malformed_in_pieces_too() -> None:
    """The fault may be found late, so the caller rolls back the changes before it."""
    change = Change("t", ("id", "x"), INSERT, 1, 1, None, (1, b"x" * 1_000))
    data = encode_changes([change] * 1_000)
    assert len(data) > AT_ONCE_BYTES
    for wrong in (data[:-1], data[: len(data) // 2], data[:400_000] + b"\xff" * 2_000 + data[402_000:], b"\x82" + data):
        for decode in (decode_changes, lambda data: [*decode_changes_in_pieces(data)]):
            with pytest.raises(EntryMalformedError):
                decode(wrong)
    for odd in (b"\x9f" + data[1:] + b"\xff", b"\x82" + data[1:20]):  # an array without its length; its beginning
        try:
            expected = decode_changes(odd)
        except EntryMalformedError:
            continue
        assert [change for piece in decode_changes_in_pieces(odd) for change in piece] == expected

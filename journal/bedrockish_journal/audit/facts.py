"""The input of an audit: each row of each journal without its bytes, and each distinct entry decoded once.

All nodes have the same bytes of an entry, so label and body are decoded only for the first node that has it; for the
others only the hash is computed. The engine gets two Arrow tables: ``held`` has the rows, ``facts`` the decoded
entries.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import pyarrow as pa

from bedrockish_journal.model.entry import wrong_fields
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.rights import needed
from bedrockish_journal.model.transaction import MEMBERS
from bedrockish_journal.model.written import changed_unwritten
from bedrockish_journal.storage.row import JournalRow, decode_bounded

HELD = pa.schema(
    [
        *((name, pa.string()) for name in ("node", "leader", "origin", "txid", "command", "kind")),
        *((name, pa.int64()) for name in ("seq", "tick", "clock")),
        ("again", pa.bool_()),  # whether the row is a second label of its transaction
        *((name, pa.binary()) for name in ("prev", "hash", "digest")),  # ``digest`` is computed from the bytes
        ("lengths", pa.int64()),  # see ``lengths_of``
    ]
)
_VECTOR = pa.list_(pa.struct([("leader", pa.string()), ("tick", pa.int64())]))
_POINTS = pa.list_(pa.struct([("obj", pa.binary()), ("writes", pa.bool_())]))
_RANGES = pa.list_(pa.struct([("low", pa.binary()), ("high", pa.binary()), ("writes", pa.bool_())]))
_MEMBERS = pa.list_(pa.struct([("member", pa.string()), ("voter", pa.bool_())]))
FACTS = pa.schema(
    [
        ("digest", pa.binary()),
        ("lengths", pa.int64()),
        *((name, pa.string()) for name in ("malformed", "shares", "unwritten")),
        *((name, pa.string()) for name in ("leader", "origin", "txid", "command", "kind", "adopted_from")),
        *((name, pa.int64()) for name in ("tick", "clock", "config", "safe", "ran_on", "activates")),
        ("content", pa.binary()),  # the digest of the body
        ("deps", _VECTOR),
        ("approvals", _VECTOR),
        ("commands", pa.list_(pa.string())),
        ("gave_up", pa.list_(pa.struct([("clock", pa.int64()), ("origin", pa.string())]))),
        ("needs", pa.list_(pa.struct([("user", pa.string()), ("role", pa.int64())]))),
        ("points", _POINTS),
        ("ranges", _RANGES),
        # The following columns are the new membership of a membership change.
        ("makes", pa.int64()),
        ("members", _MEMBERS),
        ("retired", _VECTOR),
        ("wrong_members", pa.string()),
    ]
)


def lengths_of(prev: bytes, label: bytes) -> int:
    """Return the lengths of ``prev`` and ``label`` as one number, which together with the hash identifies the bytes."""
    return len(prev) << 40 | len(label)


def held_row(node: str, row: JournalRow, digest: bytes, lengths: int) -> tuple[Any, ...]:
    """Return the row of ``held`` for a row of a journal."""
    txid = f"{row.origin}-{row.clock:x}"
    names = (node, row.leader, row.origin, txid, row.command, row.kind)
    return (*names, row.seq, row.tick, row.clock, bool(row.repeat), row.prev, row.hash, digest, lengths)


def fact(digest: bytes, lengths: int, label: bytes, body: bytes) -> tuple[Any, ...]:
    """Return the row of ``facts`` for the bytes of an entry."""
    try:
        entry = decode_bounded(bytes(lengths >> 40), label, body)  # only the length of ``prev`` counts here
    except EntryMalformedError as error:
        return (digest, lengths, str(error), *(None,) * (len(FACTS) - 3))
    transaction, txid, access_set = entry.transaction, entry.txid, entry.transaction.access_set
    makes = members = retired = wrong = None
    if transaction.kind == MEMBERS:
        try:
            made = read_membership(transaction.changes)
            makes, members = made.version, [{"member": name, "voter": one.voter} for name, one in made.members.items()]
            retired = _vector(made.retired)
        except EntryMalformedError as error:
            wrong = str(error)
    touched = [{"obj": key, "writes": key in access_set.write_points} for key in access_set.touched]
    spans = [{"low": low, "high": high, "writes": False} for low, high in access_set.read_ranges]
    spans += [{"low": low, "high": high, "writes": True} for low, high in access_set.write_ranges]
    return (
        *(digest, lengths, None, wrong_fields(transaction), changed_unwritten(transaction)),
        *(entry.leader, txid.leader, str(txid), transaction.command, transaction.kind, entry.adopted_from),
        *(entry.tick, txid.clock, transaction.config, transaction.safe, transaction.schema, transaction.activates),
        *(sha256(body).digest(), _vector(entry.after), _vector(entry.quorum), list(transaction.commands)),
        [{"clock": clock, "origin": origin} for clock, origin in transaction.rollbacks],
        [{"user": user, "role": role} for user, role in needed(transaction)],
        *(touched, spans),
        *(makes, members, retired, wrong),
    )


def _vector(vector: Any) -> list[dict[str, Any]]:
    return [{"leader": leader, "tick": tick} for leader, tick in vector.items()]


def batch(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows as an Arrow record batch."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def facts_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the facts of batches of (digest, lengths, label, body). Spark's workers run this function."""
    for one in batches:
        columns = (one.column(name).to_pylist() for name in ("digest", "lengths", "label", "body"))
        yield batch(FACTS, [fact(*row) for row in zip(*columns, strict=True)])

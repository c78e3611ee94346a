"""A decoder of the journal, written from docs/journal.md alone: no code of the project, no cbor2.

It is here to show that the page says enough. ``python foreign_reader.py FILE`` prints a journal, a line for each entry.
"""

import bz2
import sqlite3
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import Any

LABEL = "version leader tick clock origin quorum adopted_from"
BODY = "version clock origin after safe schema config command isolation kind access_set changes result rollbacks"
BODY += " activates joined shares users digests"  # the last five may be absent


def item(data: bytes, at: int) -> tuple[Any, int]:
    """Return the CBOR item that begins at a byte, and the position after it."""
    major, size, at = data[at] >> 5, data[at] & 31, at + 1
    if major == 7:
        if size in (20, 21, 22):
            return {20: False, 21: True, 22: None}[size], at
        form = {25: ">e", 26: ">f", 27: ">d"}[size]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if size >= 24:
        width = 1 << (size - 24)
        size, at = int.from_bytes(data[at : at + width], "big"), at + width
    if major < 2:
        return (-1 - size if major else size), at
    if major < 4:
        raw = data[at : at + size]
        return (raw if major == 2 else raw.decode()), at + size
    found = []
    for _ in range(size * (major - 3)):
        one, at = item(data, at)
        found.append(one)
    return (found if major == 4 else dict(zip(found[::2], found[1::2], strict=True))), at


def whole(data: bytes) -> Any:
    """Return the only item in some bytes."""
    value, end = item(data, 0)
    assert end == len(data), "bytes are left over"
    return value


def entry(label: bytes, body: bytes) -> dict[str, Any]:
    """Return the fields of an entry by name, with its changes decoded."""
    fields = dict(zip(BODY.split(), whole(body), strict=False)) | dict(zip(LABEL.split(), whole(label), strict=False))
    fields["changes"] = whole(fields["changes"])
    if fields["kind"] == "rows":
        tables, rows = fields["changes"]
        fields["changes"] = [(*tables[place], *rest) for place, *rest in rows]
    return fields


def unpacked(db: sqlite3.Connection) -> Iterator[tuple[tuple[str, int], tuple[bytes, bytes, bytes, bytes]]]:
    """Yield the place of each entry that is packed, with its label, body, prev and hash."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'bedrockish_packed'").fetchall():
        return
    for leader, tick, last, prev, end, entries in db.execute(
        "SELECT leader, first, last, prev, hash, entries FROM bedrockish_packed"
    ):
        for label, body in zip(*whole(bz2.decompress(entries)), strict=True):
            digest = sha256(prev + label + body).digest()
            yield (leader, tick), (label, body, prev, digest)
            tick, prev = tick + 1, digest
        assert (tick - 1, prev) == (last, end), f"the pack of {leader}{last} is not what was packed"


def journal(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the entries of a file as its node applied them, each with ``repeat``; recompute every hash."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        heads = dict(db.execute("SELECT leader, hash FROM bedrockish_pruned"))
        packed = dict(unpacked(db))
        query = "SELECT leader, tick, repeat, label, body, prev, hash FROM bedrockish_journal ORDER BY seq"
        for leader, tick, repeat, label, body, prev, stored in db.execute(query):
            if not label:
                label, body, prev, stored = packed[leader, tick]
            assert prev == heads.get(leader, bytes(32)), f"{leader}{tick} does not continue the entry before it"
            heads[leader] = sha256(prev + label + body).digest()
            assert heads[leader] == stored, f"{leader}{tick} is not what was hashed"
            yield repeat, entry(label, body)


if __name__ == "__main__":
    for again, one in journal(sys.argv[1]):
        print(f"{one['leader']}{one['tick']}", "again" if again else one["changes"])

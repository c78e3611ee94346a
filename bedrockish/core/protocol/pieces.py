"""The division of large messages into pieces, each named by its hash.

A message that is larger than ``Settings.inline_bytes`` is sent as ``InPieces``: its encoding as a list of parts, each
of which is either some bytes or the name of a piece. A receiver that lacks a piece asks for it. So no frame is long,
and no piece is sent to a node that has it.

The *stable* parts of a transaction do not depend on its clock: its keys, its changes and its results. They are divided
separately, so that their pieces keep their names when the transaction gets its clock, and after another execution with
the same effect.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any

import cbor2

from bedrockish.core.protocol.messages import NUMBERS, Message
from bedrockish.core.protocol.records import Prepared
from bedrockish_journal.model.access_set import READS, WRITES, AccessSet, is_clock
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Transaction, decode_transaction, head

Name = tuple[bytes, int]  # the name of a piece: its sha256 and its size in bytes
Part = bytes | Name
HEAD_BYTES = 1024  # the bytes between stable parts are sent in the message itself, up to this size
# Most bytes of strings in one generation of cached cuts. Two generations together are twice
# ``offers.UNDER_WAY_BYTES_MAX``, because the cache has a transaction's changes twice: by themselves, and in its body.
CACHED_BYTES = 128 << 20

COMMAND = b"c:\0"  # prefix of the command keys that ``certifier.claim`` adds


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece, as a range of a larger byte string, so that its bytes are not copied."""

    data: bytes
    start: int
    stop: int

    def read(self) -> bytes:
        """Return the bytes of the piece."""
        return self.data[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Cut:
    """A byte string, divided into parts, and the slices of the parts that are pieces, by hash."""

    parts: tuple[Part, ...]
    pieces: dict[bytes, Slice]

    @property
    def names(self) -> tuple[Name, ...]:
        """The names of the pieces, in order."""
        return tuple(part for part in self.parts if type(part) is tuple)


def stable(access_set: AccessSet, changes: bytes, result: bytes, joined: Sequence[tuple[str, bytes]]) -> list[bytes]:
    """Return, in order, the byte strings of a transaction's encoding that do not depend on its clock."""
    # The clock and the command keys are left out: with them, the names of all pieces would change at each attempt.
    reads = [key for key in access_set.ordered(READS) if not is_clock(key)]
    writes = [key for key in access_set.ordered(WRITES) if not key.startswith(COMMAND)]
    return [_items(reads), _items(writes), changes, result, *(result for _, result in joined)]


def _items(keys: list[bytes]) -> bytes:
    """Return the encoding of a CBOR array of sorted keys, without its head."""
    return cbor2.dumps(keys)[len(head(4, len(keys))) :]


class Cutter:
    """A cutter of byte strings into pieces of one size, with a cache of recent cuts.

    A stable part is divided if it is at least as long as a piece; the bytes around it only if they are longer than
    ``limit``.
    """

    def __init__(self, piece_bytes: int, limit: int) -> None:
        self._size, self._limit = piece_bytes, limit
        # Two caches, each in two generations: the hashes of a string's pieces, by the string's ``id``, and the cut of a
        # body, by the body's ``id``.
        self._hashed: dict[int, tuple[bytes, list[bytes]]] = {}
        self._hashed_before = self._hashed
        self._bodies: dict[int, tuple[bytes, Cut]] = {}
        self._bodies_before = self._bodies
        self._bytes = 0  # bytes of the strings in the younger generation

    def _make_room(self, size: int) -> None:
        """Count the bytes of a string that is about to be cached; drop old cuts if the cache is full."""
        if self._bytes + size > CACHED_BYTES:
            self.forget()
        self._bytes += size

    def forget(self) -> None:
        """Drop the cuts that were cached before the last call of this method."""
        self._bytes = 0
        self._hashed_before, self._hashed = self._hashed, {}
        self._bodies_before, self._bodies = self._bodies, {}

    def learn(self, body: bytes, data: bytes, parts: tuple[Part, ...]) -> None:
        """Cache the division of a body in ``data``, which arrived as these parts; the pieces match their names."""
        # Pieces that are wholly in the body keep their names; the rest of the body is taken from ``data``.
        at, stop = (begin := _find(data, body, 0)), begin + len(body)
        found: list[Part] = []
        pieces: dict[bytes, Slice] = {}
        start = 0
        for part in parts:
            end = start + (len(part) if isinstance(part, bytes) else part[1])
            if isinstance(part, tuple) and at <= start and end <= stop:
                found += [data[at:start]] if at < start else []
                found.append(part)
                pieces[part[0]] = Slice(body, start - begin, end - begin)
                at = end
            start = end
        if begin >= 0 and pieces:
            found += [data[at:stop]] if at < stop else []
            self._make_room(len(body))
            self._bodies[id(body)] = body, Cut(tuple(found), pieces)

    def cut_prepared(self, prepared: Prepared) -> Cut:
        """Return the pieces of an execution, which its transaction will have as well, under the same names."""
        parts: list[Part] = []
        pieces: dict[bytes, Slice] = {}
        for text in stable(prepared.access_set, prepared.changes, prepared.result, prepared.joined):
            # A part shorter than a piece is sent in the BEGIN: fetching it would cost more.
            if len(text) >= self._size:
                self._cut_run(text, parts, pieces)
        return Cut(tuple(parts), pieces)

    def cut_body(self, body: bytes, transaction: Transaction | None = None) -> Cut:
        """Return a transaction's body as parts; its stable parts are divided separately.

        Raises:
            EntryMalformedError: the bytes are not the body of a transaction.
        """
        found = self._bodies.get(id(body)) or self._bodies_before.get(id(body))
        # The ``id`` of a deleted object may be reused, so the cache keeps the object and compares it.
        if found is not None and found[0] is body:
            return found[1]
        t = decode_transaction(body) if transaction is None else transaction
        parts: list[Part] = []
        pieces: dict[bytes, Slice] = {}
        at = 0
        for text in stable(t.access_set, t.changes, t.result, t.joined):
            # The same rule as in ``cut_prepared``, so that the pieces get the same names.
            if len(text) < self._size:
                continue
            start = _find(body, text, at)
            if start >= 0:  # a text that is not found is divided with the bytes around it, under other names
                self._cut_rest(body, at, start, parts, pieces)
                self._cut_run(text, parts, pieces)
                at = start + len(text)
        self._cut_rest(body, at, len(body), parts, pieces)
        cut = Cut(tuple(parts), pieces)
        self._make_room(len(body))
        self._bodies[id(body)] = body, cut
        return cut

    def cut_message(self, message: Message) -> Cut:
        """Return the encoding of a message as parts; ``cut_body`` divides long bodies in it."""
        parts: list[Part] = []
        pieces: dict[bytes, Slice] = {}
        run = bytearray()
        self._add(
            [NUMBERS[type(message)], *(getattr(message, one.name) for one in fields(message))], run, parts, pieces
        )
        self._end_run(run, parts, pieces)
        return Cut(_joined(parts), pieces)

    # Methods, because nested functions that call themselves form a cycle, and only the garbage collector would free
    # the pieces of the message.

    def _add(self, value: Any, run: bytearray, parts: list[Part], pieces: dict[bytes, Slice]) -> None:
        # A body is divided separately, so that its pieces have the same names in BEGIN, COMMIT and RECOVER.
        if isinstance(value, bytes) and len(value) > self._limit:
            run.extend(head(2, len(value)))
            self._end_run(run, parts, pieces)
            cut = self._cut_value(value)
            parts.extend(cut.parts)
            pieces.update(cut.pieces)
        elif isinstance(value, list | tuple):
            run.extend(head(4, len(value)))
            for item in value:
                self._add(item, run, parts, pieces)
        else:
            run.extend(cbor2.dumps(value))

    def _end_run(self, run: bytearray, parts: list[Part], pieces: dict[bytes, Slice]) -> None:
        text = bytes(run)
        self._cut_rest(text, 0, len(text), parts, pieces)
        run.clear()

    def _cut_value(self, value: bytes) -> Cut:
        try:
            return self.cut_body(value)
        except EntryMalformedError:  # a large value that is not a transaction
            parts: list[Part] = []
            pieces: dict[bytes, Slice] = {}
            self._cut_rest(value, 0, len(value), parts, pieces)
            return Cut(tuple(parts), pieces)

    def _cut_run(self, text: bytes, parts: list[Part], pieces: dict[bytes, Slice]) -> None:
        found = self._hashed.get(id(text)) or self._hashed_before.get(id(text))
        starts = range(0, len(text), self._size)
        # Compared by identity: hashing 30 MB again would take longer than the rest of a step.
        if found is None or found[0] is not text:
            with memoryview(text) as view:
                hashes = [sha256(view[start : start + self._size]).digest() for start in starts]
            self._make_room(len(text))
            found = self._hashed[id(text)] = text, hashes
        for start, digest in zip(starts, found[1], strict=True):
            stop = min(start + self._size, len(text))
            parts.append((digest, stop - start))
            pieces[digest] = Slice(text, start, stop)

    def _cut_rest(self, data: bytes, start: int, stop: int, parts: list[Part], pieces: dict[bytes, Slice]) -> None:
        # Short bytes are sent next to the names of the pieces: that saves a request for them.
        if stop - start > max(self._limit, HEAD_BYTES):
            self._cut_run(data[start:stop], parts, pieces)
        elif stop > start:
            parts.append(data[start:stop])


def _find(data: bytes, text: bytes, start: int) -> int:
    """Return the offset of a long text in the data, or -1. Searching for its beginning first is much quicker."""
    begins = text[:32]
    at = data.find(begins, start)
    while at >= 0 and not data.startswith(text, at):
        at = data.find(begins, at + 1)
    return at


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts with adjacent byte strings merged."""
    found: list[Part] = []
    for part in parts:
        if found and isinstance(part, bytes) and isinstance(found[-1], bytes):
            found[-1] += part
        else:
            found.append(part)
    return tuple(found)

"""Large messages travel in pieces, each named by its hash: the cutting, and the stable parts of a transaction.

A message that is larger than ``Settings.inline_bytes`` is sent as ``InPieces``: its encoding as a list of parts, each
of which is either some bytes or the name of a piece. A receiver that lacks a piece asks for it. So no frame is long,
and no piece is sent to a node that has it.

The parts of a transaction that do not depend on when it is begun (its keys, its changes and its results) are cut by
themselves: they have the same names before it has taken its clock, and when it is executed again with the same effect.
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

Name = tuple[bytes, int]  # of a piece: its sha256 and its size in bytes
Part = bytes | Name
HEAD_BYTES = 1024  # the bytes around the stable parts travel with the message itself, unless they are more than this

COMMAND = b"c:\0"  # keys of the commands themselves, which ``certifier.claim`` adds


@dataclass(frozen=True, slots=True)
class Slice:
    """Where a piece can be read: in a larger byte string that is kept anyway."""

    data: bytes
    start: int
    stop: int

    def read(self) -> bytes:
        """Return the piece."""
        return self.data[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Cut:
    """A byte string as parts, and where its pieces are."""

    parts: tuple[Part, ...]
    pieces: dict[bytes, Slice]

    @property
    def names(self) -> tuple[Name, ...]:
        """The names of its pieces, in order."""
        return tuple(part for part in self.parts if type(part) is tuple)


def stable(access_set: AccessSet, changes: bytes, result: bytes, joined: Sequence[tuple[str, bytes]]) -> list[bytes]:
    """Return the byte strings of a transaction's encoding that do not depend on when it is begun, in their order."""
    # Its clock and its commands' keys come with the BEGIN: with them, the names of all pieces would change each time.
    reads = [key for key in access_set.ordered(READS) if not is_clock(key)]
    writes = [key for key in access_set.ordered(WRITES) if not key.startswith(COMMAND)]
    return [_items(reads), _items(writes), changes, result, *(result for _, result in joined)]


def _items(keys: list[bytes]) -> bytes:
    """Return the items of a CBOR array of keys, which are in order, without its head."""
    return cbor2.dumps(keys)[len(head(4, len(keys))) :]


class Cutter:
    """A cutter of byte strings into pieces of one size, with a memory of recent cuts, for they are soon needed again.

    A stable part is cut if it is at least as long as a piece; the bytes around it, only if longer than ``limit``.
    """

    def __init__(self, piece_bytes: int, limit: int) -> None:
        self._size, self._limit = piece_bytes, limit
        # By identity: the string, and the hashes of its pieces; a body, and how it is cut. Those of before go first.
        self._hashed: dict[int, tuple[bytes, list[bytes]]] = {}
        self._hashed_before = self._hashed
        self._bodies: dict[int, tuple[bytes, Cut]] = {}
        self._bodies_before = self._bodies

    def forget(self) -> None:
        """Forget the cuts from before the last call."""
        self._hashed_before, self._hashed = self._hashed, {}
        self._bodies_before, self._bodies = self._bodies, {}

    def learn(self, body: bytes, data: bytes, parts: tuple[Part, ...]) -> None:
        """Remember the cut of a body that has come in parts of data, whose pieces were checked against their names."""
        # Pieces that lie in the body whole keep their names; the bytes around them come from the data.
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
            self._bodies[id(body)] = body, Cut(tuple(found), pieces)

    def cut_prepared(self, prepared: Prepared) -> Cut:
        """Return the pieces of an executed request that its transaction will have, too."""
        parts: list[Part] = []
        pieces: dict[bytes, Slice] = {}
        for text in stable(prepared.access_set, prepared.changes, prepared.result, prepared.joined):
            # A part shorter than a piece travels with the BEGIN: a question and an answer would cost more.
            if len(text) >= self._size:
                self._cut_run(text, parts, pieces)
        return Cut(tuple(parts), pieces)

    def cut_body(self, body: bytes, transaction: Transaction | None = None) -> Cut:
        """Return a transaction's body as parts, those that are stable by themselves.

        Raises:
            EntryMalformedError: it is not the body of a transaction.
        """
        found = self._bodies.get(id(body)) or self._bodies_before.get(id(body))
        # An id is given again when its object is gone; this one is kept here, so it is gone only if it is another.
        if found is not None and found[0] is body:
            return found[1]
        t = decode_transaction(body) if transaction is None else transaction
        parts: list[Part] = []
        pieces: dict[bytes, Slice] = {}
        at = 0
        for text in stable(t.access_set, t.changes, t.result, t.joined):
            # As in ``cut_prepared``: the names of both have to be the same.
            if len(text) < self._size:
                continue
            start = _find(body, text, at)
            if start >= 0:  # else it is cut with the bytes around it: as good, but for the names
                self._cut_rest(body, at, start, parts, pieces)
                self._cut_run(text, parts, pieces)
                at = start + len(text)
        self._cut_rest(body, at, len(body), parts, pieces)
        cut = Cut(tuple(parts), pieces)
        self._bodies[id(body)] = body, cut
        return cut

    def cut_message(self, message: Message) -> Cut:
        """Return the encoding of a message as parts; long bodies in it are cut as ``cut_body`` does."""
        parts: list[Part] = []
        pieces: dict[bytes, Slice] = {}
        run = bytearray()

        def end_run() -> None:
            text = bytes(run)
            self._cut_rest(text, 0, len(text), parts, pieces)
            run.clear()

        def add(value: Any) -> None:
            # A body by itself, so that its pieces have the same names in BEGIN, COMMIT and RECOVER.
            if isinstance(value, bytes) and len(value) > self._limit:
                run.extend(head(2, len(value)))
                end_run()
                cut = self._cut_value(value)
                parts.extend(cut.parts)
                pieces.update(cut.pieces)
            elif isinstance(value, list | tuple):
                run.extend(head(4, len(value)))
                for item in value:
                    add(item)
            else:
                run.extend(cbor2.dumps(value))

        add([NUMBERS[type(message)], *(getattr(message, one.name) for one in fields(message))])
        end_run()
        return Cut(_joined(parts), pieces)

    def _cut_value(self, value: bytes) -> Cut:
        try:
            return self.cut_body(value)
        except EntryMalformedError:  # another large value than a transaction
            parts: list[Part] = []
            pieces: dict[bytes, Slice] = {}
            self._cut_rest(value, 0, len(value), parts, pieces)
            return Cut(tuple(parts), pieces)

    def _cut_run(self, text: bytes, parts: list[Part], pieces: dict[bytes, Slice]) -> None:
        found = self._hashed.get(id(text)) or self._hashed_before.get(id(text))
        starts = range(0, len(text), self._size)
        # By identity, as above: hashing 30 MB again takes longer than all the rest of a step.
        if found is None or found[0] is not text:
            with memoryview(text) as view:
                hashes = [sha256(view[start : start + self._size]).digest() for start in starts]
            found = self._hashed[id(text)] = text, hashes
        for start, digest in zip(starts, found[1], strict=True):
            stop = min(start + self._size, len(text))
            parts.append((digest, stop - start))
            pieces[digest] = Slice(text, start, stop)

    def _cut_rest(self, data: bytes, start: int, stop: int, parts: list[Part], pieces: dict[bytes, Slice]) -> None:
        # A short rest goes along with the names, or it would cost a question of its own.
        if stop - start > max(self._limit, HEAD_BYTES):
            self._cut_run(data[start:stop], parts, pieces)
        elif stop > start:
            parts.append(data[start:stop])


def _find(data: bytes, text: bytes, start: int) -> int:
    """Return where a long text is in the data, or -1. Looking for its beginning first is much quicker."""
    begins = text[:32]
    at = data.find(begins, start)
    while at >= 0 and not data.startswith(text, at):
        at = data.find(begins, at + 1)
    return at


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts with neighbouring bytes put together."""
    found: list[Part] = []
    for part in parts:
        if found and isinstance(part, bytes) and isinstance(found[-1], bytes):
            found[-1] += part
        else:
            found.append(part)
    return tuple(found)

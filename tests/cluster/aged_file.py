"""A node's file with a history: an engine on a clock of its own, which commits at any moment that a test names."""

import random
import secrets
from pathlib import Path

from bedrockish.api.requests import Request, Statement
from bedrockish.engine.engine import Engine, Founding
from bedrockish.node.admin.retention import PACKED_MS
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.command_id import make_id
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import SCHEMA, Transaction, Txid


class AgedFile:
    """A node's engine on a clock of its own.

    Args:
        path: the node's file.
        address: the node's address.
    """

    def __init__(self, path: Path, *, address: str = "127.0.0.1:1") -> None:
        members = Membership(0, {"A": Member("A", address)}, secrets.token_hex(8), LEVEL)
        self.engine = Engine.open(path, founding=Founding("A", members, secrets.token_hex(8)))
        self._tick, self._head, self._luck = 0, GENESIS, random.Random(1)

    def commit(self, unix_ms: int, *statements: tuple[str, tuple[object, ...]]) -> None:
        """Commit a request at a moment."""
        command = make_id(unix_ms, self._luck.randbytes(10))
        request = Request(command, tuple(Statement(sql, params) for sql, params in statements))
        prepared = self.engine.execute(request)
        self._tick += 1
        clock = moved(0, unix_ms) + 2 * self._tick  # two ticks, less than a millisecond
        what = (prepared.kind, prepared.access_set, prepared.changes, prepared.result)
        activates = clock + 1 if prepared.kind == SCHEMA else 0
        transaction = Transaction(
            *(Txid(clock, "A"), prepared.base, 0, prepared.schema, 0, command, "serializable", *what),
            activates=activates,
        )
        entry = Entry("A", self._tick, {"A": self._tick}, transaction, None, self._head)
        self._head = entry.hash
        self.engine.apply(entry, repeat=False, applied_ms=unix_ms)
        if activates:
            assert self.engine.activate(transaction.txid) == ""
        if self._tick % 100 == 0:
            self.flush()

    def flush(self) -> None:
        """End the batch."""
        self.engine.flush()
        if self.engine.checkpoint_due:
            self.engine.wal.checkpoint()

    def pack(self, now_ms: int) -> None:
        """Pack old entries, as a node does by itself."""
        journal = self.engine.journal
        while (run := journal.next_run(moved(0, now_ms - PACKED_MS))) is not None:
            pack = run.pack()
            assert pack is not None, "what was written is packed"
            journal.pack(pack)
            self.flush()

    def close(self) -> None:
        """Close the file, as one of which all is safe."""
        for key in ("cut", "safe"):
            self.engine.set_meta(key, self.engine.applied_clock)
        self.flush()
        self.engine.wal.checkpoint()
        self.engine.close()

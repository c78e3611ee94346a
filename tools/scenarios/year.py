"""How large a node's file becomes in a year, with and without removing what is older than a week.

``tools/bench year --commits 500`` lets an engine apply so many commits a day, on a clock that goes faster than the
wall, with tables that stay as large as they are; each night it does what a node does by default: it removes the
beginning of the journal, packs what is old, forgets old ids of commands, and gives free pages back. It prints the
file's size by month.
"""

import argparse
import random
import secrets
import sys
import tempfile
from pathlib import Path

from bedrockish.api.requests import Request, Statement
from bedrockish.common.levels import LEVEL
from bedrockish.config.config import Keeping
from bedrockish.core.protocol.records import Member, Membership
from bedrockish.engine.engine import Engine, Founding
from bedrockish.node.admin.retention import (
    COMMANDS_KEPT_MS,
    FREE_KEPT,
    FREE_MAX,
    FREE_PAGES_MAX,
    PACKED_MS,
    SHRINK_PAGES,
    SLICE,
)
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.command_id import make_id
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.transaction import Transaction, Txid

DAY_MS = 24 * 3_600_000
BEGAN_MS = 1_760_000_000_000  # Unix time of the first day
ROWS = 2_000  # of the table, which stays as large as it is
NOTE = 100  # bytes of each


class Year:
    """A node's engine on a clock of its own.

    Args:
        path: its file.
        keep_days: how long the journal is kept; None: for ever.
        packs: whether what is old is packed, as a node does.
        address: of the node.
    """

    def __init__(self, path: Path, keep_days: int | None, *, packs: bool = True, address: str = "127.0.0.1:1") -> None:
        members = Membership(0, {"A": Member("A", address)}, secrets.token_hex(8), LEVEL)
        self.path, self.keep_days, self.packs = path, keep_days, packs
        self.engine = Engine.open(path, founding=Founding("A", members, secrets.token_hex(8)))
        self._tick, self._head, self._luck = 0, GENESIS, random.Random(1)

    def commit(self, unix_ms: int, *statements: tuple[str, tuple[object, ...]]) -> None:
        """Commit a request at a moment."""
        command = make_id(unix_ms, self._luck.randbytes(10))
        request = Request(command, tuple(Statement(sql, params) for sql, params in statements))
        prepared = self.engine.execute(request)
        self._tick += 1
        clock = moved(0, unix_ms) + self._tick  # which is less than a millisecond
        what = (prepared.kind, prepared.access_set, prepared.changes, prepared.result)
        transaction = Transaction(
            Txid(clock, "A"), prepared.base, 0, prepared.schema, 0, command, "serializable", *what
        )
        entry = Entry("A", self._tick, {"A": self._tick}, transaction, None, self._head)
        self._head = entry.hash
        self.engine.apply(entry, repeat=False, applied_ms=unix_ms)
        if self._tick % 100 == 0:
            self.flush()

    def flush(self) -> None:
        """End the batch."""
        self.engine.flush()
        if self.engine.checkpoint_due:
            self.engine.checkpoint()

    def pack(self, now_ms: int) -> None:
        """Pack what is old, as a node does by itself."""
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
        self.engine.checkpoint()
        self.engine.close()

    def night(self, now_ms: int) -> None:
        """Do what a node does by itself."""
        if self.keep_days is not None:
            self._shorten(now_ms, self.keep_days)
        if self.packs:
            self.pack(now_ms)
        self._give_back()
        self.flush()

    def _shorten(self, now_ms: int, keep_days: int) -> None:
        journal = self.engine.journal
        upto = journal.plan(moved(0, now_ms - keep_days * DAY_MS), None)
        while any(journal.removed.get(leader, 0) < tick for leader, tick in upto.items()):
            journal.remove(upto, SLICE)
            self.flush()
        while journal.forget_commands(now_ms - COMMANDS_KEPT_MS, SLICE) == SLICE:
            self.flush()

    def _give_back(self) -> None:
        journal = self.engine.journal
        room = journal.room
        if room.free > max(FREE_PAGES_MAX, FREE_MAX * room.pages):
            while room.free > max(FREE_PAGES_MAX // 2, FREE_KEPT * room.pages):
                journal.shrink(SHRINK_PAGES)
                self.flush()
                room = journal.room

    @property
    def megabytes(self) -> float:
        """How large the file is, in millions of bytes, without what is in the write-ahead log."""
        self.flush()
        self.engine.checkpoint()
        return self.path.stat().st_size / 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="tools/bench year", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--commits", type=int, default=500, help="a day")
    parser.add_argument("--days", type=int, default=365)
    given = parser.parse_args(arguments)
    week = Keeping().journal_keep_minutes // (24 * 60)
    kinds = {
        "for ever, unpacked": (None, False),
        "for ever": (None, True),
        f"{week} days, unpacked": (week, False),
        f"{week} days": (week, True),
    }
    luck = random.Random(2)
    with tempfile.TemporaryDirectory(prefix="year-") as place:
        print(f"{given.commits} commits a day of one row of {NOTE} bytes, in a table of {ROWS} rows; MB of the file")
        years = [
            Year(Path(place, f"{number}.db"), *kind[:1], packs=kind[1]) for number, kind in enumerate(kinds.values())
        ]
        for year in years:
            year.commit(BEGAN_MS, ("CREATE TABLE item(id INTEGER PRIMARY KEY, note TEXT)", ()))
        for number in range(ROWS):
            note = _note(luck)
            for year in years:
                year.commit(BEGAN_MS, ("INSERT INTO item VALUES (?, ?)", (number, note)))
        print(f"{'day':>5} {' '.join(f'{kind:>18}' for kind in kinds)}")
        for day in range(1, given.days + 1):
            for number in range(given.commits):
                at_ms, note = BEGAN_MS + day * DAY_MS + number * DAY_MS // given.commits, _note(luck)
                for year in years:
                    year.commit(at_ms, ("UPDATE item SET note = ? WHERE id = ?", (note, number * 7 % ROWS)))
            for year in years:
                year.night(BEGAN_MS + (day + 1) * DAY_MS)
            if day == given.days or day % 30 == 0 or day in (1, week, 2 * week):
                print(f"{day:5} {' '.join(f'{year.megabytes:18.1f}' for year in years)}", flush=True)
        for year in years:
            year.close()
    return 0


def _note(luck: random.Random) -> str:
    """Return a text that no program makes shorter than half, as it is of ids and numbers."""
    return luck.randbytes(NOTE // 2).hex()


if __name__ == "__main__":
    sys.exit(main())

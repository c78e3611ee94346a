"""The beginning of a replay, which is empty or the tables of an older file, and checks that the files suffice."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import ForkError, JournalPrunedError, MomentError
from bedrockish_journal.model.moment import Moment, time_text
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import covers, format_vector, merge
from bedrockish_journal.storage.pruning import horizon, marks
from bedrockish_journal.storage.schema_history import scheduled, settled
from bedrockish_journal.storage.store import applied, find_places, find_txid, heads, read_meta
from bedrockish_journal.storage.table_layout import quote

Source = tuple[str, apsw.Connection]  # a file and a connection that reads one moment of it
_WHOLE = (
    "a database can be built from a whole journal only: put a file first that has all of it, such as a backup made "
    "before, or copy the tables with 'bedrockish export'"
)
_OLDER = "restore from a younger backup, or add a file that still has it, such as a backup made in between"


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a replay: an empty database, or the tables of a node's file."""

    # The replay begins with the tables of this file; None: it begins with an empty database.
    source: Source | None = None
    # The last tick of each timeline that is in the tables, and the hash of its entry.
    heads: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    waiting: Entry | None = None  # the schema change that is committed in the file and not yet in force
    latest: int = 0  # the greatest clock in the file

    @property
    def applied(self) -> dict[str, int]:
        """The vector of the entries in the tables."""
        return {leader: tick for leader, (tick, _) in self.heads.items()}

    def has_seen(self, txid: Txid) -> bool:
        """Return whether a transaction is in the tables, under any label."""
        if self.source is None:
            return False
        db = self.source[1]
        past = "SELECT 1 FROM bedrockish_past WHERE clock = ? AND origin = ? LIMIT 1"
        return bool(find_places(db, txid)) or _ask(db, past, *txid) is not None

    def copy_tables(self, target: apsw.Connection) -> None:
        """Write the tables of the file, except the node's own, into a new database."""
        if self.source is None:
            return
        with target.backup("main", self.source[1], "main") as backup:
            backup.step(-1)
        target.pragma("journal_mode", "delete")  # a copy of a running node's file would be in WAL mode
        target.execute("PRAGMA foreign_keys = OFF")
        with target:
            query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'bedrockish_*'"
            names: list[Any] = target.execute(query).fetchall()
            for (name,) in names:
                target.execute(f"DROP TABLE {quote(name)}")


def begin_with(source: Source) -> Beginning:
    """Return the beginning of a replay that starts with the tables of a node's file, not with an empty database."""
    path, db = source
    try:
        change = scheduled(db)
    except apsw.SQLError:  # a segment does not have the table
        change = None
    waiting = find_txid(db, change.txid)[0] if change is not None else None
    return Beginning((path, db), heads(db), waiting, latest(db))


def latest(db: apsw.Connection) -> int:
    """Return the greatest clock of the transactions in a file, and of the activations of schema changes in force."""
    committed = _ask(db, "SELECT max(clock) FROM bedrockish_journal WHERE repeat = 0")
    activated = _ask(db, "SELECT max(activates) FROM bedrockish_schema WHERE state <> 'scheduled'")
    return max(int(committed or 0), int(activated or 0), horizon(db)[0])


def safe_clock(db: apsw.Connection) -> int:
    """Return the clock up to which a file has every commit; 0 if the file does not record it."""
    return int(read_meta(db, "safe") or 0)


def check_whole(sources: Sequence[Source], beginning: Beginning) -> None:
    """Check that journals together have all entries after a beginning.

    Raises:
        JournalPrunedError: all journals have removed an entry that is needed.
    """
    spans: dict[str, list[tuple[int, int, str]]] = {}  # timeline -> tick before a file's first entry, last tick, file
    for path, db in sources:
        has, removed = applied(db), {leader: mark.tick for leader, mark in marks(db).items()}
        for leader in {*has, *removed}:
            begins = removed.get(leader, 0)
            spans.setdefault(leader, []).append((begins, max(begins, has.get(leader, 0)), path))
    start = beginning.applied
    for leader in sorted(spans):
        reached = start.get(leader, 0)
        for begins, ends, path in sorted(spans[leader]):
            if begins > reached:
                hint = _WHOLE if beginning.source is None else _OLDER
                raise JournalPrunedError(path, leader, reached + 1, begins + 1, hint)
            reached = max(reached, ends)


def check_related(sources: Sequence[Source], beginning: Beginning) -> None:
    """Check that journals continue a beginning, or without one, that they are of one cluster.

    Raises:
        MomentError: a journal is of another cluster.
        ForkError: a journal has another entry than the beginning at the same place.
    """
    path, base = beginning.source or sources[0]
    for other, db in sources:
        founded = [read_meta(one, "bootstrap") for one in (base, db)]
        if founded[0] != founded[1] and (beginning.source is not None or None not in founded):
            raise MomentError(
                f"{path} and {other} are of different clusters; give files of one, or of nodes that joined it"
            )
        for leader, (tick, digest) in beginning.heads.items():
            query = "SELECT hash FROM bedrockish_journal WHERE leader = ? AND tick = ?"
            row = db.execute(query, (leader, tick)).fetchone()
            if row is not None and row[0] != digest:
                raise ForkError(leader, tick, (path, other))


def check_reached(sources: Sequence[Source], until: Moment) -> None:
    """Check that the files have all entries up to a moment.

    Raises:
        MomentError: entries may be missing; the message says up to where the files are complete.
    """
    if until.vector is not None:
        has = merge(*(applied(db) for _, db in sources))
        if not covers(has, until.vector):
            nodes = sorted({*has, *until.vector})
            raise MomentError(
                f"the files have {format_vector(has, nodes)} of {', '.join(nodes)}, which is less than {until.text}; "
                "give a file that has more, or name places that are there"
            )
        return
    assert until.clock is not None, "a moment has a clock or a vector"
    complete = max(safe_clock(db) for _, db in sources)
    if until.clock > complete:
        raise MomentError(
            f"{until.text} is too late: the files are complete up to clock {complete} ({time_text(complete)}), and may "
            "lack later commits; give a later backup, or an earlier moment, or "
            "no moment to restore all commits in the files"
        )


def _ask(db: apsw.Connection, query: str, *values: Any) -> Any:
    """Return the single value of a query; None if it has no row, or an older file lacks the table."""
    try:
        row = db.execute(query, values).fetchone()
    except apsw.SQLError:
        return None
    return None if row is None else row[0]


def is_in_force(sources: Sequence[Source], until: Moment | None, change: Entry) -> bool:
    """Return whether a committed schema change, on which no replayed transaction has run, is in force at a moment.

    Without a moment, return whether the change is in force at the end of the files.
    """
    activates = change.transaction.activates
    if until is not None and until.clock is not None:
        return activates <= until.clock
    if not any(change.txid in settled(db) for _, db in sources):
        return False
    if until is None:
        return True
    assert until.vector is not None, "a moment has a clock or a vector"
    query = "SELECT leader, max(tick) FROM bedrockish_journal WHERE clock < ? GROUP BY leader"
    before = merge(*(dict(db.execute(query, (activates,))) for _, db in sources))
    return covers(until.vector, before)  # the moment includes all transactions on the older schema

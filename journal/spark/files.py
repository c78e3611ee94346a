"""Node files as Spark's planner and workers see them: found by path, opened read-only, read in fixed ranges of ticks.

Only the standard library's ``sqlite3`` is used, so a worker needs nothing but Python, pyarrow and cbor2. A file is
opened inside each task and closed with it; a running node may go on writing, because entries are only ever added and a
range of ticks, once planned, never changes.
"""

import glob
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from journal.errors import (
    FileMissingError,
    FileUnreadableError,
    JournalError,
    JournalPrunedError,
    NoJournalError,
    NotDatabaseError,
)

SUFFIXES = (".db", ".sqlite", ".sqlite3")  # what a directory is searched for
BUSY_S = 5.0
_MAGIC = b"SQLite format 3\0"

# Also asked of running nodes, through their ordinary clients.
PRIMARY_KEY = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk"
BOUNDS = """WITH RECURSIVE leaders(leader) AS (
    SELECT min(leader) FROM bedrockish_journal
    UNION ALL
    SELECT (SELECT min(leader) FROM bedrockish_journal WHERE leader > leaders.leader)
      FROM leaders WHERE leader IS NOT NULL)
  SELECT leader, (SELECT min(tick) FROM bedrockish_journal AS j WHERE j.leader = leaders.leader),
    (SELECT max(tick) FROM bedrockish_journal AS j WHERE j.leader = leaders.leader)
  FROM leaders WHERE leader IS NOT NULL ORDER BY leader"""  # a few seeks for each leader, not a walk over all entries
_SEQ = "SELECT min(seq) FROM bedrockish_journal WHERE leader = ? AND tick = ?"
_ORDER = "SELECT seq, leader, tick FROM bedrockish_journal WHERE seq >= ? ORDER BY seq LIMIT ?"
ORDER_PAGE = 10_000

Ask = Callable[[str, tuple[object, ...]], Iterable[Sequence[Any]]]  # runs a query, here or at a node

Span = tuple[str, int, int]  # a timeline and its ticks low..high, both included


class Stored(NamedTuple):
    """One row of the journal as it lies in the file; label, body, prev and hash may have been left out (None)."""

    seq: int
    leader: str
    tick: int
    clock: int
    origin: str
    command: str
    kind: str
    repeat: int
    applied_ms: int
    prev: bytes | None
    hash: bytes | None
    label: bytes | None
    body: bytes | None


def expand(path: str) -> list[str]:
    """Return the files that a ``path`` option names: comma separated paths, globs and directories, sorted, once each.

    Raises:
        FileMissingError: a part names nothing.
    """
    found: set[str] = set()
    for part in (piece.strip() for piece in path.split(",")):
        if not part:
            continue
        if os.path.isdir(part):
            names = [str(file) for file in Path(part).iterdir() if file.suffix in SUFFIXES and file.is_file()]
            if not names:
                raise FileMissingError(part, f"{part} has no file that ends in {', '.join(SUFFIXES)}; name the files")
        elif os.path.exists(part):
            names = [part]
        else:
            names = [name for name in glob.glob(part) if os.path.isfile(name)]
            if not names:
                raise FileMissingError(part, f"{part}: no such file; give the path of a node's database file")
        found.update(os.path.abspath(name) for name in names)
    if not found:
        raise FileMissingError(path, "the option 'path' is empty; give one or many node files, separated by commas")
    return sorted(found)


@contextmanager
def open_file(path: str) -> Iterator[sqlite3.Connection]:
    """Open a node's file to read its journal, also while the node runs; it is closed at the end of the ``with``.

    Raises:
        FileMissingError: there is no such file.
        NotDatabaseError: it is not a SQLite database.
        NoJournalError: it is one, but has no journal.
        FileUnreadableError: it may not be read, or SQLite cannot read it.
    """
    if not os.path.isfile(path):
        raise FileMissingError(path, f"{path}: no such file; every Spark worker must see it under this very path")
    try:
        with open(path, "rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise FileUnreadableError(path, f"{path} cannot be read ({error}); run Spark as a user who may") from error
    if head != _MAGIC:
        raise NotDatabaseError(path, f"{path} is not a SQLite database; give the file of a bedrockish node")
    # A file in WAL mode needs a -shm beside it. Where none can be made and no -wal is left, the file is at rest.
    directory = os.path.dirname(os.path.abspath(path))
    at_rest = not os.access(directory, os.W_OK) and not os.path.exists(f"{path}-wal")
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro" + ("&immutable=1" if at_rest else "")
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as db:
            db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            if not _has_table(db, "bedrockish_journal"):
                raise NoJournalError(path, f"{path} is a database without a journal; give the file of a node")
            yield db
    except sqlite3.OperationalError as error:
        raise FileUnreadableError(
            path, f"{path} cannot be read ({error}); copy it and its -wal to a directory of yours and read that"
        ) from error
    except sqlite3.DatabaseError as error:
        raise NotDatabaseError(path, f"{path} is damaged ({error}); run `bedrockish journal verify` on it") from error


def _has_table(db: sqlite3.Connection, name: str) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None


def meta(db: sqlite3.Connection, key: str) -> object:
    """Return a value that the node keeps about itself, or None."""
    if not _has_table(db, "bedrockish_meta"):
        return None
    row = db.execute("SELECT value FROM bedrockish_meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def node_of(db: sqlite3.Connection, path: str) -> str:
    """Return the name of the node whose file this is; a bare journal, made without a node, is named by its file."""
    name = meta(db, "node")
    return name if isinstance(name, str) and name else Path(path).stem


def primary_key(db: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table's declared primary key; none for a table that is not there."""
    return [name for (name,) in db.execute(PRIMARY_KEY, (table,))]


def bounds(ask: Ask) -> dict[str, tuple[int, int]]:
    """Return the first and the last tick that the journal holds of each timeline.

    Raises:
        JournalError: the journal has a tick that is not a number.
    """
    found: dict[str, tuple[int, int]] = {}
    for leader, low, high in ask(BOUNDS, ()):
        if type(low) is not int or type(high) is not int:
            raise JournalError(f"timeline {leader} has a tick that is no number; run `bedrockish journal verify`")
        found[leader] = (low, high)
    return found


def advance(
    ask: Ask, path: str, start: Mapping[str, int], upto: Mapping[str, int] | None = None, most: int | None = None
) -> dict[str, int]:
    """Return the vector that the next ``most`` entries lead to, in the order in which the node applied them.

    Args:
        ask: runs queries on the journal.
        path: whose, for errors.
        start: what was taken so far; entries up to it are left out.
        upto: entries beyond this vector are left out as well; None for no such bound.
        most: how many entries; None for all.

    Raises:
        JournalPrunedError: the journal no longer holds what comes next.
    """
    wanted: dict[str, int] = {}
    for leader, (first, last) in bounds(ask).items():
        done = start.get(leader, 0)
        last = last if upto is None else min(last, upto.get(leader, 0))
        if last > done:
            if first > done + 1:
                raise JournalPrunedError(path, leader, done + 1, first)
            wanted[leader] = last
    if most is None or not wanted:
        return {**start, **wanted}
    begins = [row[0] for leader in wanted for row in ask(_SEQ, (leader, start.get(leader, 0) + 1))]
    seq = min((one for one in begins if one is not None), default=0)
    reached = dict(start)
    while page := list(ask(_ORDER, (seq, ORDER_PAGE))):
        for _, leader, tick in page:
            if start.get(leader, 0) < tick <= wanted.get(leader, 0):
                reached[leader] = max(tick, reached.get(leader, 0))
                most -= 1
                if most == 0:
                    return reached
        seq = page[-1][0] + 1
    return reached


def cut(spans: Sequence[Span], rows: int) -> list[tuple[Span, ...]]:
    """Cut ranges of ticks into groups of ``rows`` ticks: a small journal is one task, a large one many."""
    groups: list[tuple[Span, ...]] = []
    group: list[Span] = []
    room = rows
    for leader, low, high in spans:
        while low <= high:
            last = min(high, low + room - 1)
            group.append((leader, low, last))
            room -= last - low + 1
            low = last + 1
            if room == 0:
                groups.append(tuple(group))
                group, room = [], rows
    return [*groups, tuple(group)] if group else groups


def spans_between(start: Mapping[str, int], end: Mapping[str, int]) -> list[Span]:
    """Return the ticks that are in the vector ``end`` and not in ``start``."""
    spans = [(leader, start.get(leader, 0) + 1, tick) for leader, tick in sorted(end.items())]
    return [span for span in spans if span[1] <= span[2]]


def check_whole(db: sqlite3.Connection, path: str, spans: Sequence[Span]) -> None:
    """Make sure that the journal holds every tick of some ranges, so that what is read of them has no gap.

    Raises:
        JournalPrunedError: older ticks of a timeline are no longer there.
        JournalError: ticks are missing in its middle, or at its end.
    """
    for leader, low, high in spans:
        first, found = db.execute(
            """SELECT (SELECT min(tick) FROM bedrockish_journal WHERE leader = ?1), count(*)
            FROM bedrockish_journal WHERE leader = ?1 AND tick BETWEEN ?2 AND ?3""",
            (leader, low, high),
        ).fetchone()
        if first is not None and first > low:
            raise JournalPrunedError(path, leader, low, first)
        if found != high - low + 1:
            raise JournalError(
                f"{path} holds {found} of the {high - low + 1} entries from {leader}{low} to {leader}{high}; "
                "run `bedrockish journal verify` on it"
            )


def nodes_of(paths: Sequence[str]) -> dict[str, str]:
    """Return path by node name, after opening every file once.

    Raises:
        JournalError: a file cannot be read, or two are of the same node.
    """
    found: dict[str, str] = {}
    for path in paths:
        with open_file(path) as db:
            node = node_of(db, path)
        if node in found:
            raise JournalError(f"{found[node]} and {path} are both of node {node}; give one file for each node")
        found[node] = path
    return found


def plan(db: sqlite3.Connection, rows: int, leader: str | None = None) -> list[tuple[Span, ...]]:
    """Cut all that the journal holds now into groups of ``rows`` entries: a small file is one task, a large one many.

    Args:
        db: a connection of ``open_file``.
        rows: entries in a group; the last may have fewer.
        leader: only this timeline.

    Raises:
        JournalError: the journal has a tick that is not a number.
    """
    only, bound = ("WHERE leader = ?", [leader]) if leader is not None else ("", [])
    ends = db.execute(
        f"SELECT leader, min(tick), max(tick) FROM bedrockish_journal {only} GROUP BY leader ORDER BY leader", bound
    ).fetchall()
    cuts = db.execute(
        f"""SELECT leader, tick FROM (SELECT leader, tick, row_number() OVER (ORDER BY leader, tick) AS place
        FROM bedrockish_journal {only}) WHERE place % ? = 0 ORDER BY leader, tick""",
        [*bound, rows],
    ).fetchall()
    groups: list[tuple[Span, ...]] = []
    group: list[Span] = []
    for name, low, high in ends:
        if type(low) is not int or type(high) is not int:
            raise JournalError(f"timeline {name} has a tick that is no number; run `bedrockish journal verify`")
        while cuts and cuts[0][0] == name:
            last = cuts.pop(0)[1]
            groups.append((*group, (name, low, last)))
            group, low = [], last + 1
        if low <= high:
            group.append((name, low, high))
    return [*groups, tuple(group)] if group else groups


def scan(
    db: sqlite3.Connection,
    spans: Sequence[Span],
    *,
    clock_from: int | None = None,
    clock_to: int | None = None,
    where: str = "",
    blobs: bool = True,
) -> Iterator[Stored]:
    """Yield the rows of some ranges of ticks, by timeline and tick.

    Args:
        db: a connection of ``open_file``.
        spans: the ranges.
        clock_from: leave out entries with a lower clock.
        clock_to: leave out entries with a higher clock.
        where: a further condition of ours, as SQL.
        blobs: whether label and body are wanted; without them SQLite does not read their pages.
    """
    condition, bounds = "", []
    for operator, bound in ((">=", clock_from), ("<=", clock_to)):
        if bound is not None:
            condition += f" AND clock {operator} ?"
            bounds.append(bound)
    if where:
        condition += f" AND {where}"
    query = f"""SELECT seq, leader, tick, clock, origin, command, kind, repeat, applied_ms, prev, hash,
        {"label, body" if blobs else "NULL, NULL"} FROM bedrockish_journal
        WHERE leader = ? AND tick BETWEEN ? AND ?{condition} ORDER BY tick"""
    for span in spans:
        for row in db.execute(query, (*span, *bounds)):
            yield Stored._make(row)

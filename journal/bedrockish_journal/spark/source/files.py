"""Node files for Spark's planner and workers: opened read-only, and read in fixed ranges of ticks.

Only the standard library's ``sqlite3`` is used, so a worker needs only Python, pyarrow and cbor2. A file is opened
inside each task and closed with it. A running node may continue to write, because entries are only appended, and the
entries of a planned range never change.
"""

import os
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from bedrockish_journal.model.errors import (
    FileMissingError,
    FileUnreadableError,
    JournalError,
    NoJournalError,
    NotDatabaseError,
)
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.founding import read_beginning
from bedrockish_journal.spark.source.plans import HELD, PRIMARY_KEY, Ask, Span, WantedEntries, check_held
from bedrockish_journal.storage.definitions import columns_asked
from bedrockish_journal.storage.packing import install
from bedrockish_journal.storage.row import JournalRow

BUSY_S = 5.0
_MAGIC = b"SQLite format 3\0"


@contextmanager
def open_file(path: str) -> Iterator[sqlite3.Connection]:
    """Open a node's file to read its journal, even while the node runs; close it at the end of the ``with``.

    Raises:
        FileMissingError: the file does not exist.
        NotDatabaseError: the file is not a SQLite database.
        NoJournalError: the database has no journal.
        FileUnreadableError: the file may not be read, or SQLite cannot read it.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileUnreadableError(path, f"{path} is not a file; give the path of the database file itself")
    if not os.path.exists(path):
        raise FileMissingError(path, f"{path}: no such file; every Spark worker must see it under this very path")
    try:
        with open(path, "rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise FileUnreadableError(path, f"{path} cannot be read ({error}); give Spark's user the right") from error
    if head != _MAGIC:
        raise NotDatabaseError(path, f"{path} is not a SQLite database; give the file of a bedrockish node")
    # A file in WAL mode needs a -shm file. If the directory is read-only and has no log, no program writes the file,
    # and it is opened as immutable; SQLite then takes no notice of a rollback journal.
    directory = os.path.dirname(os.path.abspath(path))
    at_rest = not os.access(directory, os.W_OK) and not any(os.path.exists(path + log) for log in ("-wal", "-journal"))
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro" + ("&immutable=1" if at_rest else "")
    try:
        # Several threads may read, one after the other: DuckDB, for example, reads the batches in its own thread.
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S, check_same_thread=False)) as db:
            db.text_factory = partial(str, encoding="utf-8", errors="replace")
            _roll_back(db, path)
            if not _has_table(db, "bedrockish_journal"):
                raise NoJournalError(path, f"{path} is a database without a journal; give the file of a node")
            install(db, lambda name, function: db.create_function(name, 3, function))
            yield db
    except sqlite3.OperationalError as error:
        raise FileUnreadableError(
            path,
            f"{path} cannot be read ({error}); copy it with -wal and -journal to your own directory and read the copy",
        ) from error
    except sqlite3.DatabaseError as error:
        raise NotDatabaseError(path, f"{path} is damaged ({error}); run `bedrockish journal verify` on it") from error


def _roll_back(db: sqlite3.Connection, path: str) -> None:
    """Roll back a transaction that a killed process has left unfinished in a file; SQLite needs a writer for that."""
    try:
        db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        uri = f"file:{quote(os.path.abspath(path))}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as writer:
            writer.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()


def _has_table(db: sqlite3.Connection, name: str) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None


def meta(db: sqlite3.Connection, key: str) -> object:
    """Return a value of the table ``bedrockish_meta``, or None."""
    if not _has_table(db, "bedrockish_meta"):
        return None
    row = db.execute("SELECT value FROM bedrockish_meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def node_of(db: sqlite3.Connection, path: str) -> str:
    """Return the name of the node that has the file; for a journal without a node, the name of the file."""
    name = meta(db, "node")
    return name if isinstance(name, str) and name else Path(path).stem


class FileFeed:
    """The journal in a node's file; get one from ``open_file_feed``."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self._db, self._path = db, path
        beginning = read_beginning(db.execute, path)
        self.context = Context(node_of(db, path), path, self._primary_key, beginning, cluster=beginning.cluster)
        self.ask: Ask = partial(columns_asked, db)

    def _primary_key(self, table: str) -> list[str]:
        return [name for (name,) in columns_asked(self._db, PRIMARY_KEY, (table,))]

    def scan(self, spans: Sequence[Span], wanted: WantedEntries) -> Generator[JournalRow]:
        """Yield entries as ``OpenJournal.scan`` does, with one snapshot for each range."""
        query, values = wanted.query
        for span in spans:
            self._db.execute("BEGIN")  # a snapshot blocks the node's checkpoints, so it lasts only for a range
            try:
                self._check(span, wanted.whole)
                for row in self._db.execute(query, (*span, *values)):
                    yield JournalRow._make(row)
            finally:
                self._db.execute("ROLLBACK")

    def _check(self, span: Span, whole: bool) -> None:
        leader, low, high = span
        check_held(self._path, span, self._db.execute(HELD, (leader,)))
        if whole:
            query = "SELECT count(*) FROM bedrockish_journal WHERE leader = ? AND tick BETWEEN ? AND ?"
            ((found,),) = self._db.execute(query, span)
            if found != high - low + 1:
                raise JournalError(
                    f"{self._path} holds {found} of the {high - low + 1} entries from {leader}{low} to {leader}{high}; "
                    "run `bedrockish journal verify` on it"
                )


@contextmanager
def open_file_feed(path: str) -> Iterator[FileFeed]:
    """Open a node's file to read its journal; see ``open_file``."""
    with open_file(path) as db:
        yield FileFeed(db, path)

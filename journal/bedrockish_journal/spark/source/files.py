"""The journal in a node's file, read in fixed ranges of ticks.

A file is opened inside each task and closed with it. A running node may continue to write, because entries are only
appended, and the entries of a planned range never change.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from bedrockish_journal.model.errors import FileUnreadableError, JournalError, NotDatabaseError
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.founding import read_beginning
from bedrockish_journal.spark.source.plans import HELD, PRIMARY_KEY, Span, WantedEntries, check_held
from bedrockish_journal.storage.file_claims import Ask
from bedrockish_journal.storage.row import JournalRow
from bedrockish_journal.storage.store import read_meta, reading


class FileFeed:
    """The journal in a node's file; get one from ``open_file_feed``."""

    def __init__(self, db: apsw.Connection, path: str) -> None:
        self._db, self._path = db, path
        self.ask: Ask = db.execute
        name, beginning = read_meta(db, "node"), read_beginning(db.execute, path)
        node = name if isinstance(name, str) and name else Path(path).stem  # no node has written such a file
        self.context = Context(node, path, self._primary_key, beginning, cluster=beginning.cluster)

    def _primary_key(self, table: str) -> list[str]:
        return [str(name) for (name,) in self._db.execute(PRIMARY_KEY, (table,))]

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
            found = self._db.execute(query, span).get
            if found != high - low + 1:
                raise JournalError(
                    f"{self._path} holds {found} of the {high - low + 1} entries from {leader}{low} to {leader}{high}; "
                    "run `bedrockish journal verify` on it"
                )


@contextmanager
def open_file_feed(path: str) -> Iterator[FileFeed]:
    """Open a node's file to read its journal, even while the node runs; close it at the end of the ``with``.

    Raises:
        JournalFileError: the file has no journal, or cannot be read; see ``reading``.
    """
    with reading(path) as db:
        try:
            yield FileFeed(db, path)
        except (apsw.Error, UnicodeDecodeError) as error:
            if "no such module" in str(error):
                raise FileUnreadableError(path, f"{path} cannot be read ({error}); pip install sqlite-vec") from error
            if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, UnicodeDecodeError)):
                raise NotDatabaseError(
                    path, f"{path} is damaged ({error}); run `bedrockish journal verify` on it"
                ) from error
            raise FileUnreadableError(path, f"{path} cannot be read ({error}); check the disk") from error

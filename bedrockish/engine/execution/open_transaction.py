"""The state of an open transaction between two of its statements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.access_sets.analysis import Analysis
from bedrockish.access_sets.query_names import Query
from bedrockish.api.requests import Result, Statement
from bedrockish.engine.execution.snapshot import Snapshot
from bedrockish.engine.statements.compiled import Compiled
from bedrockish.errors import BedrockishError, SqlError
from bedrockish.sqltext.transaction_control import Control
from bedrockish_journal.model.changes import Change
from bedrockish_journal.model.value import value

LOG_MAX, LOG_BYTES = 5_000, 4 << 20  # statements and bytes of results that a transaction may have before its first DDL
ASKED_BYTES = 32 << 20  # bytes of the texts and parameters of the statements before the first DDL
KEY_BYTES = 200  # about how many bytes a key or a range of the access set takes


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint: its name, and the lengths of the transaction's lists ``changes`` and ``net_only`` at that time."""

    name: str
    changes: int
    net_only: int
    size: int
    fts_bytes: int
    is_broken: bool  # whether a deferred foreign key was or may have been broken at that time


@value
class Logged:
    """A statement that was run, with its result or its error."""

    statement: Statement | Control
    result: Result | None = None
    failure: str = ""


class TransactionWorkspace(Protocol):
    """The workspace of an open transaction, a copy of the database or an overlay: the methods with which it ends."""

    @property
    def has_failed(self) -> bool:
        """Return whether SQLite itself has ended the transaction."""

    def stop(self, error: BedrockishError) -> None:
        """Interrupt the running statement."""

    def close(self) -> None:
        """Close the workspace, and drop the transaction's changes there."""


def size_of(statement: Statement) -> int:
    """Return an estimate of the bytes of a statement's text and of the texts and blobs among its parameters."""
    params = statement.params or ()
    values = params.values() if isinstance(params, dict) else params
    return len(statement.sql) + sum(len(one) for one in values if isinstance(one, str | bytes))


@dataclass(slots=True, eq=False)
class TransactionWork:
    """The work of one open transaction: its statements so far, the rows that they changed, and their keys.

    Why so large: Its execution, its swapping out and its COMMIT are in modules of their own, and share this record.
    """

    serializable: bool
    command: str = ""  # the id of its command
    user: str = ""  # the client's user name; empty where clients need no user
    base_clock: int = 0  # a clock at or after the clocks of all commits in ``base``
    clock: int = 0  # the value of ``transaction_clock()`` in the transaction; 0 until it is called
    base: dict[str, int] | None = None  # the vector of the commits that it has seen; None until its first statement
    schema: int = 0  # the version of the schema that it runs on
    sets: AccessSetBuilder | None = None  # the keys and ranges that it has read and written
    snapshot: Snapshot | None = None  # the snapshot on which it reads until its first write
    changes: list[Change] = field(default_factory=list)  # the rows that it has changed, in order
    net_only: list[str] = field(default_factory=list)  # the tables of whose changes only the net effect is known
    marks: list[Savepoint] = field(default_factory=list)
    size: int = 0  # an estimate of the bytes of the changes
    fts_bytes: int = 0  # the bytes of text that FTS5 has to index for the changes
    lastrowid: int = 0  # an id of 0 does not change it, as in the private copy of a schema change
    wrote: bool = False  # whether a statement that writes has succeeded, even if it changed no row
    # The statements that were run, which run again if the transaction changes the schema later; None if there were too
    # many.
    log: list[Logged] | None = field(default_factory=list)
    log_result_bytes: int = 0  # an estimate of the bytes of the results in the log
    log_text_bytes: int = 0  # the bytes of the texts and parameters in the log
    # Its own workspace: a copy of the database since its first schema statement, or an overlay since it has many rows
    # or TEMP objects; None while it runs on the engine's connection.
    workspace: TransactionWorkspace | None = None
    moves_at: int = 1_000  # the weight at which it moves to a workspace of its own
    # Whether a deferred foreign key was broken at the swap-out, or at a savepoint to which the transaction rolled back.
    keys_were_broken: bool = False
    defers: bool = False  # whether all foreign keys are checked at COMMIT only, by PRAGMA defer_foreign_keys
    # Whether a later commit wrote rows that it has read on its snapshot, so that it cannot move to a newer snapshot.
    is_stale: bool = False
    read_without_keys: bool = False  # whether it has read the schema or system tables, which no access set shows
    reads_system: bool = False  # whether it has read tables of the cluster itself, such as the journal
    has_failed: bool = False  # whether the transaction can only be rolled back, for example because SQLite has ended it
    # Whether another thread works for the transaction: if ``ended`` is set in that time, the transaction ends after it.
    in_thread: bool = False
    ended: bool = False  # whether the transaction is no longer needed
    stop: Callable[[], None] | None = None  # stops the statement that runs in a background worker

    def follow(self, other: "TransactionWork") -> None:
        """Copy the state of another record of this transaction, which this record replaces."""
        self.sets, self.changes, self.net_only = other.sets, list(other.changes), list(other.net_only)
        self.marks, self.lastrowid = list(other.marks), other.lastrowid
        self.size, self.fts_bytes = other.size, other.fts_bytes
        self.wrote, self.keys_were_broken, self.defers = other.wrote, other.keys_were_broken, other.defers
        self.read_without_keys, self.reads_system = other.read_without_keys, other.reads_system
        self.clock, self.has_failed = other.clock, other.has_failed

    def inspect(self, piece: Compiled) -> None:
        """Record whether a statement reads tables without keys."""
        self.read_without_keys = self.read_without_keys or piece.reads_without_keys
        self.reads_system = self.reads_system or piece.reads_system

    def log_statement(self, one: Logged, size: int = 0) -> None:
        """Log a statement that was run; ``size`` is an estimate of the bytes of its results."""
        if self.log is None:
            return
        self.log.append(one)
        self.log_result_bytes += size
        if isinstance(one.statement, Statement):
            self.log_text_bytes += size_of(one.statement)
        if len(self.log) > LOG_MAX or self.log_result_bytes > LOG_BYTES or self.log_text_bytes > ASKED_BYTES:
            self.drop_log()

    def drop_log(self) -> None:
        """Drop the log: from now on, DDL is refused if it needs a copy that repeats the earlier statements."""
        self.log, self.log_result_bytes, self.log_text_bytes = None, 0, 0

    def take_log(self) -> list[Logged]:
        """Return and empty the log, for the copy on which the schema changes."""
        assert self.log is not None
        log, self.log, self.log_result_bytes, self.log_text_bytes = self.log, [], 0, 0
        return log

    @property
    def weight(self) -> int:
        """The time to write the changes again, in rows: FTS5 indexes 256 bytes of text in the time of a row."""
        return len(self.changes) + self.fts_bytes // 256

    @property
    def kept(self) -> int:
        """An estimate of the bytes that the node keeps for the transaction between two statements."""
        keys = 0 if self.sets is None else len(self.sets)
        return self.size + self.log_result_bytes + self.log_text_bytes + KEY_BYTES * keys

    def read_unchanged(self, piece: Compiled, params: tuple[Any, ...], rows: Sequence[Any], query: Query) -> None:
        """Record the reads of a statement that changed no row; ``query`` sees the same rows as the statement.

        A check of foreign keys that found no violation is not recorded: no other commit can cause a violation.
        """
        assert self.sets is not None
        if rows or not piece.checks_keys:
            self.sets.add_reads_unchanged(piece, params, query)

    def mark(self, name: str, *, is_broken: bool) -> None:
        """Execute SAVEPOINT; ``is_broken`` tells whether SQLite counts a deferred foreign key as broken."""
        if self.sets is not None:
            self.sets.begin_savepoint()
        is_broken = is_broken or self.keys_were_broken
        self.marks.append(
            Savepoint(name.lower(), len(self.changes), len(self.net_only), self.size, self.fts_bytes, is_broken)
        )

    def release(self, name: str) -> None:
        """Execute RELEASE.

        Raises:
            SqlError: no savepoint has that name.
        """
        place = self.find(name)
        del self.marks[place:]
        if self.sets is not None:
            self.sets.end_savepoint(place)

    def roll_back(self, place: int) -> None:
        """Drop the changes since the savepoint with this index, and the savepoints after it."""
        mark = self.marks[place]
        del self.marks[place + 1 :], self.changes[mark.changes :], self.net_only[mark.net_only :]
        self.size, self.fts_bytes = mark.size, mark.fts_bytes
        # The rows from before the savepoint may be written again, and SQLite then does not count their broken keys.
        self.keys_were_broken = self.keys_were_broken or mark.is_broken
        if self.sets is not None:
            self.sets.roll_back(place)

    def begin_sets(self, analysis: Analysis) -> None:
        """Start the access set, or continue it with the analysis of another connection."""
        if self.sets is not None:
            self.sets = self.sets.with_analysis(analysis)
            return
        self.sets = AccessSetBuilder(analysis, serializable=self.serializable)
        for _ in self.marks:
            self.sets.begin_savepoint()

    def find(self, name: str) -> int:
        """Return the index of the latest savepoint of a name.

        Raises:
            SqlError: no savepoint has that name.
        """
        for place in range(len(self.marks) - 1, -1, -1):
            if self.marks[place].name == name.lower():
                return place
        raise SqlError(f"no such savepoint: {name}")

    def owns(self, piece: Compiled) -> bool:
        """Return whether a statement could read rows that the transaction itself has changed."""
        if self.serializable:
            return self.wrote
        written = {change.table.lower() for change in self.changes}
        # ``reads`` names the content table of a search, too: the changes of its index are not in the list.
        return piece.whole_schema or any(table.lower() in written for table in piece.reads | piece.tables)

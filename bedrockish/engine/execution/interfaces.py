"""The interface between the engine and open transactions, which borrow its writing connection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import apsw

from bedrockish.access_sets.change_capture import Capture
from bedrockish.engine.execution.executor import Executor, KnownSchema
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.clock_functions import Scope
from bedrockish.engine.statements.guard import Guard
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.engine.statements.rowid_allocator import AutoIds
from bedrockish.engine.storage.row_applier import RowApplier


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of the engine that open transactions use."""

    db: apsw.Connection
    executor: Executor
    capture: Capture
    applier: RowApplier
    limits: Limits
    reader: Callable[[], apsw.Connection]  # opens another connection that only reads
    control: Callable[[str], object]  # runs the engine's own statements without rows, such as SAVEPOINT, on ``db``
    redo: Callable[[], None]  # writes the open batch again after SQLite has rolled it back because of one statement


@dataclass(frozen=True, slots=True)
class Flushed:
    """The state of the file after a batch."""

    applied: Mapping[str, int]  # the last applied tick of each timeline
    schema: int  # the version of the schema in force
    clock: int  # a clock at or after the clock of every applied entry
    batches: int = 0  # the number of batches that were committed in the life of the file
    members: int = 0  # how often the members and users had been read from the file
    ceiling: int = 0  # the ceiling of the node's clock


class Guest(Protocol):
    """The executor of open transactions, which borrows the engine's writing connection."""

    @property
    def swapped_in(self) -> object | None:
        """The transaction whose rows are in the open batch, or None."""

    def swap_out(self) -> None:
        """Remove the transaction's rows from the open batch, by a rollback to a savepoint."""

    def note_lost_rows(self) -> None:
        """Mark the transaction as swapped out, because SQLite has rolled back the open batch with its rows."""


class WriterLender(Protocol):
    """The engine's methods that open transactions use."""

    applied: dict[str, int]
    scope: Scope

    @property
    def flushed(self) -> Flushed:
        """The state of the file after the last batch."""

    @property
    def schema_version(self) -> int:
        """The version of the schema in force."""

    @property
    def applied_clock(self) -> int:
        """A clock at or after the clock of every applied entry."""

    def wait_for_writer(self) -> None:
        """Wait until no other thread has the writer."""

    def lend(self, guest: Guest) -> EngineParts:
        """Give open transactions the parts of the engine that they use; see ``Engine.lend``."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Functions and objects to open and prepare further connections, for work in other threads."""

    reader: Callable[[], apsw.Connection]  # opens another connection that only reads
    prepare: Callable[[apsw.Connection], None]  # registers the functions and collations of plugins on a connection
    wal: int  # the file descriptor of the WAL; duplicate it before use
    ids: AutoIds  # assigns ids on the writing connection
    limits: Limits
    locks: RowLocks  # the rows that transactions have locked
    known: Callable[[], KnownSchema]  # returns the schema as the writer's connection has read it
    access: Access  # the rights of users

    def executor(self, db: apsw.Connection, capture: Capture, ids: AutoIds, limits: Limits) -> Executor:
        """Return an Executor for this connection that shares the writer's knowledge of the schema."""
        shared = self.prepare, self.known(), self.access
        return Executor(db, Guard(db), capture, limits, ids, *shared)

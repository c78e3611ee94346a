"""The interface between the engine and open transactions, which borrow its writing connection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import apsw

from bedrockish.access_sets.change_capture import Capture
from bedrockish.api.requests import Request
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.executor import Executor, Known
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.classify import Guard
from bedrockish.engine.statements.clock_functions import Scope
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.engine.statements.rowid_allocator import AutoIds
from bedrockish.engine.storage.row_applier import RowApplier


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the engine that open transactions use.

    Attributes:
        reader: opens another connection that only reads.
        control: runs a statement of ours that returns no rows, such as SAVEPOINT, on ``db``.
        redo: writes the open batch again after SQLite has rolled it back because of one statement.
    """

    db: apsw.Connection
    executor: Executor
    capture: Capture
    applier: RowApplier
    limits: Limits
    reader: Callable[[], apsw.Connection]
    control: Callable[[str], object]
    redo: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Flushed:
    """The state of the file after a batch.

    Attributes:
        applied: the last applied tick of each timeline.
        schema: the version of the schema in force.
        clock: a clock at or after the clock of every applied entry.
        batches: the number of batches that were committed in the life of the file.
        members: how often the members and users had been read from the file.
        ceiling: the ceiling of the node's clock.
    """

    applied: Mapping[str, int]
    schema: int
    clock: int
    batches: int = 0
    members: int = 0
    ceiling: int = 0


class Guest(Protocol):
    """The borrower of the writing connection.

    Attributes:
        inside: the transaction whose rows are in the open batch, or None.
    """

    @property
    def inside(self) -> object | None:
        """The transaction whose rows are in the open batch, or None."""

    def leave(self) -> None:
        """Roll the transaction's rows back out of the open batch."""

    def lose(self) -> None:
        """Note that SQLite has rolled back the open batch, and with it the transaction's rows."""


class Lends(Protocol):
    """The part of the engine that open transactions use."""

    applied: dict[str, int]
    flushed: Flushed
    scope: Scope

    @property
    def schema_version(self) -> int:
        """The version of the schema in force."""

    @property
    def applied_clock(self) -> int:
        """A clock at or after the clock of every applied entry."""

    @property
    def dirty(self) -> bool:
        """Whether the open batch has writes that another connection does not see yet."""

    def come_back(self) -> None:
        """Wait until no other thread has the writer."""

    def lend(self, guest: Guest) -> Parts:
        """Lend the writing connection to open transactions; see ``Engine.lend``."""

    def execute(self, request: Request) -> Prepared:
        """Run a request and roll it back."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Functions and objects to open and prepare further connections, for work in other threads.

    Attributes:
        reader: opens another connection that only reads.
        prepare: registers the functions and collations of plugins on a connection.
        wal: the file descriptor of the WAL; duplicate it before use.
        ids: assigns ids on the writing connection.
        locks: the rows that transactions have locked.
        known: returns the schema as the writer's connection has read it.
        access: the rights of users.
    """

    reader: Callable[[], apsw.Connection]
    prepare: Callable[[apsw.Connection], None]
    wal: int
    ids: AutoIds
    limits: Limits
    locks: RowLocks
    known: Callable[[], Known]
    access: Access

    def executor(self, db: apsw.Connection, capture: Capture, ids: AutoIds, limits: Limits) -> Executor:
        """Return an Executor for this connection that shares the writer's knowledge of the schema."""
        shared = self.prepare, self.known(), self.access
        return Executor(db, Guard(db), capture, limits, ids, *shared)

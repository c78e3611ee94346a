"""What the engine lends to the transactions that are open between its own uses of the writing connection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import apsw

from bedrockish.access_sets.analysis import Precision
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
    """The engine's parts.

    Attributes:
        reader: opens another connection that only reads.
        control: runs a statement of ours that gives no rows, such as SAVEPOINT, on ``db``.
        redo: writes the open batch again, when SQLite has rolled it back because of one statement.
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
    """What a batch has left in the file.

    Attributes:
        applied: the last tick applied of each timeline.
        schema: version of the schema in force.
        clock: one that is not before that of anything applied.
        batches: how many batches were committed in the life of the file.
        members: how often the members and users were learnt until then.
    """

    applied: Mapping[str, int]
    schema: int
    clock: int
    batches: int = 0
    members: int = 0


class Guest(Protocol):
    """Who uses the writing connection between the engine's own uses.

    Attributes:
        inside: whose rows are in the open batch; None: nobody's, and there is nothing to leave.
    """

    @property
    def inside(self) -> object | None:
        """Whose rows are in the open batch."""

    def leave(self) -> None:
        """Take them out of it."""

    def lose(self) -> None:
        """SQLite has given up the open batch, and they went with it."""


class Lends(Protocol):
    """What open transactions need of an engine."""

    applied: dict[str, int]
    flushed: Flushed
    scope: Scope

    @property
    def schema_version(self) -> int:
        """Of the schema in force."""

    @property
    def applied_clock(self) -> int:
        """A clock that is not before that of anything applied."""

    @property
    def dirty(self) -> bool:
        """Whether something was applied that another connection does not see yet."""

    def come_back(self) -> None:
        """Return when no other thread has the writer."""

    def lend(self, guest: Guest) -> Parts:
        """Let them use the writer; they leave it when it is needed for something else."""

    def execute(self, request: Request) -> Prepared:
        """Run a request and roll it back."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What somebody needs who opens connections beside the writer's, to run things in other threads.

    Attributes:
        reader: opens another connection that only reads.
        prepare: gives a connection the functions and collations that were added to SQLite's own.
        wal: descriptor of the WAL; to be copied.
        ids: gives ids on the writer's connection.
        locks: the rows that transactions have locked.
        known: what the writer's connection knows of the schema.
        access: what users may do.
        precision: how exactly reads are told.
    """

    reader: Callable[[], apsw.Connection]
    prepare: Callable[[apsw.Connection], None]
    wal: int
    ids: AutoIds
    limits: Limits
    locks: RowLocks
    known: Callable[[], Known]
    access: Access
    precision: Precision

    def executor(self, db: apsw.Connection, capture: Capture, ids: AutoIds, limits: Limits) -> Executor:
        """Return what executes requests on such a connection, knowing what the writer's knows."""
        shared = self.prepare, self.known(), self.access, self.precision
        return Executor(db, Guard(db), capture, limits, ids, *shared)

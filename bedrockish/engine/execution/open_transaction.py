"""The state of an open transaction between two of its statements."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bedrockish.access_sets.growing import Growing
from bedrockish.access_sets.query_names import Query
from bedrockish.api.requests import Result, Statement
from bedrockish.engine.execution.snapshot import Snapshot
from bedrockish.engine.statements.classify import Piece
from bedrockish.errors import BedrockishError, SqlError
from bedrockish.sqltext.transaction_control import Control
from bedrockish_journal.model.changes import Change
from bedrockish_journal.model.value import value

LOG_MAX, LOG_BYTES = 5_000, 4 << 20  # statements and bytes of results that a transaction may have before its first DDL
ASKED_BYTES = 32 << 20  # of the texts and parameters of these statements
KEY_BYTES = 200  # about how many bytes a key or a range of the access set takes


@dataclass(frozen=True, slots=True)
class Mark:
    """A savepoint: the numbers of changes and blurred tables, and the size of the changes, when it was set."""

    name: str
    changes: int
    blurred: int
    size: int


@value
class Logged:
    """A statement that was run, with the result that its client was told, or its error."""

    what: Statement | Control
    told: Result | None = None
    failure: str = ""


class SessionWorkspace(Protocol):
    """The workspace of one transaction, as far as its end goes: a copy of the database, or an overlay."""

    version: int

    @property
    def is_over(self) -> bool:
        """Return whether SQLite itself has ended the transaction."""

    def stop(self, error: BedrockishError) -> None:
        """Let a running statement end soon."""

    def close(self) -> None:
        """Close the workspace, and drop what the transaction has written there."""


def size_of(statement: Statement) -> int:
    """Return the bytes of a statement's text and of the texts and blobs among its parameters, about."""
    params = statement.params or ()
    values = params.values() if isinstance(params, dict) else params
    return len(statement.sql) + sum(len(one) for one in values if isinstance(one, str | bytes))


@dataclass(slots=True, eq=False)
class Session:
    """An open transaction.

    Why so large: It is a record of one open transaction: its execution, its swapping out and its COMMIT are in modules
    of their own, and share it.

    Attributes:
        command: the id of its command.
        user: the client's user name; empty where clients need no user.
        base: the commits that it has seen; None until its first statement.
        base_clock: a clock at or after the clocks of all these commits.
        clock: the value of ``transaction_clock()`` in the transaction; 0 until it is called.
        schema: version of the schema that it runs on.
        sets: the keys and ranges that it has read and written.
        snapshot: the snapshot on which it reads as long as it has not written.
        changes: the rows that it has changed, in order.
        blurred: tables of whose changes only the net effect is known.
        size: about the size of the changes, in bytes.
        wrote: whether a statement that writes has succeeded, even if it met no row.
        log: the statements that were run, in case that the transaction changes the schema later; None: they were too
            many to keep.
        logged: about how many bytes of results the log has.
        asked: how many bytes of texts and parameters the log has.
        workspace: the workspace of its own in which it runs: a copy of the database since its first schema statement,
            an overlay since it has many rows or TEMP objects; None: it runs on the engine's connection.
        moves_at: the number of changed rows from which on it is to move to a workspace of its own.
        unsure: whether a deferred foreign key was broken when it was swapped out.
        behind: whether rows that it has read on its snapshot were written since, so that it cannot get a newer
            snapshot.
        looked_behind: whether it has read tables of the database itself, which are in no access set.
        over: whether SQLite itself has ended it.
        lent: whether another thread reads on its snapshot; the lender ends the session afterwards if it is
            ``ended``.
        ended: whether it is no longer needed.
    """

    serializable: bool
    command: str = ""
    user: str = ""
    base_clock: int = 0
    clock: int = 0
    base: dict[str, int] | None = None
    schema: int = 0
    sets: Growing | None = None
    snapshot: Snapshot | None = None
    changes: list[Change] = field(default_factory=list)
    blurred: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    size: int = 0
    lastrowid: int = 0
    wrote: bool = False
    log: list[Logged] | None = field(default_factory=list)
    logged: int = 0
    asked: int = 0
    workspace: SessionWorkspace | None = None
    moves_at: int = 1_000
    unsure: bool = False
    behind: bool = False
    looked_behind: bool = False
    over: bool = False
    lent: bool = False
    ended: bool = False

    def follow(self, other: "Session") -> None:
        """Go on where another record of the same transaction is, which is not used any more."""
        self.sets, self.changes, self.blurred = other.sets, list(other.changes), list(other.blurred)
        self.marks, self.size, self.lastrowid = list(other.marks), other.size, other.lastrowid
        self.wrote, self.looked_behind = other.wrote, other.looked_behind

    def note(self, one: Logged, size: int = 0) -> None:
        """Keep a statement that was run; ``size`` is about the size of its results, in bytes."""
        if self.log is None:
            return
        self.log.append(one)
        self.logged += size
        if isinstance(one.what, Statement):
            self.asked += size_of(one.what)
        if len(self.log) > LOG_MAX or self.logged > LOG_BYTES or self.asked > ASKED_BYTES:
            self.drop_log()

    def drop_log(self) -> None:
        """Forget the statements that were run, so that the transaction cannot change the schema any more."""
        self.log, self.logged, self.asked = None, 0, 0

    def take_log(self) -> list[Logged]:
        """Return the statements that were run, for the copy on which the schema changes; empty the log."""
        assert self.log is not None
        log, self.log, self.logged, self.asked = self.log, [], 0, 0
        return log

    @property
    def kept(self) -> int:
        """About how many bytes the node keeps for it between two statements."""
        keys = 0 if self.sets is None else len(self.sets)
        return self.size + self.logged + self.asked + KEY_BYTES * keys

    def saw(self, piece: Piece, params: tuple[Any, ...], rows: Sequence[Any], query: Query) -> None:
        """Note the reads of a statement that changed no row; ``query`` sees the same rows as the statement.

        A check of foreign keys that found no fault is not noted, because others cannot make it find one.
        """
        assert self.sets is not None
        if rows or not piece.checks_keys:
            self.sets.saw(piece, params, query)

    def mark(self, name: str) -> None:
        """SAVEPOINT name."""
        self.marks.append(Mark(name.lower(), len(self.changes), len(self.blurred), self.size))

    def release(self, name: str) -> None:
        """RELEASE name.

        Raises:
            SqlError: there is no such savepoint.
        """
        del self.marks[self.find(name) :]

    def find(self, name: str) -> int:
        """Return the place of the latest savepoint of a name.

        Raises:
            SqlError: no savepoint has that name.
        """
        for place in range(len(self.marks) - 1, -1, -1):
            if self.marks[place].name == name.lower():
                return place
        raise SqlError(f"no such savepoint: {name}")

    def owns(self, piece: Piece) -> bool:
        """Return whether a statement that reads could meet rows that the transaction itself has changed."""
        if self.serializable:
            return self.wrote
        written = {change.table.lower() for change in self.changes}
        return piece.whole_schema or any(table.lower() in written for table in piece.tables)

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
KEY_BYTES = 200  # that a key or a range of its access set takes, about


@dataclass(frozen=True, slots=True)
class Mark:
    """A savepoint: how much there was when it was set."""

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


class SchemaCopy(Protocol):
    """The private copy of the database on which a transaction changes the schema, as far as its end goes."""

    version: int

    @property
    def is_over(self) -> bool:
        """Return whether SQLite itself has ended it."""

    def stop(self, error: BedrockishError) -> None:
        """Let what runs end soon."""

    def close(self) -> None:
        """Throw the copy away."""


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
        command: its id.
        user: the client's user name; empty if clients need not show who they are.
        base: the commits that it has seen; None until its first statement.
        base_clock: a clock that is not before that of any of them.
        clock: what ``transaction_clock()`` gives in it; 0 until it is called.
        schema: version of the schema that it runs on.
        sets: what it has read and written.
        snapshot: where it reads as long as it has not written.
        changes: the rows that it has changed, in order.
        blurred: tables of whose changes only the net effect is known.
        size: of the changes, in bytes, roughly.
        wrote: whether a statement that writes has succeeded, be it that it met no row.
        log: what was run, should it come to change the schema; None: too much for that.
        logged: how many bytes of results are kept there, roughly.
        asked: how many bytes of texts and parameters are kept there.
        draft: where it runs since its first schema statement.
        unsure: a deferred foreign key was broken when it was swapped out.
        behind: something that it has read on its snapshot has been written since, so it will not get a newer one.
        looked_behind: it has read tables of the database itself, of which no access set tells.
        over: SQLite itself has ended it.
        lent: another thread reads on its snapshot; the lender ends the session afterwards if it is ``ended``.
        ended: it is no longer needed.
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
    draft: SchemaCopy | None = None
    unsure: bool = False
    behind: bool = False
    looked_behind: bool = False
    over: bool = False
    lent: bool = False
    ended: bool = False

    def note(self, one: Logged, size: int = 0) -> None:
        """Keep what was run; ``size`` is about that of its results, in bytes."""
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
        """Return the statements that were run, for the copy on which the schema changes; they are kept here no more."""
        assert self.log is not None
        log, self.log, self.logged, self.asked = self.log, [], 0, 0
        return log

    @property
    def kept(self) -> int:
        """About how many bytes the node keeps for it between two statements."""
        keys = 0 if self.sets is None else len(self.sets)
        return self.size + self.logged + self.asked + KEY_BYTES * keys

    def saw(self, piece: Piece, params: tuple[Any, ...], rows: Sequence[Any], query: Query) -> None:
        """Note what a statement has read that changed nothing; ``query`` sees what it has seen.

        That all foreign keys are right is nothing that others could change.
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

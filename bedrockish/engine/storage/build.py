"""Online build of a schema change's result, a slice at a time, before the change comes into force.

A change is decided long before it comes into force. Until then each node does the long part by itself, between its
other work; no part of the build is replicated. The result is built in a system table, the *stand-in*, and becomes the
user's when its row in ``sqlite_schema`` is rewritten: an index (``index_build``), or a table without one of its columns
(``column_drop``).

A failure here ends only the build: the change's statement then runs when the change comes into force. A build does not
outlive its process: the leftovers of a killed process are removed when the file is opened.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw

from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.definitions import folded
from bedrockish.access_sets.system_names import BARE, STAND_IN
from bedrockish.access_sets.table_layout import Table, Tables
from bedrockish.errors import ConfigError
from bedrockish.sqltext.tokenizer import NotTokensError, Token, tokens
from bedrockish_journal.model.changes import DO, Step, decode_changes_in_pieces
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid

P = TypeVar("P")
REFUSALS = (apsw.ConstraintError, apsw.SQLError, apsw.MismatchError, apsw.TooBigError, apsw.CorruptError)
Edit = tuple[Sequence[Any], Sequence[Any]]
_CLOSED = "not all of its rows were read before its time came, or before the node was to end"


class Phase(Enum):
    """How far a building is."""

    LOADING = "loading"  # rows are put in
    REMOVING = "removing"  # entries of rows that have changed since are taken out
    ADDING = "adding"  # and put in as they are now
    READY = "ready"  # it is what the change makes
    FAILED = "failed"


class Plan(Protocol):
    """The plan of a build: all facts that are known before the build starts."""

    @property
    def title(self) -> str:
        """Name of the result, for people."""

    @property
    def table(self) -> str:
        """Name of the table, as the schema spells it."""

    @property
    def table_sql(self) -> str:
        """The statement that made it."""


class Build(ABC):
    """One building.

    Args:
        db: the connection that writes.
        plan: what is built.
        txid: the change of the schema that makes it.
        version: of the schema, before that.

    Attributes:
        phase: how far it is.
        failure: why it failed.
        rows: how many of the table's were put in.
        is_late: the change comes into force now.
    """

    plan: Plan

    def __init__(self, db: apsw.Connection, txid: Txid, version: int) -> None:
        self._db, self.txid, self.version = db, txid, version
        self.phase = Phase.LOADING
        self.failure = ""
        self.rows = 0
        self.is_late = False

    @property
    def is_at_work(self) -> bool:
        """Whether it has not failed: rows that change matter to it."""
        return self.phase is not Phase.FAILED

    @property
    def is_waiting(self) -> bool:
        """Whether more has to be fetched before there is something to do."""
        return False

    @property
    @abstractmethod
    def is_nearly_done(self) -> bool:
        """Whether loading the rest takes less time than running the change's statement."""

    def begin(self, connect: Callable[[], apsw.Connection]) -> None:  # noqa: B027  not each reads a snapshot
        """Begin, when the file has all that was applied; ``connect`` opens a connection that only reads.

        Raises:
            apsw.Error: that is not possible.
        """

    def fetch(self) -> None:  # noqa: B027
        """Fetch more, in another thread."""

    def hurry(self) -> None:
        """Finish, since the change is due: ``next_edit`` now fetches its input itself, or the build is given up."""
        self.is_late = True
        if self.phase is Phase.LOADING and not self.is_nearly_done:
            self.interrupt()

    def took(self, seconds: float) -> None:  # noqa: B027
        """Take note of how long the last slice had the processor."""

    def fail(self, why: str) -> None:
        """Give it up."""
        if self.phase is not Phase.FAILED:
            self.phase, self.failure = Phase.FAILED, why

    def interrupt(self) -> None:
        """Give it up, and let a thread that fetches end soon."""
        self.fail(_CLOSED)

    def close(self, *, wait: bool = True) -> None:  # noqa: B027
        """Release the build's readers; without ``wait``, only if no thread uses them."""

    @abstractmethod
    def next_edit(self) -> Edit | None:
        """Return the next work of ``edit``; None if it has no work now.

        Everything up to now must be in the tables of the connection that writes, and nothing else.
        """

    def touched(self, transaction: Transaction, schema: int) -> Collection[int]:
        """Return the rows that a transaction changes in the table of which this is made, if ``schema`` is its own."""
        if not self.is_at_work or self.version != schema:
            return ()
        if transaction.kind != ROWS or self.plan.table.encode() not in transaction.changes:
            return ()
        touched: set[int] = set()
        try:
            for change in chain.from_iterable(decode_changes_in_pieces(transaction.changes)):
                if change.table == self.plan.table:
                    touched |= {rowid for rowid in (change.rowid, change.rowid_after) if rowid is not None}
        except EntryMalformedError:
            return ()  # applying it says so
        return touched

    @abstractmethod
    def before(self, rowids: Iterable[int]) -> Sequence[Any]:
        """Note rows of the table that are about to change; return the entries that ``edit`` has to remove for them."""

    @abstractmethod
    def after(self, rowids: Iterable[int]) -> Sequence[Any]:
        """Return the entries that ``edit`` has to add for rows that have just changed."""

    # -- on the connection that writes; each can be done again -----------------------------------------------------

    def create(self) -> None:
        """Create the stand-in."""
        self.guarded(self._create)

    def edit(self, removed: Sequence[Any], added: Sequence[Any]) -> None:
        """Take something out, and then put something in."""
        if self.phase is not Phase.FAILED:
            self.guarded(lambda: self._edit(removed, added))

    def move(self) -> bool:
        """Make the result the user's, and return whether that succeeded.

        It does not if the table's definition has changed, or if the result fails its checks.
        """
        db = self._db
        if self.phase is not Phase.READY or root_of(db, STAND_IN) == 0:
            return False
        db.execute("SAVEPOINT beside")
        moved = False
        try:
            moved = self._is_free() and self._move()
        except (*REFUSALS, UnicodeDecodeError) as error:
            if not db.in_transaction:
                raise
            self.failure = str(error)
        if not moved:
            db.execute("ROLLBACK TO beside")
        db.execute("RELEASE beside")
        return moved

    def guarded(self, action: Callable[[], None]) -> None:
        """Do something whole or not at all; if it cannot be done, give the building up, and nothing else."""
        db = self._db
        db.execute("SAVEPOINT beside")
        try:
            action()
        except REFUSALS as error:
            if not db.in_transaction:
                raise
            db.execute("ROLLBACK TO beside")
            self.fail(str(error))
        db.execute("RELEASE beside")

    def _is_free(self) -> bool:
        """Return whether the table's definition is unchanged."""
        query = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?"
        return self._db.execute(query, (self.plan.table,)).fetchall() == [(self.plan.table_sql,)]

    @abstractmethod
    def _create(self) -> None: ...

    @abstractmethod
    def _edit(self, removed: Sequence[Any], added: Sequence[Any]) -> None: ...

    @abstractmethod
    def _move(self) -> bool: ...


def only_statement(steps: Sequence[Step]) -> tuple[str, list[Token]]:
    """Return a schema change that is one statement, and its tokens up to the semicolon; nothing if it is more."""
    if len(steps) != 1 or steps[0].kind != DO or steps[0].told:
        return "", []
    try:
        found = tokens(steps[0].sql)
    except NotTokensError:
        return "", []
    while found and found[-1].text == ";":
        found.pop()
    return steps[0].sql, found


def table_with_rowids(tables: Tables, name: str) -> Table | None:
    """Return a table; None if the schema has no table of that name, or if its rows have no rowid that can be named."""
    names = tables.names([folded(name)])
    table = tables.by_name[names[0]] if names else None
    return table if table is not None and table.rowid else None


def tried(prepare: Prepare, plan: Callable[[apsw.Connection], P | None]) -> P | None:
    """Return a plan made in an empty database in memory; None if SQLite refuses a part of it there.

    Args:
        prepare: gives a connection the functions and collations that SQLite does not have.
        plan: makes the plan.
    """
    trial = apsw.Connection(":memory:")
    try:
        prepare(trial)
        return plan(trial)
    except apsw.Error:
        return None
    finally:
        trial.close()


class Writable:
    """Lets the connection write ``sqlite_schema`` for a moment."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        self._db.execute("PRAGMA writable_schema = ON")

    def __exit__(self, *_exc: object) -> None:
        self._db.execute("PRAGMA writable_schema = OFF")
        self._db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)


def root_of(db: apsw.Connection, name: str) -> int:
    """Return the root page of a table or index; 0 if it is not there."""
    found: list[Any] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    return int(found[0][0]) if found else 0


def remove_leftovers(db: apsw.Connection) -> None:
    """Remove the unfinished results of builds, if any.

    The writing connection may also know the stand-in by the bare name, which is not in the file. It has to forget that:
    the root page is soon another table's, from which the next build would delete rows.
    """
    if db.table_exists("main", BARE):
        with Writable(db):
            db.execute("PRAGMA writable_schema = RESET")
    db.execute(f"DROP TABLE IF EXISTS {STAND_IN}")


def remove_copied(copy: Path) -> None:
    """Remove the leftovers of a build from a copy of a node's file, and fsync the copy. No program may have it open.

    Raises:
        ConfigError: the copy cannot be written.
    """
    try:
        db = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            if root_of(db, STAND_IN) == 0:
                return
            remove_leftovers(db)
        finally:
            db.close()  # copies its log into it, and removes that
        with open(copy, "rb") as written:
            os.fsync(written.fileno())
    except (apsw.Error, OSError) as error:
        raise ConfigError(f"{copy} cannot be finished: {error}; check the disk and try again") from error

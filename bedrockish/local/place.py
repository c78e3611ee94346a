"""A place where one transaction of a program runs: an engine's workspace on a node's file."""

import os
from typing import Protocol

import apsw

from bedrockish.engine.execution.interfaces import Beside
from bedrockish.engine.execution.temporary import TemporaryWorkspace
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.errors import UsageError
from bedrockish.local import connections
from bedrockish.local.attached import Attached
from bedrockish.local.file_schema import FileSchema
from bedrockish.local.leased_ids import LeasedIds
from bedrockish.local.page import Facts, Published

TEMPORARY_BYTES = 1 << 40  # limit for TEMP tables; practically none, because they take the program's own space


class NodeNeededError(UsageError):
    """Raised internally when a statement needs the node, so that the transaction must move there."""

    code = "node_needed"


class Owner(Protocol):
    """The transactions of the session that has the place."""

    ids: LeasedIds  # the row ids leased by the node
    access: Access  # the rights of the cluster's users

    @property
    def attached(self) -> Attached:
        """The files that the session has attached."""

    def prepare(self, db: apsw.Connection) -> None:
        """Register the program's functions on a connection, and attach the session's files to it."""

    def schema(self, db: apsw.Connection, facts: Facts, version: int, members: int = -1) -> FileSchema:
        """Return the schema and the membership of a connection's snapshot."""


class Place:
    """A workspace on a node's file, with the page's facts (its generation) under which the files were opened."""

    def __init__(self, owner: Owner, published: Published, facts: Facts, *, has_temporary: bool = False) -> None:
        self.held: TemporaryWorkspace | None = None
        self._published, self.facts, self._owner = published, facts, owner
        self._dbs: list[apsw.Connection] = []
        self._wal = -1
        self._attached = owner.attached.version
        reader = self._connect()
        try:
            reader.execute("ROLLBACK")
            self._wal = os.open(published.database + "-wal", os.O_RDONLY | os.O_CLOEXEC)
            self.schema = owner.schema(reader, facts, -1)
            self._first: apsw.Connection | None = reader
            locks = RowLocks(lambda: self.schema.known.schema)
            schema = lambda: self.schema.known  # noqa: E731
            beside = Beside(self._reader, owner.prepare, self._wal, owner.ids, Limits(), locks, schema, owner.access)
            if has_temporary:
                self.held = TemporaryWorkspace(beside, TEMPORARY_BYTES)
            self.workspace = self.held.workspace if self.held is not None else Workspace(beside)
            self.workspace.scope.locks = None  # rows are locked at the node
            self.workspace.scope.tick = raise_node_needed
        except BaseException:
            self._release()
            raise

    def _connect(self) -> apsw.Connection:
        db = connections.connect(self._published, self.facts)
        self._dbs.append(db)
        self._owner.prepare(db)
        return db

    def _reader(self) -> apsw.Connection:
        """Return the workspace's reader, which was opened and checked before."""
        found, self._first = self._first, None
        assert found is not None
        return found

    @property
    def reader(self) -> apsw.Connection:
        """The connection that holds the snapshot."""
        return self._dbs[0]

    def attach(self) -> None:
        """Attach the session's files to the workspace's connections, before a transaction begins."""
        attached = self._owner.attached
        if self._attached != attached.version:
            self.workspace.tell(attached.bring)
            self._attached = attached.version

    def is_of(self, facts: Facts) -> bool:
        """Return whether the workspace's files are those of the page's present generation."""
        return (self.facts.generation, self.facts.since) == (facts.generation, facts.since)

    @property
    def is_broken(self) -> bool:
        """Return whether the workspace's connections have failed."""
        return self.workspace.is_broken

    def close(self) -> None:
        """Close the files."""
        try:
            self.workspace.end()
            self.workspace.close()
        finally:
            self._release()

    def _release(self) -> None:
        for db in self._dbs:
            connections.close(db, (self.facts.device, self.facts.inode))
        self._dbs.clear()
        if self._wal >= 0:
            os.close(self._wal)
            self._wal = -1


def raise_node_needed() -> int:
    """Raise NodeNeededError, because only the node gives values of the cluster's clock."""
    raise NodeNeededError("only the node gives values of the cluster's clock")

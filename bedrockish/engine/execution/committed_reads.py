"""Reads of the last committed batch in the file, while another thread uses the writing connection.

With SQLite's write-ahead log, another connection sees the last committed batch while the writer writes the next one. So
a request that only reads need not wait for the writer if the last batch has everything that its session has seen.

The number of the batch is read from the snapshot itself, because the writer's thread may commit the next batch at any
moment. A snapshot of a batch whose vector is not known yet is not used.
"""

from dataclasses import dataclass

import apsw

from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import Request, Token
from bedrockish.engine.execution.interfaces import Connector, Flushed
from bedrockish.engine.sqlite.errors import broken
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.changes_vtab import give_functions
from bedrockish.engine.statements.clock_functions import ClockNeededError, Holder
from bedrockish.engine.storage import system_tables as system
from bedrockish.errors import BedrockishError, DamagedError, UnavailableError
from bedrockish_journal.model.vector import covers
from bedrockish_journal.storage import schema_history, store

CACHE_KIB = 8 << 10


@dataclass(frozen=True, slots=True)
class PinnedBatch:
    """The batch that a pinned snapshot shows."""

    flushed: Flushed  # the state of the file after the batch
    clock: int  # a clock at or after every commit in the snapshot and the activation of its schema
    following: int | None  # the clock at which the next schema comes into force; None if no change is scheduled


class CommittedReads:
    """A connection for reads of the last committed batch. One thread at a time may use it."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._db: apsw.Connection | None = None
        self._version = -1  # the version of the schema that the executor knows
        self.pinned: PinnedBatch | None = None

    def pin(self, flushed: Flushed) -> bool:
        """Release the pinned snapshot, and pin one of the last batch for ``read_pinned``; return whether that
        succeeded.

        A pinned snapshot prevents a restart of the write-ahead log: release it with ``unpin`` when a restart is due.

        Args:
            flushed: the state of the file after the last batch; ``knows`` must be true for its schema.

        Raises:
            DamagedError: the file cannot be read; the node must stop.
        """
        db = self._db
        assert db is not None
        assert self.knows(flushed.schema)
        self.unpin()
        try:
            db.execute("BEGIN")
            if system.get_meta(db, "batches") == flushed.batches:
                in_force, following = schema_history.clocks(db)
                self.pinned = PinnedBatch(flushed, max(flushed.clock, in_force), following)
            else:  # the writer's thread has committed the next batch, whose vector is not known yet
                db.execute("ROLLBACK")
        except apsw.CorruptError as error:
            raise broken(error) from error
        except apsw.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
        return self.pinned is not None

    def unpin(self) -> None:
        """Release the pinned snapshot, if any."""
        if self.pinned is not None:
            self.pinned = None
            assert self._db is not None
            if self._db.in_transaction:  # SQLite rolls back itself when a read finds no memory, or no temporary file
                self._db.execute("ROLLBACK")

    def read_pinned(self, request: Request, budget_s: float) -> bytes | None:
        """Return the encoded results of a request on the pinned snapshot; None if the core has to answer.

        The core has to answer if the request does not only read, if its session has seen commits that are not in the
        snapshot, if its command has already happened, if it takes longer than ``budget_s`` seconds, or if it fails; in
        the last case, the writer executes it again and reports the error.

        Raises:
            DamagedError: the file cannot be read; the node must stop.
        """
        db, pin, token = self._db, self.pinned, request.token
        assert db is not None
        assert pin is not None
        if not covers(pin.flushed.applied, token.vector) or _has_seen_newer_schema(token, pin.following):
            return None
        executor = self._executor
        try:
            if store.command_txid(db, request.command) is not None:
                return None
            return executor.read(request, budget_s)
        except DamagedError:
            raise
        except apsw.CorruptError as error:
            raise broken(error) from error
        except (apsw.Error, BedrockishError, TakesLongError, ClockNeededError):
            return None
        finally:
            executor.governor.release()
            if not db.in_transaction:
                self.pinned = None

    def knows(self, version: int) -> bool:
        """Return whether ``read`` can be called while this version of the schema is in force."""
        return self._version == version

    def learn(self) -> None:
        """Read the schema of the file, which takes long for thousands of tables.

        Raises:
            UnavailableError: the machine has no room for another connection, or the schema cannot be read now.
        """
        try:
            db = self._db or self._connected()
            self.unpin()
            db.execute("BEGIN")
            try:
                version = int(system.get_meta(db, "schema_version"))
                tables = Tables(db, self._connector.known().tables)
                self._capture.use(tables)
                self._executor.use(tables)
                self._version = version
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except apsw.Error as error:
            raise UnavailableError(f"the file cannot be read on another connection: {error}") from error

    def _connected(self) -> apsw.Connection:
        connector = self._connector
        db = connector.reader()
        try:
            db.pragma("cache_size", -CACHE_KIB)
            give_functions(db, Holder())  # a function that needs the writer raises an error
            ids = connector.ids.twin()
            ids.register(db)
            self._capture = Capture(db, connector.limits.changes_bytes)
            db.execute("BEGIN")  # the executor reads the schema by several statements, which must see one snapshot
            self._executor = connector.executor(db, self._capture, ids, connector.limits)
            db.execute("ROLLBACK")
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def read(self, request: Request, flushed: Flushed, budget_s: float) -> tuple[bytes, int] | None:
        """Read on a snapshot of the last batch, as ``read_pinned`` does.

        Return the encoded results, and a clock at or after every commit in the snapshot and the activation of its
        schema.

        Args:
            request: a request at the level ``stale`` or ``session``.
            flushed: the state of the file after the last batch; ``knows`` must be true for its schema.
            budget_s: the seconds that the request may take.

        Raises:
            DamagedError: the file cannot be read; the node must stop.
        """
        if not self.pin(flushed):
            return None
        pin = self.pinned
        assert pin is not None
        try:
            results = self.read_pinned(request, budget_s)
        finally:
            self.unpin()
        return None if results is None else (results, pin.clock)

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self.pinned = None
            self._db.close(True)
            self._db = None
            self._version = -1


def _has_seen_newer_schema(token: Token, following: int | None) -> bool:
    """Return whether a session has seen, on another node, the schema that comes into force at a clock."""
    return following is not None and token.clock >= following

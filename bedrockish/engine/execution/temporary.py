"""The TEMP objects of one session: its workspace, which it keeps, and its transactions, which all run there.

The workspace is an overlay on a snapshot (``workspace``), whose connection is the session's own, so SQLite keeps the
TEMP tables as it always does. A transaction begins on the newest snapshot. Its rows in the database are captured and
certified like those of any other; rows of TEMP tables are in no read set, write set or journal. When the transaction is
decided, the overlay is committed, which keeps the TEMP tables, and dropped; or it is rolled back, and they are as they
were before.

No TEMP object has the name of an object in the database: texts of our own name tables without their database.

``begin``, ``stop`` and ``close`` belong to the loop; the rest to one thread at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apsw

from bedrockish.access_sets.change_capture import row_bytes
from bedrockish.access_sets.growing import Growing
from bedrockish.api.requests import Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.explain import explain
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.interfaces import Beside
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.engine.execution.workspace import Work, Workspace
from bedrockish.engine.statements.classify import Piece
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.storage.overlay_vfs import Moment
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    TemporaryLostError,
    TooLargeError,
    UnsupportedError,
)
from bedrockish.sqltext.transaction_control import RELEASE, ROLLBACK_TO, SAVEPOINT, Control

OF_SCHEMA = (
    "a transaction of a session with TEMP objects cannot change the schema of the database; change it outside of a "
    "transaction, with no TEMP object in the statement, or on another connection"
)
OF_DEFERRING = (
    "a session with TEMP objects cannot defer foreign keys by it; send the statements on another connection, or "
    "declare the keys DEFERRABLE INITIALLY DEFERRED"
)
_CLASH = """
SELECT own.name FROM sqlite_temp_schema AS own JOIN main.sqlite_schema AS other ON own.name = other.name COLLATE NOCASE
WHERE own.type <> 'trigger' AND other.type <> 'trigger' AND own.name NOT LIKE 'bedrockish!_%' ESCAPE '!' LIMIT 1
"""


class TemporaryWorkspace:
    """A workspace that holds the TEMP objects of one session.

    Args:
        means: opens its connections.
        most_bytes: how much its TEMP tables may take.

    Attributes:
        transaction: the open transaction that runs here.
    """

    def __init__(self, means: Beside, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.workspace = Workspace(means)
        self.workspace.temporary_bytes = most_bytes
        self.transaction: TemporaryTransaction | None = None

    @property
    def is_broken(self) -> bool:
        """Return whether its connections failed, so that the TEMP objects are lost."""
        return self.workspace.is_broken

    def close(self) -> None:
        """Throw the TEMP objects away. No thread may be at work."""
        self.workspace.end()
        self.workspace.close()


class TemporaryTransaction:
    """One transaction of a session with TEMP objects.

    Args:
        held: the session's workspace; no other transaction may be open on it.
        like: the session whose settings the transaction takes over.
        tick: gives values of the node's clock.

    Attributes:
        version: the version of the schema that it runs on.
        is_over: whether SQLite itself has ended it.
        session: the reads and writes of its statements.
    """

    def __init__(self, held: TemporaryWorkspace, like: Session, tick: Callable[[], int]) -> None:
        self._held, self._like = held, like
        self.session = Session(like.serializable, like.command, like.user, clock=like.clock)
        held.transaction = self
        held.workspace.scope.begin_in_worker(like.command, like.clock, tick)
        self.version = 0
        self._work: Work | None = None
        self._defined = False

    @property
    def is_over(self) -> bool:
        """Return whether SQLite itself has ended it."""
        return self.session.over

    # -- in the loop -----------------------------------------------------------------------------------------------

    def begin(self, base: Mapping[str, int], schema_version: int, moment: Moment, applied_clock: int) -> None:
        """Take a snapshot of the file, which must hold everything that was applied.

        Raises:
            UnavailableError: the snapshot cannot be taken.
        """
        self.version = schema_version
        self.session.base, self.session.schema, self.session.base_clock = dict(base), schema_version, applied_clock
        self._held.workspace.begin(base, schema_version, moment, applied_clock)

    def stop(self, error: BedrockishError) -> None:
        """Let what runs end soon."""
        self._held.workspace.stop(error)

    def close(self, *, is_lost: bool = False) -> None:
        """Roll the transaction back unless it was kept; ``is_lost`` ends the use of the TEMP objects."""
        if self._held.transaction is not self:
            return
        self._held.workspace.is_broken = self._held.workspace.is_broken or is_lost
        self._held.transaction = None
        workspace = self._held.workspace
        workspace.leave_work()
        if self._defined and self._work is not None:
            self._work.executor.forget_texts()
        workspace.end()

    # -- in a thread -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Repeat the changes that the transaction made elsewhere, before it had TEMP objects.

        Raises:
            ConflictError: its rows no longer fit.
            TemporaryLostError: the database has an object by now with the name of a TEMP one.
            BedrockishError: the file cannot be read, or the error that ``stop`` was given.
        """
        like, session = self._like, self.session
        work = self._work = self._held.workspace.open_work(session)
        executor, interactive = work.executor, work.interactive
        interactive.no_schema, interactive.no_defer = OF_SCHEMA, OF_DEFERRING
        executor.reader = None  # it has no TEMP objects
        clash = self._clash(work.db)
        if clash:
            self._held.workspace.is_broken = True
            raise TemporaryLostError(
                f"{clash}: the database has an object of this name since, so the TEMP objects of the session are gone; "
                "it did not happen: make them again, under other names"
            )
        session.sets = Growing(executor.analysis, serializable=session.serializable)
        if like.sets is not None:
            session.sets.merge(like.sets)
        session.lastrowid, session.wrote, session.looked_behind = like.lastrowid, like.wrote, like.looked_behind
        session.size, session.blurred = like.size, list(like.blurred)
        changes, ends = list(like.changes), [mark.changes for mark in like.marks]
        session.changes = changes[: ends[0]] if ends else changes
        interactive.enter(session)
        for place, mark in enumerate(like.marks):
            work.db.execute(f"SAVEPOINT mark_{place}")
            following = changes[mark.changes : (ends[place + 1] if place + 1 < len(ends) else len(changes))]
            failure = interactive.parts.applier.redo(following)
            interactive.parts.applier.loud()
            if failure:
                raise ConflictError(f"the transaction's rows do not fit any more: {failure}; run it again")
        session.changes, session.marks = changes, list(like.marks)

    def run(self, statement: Statement, room: int) -> tuple[Result, int]:
        """Run a text; return the result of its last statement, and about how many bytes the results take.

        Raises:
            BedrockishError: as for a request; the transaction can go on after a usage error, unless it ``is_over``.
        """
        work, session = self.work, self.session
        size, last = 0, None
        for piece, params in work.interactive.pieces(session, statement):
            session.looked_behind = session.looked_behind or piece.looks_behind
            last = self._one(work, piece, params, room - size)
            size += sum(map(row_bytes, last.rows))
        assert last is not None
        return last, size

    def _one(self, work: Work, piece: Piece, params: Sequence[Any], room: int) -> Result:
        try:
            result, _ = work.interactive.run(self.session, piece, tuple(params), room)
        except ClockNeededError:
            raise UnsupportedError(
                "transaction_clock() cannot be called in a session with TEMP objects; call it on another connection, "
                "and send the value as a parameter",
                sql=piece.sql,
            ) from None
        except BedrockishError as error:
            if work.interactive.inside is not self.session:
                self.session.over = True  # SQLite has rolled all of it back, TEMP tables included
            if not isinstance(error.__cause__, apsw.FullError):
                raise
            raise TooLargeError(
                f"the TEMP tables of a session take at most {self._held.most_bytes} bytes (temporary_bytes_max); drop "
                "some of them, or copy less",
                sql=piece.sql,
            ) from error
        if piece.defines:
            self._defined = True
            work.executor.forget_texts()
            clash = self._clash(work.db)
            if clash:
                # The statement has run, so the transaction cannot go on without what it has made.
                self.session.over = True
                raise UnsupportedError(
                    f"{clash}: the database has an object of this name; give the TEMP one another name", sql=piece.sql
                )
        return result

    @staticmethod
    def _clash(db: apsw.Connection) -> str:
        found = db.execute(_CLASH).fetchone()
        return "" if found is None else str(found[0])

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with their declared types; nothing is run.

        Raises:
            SqlError: SQLite does not accept it.
        """
        return explain(self.work.executor, statement, self.session.user, columns=True)

    def control(self, control: Control) -> None:
        """Do SAVEPOINT, RELEASE or ROLLBACK TO: SQLite's own, because TEMP tables go back with them.

        Raises:
            SqlError: there is no such savepoint.
        """
        work, session = self.work, self.session
        if control.kind == SAVEPOINT:
            session.mark(control.name)
            work.db.execute(f"SAVEPOINT mark_{len(session.marks) - 1}")
            return
        if control.kind not in (RELEASE, ROLLBACK_TO):
            raise UnsupportedError(f"{control.kind} is not a statement here; use the operation of that name")
        place = session.find(control.name)
        if control.kind == RELEASE:
            work.db.execute(f"RELEASE mark_{place}")
            session.release(control.name)
            return
        work.db.execute(f"ROLLBACK TO mark_{place}")
        del session.marks[place + 1 :]
        Interactive.cut(session, session.marks[place])
        work.executor.forget_texts()

    def finish(self) -> Prepared:
        """Return what the transaction is, to be led; its rows stay here until ``keep`` or ``close``.

        Raises:
            ConstraintError: a deferred foreign key is broken; it can be mended.
        """
        return self.work.finish()

    def keep(self) -> None:
        """Keep the TEMP tables: the transaction is decided."""
        workspace = self._held.workspace
        try:
            workspace.keep_work()
        except apsw.Error:
            workspace.is_broken = True

    @property
    def work(self) -> Work:
        """The work of its statements, from ``open`` on."""
        assert self._work is not None
        return self._work

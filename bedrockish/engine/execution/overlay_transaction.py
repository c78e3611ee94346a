"""An open transaction that has a workspace of its own, where it stays until its end.

The transaction begins on a snapshot, with the changes that it has made elsewhere, and runs its statements on an overlay
(``workspace``). So a commit of others does not make it write its changes again. Its reads and writes are certified at
its COMMIT, as of the snapshot.

``begin``, ``stop`` and ``close`` belong to the loop; all other calls to one thread at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bedrockish.access_sets.change_capture import row_bytes
from bedrockish.api.requests import Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.explain import explain
from bedrockish.engine.execution.open_transaction import Logged, Session
from bedrockish.engine.execution.workspace import Work, Workspace
from bedrockish.engine.statements.classify import Piece
from bedrockish.engine.storage.overlay_vfs import Moment
from bedrockish.errors import BedrockishError, ConstraintError, SqlError, UnavailableError
from bedrockish.sqltext.transaction_control import Control, control_of
from bedrockish_journal.model.access_set import READS, WRITES


class OverlayTransaction:
    """One open transaction in a workspace of its own.

    Args:
        workspace: has no other transaction.
        session: the transaction, which may have run statements elsewhere.
        tick: gives values of the node's clock.
    """

    def __init__(self, workspace: Workspace, session: Session, tick: Callable[[], int]) -> None:
        self.workspace, self.session = workspace, session
        workspace.scope.begin_in_worker(session.command, session.clock, tick)
        self.version = 0  # the version of the schema on which the transaction runs
        self.is_closed = False  # whether the transaction was rolled back or kept
        self._work: Work | None = None

    @property
    def is_over(self) -> bool:
        """Return whether SQLite itself has ended it."""
        return self.session.over

    @property
    def work(self) -> Work:
        """The work of its statements, from ``open`` on."""
        if self._work is None:
            raise UnavailableError("the transaction was ended; it did not happen")
        return self._work

    # -- in the loop -----------------------------------------------------------------------------------------------

    def begin(self, base: Mapping[str, int], schema_version: int, moment: Moment, applied_clock: int) -> None:
        """Take a snapshot of the file, which must hold everything that was applied.

        Raises:
            UnavailableError: the snapshot cannot be taken.
        """
        self.version = schema_version
        self.session.base, self.session.schema, self.session.base_clock = dict(base), schema_version, applied_clock
        self.workspace.begin(base, schema_version, moment, applied_clock)

    def stop(self, error: BedrockishError) -> None:
        """Interrupt the running statement; it raises this error."""
        self.workspace.stop(error)

    def close(self) -> None:
        """Roll the transaction back, and close its workspace; do nothing if it is closed."""
        if not self.is_closed:
            self.is_closed = True
            self.workspace.leave_work()
            self.workspace.end()
            self.workspace.close()

    # -- in a thread -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin on the overlay with the changes that the transaction made before.

        Raises:
            ConflictError: its rows no longer fit.
            BedrockishError: the file cannot be read, or the error that ``stop`` was given.
        """
        session = self.session
        with self.workspace.stoppable():
            work = self._work = self.workspace.open_work(session)
            work.executor.reader = None  # this connection would show the rows without the transaction's changes
            session.begin_sets(work.executor.analysis)
            self._check(work)
            work.enter()

    def _check(self, work: Work) -> None:
        """Check the workspace before rows are written in it; a subclass may refuse it."""

    def run_list(self, statements: Sequence[Statement], results: list[Result], room: int) -> int:
        """Run texts in order, up to the first that changes the schema; add the result of each to ``results``.

        Return about how many bytes the results take.

        Raises:
            BedrockishError: as ``run``. The results of the statements before are in ``results``.
        """
        first, session, alone, taken = len(results), self.session, 0, 0
        interactive = self.work.interactive
        while len(results) - first < len(statements):
            place = len(results) - first
            statement = statements[place]
            if interactive.is_schema(statement):
                break
            control = control_of(statement.sql, statement.params)
            if control is not None:
                self.control(control)
                session.note(Logged(control))
                results.append(Result((), [], -1, session.lastrowid or None))
                continue
            if place >= alone:
                with self.workspace.stoppable():
                    done, alone = self.work.run_alike(statements, place)
                for one, result in zip(statements[place:], done, strict=False):
                    session.note(Logged(one, result))
                results += done
                if done:
                    continue
            try:
                last, size = self.run(statement, room - taken)
            except (ConstraintError, SqlError) as error:
                session.note(Logged(statement, failure=error.message))
                raise
            session.note(Logged(statement, last), size)
            results.append(last)
            taken += size
        return taken

    def run(self, statement: Statement, room: int) -> tuple[Result, int]:
        """Run a text; return the result of its last statement, and about how many bytes the results take.

        Raises:
            ClockNeededError: it calls ``transaction_clock()``, and the transaction has no clock yet.
            BedrockishError: as for a request; the transaction can go on after a usage error, unless it ``is_over``.
        """
        work, session = self.work, self.session
        size, last = 0, None
        with self.workspace.stoppable():
            for piece, params in work.interactive.pieces(session, statement):
                session.looks(piece)
                last = self._run_piece(work, piece, params, room - size)
                size += sum(map(row_bytes, last.rows))
        assert last is not None
        return last, size

    def _run_piece(self, work: Work, piece: Piece, params: tuple[Any, ...], room: int) -> Result:
        work.enter()
        return work.interactive.run(self.session, piece, params, room)[0]

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with their declared types; nothing is run.

        Raises:
            SqlError: SQLite does not accept it.
        """
        with self.workspace.stoppable():
            return explain(self.work.executor, statement, self.session.user, columns=True)

    def control(self, control: Control) -> None:
        """Run SAVEPOINT, RELEASE or ROLLBACK TO.

        Raises:
            SqlError: there is no such savepoint.
            UnsupportedError: it is another statement.
        """
        with self.workspace.stoppable():
            self.work.control(control)

    def finish(self) -> Prepared:
        """Return the prepared transaction for its commit. If this raises, the transaction stays open.

        Raises:
            ConstraintError: a deferred foreign key is broken; it can be mended.
        """
        with self.workspace.stoppable():
            prepared = self.work.finish()
        for which in (READS, WRITES):
            prepared.access_set.ordered(which)  # sorted here, many keys hold up the loop less
        return prepared

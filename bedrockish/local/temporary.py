"""Open transactions of a session with TEMP objects, in the program's process.

The session keeps one workspace, whose connection has the TEMP tables, views and triggers. All its transactions run
there, by the code with which a node runs those of its sessions.
"""

from typing import Any

import apsw

from bedrockish.api.requests import Request, Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.engine.execution.temporary import TemporaryTransaction
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.errors import BedrockishError, ConflictError, OutcomeUnknownError, TemporaryLostError, UnsupportedError
from bedrockish.local.program_functions import Give
from bedrockish.local.transactions import (
    RESULT_BYTES,
    LocalTransaction,
    LocalTransactions,
    NodeNeededError,
    Place,
    needs_node,
)
from bedrockish.sqltext.transaction_control import control_of


class WithTemporary(LocalTransaction):
    """One open transaction of a session with TEMP objects.

    Args:
        owner: of the session.
        place: the session's workspace.
        request: its BEGIN.
        moment: that of the snapshot which the workspace holds.
        before: the transaction so far, if it has begun before there were TEMP objects.

    Raises:
        TemporaryLostError: the database has an object by now with the name of a TEMP one.
        ConflictError: what the transaction was told so far is not so at this moment.
    """

    keeps_rows = True

    def __init__(
        self,
        owner: LocalTransactions,
        place: Place,
        request: Request,
        moment: FileMoment,
        before: LocalTransaction | None,
    ) -> None:
        self._like = None if before is None else before.work_at(moment)
        super().__init__(owner, place, request, moment)
        self.log = None
        if before is not None and self._like is None:
            try:
                self._run_again(before)
            except BaseException:
                self.end()
                raise

    def _open(self, session: Session, moment: FileMoment) -> None:
        held = self._place.held
        assert held is not None
        self._running = running = TemporaryTransaction(held, self._like or session, needs_node)
        self._session = running.session
        self._session.base, self._session.schema = dict(moment.vector), moment.schema
        self._session.base_clock = moment.clock
        try:
            running.open()
        except BedrockishError:
            running.close()
            raise
        self._work = running.work

    def _run_again(self, before: LocalTransaction) -> None:
        """Run the statements so far again. Raises ``ConflictError`` if they give something else."""
        same = before.log is not None
        for logged in before.log or ():
            told, failure = None, ""
            try:
                told = self.run(logged.statement)
            except BedrockishError as error:
                failure = error.message
            same = same and told == logged.told and failure == logged.failure
        if not same:
            raise ConflictError(
                "the transaction has made its first TEMP object, and another one has changed what it rests on since it "
                "began; it did not happen: run it again, or make the TEMP object first"
            )

    def run(self, statement: Statement) -> Result:
        """Run one statement; it never goes on at the node, which has no TEMP objects of this program.

        Raises:
            UnsupportedError: it needs the node.
            BedrockishError: see ``LocalTransaction``.
        """
        if self._ended is not None:
            raise self._ended
        control = control_of(statement.sql, statement.params)
        try:
            with self._lock, self._statement:
                if control is None:
                    return self._running.run(statement, RESULT_BYTES)[0]
                self._running.control(control)
                return Result((), [], -1, self.lastrowid)
        except (NodeNeededError, ClockNeededError) as error:
            raise UnsupportedError(
                f"the statement needs the node ({error.message}), which has no TEMP objects of this program; run it on "
                "another connection",
                sql=statement.sql,
            ) from error

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with their declared types; nothing is run.

        Raises:
            SqlError: SQLite does not accept it.
        """
        with self._lock:
            return self._running.columns(statement)

    def finish(self) -> Prepared:
        """Return the transaction as the node certifies it; its rows stay here until ``decide``."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._owner.check_generation(self._place.facts)
            return self._running.finish()

    def decide(self, error: BaseException | None) -> None:
        """Keep the rows of TEMP tables if COMMIT was answered, and give them up if it failed; if that is not known,
        give up all TEMP objects.
        """
        with self._lock:
            if error is None:
                self._running.keep()
            is_known = error is None or (
                isinstance(error, BedrockishError) and not isinstance(error, OutcomeUnknownError)
            )
            self._running.close(is_lost=not is_known)

    def end(self, error: BedrockishError | None = None) -> None:
        """Roll back what is left of it; the workspace stays the session's. Ending it twice is fine."""
        if self._ended is None:
            self._ended = error or ConflictError("the transaction is over; begin another one")
            try:
                self._running.close()
            except apsw.Error:
                self._place.workspace.is_broken = True

    def give(self, given: Give) -> None:
        """Do nothing: the workspace is the session's, and gets what the program registers."""


def begin(
    owner: LocalTransactions, place: Place, request: Request, moment: FileMoment, before: LocalTransaction | None
) -> WithTemporary:
    """Begin a transaction in the workspace that has the TEMP objects of its session.

    Raises:
        BedrockishError: see ``WithTemporary``; after a ``TemporaryLostError`` the objects are gone.
    """
    try:
        return WithTemporary(owner, place, request, moment, before)
    except TemporaryLostError:
        owner.lose_temporary()
        raise

"""The governor of a connection's statements, which ends the running one when its time or memory is used up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from bedrockish.access_sets.effort import Check, TooCostlyError
from bedrockish.engine.sqlite.limits import Budget, Limits, TakesLongError, out_of_time
from bedrockish.engine.sqlite.watchdog import Interrupter
from bedrockish.errors import BedrockishError, SqlError

STEPS = 4_000  # SQLite's own steps between two calls of ``progress``: usually a tenth of a millisecond
FOREVER = float("inf")


class Governor:
    """The limits on time and memory of the client's statement that runs on a connection.

    The limits interrupt only between ``watch`` and ``release``, while a client's statement runs: SQLite calls
    ``progress`` during the engine's own statements as well. An error in ``stopped`` interrupts any statement.

    Args:
        failure: returns the error for which the running statement has to end, such as too many changes; else None.
    """

    __slots__ = ("_failure", "_interrupter", "_is_refused", "_until", "allow", "budget", "limits", "number", "stopped")

    def __init__(self, limits: Limits, failure: Callable[[], BedrockishError | None] = lambda: None) -> None:
        self.limits, self._failure = limits, failure
        self.budget = Budget(limits)
        self.allow = self.budget.allow  # sets the processor time, in seconds, that further statements may take
        self._until = FOREVER  # the deadline of the running statement, by the clock of the limits
        self.number = 0  # the running statement's number in the memory account; 0 if it has none
        self._is_refused = False  # whether the running statement has taken too much memory
        self.stopped: BedrockishError | None = None  # the error with which the running statement has to end at once
        self._interrupter = Interrupter(self._is_late)

    def progress(self) -> bool:
        """Return whether to interrupt the running statement; SQLite calls this every ``STEPS``."""
        if self.stopped is None and not (
            self._until != FOREVER
            and (
                self._failure() is not None
                or self.limits.seconds() > self._until
                or self.budget.is_over
                or self._takes_too_much()
            )
        ):
            return False
        self._interrupter.is_interrupted = True
        return True

    def _is_late(self) -> bool:
        """Return whether to interrupt the running statement; the watchdog calls this in its own thread."""
        return self.limits.seconds() > self._until or self.budget.seems_over()

    def _takes_too_much(self) -> bool:
        self._is_refused = self._is_refused or (self.number > 0 and self.limits.memory.must_end(self.number))
        return self._is_refused

    def watch(self, db: apsw.Connection) -> None:
        """Limit the time and the memory of the statement that runs next on a connection, until ``release``."""
        self._limit_time()
        self.number, self._is_refused = self.limits.memory.register(), False
        self._interrupter.begin(db)

    def release(self) -> None:
        """End the limits of the statement, which has succeeded or failed."""
        self._interrupter.end()
        self.limits.memory.end(self.number)
        self.number, self._is_refused, self._until = 0, False, FOREVER

    def interrupt(self, db: apsw.Connection) -> None:
        """Interrupt the statement that runs in another thread."""
        self._until = -FOREVER
        self._interrupter.is_interrupted = True
        db.interrupt()

    def caused(self, error: apsw.Error) -> bool:
        """Return whether an interrupt caused the error of the running statement; valid only before ``release``."""
        return self._interrupter.caused(error)

    def refusal(self) -> BedrockishError | None:
        """Return the error of the running statement if it was interrupted because it took too much memory."""
        return self.limits.memory.refusal("the statement was ended") if self._is_refused else None

    def ending(self) -> BedrockishError | None:
        """Return the error that ends the running statement at once; None if no error does, or only its time is over."""
        return self.stopped or self._failure()

    def error_of_interrupt(self, sql: str) -> Exception:
        """Return the error for a statement that was interrupted; valid only before ``release``."""
        error = self.refusal() or self.ending()
        if error is None and self.budget.is_over:
            return TakesLongError(sql)
        return error or out_of_time(self.limits, sql)

    @contextmanager
    def judging(self, sql: str) -> Iterator[None]:
        """Apply a statement's time limit to a block that examines the whole schema; ``sql`` is the text for the error.

        Raises:
            TakesLongError: the work has used the budget and has not ended.
            StatementTimeoutError: the work exceeds the time limit of a statement.
        """
        self._limit_time()
        self._interrupter.is_interrupted = False
        try:
            yield
        except apsw.Error as error:
            if not self.caused(error):
                raise
            raise self.error_of_interrupt(sql) from error
        except SqlError as error:
            cause = error.__cause__
            if not isinstance(cause, apsw.Error) or not self.caused(cause):
                raise
            raise self.error_of_interrupt(sql) from cause
        finally:
            self._until, self._interrupter.is_interrupted = FOREVER, False

    def patience(self, sql: str, seconds: float) -> Check:
        """Return a check for an analysis; it raises when the budget or ``seconds`` of processor time are used up."""
        busy = self.limits.busy
        until = busy() + seconds

        def check() -> None:
            if self.stopped is not None:
                raise self.stopped
            if self.budget.is_over:
                raise TakesLongError(sql)
            if busy() > until:
                raise TooCostlyError

        return check

    def _limit_time(self) -> None:
        self._until = self.limits.seconds() + self.limits.statement_s

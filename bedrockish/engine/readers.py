"""Connections that read the file as it was at some moment, for as long as somebody needs it.

SQLite's write-ahead log gives each of them a true snapshot. It is taken when the writer has just committed a batch, so
that what it shows is exactly what was applied then.
"""

from collections.abc import Callable
from typing import Any

import apsw

from bedrockish.engine.capture import row_bytes
from bedrockish.engine.changes import give_functions
from bedrockish.engine.clocks import Holder, Scope
from bedrockish.engine.failures import translate
from bedrockish.engine.guard import Piece
from bedrockish.engine.limits import Limits, TakesLongError, out_of_time
from bedrockish.errors import SqlError, TooLargeError, UnavailableError

IDLE_MAX = 64  # connections that are kept for the next one
CACHE_KIB = 1 << 10
STEPS = 20_000  # SQLite's own steps between two looks at the clock
WAY_OUT = "stream them, select less, or use LIMIT"


class Snapshot:
    """One reading connection; open until ``Readers.give_back``. To be used by one thread at a time.

    Attributes:
        limits: what a statement may cost.
        until: when the statement that runs is interrupted, on the clock of the limits.
    """

    def __init__(self, db: apsw.Connection, limits: Limits) -> None:
        self._db, self.limits = db, limits
        self.until = float("inf")
        self._holder = Holder()
        give_functions(db, self._holder)
        db.set_progress_handler(lambda: limits.seconds() > self.until, STEPS)

    def begin(self) -> None:
        """Take the snapshot."""
        self._db.execute("BEGIN")
        self._db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # a transaction begins with its first read

    def end(self) -> None:
        """Let go of the snapshot."""
        self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def cursor(self) -> apsw.Cursor:
        """Return a cursor; it must be closed before the snapshot is given back."""
        return self._db.cursor()

    def interrupt(self) -> None:
        """Interrupt what runs in another thread."""
        self._db.interrupt()

    def run(
        self,
        piece: Piece,
        params: tuple[Any, ...],
        room: int,
        scope: Scope | None = None,
        budget_s: float = float("inf"),
    ) -> tuple[list[tuple[Any, ...]], int]:
        """Run a statement that reads; return its rows and about how many bytes they take.

        Args:
            piece: the statement.
            params: its parameters.
            room: bytes that its rows may take.
            scope: what the clock's functions give in it.
            budget_s: how long it may take, in seconds.

        Raises:
            ClockNeededError: it calls ``transaction_clock()``, and there is none.
            TakesLongError: it has run for ``budget_s`` and is not done.
            SqlError: SQLite does not accept a value.
            TooLargeError: the rows take more than ``room`` bytes, or it runs too long.
        """
        limits = self.limits
        self.until = limits.seconds() + min(limits.statement_s, budget_s)
        self._holder.scope = scope
        rows: list[tuple[Any, ...]] = []
        size = 0
        cursor = self._db.cursor()
        try:
            for row in cursor.execute(piece.sql, params, can_cache=piece.can_cache):
                rows.append(row)
                size += row_bytes(row)
                if size > room:
                    raise TooLargeError(f"the results take more than {limits.result_bytes} bytes; {WAY_OUT}")
        except apsw.InterruptError:
            if budget_s < limits.statement_s:
                raise TakesLongError(piece.sql) from None
            raise out_of_time(limits, piece.sql) from None
        except apsw.Error as error:
            raise translate(error, piece.sql) from error
        except UnicodeDecodeError:
            raise SqlError("the result has a text that is not UTF-8; select CAST(... AS BLOB)", sql=piece.sql) from None
        finally:
            self.until = float("inf")
            self._holder.scope = None
            cursor.close(True)
        return rows, size


class Readers:
    """Reading connections on one file; a few are kept open for the next who needs one."""

    def __init__(self, connect: Callable[[], apsw.Connection], limits: Limits) -> None:
        self._connect, self._limits = connect, limits
        self._idle: list[Snapshot] = []

    def take(self) -> Snapshot:
        """Return a snapshot of what the file has now.

        Raises:
            UnavailableError: the machine has no room for another connection.
        """
        try:
            if self._idle:
                snapshot = self._idle.pop()
            else:
                db = self._connect()
                db.pragma("cache_size", -CACHE_KIB)
                snapshot = Snapshot(db, self._limits)
            snapshot.begin()
        except (apsw.CantOpenError, apsw.NoMemError) as error:
            raise UnavailableError(
                f"the node cannot open its file once more ({error}); end some transactions, or raise its limit of "
                "open files"
            ) from error
        return snapshot

    def give_back(self, snapshot: Snapshot) -> None:
        """End a snapshot."""
        snapshot.end()
        if len(self._idle) < IDLE_MAX:
            self._idle.append(snapshot)
        else:
            snapshot.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

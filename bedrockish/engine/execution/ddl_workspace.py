"""An open transaction that changes the schema: its statements run on a private copy, which is deleted at its end.

The copy is an overlay on a snapshot (``workspace``) and is kept until COMMIT, so that other requests never wait for
its statements, however long they take. The statements and their answers are recorded. COMMIT submits them, and every
node runs them again at the activation (``ddl_execution``). The transaction's statements from before its first schema
statement are first run again on the copy.

The loop calls ``take_snapshot``, ``stop`` and ``close``; one thread at a time calls the other methods.
"""

from collections.abc import Callable, Sequence
from typing import Any

import apsw

from bedrockish.api.requests import Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.ddl_execution import Mixed
from bedrockish.engine.execution.explain import explain
from bedrockish.engine.execution.interfaces import Connector, Flushed
from bedrockish.engine.execution.open_transaction import Logged
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.storage.overlay_vfs import FileState
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DamagedError,
    SqlError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)
from bedrockish.sqltext.statement_ends import first_word, is_single
from bedrockish.sqltext.statement_kinds import verb_of
from bedrockish.sqltext.transaction_control import Control
from bedrockish_journal.storage.schema_steps import answer_digest

MEMORY_BYTES = 512 << 20


class Draft:
    """The private copy of the database on which an open transaction changes the schema."""

    def __init__(self, connector: Connector, user: str) -> None:
        self._user = user
        self._workspace = Workspace(connector)
        self._mixed: Mixed | None = None
        self.has_failed = (
            False  # whether the transaction can only be rolled back, for example because SQLite has ended it
        )

    # -- in the loop -----------------------------------------------------------------------------------------------

    @property
    def flushed(self) -> Flushed:
        """The commits and the schema on which the transaction runs."""
        return self._workspace.flushed

    def take_snapshot(self, flushed: Flushed, moment: FileState) -> None:
        """Take a snapshot of the file after its last batch.

        Raises:
            UnavailableError: the snapshot cannot be taken.
        """
        self._workspace.take_snapshot(flushed, moment)

    def stop(self, error: BedrockishError) -> None:
        """Interrupt the running statement."""
        self._workspace.stop(error)

    def close(self) -> None:
        """Delete the copy; no statement may be running on it."""
        self._mixed = None
        self._workspace.close()

    # -- in a thread -----------------------------------------------------------------------------------------------

    def open(self, log: Sequence[Logged], room: int) -> None:
        """Run again the statements that the transaction has run before its first schema statement.

        Raises:
            ConflictError: a statement has another result now.
            BedrockishError: a statement is not allowed in such a transaction.
        """
        writer = self._workspace.hold(MEMORY_BYTES)
        self._writer = writer
        try:
            self._mixed = Mixed(writer.executor, self._user)
        except apsw.Error as error:  # such as an interrupt by ``stop``
            raise UnavailableError(f"the private copy of the database failed: {error}; run it again") from error
        for one in log:
            if isinstance(one.statement, Control):
                self.control(one.statement)
                continue
            try:
                found, _ = self._run(one.statement, room, told=one.result, again=True)
            except (ConstraintError, SqlError) as error:
                if one.failure != str(error.message):
                    raise _changed(one.statement) from error
                continue
            except (TooLargeError, UnsupportedError) as error:  # name the statement: the client has just sent another
                raise type(error)(
                    f"{error.message} (the refused statement ran before: {_quoted(one.statement)})", **error.details
                ) from error
            if verb_of(one.statement.sql) == "EXPLAIN" and is_single(one.statement.sql):
                continue  # not compared: the programs of two connections have different page numbers
            if one.result is None or not _same(one.statement.sql, found[-1], one.result):
                raise _changed(one.statement)

    def run(self, statement: Statement, room: int) -> tuple[Result, int]:
        """Run a text; return the result of its last statement, and an estimate of the results' bytes.

        Raises:
            BedrockishError: as for a request; the transaction can go on after a usage error, unless it ``has_failed``.
        """
        results, size = self._run(statement, room)
        return results[-1], size

    def run_alike(self, statements: Sequence[Statement], room: int) -> tuple[list[Result], int]:
        """Run the first statements together, as ``Mixed.run_alike``; no results if ``run`` must run the first one.

        Raises:
            BedrockishError: as ``run``.
        """
        assert self._mixed is not None
        mixed = self._mixed
        return self._checked(lambda: mixed.run_alike(statements, room))

    def _run(
        self, statement: Statement, room: int, *, told: Result | None = None, again: bool = False
    ) -> tuple[list[Result], int]:
        assert self._mixed is not None
        mixed = self._mixed
        return self._checked(lambda: mixed.run(statement, room, told=told, again=again))

    def _checked(self, run: Callable[[], tuple[list[Result], int]]) -> tuple[list[Result], int]:
        """Run statements; note whether SQLite itself has ended the transaction."""
        try:
            return run()
        except (DamagedError, UnavailableError) as error:
            full = self._writer.file.was_full
            if isinstance(error, UnavailableError) and not full:
                raise
            self.has_failed = True
            if full:
                raise TooLargeError(
                    f"the transaction changes more than {MEMORY_BYTES >> 20} MiB of pages before its COMMIT; send its "
                    "statements together as one request, or change the schema and the rows in several transactions"
                ) from error
            raise UnavailableError(f"the private copy of the database failed: {error.message}; run it again") from error
        finally:
            self.has_failed = self.has_failed or not self._writer.db.in_transaction

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with their declared types, without running it.

        Raises:
            SqlError: SQLite does not accept the statement.
        """
        return explain(self._writer.executor, statement, self._user, columns=True)

    def control(self, control: Control) -> None:
        """Execute SAVEPOINT, RELEASE or ROLLBACK TO.

        Raises:
            SqlError: no savepoint has that name.
            UnsupportedError: the name is reserved.
        """
        assert self._mixed is not None
        self._mixed.control(control)

    def finish(self) -> Prepared:
        """Return the prepared transaction for its commit.

        Raises:
            ConstraintError: a foreign key is broken; further statements can repair it.
            UnsupportedError: the result cannot be replicated.
        """
        mixed = self._mixed
        assert mixed is not None
        return mixed.prepared(
            dict(self.flushed.applied), self.flushed.schema, [Result((), [], -1, mixed.lastrowid or None)]
        )


def _same(sql: str, found: Result, told: Result) -> bool:
    if min(found.rowcount, 2) != min(told.rowcount, 2):
        return False
    if told.rowcount == 1 and first_word(sql) in ("INSERT", "REPLACE") and found.lastrowid != told.lastrowid:
        return False
    return answer_digest(sql, found.rows) == answer_digest(sql, told.rows)


def _quoted(statement: Statement) -> str:
    return repr(statement.sql.strip()[:200])


def _changed(statement: Statement) -> ConflictError:
    return ConflictError(
        f"an answer from before the schema change is no longer valid: {_quoted(statement)} "
        "gives another answer; the transaction did not happen: run it again",
        table="schema",
    )

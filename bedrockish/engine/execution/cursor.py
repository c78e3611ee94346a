"""Streamed results: helper threads read them on a snapshot, in batches of bounded size.

Between two batches only SQLite's cursor is kept, so a result may be larger than the memory.
"""

from typing import Any

import apsw

from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.access_sets.call_costs import Lengths, too_long
from bedrockish.access_sets.change_capture import row_bytes
from bedrockish.access_sets.readset import ReadPlan
from bedrockish.api.large_results import encode_in_steps
from bedrockish.api.requests import Result, Statement
from bedrockish.engine.execution.executor import Executor
from bedrockish.engine.execution.snapshot import Snapshot
from bedrockish.engine.sqlite.errors import not_utf8, translate
from bedrockish.engine.statements.compiled import READ, Compiled
from bedrockish.errors import BedrockishError, TooLargeError, UnavailableError, UnsupportedError
from bedrockish_journal.model.access_set import AccessSet

BATCH_BYTES = 256 << 10  # bytes of rows at which a batch is sent
BATCH_S = 0.1  # seconds after which a batch is sent if it has a row


def compile_read(
    executor: Executor, statement: Statement, user: str = ""
) -> tuple[Compiled, tuple[Any, ...], ReadPlan]:
    """Return the single, reading statement of a text, its parameters and its plan, without running it.

    Raises:
        SqlError: SQLite does not accept the statement or its parameters.
        UnsupportedError: the statement writes, or the text has several.
    """
    found = None
    for piece, params in executor.texts.pieces(statement, user):
        if piece.kind != READ or piece.setting:
            raise UnsupportedError("only a statement that reads can be streamed; use execute for this one")
        if found is not None:
            raise UnsupportedError("a stream is the result of one statement; leave out the statements after it")
        found = piece, params
    assert found is not None  # a text without a statement was refused before
    return *found, executor.analysis.plan(found[0])


def access_set_of(executor: Executor, plan: ReadPlan, params: tuple[Any, ...], snapshot: Snapshot) -> AccessSet:
    """Return the access set of a statement that reads on a snapshot."""
    gatherer = AccessSetBuilder(executor.analysis, serializable=True)
    gatherer.add_reads_before(plan, params, snapshot.query)
    return gatherer.finish([], [])


class Batches:
    """The rows of one statement. Several threads may call the methods, one at a time."""

    def __init__(
        self,
        snapshot: Snapshot,  # the snapshot to read on; its creator returns it to ``Readers`` after ``close``
        piece: Compiled,
        params: tuple[Any, ...],
        lengths: Lengths,  # the bounds of the lengths of its values
        *,
        by_column: bool = False,  # whether the client reads the rows by column
    ) -> None:
        self._snapshot, self._piece, self._params, self._lengths = snapshot, piece, params, lengths
        self._by_column = by_column
        self._cursor: apsw.Cursor | None = None
        self._is_stopped = False

    def next_batch(self) -> tuple[bytes, int, bool]:
        """Return the next rows as an encoded result, their number, and whether there may be more.

        Raises:
            SqlError: SQLite does not accept a value, or cannot compute a row.
            TooLargeError: SQLite returned no row within the time limit of a statement.
            UnavailableError: ``stop`` was called.
        """
        snapshot, limits = self._snapshot, self._snapshot.limits
        interrupt: BedrockishError | None = None
        try:
            with snapshot.statement(self._lengths, self._params):
                try:
                    if self._is_stopped:
                        raise apsw.InterruptError
                    rows, size, more = self._rows(limits.seconds() + BATCH_S)
                except apsw.Error as error:
                    if snapshot.governor.caused(error):
                        interrupt = snapshot.governor.refusal() or self._interrupted()
                    raise
            columns = self._piece.columns
            encoded = encode_in_steps([Result(columns, rows)], size, by_column=self._by_column)
            return encoded, len(rows), more
        except apsw.Error as error:
            if interrupt is not None:
                raise interrupt from None
            raise too_long(error, self._lengths, self._piece.sql, self._params) or translate(
                error, self._piece.sql
            ) from error
        except UnicodeDecodeError:
            raise not_utf8(self._piece.sql) from None

    def _rows(self, until: float) -> tuple[list[tuple[Any, ...]], int, bool]:
        seconds = self._snapshot.limits.seconds
        if self._cursor is None:
            self._snapshot.switch(self._piece.settings, on=True)
            self._cursor = self._snapshot.cursor()
            self._cursor.execute(self._piece.sql, self._params, can_cache=self._piece.can_cache)
        rows: list[tuple[Any, ...]] = []
        size = 0
        for row in self._cursor:
            rows.append(row)
            size += row_bytes(row)
            if size >= BATCH_BYTES or seconds() >= until:
                return rows, size, True
        return rows, size, False

    def _interrupted(self) -> BedrockishError:
        if self._is_stopped:
            return UnavailableError("the reading was stopped")
        seconds = self._snapshot.limits.statement_s
        return TooLargeError(
            f"SQLite found no further row within {seconds:g} s; add an index, or select less", sql=self._piece.sql
        )

    def stop(self) -> None:
        """Interrupt a ``next_batch`` that runs in another thread."""
        self._is_stopped = True  # before the interrupt: ``next_batch`` sets the deadline, and then tests this flag
        self._snapshot.interrupt()

    def close(self) -> None:
        """Close the statement, so that the snapshot can be returned."""
        if self._cursor is not None:
            self._cursor.close(True)
            self._cursor = None
            self._snapshot.switch(self._piece.settings, on=False)

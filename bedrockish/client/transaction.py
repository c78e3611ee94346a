"""Interactive transactions: an application executes statements one by one, then COMMIT or ROLLBACK.

BEGIN is sent with the first statement, which saves a round trip and keeps the snapshot young. From then on the
transaction stays at one node, in that node's memory, until COMMIT. If the node or the link is lost before COMMIT, the
transaction is rolled back. If the answer to COMMIT is lost, the outcome is found out by its command id.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from bedrockish.api.requests import Params, Request, Result, Rows, Statement, check_params, check_timeout, rows_of
from bedrockish.api.temporary import Temporary
from bedrockish.api.wire import BEGIN, BEGUN, COMMIT, EXPLAIN, ROLLBACK, STATEMENTS, Answered, Ask, Step, Told
from bedrockish.client.request_builder import columns_of, is_plain, new_command, note_results, pairs_of, with_values
from bedrockish.client.sansio.transaction_steps import What
from bedrockish.common.forks import notice_fork
from bedrockish.common.pauses import Pauses
from bedrockish.errors import BedrockishError, ClientClosedError, UsageError
from bedrockish.sqltext.known_texts import KEPT_TEXT_MAX
from bedrockish.sqltext.session_values import SessionValues
from bedrockish.sqltext.statement_ends import check_statement
from bedrockish.sqltext.temporary import first_temporary, makes_temporary

if TYPE_CHECKING:
    import trio

    from bedrockish.client.local_steps import LocalSteps
    from bedrockish.local.transaction import LocalTransaction

T = TypeVar("T")
Call = Callable[[What, float], Awaitable[Answered | Told]]

CANCELLED = "its first statement was cancelled; the transaction did not happen: begin another transaction"
BATCH = 1_000  # statements of ``executemany`` in one round trip
CLEAN_UP_S = 2.0  # time limit of a rollback after a failure; if it is exceeded, the node itself ends the transaction


def shielded() -> "trio.CancelScope":
    """Return a scope for clean-up: shielded from cancellation, but limited to ``CLEAN_UP_S``."""
    import trio  # imported here, because the blocking client needs no event loop

    return trio.move_on_after(CLEAN_UP_S, shield=True)


CleanUpScope = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """The checked arguments of ``Client.transaction``, and the session's state that its statements use."""

    read: str
    isolation: str
    timeout_s: float
    values: SessionValues = field(default_factory=SessionValues)
    temporary: Temporary = field(default_factory=Temporary)


class Transaction:
    """An open transaction. Get one from ``Client.transaction``; use it from one task at a time.

    Attributes:
        command: the id of its COMMIT, by which ``Client.settle`` tells whether the transaction was committed.
    """

    def __init__(
        self,
        call: Call,
        options: TransactionOptions,
        clean_up_scope: CleanUpScope = shielded,
        steps: "LocalSteps | None" = None,
    ) -> None:
        self.command = new_command()
        self._call, self._clean_up_scope, self._local = call, clean_up_scope, steps
        self._options = options
        self._is_open, self._is_begun = True, False  # begun: it is open at a node or in this process
        self._error: BedrockishError | None = None
        self._marks = 0

    @property
    def is_open(self) -> bool:
        """Whether the transaction can still be committed, as far as this process knows."""
        return self._is_open

    @property
    def _has_begun(self) -> bool:
        """Whether the transaction is open at a node or in this process, even if a signal has ended its first step."""
        return self._is_begun or (self._local is not None and self._local.has(self.command))

    async def execute(self, sql: str, params: Params = None, *, timeout: float | None = None) -> Rows:
        """Run one statement, which may also be SAVEPOINT, RELEASE or ROLLBACK TO.

        After a usage error (a constraint, a syntax error) the transaction stays open, without the statement's changes.

        Raises:
            ConflictError: another transaction changed data that this one read or wrote. This one was rolled back.
            UnavailableError: the node is gone, or has ended the transaction. The transaction was rolled back.
            BedrockishError: as for ``Client.execute``; for the first statement also if no node begins the transaction.
        """
        return (await self.run([(sql, params)], timeout=timeout))[0]

    async def executemany(self, sql: str, rows: Iterable[Params], *, timeout: float | None = None) -> int:
        """Run one statement with each of ``rows``, a thousand in a round trip; return the number of rows changed.

        Raises:
            BedrockishError: see ``execute``; the runs before the failed one keep their changes.
        """
        total = 0
        batch: list[tuple[str, Params]] = []
        for row in rows:
            batch.append((sql, row))
            if len(batch) == BATCH:
                total += sum(max(0, one.rowcount) for one in await self.run(batch, timeout=timeout))
                batch.clear()
        if batch:
            total += sum(max(0, one.rowcount) for one in await self.run(batch, timeout=timeout))
        return total

    async def run(self, statements: Sequence[str | tuple[str, Params]], *, timeout: float | None = None) -> list[Rows]:
        """Run several statements in one round trip; return the result of each.

        Raises:
            BedrockishError: see ``execute``; ``details["statement"]`` is the index of the failed statement. The
                statements before it keep their changes.
        """
        texts = pairs_of(statements)
        last: object = None
        for sql, _ in texts:
            if sql is not last:  # ``executemany`` passes one text up to a thousand times
                last = check_statement(sql)
        made = tuple([Statement(sql, check_params(params)) for sql, params in texts])
        self._check_open()
        options = self._options
        made = with_values(made, options.values)
        if any(map(makes_temporary, {one.sql for one in made})):
            options.temporary.set_name(self.command)
        found: list[Rows] | None = None
        if self._local is not None and self._is_begun and not options.temporary.asked:
            found = await self._run_here(self._local, made, timeout)
        if found is None:
            reply = await self._step(STATEMENTS if self._is_begun else BEGIN, made, timeout)
            found = rows_of(reply.answer, len(made))
        return note_results(found, options.values)

    def run_plain(self, sql: str, params: Params, timeout_s: float | None, *, again: bool = False) -> Rows | None:
        """Run a statement in this thread, in less time than ``run`` takes, and return its result.

        Begin the transaction in this process if it is the first statement. Return None if ``run`` must run it: the
        transaction is not open in this process, the statement depends on the session, or it needs the node. With
        ``again``, first try ``LocalTransaction.run_again``.

        Raises:
            BedrockishError: see ``run``.
        """
        notice_fork()
        local, options = self._local, self._options
        if local is None or not self._is_open or options.temporary.asked:
            return None
        if options.values.settings or type(sql) is not str or len(sql) > KEPT_TEXT_MAX or not is_plain(sql):
            return None
        statement = Statement(sql, check_params(params))
        seconds = self._seconds(timeout_s)
        if not self._is_begun:
            again = True  # a text that is known to only read needs the snapshot, and no overlay
            self._is_begun = local.begin_at_once(self.command, options.read, options.isolation, seconds)
            if not self._is_begun:
                return None
        one = local.find(self.command)
        if one is None or one.keeps_rows:
            return None
        try:
            result = local.run_at_once(one, statement, again=again)
        except BaseException as error:
            self.fail(one, error)
        if result is None:
            return None
        rows = Rows(result.columns, result.rows, result.rowcount, result.lastrowid)
        return note_results([rows], options.values)[0]

    def run_first(self, sql: str, values: tuple[Any, ...] | dict[str, Any], *, only_brief: bool) -> "Result | None":
        """Begin in this process, with a text that has run here before; return None if ``run`` must run it.

        Args:
            values: parameters that SQLite stores without conversion.
            only_brief: whether to return None also if the call would take more than some microseconds.

        Raises:
            BedrockishError: see ``run``.
        """
        local, options = self._local, self._options
        if local is None or options.temporary.asked or options.values.settings:
            return None
        if not local.transactions.pool.knows_read(sql, only_brief=only_brief):
            return None
        self._is_begun = local.begin_at_once(
            self.command, options.read, options.isolation, options.timeout_s, may_wait=not only_brief
        )
        one = local.find(self.command) if self._is_begun else None
        if one is None:
            return None
        try:
            return one.run_again(sql, values, only_brief=only_brief)
        except BaseException as error:
            self.fail(one, error)

    @property
    def here(self) -> "LocalTransaction | None":
        """The open transaction if it runs in this process, for ``LocalTransaction.run_again``; None if it does not.

        Read this property again after any other statement, which may have changed a setting of the session.
        """
        local, options = self._local, self._options
        if local is None or not (self._is_begun and self._is_open):
            return None
        return None if options.temporary.asked or options.values.settings else local.find(self.command)

    def lose(self, error: BedrockishError) -> None:
        """End the transaction because of this error, and raise the error at each further call until ``rollback``."""
        self._is_open, self._error = False, error

    def fail(self, one: "LocalTransaction", error: BaseException) -> NoReturn:
        """Update the state after a statement of ``one`` has failed; raise the error for the caller."""
        assert self._local is not None
        told = self._local.error_for_caller(one, error) if isinstance(error, BedrockishError) else error
        self._note_error(STATEMENTS, told)
        try:
            if told is error:
                raise error
            raise told from error
        finally:
            del error, told  # a frame that refers to its error forms a cycle, which would keep the call's parameters

    async def _run_here(
        self, local: "LocalSteps", statements: tuple[Statement, ...], timeout_s: float | None
    ) -> list[Rows] | None:
        """Run statements without encoding a request if the transaction is open in this process; else return None."""
        seconds = self._seconds(timeout_s)
        try:
            return await local.run_here(
                self.command, statements, lambda: Step(0, self._request(statements, seconds, ""), STATEMENTS), seconds
            )
        except BaseException as error:
            self._note_error(STATEMENTS, error)
            raise

    async def columns(self, sql: str, *, timeout: float | None = None) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column of a statement's result, as this transaction sees the tables.

        Raises:
            BedrockishError: SQLite does not accept the statement, or the transaction is over.
        """
        self._check_open()
        asked = {"columns": True} | ({"transaction": self.command} if self._is_begun else {})
        seconds = self._options.timeout_s if timeout is None else check_timeout(timeout)
        return columns_of(await self._call(Ask(0, EXPLAIN, statement=Statement(sql), asked=asked), seconds))

    def next_mark(self) -> str:
        """Return an unused name for a savepoint."""
        self._marks += 1
        return f"bedrockish_{self._marks}"

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Roll back the changes of the block if the block raises."""
        name = self.next_mark()
        await self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if self._is_open:
                with self._clean_up_scope(), suppress(BedrockishError):
                    await self.run([f"ROLLBACK TO {name}", f"RELEASE {name}"], timeout=CLEAN_UP_S)
            raise
        await self.execute(f"RELEASE {name}")

    async def commit(self, *, timeout: float | None = None) -> Rows:
        """Commit; return rows whose ``place`` is the transaction's place in the journal, None if it only read.

        Raises:
            ConflictError: the transaction conflicts with another one, and was rolled back.
            ConstraintError: a deferred constraint is broken; the transaction is still open.
            OutcomeUnknownError: the answer was lost and no majority could be asked; ``Client.settle`` asks again.
            BedrockishError: the transaction was not committed.
        """
        self._check_open()
        if not self._has_begun:
            self._is_open = False
            return Rows((), [])  # no statement was executed, and no node holds the transaction
        self._seconds(timeout)
        if self._local is not None and self._local.commit_reads(self.command):
            self._is_open = False
            return Rows((), [])
        reply = await self._step(COMMIT, (), timeout)
        self._is_open = False
        rows = rows_of(reply.answer)
        return rows[0] if rows else Rows((), [], place=reply.answer.place)

    async def rollback(self, *, timeout: float | None = None) -> None:
        """Roll the transaction back; do nothing if it has ended already."""
        if not self._is_open and self._error is None:
            return
        try:
            if self._local is not None and self._local.has(self.command):
                self._local.roll_back(self.command)
            elif self._is_begun:
                with suppress(BedrockishError):  # if its node is gone, the transaction is rolled back as well
                    await self._step(ROLLBACK, (), timeout)
        except BaseException:
            if self._local is not None:  # the handler of a signal may have left it open, and with it its snapshot
                self._local.transactions.forget(self.command)
            raise
        finally:
            self._is_open, self._error = False, None

    async def finish(self) -> None:
        """Commit the transaction if it is open; raise its error if it failed and was not rolled back.

        Raises:
            BedrockishError: see ``commit``.
        """
        if self._error is not None:
            raise self._error
        if self._is_open:
            await self.commit()

    async def abandon(self) -> None:
        """Roll back after a failure, within ``CLEAN_UP_S``, even if the task is cancelled."""
        with self._clean_up_scope():
            await self.rollback(timeout=CLEAN_UP_S)

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._is_open:
            raise ClientClosedError("this transaction is over; begin another")

    async def _step(self, op: str, statements: tuple[Statement, ...], timeout_s: float | None) -> Answered:
        temporary = self._options.temporary.asked if statements else ""
        first = first_temporary(one.sql for one in statements) if temporary else None
        seconds = self._seconds(timeout_s)
        try:
            reply = await self._call(Step(0, self._request(statements, seconds, temporary), op), seconds)
        except BaseException as error:
            self._note_error(op, error, first)
            raise
        assert isinstance(reply, Answered)
        self._is_begun = True
        if temporary:
            self._options.temporary.note(first=first)
        return reply

    def _seconds(self, timeout_s: float | None) -> float:
        return self._options.timeout_s if timeout_s is None else check_timeout(timeout_s)

    def _request(self, statements: tuple[Statement, ...], timeout_s: float, temporary: str) -> Request:
        options = self._options
        return Request(
            self.command, statements, options.read, options.isolation, timeout_s=timeout_s, temporary=temporary
        )

    def _note_error(self, op: str, error: BaseException, first: int | None = None) -> None:
        """Update the state of the transaction after a step that failed or was cancelled."""
        if op in (BEGIN, STATEMENTS):
            self._options.values.note_error(error)
        if isinstance(error, BedrockishError):
            self._options.temporary.note(error, first=first)
            self._is_begun = self._is_begun or bool(error.details.get(BEGUN))
            if not isinstance(error, UsageError) or error.details.get("ended") or isinstance(error, ClientClosedError):
                self._is_open, self._error = False, error
        elif _is_cancelled(error):
            if op == COMMIT:
                self._is_open = False
                if self._local is not None:  # the COMMIT may not have been sent yet
                    self._local.roll_back(self.command)
            if op == BEGIN:  # perhaps the transaction was begun at the node: the client's core then rolls it back
                self._is_open, self._error = False, ClientClosedError(CANCELLED)


def _is_cancelled(error: BaseException) -> bool:
    cancelled = getattr(sys.modules.get("trio"), "Cancelled", None)  # another thread may be importing trio now
    return cancelled is not None and isinstance(error, cancelled)


@asynccontextmanager
async def transaction(
    call: Call, options: TransactionOptions, steps: "LocalSteps | None" = None
) -> AsyncIterator[Transaction]:
    """Open a transaction; commit it at the end of the block, roll it back if the block raises."""
    opened = Transaction(call, options, steps=steps)
    try:
        yield opened
        await opened.finish()
    except BaseException:
        await opened.abandon()
        raise


async def run_transaction(
    call: Call,
    options: TransactionOptions,
    function: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    steps: "LocalSteps | None" = None,
) -> T:
    """Run a function in a transaction; retry with pauses, until the timeout, while the error has ``retry``.

    Raises:
        OutcomeUnknownError: the transaction may or may not have been committed, so it cannot be run again.
        BedrockishError: the transaction was not committed.
    """
    import trio

    pauses = Pauses(options.timeout_s)
    while True:
        try:
            async with transaction(call, replace(options, timeout_s=pauses.left_s), steps) as opened:
                return await function(opened, *args)
        except BedrockishError as error:
            pause_s = pauses.draw() if error.retry else None
            if pause_s is None:
                raise
        await trio.sleep(pause_s)

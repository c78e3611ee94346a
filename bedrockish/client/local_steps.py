"""Open transactions on a node's file: their steps run in this process, and COMMIT is one call to the node.

``LocalSteps`` is between a transaction and the calls of its session. It runs the steps of a local transaction in this
process, and sends all other steps to the node. So a transaction has the same class, errors and answers with a file
as with a URL.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from bedrockish.api.requests import (
    NOTHING,
    STRICT,
    Answer,
    Request,
    Result,
    Rows,
    Statement,
    Token,
    decode_results,
    encode_results,
)
from bedrockish.api.temporary import FRESH
from bedrockish.api.url import Address
from bedrockish.api.wire import BEGIN, BEGUN, COMMIT, PING, ROLLBACK, STATEMENTS, UPKEEP, Answered, Ask, Step, Told
from bedrockish.client.calls import Calls
from bedrockish.client.sansio.core import INHERITED
from bedrockish.client.sansio.transaction_steps import What
from bedrockish.common.pauses import monotonic
from bedrockish.errors import (
    BedrockishError,
    ClientClosedError,
    ConflictError,
    DeadlineError,
    SqlError,
    TemporaryLostError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from bedrockish.local.leased_ids import LEASE, LEASE_MAX, IdsNeededError
from bedrockish.local.page import socket_path
from bedrockish.local.prepared import encode_prepared
from bedrockish.local.reads import closed
from bedrockish.local.transaction import ExecutedStatement, LocalTransaction
from bedrockish.local.transactions import LocalTransactions
from bedrockish.local.workspace_pool import NodeNeededError
from bedrockish.sqltext.session_values import failed_at
from bedrockish.sqltext.statement_ends import count_parentheses
from bedrockish.sqltext.statement_kinds import READ, WRITE, kind_of

NODE_LACKS_FILES = "the node keeps them, and does not have this program's files"
STRICT_TRIES, RETRY_S = 3, 0.002
RETURN_S = 1.0  # pause between two attempts to return to the node of the file
FILE_ERRORS = (TemporaryLostError, UnavailableError, UnsupportedError)  # may mean that a thread has closed the file
REPEATED_MAX = 100  # most statements that are repeated at the node in one round trip


class LocalSteps:
    """Runs each step of a session's open transactions in this process or at the node."""

    def __init__(self, session: Calls, transactions: LocalTransactions, database: str) -> None:
        self._session, self.transactions = session, transactions
        self._socket = socket_path(database)
        self._next_return_at = (
            0.0  # when the session may next try to return to the node of the file, in monotonic seconds
        )
        self._begins_at_node = False  # whether the next transaction begins at the node: the last could not move there

    async def call(self, what: What, timeout_s: float) -> Answered | Told:
        """Run a step of a transaction; return the answer. The errors are those of the node."""
        try:
            return await self._call(what, timeout_s)
        except FILE_ERRORS as error:
            if not self.transactions.is_closed:
                raise
            raise closed() from error

    async def _call(self, what: What, timeout_s: float) -> Answered | Told:
        session = self._session
        if not isinstance(what, Step):
            found = self.transactions.find((what.asked or {}).get("transaction", "")) if isinstance(what, Ask) else None
            if found is None:
                return await session._call(what, timeout_s)
            assert isinstance(what, Ask)
            return Told(0, await session._in_place(found.columns, what.statement))
        if what.op == ROLLBACK and self.transactions.is_inherited(what.request.command):
            return Answered(0, Answer(NOTHING, Token()))  # the transaction continues in the parent process
        one = self.find(what.request.command)
        if what.op == BEGIN and one is None:
            one = await self._begin(what.request, timeout_s)
        if one is None:
            return await session._call(what, timeout_s)
        if what.op == COMMIT:
            return await self._commit(one, what, timeout_s)
        assert what.op in (BEGIN, STATEMENTS)
        return await self._statements(one, what, timeout_s)

    def commit_reads(self, command: str) -> bool:
        """Commit the transaction of a command if it runs in this process and needs no node; return whether it did."""
        one = self.transactions.find(command)
        if one is None or not one.needs_no_certificate():
            return False
        self.transactions.forget(command)
        return True

    def roll_back(self, command: str) -> None:
        """Roll back the transaction of a command if it is open in this process."""
        one = self.transactions.find(command)
        if one is None:
            return
        if not one.keeps_rows:  # a transaction that keeps rows may have a COMMIT under way that uses its ids
            one.give_ids_back()
        with suppress(BedrockishError):
            self.transactions.forget(command)

    def has(self, command: str) -> bool:
        """Return whether the transaction of a command is open in this process."""
        return self.transactions.find(command) is not None

    def find(self, command: str) -> LocalTransaction | None:
        """Return the transaction of a command if it is open in this process."""
        found = self.transactions.find(command)
        if found is None and self.transactions.is_inherited(command):
            raise ClientClosedError(INHERITED)
        return found

    async def read_strictly(self, request: Request) -> list[Rows] | None:
        """Run statements that only read in this process, and let the node certify their read set.

        The read is retried after a conflict. After ``STRICT_TRIES`` conflicts the node runs the statements, because
        it reads its newest rows before they are durable. The node lacks the program's functions and attached files, so
        a session with any of these retries until the timeout. Return the results; None if the node must run the
        statements.

        Raises:
            ConflictError: other transactions changed the rows in each try, until the timeout.
            BedrockishError: see ``LocalTransactions.read``.
        """
        until, tries = monotonic() + request.timeout_s, 0
        while await self._return_to_file_node(max(until - monotonic(), 0.05)):
            token = self._session._core.token
            asked = replace(request, token=token)
            stop = partial(self.transactions.stop_one, asked.command)
            found = await self._session._in_place(self.transactions.read, asked, stop=stop)
            if found is None:
                return None
            results, prepared, seen = found
            last, left_s = replace(asked, statements=(), read_only=True, token=Token()), until - monotonic()
            try:
                await self._session._call(Step(0, last, COMMIT, encode_prepared(prepared)), max(left_s, 0.05))
            except ConflictError:
                tries += 1
                if tries >= STRICT_TRIES and not self.transactions.pool.has_own:
                    return None
                if monotonic() >= until:
                    raise
                await self._session._in_place(time.sleep, RETRY_S)  # wait: the newer rows are not durable yet
                continue
            except DeadlineError:
                raise
            except BedrockishError:
                return None
            self._session._core.merge_token(seen)
            return [Rows(one.columns, one.rows) for one in results]
        return None

    def is_at_file_node(self) -> bool:
        """Return whether the session's calls go to the node of the file."""
        address = self._session._core.address
        return address is not None and address.host == self._socket

    async def _return_to_file_node(self, timeout_s: float) -> bool:
        """Return whether the session's calls go to the node of the file; try to return to that node first.

        Args:
            timeout_s: how long to wait for the node if there is no other; otherwise the wait is ``RETURN_S``.

        Raises:
            BedrockishError: the node cannot be reached, and there is no other.
        """
        if self.is_at_file_node():
            return True
        now = monotonic()
        if now < self._next_return_at or not await self._session._in_place(self.transactions.is_served):
            return False
        self._next_return_at = now + RETURN_S
        self._session.leave_node((Address(self._socket, 0),))
        has_others = len(self._session._core.route.addresses) > 1
        try:
            await self._session._call(Ask(0, PING), RETURN_S if has_others else timeout_s)
        except BedrockishError:
            if not has_others:
                raise
        return self.is_at_file_node()

    async def writes_here(self, texts: Sequence[str], timeout_s: float) -> bool:
        """Return whether writes outside of transactions run in this process, because the file's node is a learner."""
        kinds = {kind_of(text) for text in texts}
        if WRITE not in kinds or kinds - {READ, WRITE} or not await self._return_to_file_node(timeout_s):
            return False
        return await self._session._in_place(self.transactions.is_at_learner)

    def has_function_for(self, error: SqlError) -> bool:
        """Return whether the error says that the node lacks a function or collation that this program may have."""
        return self.transactions.has_functions and error.lacks_function

    def begin_at_once(
        self, command: str, read: str, isolation: str, timeout_s: float, *, may_wait: bool = True
    ) -> bool:
        """Begin a transaction in this thread, in this process; return False if ``call`` must begin it.

        With ``may_wait`` False, also return False if that would take long; see ``LocalTransactions.begin_at_once``.
        """
        if self._begins_at_node or not self.is_at_file_node():
            return False
        core = self._session._core
        request = Request(command, (), read, isolation, timeout_s=timeout_s, token=core.token)
        one = (self.transactions.begin if may_wait else self.transactions.begin_at_once)(request)
        if one is None:
            return False
        core.merge_token(one.seen)
        return True

    async def _begin(self, request: Request, timeout_s: float) -> LocalTransaction | None:
        core = self._session._core
        at_node, self._begins_at_node = self._begins_at_node, False
        is_fresh = request.temporary.startswith(FRESH)
        if request.temporary and (self.transactions.has_temporary(request.temporary) or (is_fresh and not at_node)):
            if not is_fresh or await self._return_to_file_node(timeout_s):
                request = replace(request, statements=(), token=core.token)
                await self._session._in_place(self.transactions.begin_with_temporary, request)
            one = self.transactions.find(request.command)
        elif at_node or request.temporary or not await self._return_to_file_node(timeout_s):
            one = None
        else:
            asked = replace(request, statements=(), token=core.token)
            transactions = self.transactions
            one = await self._session._in_place(transactions.begin, asked, at_once=transactions.begin_at_once)
        if one is None and request.temporary and self.transactions.pool.attached.has_any:
            if is_fresh:
                core.temporary.name = ""  # else the session's later statements would ask for these objects, too
            raise UnsupportedError(f"TEMP objects: {NODE_LACKS_FILES}; DETACH the files first")
        if one is not None:
            core.merge_token(one.seen)
        return one

    async def _with_temporary(self, one: LocalTransaction, request: Request) -> LocalTransaction:
        """Replace ``one``, which is about to make its first TEMP object, by a transaction with TEMP objects."""
        asked = replace(one.request, temporary=request.temporary, token=self._session._core.token)
        try:
            await self._session._in_place(self.transactions.begin_with_temporary, asked, one)
        except BedrockishError:
            self.transactions.forget(request.command)
            raise
        found = self.transactions.find(request.command)
        assert found is not None
        return found

    async def run_here(
        self, command: str, statements: tuple[Statement, ...], step: Callable[[], Step], timeout_s: float
    ) -> list[Rows] | None:
        """Run further statements of an open transaction in this process; return None if it is not open here.

        Args:
            step: returns the statements as a step for the node, to which the transaction moves if it needs the node.

        Raises:
            BedrockishError: see ``Transaction.run``.
        """
        one = self.find(command)
        if one is None:
            return None
        try:
            found = await self._run_all(one, statements, step, timeout_s, begins=False)
        except FILE_ERRORS as error:
            if not self.transactions.is_closed:
                raise
            raise closed() from error
        return [Rows(result.columns, result.rows, result.rowcount, result.lastrowid) for result in found]

    def run_at_once(self, one: LocalTransaction, statement: Statement, *, again: bool) -> Result | None:
        """Run a statement in this thread; return None if ``run_here`` must run it, because it needs ids or the node.

        With ``again``, first try ``LocalTransaction.run_again``.

        The errors are those of ``LocalTransaction.run``, from which ``error_for_caller`` makes the caller's error.
        """
        params = statement.params
        try:
            known = one.run_again(statement.sql, tuple(params or ())) if again and type(params) is not dict else None
            return one.run(statement) if known is None else known
        except (IdsNeededError, NodeNeededError):
            return None

    def error_for_caller(
        self, one: LocalTransaction, error: BedrockishError, before: Sequence[Result] = ()
    ) -> BedrockishError:
        """Return the caller's error for the statement after the results ``before``; forget an ended transaction."""
        if not isinstance(error, UsageError):
            self.transactions.forget(one.request.command)
            return error
        error.details = {**error.details, **failed_at(before)}
        if not one.has_failed:
            return error
        self.transactions.forget(one.request.command)
        return type(error)(f"{error.message}; the transaction was rolled back", **error.details, ended=True)

    async def _statements(self, one: LocalTransaction, what: Step, timeout_s: float) -> Answered:
        if what.request.temporary and not one.keeps_rows:
            one = await self._with_temporary(one, what.request)
        statements = what.request.statements
        results = await self._run_all(one, statements, lambda: what, timeout_s, begins=what.op == BEGIN)
        return Answered(0, Answer(encode_results(results), one.seen))

    async def _run_all(
        self,
        one: LocalTransaction,
        statements: tuple[Statement, ...],
        step: Callable[[], Step],
        timeout_s: float,
        *,
        begins: bool,
    ) -> list[Result]:
        results, alone = list[Result](), 0
        while (number := len(results)) < len(statements):
            try:
                if alone <= number < len(statements) - 1:
                    found, alone = await self._session._in_place(one.run_alike, statements, number, stop=one.interrupt)
                    results += found
                    if found:
                        continue
                ids = min(max(LEASE, len(statements) - number), LEASE_MAX)
                results.append(await self._run(one, statements[number], ids, timeout_s))
            except NodeNeededError as error:
                if one.log is not None:
                    return [*results, *await self._move(one, one.log, step(), results, timeout_s)]
                self._begins_at_node = True
                raise self._refused(one, _too_long_to_move(error), results, begins=begins) from error
            except BedrockishError as error:
                told = self._refused(one, error, results, begins=begins)
                if told is not error:
                    raise told from error
                raise
        return results

    def _refused(
        self, one: LocalTransaction, error: BedrockishError, before: Sequence[Result], *, begins: bool
    ) -> BedrockishError:
        """Return the caller's error for a statement; with ``begins``, note in a usage error that ``one`` has begun."""
        told = self.error_for_caller(one, error, before)
        if told is error and begins and isinstance(error, UsageError):
            error.details = {**error.details, BEGUN: True}
        return told

    async def _run(self, one: LocalTransaction, statement: Statement, ids: int, timeout_s: float) -> Result:
        """Run one statement. If it needs row ids, lease ``ids`` of them, and four times as many at each further try.

        A text with VALUES inserts at most as many rows as it has parentheses, so one lease for it is large enough.
        Unused ids are kept for later rows.
        """
        leased = 0
        while True:
            try:
                return await self._session._in_place(one.run, statement, stop=one.interrupt, at_once=one.run_brief)
            except IdsNeededError as wanted:
                leased = 4 * leased or max(ids, count_parentheses(statement.sql))
                table, above = wanted.details["table"], wanted.details["above"]
                for most in range(leased, 0, -LEASE_MAX):
                    above = await self._lease(table, above, min(most, LEASE_MAX), timeout_s)

    async def _lease(self, table: str, above: int, count: int, timeout_s: float) -> int:
        """Lease row ids greater than ``above`` from the node; return the last of them."""
        asked = {"do": "lease", "table": table, "above": above, "count": count}
        try:
            reply = await self._session._call(Ask(0, UPKEEP, asked=asked), timeout_s)
        except UsageError as error:
            raise NodeNeededError(error.message) from error
        told = reply.value if isinstance(reply, Told) else None
        ids = told.get("ids") if isinstance(told, dict) else None
        if not isinstance(ids, list) or not ids or any(type(one) is not int or one <= above for one in ids):
            raise NodeNeededError(f"the node leases no ids of {table}")
        self.transactions.pool.ids.note_lease(table, ids)
        return int(ids[-1])

    async def _commit(self, one: LocalTransaction, what: Step, timeout_s: float) -> Answered | Told:
        session = self._session
        try:
            prepared = await session._in_place(one.finish, at_once=one.finish_small)
        except UsageError:
            raise
        except BedrockishError:
            self.transactions.forget(what.request.command)
            raise
        try:
            if prepared.readonly and one.request.read != STRICT:
                answer: Answered | Told = Answered(0, Answer(prepared.result, one.seen))
            else:
                answer = await self._certify(one, what, encode_prepared(prepared), timeout_s)
        except BaseException as error:
            one.end_commit(error)
            raise
        else:
            if one.keeps_rows:
                await session._in_place(one.end_commit, None)
            return answer
        finally:
            self.transactions.forget(what.request.command)

    async def _certify(self, one: LocalTransaction, what: Step, prepared: bytes, timeout_s: float) -> Answered | Told:
        """Send a transaction to the node, to commit it or to certify its strict reads; return the answer."""
        session, begun = self._session, one.request
        request = Request(begun.command, (), begun.read, begun.isolation, timeout_s=what.request.timeout_s)
        step = Step(0, request, COMMIT, prepared)
        try:
            if one.keeps_rows:
                return await session._call(step, timeout_s)
            number = session._begin(step, timeout_s)
            try:
                self.transactions.forget(what.request.command)  # roll back in this process while the node certifies
            except BaseException:
                session._cancel(number)
                raise
            return await session._wait(number)
        except UnsupportedError as error:
            if not error.details.get("elsewhere"):
                raise
            # The socket was closed before the COMMIT was sent, and the session has moved to another node.
            raise UnavailableError(
                "the node on whose file the transaction ran is gone; the transaction did not happen, and can be "
                "run again"
            ) from error

    # -- moving to the node ----------------------------------------------------------------------------------------

    async def _move(
        self,
        one: LocalTransaction,
        log: list[ExecutedStatement],
        what: Step,
        before: Sequence[Result],
        timeout_s: float,
    ) -> list[Result]:
        """Move the transaction to the node: repeat its log there, run the statements of ``what`` after ``before``."""
        self.transactions.forget(what.request.command)
        await self._return_ids(one, timeout_s)
        op = BEGIN
        for group in _groups(log):
            await self._repeat(what.request, group, op, timeout_s)
            op = STATEMENTS
        rest = replace(what.request, statements=what.request.statements[len(before) :])
        try:
            reply = await self._session._call(Step(0, rest, op), timeout_s)
        except BedrockishError as error:
            if isinstance(error.details.get("statement"), int):
                error.details = {**error.details, **failed_at(before, error)}
            raise
        return _results(reply)

    async def _return_ids(self, one: LocalTransaction, timeout_s: float) -> None:
        """Give the leased ids of a transaction's rows back to the node, which then gives the rows the same ids."""
        tables = dict[str, list[int]]()
        for table, found in one.ids:
            tables.setdefault(table, []).append(found)
        for table, ids in tables.items():
            # The node assigns the ids of the last call first.
            for at in reversed(range(0, len(ids), LEASE_MAX)):
                asked = {"do": "lease", "table": table, "back": ids[at : at + LEASE_MAX]}
                with suppress(UsageError):  # if the node refuses, it gives rows other ids, and the move fails
                    await self._session._call(Ask(0, UPKEEP, asked=asked), timeout_s)

    async def _repeat(self, request: Request, logged: Sequence[ExecutedStatement], op: str, timeout_s: float) -> None:
        """Repeat statements at the node; raise a ConflictError if the results differ from those in this process."""
        statements = tuple(one.statement for one in logged)
        try:
            reply = await self._session._call(Step(0, replace(request, statements=statements), op), timeout_s)
            is_same = logged[-1].result is not None and _results(reply) == [one.result for one in logged]
        except UsageError as error:
            is_same = (
                logged[-1].result is None and error.message == logged[-1].failure and not error.details.get("ended")
            )
            if not is_same and isinstance(error, SqlError) and self.has_function_for(error):
                await self._session._call(Step(0, replace(request, statements=()), ROLLBACK), timeout_s)
                lacked = error.message.partition(": ")[2].split(" ")[0].rstrip(";")
                raise UnsupportedError(
                    f"the statement needs the node, which lacks {lacked}, a function or collation of this program that "
                    "an earlier statement has used; the transaction did not happen: run the two statements in two "
                    f"transactions, or put {lacked} into a plugin of the nodes (docs/plugins.md)",
                    ended=True,
                ) from error
        if not is_same:
            self._begins_at_node = True
            await self._session._call(Step(0, replace(request, statements=()), ROLLBACK), timeout_s)
            raise ConflictError(
                "another transaction has changed rows that this transaction had read before it was moved to the node; "
                "this transaction did not happen: run it again"
            )


def _too_long_to_move(why: NodeNeededError) -> UnsupportedError:
    return UnsupportedError(
        f"the statement needs the node ({why.message}), and the transaction is too long to move there, so the "
        "statement did not run; run it earlier in the transaction, or in another transaction"
    )


def _groups(log: Sequence[ExecutedStatement]) -> list[list[ExecutedStatement]]:
    """Return the statements in groups: each failed statement alone, the others in groups of up to ``REPEATED_MAX``."""
    found: list[list[ExecutedStatement]] = []
    for one in log:
        is_alone = one.result is None or not found or found[-1][-1].result is None or len(found[-1]) >= REPEATED_MAX
        if is_alone:
            found.append([one])
        else:
            found[-1].append(one)
    return found


def _results(reply: Answered | Told) -> list[Result]:
    assert isinstance(reply, Answered)
    return decode_results(reply.answer.results)

"""The calls of a client, shared by both drivers: the trio loop, and the thread that makes the call."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from bedrockish.api.requests import (
    SERIALIZABLE,
    STRICT,
    MemberChange,
    Params,
    Request,
    Rows,
    Statement,
    Token,
    check_modes,
    check_params,
    check_timeout,
    open_token,
    rows_of,
    seal_token,
)
from bedrockish.api.url import Target
from bedrockish.api.wire import EXPLAIN, NODES, PING, SETTLE, STATUS, UPKEEP, Answered, Ask, Step, Told
from bedrockish.client.calls import Calls
from bedrockish.client.cursor import RowStream, streaming
from bedrockish.client.local_file import LocalFile, close_local
from bedrockish.client.request_builder import (
    Statements,
    columns_of,
    command_rows,
    is_plain,
    make_request,
    map_of,
    new_command,
    note_results,
    pairs_of,
    with_settings_of,
    with_values,
)
from bedrockish.client.sansio.transaction_steps import settle_request
from bedrockish.client.transaction import (
    Call,
    CleanUpScope,
    Transaction,
    TransactionOptions,
    run_transaction,
    shielded,
    transaction,
)
from bedrockish.errors import (
    BedrockishError,
    CommandIdError,
    ConflictError,
    ForgottenError,
    OutcomeUnknownError,
    SqlError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from bedrockish.sqltext.attach import order_of
from bedrockish.sqltext.known_texts import KEPT_TEXT_MAX
from bedrockish.sqltext.session_settings import LIKE, first_setting
from bedrockish.sqltext.session_values import SessionValues, asks_values
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.statement_kinds import SCHEMA, WRITE, kind_of
from bedrockish.sqltext.temporary import make_temporary

if TYPE_CHECKING:
    from bedrockish.client.local_steps import LocalSteps
    from bedrockish.local.reads import LocalReads

T = TypeVar("T")
WITHOUT_FILE = (
    "a snapshot is of a node's file, which this session does not have; connect to its path, or add ?local=PATH"
)

READ_WORDS = ("SELECT", "VALUES", "WITH")
NODE_LACKS_FILES = "the TEMP objects of the session are at the node, which does not have this program's files"


class Session(Calls):
    """The calls of a session with a cluster. A subclass adds the driver, which sends them and receives the answers."""

    target: Target
    local: "LocalReads | None" = None  # reads a node's file in this process
    local_steps: "LocalSteps | None" = None  # runs open transactions on the node's file
    _has_reached_file = False  # whether this session, or the one whose connections it uses, has reached the file's node
    _clean_up_scope: CleanUpScope = staticmethod(shielded)

    def _now(self) -> float:
        raise NotImplementedError

    @property
    def token(self) -> bytes:
        """The token of this session. A client that gets this token sees all commits that this session has seen."""
        return seal_token(self._core.token, self._core.cluster_id)

    @token.setter
    def token(self, token: bytes) -> None:
        seen, cluster_id = open_token(token)
        self._core.bind_to_cluster("the session token", cluster_id)
        self._core.merge_token(seen)

    @property
    def values(self) -> SessionValues:
        """The values of ``last_insert_rowid()``, ``changes()`` and ``total_changes()`` in this session."""
        return self._core.values

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that this session is bound to, or has reached; empty if it has reached none."""
        return self._core.cluster_id

    def belong(self, what: str, cluster_id: str) -> None:
        """Bind the session to the cluster with this id, to which ``what``, for example a cursor, belongs.

        Raises:
            ForeignClusterError: the session is bound to another cluster, or has reached another one.
        """
        self._core.bind_to_cluster(what, cluster_id)

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction or a streamed result is open, at a node or in this process."""
        here = self.local_steps is not None and self.local_steps.transactions.has_any
        return here or self._core.has_open

    async def execute(
        self,
        sql: str,
        params: Params = None,
        *,
        timeout: float | None = None,
        read: str | None = None,
        isolation: str = SERIALIZABLE,
        command: str | None = None,
        resend: bool = False,
    ) -> Rows:
        """Run one statement as a transaction of its own.

        Args:
            sql: the statement.
            params: values for its ``?`` (a sequence) or ``:name`` (a map).
            timeout: how long to try, in seconds; by default the value in the URL.
            read: ``stale``, ``session`` or ``strict``; by default the value in the URL.
            isolation: ``serializable`` or ``snapshot``.
            command: id of the command, to send a command again whose outcome is unknown; by default a new id.
            resend: the command was sent before under this id, and its outcome is unknown. The answer or
                the error then covers all attempts, also the attempts of earlier calls.

        Raises:
            OutcomeUnknownError: the answer was lost; the transaction may have been committed.
            BedrockishError: the transaction was not committed; the type says why.
        """
        if not self._is_plain(sql):
            if self.local is not None and self._attach_or_detach(sql, params):
                return Rows((), [])
            setting_rows = self._change_setting(sql)
            if setting_rows is not None:
                return setting_rows
            if self.local is not None and command is None and not self._core.temporary.name:
                found = await self._read_in_program([(sql, params)], read, timeout)
                if found is not None:
                    return found[0]
        modes: dict[str, Any] = {"timeout": timeout, "read": read, "isolation": isolation}
        return (await self.transact([(sql, params)], **modes, command=command, resend=resend))[0]

    async def transact(
        self,
        statements: Statements,
        *,
        timeout: float | None = None,
        read: str | None = None,
        isolation: str = SERIALIZABLE,
        command: str | None = None,
        resend: bool = False,
    ) -> list[Rows]:
        """Run statements as one transaction: either all of them are committed, or none.

        Args:
            statements: SQL texts, or pairs of a text and its parameters.
            timeout, read, isolation, command, resend: see ``execute``.

        Raises:
            OutcomeUnknownError: the answer was lost; the transaction may have been committed.
            BedrockishError: the transaction was not committed; the type says why.
        """
        timeout_s, values, statements = self._seconds(timeout), self._core.values, pairs_of(statements)
        texts = [sql for sql, _ in statements]
        is_plain = all(map(self._is_plain, texts))
        done: list[Rows] | None = None
        if command is None and not is_plain:
            if await self._needs_transaction(texts, timeout_s):
                done = await self._transact_opened(statements, self._options(isolation, read, timeout))
            elif self.local is not None and len(texts) > 1:
                done = await self._read_in_program(statements, read, timeout)
        if done is not None:
            return done
        request = make_request(command or new_command(), statements, read or self.target.read, isolation, timeout_s)
        if not is_plain:
            # A command that is sent again needs the same text, so values of the session must not be written into it.
            write = with_values if command is None else with_settings_of
            written = write(request.statements, values)
            request = request if written is request.statements else replace(request, statements=written)
        try:
            done = await self._command(request, timeout_s, resend=resend, named=command is not None)
            return note_results(done, values)
        except SqlError as error:
            if command is not None or self.local_steps is None or not self.local_steps.has_function_for(error):
                raise
            done = await self._transact_opened(statements, self._options(isolation, read, timeout))
            if done is None:
                raise
            return done

    def _is_plain(self, sql: object) -> bool:
        """Return whether a statement is sent unchanged: the session has no settings, TEMP objects or local file."""
        core = self._core
        if self.local is not None or core.values.settings or core.temporary.name:
            return False
        return type(sql) is str and len(sql) <= KEPT_TEXT_MAX and is_plain(sql)

    def _change_setting(self, sql: str) -> Rows | None:
        """Execute a PRAGMA that only changes a setting of this session; return None for any other statement."""
        found = first_setting(sql) if isinstance(sql, str) else None
        if found is None or sql[found[2] :].strip():
            return None
        name, values = found[0], self._core.values
        values.take_settings(sql)
        if found[1] is None and name != LIKE:
            return Rows((name,), [(int(name in values.settings),)])
        return Rows((), [])

    def _attach_or_detach(self, sql: str, params: Params) -> bool:
        """Attach or detach a file in this process if a statement says so; return whether it does."""
        order = order_of(sql, params)
        if order is None:
            return False
        name = self._core.temporary.name
        is_here = self.local_steps is not None and self.local_steps.transactions.has_temporary(name)
        if name and not is_here and order.path is not None:
            raise UnsupportedError(f"ATTACH: {NODE_LACKS_FILES}; attach the file on a connection of its own")
        self._file().attach(order)
        return True

    async def _needs_transaction(self, texts: list[str], timeout_s: float) -> bool:
        """Return whether statements need an open transaction: they use TEMP objects, or write at a learner."""
        if self._core.temporary.name or make_temporary(texts):
            return True
        return self.local_steps is not None and await self.local_steps.writes_here(texts, timeout_s)

    async def _transact_opened(self, statements: Statements, options: TransactionOptions) -> list[Rows] | None:
        """Run statements in a transaction opened for them; return None if they must be sent as one request."""
        given = [statements] if isinstance(statements, str) else statements
        until = self._now() + options.timeout_s
        settings = options.values.settings
        while True:  # without pauses between the tries, because each takes a round trip
            opened = Transaction(self._steps, options, self._clean_up_scope, self.local_steps)
            try:
                results = await opened.run(given)
                await opened.commit()
                return results
            except BedrockishError as error:
                await opened.rollback()
                options.values.settings = settings  # as before this try: the next try executes the PRAGMAs again
                if isinstance(error, UnsupportedError) and error.details.get("of_schema"):
                    return None
                if isinstance(error, UnavailableError) and not (self._core.temporary.name or self._now() >= until):
                    return None  # the node of the file, a learner, is gone: another node executes the statements
                if not isinstance(error, ConflictError) or self._now() >= until:
                    raise
            except BaseException:  # a cancelled task, or the handler of a signal: no caller knows the transaction
                await opened.abandon()
                raise

    async def _read_in_program(
        self, statements: Sequence[tuple[str, Params]], read: str | None, timeout_s: float | None
    ) -> list[Rows] | None:
        """Run statements in this process if they only read; return None if the node must be asked."""
        for sql, _ in statements:
            if isinstance(sql, str) and (kind_of(sql) in (WRITE, SCHEMA) or first_setting(sql) is not None):
                return None  # before taking a snapshot, which costs a fifth of a write in this process
        found = await self._read_here(statements, read)
        level = read or self.target.read
        if found is not None or level != STRICT or self.local_steps is None:
            return found
        if not all(isinstance(sql, str) and first_word(sql) in READ_WORDS for sql, _ in statements):
            return None
        request = make_request(new_command(), statements, level, SERIALIZABLE, self._seconds(timeout_s))
        request = replace(request, statements=with_values(request.statements, self._core.values))
        found = await self.local_steps.read_strictly(request)
        return None if found is None else note_results(found, self._core.values)

    async def _read_here(self, statements: Sequence[tuple[str, Params]], read: str | None) -> list[Rows] | None:
        """Run statements in this process if they only read and the file is new enough; return None otherwise."""
        assert self.local is not None
        given = self.as_written(statements)
        return self.note_read(self.local.read(given, read or self.target.read, self._core.token))

    def as_written(self, statements: Sequence[tuple[str, Params]]) -> Sequence[tuple[str, Params]]:
        """Return statements with the settings and the values of the session written into their texts."""
        values = self._core.values
        if not values.settings and not any(isinstance(sql, str) and asks_values(sql) for sql, _ in statements):
            return statements
        return [(values.write(sql) if isinstance(sql, str) else sql, params) for sql, params in statements]

    def note_read(self, found: tuple[list[Rows], Token] | None) -> list[Rows] | None:
        """Merge the token of a read in this process into the session's; return the rows; None if ``found`` is None."""
        if found is None:
            return None
        rows, token = found
        core = self._core
        if token is not core.token:
            core.merge_token(token)
        return note_results(rows, core.values)

    async def _command(self, request: Request, timeout_s: float, *, resend: bool, named: bool) -> list[Rows]:
        if resend and not named:
            raise UsageError("to send a command again, name the command: its id is in the error of the first attempt")
        deadline = self._now() + timeout_s
        try:
            reply = await self._call(request, timeout_s)
        except (OutcomeUnknownError, CommandIdError):
            raise
        except BedrockishError as error:
            self._core.values.note_error(error)
            if not resend:
                raise
            if error.retry:  # do not settle the id: the command may succeed when it is sent again
                raise OutcomeUnknownError(
                    f"command {request.command} did not happen this time ({error.message}), but the outcome of earlier "
                    "attempts is unknown; send it again under the same id",
                    command=request.command,
                ) from error
            reply = await self._settle_or_raise(request, error, deadline)
        assert isinstance(reply, Answered)
        return command_rows(request.command, reply.answer, len(request.statements) or 1)

    async def _settle_or_raise(self, request: Request, error: BedrockishError, deadline: float) -> Answered | Told:
        """Return the command's answer if an earlier attempt was committed; else raise the last attempt's ``error``."""
        seconds = max(deadline - self._now(), 1.0)
        try:
            return await self._call(settle_request(replace(request, timeout_s=seconds)), seconds)
        except UnavailableError as not_committed:
            if not_committed.details.get("command") == request.command:
                raise error from None
            raise

    def stream(
        self, sql: str, params: Params = None, *, timeout: float | None = None, read: str | None = None
    ) -> AbstractAsyncContextManager[RowStream]:
        """Open a result of any size for the block: ``async with client.stream(sql) as rows: async for row in rows``.

        All rows come from one snapshot. They arrive a batch at a time, at the pace of the reader.

        Args:
            sql: one statement that reads.
            params: see ``execute``.
            timeout: seconds for opening the result, and for each batch.
            read: see ``execute``.

        Raises:
            ResultLostError: the node was lost, or the reader paused for too long, after ``details["rows"]`` rows.
                Nothing was changed: reading the whole result again is safe.
            BedrockishError: the result cannot be read; the type says why.
        """
        return streaming(self.new_stream(sql, params, timeout, read))

    def new_stream(self, sql: str, params: Params, timeout_s: float | None, read: str | None) -> RowStream:
        """Return the stream of ``stream``, for the caller to ``open`` and close."""
        read, seconds = read or self.target.read, self._seconds(timeout_s)
        request = make_request(new_command(), [(sql, params)], read, SERIALIZABLE, seconds)
        written = with_values(request.statements, self._core.values)
        return RowStream(self, replace(request, statements=written))

    async def change_members(
        self, change: MemberChange, *, timeout: float | None = None, command: str | None = None
    ) -> Rows:
        """Change the members of the cluster, as one transaction; return the members after the change.

        Raises:
            MembershipError: the change is refused; the text says what to do instead.
            OutcomeUnknownError: the answer was lost; the transaction may have been committed.
            BedrockishError: the transaction was not committed; the type says why.
        """
        timeout_s = self._seconds(timeout)
        request = Request(command or new_command(), (), timeout_s=timeout_s, change=change)
        reply = await self._call(request, timeout_s)
        assert isinstance(reply, Answered)
        return rows_of(reply.answer, 1)[0]

    def transaction(
        self, *, isolation: str = SERIALIZABLE, read: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for the block; commit it at the end, roll it back if the block raises.

        Args:
            isolation: ``serializable`` or ``snapshot``.
            read: see ``execute``; the level of a transaction that only reads.
            timeout: seconds for COMMIT, and for each statement that has no timeout of its own.

        Raises:
            OutcomeUnknownError: the transaction may or may not have been committed; ``settle`` asks again.
            BedrockishError: the transaction was not committed; ``retry`` says whether running all of it again can help.
        """
        return transaction(self._steps, self._options(isolation, read, timeout), self.local_steps)

    async def begin(
        self, *, isolation: str = SERIALIZABLE, read: str | None = None, timeout: float | None = None
    ) -> Transaction:
        """Open a transaction that the caller commits or rolls back. See ``transaction`` for arguments and errors.

        Nothing is sent: BEGIN goes with the first statement.
        """
        return Transaction(self._steps, self._options(isolation, read, timeout), self._clean_up_scope, self.local_steps)

    async def run_transaction(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        isolation: str = SERIALIZABLE,
        read: str | None = None,
        timeout: float | None = None,
    ) -> T:
        """Run ``await function(transaction, *args)`` in a transaction; retry while it conflicts with another one.

        Args:
            function: may be called several times, so its effects outside of the transaction must be idempotent.
            args: the further arguments of the function.
            isolation: see ``transaction``.
            read: see ``transaction``.
            timeout: seconds for all tries together.

        Raises:
            OutcomeUnknownError: the transaction may or may not have been committed.
            BedrockishError: the transaction was not committed.
        """
        return await run_transaction(
            self._steps, self._options(isolation, read, timeout), function, args, self.local_steps
        )

    async def settle(self, command: str, *, timeout: float | None = None) -> bool:
        """Settle the outcome of the transaction whose COMMIT has the id ``command``; return whether it was committed.

        After False it can never be committed. The result is also False if the id belongs to another user's command.

        Raises:
            OutcomeUnknownError: no majority could be asked.
            ForgottenError: the command is so old that the outcome is no longer known.
            BedrockishError: no node could be asked.
        """
        seconds = self._seconds(timeout)
        if self._core.has_only_read(command):
            return True  # the COMMIT was answered; no node records a transaction that only read
        try:
            await self._call(Step(0, Request(command, (), timeout_s=seconds), SETTLE), seconds)
        except UnavailableError as error:
            if error.details.get("command") == command:
                return False
            raise
        except CommandIdError as error:
            if error.details.get("reason") != "user":
                raise
            return False  # the id is used up by another user's command
        except ForgottenError as error:
            if not error.details.get("happened"):
                raise
        return True

    @property
    def _steps(self) -> Call:
        """The function that sends the steps of an open transaction to its node, or runs them in this process."""
        return self._call if self.local_steps is None else self.local_steps.call

    async def _reach(self, file: LocalFile | None) -> None:
        """Reach a node, unless the last session on the file has; check that the file belongs to the node's cluster.

        The file is checked again whenever it is opened again.
        """
        if file is not None and file.cluster_id:
            self._core.cluster_id = self._core.cluster_id or file.cluster_id
        else:
            await self.ping()
        if self.local is not None and self.local_steps is not None:
            self._has_reached_file = bool(file and file.cluster_id) or self.local_steps.is_at_file_node()
            self.local.belong(lambda: self.cluster_id, lambda token: self._core.merge_token(token))
            self._core.on_commit = self.local.note_commit

    def _close_file(self) -> None:
        """Close the node's file, and the transactions that are open on it."""
        if self.local is not None and self.local_steps is not None:
            close_local(self.local, self.local_steps.transactions, has_reached_node=self._has_reached_file)

    def _file(self) -> "LocalReads":
        """Return the object that reads the node's file in this process."""
        if self.local is None:
            raise UnsupportedError(WITHOUT_FILE)
        return self.local

    def _options(self, isolation: str, read: str | None, timeout_s: float | None) -> TransactionOptions:
        read = read or self.target.read
        check_modes(read, isolation)
        return TransactionOptions(read, isolation, self._seconds(timeout_s), self._core.values, self._core.temporary)

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the connected node's report on itself and the cluster.

        Raises:
            BedrockishError: no node could be asked.
        """
        return map_of(await self._call(Ask(0, STATUS), self._seconds(timeout)))

    async def nodes(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the members of the cluster as the connected node knows them.

        Raises:
            BedrockishError: no node could be asked.
        """
        return map_of(await self._call(Ask(0, NODES), self._seconds(timeout)))

    async def explain(self, sql: str, params: Params = None, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return the read and write sets that a text's statements would have at the node; change nothing.

        Raises:
            BedrockishError: a statement cannot run, or no node could be asked.
        """
        what = Ask(0, EXPLAIN, statement=Statement(sql, check_params(params)))
        reply = await self._call(what, self._seconds(timeout))
        assert isinstance(reply, Told)
        return list(reply.value)

    async def columns(self, sql: str, *, timeout: float | None = None) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column that a statement returns, without running it.

        The type of an expression is None.

        Raises:
            BedrockishError: SQLite does not accept the statement, or no node could be asked.
        """
        what = Ask(0, EXPLAIN, statement=Statement(sql), asked={"columns": True})
        return columns_of(await self._call(what, self._seconds(timeout)))

    async def hold(
        self, name: str, after: str | None = None, *, release: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Keep the journal's entries after a cursor of the feed at all nodes for a named reader, or release them.

        Args:
            name: name of the reader; a later call with the same name moves its cursor.
            after: the cursor; None keeps the whole journal.
            release: the reader no longer needs the journal.
            timeout: seconds.

        Raises:
            UsageError: the journal after the cursor was removed, or the text is not a cursor.
            BedrockishError: no node could be asked.
        """
        asked = {"do": "hold", "name": name, "after": after, "release": release}
        return map_of(await self._call(Ask(0, UPKEEP, asked=asked), self._seconds(timeout)))

    async def upkeep(self, asked: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Send an operator's command to the connected node: see ``bedrockish clock`` and ``bedrockish journal prune``.

        Raises:
            BedrockishError: the node refuses the command, or no node could be asked.
        """
        return map_of(await self._call(Ask(0, UPKEEP, asked=asked), self._seconds(timeout)))

    async def ping(self, *, timeout: float | None = None) -> None:
        """Wait for an answer of any node; raise a BedrockishError if none answers."""
        await self._call(Ask(0, PING), self._seconds(timeout))

    def _seconds(self, timeout_s: float | None) -> float:
        return self.target.timeout_s if timeout_s is None else check_timeout(timeout_s)

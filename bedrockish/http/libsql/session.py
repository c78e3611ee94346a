"""One SQL stream of a libSQL client, the counterpart of a connection to a SQLite file.

Outside of BEGIN and COMMIT each statement is a transaction of its own, which the node retries after a conflict. A batch
that is one whole transaction, as ``client.batch()`` sends it, is one request, which the node may retry, too. A
transaction that a program leaves open between its calls is an open transaction of the node. After a conflict, each of
its statements raises the error until ROLLBACK.
"""

import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Any

from bedrockish.api.requests import Answer, Request, Result, Statement, Token, decode_results
from bedrockish.api.temporary import Temporary
from bedrockish.api.wire import BEGIN, COMMIT, ROLLBACK, STATEMENTS
from bedrockish.errors import BedrockishError, ConflictError, SqlError, UnavailableError, UnsupportedError, UsageError
from bedrockish.http.libsql.structures import (
    BatchStep,
    Json,
    Texts,
    holds,
    read_batch,
    read_step,
    write_columns,
    write_counts,
    write_error,
    write_result,
    write_value,
)
from bedrockish.http.request_memory import RequestMemory
from bedrockish.node.runtime import Runtime
from bedrockish.node.transactions.callers import Owner
from bedrockish.node.transactions.cursors import Stream
from bedrockish.sqltext import transaction_control as control
from bedrockish.sqltext.keys_off_sections import (
    FOREIGN_KEYS,
    KEYS_OFF,
    LEGACY,
    PARENTS,
    TRIGGERS,
    KeyPragmas,
    check_no_action,
    pragma,
    sections,
)
from bedrockish.sqltext.session_settings import first_setting
from bedrockish.sqltext.session_values import SessionValues, shown_names
from bedrockish.sqltext.statement_ends import check_statement, split
from bedrockish.sqltext.statement_kinds import READ, SCHEMA, WRITE, kind_of, switch_of, verb_of
from bedrockish.sqltext.temporary import first_temporary, makes_temporary
from bedrockish.sqltext.tokenizer import NotTokensError, tokens

TIMEOUT_S = 30.0
TRIES = 20  # most tries after conflicts, of a statement outside of BEGIN in a stream with TEMP objects
LAST = (
    "this call, after which the stream is closed; send {} and the statements that need it in one batch, one "
    "executeMultiple(), migrate() or transaction()"
)
DECLARED_MAX, DECLARED_BYTES = 500, 4 << 20  # most texts whose declared types are remembered; about their bytes
READONLY = (["BEGIN", "READONLY"], ["BEGIN", "TRANSACTION", "READONLY"])  # libSQL's BEGIN of a read-only transaction
_SEQUENCE = {"sequence", "execute", "batch", "describe", "store_sql", "close_sql", "get_autocommit"}


class DeclaredTypes:
    """The declared types of columns; a node is asked once for each text and schema version."""

    def __init__(self, node: Runtime, schema_version: Callable[[], int]) -> None:
        self._node, self._schema_version = node, schema_version
        self._known: OrderedDict[tuple[int, str], tuple[list[str | None], int]] = OrderedDict()  # with the bytes
        self._bytes = 0

    async def of(self, sql: str, user: str) -> list[str | None]:
        """Return the type of each column of a statement's result; empty if it has no columns or does not compile."""
        key = (self._schema_version(), sql)
        if key in self._known:
            return self._known[key][0]
        try:
            (told,) = await self._node.explain(Statement(sql), user, columns=True)
        except BedrockishError:
            return []
        types = [kind for _, kind in told["columns"]]
        size = getsizeof(sql) + sum(map(getsizeof, types))
        if key not in self._known:  # another stream may have asked in between
            self._known[key], self._bytes = (types, size), self._bytes + size
        while len(self._known) > DECLARED_MAX or self._bytes > DECLARED_BYTES:
            _, (_, size) = self._known.popitem(last=False)
            self._bytes -= size
        return types


@dataclass(slots=True, eq=False)
class _Opened:
    """The open transaction of a stream, with the effects of its statements so far."""

    request: Request  # its BEGIN
    marks: list[str] | None = None  # its savepoints if SAVEPOINT has opened it; else None
    pragmas: KeyPragmas = field(default_factory=KeyPragmas)
    changes_schema: bool = False  # whether a statement has changed the schema


class LibsqlSession:
    """One stream. The caller sends its requests one after the other."""

    memory: RequestMemory | None = None  # the memory of the call that is answered now
    # Raises AuthenticationError if the caller's token has expired during a long answer.
    check_stay: Callable[[], None] | None = None
    user = ""  # the name of the caller; empty at a node without users
    ends = False  # whether the present request is the last work of a call that closes the stream
    stays_open = False  # whether a statement of the present call needs a ROLLBACK, so that the call may not close

    def __init__(self, node: Runtime, declared: DeclaredTypes, host: str = "") -> None:
        self._node, self._declared = node, declared
        self._texts, self._owner = Texts(), Owner(host)
        self._token = Token()
        self._open: _Opened | None = None  # the transaction that BEGIN or SAVEPOINT has opened
        self._is_uncommitted = False  # whether the last COMMIT failed; a ROLLBACK is then accepted, as by SQLite
        self._lost: BedrockishError | None = None  # why the open transaction is over before the program ended it
        self._keys = True  # the value of PRAGMA foreign_keys outside of a transaction
        self._values = SessionValues()
        self._temporary = Temporary()
        self.closed = False  # whether the stream is closed

    @property
    def autocommit(self) -> bool:
        """Whether no transaction is open. A lost transaction counts as open until the program ends it."""
        return self._open is None and self._lost is None

    @property
    def is_quiet(self) -> bool:
        """Whether the stream holds no transaction, no TEMP objects and no texts."""
        return self.autocommit and not self._temporary.name and not self._texts

    def close(self) -> None:
        """End the stream, and roll its open transaction back. Closing twice is fine."""
        self.closed = True
        self._open = self._lost = None
        self._node.transactions.end_owner(self._owner)

    def failed(self, unexpected: Exception) -> BedrockishError:
        """End the stream after an exception that leaves its state unknown; return the error of the request."""
        self.close()
        return self._node.faults.caught("a request of libSQL", unexpected, is_late=True)

    # -- requests --------------------------------------------------------------------------------------------------

    async def answer(self, asked: Json) -> dict[str, Any]:
        """Answer one stream request.

        Raises:
            BedrockishError: the request failed; the error names the outcome.
        """
        kind = asked.get("type")
        if not isinstance(kind, str):
            raise UsageError("the type of a request should be a text")
        if self.closed and kind in _SEQUENCE:
            raise UsageError("the stream is closed; open another")
        match kind:
            case "execute":
                step = read_step(asked.get("stmt"), self._texts)
                result = await self.execute(step.statement, is_last=self.ends)
                types = await self._types(step.statement.sql) if result.columns else []
                return {"type": kind, "result": write_result(result, types, want_rows=step.want_rows)}
            case "batch":
                return {"type": kind, "result": await self._batch(read_batch(asked.get("batch"), self._texts))}
            case "sequence":
                texts = list(split(self._texts.text(asked, "sequence")))
                done = 0
                for section in sections(texts):
                    done += len(section)
                    if len(section) > 1 and self.autocommit:
                        await self._run_section(section)
                        continue
                    for sql in section:
                        await self.execute(Statement(sql), is_last=self.ends and done == len(texts))
                return {"type": kind}
            case "describe":
                return {"type": kind, "result": await self._describe(self._texts.text(asked, "describe"))}
            case "store_sql":
                self._texts.store(asked)
            case "close_sql":
                self._texts.close(asked)
            case "get_autocommit":
                return {"type": kind, "is_autocommit": self.autocommit}
            case "close":
                if self.stays_open:  # npm's libsql keeps a stream if a request has failed, and sends ROLLBACK next
                    raise UsageError(
                        "the stream stays open for a ROLLBACK, because a statement of this call has failed"
                    )
                self.close()
            case _:
                raise UsageError(f"{kind!r} is not a request of a stream")
        return {"type": kind}

    async def _run_section(self, texts: Sequence[str]) -> None:
        """Run statements of a script, the first of which is PRAGMA foreign_keys = OFF, as one transaction."""
        if self.memory is not None:
            self.memory.check()
        answer = await self._node.submit(self._request(tuple(map(Statement, texts))))
        self._token, self._keys = answer.token, False
        self._results(answer)

    async def _describe(self, sql: str) -> dict[str, Any]:
        check_statement(sql)
        is_own = self._is_own(sql)  # no node gets this text
        try:
            columns = [] if is_own else (await self._columns(sql))["columns"]
        except UnsupportedError:  # the text is valid SQL; running it raises the reason why a node refuses it
            columns = []
        return {
            "params": [{"name": name} for name in parameter_names(sql)],
            "cols": [{"name": name, "decltype": kind} for name, kind in columns],
            "is_explain": verb_of(sql) == "EXPLAIN",
            "is_readonly": is_own or kind_of(sql) == READ,
        }

    def _is_own(self, sql: str) -> bool:
        """Return whether a statement only changes a setting of the stream, or begins, marks or ends a transaction."""
        if parse_begin(sql) is not None or control.parse_control(sql) is not None:
            return True
        switched = switch_of(sql)
        return switched is not None and switched[1] is not None

    async def _columns(self, sql: str) -> dict[str, Any]:
        """Return the node's description of a result's columns, in the open transaction if there is one."""
        if self._open is None:
            (told,) = await self._node.explain(Statement(sql), self.user, columns=True)
        else:
            (told,) = await self._node.transactions.columns(self._owner, self._open.request.command, Statement(sql))
        return told

    async def _types(self, sql: str) -> list[str | None]:
        """Return the declared types of a result's columns; empty where they are unknown."""
        opened = self._open
        if opened is None and self._temporary.name:
            return []  # the node would not see TEMP tables, but other tables with their names
        if not (self._temporary.name or (opened is not None and opened.changes_schema)):
            return await self._declared.of(sql, self.user)
        try:
            return [kind for _, kind in (await self._columns(sql))["columns"]]
        except BedrockishError:
            return []

    # -- statements ------------------------------------------------------------------------------------------------

    async def execute(self, statement: Statement, *, is_last: bool = False) -> Result:
        """Run one statement, in the open transaction or as a transaction of its own, and return its result.

        Args:
            statement: a text with one statement.
            is_last: whether the stream ends with it, so that a BEGIN or a setting would have no effect.

        Raises:
            BedrockishError: the statement failed.
        """
        check_statement(statement.sql)
        asked = parse_begin(statement.sql)
        if asked is not None:
            if is_last and asked.kind == control.BEGIN and self.autocommit:
                raise UsageError(f"BEGIN: the transaction would end with {LAST.format('BEGIN')}")
            return await self._control(asked.kind, is_readonly=is_readonly(statement.sql))
        if self._lost is not None:
            raise self._lost
        mark = control.savepoint_of(statement.sql, statement.params)
        if mark is not None and (self._open is None or self._open.marks is not None):
            if is_last and self._open is None:
                raise UsageError(f"SAVEPOINT: the transaction would end with {LAST.format('SAVEPOINT')}")
            return await self._mark(mark, statement)
        switched = switch_of(statement.sql)
        if switched is not None and (self._open is not None or switched != (LEGACY, True)):  # else a node refuses it
            if is_last and switched == ("foreign_keys", False) and self.autocommit:
                raise UsageError(f"PRAGMA foreign_keys: the setting would end with {LAST.format('the PRAGMA')}")
            return await self._switch(*switched)
        setting = first_setting(statement.sql)
        if is_last and setting is not None and setting[1]:
            raise UsageError(f"PRAGMA {setting[0]}: the setting would end with {LAST.format('the PRAGMA')}")
        if is_last and not self.autocommit and kind_of(statement.sql) in (WRITE, SCHEMA):
            self.stays_open = True
            raise UsageError(
                f"the transaction would be rolled back with {LAST.format('this statement')}, which has not run: send "
                "COMMIT before the close (npm's libsql closes the stream unless it has seen BEGIN: send BEGIN by "
                "run(), not by all(), and prepare the statement afterwards)",
                sql=statement.sql,
            )
        if self.memory is not None:
            self.memory.check()
        self._check_readonly(statement.sql)
        await self._check_no_action(statement.sql)
        statement = replace(statement, sql=self._values.write(statement.sql))
        statements = self._with_keys((statement,))
        if makes_temporary(statement.sql):
            self._temporary.set_name(uuid.uuid4().hex)
        try:
            if self._open is None:
                answer = await self._run_alone(statements)
                self._token = answer.token
            else:
                opened = self._open
                answer = await self._step(STATEMENTS, statements)
                if len(statements) > 1:
                    opened.pragmas.note(FOREIGN_KEYS, on=False)
                opened.changes_schema = opened.changes_schema or kind_of(statement.sql) == SCHEMA
        except BedrockishError as error:
            self._values.note_error(error)
            raise
        return self._results(answer)[-1]

    async def _check_no_action(self, sql: str) -> None:
        """Check that a statement sent with foreign keys off causes no action of a foreign key on the nodes, where they
        are on, except in a transaction that changes the schema: the open transaction becomes one.
        """
        if self._needs_no_pragma or kind_of(sql) != WRITE:
            return
        asked = self._request((Statement(PARENTS), Statement(TRIGGERS)), is_readonly=True)
        parents, triggers = decode_results((await self._node.submit(asked)).results)
        try:
            check_no_action(sql, parents.rows, triggers.rows)
        except UnsupportedError:
            if self._open is None or self._temporary.name:
                raise
            await self._run_switch(self._open.pragmas, FOREIGN_KEYS, on=False)

    async def _run_alone(self, statements: tuple[Statement, ...]) -> Answer:
        """Run statements as a transaction of their own, which sees the stream's TEMP objects."""
        for tries in range(TRIES) if self._temporary.name else ():
            self._open = _Opened(self._request())
            try:
                answer = await self._step(BEGIN, statements)
                done = await self._step(COMMIT)
                return replace(answer, token=done.token, place=done.place)
            except ConflictError:
                if tries == TRIES - 1:
                    raise
            except UnsupportedError as error:
                if not error.details.get("of_schema"):
                    raise
                break
            finally:
                opened, self._open, self._lost = self._open, None, None
                if opened is not None:
                    await self._node.transactions.handle(self._owner, ROLLBACK, opened.request)
        return await self._node.submit(self._request(statements))

    def _check_readonly(self, sql: str) -> None:
        if self._open is not None and self._open.request.read_only and kind_of(sql) in (WRITE, SCHEMA):
            raise UsageError(
                "the transaction was begun as read-only, and this statement writes; it did not happen: begin the "
                'transaction or the batch with the mode "write"',
                sql=sql,
            )

    def _results(self, answer: Answer) -> list[Result]:
        if self.memory is not None:
            self.memory.add_answer(len(answer.results))
        results = decode_results(answer.results)
        self._values.see(results)
        return [replace(one, columns=shown_names(one.columns)) for one in results]

    @property
    def _needs_no_pragma(self) -> bool:
        """Whether a schema statement needs no PRAGMA: keys are enforced, or the transaction has executed one."""
        return self._keys or (self._open is not None and self._open.pragmas.foreign_keys is not None)

    async def _switch(self, name: str, on: bool | None) -> Result:
        """Execute PRAGMA foreign_keys or PRAGMA legacy_alter_table; both hold for the open transaction, if any."""
        opened = self._open
        pragmas = KeyPragmas() if opened is None else opened.pragmas
        if on is None:
            return Result((name,), [(int(pragmas.value(name, outside=self._keys)),)])
        if opened is not None:
            if not pragmas.has(name, on=on):
                await self._run_switch(pragmas, name, on=on)
                opened.changes_schema = True
        elif name == FOREIGN_KEYS:
            self._keys = on
        return Result((), [])

    async def _run_switch(self, pragmas: KeyPragmas, name: str, *, on: bool) -> None:
        await self._step(STATEMENTS, (Statement(pragma(name, on=on)),))
        pragmas.note(name, on=on)

    def _with_keys(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Return statements; put the stream's PRAGMA foreign_keys = OFF before those that change the schema."""
        changes = any(kind_of(statement.sql) == SCHEMA for statement in statements)
        return (Statement(KEYS_OFF), *statements) if changes and not self._needs_no_pragma else statements

    def _request(self, statements: tuple[Statement, ...] = (), *, is_readonly: bool = False) -> Request:
        request = Request(uuid.uuid4().hex, statements, token=self._token, timeout_s=TIMEOUT_S, user=self.user)
        return replace(request, read_only=True) if is_readonly else request

    async def _control(self, kind: str, *, is_readonly: bool = False) -> Result:
        done = Result((), [])
        was_uncommitted, self._is_uncommitted = self._is_uncommitted, False
        if kind == control.BEGIN:
            if not self.autocommit:
                raise UsageError("cannot start a transaction within a transaction; COMMIT or ROLLBACK first")
            opening = self._request(is_readonly=is_readonly)
            await self._node.transactions.handle(self._owner, BEGIN, opening)
            self._open = _Opened(opening)
            return done
        if self.autocommit and kind == control.ROLLBACK and was_uncommitted:
            return done
        if self.autocommit:
            raise UsageError(f"cannot {kind.lower()}: no transaction is active")
        lost, self._lost = self._lost, None
        if lost is not None:
            if kind == control.COMMIT:
                raise lost
            return done
        if kind == control.COMMIT:
            answer = await self._step(COMMIT)
            self._token, self._open = answer.token, None
        else:
            opened, self._open = self._open, None
            assert opened is not None
            await self._node.transactions.handle(self._owner, ROLLBACK, opened.request)
        return done

    async def _mark(self, mark: control.Control, statement: Statement) -> Result:
        """Run SAVEPOINT outside of a transaction, which begins one, or a statement on that transaction's savepoints."""
        if self._open is None and mark.kind == control.SAVEPOINT:
            await self._control(control.BEGIN)
            if self._open is not None:
                self._open.marks = []
        name, marks = mark.name.lower(), None if self._open is None else self._open.marks
        if marks is None or not (mark.kind == control.SAVEPOINT or name in marks):
            raise SqlError(f"no such savepoint: {mark.name}", sql=statement.sql)
        if mark.kind == control.RELEASE and name not in marks[1:]:
            return await self._control(control.COMMIT)
        answer = await self._step(STATEMENTS, (statement,))
        if mark.kind == control.SAVEPOINT:
            marks.append(name)
        else:
            place = len(marks) - 1 - marks[::-1].index(name)
            del marks[place + (mark.kind == control.ROLLBACK_TO) :]
        return self._results(answer)[-1]

    async def _step(self, op: str, statements: tuple[Statement, ...] = ()) -> Answer:
        """Do one step in the open transaction, and record whether the transaction is over."""
        assert self._open is not None
        temporary = self._temporary.asked if statements else ""
        first = first_temporary(one.sql for one in statements) if temporary else None
        step = replace(self._open.request, statements=statements, temporary=temporary)
        try:
            answer = await self._node.transactions.handle(self._owner, op, step)
            if temporary:
                self._temporary.note(first=first)
            return answer
        except BedrockishError as error:
            self._temporary.note(error, first=first)
            if not isinstance(error, UsageError) or error.details.get("ended"):
                # After a failed COMMIT the transaction is over; after another failure the program must send ROLLBACK.
                self._open, self._lost = None, error if op == STATEMENTS else None
                self._is_uncommitted = op == COMMIT
            raise

    # -- batches ---------------------------------------------------------------------------------------------------

    async def _batch(self, steps: Sequence[BatchStep]) -> dict[str, Any]:
        results: list[Any] = [None] * len(steps)
        errors: list[Any] = [None] * len(steps)
        current: dict[str, Any] = {}
        async with aclosing(self.entries(steps, streamed=False)) as entries:
            async for entry in entries:
                match entry["type"]:
                    case "step_begin":
                        current = {"step": entry["step"], "cols": entry["cols"], "rows": []}
                    case "row":
                        current["rows"].append(entry["row"])
                    case "step_end":
                        counts = {name: entry[name] for name in ("affected_row_count", "last_insert_rowid")}
                        rows = current["rows"] if steps[current["step"]].want_rows else []
                        results[current["step"]] = {"cols": current["cols"], "rows": rows, **counts}
                    case _:
                        errors[entry["step"]] = entry["error"]
        return {"step_results": results, "step_errors": errors}

    async def open_batch(self, asked: Json) -> AsyncGenerator[dict[str, Any]]:
        """Return the entries of a batch that is read as a cursor.

        Raises:
            UsageError: the batch is malformed.
        """
        return self.entries(read_batch(asked, self._texts))

    async def entries(self, steps: Sequence[BatchStep], *, streamed: bool = True) -> AsyncGenerator[dict[str, Any]]:
        """Run the steps of a batch, one after the other, and yield the entries of their results as they are read.

        Args:
            streamed: whether to read the rows of a SELECT outside of a transaction in pieces, at the reader's pace.
        """
        whole = whole_transaction(steps) if self.autocommit and not self._temporary.name else None
        try:
            at_once = await self._at_once(steps, whole) if whole is not None else None
        except Exception as unexpected:
            at_once = [{"type": "step_error", "step": 0, "error": write_error(self.failed(unexpected))}]
        if at_once is not None:
            for entry in at_once:
                yield entry
            return
        outcomes: dict[int, bool] = {}
        for place, step in enumerate(steps):
            if not holds(step.condition, outcomes.get, autocommit=self.autocommit):
                continue
            try:
                if step.problem is not None:
                    raise step.problem
                is_read = step.want_rows and kind_of(step.statement.sql) == READ
                if streamed and is_read and self.autocommit and not self._temporary.name:
                    async with aclosing(self._read(place, step.statement)) as rows:
                        async for entry in rows:
                            yield entry
                else:
                    result = await self.execute(step.statement, is_last=self.ends and place == len(steps) - 1)
                    for entry in await self._whole(place, step, result):
                        yield entry
                outcomes[place] = True
            except BedrockishError as error:
                self.stays_open = len(steps) == 1 and (self.stays_open or (self.ends and self._is_uncommitted))
                if self.stays_open:
                    raise
                outcomes[place] = False
                yield {"type": "step_error", "step": place, "error": write_error(error)}
            except Exception as unexpected:
                yield {"type": "step_error", "step": place, "error": write_error(self.failed(unexpected))}
                return

    async def _whole(self, place: int, step: BatchStep, result: Result) -> list[dict[str, Any]]:
        types = await self._types(step.statement.sql) if result.columns else []
        rows = result.rows if step.want_rows else []
        return [
            {"type": "step_begin", "step": place, "cols": write_columns(result.columns, types)},
            *({"type": "row", "row": [write_value(value) for value in row]} for row in rows),
            {"type": "step_end", **write_counts(result)},
        ]

    async def _read(self, place: int, statement: Statement) -> AsyncGenerator[dict[str, Any]]:
        """Read the rows of a SELECT in pieces, from one snapshot."""
        streams = self._node.transactions.streams
        check_statement(statement.sql)
        written = replace(statement, sql=self._values.write(statement.sql))
        stream: Stream = await streams.open(self._owner, self._request((written,)))
        try:
            types = await self._declared.of(statement.sql, self.user)
            yield {"type": "step_begin", "step": place, "cols": write_columns(shown_names(stream.columns), types)}
            more = True
            while more:
                if self.check_stay is not None:
                    self.check_stay()
                encoded, more = await streams.fetch(stream)
                for row in decode_results(encoded)[0].rows:
                    yield {"type": "row", "row": [write_value(value) for value in row]}
            self._token = stream.token
            yield {"type": "step_end", "affected_row_count": 0, "last_insert_rowid": None}
        finally:
            streams.end(stream, UnavailableError("the reader has gone"))

    async def _at_once(self, steps: Sequence[BatchStep], inner: range) -> list[dict[str, Any]] | None:
        """Run a batch that is a whole transaction as one request, which the node may run again.

        Return its entries; None if a statement is wrong: then nothing happened, and the caller runs the steps one by
        one, because clients want the results of the steps before it. Any other failure is reported as the error of the
        first statement, where clients look first.
        """
        nothing = Result((), [])
        commit = inner.stop
        entries = await self._whole(0, steps[0], nothing)
        settings = self._values.settings
        try:
            written = self._values.write_all([steps[place].statement.sql for place in inner])
            pairs = zip(inner, written, strict=True)
            statements = self._with_keys(tuple(replace(steps[place].statement, sql=sql) for place, sql in pairs))
            for statement in statements:
                check_statement(statement.sql)
            is_reading = is_readonly(steps[0].statement.sql)
            answer = await self._node.submit(self._request(statements, is_readonly=is_reading))
        except UsageError:
            self._values.settings = settings  # the steps, run one by one, set them again
            return None
        except BedrockishError as error:
            entries.append({"type": "step_error", "step": inner.start, "error": write_error(error)})
            return entries + (await self._whole(commit + 1, steps[-1], nothing) if commit + 1 < len(steps) else [])
        self._token = answer.token
        for place, result in zip(inner, self._results(answer)[-len(inner) :], strict=True):
            entries += await self._whole(place, steps[place], result)
        return entries + await self._whole(commit, steps[commit], nothing)


def is_readonly(sql: str) -> bool:
    """Return whether a text is libSQL's BEGIN of a transaction that only reads."""
    return sql.strip().rstrip(";").upper().split() in READONLY


def parse_begin(sql: str) -> control.Control | None:
    """Return BEGIN, COMMIT or ROLLBACK if a text is one of them, libSQL's ``BEGIN TRANSACTION READONLY`` among them."""
    found = control.parse_control(sql)
    if found is None and is_readonly(sql):
        return control.Control(control.BEGIN)
    return found if found is not None and found.kind in (control.BEGIN, control.COMMIT, control.ROLLBACK) else None


def whole_transaction(steps: Sequence[BatchStep]) -> range | None:
    """Return the indexes of the statements in a batch that is one whole transaction; None for another batch.

    Such a batch is BEGIN, then statements that each run if the step before succeeded, then COMMIT under the same
    condition, and perhaps ROLLBACK unless COMMIT succeeded. Clients send it for a list of statements.
    """
    kinds = [parse_begin(step.statement.sql) for step in steps]
    if len(steps) < 3 or any(step.problem is not None for step in steps):
        return None
    last = len(steps) - 1
    ends = kinds[last]
    commit = last - 1 if ends is not None and ends.kind == control.ROLLBACK else last
    first, middle = kinds[0], kinds[commit]
    if first is None or first.kind != control.BEGIN or steps[0].condition is not None or commit < 2:
        return None
    if middle is None or middle.kind != control.COMMIT or any(kinds[1:commit]):
        return None
    if commit != last and not _means(steps[last].condition, {"type": "not", "cond": _succeeded(commit)}):
        return None
    if any(control.parse_control(step.statement.sql) for step in steps[1:commit]):
        return None  # a batch with savepoints runs as an open transaction
    follows = all(_means(steps[place].condition, _succeeded(place - 1)) for place in range(1, commit + 1))
    return range(1, commit) if follows else None


def _succeeded(step: int) -> Json:
    """Return the condition, as clients write it, that a step has succeeded."""
    return {"type": "ok", "step": step}


def _means(condition: Json | None, wanted: Json) -> bool:
    """Return whether a condition is ``wanted``, alone or with newer clients' condition that a transaction is open."""
    match condition:
        case {"type": "and", "conds": [*parts]}:
            rest = [one for one in parts if one != {"type": "not", "cond": {"type": "is_autocommit"}}]
            return len(rest) == 1 and len(parts) <= 2 and _means(rest[0], wanted)
        case _:
            return condition == wanted


def parameter_names(sql: str) -> list[str | None]:
    """Return the names of a statement's parameters, by their numbers in SQLite; None for one without a name."""
    found: dict[int, str | None] = {}
    numbers: Mapping[str, int]
    numbers = named = {}
    try:
        marks = [token.text for token in tokens(sql) if token.kind == "param"]
    except NotTokensError:
        marks = []
    for mark in marks:
        if mark == "?":
            found[max(found, default=0) + 1] = None
        elif mark[0] == "?":
            found[int(mark[1:])] = mark
        elif mark not in numbers:
            named[mark] = max(found, default=0) + 1
            found[named[mark]] = mark
    return [found.get(number) for number in range(1, max(found, default=0) + 1)]

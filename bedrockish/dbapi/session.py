"""The transactions of a connection of PEP 249: when statements open them, and when they end.

A connection has one of three modes. With ``autocommit=LEGACY_TRANSACTION_CONTROL``, sqlite3's default, a statement that
writes opens a transaction unless ``isolation_level`` is None. With ``autocommit=False``, as in the standard, every
statement opens one; with ``autocommit=True``, none does. Statements that change the schema join an open transaction;
only with ``autocommit=False`` do they also open one.

After a transaction is lost (its node died, or another transaction conflicted with it), the connection refuses all
statements until ``rollback`` or ``commit`` was called. Otherwise the second half of a transaction could be committed
without the first half.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from sqlite3 import SQLITE_ERROR, SQLITE_READONLY
from typing import TYPE_CHECKING, Any, NamedTuple

from bedrockish.api.requests import Result, Rows
from bedrockish.client.blocking import Connection as Link
from bedrockish.client.blocking_transaction import BlockingTransaction
from bedrockish.client.cursor import BlockingRowStream
from bedrockish.client.request_builder import is_plain
from bedrockish.client.transaction import BATCH
from bedrockish.common.pauses import Pauses, monotonic
from bedrockish.dbapi.temporary_names import TemporaryNames
from bedrockish.errors import BedrockishError, ConstraintError, DeadlineError, SqlError, UnsupportedError
from bedrockish.sqltext.keys_off_sections import (
    FOREIGN_KEYS,
    KEYS_OFF,
    LEGACY,
    PARENTS,
    TRIGGERS,
    KeyPragmas,
    check_no_action,
    pragma,
)
from bedrockish.sqltext.session_settings import first_setting
from bedrockish.sqltext.session_values import SessionValues, has_run, rows_before
from bedrockish.sqltext.statement_kinds import (
    PRAGMA,
    READ,
    SCHEMA,
    WRITE,
    busy_timeout_of,
    kind_of,
    optimizes,
    query_only_of,
    switch_of,
    verb_of,
)
from bedrockish.sqltext.temporary import makes_temporary
from bedrockish.sqltext.transaction_control import (
    BEGIN,
    COMMIT,
    RELEASE,
    ROLLBACK,
    ROLLBACK_TO,
    SAVEPOINT,
    Control,
    control_of,
)

if TYPE_CHECKING:
    from bedrockish.dbapi.write_lock import WriteLock
    from bedrockish.local.transaction import LocalTransaction

Statement = tuple[str, Any]

LEGACY_TRANSACTION_CONTROL = -1
REPLAYED_MAX = 1_000  # most statements of a transaction that is repeated
FIRST_TRIES = 5  # how often the first statement of a transaction is tried before its error is raised
NOTHING = Rows((), [])
BEGIN_ONLY = "SELECT 1 WHERE 0"  # a statement without effect: a transaction begins at its node with its first statement


class Failure(NamedTuple):
    """The parts of an error that a replay compares, if the error left its transaction open."""

    kind: type[BedrockishError]
    message: str
    statement: object  # the index of the failed statement; the changes of the statements before it remain

    @classmethod
    def of(cls, error: BedrockishError) -> "Failure":
        """Return the parts of an error that a replay compares."""
        return cls(type(error), error.message, error.details.get("statement"))


Told = list[Rows] | Failure
"""The results of statements, or the failure of one of them."""


@dataclass(slots=True, eq=False)
class SessionTransaction:
    """The open transaction of a connection, with the effects of its statements so far."""

    link: BlockingTransaction
    is_implicit: bool  # whether a statement has opened it, so that BEGIN may continue it
    began_by_mark: bool = False  # whether SAVEPOINT has opened it, so that the RELEASE of that savepoint commits it
    marks: list[str] = field(default_factory=list)  # the names of its savepoints
    pragmas: KeyPragmas = field(default_factory=KeyPragmas)
    has_written: bool = False  # whether a statement has changed rows
    changes_schema: bool = False  # whether a statement has changed the schema
    here: "LocalTransaction | None" = None  # the transaction, if known statements may run in this process
    values: SessionValues = field(default_factory=SessionValues)  # the session's values at its beginning, for a replay
    log: list[tuple[list[Statement], Told]] = field(default_factory=list)  # its statements and results, for a replay
    is_given_up: bool = False  # whether the program has got the error by which it was lost: it is not repeated then

    def repeated_on(self, link: BlockingTransaction) -> "SessionTransaction":
        """Return the state of a transaction that repeats this one's statements."""
        return replace(self, link=link, here=None, pragmas=replace(self.pragmas), log=list(self.log))


class Session:
    """The transactions of one connection, and the statements that it runs inside and outside of them.

    Why so large: Its settings are those of a connection of ``sqlite3``, and some of its own.

    Attributes:
        autocommit: True, False or ``LEGACY_TRANSACTION_CONTROL``.
        isolation_level: as in sqlite3: None for no implicit transactions with ``LEGACY_TRANSACTION_CONTROL``.
        isolation: ``serializable`` or ``snapshot``.
        read: read level of statements that run outside of transactions.
        timeout_s: seconds for each call.
        schema_commits: whether a schema statement is a transaction of its own, which first commits the open one.
        foreign_keys: whether transactions that change the schema enforce foreign keys; all others always do.
        changes: number of rows changed since the connection was opened.
        replay: whether to repeat a transaction after a conflict, and continue it if its results are the same.
        query_only: whether the program has set PRAGMA query_only, so that the connection refuses writes.
        can_write: False for a connection that was opened with ``mode=ro``.
        lock: the write lock, which a transaction acquires at its first write; None without one.
        temporary: the names of the connection's TEMP objects.
    """

    def __init__(self, link: Link, read: str, timeout_s: float, trace: Callable[[str], None]) -> None:
        self.link, self.read, self.timeout_s, self._trace = link, read, timeout_s, trace
        self.autocommit: bool | int = LEGACY_TRANSACTION_CONTROL
        self.isolation_level: str | None = ""
        self.isolation = "serializable"
        self.schema_commits = False
        self.foreign_keys = True
        self.changes = 0
        self.query_only = self.replay = False
        self.can_write = True
        self.lock: WriteLock | None = None
        self.temporary = TemporaryNames()
        self._open: SessionTransaction | None = None
        self._is_uncommitted = False  # whether the last COMMIT failed; a ROLLBACK is then accepted, as in SQLite

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or was lost and not rolled back yet."""
        return self._open is not None

    @property
    def _only_reads(self) -> bool:
        return self.query_only or not self.can_write

    @property
    def reads_alone(self) -> bool:
        """Return whether statements that read run outside of transactions."""
        return self._open is None and self.autocommit is not False

    # -- statements ------------------------------------------------------------------------------------------------

    def run(self, sql: str, params: Any, kind: str, *, in_parts: bool = False) -> Rows:
        """Run one statement, opening or ending a transaction according to the mode; return its result.

        With ``in_parts``, the result may have a ``rest``.

        Raises:
            BedrockishError: see ``Client.execute``.
        """
        if kind == READ and self._open is None and not self._begins(READ):
            rows = self.link.read_here(sql, params, self.read, in_parts=in_parts)
            if rows is not None:
                self._trace(sql)
                return rows
        control = control_of(sql, params)
        if control is not None:
            self._trace(sql)
            return self._control(control, sql)
        if kind == PRAGMA:
            done = self._pragma(sql, params)
            if done is not None:
                return done
        with self._locking(sql, kind):
            return self._run_prepared(sql, params, kind)

    def _run_prepared(self, sql: str, params: Any, kind: str) -> Rows:
        self._check_no_action(kind, sql)
        self._prepare(kind, sql)
        if kind == SCHEMA and not self._needs_no_pragma and not self._is_of_temporary(sql):
            rows = self._unenforced(sql, params)
        elif self._open is None and not self._begins(kind):
            rows = self.link.execute(sql, params, timeout=self.timeout_s, read=self.read, isolation=self.isolation)
        else:
            rows = self._inside([(sql, params)])[0]
        if rows.rowcount > 0:
            self.changes += rows.rowcount
        return rows

    def run_again(
        self, sql: str, values: tuple[Any, ...] | dict[str, Any], *, only_brief: bool = False
    ) -> Result | None:
        """Run, in a transaction on a node's file, a text that has run there before; return None if ``run`` must run it.

        Args:
            values: parameters that SQLite stores without conversion.
            only_brief: whether to return None also if that would take more than some microseconds.

        Raises:
            BedrockishError: see ``run``.
        """
        opened = self._open
        if not is_plain(sql) or (self.lock is not None and not self.lock.is_held):
            return None
        if kind_of(sql) == PRAGMA:  # it may set the session's settings, also if another session has run the text
            return None
        if opened is None:  # another thread may have ended the transaction since the caller saw it
            return None if self.reads_alone else self._begin_again(sql, values, only_brief=only_brief)
        here = opened.here
        if here is None:
            return None
        try:
            result = here.run_again(sql, values, only_brief=only_brief)
        except BaseException as error:
            opened.has_written = opened.has_written or kind_of(sql) != READ  # OR FAIL keeps rows
            try:
                opened.link.fail(here, error)
            except ConstraintError:
                self._forget_if_ended(opened)
                raise
        if result is not None and result.rowcount >= 0:  # the statement writes
            opened.has_written = True
            self.changes += result.rowcount
            self.link.values.see((result,))
        return result

    def _begin_again(self, sql: str, values: tuple[Any, ...] | dict[str, Any], *, only_brief: bool) -> Result | None:
        """Begin a transaction with a known read; begin none, and return None, if ``run`` must do that."""
        if self.replay or self._only_reads or not self._needs_no_pragma:
            return None
        opened, result, is_lost = self._begin(is_implicit=True), None, False
        try:
            result = opened.link.run_first(sql, values, only_brief=only_brief)
        except BedrockishError as error:
            is_lost = not opened.link.is_open and not _is_repeatable(error)
            if is_lost:  # the program must roll it back, as after ``run``
                raise
        finally:
            if result is None and not is_lost:
                self.rollback(by_text=True)
        opened.here = opened.link.here
        return result

    def end_at_once(self, *, commits: bool) -> bool:
        """Commit or roll back if that needs no node, and takes some microseconds; return whether it was done."""
        opened = self._open
        if opened is None:
            return True
        here = opened.here
        if here is None or here.has_ended or opened.has_written or (commits and not here.needs_no_certificate()):
            return False
        (self.commit if commits else self.rollback)()
        return True

    def _pragma(self, sql: str, params: Any) -> Rows | None:
        """Execute a PRAGMA that sets a setting of the session; return None if it must be run like other statements."""
        asked = query_only_of(sql)
        if asked is not None:
            self._trace(sql)
            if asked[0] is None:
                return Rows(("query_only",), [(int(self.query_only),)])
            self.query_only = asked[0]
            if self._open is not None:
                self._open.here = None  # so that ``run``, which checks the setting, runs all statements
            return NOTHING
        if self._only_reads and optimizes(sql):
            self._trace(sql)
            return NOTHING
        waits = busy_timeout_of(sql) if self.lock is not None else None
        if self.lock is not None and waits is not None:
            self._trace(sql)
            if waits[0] is not None:
                self.lock.timeout_s = waits[0] / 1000
            return Rows(("timeout",), [(int(self.lock.timeout_s * 1000),)])
        if self._open is not None and first_setting(sql) is not None:
            self._trace(sql)
            # The PRAGMA runs in the transaction, so that a replay repeats it between the same statements.
            return self._inside([(sql, params)])[0]
        switch = switch_of(sql)
        if switch is None or (self._open is None and switch == (LEGACY, True)):  # the node runs or refuses it
            return None
        self._trace(sql)
        return self._switch(*switch)

    @property
    def _needs_no_pragma(self) -> bool:
        """Whether a schema statement needs no PRAGMA first: foreign keys are enforced, or the PRAGMA was executed."""
        return self.foreign_keys or (self._open is not None and self._open.pragmas.foreign_keys is not None)

    @property
    def has_own_schema(self) -> bool:
        """Whether the session has tables that other clients do not see: TEMP tables, or uncommitted schema changes."""
        return self.link.has_temporary or (self._open is not None and self._open.changes_schema)

    def columns(self, sql: str) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column of a statement's result, as the session sees the tables.

        Raises:
            BedrockishError: see ``Client.columns``.
        """
        has_own, link = self.link.has_own, None if self._open is None else self._open.link
        if link is not None and (self.has_own_schema or (has_own and link.here is not None)):
            return link.columns(sql, timeout=self.timeout_s)
        if self.link.has_temporary or has_own:
            opened = self.link.begin(isolation=self.isolation, read=self.read, timeout=self.timeout_s)
            try:
                opened.run([BEGIN_ONLY], timeout=self.timeout_s)
                return opened.columns(sql, timeout=self.timeout_s)
            finally:
                opened.rollback()
        return self.link.columns(sql, timeout=self.timeout_s)

    def stream(self, sql: str, params: Any) -> BlockingRowStream:
        """Open the result of a statement that reads, outside of all transactions.

        Raises:
            BedrockishError: see ``Client.stream``.
        """
        return self.link.open_stream(sql, params, timeout=self.timeout_s, read=self.read)

    def run_many(self, sql: str, every: Sequence[Any], kind: str) -> int:
        """Run a writing statement once for each of many parameters; return the number of rows changed.

        Up to a thousand runs take one round trip. If no transaction is open, all runs together are one transaction.

        Raises:
            BedrockishError: see ``Client.transact``.
        """
        with self._locking(sql, kind):
            return self._run_batches(sql, every, kind)

    def _run_batches(self, sql: str, every: Sequence[Any], kind: str) -> int:
        self._check_no_action(kind, sql)
        self._prepare(kind, sql)
        total, before = 0, replace(self.link.values)
        alone = self._open is None and not self._begins(kind)
        if alone and len(every) <= BATCH:
            statements = [(sql, params) for params in every]
            results = self.link.transact(statements, timeout=self.timeout_s, isolation=self.isolation)
            total = _rowcount(results)
        else:
            rest = iter(every)
            try:
                while batch := list(islice(rest, BATCH)):
                    total += _rowcount(self._inside([(sql, params) for params in batch]))
            except BaseException as error:
                if alone:
                    self.rollback()
                    self.link.values.restore(before)
                    if has_run(error):
                        self.link.values.changes = 0
                else:
                    self.changes += total + (rows_before(error) if isinstance(error, BedrockishError) else 0)
                raise
            if alone:
                self.commit()
        self.changes += total
        return total

    def run_section(self, texts: Sequence[str]) -> None:
        """Run statements of a script, the first of which is PRAGMA foreign_keys = OFF, as one transaction.

        Raises:
            BedrockishError: see ``Client.transact``; no statement was committed.
        """
        for sql in texts:
            self._check_writable(kind_of(sql), sql)
            self._trace(sql)
        with self._locking("", SCHEMA):
            self.link.transact(list(texts), timeout=self.timeout_s, isolation=self.isolation)
        self.foreign_keys = False

    @contextmanager
    def _locking(self, sql: str, kind: str) -> Iterator[None]:
        """Hold the write lock, if there is one, during a statement that writes, and to the end of its transaction."""
        try:
            self._acquire(sql, kind)
            yield
            if kind == SCHEMA:
                self.temporary.note(sql)
        finally:
            if self._open is None:
                self._release()

    def _acquire(self, sql: str, kind: str) -> None:
        if self.lock is not None and kind in (WRITE, SCHEMA) and not self._is_of_temporary(sql):
            self.lock.acquire()

    def _is_of_temporary(self, sql: str) -> bool:
        """Return whether a statement makes a TEMP object, or changes TEMP objects only."""
        return self._covers(sql) or makes_temporary(sql)

    def _covers(self, sql: str) -> bool:
        """Return whether a statement that writes changes TEMP objects only."""
        if not self.link.has_temporary:  # the objects were dropped, or lost with their node
            self.temporary.clear()
        return self.temporary.covers(sql)

    def _release(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def _begins(self, kind: str) -> bool:
        """Return whether a statement of this kind opens a transaction."""
        if self.autocommit == LEGACY_TRANSACTION_CONTROL:
            return kind == WRITE and self.isolation_level is not None
        return not self.autocommit and (kind in (READ, WRITE) or (kind == SCHEMA and not self.schema_commits))

    def _check_writable(self, kind: str, sql: str) -> None:
        """Raise SqlError for a statement that writes, if the connection only reads."""
        if not self._only_reads or (not self.query_only and self._covers(sql)):
            return
        if kind in (WRITE, SCHEMA) or verb_of(sql) == "ANALYZE":
            how = "PRAGMA query_only is on; switch it off" if self.can_write else "open it without mode=ro"
            raise SqlError(f"attempt to write a readonly database: {how}", sql=sql, sqlite=SQLITE_READONLY)

    def _prepare(self, kind: str, sql: str) -> None:
        """Commit the open transaction before a schema statement if ``schema_commits`` is set; trace the statement.

        Raises:
            SqlError: the statement writes, and the connection only reads.
        """
        self._check_writable(kind, sql)
        if (
            kind == SCHEMA
            and self.schema_commits
            and self._open is not None
            and self._open.is_implicit
            and not self._open.marks
        ):
            self.commit()
            self._acquire(sql, kind)
        if self._open is None and self._begins(kind):
            self._trace(f"BEGIN {self.isolation_level or ''}")
        self._trace(sql)

    def _check_no_action(self, kind: str, sql: str) -> None:
        """Check that no foreign key action would change rows in a statement that expects foreign keys to be off.

        Nodes always enforce foreign keys for rows, except in transactions that change the schema: the open transaction
        becomes one.
        """
        if kind != WRITE or self._needs_no_pragma:
            return
        parents, triggers = self._acting()
        try:
            check_no_action(sql, parents.rows, triggers.rows)
        except UnsupportedError:
            if self.link.has_temporary or (self._open is None and not self._begins(kind)):
                raise
            self._check_writable(kind, sql)
            self._run_switch(FOREIGN_KEYS, on=False)

    def _acting(self) -> list[Rows]:
        """Return the tables to which foreign keys with actions refer, with columns of their keys; and all triggers."""
        asked: list[Statement] = [(PARENTS, None), (TRIGGERS, None)]
        if self._open is not None and self.link.has_temporary:  # no second transaction can use the TEMP objects
            return self._inside(asked)
        return self.link.transact(asked, timeout=self.timeout_s)

    def _switch(self, name: str, on: bool | None) -> Rows:
        """Execute PRAGMA foreign_keys or PRAGMA legacy_alter_table; both hold for the open transaction, if any."""
        pragmas = KeyPragmas() if self._open is None else self._open.pragmas
        if on is None:
            return Rows((name,), [(int(pragmas.value(name, outside=self.foreign_keys)),)])
        if self._open is not None:
            if not pragmas.has(name, on=on):
                self._run_switch(name, on=on)
        elif name == FOREIGN_KEYS:
            self.foreign_keys = on
        return NOTHING

    def _run_switch(self, name: str, *, on: bool) -> None:
        """Run a PRAGMA of ``_switch`` in the open transaction, or in one that it begins."""
        self._inside([(pragma(name, on=on), None)])
        if self._open is not None:
            self._open.pragmas.note(name, on=on)

    def _unenforced(self, sql: str, params: Any) -> Rows:
        """Run a schema statement in a transaction that does not enforce foreign keys."""
        statements = [(KEYS_OFF, None), (sql, params)]
        if self._open is None and not self._begins(SCHEMA):
            try:
                return self.link.transact(statements, timeout=self.timeout_s, isolation=self.isolation)[-1]
            except SqlError as error:
                if not self.link.has_temporary or not error.message.startswith("no such"):
                    raise
            # The statement names a TEMP object, which the database does not have.
            return self.link.execute(sql, params, timeout=self.timeout_s, read=self.read, isolation=self.isolation)
        if self.link.has_temporary:  # the transaction can change TEMP objects only
            return self._inside([(sql, params)])[0]
        rows = self._inside(statements)[-1]
        if self._open is not None:
            self._open.pragmas.note(FOREIGN_KEYS, on=False)
        return rows

    def _inside(self, statements: list[Statement]) -> list[Rows]:
        fresh, until, pauses = self._open is None, monotonic() + self.timeout_s, Pauses(self.timeout_s)
        tries = 0
        while True:
            tries += 1
            opened = self._open or self._begin(is_implicit=True)
            try:
                return self._run_opened(opened, statements)
            except BedrockishError as error:
                if opened.link.is_open:
                    is_first = len(statements) == 1 or error.details.get("statement") == 0
                    is_broken = (
                        isinstance(error, ConstraintError) or error.details.get("sqlite", SQLITE_ERROR) != SQLITE_ERROR
                    )
                    if fresh and is_first and not is_broken:
                        self.rollback()  # as sqlite3, which opens no transaction for SQL that does not compile
                        if error.details.get("of_schema"):  # a command that configures an index of FTS5
                            self._acquire(statements[0][0], SCHEMA)
                            return self.link.transact(statements, timeout=self.timeout_s, isolation=self.isolation)
                    raise
                if isinstance(error, ConstraintError):
                    self._forget_if_ended(opened)
                    raise
                if not fresh and self._replay_after(error, pauses):
                    continue
                if not fresh or not _is_repeatable(error) or monotonic() >= until:
                    raise
                if tries >= FIRST_TRIES and not (self.replay and pauses.wait()):
                    raise
                self.rollback()  # the program has seen no result of the transaction, so it can be repeated

    def _run_opened(self, opened: SessionTransaction, statements: list[Statement]) -> list[Rows]:
        stays_here = opened.here is not None
        for sql in dict.fromkeys(sql for sql, _ in statements):
            kind = kind_of(sql)
            # A statement of another kind may change settings, which ``run_again`` does not check.
            stays_here = stays_here and kind in (READ, WRITE)
            self._acquire(sql, kind)
            if kind not in (READ, PRAGMA):
                opened.has_written = True
            if kind == SCHEMA:
                opened.changes_schema = True
        try:
            results = opened.link.run(statements, timeout=self.timeout_s)
        except BedrockishError as error:
            if self.replay and opened.link.is_open:  # a replay must fail at the same statement, with the same error
                opened.log.append((statements, Failure.of(error)))
            raise
        if self.replay:
            opened.log.append((statements, results))
        if not stays_here:
            opened.here = None if self.replay or self._only_reads or not self._needs_no_pragma else opened.link.here
        return results

    def _replay_after(self, error: BedrockishError, pauses: Pauses) -> bool:
        """Repeat the statements of a lost transaction; return whether each had the same result as before.

        The new transaction then replaces the lost one. The transaction stays lost if a result differs, such as the
        rowid of a new row, if the transaction has too many statements, or if the program has interrupted the call.
        """
        lost = self._open
        assert lost is not None
        statements = sum(len(texts) for texts, _ in lost.log)
        is_interrupted = error.details.get("interrupted")
        if lost.is_given_up or not error.retry or is_interrupted or not self.replay or statements > REPLAYED_MAX:
            lost.is_given_up = True
            return False
        link = lost.link
        while pauses.wait():
            link.rollback()
            link = self._begin_link()
            self._open = lost = lost.repeated_on(link)
            self.link.values.restore(lost.values)
            try:
                if all(self._repeats(link, texts, told) for texts, told in lost.log):
                    return True
            except BedrockishError as again:
                if again.details.get("interrupted"):
                    lost.is_given_up = True
                    raise
                if again.retry:
                    continue
            link.rollback()
            link.lose(error)  # the program gets the conflict at its next call, too, and knows that it may try again
            break
        lost.is_given_up = True
        return False

    def _repeats(self, opened: BlockingTransaction, statements: list[Statement], told: Told) -> bool:
        """Run statements again; return whether they have the same results, or fail as before."""
        try:
            found = opened.run(statements, timeout=self.timeout_s)
        except BedrockishError as error:
            if not opened.is_open:
                raise
            return told == Failure.of(error)
        return not isinstance(told, Failure) and _is_same(found, told)

    # -- transactions ----------------------------------------------------------------------------------------------

    def _begin(self, *, is_implicit: bool, by_mark: bool = False) -> SessionTransaction:
        self.temporary.begin()
        self._is_uncommitted = False
        self._open = made = SessionTransaction(self._begin_link(), is_implicit, by_mark)
        if self.replay:
            made.values = replace(self.link.values)
        return made

    def _begin_link(self) -> BlockingTransaction:
        return self.link.begin(isolation=self.isolation, read=self.read, timeout=self.timeout_s)

    def commit(self, *, by_text: bool = False) -> None:
        """Commit the open transaction; do nothing without one.

        Raises:
            OutcomeUnknownError: the transaction may or may not have been committed.
            BedrockishError: the transaction was not committed.
        """
        if self._open is None:
            return
        if not by_text:
            self._trace("COMMIT")
        is_uncommitted, pauses = True, Pauses(self.timeout_s)
        try:
            while is_uncommitted:
                try:
                    self._open.link.commit(timeout=self.timeout_s)
                    is_uncommitted = False
                except BedrockishError as error:
                    if self._open.link.is_open or not self._replay_after(error, pauses):
                        raise
        finally:
            if not self._open.link.is_open:  # open: a deferred constraint is broken, which the program can repair
                self._is_uncommitted = is_uncommitted
                self._forget(is_kept=not is_uncommitted)

    def rollback(self, *, by_text: bool = False) -> None:
        """Roll back the open transaction; do nothing without one."""
        opened = self._open
        if opened is not None and not by_text:
            self._trace("ROLLBACK")
        self._forget()
        if opened is not None:
            opened.link.rollback()

    def _forget_if_ended(self, opened: SessionTransaction) -> None:
        """Forget the transaction if a constraint with ON CONFLICT ROLLBACK has ended it."""
        if not opened.link.is_open:
            self._forget()

    def _forget(self, *, is_kept: bool = False) -> None:
        if self._open is not None and not is_kept:
            self.temporary.roll_back()
        self._open = None
        self._release()

    def _control(self, control: Control, sql: str) -> Rows:
        kind = control.kind
        was_uncommitted, self._is_uncommitted = self._is_uncommitted, False
        if kind == BEGIN:
            opened = self._open
            if opened is not None and not (opened.is_implicit and opened.link.is_open and not opened.has_written):
                raise SqlError("cannot start a transaction within a transaction", sql=sql)
            with self._locking(sql, WRITE if control.writes else READ):
                # BEGIN takes over a transaction that was opened implicitly, as for a SELECT, and has not written yet.
                if opened is None:
                    self._begin(is_implicit=False)
                else:
                    opened.is_implicit = False
        elif kind in (COMMIT, ROLLBACK):
            if self._open is None and kind == ROLLBACK and was_uncommitted:
                return NOTHING
            if self._open is None:
                raise SqlError(f"cannot {kind.lower()} - no transaction is active", sql=sql)
            (self.commit if kind == COMMIT else self.rollback)(by_text=True)
        elif kind == SAVEPOINT:
            opened = self._open or self._begin(is_implicit=False, by_mark=True)
            self._run_opened(opened, [(sql, None)])
            opened.marks.append(control.name.lower())
        else:
            self._unmark(control, sql)
        return NOTHING

    def _unmark(self, control: Control, sql: str) -> None:
        """Execute RELEASE or ROLLBACK TO; releasing the savepoint that began the transaction commits it."""
        name, opened = control.name.lower(), self._open
        if opened is None or name not in opened.marks:
            raise SqlError(f"no such savepoint: {control.name}", sql=sql)
        place = len(opened.marks) - 1 - opened.marks[::-1].index(name)
        if control.kind == RELEASE and place == 0 and opened.began_by_mark:
            self.commit()
            return
        self._run_opened(opened, [(sql, None)])
        if control.kind == ROLLBACK_TO:
            self.temporary.roll_back()
        del opened.marks[place + (control.kind == ROLLBACK_TO) :]


def _is_repeatable(error: BedrockishError) -> bool:
    """Return whether a transaction may be repeated whose first statement has failed with this error."""
    return error.retry and not isinstance(error, DeadlineError)


def _is_same(found: list[Rows], told: list[Rows]) -> bool:
    """Return whether the repeated statements had the same results as before."""
    parts = zip(found, told, strict=True)
    return all(
        (one.columns, one.rows, one.rowcount, one.lastrowid)
        == (other.columns, other.rows, other.rowcount, other.lastrowid)
        for one, other in parts
    )


def _rowcount(results: list[Rows]) -> int:
    return sum(max(0, rows.rowcount) for rows in results)

"""The transactions of a connection of PEP 249: when statements open them, and when they end.

A connection has one of three modes. With ``autocommit=LEGACY_TRANSACTION_CONTROL``, sqlite3's default, a statement that
writes opens a transaction unless ``isolation_level`` is None. With ``autocommit=False``, as in the standard, every
statement does, and with ``autocommit=True`` no statement does. Statements that change the schema join an open
transaction; only with ``autocommit=False`` do they also open one.

After a transaction is lost (its node died, or another transaction conflicted with it), the connection refuses all
statements until ``rollback`` or ``commit`` was called. Otherwise the second half of a transaction could be committed
without the first half.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from sqlite3 import SQLITE_ERROR, SQLITE_READONLY
from typing import TYPE_CHECKING, Any, NamedTuple

from bedrockish.api.requests import Result, Rows
from bedrockish.client.blocking import Connection as Link
from bedrockish.client.blocking_transaction import BlockingTransaction
from bedrockish.client.cursor import BlockingRowStream
from bedrockish.client.request_builder import is_plain
from bedrockish.client.transaction import BATCH
from bedrockish.common.pauses import Pauses
from bedrockish.dbapi.temporary_names import TemporaryNames
from bedrockish.errors import BedrockishError, ConstraintError, DeadlineError, SqlError, UnsupportedError
from bedrockish.sqltext.keys_off_sections import PARENTS, TRIGGERS, check_no_action
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
REPLAYS, REPLAYED_MAX = 5, 1_000  # most repetitions of a lost transaction, and most statements of a repeated one
FIRST_TRIES = 5  # how often the first statement of a transaction is tried before its error is raised
NOTHING = Rows((), [])
KEYS_OFF, LEGACY = "PRAGMA foreign_keys = OFF", "legacy_alter_table"
BEGIN_ONLY = "SELECT 1 WHERE 0"  # a statement without effect: a transaction begins at its node with its first statement


class Failure(NamedTuple):
    """The parts of an error that a replay compares, if the error left its transaction open."""

    kind: type[BedrockishError]
    message: str
    statement: object  # the index of the failed statement; the changes of the statements before it remain

    @classmethod
    def of(cls, error: BedrockishError) -> "Failure":
        """Return the failure of an error."""
        return cls(type(error), error.message, error.details.get("statement"))


Told = list[Rows] | Failure
"""The results of statements, or the failure of one of them."""


class Session:
    """The transactions of one connection, and the statements that it runs inside and outside of them.

    Why so large: Nine attributes are settings of the connection; the others describe one open transaction,
    which a statement may begin, mark and end.

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
        self._replayed: list[tuple[list[Statement], Told]] = []  # the open transaction's statements and results
        self._values = SessionValues()  # the values at the beginning of the open transaction
        self._open: BlockingTransaction | None = None
        self._here: LocalTransaction | None = None  # the open transaction, if its statements run in this process
        self._is_uncommitted = False  # whether the last COMMIT failed; a ROLLBACK is then accepted, as in SQLite
        self._implicit = False
        self._is_switched = False  # whether PRAGMA foreign_keys was set in the open transaction
        self._is_legacy = False  # whether the open transaction has executed PRAGMA legacy_alter_table = ON
        self._unchecked = False  # whether the open transaction has executed PRAGMA foreign_keys = OFF at the node
        self._wrote = self._changes_schema = False  # whether the open transaction has changed rows, or the schema
        self._marks: list[str] = []
        self._began_by_mark = False

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

    def run_again(self, sql: str, values: tuple[Any, ...] | dict[str, Any]) -> Result | None:
        """Run a statement again that has run in the open transaction; return None if ``run`` must run it.

        Args:
            values: parameters that SQLite stores without conversion.

        Raises:
            BedrockishError: see ``run``.
        """
        here = self._here
        if here is None or not is_plain(sql) or (self.lock is not None and not self.lock.is_held):
            return None
        try:
            result = here.run_again(sql, values)
        except BaseException as error:
            assert self._open is not None
            self._open.fail(here, error)
        if result is not None and result.rowcount >= 0:  # the statement writes
            self._wrote = True
            self.changes += result.rowcount
            self.link.values.see((result,))
        return result

    def _pragma(self, sql: str, params: Any) -> Rows | None:
        """Execute a PRAGMA that sets a setting of the session; return None if it must be run like other statements."""
        asked = query_only_of(sql)
        if asked is not None:
            self._trace(sql)
            if asked[0] is None:
                return Rows(("query_only",), [(int(self.query_only),)])
            self.query_only, self._here = asked[0], None
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
        if switch is None or (self._open is None and switch == (LEGACY, True)):  # PRAGMA on its own: a node refuses it
            return None
        self._trace(sql)
        return self._switch_legacy(switch[1]) if switch[0] == LEGACY else self._switch(switch[1])

    @property
    def _needs_no_pragma(self) -> bool:
        """Whether a schema statement needs no PRAGMA: keys are enforced, or the transaction has executed one."""
        return self.foreign_keys or (self._open is not None and (self._unchecked or self._is_switched))

    @property
    def has_own_schema(self) -> bool:
        """Whether the session has tables that other clients do not see: TEMP tables, or uncommitted schema changes."""
        return self.link.has_temporary or (self._open is not None and self._changes_schema)

    def columns(self, sql: str) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column of a statement's result, as the session sees the tables.

        Raises:
            BedrockishError: see ``Client.columns``.
        """
        if self._open is not None and self.has_own_schema:
            return self._open.columns(sql, timeout=self.timeout_s)
        if self.link.has_temporary:
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
            BedrockishError: see ``Client.transact``; none of them was committed.
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
        if not self.link.has_temporary:  # a session may lose its objects
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
        if kind == SCHEMA and self.schema_commits and self._open is not None and self._implicit and not self._marks:
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
            self._inside([(KEYS_OFF, None)])
            self._unchecked = True

    def _acting(self) -> list[Rows]:
        """Return the tables to which foreign keys with actions refer, with columns of their keys; and all triggers."""
        asked: list[Statement] = [(PARENTS, None), (TRIGGERS, None)]
        if self._open is not None and self.link.has_temporary:  # no second transaction can use the TEMP objects
            return self._inside(asked)
        return self.link.transact(asked, timeout=self.timeout_s)

    def _switch(self, on: bool | None) -> Rows:
        """Execute PRAGMA foreign_keys, which holds for the open transaction, if any."""
        if on is None:
            set_here = self._open is not None and (self._unchecked or self._is_switched)
            enforced = not self._unchecked if set_here else self.foreign_keys
            return Rows(("foreign_keys",), [(int(enforced),)])
        if self._open is None:
            self.foreign_keys = on
        elif on == self._unchecked:  # otherwise the transaction has this setting already
            self._inside([(f"PRAGMA foreign_keys = {'ON' if on else 'OFF'}", None)])
            self._unchecked, self._is_switched = not on, True
        return NOTHING

    def _switch_legacy(self, on: bool | None) -> Rows:
        """Execute PRAGMA legacy_alter_table, which holds to the end of the open transaction."""
        was_on = self._open is not None and self._is_legacy
        if on is None:
            return Rows((LEGACY,), [(int(was_on),)])
        if on != was_on:
            self._inside([(f"PRAGMA {LEGACY} = {'ON' if on else 'OFF'}", None)])
            self._is_legacy = on
        return NOTHING

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
        self._unchecked = True
        return rows

    def _inside(self, statements: list[Statement]) -> list[Rows]:
        fresh = self._open is None
        for tries in range(FIRST_TRIES):
            opened = self._open or self._begin(implicit=True)
            try:
                return self._run_opened(opened, statements)
            except BedrockishError as error:
                if opened.is_open:
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
                if isinstance(error, ConstraintError):  # a constraint with ON CONFLICT ROLLBACK ended the transaction
                    self._forget()
                    raise
                is_last = tries == FIRST_TRIES - 1
                if not fresh and not is_last and self._replay_after(error):
                    continue
                if not fresh or not error.retry or isinstance(error, DeadlineError) or is_last:
                    raise
                self.rollback()  # the program has seen no result of the transaction, so it can be repeated
        raise AssertionError("the last try returns or raises")

    def _run_opened(self, opened: BlockingTransaction, statements: list[Statement]) -> list[Rows]:
        stays_here = self._here is not None
        for sql in dict.fromkeys(sql for sql, _ in statements):
            kind = kind_of(sql)
            # A statement of another kind may change settings, which ``run_again`` does not check.
            stays_here = stays_here and kind in (READ, WRITE)
            self._acquire(sql, kind)
            if kind not in (READ, PRAGMA):
                self._wrote = True
            if kind == SCHEMA:
                self._changes_schema = True
        try:
            results = opened.run(statements, timeout=self.timeout_s)
        except BedrockishError as error:
            if self.replay and opened.is_open:  # a replay must fail at the same statement, with the same error
                self._replayed.append((statements, Failure.of(error)))
            raise
        if self.replay:
            self._replayed.append((statements, results))
        if not stays_here:
            self._here = None if self.replay or self._only_reads or not self._needs_no_pragma else opened.here
        return results

    def _replay_after(self, error: BedrockishError) -> bool:
        """Repeat the statements of a lost transaction; return whether each had the same result as before.

        The new transaction then replaces the lost one. The transaction stays lost if a result differs, such as the
        rowid of a new row, or if the transaction has too many statements.
        """
        log = list(self._replayed)
        if not error.retry or not log or sum(len(statements) for statements, _ in log) > REPLAYED_MAX:
            return False
        implicit, marks, by_mark = self._implicit, self._marks, self._began_by_mark
        flags = self._unchecked, self._is_switched, self._is_legacy, self._changes_schema, self._wrote
        values = self._values
        pauses = Pauses(self.timeout_s)
        for _ in range(REPLAYS):
            if not pauses.wait():
                return False
            if self._open is not None:
                self._open.rollback()
            opened = self._begin(implicit=implicit)
            self._marks, self._began_by_mark = marks, by_mark
            self._unchecked, self._is_switched, self._is_legacy, self._changes_schema, self._wrote = flags
            self._replayed = list(log)
            self._values = values  # ``_begin`` has just saved values that a failed attempt may have changed
            self.link.values.restore(values)
            try:
                if all(self._repeats(opened, texts, told) for texts, told in log):
                    return True
            except BedrockishError as again:
                if again.retry:
                    continue
            opened.rollback()
            opened.lose(error)  # the program gets the conflict at its next call, too, and knows that it may try again
            return False
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

    def _begin(self, *, implicit: bool) -> BlockingTransaction:
        opened = self.link.begin(isolation=self.isolation, read=self.read, timeout=self.timeout_s)
        if self._open is None:  # otherwise a replay repeats its statements
            self.temporary.begin()
        self._open, self._implicit, self._unchecked, self._wrote = opened, implicit, False, False
        self._here, self._is_uncommitted = None, False
        self._is_switched = self._is_legacy = self._changes_schema = False
        self._replayed = []
        if self.replay:
            self._values = replace(self.link.values)
        self._marks, self._began_by_mark = [], False
        return opened

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
        is_uncommitted = True
        try:
            try:
                self._open.commit(timeout=self.timeout_s)
            except BedrockishError as error:
                if self._open.is_open or not self._replay_after(error):
                    raise
                self._open.commit(timeout=self.timeout_s)
            is_uncommitted = False
        finally:
            if not self._open.is_open:  # open: a deferred constraint is broken, which the program can repair
                self._is_uncommitted = is_uncommitted
                self._forget(is_kept=not is_uncommitted)

    def rollback(self, *, by_text: bool = False) -> None:
        """Roll back the open transaction; do nothing without one."""
        opened = self._open
        if opened is not None and not by_text:
            self._trace("ROLLBACK")
        self._forget()
        if opened is not None:
            opened.rollback()

    def _forget(self, *, is_kept: bool = False) -> None:
        if self._open is not None and not is_kept:
            self.temporary.roll_back()
        self._open, self._here, self._marks, self._began_by_mark = None, None, [], False
        self._replayed = []
        self._release()

    def _control(self, control: Control, sql: str) -> Rows:
        kind = control.kind
        was_uncommitted, self._is_uncommitted = self._is_uncommitted, False
        if kind == BEGIN:
            if self._open is not None and not (self._implicit and self._open.is_open and not self._wrote):
                raise SqlError("cannot start a transaction within a transaction", sql=sql)
            with self._locking(sql, WRITE if control.writes else READ):
                # BEGIN takes over a transaction that was opened implicitly, as for a SELECT, and has not written yet.
                if self._open is None:
                    self._begin(implicit=False)
                self._implicit = False
        elif kind in (COMMIT, ROLLBACK):
            if self._open is None and kind == ROLLBACK and was_uncommitted:
                return NOTHING
            if self._open is None:
                raise SqlError(f"cannot {kind.lower()} - no transaction is active", sql=sql)
            (self.commit if kind == COMMIT else self.rollback)(by_text=True)
        elif kind == SAVEPOINT:
            fresh = self._open is None
            self._run_opened(self._open or self._begin(implicit=False), [(sql, None)])
            self._marks.append(control.name.lower())
            self._began_by_mark = self._began_by_mark or fresh
        else:
            self._unmark(control, sql)
        return NOTHING

    def _unmark(self, control: Control, sql: str) -> None:
        """Execute RELEASE or ROLLBACK TO; releasing the savepoint that began the transaction commits it."""
        name = control.name.lower()
        if self._open is None or name not in self._marks:
            raise SqlError(f"no such savepoint: {control.name}", sql=sql)
        place = len(self._marks) - 1 - self._marks[::-1].index(name)
        if control.kind == RELEASE and place == 0 and self._began_by_mark:
            self.commit()
            return
        self._run_opened(self._open, [(sql, None)])
        if control.kind == ROLLBACK_TO:
            self.temporary.roll_back()
        del self._marks[place + (control.kind == ROLLBACK_TO) :]


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

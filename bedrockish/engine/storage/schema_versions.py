"""The versions of the schema: decided changes are scheduled, and put in force at their clocks."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

import apsw

from bedrockish.engine.sqlite.errors import WITHOUT_PLUGIN
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.index_build import Build
from bedrockish.engine.storage.stand_in import Writable, remove_leftovers
from bedrockish.errors import DamagedError
from bedrockish.sqltext.statement_ends import first_word
from bedrockish_journal.model.changes import SchemaStep, decode_statements, decode_steps
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.storage import schema_history as schema
from bedrockish_journal.storage.schema_steps import run


class Versions:
    """The versions of the schema in one node's file."""

    def __init__(
        self,
        db: apsw.Connection,  # the writing connection
        write: Callable[..., None],  # runs an action in the open batch, and again whenever the batch is written again
        switch_on: Callable[[], None],  # switches triggers and foreign keys on
        # Called when the schema has changed, as ``learn(statements, changed)``: with the statements of the change, and
        # the tables whose rows it has changed.
        learn: Callable[[Sequence[str], Collection[str]], None],
        # Collects the names of the tables whose rows change in a ``with`` block.
        changed_tables: Callable[[], AbstractContextManager[set[str]]],
    ) -> None:
        self._db, self._write, self._learn = db, write, learn
        self._switch_on, self._changed_tables = switch_on, changed_tables
        self.current = 0  # how many schema changes were activated
        self.reload()

    def reload(self) -> None:
        """Read the versions from the file: the open batch was rolled back."""
        self.current = int(system.get_meta(self._db, "schema_version"))

    def apply(self, entry: Entry) -> None:
        """Schedule a committed change; without a clock of activation, as in old journals, put it in force at once.

        Raises:
            DamagedError: the change cannot be put in force; the node must stop.
        """
        transaction = entry.transaction
        statements = decode_statements(transaction.changes)
        schema.schedule(self._db, transaction, self.current + 1, statements)
        if transaction.activates:
            return
        failure = self._change(decode_steps(transaction.changes))
        if failure:
            what = f"{entry.leader}{entry.tick} cannot be applied, {'; '.join(statements)!r} gave: {failure}"
            raise DamagedError(f"{what}; fill this node again from another node", table="")

    def activate(self, txid: Txid, build: Build | None = None) -> str:
        """Put the scheduled change in force, in the open batch; return why the data forbids it, or ''.

        ``build`` is the build of the change's result in the background, if there is one.
        """
        self._write(self._activate, txid, build)
        return schema.standing(self._db, txid).failure

    def standing(self, txid: Txid) -> schema.SchemaStanding:
        """Return the state of a schema change at this node (scheduled, active or failed), and why it failed."""
        return schema.standing(self._db, txid)

    def _activate(self, txid: Any, build: Build | None) -> None:
        waiting = schema.scheduled(self._db)
        assert waiting is not None
        assert waiting.txid == txid
        steps = decode_steps(waiting.changes)
        if build is not None and build.txid == txid and self._move_build(build, steps[1:]):
            self._settle("", (), ())  # no statements: no index on the rows of a table has to be rebuilt
            return
        remove_leftovers(self._db)
        self._change(steps)

    def _move_build(self, build: Build, rest: list[SchemaStep]) -> bool:
        """Put a build's result in place of the change's first statement, and run the ``rest``.

        Return whether that succeeded; if not, nothing is changed.
        """
        if not rest:
            return build.move()
        db = self._db
        self._switch_on()
        db.execute("SAVEPOINT built")
        try:
            is_done = build.move() and not run(db, rest)
        except apsw.SQLError:  # the caller then runs the whole change, which reports the error
            is_done = False
        if not is_done:
            db.execute("ROLLBACK TO built")
        db.execute("RELEASE built")
        return is_done

    def _change(self, steps: list[SchemaStep]) -> str:
        self._switch_on()
        try:
            with self._changed_tables() as changed:
                failure = run(self._db, steps)
                if not failure and any(first_word(step.sql) == "ANALYZE" for step in steps):
                    self._forget_own_statistics()
        except apsw.SQLError as error:
            what = f"a change of the schema, {'; '.join(step.sql for step in steps)!r}, gave: {error}"
            raise DamagedError(f"{what}; {WITHOUT_PLUGIN}") from error
        self._settle(failure, [step.sql for step in steps] if not failure else (), changed)
        return failure

    def _forget_own_statistics(self) -> None:
        """Remove the statistics of system tables: the node's own statements rely on the plans without statistics."""
        kept = "SELECT name FROM main.sqlite_schema WHERE name IN ('sqlite_stat1', 'sqlite_stat4')"
        for (name,) in self._db.execute(kept).fetchall():
            self._db.execute(f"DELETE FROM main.{name} WHERE tbl GLOB 'bedrockish_*'")
        # A new number makes every connection, also those that are open, read the schema with its statistics. All must
        # have one plan for a statement: one connection may compute the read set of a statement that another one runs.
        with Writable(self._db):
            version: int = self._db.pragma("schema_version")
            self._db.execute(f"PRAGMA main.schema_version = {version + 1}")

    def _settle(self, failure: str, statements: Sequence[str], changed: Collection[str]) -> None:
        self.current += 1
        schema.settle(self._db, self.current, failure)
        system.set_meta(self._db, "schema_version", self.current)
        self._learn(statements, changed)

"""Online schema changes: the index of a scheduled change is built in slices while the node serves requests."""

import os
from collections.abc import Callable

import apsw

from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.table_layout import Tables
from bedrockish.engine.batch import Batch
from bedrockish.engine.storage.index_build import Build, IndexBuild
from bedrockish.engine.storage.index_plan import BuildPlan, IndexPlan, SearchPlan, plan_build
from bedrockish.engine.storage.schema_versions import Versions
from bedrockish.engine.storage.scratch_files import check_room
from bedrockish.engine.storage.search_build import SearchBuild
from bedrockish.errors import UnavailableError
from bedrockish_journal.model.changes import decode_steps
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import Transaction, Txid


class OnlineBuilds:
    """The part of an engine that builds the index of a scheduled schema change before its activation."""

    def __init__(
        self,
        db: apsw.Connection,  # the writing connection
        batch: Batch,
        versions: Versions,
        tables: Callable[[], Tables],  # returns the tables of the schema in force
        prepare: Prepare,  # registers the functions and collations of plugins on a connection
        open_reader: Callable[[], apsw.Connection],  # opens another connection, which only reads
        note_change: Callable[[], None],  # called when the open batch changes the schema
    ) -> None:
        self._db, self._batch, self._versions, self._tables = db, batch, versions, tables
        self._prepare, self._open_reader, self._note_change = prepare, open_reader, note_change
        self._file = db.filename
        self.current: Build | None = None  # the build in progress, or None

    def plan(self, transaction: Transaction) -> BuildPlan | None:
        """Return the plan of the online build of a schema change; None if the change cannot be built online."""
        return plan_build(decode_steps(transaction.changes), self._tables(), self._prepare)

    def start(self, plan: BuildPlan, txid: Txid) -> Build:
        """Start the build of a scheduled change, and return it; every applied entry must be flushed.

        Raises:
            UnavailableError: the disk has no room for the build, or the machine none for another connection.
        """
        assert not self._batch.is_dirty
        check_room(self._file, os.stat(self._file).st_size)  # a full disk would end the node; the build is optional
        version = self._versions.current
        build: Build
        if isinstance(plan, SearchPlan):
            build = SearchBuild(self._db, plan, txid, version)
        else:
            assert isinstance(plan, IndexPlan)
            build = IndexBuild(self._db, plan, txid, version)
        try:
            build.begin(self._open_reader)
        except apsw.Error as error:
            build.close()
            raise UnavailableError(f"another connection to the file cannot be opened: {error}") from error
        self.current = build
        self._note_change()
        self._batch.write(build.create)
        return build

    def advance(self) -> bool:
        """Write the next slice of the build; return False if no slice is ready."""
        build = self.current
        assert build is not None
        self._batch.evict_guest()
        edit = build.next_edit()
        if edit is None:
            return False
        if edit != ([], []):
            self._batch.write(build.edit, *edit)
        return True

    def apply(self, entry: Entry, apply: Callable[[], None]) -> None:
        """Call ``apply``, which writes an entry's rows into the tables, and make the same changes in the build.

        The batch records the rows that the build adds and removes: computed again for ``Batch.redo``, these rows could
        differ, because the build has advanced.
        """
        build = self.current
        touched = () if build is None else build.touched(entry.transaction, self._versions.current)
        if build is None or not touched:
            apply()
            return
        self._batch.evict_guest()
        removed = build.before(touched)
        apply()
        added = build.after(touched)
        if removed or added:
            self._batch.write(build.edit, removed, added)

    def activate(self, txid: Txid) -> str:
        """Put the scheduled schema change in force, in the open batch; return why the data forbids it, or ''.

        A build that is nearly done is finished first. A build that has much left to load is abandoned: SQLite builds
        the whole index in less time than the rest of the build would take.
        """
        self._batch.wait_for_writer()
        build = self.current
        if build is not None and build.txid == txid:
            build.hurry()
            while build.is_at_work and self.advance():
                pass
        return self._versions.activate(txid, build)

    def end(self) -> None:
        """Drop a build whose schema change is in force in a committed batch."""
        build = self.current
        if build is not None and build.version != self._versions.current:
            build.close(wait=False)  # a thread that still reads for the build closes it afterwards
            self.current = None

    def interrupt(self) -> None:
        """Abandon the build, and interrupt its thread."""
        if self.current is not None:
            self.current.interrupt()

    def close(self) -> None:
        """Close the connection of the build."""
        if self.current is not None:
            self.current.close()

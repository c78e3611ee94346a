"""The application of entries: an entry's rows and its row in the journal are written together, or not at all."""

from collections.abc import Callable, Sequence

import apsw

from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.table_layout import Tables
from bedrockish.engine.batch import LONG_BYTES, Batch, WriterState
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.row_applier import RowApplier, unreadable
from bedrockish.engine.storage.schema_versions import Versions
from bedrockish.engine.storage.staged_changes import StagedStore
from bedrockish.errors import DamagedError
from bedrockish_journal.model.changes import Change, decode_changes, decode_changes_in_pieces, encode_changes
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction
from bedrockish_journal.storage import store

FEW_BYTES = 64 << 10  # changes up to this size are decoded as one list, and larger ones in pieces
KEPT_BYTES = FEW_BYTES  # changes up to this size stay decoded from their execution or check to their application
KEPT_MAX = 32  # transactions whose changes stay decoded


class EntryApplier:
    """The part of an engine that applies entries in the open batch."""

    tables: Tables  # the tables of the schema in force

    def __init__(
        self,
        db: apsw.Connection,  # the writing connection
        batch: Batch,
        rows: RowApplier,  # writes rows into tables
        capture: Capture,  # the capture of row changes; it is off while staged rows are written
        versions: Versions,
        learn_members: Callable[[], None],  # reads the membership again after it has changed
        note_schedule: Callable[[], None],  # called when a schema change has been scheduled
    ) -> None:
        self._db, self._batch, self._rows, self._capture = db, batch, rows, capture
        self._versions, self._learn_members, self._note_schedule = versions, learn_members, note_schedule
        self.staged = StagedStore(db)  # the unpacked changes of large transactions
        # Transactions whose changes are skipped by an operator's order, because they fit the tables of no node.
        self.void = set(system.void(db))
        self._decoded: dict[
            bytes, list[Change]
        ] = {}  # encoded changes -> the changes, decoded or as they were executed

    @staticmethod
    def is_long(entry: Entry) -> bool:
        """Return whether another thread should apply an entry, because it takes long."""
        return len(entry.transaction.body) > LONG_BYTES

    def decode(self, data: bytes) -> list[Change]:
        """Decode the changes of a transaction for a check; if they are few, keep them until the transaction is applied.

        Raises:
            EntryMalformedError: the bytes are not a list of changes.
        """
        changes = decode_changes(data)
        self._keep(data, changes)
        return changes

    def encode(self, changes: list[Change]) -> bytes:
        """Encode the changes of a transaction; if they are few, keep them, which saves a later decoding."""
        data = encode_changes(changes)
        self._keep(data, changes)
        return data

    def _keep(self, data: bytes, changes: list[Change]) -> None:
        if len(data) <= KEPT_BYTES:
            self._decoded[data] = changes
            if len(self._decoded) > KEPT_MAX:
                del self._decoded[next(iter(self._decoded))]

    def join(self, each: Sequence[bytes]) -> tuple[bytes, tuple[int, ...]]:
        """Join the changes of transactions, in order; return the encoded list, and the number of changes of each.

        Raises:
            EntryMalformedError: the bytes are not lists of changes.
        """
        lists = [self._decoded.pop(data) if data in self._decoded else decode_changes(data) for data in each]
        changes = [change for one in lists for change in one]
        return self.encode(changes), tuple(map(len, lists))

    def why_rows_differ(self, transaction: Transaction) -> str:
        """Return how a transaction's old rows differ from this node's rows; empty if they are equal.

        Raises:
            DamagedError: the file failed; the node must stop.
        """
        if transaction.kind != ROWS or transaction.schema != self._versions.current:
            return ""  # the transaction ran on another schema than the one in force here, so rows cannot be compared
        self._batch.evict_guest()
        try:
            if len(transaction.changes) > KEPT_BYTES:
                return self._rows.compare(decode_changes_in_pieces(transaction.changes))
            return self._rows.compare((self.decode(transaction.changes),))
        except EntryMalformedError as error:
            return f"its changes cannot be read: {error}"
        except apsw.Error as error:
            raise self._batch.broken(error) from error

    def apply(self, entry: Entry, repeat: bool, applied_ms: int) -> None:
        """Write the rows of an entry and its row in the journal; ``Batch.write`` calls this, also for ``redo``.

        Args:
            repeat: whether the entry's transaction was applied already, under another label.
            applied_ms: the wall clock, in milliseconds since 1970.

        Raises:
            EntryMismatchError: the entry does not fit the tables; the batch is unchanged.
        """
        db, changes = self._db, [] if repeat else self._few_changes(entry)
        if changes is not None and len(changes) <= 1:
            # SQLite makes a single change completely or not at all, so no savepoint is needed, for which SQLite would
            # copy every written page.
            self._rows.apply(entry, (changes,))
            try:
                store.append(db, entry, repeat=repeat, applied_ms=applied_ms)
            except BaseException:  # the file failed: roll back, so that no row is written without its entry
                self._batch.give_up()
                raise
            return
        if self._apply_staged(entry, applied_ms) or (changes and self._apply_fitting(entry, changes, applied_ms)):
            return
        db.execute("SAVEPOINT entry")
        try:
            self._apply_kind(entry, changes)
            store.append(db, entry, repeat=repeat, applied_ms=applied_ms)
        except BaseException:
            if db.in_transaction:  # otherwise SQLite has rolled back the whole batch: the disk is full, or failed
                db.execute("ROLLBACK TO entry")
                db.execute("RELEASE entry")
            raise
        db.execute("RELEASE entry")

    def _apply_fitting(self, entry: Entry, changes: list[Change], applied_ms: int) -> bool:
        """Apply an entry of a few changes; return False, without effect, if that fails or the batch is being redone."""
        if self._batch.state is WriterState.REDOING:
            return False
        fits = self._append_if(entry, applied_ms, lambda: self._rows.make_or_break(changes))
        if fits is False:
            self._write_without(entry)
        return bool(fits)

    def _append_if(self, entry: Entry, applied_ms: int, make: Callable[[], bool | None]) -> bool | None:
        """Make an entry's changes by ``make``, and append the entry if all fit; return the result of ``make``."""
        try:
            fits = make()
            if fits:
                store.append(self._db, entry, repeat=False, applied_ms=applied_ms)
            return fits
        except BaseException:  # the file failed: a part of the entry may be in the batch
            self._batch.give_up()
            raise

    def _write_without(self, entry: Entry) -> None:
        """Roll back the batch, which has only a part of an entry, and write it again without that entry."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if self._batch.state is WriterState.REDOING:
            raise DamagedError(
                f"{entry.leader}{entry.tick} fitted the tables when it was first written, and does not fit now, when "
                "the batch is written again"
            )
        self._batch.redo()

    def _few_changes(self, entry: Entry) -> list[Change] | None:
        """Return the changes of an entry of few rows; None for a longer entry, and for entries of other kinds."""
        transaction = entry.transaction
        if transaction.kind != ROWS or entry.txid in self.void or len(transaction.changes) > FEW_BYTES:
            return None
        known = self._decoded.pop(transaction.changes, None) if self._decoded else None
        if known is not None:
            return known
        try:
            return decode_changes(transaction.changes)
        except EntryMalformedError as error:
            raise unreadable(entry, error) from error

    def _apply_kind(self, entry: Entry, changes: list[Change] | None) -> None:
        """Apply the rows, the schema statements or the membership of an entry."""
        transaction = entry.transaction
        if entry.txid in self.void:
            assert transaction.kind == ROWS, f"{entry.txid} may not be skipped: it changes more than rows"
        elif transaction.kind == ROWS:
            try:
                known = None if changes is None else (changes,)
                self._rows.apply(entry, known or decode_changes_in_pieces(transaction.changes))
            except EntryMalformedError as error:
                raise unreadable(entry, error) from error
        elif transaction.kind == SCHEMA:
            self._versions.apply(entry)
            self._note_schedule()
        else:
            assert transaction.kind == MEMBERS
            system.set_meta(self._db, "membership", transaction.changes)
            self._learn_members()

    def _apply_staged(self, entry: Entry, applied_ms: int) -> bool:
        """Apply an entry by its unpacked changes; return False, with the batch unchanged, if that fails.

        For a savepoint SQLite would copy every written page, a third of the time of a large entry. So an entry that
        does not fit, which is rare, makes the applier roll back the whole batch and write it again without the entry.
        """
        transaction = entry.transaction
        if transaction.kind != ROWS or entry.txid in self.void:
            return False
        staged = self.staged.attach(
            transaction.changes, self.tables, self._versions.current, unpack=self.is_long(entry)
        )
        if staged is None or not self._rows.knows(staged):
            return False

        def make() -> bool:
            with self._capture.without_hook():
                return self._rows.apply_staged(staged)

        if self._append_if(entry, applied_ms, make):
            return True
        staged.fits = False
        self._write_without(entry)
        return False

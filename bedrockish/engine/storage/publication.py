"""Tells other programs on the machine which batches of a file are written, and which of them are durable."""

from collections.abc import Mapping
from typing import Protocol

import apsw

from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage.overlay_vfs import salt_of
from bedrockish.engine.storage.wal import Wal
from bedrockish_journal.storage import schema_history


class PublishedState(Protocol):
    """The memory page that tells other programs on the machine which batches are durable. Any thread may write it."""

    def wrote(self, number: int, frames: int, salts: bytes, schema: int, is_log_ending: bool = False) -> None:
        """Publish that a batch is in the WAL, with its frames and schema, and whether the WAL is about to restart."""

    def synced(self, number: int) -> None:
        """Publish that all batches up to this one are durable."""

    def close(self) -> None:
        """Publish that the file is about to be closed."""


class Publication:
    """The published state of one engine's batches: the row ``moment`` in each batch and, after ``use_page``, a page."""

    def __init__(self, db: apsw.Connection, wal: Wal) -> None:
        self._db, self._wal = db, wal
        self.path = db.filename  # the database file, by its absolute path
        self.members = 0  # version of the applied membership
        self._clocks: tuple[int, int | None] | None = None  # from ``schema_history.clocks``; None: to be read
        self._page: PublishedState | None = None

    def use_page(self, page: PublishedState, batch: int, schema: int) -> None:
        """Publish to a memory page, too, from now on. All batches up to ``batch``, the last one, must be durable."""
        self._page = page
        self.wrote(batch, schema)

    def forget_schema(self) -> None:
        """Forget the clocks of the schema versions, so that the next batch reads them again."""
        self._clocks = None

    def write(self, batch: int, applied: Mapping[str, int], clock: int, schema: int) -> None:
        """Write the row ``moment`` of the open batch."""
        if self._clocks is None:
            self._clocks = schema_history.clocks(self._db)
        moment_row.write(self._db, moment_row.FileMoment(batch, applied, clock, schema, *self._clocks, self.members))

    def wrote(self, batch: int, schema: int, *, is_log_ending: bool = False) -> None:
        """Publish that a batch is in the WAL, and whether the WAL is about to restart."""
        if self._page is not None:
            self._page.wrote(batch, self._wal.frames, salt_of(self._wal.descriptor), schema, is_log_ending)

    def synced(self, batch: int) -> None:
        """Publish that all batches up to this one are durable; any thread may call this."""
        if self._page is not None:
            self._page.synced(batch)

    def end(self) -> None:
        """Publish that the file is about to be closed."""
        page, self._page = self._page, None
        if page is not None:
            page.close()

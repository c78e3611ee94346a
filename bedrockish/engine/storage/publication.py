"""Tells the programs of the machine which batches of a file are written, and which of them are durable."""

from collections.abc import Mapping
from typing import Protocol

import apsw

from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage.overlay_vfs import salt_of
from bedrockish.engine.storage.wal import Wal
from bedrockish_journal.storage import schema_history


class Publishes(Protocol):
    """The page that tells programs of the machine which batches are durable. Any thread may call it."""

    def wrote(self, number: int, frames: int, salts: bytes, schema: int, is_log_ending: bool = False) -> None:
        """Tell that a batch is in the WAL, its frames and schema, and whether the WAL is about to start over."""

    def synced(self, number: int) -> None:
        """Tell that all batches up to this one are on the disk."""

    def close(self) -> None:
        """Tell that the file is about to be closed."""


class Publication:
    """The published state of one engine's batches: the row ``moment`` in each of them, and a page once a node has one.

    Attributes:
        members: version of the membership that is applied.
        path: the database file, by its absolute path.
    """

    def __init__(self, db: apsw.Connection, wal: Wal) -> None:
        self._db, self._wal = db, wal
        self.path = db.filename
        self.members = 0
        self._clocks: tuple[int, int | None] | None = None  # as ``schema_history.clocks`` tells; None: not read
        self._page: Publishes | None = None

    def begin(self, page: Publishes, batch: int, schema: int) -> None:
        """Tell a page from now on; all batches are durable, the last of which is this one."""
        self._page = page
        self.wrote(batch, schema)

    def forget_schema(self) -> None:
        """Read again, with the next batch, since when the schema is in force."""
        self._clocks = None

    def write(self, batch: int, applied: Mapping[str, int], clock: int, schema: int) -> None:
        """Write the row of the open batch."""
        if self._clocks is None:
            self._clocks = schema_history.clocks(self._db)
        moment_row.write(self._db, moment_row.FileMoment(batch, applied, clock, schema, *self._clocks, self.members))

    def wrote(self, batch: int, schema: int, *, is_log_ending: bool = False) -> None:
        """Tell that a batch is in the WAL, and whether the WAL is about to start over."""
        if self._page is not None:
            self._page.wrote(batch, self._wal.frames, salt_of(self._wal.descriptor), schema, is_log_ending)

    def synced(self, batch: int) -> None:
        """Tell that all batches up to this one are durable; any thread may."""
        if self._page is not None:
            self._page.synced(batch)

    def end(self) -> None:
        """Tell that the file is about to be closed."""
        page, self._page = self._page, None
        if page is not None:
            page.close()

"""Reads of committed batches on connections of their own, in helper threads, while the engine writes."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from bedrockish.access_sets.call_costs import bound
from bedrockish.access_sets.catalog import Prepare
from bedrockish.core.protocol.pieces import Part
from bedrockish.engine.sqlite.errors import broken, damaged_page
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.database_file import set_up_reader
from bedrockish.engine.storage.scratch_files import check_room, size_of
from bedrockish.engine.storage.stand_in import remove_copied
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import UnavailableError, UsageError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.storage import packing, store
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.verify.row_digests import Range, RangeDigest, TouchedKeys, digest_range

T = TypeVar("T")


class BackgroundReads:
    """The reading connections of a node's file. Any thread may call the methods."""

    def __init__(self, file: str, prepare: Prepare, limits: Limits) -> None:
        self._file, self._prepare, self._limits = file, prepare, limits
        self._idle: deque[apsw.Connection] = deque()  # at most one connection, kept for the next ``reader``
        self._is_closed = False
        self._touched = TouchedKeys()  # used by one thread at a time: ``Scrubber.digest_here`` uses a limiter

    def open_reader(self) -> apsw.Connection:
        """Return a new connection that only reads, with the functions of plugins."""
        reader = ModuleConnection(self._file, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        set_up_reader(reader)
        bound(reader, self._limits.length_bytes)
        self._prepare(reader)
        packing.unpack_on(reader)
        return reader

    @contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """Lend a connection that only reads, for a brief use outside of a transaction.

        The connection is kept for the next use, because a new one first parses all definitions, which takes a tenth of
        a second for some thousand tables. Its caches of pages and entries are emptied, so that each use reads the file.

        Raises:
            apsw.Error: the file cannot be opened once more.
        """
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self.open_reader()
        try:
            yield reader
            reader.release_memory()
            packing.forget_unpacked(reader)
        except BaseException:
            reader.close()
            raise
        self._idle.append(reader)
        while len(self._idle) > (0 if self._is_closed else 1):
            self._idle.pop().close()

    def close(self) -> None:
        """Close the kept connection; a connection that is lent is closed at the end of its use."""
        self._is_closed = True
        while self._idle:
            self._idle.popleft().close()

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        is_open = False
        try:
            with self.reader() as reader:
                is_open = True
                yield reader
        except apsw.Error as error:
            if is_open:
                raise broken(error) from error
            raise UnavailableError(f"another connection to the file cannot be opened: {error}") from error

    def read_with(self, action: Callable[[apsw.Connection], T]) -> T:
        """Run an action on a lent connection that only reads, and return its result.

        Raises:
            DamagedError: a page cannot be read.
            UnavailableError: the file cannot be opened once more, or read.
        """
        try:
            with self.reader() as reader:
                return action(reader)
        except apsw.CorruptError as error:
            raise damaged_page(error) from error
        except apsw.Error as error:
            raise UnavailableError(f"the file cannot be read: {error}") from error

    def digest_range(self, asked: Range, beyond: Vector | None) -> RangeDigest:
        """Return the digest of a range of a table as of the last flush, as ``row_digests.digest_range``.

        Raises:
            UsageError: SQLite rejects the range, as for a table that does not exist.
            UnavailableError: the file cannot be read.
        """
        try:
            with self.reader() as reader:
                return digest_range(reader, asked, beyond, self._touched)
        except apsw.SQLError as error:
            raise UsageError(f"there is no such range of {asked.table!r}: {error}") from error
        except (apsw.CorruptError, apsw.IOError, apsw.CantOpenError) as error:
            raise UnavailableError(f"the file cannot be read: {error}") from error

    @contextmanager
    def entries(self) -> Iterator[Callable[[str, int, int], list[Entry]]]:
        """Yield a function that reads entries of committed batches, with the arguments of ``Engine.read_entries``.

        Raises:
            DamagedError: the file cannot be read; the node must stop.
            UnavailableError: the machine has no room for another connection.
        """
        with self._reader() as reader:
            yield partial(store.read, reader)

    def assemble(self, parts: tuple[Part, ...]) -> bytes:
        """Return the body of a transaction, given its parts; the pieces among these are in committed batches.

        Raises:
            DamagedError: a piece is missing; the node must stop.
            UnavailableError: the machine has no room for another connection.
        """
        with self._reader() as reader:
            return system.assemble(reader, parts)

    def snapshot_to(self, path: str | os.PathLike[str], go_on: Callable[[], None] = lambda: None) -> None:
        """Copy the database as of the last flush into a new file, page by page, so that rowids stay the same.

        The last flush need not be durable yet. Until it is, the caller must not send the copy to another node.

        Args:
            go_on: called throughout; an error that it raises ends the copy.

        Raises:
            ConfigError: the file exists already, or cannot be written.
            UnavailableError: the disk has no room for the copy; a full disk would end the node.
        """
        with closing(self.open_reader()) as source:
            check_room(path, size_of(source))
            copy_file(source, Path(path), go_on)
        remove_copied(Path(path))

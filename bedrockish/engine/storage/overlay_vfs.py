"""A private, writable view of the node's file as of one moment, which stores only the changed pages.

SQLite has one writer for each file, which is the node's loop. Any other request that must write and roll back gets a
connection on a virtual file. The file's pages are those of a snapshot, read from the snapshot's frames in the WAL or,
if no frame has the page, from the database file. Written pages stay in memory or, if they are many, in a temporary
file. For SQLite the virtual file is an ordinary database with a rollback journal and a single user.

Another connection's read transaction must pin the snapshot for as long as the view exists, or a checkpoint could put
newer pages into the database file.
"""

import errno
import itertools
import os
import struct
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import apsw

from bedrockish_journal.storage.vector_modules import ModuleConnection

_WAL_HEADER, _FRAME_HEADER = 32, 24  # lengths in bytes
_SALT_AT, _SALT_BYTES = 16, 8  # the salts in the WAL's header, which change each time the WAL restarts
_ROLLBACK_JOURNAL = b"\1\1"  # the file format without a WAL, in bytes 18 and 19 of page 1
_UNNAMED = (
    apsw.SQLITE_OPEN_TEMP_JOURNAL
    | apsw.SQLITE_OPEN_READWRITE
    | apsw.SQLITE_OPEN_CREATE
    | apsw.SQLITE_OPEN_EXCLUSIVE
    | apsw.SQLITE_OPEN_DELETEONCLOSE
)
_FAR = 0x9E3779B1  # odd, so that its multiples modulo 2**32 all differ; successive ones are far from each other
MEMORY_BYTES = 32 << 20  # bytes of changed pages that stay in memory
_numbers = itertools.count(1)
_frame_pages: "weakref.WeakValueDictionary[tuple[int, int, int], FramePages]" = weakref.WeakValueDictionary()
_last_used: "deque[FramePages]" = deque(maxlen=4)  # kept for later views: a program may open a connection for each task


@dataclass(frozen=True, slots=True)
class FileState:
    """A state of the file, right after a commit."""

    frames: int  # how many frames of the WAL belong to the state
    salt: bytes  # the salt of the WAL, which changes each time the WAL restarts
    version: int  # a number that differs for each commit


def salt_of(wal: int) -> bytes:
    """Return the salt of a WAL, by its descriptor; empty if the file is empty."""
    return os.pread(wal, _SALT_BYTES, _SALT_AT)


class FramePages:
    """The page number in each frame of one WAL, for all views of this process on it: each header is read once.

    Threads may share the object, because ``_known`` is replaced as a whole. If two threads replace it at once, one of
    them loses the headers that it has read, and they are read again.
    """

    def __init__(self, page_bytes: int) -> None:
        self._frame_bytes = _FRAME_HEADER + page_bytes
        self._known = b"", array("I")  # the salt of the WAL, and the page numbers in its frames

    def between(self, wal: int, salt: bytes, first: int, end: int) -> "array[int]":
        """Return the page numbers in the frames from ``first`` to before ``end`` of the WAL with this salt.

        If the WAL was truncated, the numbers mean nothing, and ``Frames.page`` uses none of them.
        """
        of, pages = self._known
        if of != salt:
            pages = array("I")
        if len(pages) < end:
            step, start = self._frame_bytes, _WAL_HEADER
            places = range(start + len(pages) * step, start + end * step, step)
            heads = b"".join([os.pread(wal, 4, place) for place in places])
            found = array("I", heads.ljust(4 * len(places), b"\0"))  # a truncated WAL has fewer heads
            if sys.byteorder == "little":
                found.byteswap()
            self._known = salt, (pages := pages + found)
        return pages[first:end]


def frame_pages(wal: int, page_bytes: int) -> FramePages:
    """Return the ``FramePages`` of a WAL, which all descriptors of that file in this process share."""
    found = os.fstat(wal)
    pages = _frame_pages.setdefault((found.st_dev, found.st_ino, page_bytes), FramePages(page_bytes))
    if pages not in _last_used:
        _last_used.append(pages)
    return pages


class Frames:
    """The offsets of the newest version of each page in the WAL, as of a moment that only moves forward."""

    def __init__(self, wal: int, page_bytes: int) -> None:
        self._wal, self._page_bytes = wal, page_bytes
        self._frame_pages = frame_pages(wal, page_bytes)
        self._salt = b""
        self._count = 0
        self._places: dict[int, int] = {}  # page -> offset of its content

    def move(self, moment: FileState) -> None:
        """Move to a later moment, and find the pages that its new frames contain."""
        if moment.salt != self._salt or moment.frames < self._count:
            self._salt, self._count = moment.salt, 0
            self._places.clear()
        pages = self._frame_pages.between(self._wal, moment.salt, self._count, moment.frames)
        step = _FRAME_HEADER + self._page_bytes
        start = _WAL_HEADER + _FRAME_HEADER + self._count * step
        self._places.update(zip(pages, itertools.count(start, step)))  # if a page has several frames, the last counts
        self._count = moment.frames

    def page(self, number: int) -> bytes | None:
        """Return a page, or None if it is to be read from the database file."""
        place = self._places.get(number)
        if place is None:
            return None
        data = os.pread(self._wal, self._page_bytes, place)
        if len(data) == self._page_bytes and salt_of(self._wal) == self._salt:
            return data
        # A WAL restarts, with a new header first, only when all its frames are in the database file and no snapshot
        # needs them. Then the pages of this moment are in the database file, and stay there while a reader pins it.
        self._places.clear()
        return None


class WrittenPages:
    """The written pages: up to ``MEMORY_BYTES`` in memory, and the others in a temporary file without a name."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._memory: dict[int, bytes] = {}
        self._places: dict[int, int] = {}  # page -> offset in the file
        self._file: IO[bytes] | None = None
        self._end = 0

    def __contains__(self, number: int) -> bool:
        return number in self._memory or number in self._places

    @property
    def memory_bytes(self) -> int:
        """The bytes of written pages in memory."""
        return len(self._memory) * self._page_bytes

    @property
    def all_bytes(self) -> int:
        """The bytes of all written pages."""
        return self.memory_bytes + len(self._places) * self._page_bytes

    def get(self, number: int) -> bytes | None:
        """Return a page, or None if it was not written."""
        place = self._places.get(number)
        if place is None:
            return self._memory.get(number)
        assert self._file is not None
        return os.pread(self._file.fileno(), self._page_bytes, place)

    def put(self, number: int, page: bytes) -> None:
        """Store a page under its number, in place of an earlier version.

        Raises:
            apsw.FullError: the disk lacks room for the temporary file.
        """
        if number in self._memory or (number not in self._places and self.memory_bytes < MEMORY_BYTES):
            self._memory[number] = page
            return
        try:
            if self._file is None:
                import tempfile  # not at the top: ``tempfile`` imports the compressors, and is seldom needed

                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (open until ``clear``)
            place = self._places.get(number)
            if place is None:
                place = self._places[number] = self._end
                self._end += self._page_bytes
            if os.pwrite(self._file.fileno(), page, place) != len(page):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise apsw.FullError(f"the temporary file for a long statement: {error.strerror}") from error

    def cut(self, last: int) -> None:
        """Drop the pages after page ``last``."""
        for pages in (self._memory, self._places):
            for number in [number for number in pages if number > last]:
                del pages[number]

    def clear(self) -> None:
        """Drop all pages."""
        self._end = 0
        self._memory.clear()
        self._places.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


class OverlayFile(apsw.VFSFile):
    """The virtual file: the pages of a snapshot, and the pages written over them."""

    def __init__(self, base: str, name: Any, wal: int, page_bytes: int) -> None:
        super().__init__(base, name, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        self._frames = Frames(wal, page_bytes)
        self._page_bytes = page_bytes
        self._written = WrittenPages(page_bytes)
        self._pages = self._pages_now = 0
        self._version = b""
        self._commits = 0
        self.limit_bytes: float = float("inf")  # bound on written pages; beyond it, the disk counts as full
        self.was_full = False

    def move(self, moment: FileState, pages: int) -> None:
        """Show another moment, at which the database has ``pages`` pages; drop the written pages."""
        self._frames.move(moment)
        self._written.clear()
        self._pages = self._pages_now = pages
        self._version = struct.pack(">I", (moment.version + 1 + _FAR * self._commits) & 0xFFFFFFFF)

    def note_commit(self) -> None:
        """Count a COMMIT, which increments the version in page 1: no later moment may have the same version."""
        self._commits += 1

    @property
    def written_bytes(self) -> int:
        """The bytes of all written pages."""
        return self._written.all_bytes

    @property
    def memory_bytes(self) -> int:
        """The bytes of written pages in memory."""
        return self._written.memory_bytes

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802  (SQLite's name, like those below)
        """Read a page or a part of one."""
        number, start = divmod(offset, self._page_bytes)
        page = self._written.get(number + 1)
        if page is None:
            page = self._original(number + 1)
        return page if amount == len(page) else page[start : start + amount]

    def _original(self, number: int) -> bytes:
        if number > self._pages:
            return b""
        page = self._frames.page(number)
        if page is None:
            page = super().xRead(self._page_bytes, (number - 1) * self._page_bytes)
        if number == 1:  # SQLite decides by bytes 24 to 27 whether its cached pages are still valid
            size = struct.pack(">I", self._pages)
            version = self._version
            page = page[:18] + _ROLLBACK_JOURNAL + page[20:24] + version + size + page[32:92] + version + page[96:]
        return page

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        """Store a page."""
        number, start = divmod(offset, self._page_bytes)
        assert not start
        assert len(data) == self._page_bytes
        if self.written_bytes >= self.limit_bytes and number + 1 not in self._written:
            self.was_full = True
            raise apsw.FullError("the overlay may not become larger")
        self._written.put(number + 1, bytes(data))
        self._pages_now = max(self._pages_now, number + 1)

    def xFileSize(self) -> int:  # noqa: N802
        """Return the size in bytes."""
        return self._pages_now * self._page_bytes

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        """Drop the pages beyond the new size."""
        self._pages_now = newsize // self._page_bytes
        self._written.cut(self._pages_now)

    def xClose(self) -> None:  # noqa: N802
        """Drop the written pages, and close the database file."""
        self._written.clear()
        super().xClose()

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Do nothing: no content of the view has to be durable."""

    def xLock(self, level: int) -> None:  # noqa: N802
        """Do nothing: the file has a single user."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """Do nothing: the file has a single user."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        """Return False: the file has a single user."""
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:  # noqa: N802, ARG002
        """Return False: no file control is known."""
        return False

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        """Return the flag that a write, even one cut off by a power failure, changes no bytes outside of its range."""
        return int(apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE)


class Overlay(apsw.VFS):
    """The VFS that opens the virtual file for one connection; its temporary files are ordinary files.

    Args:
        wal: descriptor of the WAL.
    """

    def __init__(self, path: str, wal: int, page_bytes: int) -> None:
        self._own = f"bedrockish-overlay-{next(_numbers)}"
        super().__init__(self._own, "")
        self._path, self._wal, self._page_bytes = path, wal, page_bytes
        self.file: OverlayFile | None = None

    def connect(self, start: Callable[[OverlayFile], None]) -> apsw.Connection:
        """Return the connection; ``start`` moves the file to a moment before anything is read."""
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        db = ModuleConnection(self._path, flags=flags, vfs=self._own, statementcachesize=256)
        try:
            assert self.file is not None
            start(self.file)
            db.pragma("journal_mode", "delete")
            db.pragma("synchronous", "off")
        except BaseException:
            db.close()
            raise
        return db

    def xOpen(self, name: Any, flags: Any) -> Any:  # noqa: N802
        """Open the virtual file, or a temporary file."""
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            self.file = OverlayFile("", name, self._wal, self._page_bytes)
            flags[1] = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_MAIN_DB
            return self.file
        if flags[0] & apsw.SQLITE_OPEN_MAIN_JOURNAL:  # keep the old pages in a nameless file, not in memory
            flags[0] = _UNNAMED
            return apsw.VFSFile("", None, flags)
        return super().xOpen(name, flags)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        """Return False for the view's journal and WAL, which do not exist."""
        return not pathname.startswith(self._path) and super().xAccess(pathname, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        """Delete a file, but never one whose name begins with that of the database file."""
        if not filename.startswith(self._path):
            super().xDelete(filename, syncdir)

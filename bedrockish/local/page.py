"""The page that a node publishes next to its file: the last durable batch, and whether programs may read the file now.

The page is the file ``A.sqlite-node`` with 4096 bytes, which programs of the machine map and read. docs/wire.md has the
format. A checksum detects a torn copy, and nodes of earlier releases make a sequence number odd while they write. If a
reader finds an odd number or a wrong checksum, it reads again; if that does not help, the file counts as not served.

The node does not map the page: if another program truncated the file, a write to the map would kill the node.

Before the node closes, exchanges or repairs its file, it raises ``generation`` on the page. So a reader that has opened
the file, and then finds the generation unchanged, has opened the file that the node serves.
"""

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from bedrockish.common.machine import is_mounted_alone
from bedrockish.common.pauses import monotonic
from bedrockish.errors import ConfigError, UnavailableError

SUFFIX, SOCKET_SUFFIX = "-node", "-sock"
SIZE = 4096
MAGIC = b"bdrknod1"
SERVING, READING, REFUSING, STOPPED = 1, 2, 3, 4
MODES = {SERVING: "serving", READING: "only reading", REFUSING: "not serving", STOPPED: "stopped"}
BATCHES = 64  # the page has a record of each of this many last batches
# A node without a heartbeat for this time counts as gone; a client gives up a link after the same silence.
SILENT_NS = 4_000_000_000
TORN_TRIES, TORN_S = 200, 0.0001
_HEAD = Struct("<8sQI")  # magic, sequence, checksum of the facts
_FACTS = Struct("<I16sIIQQQQQQQI")
_FACTS_AT = _HEAD.size
_FACTS_END = _FACTS_AT + _FACTS.size
_BATCH = Struct("<QI8sQI")  # batch, frames, salts, schema, checksum of these
_BATCHES_AT = 128
_BOUND = Struct("<QI")  # the most bytes of rows that one transaction may change, checksum of this number
_BOUND_AT = _BATCHES_AT + BATCHES * _BATCH.size
_SEQUENCE = Struct("<Q")
_SEQUENCE_AT = 8
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs", "ocfs2"}
    | {"gfs2", "beegfs", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs"}
)


class PublishedFacts(NamedTuple):
    """A node's published facts about itself and its file."""

    mode: int  # ``SERVING``, ``READING``, ``REFUSING`` or ``STOPPED``
    boot: bytes  # the id of the kernel's boot; a page of an earlier boot is stale
    process: int  # id of the node's process
    generation: int  # a number that changes whenever readers must open the file again
    process_start: int  # when the process began, in the kernel's ticks: a later process may have the same id
    device: int  # device number of the file
    inode: int  # inode number of the file
    written: int  # the last batch in the WAL
    durable: int  # the last batch on the disk
    heartbeat: int  # when the node last ran, in nanoseconds since the kernel's boot, including suspended time
    safe: int  # the clock up to which no more transaction can commit
    is_log_ending: int  # 1 if the write-ahead log is about to restart, which a held snapshot prevents; else 0

    @property
    def is_running(self) -> bool:
        """Whether the node's process runs, even if it does not serve the file."""
        return self.process_start != 0 and self.process_start == _process_since(self.process)

    @property
    def has_ended(self) -> bool:
        """Whether the node's process runs no more, as far as the system tells; the page of a killed node lacks that."""
        return self.process_start != 0 and not self.is_running

    @property
    def why_not(self) -> str:
        """Why programs may not read the file now; empty if they may."""
        if self.mode == STOPPED and self.is_running:
            return (
                f"its node, process {self.process}, runs and does not serve it now: it restarts or waits, and "
                "'bedrockish status' with its URL shows why"
            )
        if self.mode > READING:
            return f"its node is {MODES.get(self.mode, 'of another release')}"
        if now_ns() - self.heartbeat > SILENT_NS:
            return f"its node, process {self.process}, has not run for {(now_ns() - self.heartbeat) / 1e9:.0f} s"
        return ""


class PublishedBatch(NamedTuple):
    """A batch in the WAL, with its number of frames as published, the WAL's salts, and the version of the schema."""

    number: int
    frames: int
    salts: bytes
    schema: int


def now_ns() -> int:
    """Return the nanoseconds since the kernel's boot, including suspended time."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> bytes:
    """Return the id of the kernel's boot."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", ""))


def page_path(database: str | os.PathLike[str]) -> str:
    """Return the path of the page of a node's file."""
    return os.fspath(database) + SUFFIX


def socket_path(database: str | os.PathLike[str]) -> str:
    """Return the path of the socket on which a file's node listens for programs of its machine."""
    return os.fspath(database) + SOCKET_SUFFIX


class Page:
    """A node's own page. Any thread may write it.

    Args:
        database: path of the node's file, which is open.
        batches: the last durable batch.
        changes_bytes: the most bytes of rows, before and after, that one transaction may change.
        mode: permissions of the page's file.

    Raises:
        ConfigError: the page cannot be created.
    """

    def __init__(self, database: str, batches: int, changes_bytes: int, mode: int = 0o600) -> None:
        self._lock = threading.Lock()
        self._database, self._path, self._permissions = database, page_path(database), mode
        try:
            # An old page is written in place: programs that have mapped it see the facts of the node's next process.
            self._file, self._inode = _opened(self._path, mode)
            self._bytes = bytearray(os.pread(self._file, SIZE, 0).ljust(SIZE, b"\0"))
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be written: {error.strerror}; check the node's directory"
            ) from error
        before = _facts_in(self._bytes)
        self._sequence = _SEQUENCE.unpack_from(self._bytes, _SEQUENCE_AT)[0] & ~1
        found = os.stat(database)
        generation = 1 if before is None else (before.generation + 1) & 0xFFFFFFFF
        self._facts = PublishedFacts(
            REFUSING,
            boot_id(),
            os.getpid(),
            generation,
            _process_since(os.getpid()),
            found.st_dev,
            found.st_ino,
            batches,
            batches,
            now_ns(),
            0,
            0,
        )
        with self._lock:
            bound = changes_bytes.to_bytes(8, "little")
            self._write(_BATCHES_AT, bytes(BATCHES * _BATCH.size) + bound + crc32(bound).to_bytes(4, "little"))
            self._write_facts()

    @property
    def mode(self) -> int:
        """The node's published mode."""
        return self._facts.mode

    def wrote(self, number: int, frames: int, salts: bytes, schema: int, is_log_ending: bool = False) -> None:
        """Publish that a batch is in the WAL, the WAL's number of frames, and whether the WAL is about to restart."""
        entry = _BATCH.pack(number, frames, salts, schema, 0)[:-4]
        place = _BATCHES_AT + number % BATCHES * _BATCH.size
        with self._lock:
            self._write(place, entry + crc32(entry).to_bytes(4, "little"))
            self._facts = self._facts._replace(written=number, is_log_ending=int(is_log_ending))
            self._write_facts()

    def synced(self, number: int) -> None:
        """Publish that all batches up to this number are on the disk."""
        with self._lock:
            if number > self._facts.durable:
                self._facts = self._facts._replace(durable=number)
                self._write_facts()

    def beat(self, mode: int, safe: int) -> None:
        """Publish the node's mode and heartbeat; a change to a mode without reads begins a new generation."""
        with self._lock:
            generation = self._facts.generation
            if mode != self._facts.mode and mode > READING:
                generation = (generation + 1) & 0xFFFFFFFF
            self._facts = self._facts._replace(mode=mode, heartbeat=now_ns(), safe=safe, generation=generation)
            self._write_facts()

    @property
    def has_its_file(self) -> bool:
        """Whether the file at the node's path is the node's; if not, the page there belongs to another node."""
        try:
            found = os.stat(self._database)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self._facts.device, self._facts.inode)

    @property
    def is_in_place(self) -> bool:
        """Whether the whole file of the page is still at its path: another program may have removed or truncated it."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_size == SIZE

    def put_back(self) -> None:
        """Write a new file to the page's path, from which the page was removed or replaced.

        Programs that have mapped the old page see on it that the node has stopped, and open the file again.

        Raises:
            OSError: the file cannot be written.
        """
        made = self._path + "~"
        with suppress(FileNotFoundError):
            os.unlink(made)
        new, inode = _opened(made, self._permissions)
        with self._lock:
            if self._file < 0:
                os.close(new)
                os.unlink(made)
                return
            facts, old = self._facts._replace(generation=(self._facts.generation + 1) & 0xFFFFFFFF), self._file
            self._file, self._facts = new, facts
            self._write_facts()
            self._write(0, bytes(self._bytes))
            os.replace(made, self._path)  # atomic, so that no program sees half of the page
            self._file, self._facts = old, facts._replace(mode=STOPPED)
            self._write_facts()
            os.close(old)
            self._file, self._facts, self._inode = new, facts, inode
            self._write_facts()

    def close(self) -> None:
        """Publish that the node has stopped, before its file is closed or exchanged; a second close does nothing."""
        if self._file >= 0:
            self.beat(STOPPED, self._facts.safe)
            with self._lock:
                os.close(self._file)
                self._file = -1

    def _write_facts(self) -> None:
        facts = _FACTS.pack(*self._facts)
        self._sequence += 2
        self._write(0, _HEAD.pack(MAGIC, self._sequence, crc32(facts)) + facts)

    def _write(self, place: int, data: bytes) -> None:
        """Write to the page, unless it is closed; ignore errors, such as a full disk after the page was truncated."""
        self._bytes[place : place + len(data)] = data
        if self._file >= 0:
            with suppress(OSError):
                os.pwrite(self._file, data, place)


class Published:
    """The page of a node of this machine, for the programs that read it. Used by one thread at a time.

    Args:
        database: path of the node's file.

    Raises:
        UnavailableError: no node of this machine serves the file.
    """

    def __init__(self, database: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.database, self._pause = database, pause
        self._last_bytes = b""
        self._facts = PublishedFacts(STOPPED, b"", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        path = page_path(database)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if os.fstat(file).st_size < SIZE:
                    raise UnavailableError(_unserved(database, f"{path} is not a node's page"))
                self._map = mmap.mmap(file, SIZE, access=mmap.ACCESS_READ)
                self._inode = os.fstat(file).st_ino
            finally:
                os.close(file)
        except FileNotFoundError as error:
            raise UnavailableError(_unserved(database, "no node has published a page next to it")) from error
        except OSError as error:
            why = f"{path} cannot be read: {error.strerror}"
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise UnavailableError(
                    _unserved(database, why, "raise the limit of files of the program, or ")
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM):
                raise UnavailableError(
                    _unserved(database, why, "run the program as the user of the node, or ")
                ) from error
            raise UnavailableError(_unserved(database, why)) from error

    def facts(self) -> PublishedFacts:
        """Return the facts on the page now.

        Raises:
            UnavailableError: the page stays torn, because its node was stopped in a write, or the file is not a page.
        """
        # The usual case: a node writes its page twice a second and with each batch.
        if self._bytes(0, _FACTS_END) != self._last_bytes:
            self._last_bytes, self._facts = self._read()
        return self._facts

    def facts_for_any_thread(self) -> PublishedFacts:
        """Return the facts on the page now, as ``facts`` does, without the facts that ``facts`` keeps.

        If it replaced those during another thread's read, that read could take an older snapshot for a new one.
        """
        return self._read()[1]

    def _read(self) -> tuple[bytes, PublishedFacts]:
        for _ in range(TORN_TRIES):
            data = self._bytes(0, _FACTS_END)
            magic, sequence, check = _HEAD.unpack_from(data)
            if not sequence & 1 and magic == MAGIC and crc32(data[_FACTS_AT:]) == check:
                return data, PublishedFacts._make(_FACTS.unpack_from(data, _FACTS_AT))
            self._pause(TORN_S)
        raise UnavailableError(_unserved(self.database, f"{page_path(self.database)} cannot be read"))

    def _bytes(self, begin: int, end: int) -> bytes:
        try:
            return self._map[begin:end]
        except ValueError as error:  # another thread has closed the session, or opened the file of a newer process
            raise UnavailableError(_unserved(self.database, "its page was closed; try again")) from error

    @property
    def last_bytes(self) -> bytes:
        """The bytes of the page at the last call of ``facts``."""
        return self._last_bytes

    def still_has(self, last_bytes: bytes) -> bool:
        """Return whether the page still has these bytes."""
        return self._bytes(0, _FACTS_END) == last_bytes

    def wants_release(self, generation: int) -> bool:
        """Return whether to release a generation's snapshots: they delay the node, or its file is another one now.

        Any thread may call this, because it does not use what ``facts`` has stored. If the page is torn, the answer may
        be wrong.
        """
        try:
            facts = PublishedFacts._make(_FACTS.unpack_from(self._bytes(0, _FACTS_END), _FACTS_AT))
        except UnavailableError:  # the page was closed, because another node process serves a file now
            return True
        return bool(facts.is_log_ending) or facts.mode > READING or facts.generation != generation

    def batch(self, number: int) -> PublishedBatch | None:
        """Return the page's record of a batch; None if the batch is not among the last ``BATCHES``."""
        place = _BATCHES_AT + number % BATCHES * _BATCH.size
        entry = self._bytes(place, place + _BATCH.size)
        found, frames, salts, schema, check = _BATCH.unpack(entry)
        if found != number or crc32(entry[:-4]) != check:
            return None
        return PublishedBatch(found, frames, salts, schema)

    def changes_bytes(self) -> int | None:
        """Return the most bytes of rows that one transaction may change; None on the page of an older node."""
        entry = self._bytes(_BOUND_AT, _BOUND_AT + _BOUND.size)
        most, check = _BOUND.unpack(entry)
        return int(most) if most and crc32(entry[:-4]) == check else None

    def check(self, facts: PublishedFacts) -> None:
        """Check that a node of this machine serves the file at this path now.

        Raises:
            UnavailableError: the page belongs to another machine or file, or the node does not serve the file now.
        """
        try:
            boot = boot_id()
        except OSError as error:
            raise UnavailableError(
                _unserved(self.database, f"the boot's id cannot be read: {error.strerror}")
            ) from error
        if facts.boot != boot:
            raise UnavailableError(
                _unserved(self.database, "its page was written on another machine, or before the last boot of this one")
            )
        if why := facts.why_not:
            raise UnavailableError(
                _unserved(self.database, why, "") if facts.is_running else _unserved(self.database, why)
            )
        try:
            found, page = os.stat(self.database), os.stat(page_path(self.database))
        except OSError as error:
            raise UnavailableError(_unserved(self.database, error.strerror or str(error))) from error
        if (found.st_dev, found.st_ino) != (facts.device, facts.inode) or page.st_ino != self._inode:
            raise UnavailableError(
                _unserved(self.database, "the file is a copy, or was exchanged: its page names another file")
            )
        if _is_mounted_alone(self.database, int(monotonic())):
            raise UnavailableError(
                _unserved(self.database, "it is a mount of its own, without its log", "mount the node's folder, or ")
            )
        if (kind := file_system(found.st_dev)) in NETWORK_FILE_SYSTEMS:
            raise UnavailableError(
                _unserved(self.database, f"it is on the network file system {kind}, where processes share no memory")
            )

    def close(self) -> None:
        """Unmap the page."""
        self._map.close()


def _opened(path: str, mode: int) -> tuple[int, int]:
    """Open the file of a node's page, which is created if it does not exist; return its descriptor and its inode.

    The file's blocks are allocated at once: on a full disk, the page could not be written later.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(file, mode)
        if os.fstat(file).st_size != SIZE:
            os.ftruncate(file, SIZE)
        os.posix_fallocate(file, 0, SIZE)
        return file, os.fstat(file).st_ino
    except BaseException:
        os.close(file)
        raise


def _facts_in(page: bytearray) -> PublishedFacts | None:
    data = page[:_FACTS_END]
    magic, _, check = _HEAD.unpack_from(data)
    if magic != MAGIC or crc32(data[_FACTS_AT:]) != check:
        return None
    return PublishedFacts._make(_FACTS.unpack_from(data, _FACTS_AT))


def _unserved(database: str, why: str, advice: str = "start its node with 'bedrockish serve', or ") -> str:
    return (
        f"{database} cannot be opened as a node's file: {why}; {advice}connect to a URL such as "
        "bedrockish://localhost:7373"
    )


def _process_since(process: int) -> int:
    """Return when a process began, in ticks since the kernel's boot; 0 if the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


@lru_cache(maxsize=16)
def _is_mounted_alone(database: str, _second: int) -> bool:
    """Return whether a file is a mount of its own; looked up once a second, because the list of mounts may be long."""
    return is_mounted_alone(database)


def file_system(device: int) -> str:
    """Return the kind of the file system on a device, looked up once a second; empty if the system does not tell."""
    return _file_system(device, int(monotonic()))


@lru_cache(maxsize=16)
def _file_system(device: int, _second: int) -> str:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and fields[2] == wanted and "-" in fields:
            return fields[fields.index("-") + 1]
    return ""

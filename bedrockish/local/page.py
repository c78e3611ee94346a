"""The page that a node publishes next to its file: which batch is durable, and whether the file may be read now.

The node maps ``A.sqlite-node``, 4096 bytes, and writes it; programs of the machine map it and read. docs/wire.md has
the format. A sequence number is odd while the node writes, and a checksum tells a copy that was read halfway: a reader
that meets either reads again, and treats a page that stays so as that of a node that does not serve.

The node writes the page before it closes, exchanges or repairs its file, and raises ``generation`` with it: a reader
that has opened the file under one generation, and finds the page unchanged after that, has opened the file that the
node serves.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from bedrockish.errors import ConfigError, UnavailableError

SUFFIX, SOCKET_SUFFIX = "-node", "-sock"
SIZE = 4096
MAGIC = b"bdrknod1"
SERVING, READING, REFUSING, STOPPED = 1, 2, 3, 4
MODES = {SERVING: "serving", READING: "only reading", REFUSING: "not serving", STOPPED: "stopped"}
BATCHES = 64  # the last ones, of which the page tells how much of the WAL belongs to them
SILENT_NS = 4_000_000_000  # without a heartbeat for so long, a node counts as gone, as on a link
TORN_TRIES, TORN_S = 200, 0.0001
_HEAD = Struct("<8sQI")  # magic, sequence, checksum of the facts
_FACTS = Struct("<I16sIIQQQQQQQI")
_FACTS_AT = _HEAD.size
_FACTS_END = _FACTS_AT + _FACTS.size
_BATCH = Struct("<QI8sQI")  # batch, frames, salts, schema, checksum of these
_BATCHES_AT = 128
_SEQUENCE = Struct("<Q")
_SEQUENCE_AT = 8
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs", "ocfs2"}
    | {"gfs2", "beegfs", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs"}
)


class Facts(NamedTuple):
    """A node's statement about itself and its file.

    Attributes:
        mode: ``SERVING``, ``READING``, ``REFUSING`` or ``STOPPED``.
        boot: the id of the kernel's start: shared memory ends with it.
        process: id of the node's process.
        generation: another number whenever readers have to open the file again.
        since: when the process began, in ticks of the kernel's, so that another process of that id is told apart.
        device: of the file.
        inode: of the file.
        written: the last batch that is in the WAL.
        durable: the last batch that is on the disk.
        heartbeat: when the node last ran, in nanoseconds since the kernel's start, time asleep included.
        safe: the clock up to which nothing can appear any more.
        is_log_ending: 1 if the write-ahead log is about to start over, which a held snapshot prevents; else 0.
    """

    mode: int
    boot: bytes
    process: int
    generation: int
    since: int
    device: int
    inode: int
    written: int
    durable: int
    heartbeat: int
    safe: int
    is_log_ending: int

    @property
    def why_not(self) -> str:
        """Why programs may not read the file now; empty if they may."""
        if self.mode > READING:
            return f"its node is {MODES.get(self.mode, 'of another release')}"
        if now_ns() - self.heartbeat > SILENT_NS:
            return f"its node, process {self.process}, has not run for {(now_ns() - self.heartbeat) / 1e9:.0f} s"
        return ""


class Batch(NamedTuple):
    """A batch in the WAL: how many frames belong to it, the WAL's salts, and the version of the schema."""

    number: int
    frames: int
    salts: bytes
    schema: int


def now_ns() -> int:
    """Return nanoseconds since the kernel's start, time asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_id() -> bytes:
    """Return the id of the kernel's start."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", ""))


def page_path(database: str | os.PathLike[str]) -> str:
    """Return where the page of a node's file is."""
    return os.fspath(database) + SUFFIX


def socket_path(database: str | os.PathLike[str]) -> str:
    """Return where the node of a file listens for programs of its machine."""
    return os.fspath(database) + SOCKET_SUFFIX


class Page:
    """A node's own page. Any thread may write it.

    Args:
        database: the node's file, which is open.
        batches: the last batch that is durable.
        mode: of the page's file: who may read it.

    Raises:
        ConfigError: the page cannot be created.
    """

    def __init__(self, database: str, batches: int, mode: int = 0o600) -> None:
        self._lock = threading.Lock()
        path = page_path(database)
        try:
            # Written in place, never exchanged: programs that have mapped it see the next process of the node in it.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
            try:
                os.fchmod(file, mode)
                if os.fstat(file).st_size != SIZE:
                    os.ftruncate(file, SIZE)
                self._map = mmap.mmap(file, SIZE)
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}; check the node's directory") from error
        before = _facts_in(self._map)
        self._sequence = _SEQUENCE.unpack_from(self._map, _SEQUENCE_AT)[0] & ~1
        found = os.stat(database)
        generation = 1 if before is None else (before.generation + 1) & 0xFFFFFFFF
        self._facts = Facts(
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
            self._map[_BATCHES_AT : _BATCHES_AT + BATCHES * _BATCH.size] = bytes(BATCHES * _BATCH.size)
            self._put()

    @property
    def mode(self) -> int:
        """The node's mode, as it is published."""
        return self._facts.mode

    def wrote(self, number: int, frames: int, salts: bytes, schema: int, is_log_ending: bool = False) -> None:
        """Tell that a batch is in the WAL, how many frames belong to it, and whether the WAL is to start over."""
        entry = _BATCH.pack(number, frames, salts, schema, 0)[:-4]
        place = _BATCHES_AT + number % BATCHES * _BATCH.size
        with self._lock:
            if self._map.closed:
                return
            self._map[place : place + _BATCH.size] = entry + crc32(entry).to_bytes(4, "little")
            self._facts = self._facts._replace(written=number, is_log_ending=int(is_log_ending))
            self._put()

    def synced(self, number: int) -> None:
        """Tell that all batches up to this one are on the disk."""
        with self._lock:
            if number > self._facts.durable:
                self._facts = self._facts._replace(durable=number)
                self._put()

    def beat(self, mode: int, safe: int) -> None:
        """Publish the node's mode and heartbeat; a mode in which the file is not read ends the generation."""
        with self._lock:
            generation = self._facts.generation
            if mode != self._facts.mode and mode > READING:
                generation = (generation + 1) & 0xFFFFFFFF
            self._facts = self._facts._replace(mode=mode, heartbeat=now_ns(), safe=safe, generation=generation)
            self._put()

    def close(self) -> None:
        """Tell that the node is gone: before its file is closed, or exchanged for another. Closing twice is fine."""
        if not self._map.closed:
            self.beat(STOPPED, self._facts.safe)
            self._map.close()

    def _put(self) -> None:
        """Write the facts; a reader that looks in between finds an odd number."""
        if self._map.closed:
            return
        facts = _FACTS.pack(*self._facts)
        self._sequence += 1
        self._map[_SEQUENCE_AT : _SEQUENCE_AT + 8] = _SEQUENCE.pack(self._sequence)
        self._map[_FACTS_AT - 4 : _FACTS_END] = crc32(facts).to_bytes(4, "little") + facts
        self._sequence += 1
        self._map[0:16] = MAGIC + _SEQUENCE.pack(self._sequence)


class Published:
    """The page of a node of this machine, as a program reads it. One thread at a time may.

    Args:
        database: the node's file.

    Raises:
        UnavailableError: no node serves the file here.
    """

    def __init__(self, database: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.database, self._pause = database, pause
        self._said = b""
        self._facts = Facts(STOPPED, b"", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
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
            raise UnavailableError(_unserved(database, f"{path} cannot be read: {error.strerror}")) from error

    def facts(self) -> Facts:
        """Return what the node says now.

        Raises:
            UnavailableError: the page cannot be read: its node was stopped while it wrote, or it is another
                file.
        """
        page = self._map
        for _ in range(TORN_TRIES):
            data = page[:_FACTS_END]
            if data == self._said:  # as nearly always: a node writes it twice a second, and with each batch
                return self._facts
            magic, sequence, check = _HEAD.unpack_from(data)
            if not sequence & 1 and magic == MAGIC and crc32(data[_FACTS_AT:]) == check:
                self._facts, self._said = Facts._make(_FACTS.unpack_from(data, _FACTS_AT)), data
                return self._facts
            self._pause(TORN_S)
        raise UnavailableError(_unserved(self.database, f"{page_path(self.database)} cannot be read"))

    @property
    def said(self) -> bytes:
        """The bytes of the last ``facts``."""
        return self._said

    def says(self, said: bytes) -> bool:
        """Return whether the page still has these bytes."""
        return self._map[:_FACTS_END] == said

    def batch(self, number: int) -> Batch | None:
        """Return what the page says of a batch; None if the batch is not among the last ones."""
        place = _BATCHES_AT + number % BATCHES * _BATCH.size
        entry = self._map[place : place + _BATCH.size]
        found, frames, salts, schema, check = _BATCH.unpack(entry)
        if found != number or crc32(entry[:-4]) != check:
            return None
        return Batch(found, frames, salts, schema)

    def check(self, facts: Facts) -> None:
        """Make sure that the file of this path is the one that the node serves, on this machine.

        Raises:
            UnavailableError: it is not, or the node does not serve it now.
        """
        if facts.boot != boot_id():
            raise UnavailableError(
                _unserved(self.database, "its page was written on another machine, or before a boot")
            )
        if why := facts.why_not:
            raise UnavailableError(_unserved(self.database, why))
        try:
            found, page = os.stat(self.database), os.stat(page_path(self.database))
        except OSError as error:
            raise UnavailableError(_unserved(self.database, error.strerror or str(error))) from error
        if (found.st_dev, found.st_ino) != (facts.device, facts.inode) or page.st_ino != self._inode:
            raise UnavailableError(
                _unserved(self.database, "the file is a copy, or was exchanged: its page names another file")
            )
        if (kind := file_system(found.st_dev)) in NETWORK_FILE_SYSTEMS:
            raise UnavailableError(
                _unserved(self.database, f"it is on the network file system {kind}, where processes share no memory")
            )

    def close(self) -> None:
        """Unmap the page."""
        self._map.close()


def _facts_in(page: mmap.mmap) -> Facts | None:
    data = page[:_FACTS_END]
    magic, _, check = _HEAD.unpack_from(data)
    if magic != MAGIC or crc32(data[_FACTS_AT:]) != check:
        return None
    return Facts._make(_FACTS.unpack_from(data, _FACTS_AT))


def _unserved(database: str, why: str) -> str:
    return (
        f"{database} cannot be opened as a node's file: {why}; start its node with 'bedrockish serve', or connect to a "
        "URL such as bedrockish://localhost:7373"
    )


def _process_since(process: int) -> int:
    """Return when a process began, in ticks since the kernel's start; 0 where the system does not tell it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def file_system(device: int) -> str:
    """Return the kind of the file system on a device; empty where the system does not tell it."""
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

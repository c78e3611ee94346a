"""A continuous backup in a directory: snapshots, and between them the journal as it becomes safe.

``snapshot-000002.db`` is a copy of a node's file, ``journal-000002.db`` the segment that is written from then on. Each
segment begins where the segment before it ends, whichever nodes they were read from, so any snapshot can be continued
with the segments after it. Each write is synced before it counts, so a run after a kill continues at the end of the
last segment.
"""

import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import trio

from bedrockish.api.requests import STALE
from bedrockish.api.url import Address
from bedrockish.client.trio_client import Client, open_client
from bedrockish.common.durable_files import make_folder
from bedrockish.errors import BedrockishError, ConfigError, DamagedError, ResultLostError, UnavailableError
from bedrockish.node.cluster.join import back_up
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import JournalError, TargetUnwritableError
from bedrockish_journal.model.vector import covers, merge
from bedrockish_journal.storage.file_claims import VOIDS
from bedrockish_journal.storage.row import hashed_entry
from bedrockish_journal.storage.segment import Heads, Segment, create, ends
from bedrockish_journal.storage.store import reading
from bedrockish_journal.verify.beginning import safe_clock
from bedrockish_journal.verify.restore import SEGMENTS, SNAPSHOTS, extent

POLL_S = 1.0
RETRY_S = 60.0  # pause before another attempt to make a snapshot
PAGE_TICKS = 1_000
TRANSACTIONS_MAX = 500  # transactions that are fetched at a time
# The clock up to which entries are fetched, at most safe time, and the last tick of each timeline up to this clock.
_NEXT = """
WITH safe(clock) AS (SELECT coalesce((SELECT value FROM bedrockish_meta WHERE key = 'safe'), 0)),
  upto(clock) AS (SELECT min(safe.clock, coalesce((SELECT clock FROM bedrockish_journal
    WHERE repeat = 0 AND clock > ?1 ORDER BY clock LIMIT 1 OFFSET ?2), safe.clock)) FROM safe)
SELECT leader, max(tick) FROM bedrockish_journal
  WHERE repeat = 0 AND clock > ?1 AND clock <= (SELECT clock FROM upto) GROUP BY leader
UNION ALL SELECT '', clock FROM upto
"""
_BOOTSTRAP = "SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'"
_REMOVED = "SELECT tick FROM bedrockish_pruned WHERE leader = ?"
_ENTRIES = """SELECT prev, label, body, hash FROM bedrockish_journal
  WHERE leader = ?1 AND tick BETWEEN ?2 AND ?3 ORDER BY tick"""


class GapError(JournalError):
    """Raised when the nodes no longer have the next entries: their journals were shortened. A snapshot is due."""


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """The parameters of a continuous backup."""

    every_s: float  # how old the last snapshot may become before another one is made, in seconds
    keep_s: float | None  # how far back a restore must be able to go, in seconds; None for ever
    once: bool = False  # whether to end after catching up to safe time


def numbered(folder: Path, pattern: str) -> list[Path]:
    """Return the snapshots or the segments in a directory, oldest first."""
    return sorted(folder.glob(pattern))


async def follow(url: str, folder: Path, plan: BackupPlan, say: Callable[[str], None]) -> None:
    """Update a directory up to safe time, once or for ever.

    Raises:
        ConfigError: the directory cannot be written, another program writes it, or it is of another cluster.
        DamagedError: the cluster's history differs from that of the directory.
        BedrockishError: no node can be asked; the directory stays as it is, and the next run continues.
    """
    with _locked(folder) as check_path:
        try:
            async with open_client(url) as client, _opened(url, folder, plan, say) as backup:
                await _run(client, backup, plan, say, check_path)
        except TargetUnwritableError as error:
            raise ConfigError(str(error)) from error
        except JournalError as error:
            raise DamagedError(f"{folder}: {error}; begin a new directory, and keep this one") from error


async def _run(
    client: Client, backup: "_Backup", plan: BackupPlan, say: Callable[[str], None], check_path: Callable[[], None]
) -> None:
    while True:
        check_path()
        try:
            more = await backup.step(client)
        except BedrockishError as error:
            if plan.once or not error.retry:
                raise
            say(f"trying again: {error.message}")
            more = False
        if plan.once and not more:
            check_path()
            if backup.late is not None:
                raise backup.late
            return
        await trio.sleep(0 if more else POLL_S)


@contextmanager
def _locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Make the directory, and lock it against other writers; yield a check that the directory is still there."""
    try:
        make_folder(folder)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield partial(_check_path, folder, lock)
    except BlockingIOError as error:
        raise ConfigError(
            f"another process continues the backup in {folder}; end that process, or name another directory"
        ) from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; check the disk") from error


def _check_path(folder: Path, lock: IO[str]) -> None:
    """Check that the locked directory is still at its path: writes to the files of a removed directory succeed."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(lock.fileno()), (folder / "lock").stat()):
            return
    raise ConfigError(
        f"{folder} was removed or exchanged while it was written, and may lack the last commits; bring it back, and "
        "run this command again"
    )


@asynccontextmanager
async def _opened(url: str, folder: Path, plan: BackupPlan, say: Callable[[str], None]) -> AsyncIterator["_Backup"]:
    backup = _Backup(url, folder, plan, say)
    await backup.open()
    try:
        yield backup
    finally:
        backup.close()


class _Backup:
    """The continuous backup in a directory, and the segment to which it appends."""

    def __init__(self, url: str, folder: Path, plan: BackupPlan, say: Callable[[str], None]) -> None:
        self._url, self._folder, self._plan, self._say = url, folder, plan, say
        self._segment: Segment | None = None
        self.late: BedrockishError | None = None  # why the last attempt to renew the snapshot failed, or None
        self._try_at = 0.0

    async def open(self) -> None:
        """Continue where the last run ended."""
        for part in self._folder.glob("*.part*"):
            part.unlink()
        snapshots, segments = numbered(self._folder, SNAPSHOTS), numbered(self._folder, SEGMENTS)
        if segments:
            self._segment = Segment(segments[-1])
        if not snapshots:
            await self._snapshot()
        elif not segments or segments[-1].name[-9:] < snapshots[-1].name[-9:]:  # a killed run made no new segment
            self._begin(snapshots[-1], leaves_gap=False)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()

    async def step(self, client: Client) -> bool:
        """Append the entries that have become safe; return whether more may be ready now."""
        try:
            if time.monotonic() >= self._try_at and self._is_due():
                await self._renew(client)
            return await self._append(client)
        except GapError as error:
            self._say(f"{error}; making a snapshot")
            await self._snapshot(client.addresses, leaves_gap=True)
            return True

    async def _renew(self, client: Client) -> None:
        """Make the snapshot that is due; if that fails, log why, continue the last segment, and try again later."""
        try:
            path = await self._copy(client.addresses)
        except BedrockishError as error:
            self.late, self._try_at = error, time.monotonic() + RETRY_S
            self._say(f"no new snapshot, and trying again in {RETRY_S:g} s: {error.message}")
        else:
            self.late = None
            self._continue_after(path)

    def _is_due(self) -> bool:
        newest = numbered(self._folder, SNAPSHOTS)[-1:]
        return not newest or time.time() - newest[0].stat().st_mtime > self._plan.every_s

    async def _snapshot(self, others: Iterable[Address] = (), *, leaves_gap: bool = False) -> None:
        self._continue_after(await self._copy(others), leaves_gap=leaves_gap)

    async def _copy(self, others: Iterable[Address]) -> Path:
        """Make a snapshot with a number above those of all files, and return its path."""
        found = [*numbered(self._folder, SNAPSHOTS), *numbered(self._folder, SEGMENTS)]
        number = 1 + max((int(path.stem[-6:]) for path in found), default=0)
        path = self._folder / f"snapshot-{number:06}.db"
        size = await back_up(self._url, path, others)
        self._say(f"{path.name}: {size} bytes")
        return path

    def _continue_after(self, snapshot: Path, *, leaves_gap: bool = False) -> None:
        """Begin a new segment, and remove the files that are too old."""
        self._begin(snapshot, leaves_gap=leaves_gap)
        if self._plan.keep_s is not None:
            for old in too_old(self._folder, time.time() - self._plan.keep_s):
                old.unlink()
                self._say(f"{old.name} is too old and was removed")

    def _begin(self, snapshot: Path, *, leaves_gap: bool) -> None:
        """Create the segment that belongs to a snapshot; it begins where the last segment ends.

        With ``leaves_gap``, nodes have removed entries after the last segment, and the new segment begins where the
        snapshot ends.
        """
        with reading(snapshot) as db:
            heads: Heads = ends(db)
            safe = safe_clock(db)
            (bootstrap,) = db.execute(_BOOTSTRAP).fetchone() or (b"",)
        before = self._segment
        if before is not None and before.bootstrap != bootstrap:
            snapshot.unlink()
            raise ConfigError(f"{self._folder} has the backup of another cluster; name another directory")
        if before is not None and not leaves_gap:
            heads, safe = before.heads, before.safe
        if before is not None:
            before.close(finish=True)
        self._segment = create(self._folder / snapshot.name.replace("snapshot", "journal"), heads, safe, bootstrap)

    async def _append(self, client: Client) -> bool:
        segment = self._segment
        assert segment is not None, "it was opened"
        asked: Any = [(_NEXT, (segment.safe, TRANSACTIONS_MAX)), VOIDS, _BOOTSTRAP]
        upto, voids, bootstrap = await client.transact(asked, read=STALE)
        if bootstrap.value() != segment.bootstrap:
            raise ConfigError(f"{self._folder} has the backup of another cluster; name another directory")
        wanted = {str(leader): int(tick) for leader, tick in upto.rows}
        safe = wanted.pop("")
        if safe <= segment.safe:
            return False
        entries = await _fetch(client, {leader: tick for leader, (tick, _) in segment.heads.items()}, wanted)
        keys = [str(key) for (key,) in voids.rows]
        await trio.to_thread.run_sync(segment.append, entries, safe, keys, time.time_ns() // 1_000_000)
        if entries:
            self._say(f"{segment.path.name}: {len(entries)} commits")
        return len(entries) >= TRANSACTIONS_MAX


async def _read(client: Client, leader: str, first: int, last: int) -> list[Entry]:
    async with client.stream(_ENTRIES, (leader, first, last), read=STALE) as rows:  # of any size
        return [hashed_entry(*map(bytes, row)) async for row in rows]


async def _fetch(client: Client, has: dict[str, int], wanted: dict[str, int]) -> list[Entry]:
    """Return the entries up to the given ticks, and all earlier entries on which these depend."""
    found: list[Entry] = []
    while behind := [leader for leader, tick in wanted.items() if has.get(leader, 0) < tick]:
        leader = behind[0]
        first = has.get(leader, 0) + 1
        last = min(wanted[leader], first + PAGE_TICKS - 1)
        try:
            taken = await _read(client, leader, first, last)
        except ResultLostError:  # with the node that was asked
            taken = await _read(client, leader, first, last)
        if not taken or any(one.tick != first + place for place, one in enumerate(taken)):
            removed = await client.execute(_REMOVED, (leader,), read=STALE)
            if removed.rows and int(removed.value()) >= first:
                raise GapError(f"{leader}{first} was removed from the journals")
            raise UnavailableError(
                f"the node that was asked does not have {leader}{first} to {leader}{last}; ask again"
            )
        found += taken
        has[leader] = taken[-1].tick
        wanted = merge(wanted, *(one.after for one in taken))
    return found


def too_old(folder: Path, before_s: float) -> list[Path]:
    """Return the files that are needed only to restore the state before a Unix time."""
    kept: Path | None = None
    for snapshot in numbered(folder, SNAPSHOTS):
        if milliseconds(extent(snapshot)[0]) / 1000 <= before_s:
            kept = snapshot
    if kept is None:
        return []
    has = extent(kept)[1]
    old = [path for path in numbered(folder, SNAPSHOTS) if path < kept]
    segments = numbered(folder, SEGMENTS)[:-1]
    return old + [path for path in segments if covers(has, extent(path)[1])]

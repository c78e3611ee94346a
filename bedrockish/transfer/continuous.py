"""A continuous backup in a directory: snapshots, and between them the journal as it becomes safe.

``snapshot-000002.db`` is a copy of a node's file, ``journal-000002.db`` the segment that is written from then on. Each
segment begins where the one before it ends, whichever nodes they were read from, so that any snapshot can be gone on
from with the segments after it. What is written is durable before it counts, and all of it is found again after a
kill: where a segment ends is what the next run asks for.
"""

import fcntl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from bedrockish.api.requests import STALE
from bedrockish.client.trio_client import Client, open_client
from bedrockish.errors import BedrockishError, ConfigError, DamagedError, UnavailableError
from bedrockish.node.cluster.join import back_up
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import JournalError, TargetUnwritableError
from bedrockish_journal.model.vector import covers, merge
from bedrockish_journal.storage.row import hashed_entry
from bedrockish_journal.storage.segment import Heads, Segment, create, ends
from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.verify.beginning import safe_clock
from bedrockish_journal.verify.restore import SEGMENTS, SNAPSHOTS

POLL_S = 1.0
PAGE_BYTES, PAGE_TICKS = 4 << 20, 1_000
TRANSACTIONS_MAX = 500  # that are taken at once
# Up to where all is safe, or the first few that are; and which tick of each timeline is the last of them.
_NEXT = """
WITH safe(clock) AS (SELECT coalesce((SELECT value FROM bedrockish_meta WHERE key = 'safe'), 0)),
  upto(clock) AS (SELECT min(safe.clock, coalesce((SELECT clock FROM bedrockish_journal
    WHERE repeat = 0 AND clock > ?1 ORDER BY clock LIMIT 1 OFFSET ?2), safe.clock)) FROM safe)
SELECT leader, max(tick) FROM bedrockish_journal
  WHERE repeat = 0 AND clock > ?1 AND clock <= (SELECT clock FROM upto) GROUP BY leader
UNION ALL SELECT '', clock FROM upto
"""
_VOIDS = "SELECT key FROM bedrockish_meta WHERE key >= 'void:' AND key < 'void;'"
_BOOTSTRAP = "SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'"
_REMOVED = "SELECT tick FROM bedrockish_pruned WHERE leader = ?"
_PAGE = """
SELECT prev, label, body, hash FROM (
  SELECT *, sum(length(body)) OVER (ORDER BY tick) - length(body) AS before FROM bedrockish_journal
    WHERE leader = ?1 AND tick BETWEEN ?2 AND ?3) WHERE before < ?4 ORDER BY tick
"""


class GapError(JournalError):
    """Raised when the nodes no longer have what comes next: their journals were made shorter. A snapshot is due."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a continuous backup shall be like.

    Attributes:
        every_s: how old the last snapshot may become before another one is made, in seconds.
        keep_s: how far back a restore must be able to go, in seconds; None for ever.
    """

    every_s: float
    keep_s: float | None


def numbered(folder: Path, pattern: str) -> list[Path]:
    """Return the snapshots or the segments in a directory, oldest first."""
    return sorted(folder.glob(pattern))


async def follow(url: str, folder: Path, plan: Plan, say: Callable[[str], None], *, once: bool) -> None:
    """Keep a directory up to what is safe, for ever or once.

    Raises:
        ConfigError: the directory cannot be written, somebody else does, or it is of another cluster.
        DamagedError: the cluster tells another history than the directory.
        BedrockishError: no node can be asked; what is there stays as it is, and the next run goes on.
    """
    with _held(folder):
        try:
            async with open_client(url) as client, _opened(url, folder, plan, say) as backup:
                while True:
                    try:
                        more = await backup.step(client)
                    except BedrockishError as error:
                        if once or not error.retry:
                            raise
                        say(f"trying again: {error.message}")
                        more = False
                    if once and not more:
                        return
                    await trio.sleep(0 if more else POLL_S)
        except TargetUnwritableError as error:
            raise ConfigError(str(error)) from error
        except JournalError as error:
            raise DamagedError(f"{folder}: {error}; begin a new directory, and keep this one") from error


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Make the directory, and be the only one that writes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise ConfigError(f"another process keeps {folder} up; end that one, or name another directory") from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; check the disk") from error


@asynccontextmanager
async def _opened(url: str, folder: Path, plan: Plan, say: Callable[[str], None]) -> AsyncIterator["_Backup"]:
    backup = _Backup(url, folder, plan, say)
    await backup.open()
    try:
        yield backup
    finally:
        backup.close()


class _Backup:
    """A directory that is kept up."""

    def __init__(self, url: str, folder: Path, plan: Plan, say: Callable[[str], None]) -> None:
        self._url, self._folder, self._plan, self._say = url, folder, plan, say
        self._segment: Segment | None = None

    async def open(self) -> None:
        """Go on where the last run ended."""
        for part in self._folder.glob("*.part*"):
            part.unlink()
        snapshots, segments = numbered(self._folder, SNAPSHOTS), numbered(self._folder, SEGMENTS)
        if segments:
            self._segment = Segment(segments[-1])
        if not snapshots:
            await self._snapshot()
        elif not segments or segments[-1].name[-9:] < snapshots[-1].name[-9:]:  # killed between the two
            self._begin(snapshots[-1], anew=False)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()

    async def step(self, client: Client) -> bool:
        """Take what has become safe; return whether there may be more at once."""
        try:
            if self._is_due():
                await self._snapshot()
            return await self._take(client)
        except GapError as error:
            self._say(f"{error}; making a snapshot")
            await self._snapshot(anew=True)
            return True

    def _is_due(self) -> bool:
        newest = numbered(self._folder, SNAPSHOTS)[-1]
        return time.time() - newest.stat().st_mtime > self._plan.every_s

    async def _snapshot(self, *, anew: bool = False) -> None:
        """Make a snapshot, begin a new segment, and remove what is too old."""
        found = numbered(self._folder, SNAPSHOTS)
        number = int(found[-1].stem[-6:]) + 1 if found else 1
        path = self._folder / f"snapshot-{number:06}.db"
        size = await back_up(self._url, path)
        self._say(f"{path.name}: {size} bytes")
        self._begin(path, anew=anew)
        if self._plan.keep_s is not None:
            for old in too_old(self._folder, time.time() - self._plan.keep_s):
                old.unlink()
                self._say(f"{old.name} is too old and was removed")

    def _begin(self, snapshot: Path, *, anew: bool) -> None:
        """Begin the segment after a snapshot, where the one before it ends; ``anew``: where the snapshot does."""
        db = open_readonly(snapshot)
        try:
            heads: Heads = ends(db)
            safe = safe_clock(db)
            (bootstrap,) = db.execute(_BOOTSTRAP).fetchone() or (b"",)
        finally:
            db.close()
        before = self._segment
        if before is not None and before.bootstrap != bootstrap:
            snapshot.unlink()
            raise ConfigError(f"{self._folder} has the backup of another cluster; name another directory")
        if before is not None and not anew:
            heads, safe = before.heads, before.safe
        if before is not None:
            before.close(finish=True)
        self._segment = create(self._folder / snapshot.name.replace("snapshot", "journal"), heads, safe, bootstrap)

    async def _take(self, client: Client) -> bool:
        segment = self._segment
        assert segment is not None, "it was opened"
        asked: Any = [(_NEXT, (segment.safe, TRANSACTIONS_MAX)), _VOIDS, _BOOTSTRAP]
        upto, voids, bootstrap = await client.transact(asked, read=STALE)
        if bootstrap.value() != segment.bootstrap:
            raise ConfigError(f"{self._folder} has the backup of another cluster; name another directory")
        wanted = {str(leader): int(tick) for leader, tick in upto.rows}
        safe = wanted.pop("")
        if safe <= segment.safe:
            return False
        entries = await _fetch(client, {leader: tick for leader, (tick, _) in segment.heads.items()}, wanted)
        keys = [str(key) for (key,) in voids.rows]
        await trio.to_thread.run_sync(segment.take, entries, safe, keys, time.time_ns() // 1_000_000)
        if entries:
            self._say(f"{segment.path.name}: {len(entries)} commits")
        return len(entries) >= TRANSACTIONS_MAX


async def _fetch(client: Client, has: dict[str, int], wanted: dict[str, int]) -> list[Entry]:
    """Return the entries up to some ticks, and all that they have seen: those are as good as safe, if not so by clock.

    Raises:
        GapError: the node no longer has all of them.
        UnavailableError: the node does not have all of them yet.
    """
    found: list[Entry] = []
    while behind := [leader for leader, tick in wanted.items() if has.get(leader, 0) < tick]:
        leader = behind[0]
        first = has.get(leader, 0) + 1
        last = min(wanted[leader], first + PAGE_TICKS - 1)
        asked: Any = [(_REMOVED, (leader,)), (_PAGE, (leader, first, last, PAGE_BYTES))]
        removed, page = await client.transact(asked, read=STALE)
        if removed.rows and int(removed.value()) >= first:
            raise GapError(f"{leader}{first} was removed from the journals")
        taken = [hashed_entry(*map(bytes, row)) for row in page.rows]
        if not taken or taken[0].tick != first:
            raise UnavailableError(f"the node that was asked does not have {leader}{first} yet; ask again")
        found += taken
        has[leader] = taken[-1].tick
        wanted = merge(wanted, *(one.after for one in taken))
    return found


def too_old(folder: Path, before_s: float) -> list[Path]:
    """Return what nobody needs who restores to a moment after a Unix time."""
    kept: Path | None = None
    for snapshot in numbered(folder, SNAPSHOTS):
        if milliseconds(_of(snapshot)[0]) / 1000 <= before_s:
            kept = snapshot
    if kept is None:
        return []
    has = _of(kept)[1]
    old = [path for path in numbered(folder, SNAPSHOTS) if path < kept]
    segments = numbered(folder, SEGMENTS)[:-1]
    return old + [path for path in segments if covers(has, _of(path)[1])]


def _of(path: Path) -> tuple[int, dict[str, int]]:
    """Return up to which clock a file is complete, and where it ends."""
    db = open_readonly(path)
    try:
        return safe_clock(db), {leader: tick for leader, (tick, _) in ends(db).items()}
    finally:
        db.close()

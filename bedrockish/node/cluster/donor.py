"""The data for a new node: facts about the cluster, and a copy of the donor's file, in pieces.

A donor lends one copy at a time, to one client, and removes it when the client's link ends. The copy is sent only after
all its contents are durable here: otherwise a commit that this node loses in a power cut could survive at the new node,
and another commit would get the same place.
"""

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from bedrockish.common.machine import threads_or_unavailable
from bedrockish.core.node import Node
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage.scratch_files import LENT, remove, scratch_path
from bedrockish.errors import UnavailableError, UsageError
from bedrockish.node.scheduling.durability import Durable
from bedrockish_journal.model.membership import pack_membership

CHUNK_BYTES = 4 << 20


class Copy:
    """One copy of the node's file, which one client is fetching."""

    def __init__(self, path: Path, size: int, digest: bytes, remove: Callable[[], Awaitable[None]]) -> None:
        self.path, self.size, self.digest = path, size, digest
        self.remove = remove  # must be called when the client needs the copy no longer

    async def read(self, offset: int) -> bytes:
        """Return the piece at an offset; empty at the end.

        Raises:
            UsageError: the offset is beyond the end of the copy.
        """
        if not 0 <= offset <= self.size:
            raise UsageError(f"the copy has {self.size} bytes; there is nothing at {offset}")
        return await trio.to_thread.run_sync(self._read, offset)

    def _read(self, offset: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)


class Donor:
    """Gives new nodes the facts about the cluster, and copies of this node's file.

    Args:
        database: path of the node's file; copies are made next to it.
    """

    def __init__(self, core: Node, engine: Engine, database: str, durable: Durable) -> None:
        self._core, self._engine, self._durable = core, engine, durable
        self._path = scratch_path(database, LENT)
        self._busy = False

    async def facts(self) -> dict[str, Any]:
        """Return the durable facts that a new node needs: the first and the present membership, and the vector.

        Raises:
            UnavailableError: this node is out of service.
        """
        state = self._core.state
        self._check()
        told = {
            "bootstrap": self._engine.bootstrap,
            "membership": pack_membership(state.roster.membership),
            "vector": dict(state.timelines.applied),
            "replayable": not self._engine.get_meta("began_with").get("began_with")
            and not self._engine.journal.removed
            and not self._engine.entries.void,
            "removed": self._engine.journal.removed,
        }
        await self._durable()
        return told

    async def copy(self) -> Copy:
        """Make a copy of the node's file as it is now, and lend it to the caller.

        Raises:
            UnavailableError: another client is using a copy, or this node is out of service or has no room for one.
            ConfigError: the copy cannot be written.
        """
        self._check()
        if self._busy:
            node = self._core.state.me
            raise UnavailableError(
                f"node {node} is giving a copy to another client; try again later, or ask another node"
            )
        self._busy = True
        try:
            size, digest = await trio.to_thread.run_sync(self._make)
            await self._durable()
        except BaseException:
            await self._remove()
            raise
        return Copy(self._path, size, digest, self._remove)

    def _check(self) -> None:
        if self._core.state.trouble:
            raise UnavailableError(self._core.state.trouble)

    def _make(self) -> tuple[int, bytes]:
        """Make the copy, in a thread; return its size and digest. The call ends early if its task is cancelled."""
        go_on = trio.from_thread.check_cancelled
        with suppress(OSError):
            remove(self._path)
        self._engine.background.snapshot_to(self._path, go_on)
        digest = hashlib.sha256()
        with open(self._path, "rb") as file:
            while data := file.read(CHUNK_BYTES):
                digest.update(data)
                go_on()
        return self._path.stat().st_size, digest.digest()

    async def _remove(self) -> None:
        """Remove the copy, in a thread: a system takes some tenths of a second for each GB of a file."""
        try:
            with suppress(OSError), trio.CancelScope(shield=True):
                try:
                    with threads_or_unavailable():
                        await trio.to_thread.run_sync(remove, self._path)
                except UnavailableError:
                    remove(self._path)
        finally:
            self._busy = False

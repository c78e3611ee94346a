"""Exports a cluster's tables to a plain SQLite file: a copy of some node's file, without the node's own tables."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from bedrockish.engine.storage.rename_copy import claimed, put_in_new_place, strip
from bedrockish.engine.storage.scratch_files import remove
from bedrockish.node.cluster.join import back_up
from bedrockish_journal.model.vector import Vector


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export."""

    size: int  # the size of the file, in bytes
    vector: Vector  # the vector of the file, which has exactly the transactions up to these ticks
    clock: int  # the highest clock of a transaction in the file
    cursor: str  # the cursor at which the change feed continues after the file


async def export(url: str, path: Path) -> ExportResult:
    """Write a consistent copy of the tables to a new file, while clients keep working.

    Raises:
        ConfigError: the file is there already or cannot be written.
        BedrockishError: no node gave a copy.
    """
    with claimed(path):
        unfinished = path.with_name(path.name + ".unfinished")
        with suppress(OSError):  # the next step reports a folder that may not be written
            remove(unfinished)  # left by a killed run
        await back_up(url, unfinished)
        try:
            vector, clock, cursor = await trio.to_thread.run_sync(strip, unfinished)
            put_in_new_place(unfinished, path)
        except BaseException:
            with suppress(OSError):
                remove(unfinished)
            raise
    return ExportResult((await trio.Path(path).stat()).st_size, vector, clock, cursor)

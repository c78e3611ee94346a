"""Runs one statement over a whole table, one range of keys after the other, each once and as its own transaction.

A state file has the range under way and the id under which it was sent. After a kill that range is sent again under the
same id, which has no effect if it was committed already. Then the next ranges follow.
"""

import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import trio

from bedrockish.client.trio_client import Client
from bedrockish.errors import (
    BedrockishError,
    ConfigError,
    ForgottenError,
    OutcomeUnknownError,
    SqlError,
    TooLargeError,
    UsageError,
)

ROWS_MIN, ROWS_MAX = 1, 100_000
# The next range is longer after one that took less than the first, and shorter after one that took more than the
# second.
SHORT_S, LONG_S = 0.05, 0.2
PAUSES_S = (0.1, 0.5, 2.0, 5.0, 10.0)  # before a range is tried again


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a batch.

    Attributes:
        sql, table, key: the identity of the batch; another batch has another file.
        id: the prefix of the command ids of its ranges.
        number: the number of the range that is under way, or of the next one.
        after: the last key that is done; None at the beginning.
        first, last: the range that is under way; None between two ranges.
        rows: how many rows were looked at in all.
        changed: how many of these rows were changed.
        finished: whether all ranges are done.
    """

    sql: str
    table: str
    key: str
    id: str
    number: int = 1
    after: Any = None
    first: Any = None
    last: Any = None
    rows: int = 0
    changed: int = 0
    finished: bool = False


def read_progress(path: Path, sql: str, table: str, key: str) -> Progress:
    """Return the progress of a batch from its file; without a file, its beginning.

    Raises:
        ConfigError: the file is of another batch, or is not the file of a batch.
    """
    fresh = Progress(sql, table, key, str(uuid.uuid4()))
    try:
        found = Progress(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return fresh
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not the file of a batch ({error}); name another one with --state") from error
    if (found.sql, found.table, found.key) != (sql, table, key):
        raise ConfigError(f"{path} is of another batch, over {found.table!r}; name another one with --state")
    return found


def _write(path: Path, progress: Progress) -> None:
    """Write the progress to its file, durably: a range that was sent must never be forgotten."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(asdict(progress), file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


class Batch:
    """The run of a batch.

    Args:
        client: session with the cluster.
        path: its state file.
        progress: its progress so far.
        pause_s: the pause between two ranges, in seconds.
        say: called with the progress after each range.
    """

    def __init__(
        self, client: Client, path: Path, progress: Progress, pause_s: float, say: Callable[[Progress], None]
    ) -> None:
        self._client, self._path, self._pause_s, self._say = client, path, pause_s, say
        self.progress = progress
        self._resend = progress.first is not None

    async def run(self, rows: int) -> Progress:
        """Run the batch to its end, and return its progress.

        Args:
            rows: the rows of the first range; later ranges have as many rows as take about a tenth of a second.

        Raises:
            BedrockishError: a range failed; the ranges before are done, and the next run continues at the failed one.
        """
        while not self.progress.finished:
            count = await self._choose(rows) if self.progress.first is None else 0
            if self.progress.finished:
                break
            began = time.monotonic()
            try:
                changed = await self._send()
            except TooLargeError:
                if count <= ROWS_MIN or self._resend:
                    raise
                rows = max(ROWS_MIN, count // 4)  # it did not happen: send a shorter range, under another id
                self._keep(first=None, last=None, number=self.progress.number + 1)
                continue
            took_s = time.monotonic() - began
            now = self.progress
            self._keep(
                after=now.last, first=None, last=None, number=now.number + 1, rows=now.rows + count,
                changed=now.changed + changed,
            )  # fmt: skip
            self._say(self.progress)
            if took_s < SHORT_S:
                rows = min(ROWS_MAX, 2 * rows)
            elif took_s > LONG_S:
                rows = max(ROWS_MIN, rows // 2)
            await trio.sleep(self._pause_s)
        return self.progress

    def _keep(self, **changes: Any) -> None:
        self.progress = replace(self.progress, **changes)
        _write(self._path, self.progress)

    async def _choose(self, rows: int) -> int:
        """Find the next range, and write it to the file before it is sent; return how many rows it has."""
        table, after = quoted(self.progress.table), self.progress.after
        key = f"{table}.{quoted(self.progress.key)}"  # SQLite reads an unknown quoted name without a table as a text
        where = f"WHERE {key} > ?2" if after is not None else f"WHERE {key} IS NOT NULL AND ?2 IS NULL"
        sql = f"SELECT min(k), max(k), count(*) FROM (SELECT {key} AS k FROM {table} {where} ORDER BY k LIMIT ?1)"
        first, last, count = (await self._client.execute(sql, [rows, after], read="strict")).rows[0]
        if not count:
            self._keep(finished=True)
            return 0
        if not isinstance(first, int | str) or not isinstance(last, int | str):
            raise UsageError(f"the key {self.progress.key!r} has values that are no integers and no texts; use another")
        self._keep(first=first, last=last)
        self._resend = False
        return int(count)

    async def _send(self) -> int:
        """Run the statement on the range that is under way, until its outcome is known."""
        now = self.progress
        command = f"{now.id}-{now.number}"
        for pause_s in (*PAUSES_S, None):
            try:
                done = await self._client.execute(
                    now.sql, {"first": now.first, "last": now.last}, command=command, resend=self._resend
                )
            except SqlError as error:
                raise UsageError(f"range {now.first!r} to {now.last!r}: {error.message}") from error
            except ForgottenError as error:
                if not error.details.get("happened"):
                    raise
                return 0  # the range was done so long ago that its answer is gone
            except BedrockishError as error:
                if not (error.retry or isinstance(error, OutcomeUnknownError)) or pause_s is None:
                    raise
                self._resend = True
                await trio.sleep(pause_s)
            else:
                self._resend = False
                return max(0, done.rowcount)
        raise AssertionError("the last one raises")


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'

"""What one request may cost. The only file of the engine that looks at a clock: to bound a statement's run time."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from bedrockish.errors import StatementTimeoutError


class TakesLongError(Exception):
    """Raised when a request is over its budget: not refused, but to be run where it is in nobody's way.

    ``sql`` is the statement that was at work.
    """

    def __init__(self, sql: str) -> None:
        super().__init__(sql)
        self.sql = sql


TRANSACTION_BYTES = 64 << 20  # as long as a frame


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request, and of the WAL file.

    Attributes:
        result_bytes: size of all results of a request together.
        changes_bytes: size of all rows that a request changes, before and after.
        statement_s: how long one statement may run, in seconds.
        wal_frames: frames in the WAL at which a background checkpoint is due.
        wal_frames_max: frames at which a batch's end finishes the checkpoint itself, inline.
        seconds: a clock that only goes forward, in seconds.
        budget_s: how long a request may run in the loop before it is run again aside.
    """

    result_bytes: int = 64 << 20
    changes_bytes: int = 32 << 20
    statement_s: float = 30.0
    wal_frames: int = 4_000
    wal_frames_max: int = 32_000
    seconds: Callable[[], float] = monotonic
    budget_s: float = 0.01

    @property
    def length_bytes(self) -> int:
        """The longest value that SQLite takes, in bytes: a whole transaction is one, in the journal."""
        return max(self.result_bytes, self.changes_bytes, TRANSACTION_BYTES) + (1 << 20)


def out_of_time(limits: Limits, sql: str) -> StatementTimeoutError:
    """Return the error for a statement that ran too long."""
    return StatementTimeoutError(
        f"a statement ran longer than {limits.statement_s:g} s and was interrupted; add an index, ask for less at a "
        "time, or raise statement_ms_max at the node",
        sql=sql,
        limit_s=limits.statement_s,
    )

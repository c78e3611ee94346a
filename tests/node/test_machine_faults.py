"""Failures of the disk and limits of the machine are reported as such, and an outcome that is not known as unknown."""

import errno
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest
import trio
from trio.testing import MockClock

from bedrockish.errors import BedrockishError, DamagedError, MemoryFullError, OutcomeUnknownError, UnavailableError
from bedrockish.node.scheduling.checkpoints import Checkpoints
from bedrockish.node.scheduling.faults import Faults


def never(damage: DamagedError) -> None:
    raise AssertionError(damage)


@pytest.mark.parametrize("error", [UnavailableError("cannot be copied"), apsw.IOError("disk I/O error")])
async def test_failed_checkpoint_is_tried_again_after_a_pause(error: Exception, autojump_clock: MockClock) -> None:
    """Without the pause each batch would begin a checkpoint, and log its error, as long as the disk cannot be read."""
    began: list[float] = []

    def fail() -> None:
        began.append(trio.from_thread.run_sync(trio.current_time))
        if len(began) < 3:
            raise error

    engine = SimpleNamespace(wal=SimpleNamespace(checkpoint=fail))
    checkpoints = Checkpoints(cast(Any, engine), Faults(Counter(), never))
    async with trio.open_nursery() as nursery:
        for _ in range(30):
            checkpoints.begin(nursery)
            await trio.sleep(0.1)
            while checkpoints._is_running:
                await trio.lowlevel.checkpoint()
    assert [round(later - earlier) for earlier, later in pairwise(began)][:2] == [1, 1]
    assert len(began) > 4, "after a success there is no pause"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("can't start new thread"), UnavailableError),
        (ExceptionGroup("both", [KeyError(), OSError(errno.EMFILE, "Too many open files")]), UnavailableError),
        (MemoryError(), MemoryFullError),
        (apsw.NoMemError("out of memory"), MemoryFullError),
    ],
)
def test_limit_of_the_machine_is_reported_as_a_limit(
    error: Exception, kind: type[BedrockishError], caplog: pytest.LogCaptureFixture
) -> None:
    """The node logs one of hundreds of such errors in a second, and calls none of them a bug to report."""
    faults = Faults(Counter(), never)
    for _ in range(300):
        told = faults.caught("a fetch", error)
        assert type(told) is kind
        assert "did not happen" in told.message
    found = faults.describe()
    assert (found["limit_errors_recent"], found["internal_errors_recent"]) == (100, 0)
    assert "(at a fetch)" in found["limit_error_last"]
    assert len(caplog.records) <= 2
    assert "ulimit" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        apsw.IOError("disk I/O error"),
        OSError(errno.EIO, "Input/output error"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        DamagedError("x"),
        ZeroDivisionError(),
    ],
)
def test_failure_after_a_possible_commit_leaves_the_outcome_unknown(error: Exception) -> None:
    """The answer to an HTTP POST must not say that a request did not happen whose commit is durable."""
    told = Faults(Counter(), lambda _: None).caught("POST /db/execute", error, is_late=True)
    assert isinstance(told, OutcomeUnknownError)
    assert "did not happen" not in told.message

"""A bound on the processor time of a call, scaled by a reference computation on the same machine.

A bound in seconds fails on a slow machine. It also fails when a collection of garbage falls into the call: at the end
of a long run of tests a collection takes 0.3 seconds.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

REFERENCE_S = 0.007
"""Seconds that ``reference`` takes on the machine where the bounds of the tests were chosen."""


def reference() -> float:
    """Return the seconds of processor of a fixed computation, half of it in Python and half of it in SQLite."""
    db = apsw.Connection(":memory:")
    began = time.thread_time()
    sum(number * number for number in range(110_000))
    sql = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 37000) SELECT sum(i * i) FROM n"
    db.execute(sql).fetchall()
    return time.thread_time() - began


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Assert that the body takes this thread no more seconds of processor than a bound, without garbage collection.

    The bound grows with the time of the reference before and after the body. It is never shorter than ``seconds``.

    Raises:
        AssertionError: the body takes longer. An exception of the body is raised in its place.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        before = reference()
        began = time.thread_time()
        yield
        spent = time.thread_time() - began
        scale = max(1.0, before / REFERENCE_S, reference() / REFERENCE_S)
    finally:
        if was_enabled:
            gc.enable()
    assert spent <= seconds * scale, f"{spent:.3f} s of processor, at most {seconds} s, times {scale:.1f} here"

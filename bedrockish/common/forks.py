"""Clients, pools and connections in a forked process: the inherited links and transactions stay with the parent.

A child has the parent's sockets, and two processes that read one socket would take each other's answers. So a forked
child closes its copies without sending anything to the nodes, and each client opens a new link at its next call. An
open transaction continues in the parent only.

A fork copies locks as they are at that moment. A lock that another thread holds is held in the child for ever, because
the child does not have that thread. The child replaces Python's locks. It cannot replace the locks inside SQLite, which
each allocation of memory acquires. So a fork waits until each other thread has ended its statement, or waits in a
progress handler.
"""

import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Protocol

from bedrockish.common.pauses import monotonic

WAIT_S = 5.0  # how long a fork waits for other threads
STEPS = 4_000  # SQLite's virtual machine instructions between two calls of ``stand_still``
WIPE_ON_FORK = 18  # Linux's MADV_WIPEONFORK, which Python's mmap does not name
_ASK_S = 0.001  # seconds to wait for one lock, and between two attempts to acquire all locks


class Lock(Protocol):
    """A lock of ``threading``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; return False after the timeout."""

    def release(self) -> None:
        """Release the lock."""


class Inherited(Protocol):
    """An object that a forked child inherits."""

    def after_fork(self) -> None:
        """Drop links, locks and open transactions, which belong to the parent. Called in the child's only thread."""


class Running(Protocol):
    """An object whose threads call SQLite, each of them while it holds a lock."""

    def fork_locks(self) -> Iterable[Lock]:
        """Return the object's locks, in the order in which threads acquire them."""


_KNOWN: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


_HOOKS: list[Callable[[], None]] = []
_RUNNING: dict[int, "weakref.ref[Running]"] = {}  # by the id of the object; no WeakSet, whose copy is not atomic
FORKING: dict[int, list[Lock]] = {}  # thread that forks -> the locks that it has acquired
_WAITING: set[int] = set()  # threads that wait for a fork, each of which holds a lock
_fork_lock, _done = threading.Lock(), threading.Event()  # the lock is held during a fork; the event is set after it
_process = os.getpid()  # the process in which the objects of ``_KNOWN`` live


def call_after_fork(hook: Callable[[], None]) -> None:
    """Call a function in each child that is forked from now on, before the objects of ``watch_forks``."""
    _HOOKS.append(hook)


def watch_forks(known: Inherited) -> None:
    """Call the object's ``after_fork`` in each child that is forked from now on, as long as the object lives."""
    _KNOWN.add(known)


def wait_at_forks(running: Running) -> None:
    """Let each fork from now on wait until no thread is inside SQLite for the object; wait for a fork under way."""
    number = id(running)
    _RUNNING[number] = weakref.ref(running, lambda gone: _forget(number, gone))
    # After that: a fork that begins now finds the object. No lock is acquired: if the handler of a signal raised here,
    # the lock would stay locked, and each later session would wait for it.
    if FORKING and threading.get_ident() not in FORKING:
        _done.wait(WAIT_S)


def _forget(number: int, gone: "weakref.ref[Running]") -> None:
    if _RUNNING.get(number) is gone:  # otherwise another object has the id now
        _RUNNING.pop(number, None)


def stand_still() -> bool:
    """Wait while another thread forks.

    A thread that has acquired its lock calls this if ``FORKING`` is not empty; otherwise busy threads would acquire
    their locks again before the forking thread does. Statements that run long call this as their progress handler.

    Return False: the statement continues.
    """
    me = threading.get_ident()
    if FORKING and me not in FORKING:
        _WAITING.add(me)
        _done.wait(WAIT_S)
        _WAITING.discard(me)
    return False


def _before_fork() -> None:
    until = monotonic() + WAIT_S
    held: list[Lock] = [_fork_lock] if _fork_lock.acquire(timeout=WAIT_S) else []
    kept = len(held)
    _done.clear()
    FORKING[threading.get_ident()] = held
    while True:
        missing = 0
        # Each lock is acquired before the next one is looked up: the first ones prevent that further ones are made.
        running = [one for known in list(_RUNNING.values()) if (one := known()) is not None]
        for lock in chain.from_iterable(one.fork_locks() for one in running):
            if lock.acquire(timeout=_ASK_S):
                held.append(lock)  # at once: Ctrl-C may end this function, and the lock must still be released
            else:
                missing += 1
        # Each waiting thread holds one missing lock. Another missing lock is held by a thread that runs, and may need
        # one of the locks acquired here; so release them and try again.
        if missing <= len(_WAITING) or monotonic() > until:
            return
        _release(held, kept)
        time.sleep(_ASK_S)


def _release(held: list[Lock], kept: int = 0) -> None:
    """Release the locks of a list, the last one first, except for the first ``kept``."""
    while len(held) > kept:
        held.pop().release()


def _after_fork_in_parent() -> None:
    _release(FORKING.pop(threading.get_ident(), []))
    _done.set()


def notice_fork() -> None:
    """Do after a fork what Python has not done, if this process was forked by C code that calls no hooks of Python.

    uWSGI forks its workers so. Each call of a client begins with this check; two processes would otherwise read one
    socket, and the child would trust locks on a node's file that only its parent has.
    """
    # The mark costs a third of ``getpid``, which asks the kernel.
    if not _mark[0] and os.getpid() != _process:
        _after_fork_in_child()


def _new_mark() -> mmap.mmap | bytes:
    """Return a byte that is 1 until a fork, after which it is 0 in the child; without support of the system, always 0.

    Linux clears a page with ``MADV_WIPEONFORK`` in every child, also of C code.
    """
    if sys.platform != "linux":  # elsewhere the number may stand for other advice
        return b"\0"
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Linux before 4.14 refuses the advice. Some emulators of Linux accept any advice and do nothing.
    if _takes(page, WIPE_ON_FORK) and not _takes(page, -1):
        page[0] = 1
        return page
    page.close()
    return b"\0"


def _takes(page: mmap.mmap, advice: int) -> bool:
    try:
        page.madvise(advice)
    except OSError:
        return False
    return True


_mark = _new_mark()


def _after_fork_in_child() -> None:
    global _fork_lock, _done, _process
    _process = os.getpid()
    if isinstance(_mark, mmap.mmap):
        _mark[0] = 1
    _release(FORKING.pop(threading.get_ident(), []))
    FORKING.clear()
    _WAITING.clear()
    # ``_done`` is not set: a thread that began to wait for it may have held its lock, which the child never releases.
    _fork_lock, _done = threading.Lock(), threading.Event()
    for hook in list(_HOOKS):
        hook()
    for known in list(_KNOWN):
        known.after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

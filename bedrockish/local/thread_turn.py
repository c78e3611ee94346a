"""The turn of a program's threads: one thread at a time runs short statements on a node's file.

APSW releases the interpreter lock for each call of SQLite, several times in a statement of some microseconds. If other
threads wait for that lock, one of them acquires it each time, often on another processor, and the thread that runs the
statement has to wait. So threads that are about to run statements wait here, without contending for the interpreter
lock. A thread keeps the turn over several statements, because each change of threads costs as much as some statements.
Long statements, which SQLite runs without the interpreter lock, take no turn.

No thread depends on another one. If the thread that has the turn runs no statement, the next one takes the turn at
once; if a statement takes long, the waiting threads go on after some milliseconds, at the same time. So the turn makes
programs faster, and protects no data.
"""

from collections import deque
from contextlib import suppress
from threading import Lock, get_ident

from bedrockish.common.forks import call_after_fork
from bedrockish.common.pauses import monotonic

SLICE_S = 0.001  # how long a thread may keep the turn while others wait
IDLE_S = 0.003  # how long the first waiting thread waits while no statement begins


class ThreadTurn:
    """A context manager around one short statement: wait for the turn, and keep it afterwards."""

    # No lock guards the attributes: a finalizer or the handler of a signal may run between any two operations here, and
    # the end of the interpreter may stop a thread there. Each operation of the deque is atomic. If threads change the
    # attributes at the same time, two of them run statements at the same time, or one waits some milliseconds more.

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Lock]] = deque()  # the waiting threads, each with a lock that ends its wait
        self.clear()

    def clear(self) -> None:
        """Forget all threads, because a forked child does not have the threads of its parent."""
        self._waiting.clear()
        self._holder = 0  # the thread that has the turn; 0 for none
        self._is_running = False  # whether that thread runs a statement
        self._begun = 0  # the number of statements begun: as long as it grows, waiting threads keep waiting
        self._until = 0.0  # until when the holder keeps the turn while others wait, in seconds of ``monotonic``

    def __enter__(self) -> None:
        me = get_ident()
        if self._holder == me and not (self._waiting and monotonic() > self._until):
            self._is_running = True
            self._begun += 1
        else:
            self._take(me)

    def __exit__(self, *_: object) -> None:
        if self._holder == get_ident():
            self._is_running = False
            if self._waiting and monotonic() > self._until:
                self.leave()

    def leave(self) -> None:
        """Pass the turn on if this thread has it, because the thread is about to wait, or its transaction has ended."""
        if self._holder == get_ident():
            try:
                thread, wait_lock = self._waiting.popleft()
            except IndexError:
                self._holder, self._is_running = 0, False
            else:
                self._give_to(thread)
                wait_lock.release()

    def _take(self, me: int) -> None:
        """Wait until another thread passes the turn on, or runs no statements any more."""
        self.leave()
        if not self._is_running:
            self._give_to(me)
            return
        wait_lock = Lock()
        wait_lock.acquire()
        mine = (me, wait_lock)
        begun = self._begun
        try:
            self._waiting.append(mine)
            while not wait_lock.acquire(timeout=IDLE_S * self._place(mine)):
                if self._begun == begun:
                    self._give_to(me)
                    return
                begun = self._begun
        finally:  # the handler of a signal may have raised an exception
            with suppress(ValueError):  # the turn was passed to this thread
                self._waiting.remove(mine)

    def _place(self, mine: tuple[int, Lock]) -> int:
        """Return the place of a thread in the queue, from 1: the first checks often, each later one less often."""
        try:
            return self._waiting.index(mine) + 1
        except ValueError:  # the turn was passed to this thread just now
            return 1

    def _give_to(self, thread: int) -> None:
        self._holder, self._is_running, self._until = thread, True, monotonic() + SLICE_S
        self._begun += 1


TURN = ThreadTurn()
call_after_fork(TURN.clear)

# The ids of the sessions that this process has open. A single session needs no turn, because it has a lock.
SESSIONS: dict[int, None] = {}
